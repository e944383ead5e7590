"""Scheduling constraints below: what is about the upper cluster goes, what is about lower nodes stays."""

import json
from typing import Any

import pytest
from podkit import place, pod

from tensile.kubelet.pods.scheduling import scheduling_fields

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
HOSTNAME = "kubernetes.io/hostname"
DISK = {"key": "disk", "operator": "In", "values": ["ssd"]}
VIRTUAL = {"key": "type", "operator": "In", "values": ["virtual-kubelet"]}


def fields(spec: dict, selector: Any = None, **given: Any) -> dict:
    """Return the scheduling fields of a pod with the spec, and what the webhook moved into the annotation."""
    moved = {} if selector is None else {"annotations": {"clusterSelector": json.dumps(selector)}}
    return scheduling_fields(pod(spec, **moved), place(**given))


def required(*terms: dict) -> dict:
    """Make a spec with required node affinity: one of the terms has to hold."""
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}}


def expressions(*found: dict) -> dict:
    """Make a node selector term of expressions."""
    return {"matchExpressions": list(found)}


def named(operator: str, *names: str, key: str = HOSTNAME) -> dict:
    """Make a requirement on the names of nodes."""
    return {"key": key, "operator": operator, "values": list(names)}


def test_a_pod_without_constraints_gets_none() -> None:
    """Nothing above is nothing below: no empty affinity, no empty list."""
    assert fields({}) == {}
    assert fields({"affinity": {}, "nodeSelector": {}, "tolerations": [], "topologySpreadConstraints": []}) == {}


@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("type", {}),
        ("kubernetes.io/role", {}),
        ("clusterID", {"ignore_selector_keys": frozenset({"clusterID"})}),
        ("tier", {"node_label_keys": frozenset({"tier"})}),
    ],
)
def test_labels_that_only_virtual_nodes_have_are_not_asked_for(key: str, given: dict) -> None:
    """In a node selector, an expression, a preference, a spread and an affinity term, such a key goes."""
    expression = {"key": key, "operator": "Exists"}
    spec = {
        "nodeSelector": {key: "x", "disk": "ssd"},
        "affinity": {
            "nodeAffinity": {
                REQUIRED: {"nodeSelectorTerms": [expressions(expression, DISK)]},
                PREFERRED: [{"weight": 1, "preference": expressions(expression)}],
            },
            "podAffinity": {REQUIRED: [{"topologyKey": key}]},
            "podAntiAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": {"topologyKey": key}}]},
        },
        "topologySpreadConstraints": [{"topologyKey": key, "whenUnsatisfiable": "DoNotSchedule"}],
    }
    assert fields(spec, **given) == {"nodeSelector": {"disk": "ssd"}, **required(expressions(DISK))}


def test_a_domain_of_virtual_nodes_alone_is_none_below() -> None:
    """By whomever they were labelled; what is asked of nodes by such a label is another matter, and stays asked."""
    spread = [{"topologyKey": "region", "maxSkew": 1}, {"topologyKey": HOSTNAME, "maxSkew": 1}]
    term = {"topologyKey": "region"}
    spec = {
        "nodeSelector": {"region": "east"},
        "affinity": {
            "podAffinity": {REQUIRED: [term], PREFERRED: [{"weight": 1, "podAffinityTerm": term}]},
            "podAntiAffinity": {REQUIRED: [term]},
        },
        "topologySpreadConstraints": spread,
    }
    found = fields(spec, domain_keys=frozenset({"region"}))
    assert found == {"nodeSelector": {"region": "east"}, "topologySpreadConstraints": spread[1:]}


def test_a_key_of_no_list_is_the_lower_nodes_business() -> None:
    """Without word that a key exists above only, it is asked for below."""
    assert fields({"nodeSelector": {"clusterID": "a", "tier": "gold"}})["nodeSelector"] == {
        "clusterID": "a",
        "tier": "gold",
    }


def test_a_selector_that_names_a_virtual_node_goes() -> None:
    """kubernetes.io/hostname of the virtual node is met by being there; a lower node's name stays."""
    assert fields({"nodeSelector": {HOSTNAME: "vk-a"}}) == {}
    assert fields({"nodeSelector": {HOSTNAME: "worker-1"}}) == {"nodeSelector": {HOSTNAME: "worker-1"}}


