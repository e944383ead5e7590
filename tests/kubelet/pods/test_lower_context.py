"""Tests of the lower pod's scheduling constraints: those on lower nodes are kept, those on the upper removed."""

import json
from typing import Any

import pytest
from podkit import lower_context, pod

from tensile.kubelet.pods.lower_context import scheduling_fields

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
HOSTNAME = "kubernetes.io/hostname"
DISK = {"key": "disk", "operator": "In", "values": ["ssd"]}
VIRTUAL = {"key": "type", "operator": "In", "values": ["virtual-kubelet"]}


def fields(spec: dict, selector: Any = None, **given: Any) -> dict:
    """Return the scheduling fields of a pod with this spec, and with this annotation written by the webhook."""
    moved = {} if selector is None else {"annotations": {"clusterSelector": json.dumps(selector)}}
    return scheduling_fields(pod(spec, **moved), lower_context(**given))


def required(*terms: dict) -> dict:
    """Return a spec with required node affinity, of which one term must match."""
    return {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms)}}}}


def preferred(*terms: tuple[int, dict]) -> dict:
    """Return a spec with preferred node affinity, from weights and terms."""
    wishes = [{"weight": weight, "preference": term} for weight, term in terms]
    return {"affinity": {"nodeAffinity": {PREFERRED: wishes}}}


def expressions(*found: dict) -> dict:
    """Return a node selector term with these expressions."""
    return {"matchExpressions": list(found)}


def named(operator: str, *names: str, key: str = HOSTNAME) -> dict:
    """Return a requirement on the names of nodes."""
    return {"key": key, "operator": operator, "values": list(names)}


ON_WORKER = named("In", "worker-1", key="metadata.name")
BY_HOST = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"app": "db"}}}
STAYS = {
    "nothing": {},
    "an unknown key": {"nodeSelector": {"clusterID": "a", "tier": "gold"}},
    "a lower node's name": {"nodeSelector": {HOSTNAME: "worker-1"}},
    "a requirement on a lower node": required({"matchFields": [ON_WORKER]}),
    "another key with a virtual node's name": required(expressions(named("In", "vk-a", key="team"))),
    "an empty term that matches no node": required({}, expressions(DISK)),
    "spread over lower nodes": {"topologySpreadConstraints": [{"topologyKey": HOSTNAME, "maxSkew": 1}]},
    "pod affinity by a domain of lower nodes": {
        "affinity": {
            "podAffinity": {REQUIRED: [BY_HOST], PREFERRED: [{"weight": 3, "podAffinityTerm": BY_HOST}]},
            "podAntiAffinity": {REQUIRED: [BY_HOST]},
        }
    },
}


@pytest.mark.parametrize("spec", STAYS.values(), ids=STAYS)
def test_constraints_on_lower_nodes_are_kept(spec: dict) -> None:
    """Nothing is added, and a key or name is kept unless it is known to exist only in the upper cluster."""
    assert fields(spec) == spec


B = {"virtual_nodes": frozenset({"vk-b"})}
NULLS = {"nodeAffinity": {REQUIRED: None, PREFERRED: [{"weight": 1, "preference": None}]}, "podAffinity": None}
LEFT: dict[str, tuple[dict, dict, dict]] = {
    "empty fields": ({"affinity": {}, "nodeSelector": {}, "tolerations": [], "topologySpreadConstraints": []}, {}, {}),
    "fields that are null": (
        {"nodeSelector": None, "tolerations": None, "topologySpreadConstraints": None, "affinity": NULLS},
        {},
        {},
    ),
    "the virtual node's name": ({"nodeSelector": {HOSTNAME: "vk-a"}}, {}, {}),
    "its name in expressions": (required(expressions(named("In", "vk-a"))), {}, {}),
    "its name in fields, as of a DaemonSet": (
        required({"matchFields": [named("In", "vk-a", key="metadata.name")]}),
        {},
        {},
    ),
    "another virtual node's name": (required(expressions(named("In", "vk-b", "x"))), B, {}),
    "virtual nodes to avoid": (required(expressions(named("NotIn", "vk-b"))), B, {}),
    "nodes to avoid, of which one may be a lower node": (
        required(expressions(named("NotIn", "vk-a", "vk-b", "worker-1"))),
        B,
        required(expressions(named("NotIn", "worker-1"))),
    ),
    "an upper key with any operator": (
        required(expressions({"key": "clusterID", "operator": "NotIn", "values": ["b"]})),
        {"ignore_selector_keys": frozenset({"clusterID"})},
        {},
    ),
    "one of several terms that always matches": (required(expressions(VIRTUAL), expressions(DISK)), {}, {}),
    "the rest of a term": (
        required({"matchExpressions": [VIRTUAL], "matchFields": [ON_WORKER]}),
        {},
        required({"matchFields": [ON_WORKER]}),
    ),
    "preferences": (
        preferred((5, expressions(VIRTUAL)), (7, expressions(VIRTUAL, DISK))),
        {},
        preferred((7, expressions(DISK))),
    ),
}


