"""Tests of the checks of a node itself: cordon, taints, node selector and node affinity."""

from typing import Any

import pytest
from placekit import ROOM, checks, examine_placement, node, pod, reasons

from tensile.policy.placement.checks import UNNAMED, UNSCHEDULABLE, UNSELECTED, UNTOLERATED

CORDON = "node.kubernetes.io/unschedulable"


def tainted(*taints: dict[str, str]) -> dict[str, Any]:
    """Return a node's spec with taints."""
    return {"taints": list(taints)}


RED = {"key": "team", "value": "red", "effect": "NoSchedule"}


def test_a_cordoned_node_does_not_fit() -> None:
    """Other nodes fit."""
    found = examine_placement(pod(), [node("a", spec={"unschedulable": True}), node("b")])
    assert found.fitting == ("b",)
    assert reasons(found) == {"a": (UNSCHEDULABLE,)}
    assert checks(found) == {"a": "unschedulable"}


@pytest.mark.parametrize(
    ("toleration", "fits"),
    [
        ({"operator": "Exists"}, True),
        ({"key": CORDON, "operator": "Exists"}, True),
        ({"key": CORDON, "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": CORDON, "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "team", "operator": "Exists"}, False),
    ],
)
def test_a_cordon_can_be_tolerated(toleration: dict[str, str], *, fits: bool) -> None:
    """Pods of a DaemonSet tolerate it, for example."""
    assert (
        examine_placement(pod(spec={"tolerations": [toleration]}), [node("a", spec={"unschedulable": True})]).fits
        == fits
    )


@pytest.mark.parametrize(
    ("toleration", "fits"),
    [
        (None, False),
        ({"key": "team", "operator": "Exists"}, True),
        ({"key": "team", "value": "red"}, True),
        ({"key": "team", "operator": "Equal", "value": "red", "effect": "NoSchedule"}, True),
        ({"key": "team", "operator": "Equal", "value": "blue"}, False),
        ({"key": "team", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"operator": "Exists"}, True),
        ({"key": "team", "operator": "Gt", "value": "1"}, False),
    ],
)
def test_a_taint_must_be_tolerated(toleration: dict[str, str] | None, *, fits: bool) -> None:
    """A toleration matches by key, value and effect, as far as it has them."""
    spec = {"tolerations": [toleration]} if toleration else {}
    found = examine_placement(pod(spec=spec), [node("a", spec=tainted(RED))])
    assert found.fits == fits
    assert reasons(found) == ({} if fits else {"a": (UNTOLERATED,)})


def test_every_taint_must_be_tolerated() -> None:
    """The refusal names the first taint that is not tolerated."""
    gpu = {"key": "gpu", "effect": "NoExecute"}
    found = examine_placement(
        pod(spec={"tolerations": [{"key": "team", "operator": "Exists"}]}), [node("a", spec=tainted(RED, gpu))]
    )
    assert found.refused["a"].detail == "taint gpu:NoExecute"
    assert (
        examine_placement(pod(), [node("a", spec=tainted(RED, gpu))]).refused["a"].detail == "taint team=red:NoSchedule"
    )


def test_a_toleration_with_a_value_matches_only_that_taint() -> None:
    """The node with another value of the taint does not fit."""
    nodes = [node("a", spec=tainted(RED)), node("b", spec=tainted(RED | {"value": "blue"})), node("c")]
    found = examine_placement(pod(spec={"tolerations": [{"key": "team", "value": "red"}]}), nodes)
    assert found.fitting == ("a", "c")


def test_a_node_selector_needs_matching_labels() -> None:
    """The refusal names the missing label."""
    found = examine_placement(
        pod(spec={"nodeSelector": {"disk": "ssd"}}), [node("a", labels={"disk": "ssd"}), node("b")]
    )
    assert found.fitting == ("a",)
    assert found.refused["b"].reasons == (UNSELECTED,)
    assert found.refused["b"].detail == "missing label disk=ssd"
    assert str(found.refused["b"]) == f"{UNSELECTED} (missing label disk=ssd)"


def affine(*terms: dict[str, Any]) -> dict[str, Any]:
    """Return the spec of a pod with a required node affinity."""
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": required}}


def test_node_affinity_needs_matching_labels() -> None:
    """A node fits if an expression on its labels holds."""
    term = {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd", "nvme"]}]}
    found = examine_placement(
        pod(spec=affine(term)), [node("a", labels={"disk": "nvme"}), node("b", labels={"disk": "hdd"})]
    )
    assert found.fitting == ("a",)
    assert reasons(found) == {"b": (UNSELECTED,)}


def test_preferences_exclude_no_node() -> None:
    """A preferred affinity and a PreferNoSchedule taint only affect scores."""
    preferred = [{"weight": 1, "preference": {"matchExpressions": [{"key": "x", "operator": "Exists"}]}}]
    spec = {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}}
    assert examine_placement(pod(spec=spec), [node("a", spec=tainted(RED | {"effect": "PreferNoSchedule"}))]).fits


def test_a_pod_whose_affinity_names_its_node_fits_only_there() -> None:
    """The scheduler examines no other node, so this reason comes before all others."""
    named = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}
    found = examine_placement(pod(spec=affine(named)), [node("a"), node("b", spec={"unschedulable": True})])
    assert found.fitting == ("a",)
    assert reasons(found) == {"b": (UNNAMED,)}
    assert checks(found) == {"b": "affinity"}


def test_a_second_term_without_a_node_name_allows_other_nodes() -> None:
    """Node selector terms are alternatives."""
    named = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}
    labelled = {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}
    found = examine_placement(pod(spec=affine(named, labelled)), [node("a"), node("b", labels={"disk": ""}), node("c")])
    assert found.fitting == ("a", "b")
    assert reasons(found) == {"c": (UNSELECTED,)}


def test_the_first_failed_check_is_reported() -> None:
    """The checks have the scheduler's order, so that the counts in messages are equal."""
    wrong = node("a", spec={"unschedulable": True, **tainted(RED)}, cpu="0")
    found = examine_placement(
        pod(spec={"nodeSelector": {"x": "y"}, "containers": [{"name": "m", "resources": {"requests": ROOM}}]}), [wrong]
    )
    assert checks(found) == {"a": "unschedulable"}