@pytest.mark.parametrize("form", ["matchExpressions", "matchFields"])
def test_a_requirement_that_names_a_virtual_node_goes(form: str) -> None:
    """What a DaemonSet's controller writes (metadata.name In [node]) and what people write by hostname."""
    key = "metadata.name" if form == "matchFields" else HOSTNAME
    assert fields(required({form: [named("In", "vk-a", key=key)]})) == {}
    assert fields(required({form: [named("In", "vk-b", "x", key=key)]}), virtual_nodes=frozenset({"vk-b"})) == {}


def test_a_requirement_on_a_lower_node_stays() -> None:
    """A name that no virtual node has is left to the lower scheduler."""
    spec = required({"matchFields": [named("In", "worker-1", key="metadata.name")]})
    assert fields(spec) == spec


def test_nodes_to_avoid_lose_the_virtual_ones_only() -> None:
    """NotIn keeps the names that may exist below, and goes when none is left."""
    virtual = frozenset({"vk-b"})
    both = required(expressions(named("NotIn", "vk-a", "vk-b", "worker-1")))
    assert fields(both, virtual_nodes=virtual) == required(expressions(named("NotIn", "worker-1")))
    assert fields(required(expressions(named("NotIn", "vk-b"))), virtual_nodes=virtual) == {}


def test_another_key_with_a_virtual_nodes_name_stays() -> None:
    """Only keys that name nodes are compared with the names of virtual nodes."""
    spec = required(expressions(named("In", "vk-a", key="team")))
    assert fields(spec) == spec


def test_a_term_left_empty_matches_all() -> None:
    """One of several terms has to hold: where one holds always, nothing is required below."""
    assert fields(required(expressions(VIRTUAL), expressions(DISK))) == {}


def test_a_term_that_was_empty_matches_nothing_and_stays() -> None:
    """Kubernetes reads an empty term as matching no node; that is not for us to turn around."""
    assert fields(required({}, expressions(DISK))) == required({}, expressions(DISK))


def test_a_term_keeps_what_is_not_about_the_upper_cluster() -> None:
    """Expressions go one by one, and an emptied list goes with its field."""
    spec = required({"matchExpressions": [VIRTUAL], "matchFields": [named("In", "worker-1", key="metadata.name")]})
    assert fields(spec) == required({"matchFields": [named("In", "worker-1", key="metadata.name")]})


def test_preferences_are_filtered_too() -> None:
    """A preference for virtual nodes goes, one for lower nodes keeps its weight."""
    spec = {
        "affinity": {
            "nodeAffinity": {
                PREFERRED: [
                    {"weight": 5, "preference": expressions(VIRTUAL)},
                    {"weight": 7, "preference": expressions(VIRTUAL, DISK)},
                ]
            }
        }
    }
    assert fields(spec) == {"affinity": {"nodeAffinity": {PREFERRED: [{"weight": 7, "preference": expressions(DISK)}]}}}


def test_pod_affinity_by_a_domain_of_lower_nodes_stays() -> None:
    """Terms by hostname or zone mean lower nodes below, required and preferred, together and apart."""
    term = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"app": "db"}}}
    spec = {
        "affinity": {
            "podAffinity": {REQUIRED: [term], PREFERRED: [{"weight": 3, "podAffinityTerm": term}]},
            "podAntiAffinity": {REQUIRED: [term]},
        }
    }
    assert fields(spec) == spec


def test_namespaces_of_affinity_terms_are_those_below() -> None:
    """A term that looks for pods in other namespaces has to name the lower ones."""
    spec = {
        "affinity": {
            "podAffinity": {REQUIRED: [{"topologyKey": "zone", "namespaces": ["a", "b"]}]},
            "podAntiAffinity": {
                PREFERRED: [{"weight": 1, "podAffinityTerm": {"topologyKey": "zone", "namespaces": ["c"]}}]
            },
        }
    }
    found = fields(spec, namespace_of="demo-{}".format)["affinity"]
    assert found["podAffinity"][REQUIRED] == [{"topologyKey": "zone", "namespaces": ["demo-a", "demo-b"]}]
    assert found["podAntiAffinity"][PREFERRED] == [
        {"weight": 1, "podAffinityTerm": {"topologyKey": "zone", "namespaces": ["demo-c"]}}
    ]