@pytest.mark.parametrize(("spec", "given", "left"), LEFT.values(), ids=LEFT)
def test_constraints_on_the_upper_cluster_are_removed(spec: dict, given: dict, left: dict) -> None:
    """They are removed one by one, and an emptied list is removed with its field."""
    assert fields(spec, **given) == left


@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("type", {}),
        ("kubernetes.io/role", {}),
        ("clusterID", {"ignore_selector_keys": frozenset({"clusterID"})}),
        ("tier", {"node_label_keys": frozenset({"tier"})}),
    ],
)
def test_keys_that_only_virtual_nodes_have_are_removed_from_all_constraints(key: str, given: dict) -> None:
    """This includes node selectors, expressions, preferences, topology spread and pod affinity terms."""
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


def test_topology_domains_of_virtual_nodes_only_are_removed() -> None:
    """Spread and pod affinity by such a label are removed, whoever set it; a node selector on it is kept."""
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


def test_namespaces_of_affinity_terms_are_mapped() -> None:
    """A term that lists namespaces must name the lower ones."""
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


def test_namespace_names_in_a_namespace_selector_are_mapped() -> None:
    """Each namespace has its name as a label; other parts of the selector are kept."""
    name, team = "kubernetes.io/metadata.name", {"key": "team", "operator": "In", "values": ["a"]}
    named = [{"key": name, "operator": "NotIn", "values": ["a", "b"]}, {"key": name, "operator": "Exists"}, team]
    lower_objects = [{"key": name, "operator": "NotIn", "values": ["demo-a", "demo-b"]}, *named[1:]]
    for given, wanted in (
        ({"matchLabels": {name: "a", "team": "a"}}, {"matchLabels": {name: "demo-a", "team": "a"}}),
        ({"matchExpressions": named}, {"matchExpressions": lower_objects}),
        ({"matchLabels": {"team": "a"}}, {"matchLabels": {"team": "a"}}),
        ({}, {}),
    ):
        term = {"topologyKey": "zone", "namespaceSelector": given}
        found = fields({"affinity": {"podAffinity": {REQUIRED: [term]}}}, namespace_of="demo-{}".format)
        assert found["affinity"]["podAffinity"][REQUIRED] == [{**term, "namespaceSelector": wanted}]


HASHED = {"key": "hash", "operator": "In", "values": ["1"]}
OTHER = {"key": "app", "operator": "Exists"}
LABELLED = {"matchLabels": {"app": "x"}}


@pytest.mark.parametrize("field", ["matchLabelKeys", "mismatchLabelKeys"])
@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({"labelSelector": {"matchExpressions": [HASHED, OTHER]}}, {"labelSelector": {"matchExpressions": [OTHER]}}),
        ({"labelSelector": {**LABELLED, "matchExpressions": [HASHED]}}, {"labelSelector": LABELLED}),
        ({"labelSelector": {"matchExpressions": [HASHED]}}, {"labelSelector": {}}),
        ({"labelSelector": LABELLED}, {"labelSelector": LABELLED}),
        ({"labelSelector": None}, {"labelSelector": None}),
        ({}, {}),
    ],
    ids=["other expressions", "labels", "an empty selector", "nothing merged", "null", "no selector"],
)
def test_expressions_that_the_apiserver_merged_are_removed(field: str, given: dict, left: dict) -> None:
    """The keys are kept without their expressions, because the lower apiserver rejects both together.

    An empty selector is kept, because it matches every pod as the user's did, and a missing one is not added.
    """
    term, wanted = ({"topologyKey": "zone", field: ["hash"], **selector} for selector in (given, left))
    found = fields({"topologySpreadConstraints": [term], "affinity": {"podAffinity": {REQUIRED: [term]}}})
    assert found == {"topologySpreadConstraints": [wanted], "affinity": {"podAffinity": {REQUIRED: [wanted]}}}


