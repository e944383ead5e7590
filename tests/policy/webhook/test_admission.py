"""Tests of the webhook's mutation: equal to tensile-kube's if that is right, and corrected if it is wrong."""

from copy import deepcopy
from pathlib import Path

import jsonpatch
import orjson
import pytest
from admissionkit import (
    DEFAULTS,
    PROVIDER,
    TOLERATED,
    UNLIMITED,
    VK_B,
    Manifest,
    pod,
    required,
    requirement,
    scheduling,
    selector_of,
    term,
    terms,
)
from more_pods import CASES, CLUSTER, DISK, EMPTIED, GPU, PodCase

from tensile.policy.webhook.admission import encoded, operations, prepared, terms_of
from tensile.topology import parse

GOLDEN = orjson.loads(Path(__file__).with_name("golden_webhook.json").read_bytes())["cases"]
RIGHT = [case for case in GOLDEN if "defect" not in case]
X = {"key": "clusterID", "operator": "In", "values": ["x"]}
HAS = {"key": "disk", "operator": "In", "values": ["x"]}
DEFECTS: dict[str, tuple[Manifest, Manifest]] = {
    "affinity-terms-two": (EMPTIED, {"affinity": required(term(HAS), term(X))}),
    "affinity-terms-mixed": (EMPTIED, {"affinity": required(term(HAS, X), term(GPU))}),
    "affinity-fields-and-expr": (
        {"affinity": required(term(X))},
        {"affinity": required(term(HAS, fields=(requirement("metadata.name", "x"),)))},
    ),
    "affinity-empty": ({}, {}),
    "affinity-node-empty": ({}, {}),
}
"""What tensile-kube's webhook gets wrong: what has to stay in the spec, and what the annotation has to say."""


def twice(found: Manifest, *taints: Manifest) -> Manifest:
    """Prepare a pod, and check that a second mutation changes nothing and that the patch has the same result."""
    once = prepared(found, terms(*taints))
    assert prepared(once, terms(*taints)) is once
    assert jsonpatch.apply_patch(found, operations(found, once)) == once
    return once


@pytest.mark.parametrize("case", RIGHT, ids=lambda case: case["case"])
def test_correct_answers_of_tensile_kube_are_reproduced(case: Manifest) -> None:
    """The annotations are equal to the byte."""
    assert twice(case["pod"]) == case["tensile_kube"]


@pytest.mark.parametrize("case", RIGHT, ids=lambda case: case["case"])
def test_only_tolerations_of_virtual_node_taints_are_added_to_tensile_kubes_answer(case: Manifest) -> None:
    """They are added to pods that opted in; nothing else differs."""
    found, known = twice(case["pod"], PROVIDER), deepcopy(case["tensile_kube"])
    expected = known["spec"].pop("tolerations", [])
    if case["case"] in {"no-labels", "other-label", "label-false", "kube-system", "descheduled"}:
        assert found is case["pod"]
    else:
        added = [] if {"operator": "Exists"} in expected else [TOLERATED]
        assert found == {**known, "spec": {**known["spec"], "tolerations": [*expected, *added]}}


def test_every_recorded_defect_has_a_corrected_answer() -> None:
    """The corrected answers are in this file."""
    assert {case["case"] for case in GOLDEN if "defect" in case} == set(DEFECTS)
    assert (len(GOLDEN), len(RIGHT)) == (30, 25)


@pytest.mark.parametrize("case", [case for case in GOLDEN if "defect" in case], ids=lambda case: case["case"])
def test_defects_of_tensile_kube_are_corrected(case: Manifest) -> None:
    """Alternative terms stay alternatives, fields and expressions stay together, and empty fields are omitted."""
    stays, moved = DEFECTS[case["case"]]
    found = twice(case["pod"])
    assert scheduling(found) == {**stays, "tolerations": UNLIMITED}
    assert selector_of(found) == encoded(moved)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_further_pods_have_the_expected_spec_and_annotation(case: PodCase) -> None:
    """The spec keeps what the upper scheduler needs; the annotation is equal to the byte."""
    found = twice(pod(case.spec))
    assert selector_of(found) == case.annotation
    assert scheduling(found) == {**case.stays, "tolerations": case.tolerations}


def test_at_least_sixty_pods_are_compared() -> None:
    """Recorded and further cases count."""
    assert len(GOLDEN) + len(CASES) >= 60


def test_a_pod_without_requirements_only_gets_tolerations_of_virtual_nodes() -> None:
    """It gets no annotation; tolerations for node lapses are handled when it is bound."""
    found = twice(pod(), PROVIDER)
    assert (selector_of(found), scheduling(found)) == (None, {"tolerations": [TOLERATED]})