def test_a_selector_of_namespaces_that_names_them_names_those_below() -> None:
    """Each namespace has its name as a label; what else selects them stays as it is."""
    name, team = "kubernetes.io/metadata.name", {"key": "team", "operator": "In", "values": ["a"]}
    named = [{"key": name, "operator": "NotIn", "values": ["a", "b"]}, {"key": name, "operator": "Exists"}, team]
    below = [{"key": name, "operator": "NotIn", "values": ["demo-a", "demo-b"]}, *named[1:]]
    for given, wanted in (
        ({"matchLabels": {name: "a", "team": "a"}}, {"matchLabels": {name: "demo-a", "team": "a"}}),
        ({"matchExpressions": named}, {"matchExpressions": below}),
        ({"matchLabels": {"team": "a"}}, {"matchLabels": {"team": "a"}}),
        ({}, {}),
    ):
        term = {"topologyKey": "zone", "namespaceSelector": given}
        found = fields({"affinity": {"podAffinity": {REQUIRED: [term]}}}, namespace_of="demo-{}".format)
        assert found["affinity"]["podAffinity"][REQUIRED] == [{**term, "namespaceSelector": wanted}]


@pytest.mark.parametrize("field", ["matchLabelKeys", "mismatchLabelKeys"])
def test_expressions_that_the_apiserver_merged_go(field: str) -> None:
    """The keys stay and the expressions made of them go, or the lower apiserver refuses both together."""
    merged = [{"key": "hash", "operator": "In", "values": ["1"]}, {"key": "app", "operator": "Exists"}]
    term = {"topologyKey": "zone", field: ["hash"], "labelSelector": {"matchExpressions": merged}}
    found = fields({"topologySpreadConstraints": [term], "affinity": {"podAffinity": {REQUIRED: [term]}}})
    wanted = {**term, "labelSelector": {"matchExpressions": merged[1:]}}
    assert found == {"topologySpreadConstraints": [wanted], "affinity": {"podAffinity": {REQUIRED: [wanted]}}}


def test_labels_of_a_selector_stay_beside_merged_expressions() -> None:
    """Only the expressions that the apiserver made go."""
    hashed = {"key": "hash", "operator": "In", "values": ["1"]}
    selector = {"matchLabels": {"app": "x"}, "matchExpressions": [hashed]}
    term = {"topologyKey": "zone", "matchLabelKeys": ["hash"], "labelSelector": selector}
    (found,) = fields({"topologySpreadConstraints": [term]})["topologySpreadConstraints"]
    assert found["labelSelector"] == {"matchLabels": {"app": "x"}}


@pytest.mark.parametrize("rest", [{}, {"labelSelector": None}, {"labelSelector": {"matchLabels": {"a": "b"}}}])
def test_a_term_that_nothing_was_merged_into_stays(rest: dict) -> None:
    """No selector is made up where there is none: it would match where the missing one does not."""
    term = {"topologyKey": "zone", "matchLabelKeys": ["hash"], **rest}
    assert fields({"topologySpreadConstraints": [term]}) == {"topologySpreadConstraints": [term]}


def test_an_upper_only_key_goes_whatever_is_asked_of_it() -> None:
    """Avoiding another cluster is as much about the upper cluster as asking for one."""
    avoid = {"key": "clusterID", "operator": "NotIn", "values": ["b"]}
    assert fields(required(expressions(avoid)), ignore_selector_keys=frozenset({"clusterID"})) == {}


def test_unknown_fields_of_constraints_stay() -> None:
    """What a newer Kubernetes adds to affinities and terms goes down with them."""
    new = {"brandNew": 1}
    terms = {"nodeSelectorTerms": [{**expressions(DISK), **new}], **new}
    term = {"topologyKey": "zone", **new}
    spec = {
        "affinity": {
            **new,
            "nodeAffinity": {
                **new,
                REQUIRED: terms,
                PREFERRED: [{"weight": 1, "preference": {**expressions(DISK), **new}, **new}],
            },
            "podAffinity": {**new, REQUIRED: [term], PREFERRED: [{"weight": 1, "podAffinityTerm": term, **new}]},
            "podAntiAffinity": {**new, REQUIRED: [term]},
        },
        "topologySpreadConstraints": [term],
    }
    assert fields(spec) == spec


def test_null_fields_are_absent_ones() -> None:
    """Lists and maps may be null in JSON that no apiserver has tidied yet."""
    spec = {
        "nodeSelector": None,
        "tolerations": None,
        "topologySpreadConstraints": None,
        "affinity": {
            "nodeAffinity": {REQUIRED: None, PREFERRED: [{"weight": 1, "preference": None}]},
            "podAffinity": None,
        },
    }
    assert fields(spec) == {}


