"""The webhook's decision: tensile-kube's answers where they were right, and the right ones where they were not."""

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
from more_pods import CASES, CLUSTER, DISK, EMPTIED, GPU, Case

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
    """Prepare a pod; preparing it again must change nothing, and the patch must lead there."""
    once = prepared(found, terms(*taints))
    assert prepared(once, terms(*taints)) is once
    assert jsonpatch.apply_patch(found, operations(found, once)) == once
    return once


@pytest.mark.parametrize("case", RIGHT, ids=lambda case: case["case"])
def test_what_tensile_kube_answers_is_answered(case: Manifest) -> None:
    """The pods that its webhook was seen to answer rightly come out equal, annotations to the byte."""
    assert twice(case["pod"]) == case["tensile_kube"]


@pytest.mark.parametrize("case", RIGHT, ids=lambda case: case["case"])
def test_beyond_that_only_the_taints_of_virtual_nodes_are_tolerated(case: Manifest) -> None:
    """A pod that asked for virtual nodes tolerates them; nothing else differs from tensile-kube's answer."""
    found, known = twice(case["pod"], PROVIDER), deepcopy(case["tensile_kube"])
    expected = known["spec"].pop("tolerations", [])
    if case["case"] in {"no-labels", "other-label", "label-false", "kube-system", "descheduled"}:
        assert found is case["pod"]
    else:
        added = [] if {"operator": "Exists"} in expected else [TOLERATED]
        assert found == {**known, "spec": {**known["spec"], "tolerations": [*expected, *added]}}


def test_the_defects_are_those_that_are_known() -> None:
    """Every recorded defect has its right answer in this file."""
    assert {case["case"] for case in GOLDEN if "defect" in case} == set(DEFECTS)
    assert (len(GOLDEN), len(RIGHT)) == (30, 25)


@pytest.mark.parametrize("case", [case for case in GOLDEN if "defect" in case], ids=lambda case: case["case"])
def test_what_tensile_kube_gets_wrong_is_right(case: Manifest) -> None:
    """Alternatives stay alternatives, fields and expressions go together, and what is empty is left out."""
    stays, moved = DEFECTS[case["case"]]
    found = twice(case["pod"])
    assert scheduling(found) == {**stays, "tolerations": UNLIMITED}
    assert selector_of(found) == encoded(moved)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_further_pods(case: Case) -> None:
    """What stays for the upper scheduler, and what goes into the annotation, to the byte."""
    found = twice(pod(case.spec))
    assert selector_of(found) == case.annotation
    assert scheduling(found) == {**case.stays, "tolerations": case.tolerations}


def test_there_are_enough_pods() -> None:
    """Sixty pods at least are held against what they have to become."""
    assert len(GOLDEN) + len(CASES) >= 60


def test_a_pod_that_asks_for_nothing_tolerates_virtual_nodes_and_no_more() -> None:
    """Its node lapses are seen to when it is bound; no annotation says that nothing was asked."""
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
def test_a_taint_that_is_tolerated_needs_nothing_more(own: list[Manifest]) -> None:
    """What the author wrote is enough, in whatever form."""
    assert twice(pod({"tolerations": own}), PROVIDER)["spec"]["tolerations"] == [*own, *UNLIMITED]


def test_a_taint_without_value_is_tolerated_by_its_key() -> None:
    """Each taint of any virtual node once."""
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
def test_what_is_nobodys_business_here_stays_the_very_same(meta: Manifest) -> None:
    """Pods that did not ask, and those of the system's and the webhook's own namespace."""
    given = pod({"nodeSelector": {"disk": "ssd"}}, **meta)
    assert prepared(given, terms(PROVIDER)) is given
    assert operations(given, given) == []


def test_the_namespace_of_the_request_decides() -> None:
    """A pod need not say where it is created; where it is said from outside, that counts."""
    given = pod({"nodeSelector": {"disk": "ssd"}})
    assert prepared(given, terms(), namespace="kube-system") is given
    del given["metadata"]["namespace"]
    assert selector_of(prepared(given, terms())) == '{"nodeSelector":{"disk":"ssd"}}'


def chosen(namespace: str, name: str) -> str:
    """Return which node was chosen for claims: those of default named pinned have vk-b, outer a real node above."""
    return {("default", "pinned"): VK_B, ("default", "outer"): "real-node"}.get((namespace, name), "")


def claiming(*names: str, **spec: object) -> Manifest:
    """Make a pod that uses claims."""
    return pod({"volumes": [{"name": one, "persistentVolumeClaim": {"claimName": one}} for one in names], **spec})