@pytest.mark.parametrize(
    "own",
    [
        [{"key": PROVIDER["key"], "operator": "Exists"}],
        [{"operator": "Exists"}],
        [{"key": PROVIDER["key"], "value": "k8s"}],
    ],
)
def test_no_toleration_is_added_for_a_taint_that_is_already_tolerated(own: list[Manifest]) -> None:
    """The author's toleration suffices in any form."""
    assert twice(pod({"tolerations": own}), PROVIDER)["spec"]["tolerations"] == [*own, *UNLIMITED]


def test_a_taint_without_a_value_is_tolerated_by_its_key() -> None:
    """Each taint of all virtual nodes has one toleration."""
    dedicated = {"key": "dedicated", "value": "", "effect": "NoExecute"}
    expected = {"key": "dedicated", "operator": "Exists", "effect": "NoExecute"}
    assert twice(pod(), PROVIDER, dedicated)["spec"]["tolerations"] == [TOLERATED, expected]


@pytest.mark.parametrize(
    "meta",
    [
        {"labels": None},
        {"labels": {"virtual-pod": "True"}},
        {"labels": {"virtual-pod": "true", "create-by-descheduler": "true"}},
        {"namespace": "kube-system"},
        {"namespace": "hooks"},
    ],
)
def test_pods_that_did_not_opt_in_or_are_excluded_stay_the_same_object(meta: Manifest) -> None:
    """Excluded are the namespaces of the system and of the webhook itself."""
    given = pod({"nodeSelector": {"disk": "ssd"}}, **meta)
    assert prepared(given, terms(PROVIDER)) is given
    assert operations(given, given) == []


def test_the_namespace_of_the_request_overrides_the_pods() -> None:
    """A pod may omit its namespace."""
    given = pod({"nodeSelector": {"disk": "ssd"}})
    assert prepared(given, terms(), namespace="kube-system") is given
    del given["metadata"]["namespace"]
    assert selector_of(prepared(given, terms())) == '{"nodeSelector":{"disk":"ssd"}}'


def chosen(namespace: str, name: str) -> str:
    """Return the selected node of a claim: vk-b for "pinned" in default, a real upper node for "outer"."""
    return {("default", "pinned"): VK_B, ("default", "outer"): "real-node"}.get((namespace, name), "")


def claiming(*names: str, **spec: object) -> Manifest:
    """Create a pod that uses claims."""
    return pod({"volumes": [{"name": one, "persistentVolumeClaim": {"claimName": one}} for one in names], **spec})


PIN = requirement("kubernetes.io/hostname", VK_B)


def test_a_claim_with_a_selected_virtual_node_pins_the_pod() -> None:
    """It uses required affinity, because nodeName would bypass resources and taints."""
    found = prepared(claiming("pinned"), terms(PROVIDER), node_of=chosen)
    assert found["spec"]["affinity"] == required(term(PIN))
    assert "nodeName" not in found["spec"]
    assert selector_of(found) == "{}"
    assert prepared(found, terms(PROVIDER), node_of=chosen) is found


def test_the_pin_is_added_to_every_affinity_term() -> None:
    """The annotation for the lower cluster does not contain it."""
    affinity = required(term(CLUSTER, DISK), term(requirement("clusterID", "y"), DISK))
    found = prepared(claiming("pinned", affinity=affinity), terms(), node_of=chosen)
    stays = required(term(CLUSTER, PIN), term(requirement("clusterID", "y"), PIN))
    assert found["spec"]["affinity"] == stays
    assert VK_B not in (selector_of(found) or "")
    assert prepared(found, terms(), node_of=chosen) is found


@pytest.mark.parametrize("claim", ["free", "outer"])
def test_claims_without_a_selected_virtual_node_pin_nothing(claim: str) -> None:
    """For a real upper node the upper scheduler knows the volume."""
    given = claiming(claim)
    assert prepared(given, terms(), node_of=chosen) is given


def test_requirements_added_after_the_first_mutation_are_merged() -> None:
    """If another webhook changes the pod, the apiserver sends it again, and earlier requirements are kept."""
    first = prepared(pod({"nodeSelector": {"disk": "ssd"}, "tolerations": DEFAULTS}), terms(PROVIDER))
    late = {"key": "late", "operator": "Exists"}
    spec = {
        **first["spec"],
        "nodeSelector": {"gpu": "a100"},
        "affinity": required(term(DISK)),
        "tolerations": [*first["spec"]["tolerations"], late],
    }
    again = prepared({**first, "spec": spec}, terms(PROVIDER))
    noted = orjson.loads(selector_of(again) or "")
    assert noted["nodeSelector"] == {"disk": "ssd", "gpu": "a100"}
    assert noted["affinity"] == required(term(DISK))
    assert noted["tolerations"] == [*DEFAULTS, late]
    assert prepared(again, terms(PROVIDER)) is again