def test_a_selector_of_merged_expressions_only_is_left_empty() -> None:
    """An empty selector is not a missing one: it matches every pod, as the user's did."""
    term = {
        "topologyKey": "zone",
        "matchLabelKeys": ["hash"],
        "labelSelector": {"matchExpressions": [{"key": "hash", "operator": "In", "values": ["1"]}]},
    }
    found = fields({"topologySpreadConstraints": [term]})["topologySpreadConstraints"]
    assert found == [{**term, "labelSelector": {}}]


def test_spread_over_lower_nodes_stays() -> None:
    """A constraint by a domain that lower nodes have goes down as it is."""
    spec = {"topologySpreadConstraints": [{"topologyKey": HOSTNAME, "maxSkew": 1}]}
    assert fields(spec) == spec


def test_what_the_webhook_moved_is_restored() -> None:
    """Selector, affinity and tolerations of the annotation stand in for the spec's."""
    moved = {
        "nodeSelector": {"gpu": "a100"},
        **required(expressions(DISK)),
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
    }
    spec = {"nodeSelector": {"clusterID": "c1"}, "tolerations": []}
    assert fields(spec, moved, ignore_selector_keys=frozenset({"clusterID"})) == moved


def test_what_was_moved_is_filtered_as_well() -> None:
    """The webhook moves what it is told to; a virtual node's name among it means nothing below."""
    moved = {"nodeSelector": {HOSTNAME: "vk-a"}, **required(expressions(VIRTUAL))}
    assert fields({}, moved) == {}


def test_the_required_affinity_of_the_annotation_replaces_the_specs() -> None:
    """Preferences and pod affinity stay where the webhook left them, in the spec."""
    preferred = [{"weight": 1, "preference": expressions(DISK)}]
    pods = {REQUIRED: [{"topologyKey": "zone"}]}
    spec = {
        "affinity": {
            "nodeAffinity": {
                REQUIRED: {"nodeSelectorTerms": [expressions(named("In", "x", key="left"))]},
                PREFERRED: preferred,
            },
            "podAffinity": pods,
        }
    }
    found = fields(spec, required(expressions(DISK)))["affinity"]
    assert found["nodeAffinity"] == {
        REQUIRED: {"nodeSelectorTerms": [expressions(DISK)]},
        PREFERRED: preferred,
    }
    assert found["podAffinity"] == pods


def test_a_spec_without_affinity_takes_the_moved_one_whole() -> None:
    """Preferences and pod affinity too, which older webhooks may have moved."""
    moved = {
        "affinity": {
            "nodeAffinity": {PREFERRED: [{"weight": 1, "preference": expressions(DISK)}]},
            "podAffinity": {REQUIRED: [{"topologyKey": "zone"}]},
        }
    }
    assert fields({}, moved) == moved


def test_a_spec_with_pod_affinity_only_takes_the_moved_requirements() -> None:
    """The webhook leaves pod affinity where it is, and takes node affinity away altogether."""
    pods = {"podAffinity": {REQUIRED: [{"topologyKey": "zone"}]}}
    moved = required(expressions(DISK))
    assert fields({"affinity": pods}, moved) == {"affinity": {**pods, **moved["affinity"]}}


def test_an_empty_annotation_means_that_nothing_was_asked_of_lower_nodes() -> None:
    """What the webhook left in the spec is for the upper scheduler."""
    spec = {"nodeSelector": {"zone": "upper"}, **required(expressions(DISK))}
    assert fields(spec, {}) == {}


def test_an_unreadable_annotation_leaves_the_spec_in_force() -> None:
    """Better the pod's own constraints than none."""
    spec = {"nodeSelector": {"disk": "ssd"}}
    assert fields(spec, {"nodeSelector": ["disk"]}) == spec


def test_tolerations_added_after_the_webhook_go_down() -> None:
    """A bound pod may gain tolerations and change their seconds; those are in the spec and not in the annotation."""
    moved = {"tolerations": [{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}]}
    changed = {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 90}
    added = {"key": "b", "operator": "Exists"}
    assert fields({"tolerations": [added, changed]}, moved)["tolerations"] == [changed, added]


def test_tolerations_of_the_virtual_nodes_taints_stay_above() -> None:
    """They say that a pod may leave the upper cluster, which it has done."""
    taint = {"key": "virtual-kubelet.io/provider", "value": "k8s", "effect": "NoSchedule"}
    spec = {"tolerations": [{"key": taint["key"], "operator": "Exists"}, {"key": "gpu", "operator": "Exists"}]}
    assert fields(spec, taints=(taint,))["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