def test_unknown_fields_of_constraints_are_kept() -> None:
    """New fields of a later Kubernetes in affinities and terms are copied."""
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


PODS = {"podAffinity": {REQUIRED: [{"topologyKey": "zone"}]}}
ON_DISK = required(expressions(DISK))
BY_ALL = {"nodeSelector": {"gpu": "a100"}, **ON_DISK, "tolerations": [{"key": "gpu", "operator": "Exists"}]}
LIKES_DISK = preferred((1, expressions(DISK)))["affinity"]["nodeAffinity"]
NEEDS_LEFT = required(expressions(named("In", "x", key="left")))["affinity"]["nodeAffinity"]
MOVED: dict[str, tuple[dict, Any, dict]] = {
    "it replaces the spec's constraints": ({"nodeSelector": {"clusterID": "c1"}, "tolerations": []}, BY_ALL, BY_ALL),
    "it is filtered too": ({}, {"nodeSelector": {HOSTNAME: "vk-a"}, **required(expressions(VIRTUAL))}, {}),
    "preferences and pod affinity of the spec are kept": (
        {"affinity": {"nodeAffinity": {**NEEDS_LEFT, **LIKES_DISK}, **PODS}},
        ON_DISK,
        {"affinity": {"nodeAffinity": {**ON_DISK["affinity"]["nodeAffinity"], **LIKES_DISK}, **PODS}},
    ),
    "a spec without affinity uses all of it": (
        {},
        {"affinity": {"nodeAffinity": LIKES_DISK, **PODS}},
        {"affinity": {"nodeAffinity": LIKES_DISK, **PODS}},
    ),
    "the spec has no node affinity left": (
        {"affinity": PODS},
        ON_DISK,
        {"affinity": {**PODS, **ON_DISK["affinity"]}},
    ),
    "an empty one: no constraint on lower nodes": ({"nodeSelector": {"zone": "upper"}, **ON_DISK}, {}, {}),
    "an invalid one: the spec is used": (
        {"nodeSelector": {"disk": "ssd"}},
        {"nodeSelector": ["disk"]},
        {"nodeSelector": {"disk": "ssd"}},
    ),
}


@pytest.mark.parametrize(("spec", "moved", "found"), MOVED.values(), ids=MOVED)
def test_constraints_that_the_webhook_moved_are_restored(spec: dict, moved: Any, found: dict) -> None:
    """Selector, affinity and tolerations of a valid annotation replace the spec's; otherwise the spec's are used."""
    assert fields(spec, moved, ignore_selector_keys=frozenset({"clusterID"})) == found


def test_tolerations_added_after_the_webhook_are_copied() -> None:
    """A bound pod may get more tolerations and other seconds, which are in the spec and not in the annotation."""
    moved = {"tolerations": [{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}]}
    changed = {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 90}
    added = {"key": "b", "operator": "Exists"}
    assert fields({"tolerations": [added, changed]}, moved)["tolerations"] == [changed, added]


def test_tolerations_of_the_virtual_nodes_taints_are_removed() -> None:
    """They only permit the pod to run on a virtual node, where it already is."""
    taint = {"key": "virtual-kubelet.io/provider", "value": "k8s", "effect": "NoSchedule"}
    spec = {"tolerations": [{"key": taint["key"], "operator": "Exists"}, {"key": "gpu", "operator": "Exists"}]}
    assert fields(spec, taints=(taint,))["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