def test_added_affinity_terms_are_combined_with_the_earlier_ones() -> None:
    """Both the earlier and the later affinity must hold, each with its alternatives."""
    first = prepared(pod({"affinity": required(term(DISK), term(GPU))}), terms())
    zones = required(term(requirement("zone", "a")), term(requirement("zone", "b")))
    again = prepared({**first, "spec": {**first["spec"], "affinity": zones}}, terms())
    both = [term(one, requirement("zone", zone)) for one in (DISK, GPU) for zone in "ab"]
    assert selector_of(again) == encoded({"affinity": required(*both)})


def test_an_annotation_from_a_manifest_is_replaced() -> None:
    """Without the webhook's unlimited tolerations only the spec counts, whether or not the annotation is valid."""
    for text in ('{"nodeSelector":{"old":"1"}}', "{", '{"nodeSelector":[]}'):
        given = pod({"nodeSelector": {"disk": "ssd"}}, annotations={"clusterSelector": text})
        assert selector_of(twice(given)) == '{"nodeSelector":{"disk":"ssd"}}'


def test_terms_of_returns_the_topologys_keys_nodes_taints_and_namespaces() -> None:
    """The namespaces of the webhook's Service and of the engine are excluded too."""
    topology = parse(
        "apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: demo\nexcludeNamespaces: [quiet]\n"
        "lowers:\n- {name: a, kubeconfig: k, node: {name: vk-a}}\n"
        "- {name: b, kubeconfig: k, node: {taints: [{key: own, effect: NoExecute}]}}\n"
        "webhook: {ignoreSelectorKeys: [region], service: {namespace: hooks, name: webhook}}\n"
    )
    found = terms_of(topology, "engine")
    assert {"region", "type"} < found.keys
    assert "clusterID" not in found.keys
    assert found.nodes == {"vk-a", "b"}
    assert found.taints == (PROVIDER, {"key": "own", "value": "", "effect": "NoExecute"})
    assert found.excluded == {"kube-system", "quiet", "hooks", "engine"}


MADE = [{"kind": "ReplicaSet", "name": "web", "uid": "rs", "controller": True}]
OFF_B = requirement("kubernetes.io/hostname", VK_B, operator="NotIn")


def off_b(owner: str) -> tuple[str, ...]:
    """Return the nodes that were tried for one controller: a virtual node and a node that is not virtual."""
    return (VK_B, "elsewhere") if owner == "rs" else ()


@pytest.mark.parametrize(
    ("spec", "affinity"),
    [
        pytest.param({}, required(term(OFF_B)), id="asked for nothing"),
        pytest.param({"affinity": required(term(X))}, required(term(X, OFF_B)), id="asked for a cluster"),
        pytest.param({"affinity": required(term(HAS))}, required(term(OFF_B)), id="asked for lower nodes"),
        pytest.param(
            {"affinity": required(term(X, HAS), term(X, GPU))},
            required(term(X, OFF_B), term(X, OFF_B)),
            id="asked for one of two",
        ),
    ],
)
def test_a_pod_avoids_virtual_nodes_that_its_controllers_pods_left(spec: Manifest, affinity: Manifest) -> None:
    """The requirement is added to every term; requirements on lower nodes are moved as before."""
    given = pod(spec, ownerReferences=MADE)
    found = prepared(given, terms(), nodes_to_avoid=off_b)
    assert found["spec"]["affinity"] == affinity
    assert selector_of(found) == selector_of(prepared(given, terms())) or not spec
    assert prepared(found, terms(), nodes_to_avoid=off_b) is found
    assert jsonpatch.apply_patch(given, operations(given, found)) == found


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {"ownerReferences": [{**MADE[0], "controller": False}]},
        {"ownerReferences": [{**MADE[0], "uid": "other"}]},
        {"ownerReferences": MADE, "labels": {}},
    ],
)
def test_a_pod_without_tried_nodes_avoids_none(meta: Manifest) -> None:
    """Nodes are tried for one controller, and count only for pods that opted in."""
    given = pod(**meta)
    assert prepared(given, terms(), nodes_to_avoid=off_b) == prepared(given, terms())