PIN = requirement("kubernetes.io/hostname", VK_B)


def test_a_claim_for_which_a_virtual_node_was_chosen_pins_the_pod() -> None:
    """By required affinity, not by nodeName, which would skip resources and taints."""
    found = prepared(claiming("pinned"), terms(PROVIDER), node_of=chosen)
    assert found["spec"]["affinity"] == required(term(PIN))
    assert "nodeName" not in found["spec"]
    assert selector_of(found) == "{}"
    assert prepared(found, terms(PROVIDER), node_of=chosen) is found


def test_the_pin_is_added_to_every_alternative() -> None:
    """Each term that stays has to hold with it, and what goes below does not have it."""
    affinity = required(term(CLUSTER, DISK), term(requirement("clusterID", "y"), DISK))
    found = prepared(claiming("pinned", affinity=affinity), terms(), node_of=chosen)
    stays = required(term(CLUSTER, PIN), term(requirement("clusterID", "y"), PIN))
    assert found["spec"]["affinity"] == stays
    assert VK_B not in (selector_of(found) or "")
    assert prepared(found, terms(), node_of=chosen) is found


@pytest.mark.parametrize("claim", ["free", "outer"])
def test_other_claims_pin_nothing(claim: str) -> None:
    """No node was chosen, or a real one of the upper cluster, for which its scheduler knows the volume."""
    given = claiming(claim)
    assert prepared(given, terms(), node_of=chosen) is given


def test_what_others_add_after_the_webhook_is_moved_beside_the_rest() -> None:
    """Another webhook changed the pod, and the apiserver asks again: nothing of the first time is lost."""
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


def test_alternatives_that_are_added_have_to_hold_with_those_before() -> None:
    """What was asked first and what was asked later have to hold both, each with its alternatives."""
    first = prepared(pod({"affinity": required(term(DISK), term(GPU))}), terms())
    zones = required(term(requirement("zone", "a")), term(requirement("zone", "b")))
    again = prepared({**first, "spec": {**first["spec"], "affinity": zones}}, terms())
    both = [term(one, requirement("zone", zone)) for one in (DISK, GPU) for zone in "ab"]
    assert selector_of(again) == encoded({"affinity": required(*both)})


def test_an_annotation_alone_is_no_proof_that_a_webhook_saw_the_pod() -> None:
    """It came with somebody's manifest; what the pod asks for now counts, whether it can be read or not."""
    for text in ('{"nodeSelector":{"old":"1"}}', "{", '{"nodeSelector":[]}'):
        given = pod({"nodeSelector": {"disk": "ssd"}}, annotations={"clusterSelector": text})
        assert selector_of(twice(given)) == '{"nodeSelector":{"disk":"ssd"}}'


def test_terms_come_from_the_topology() -> None:
    """Ignored keys, every virtual node's name and taint, excluded namespaces, and where the webhook itself is."""
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
    """Know of a virtual node that was tried for one controller, and of one that is none of ours."""
    return (VK_B, "elsewhere") if owner == "rs" else ()


@pytest.mark.parametrize(
    ("spec", "affinity"),
    [
        pytest.param({}, required(term(OFF_B)), id="asked for nothing"),
        pytest.param({"affinity": required(term(X))}, required(term(X, OFF_B)), id="asked for a cluster"),
        pytest.param({"affinity": required(term(HAS))}, required(term(OFF_B)), id="asked for nodes below"),
        pytest.param(
            {"affinity": required(term(X, HAS), term(X, GPU))},
            required(term(X, OFF_B), term(X, OFF_B)),
            id="asked for one of two",
        ),
    ],
)
def test_a_pod_is_kept_off_the_virtual_nodes_that_were_tried(spec: Manifest, affinity: Manifest) -> None:
    """Whatever else it asks for, in every term; what asks for nodes below goes there as before."""
    given = pod(spec, ownerReferences=MADE)
    found = prepared(given, terms(), tried=off_b)
    assert found["spec"]["affinity"] == affinity
    assert selector_of(found) == selector_of(prepared(given, terms())) or not spec
    assert prepared(found, terms(), tried=off_b) is found
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
def test_who_was_not_tried_is_kept_off_nothing(meta: Manifest) -> None:
    """It counts by controller, and only for pods that asked for virtual nodes."""
    given = pod(**meta)
    assert prepared(given, terms(), tried=off_b) == prepared(given, terms())
