"""Tests of the chain of placement checks: its result, its messages, and that the fast search finds the same nodes."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from placekit import (
    claim,
    examine_placement,
    make_namespace,
    make_snapshot,
    make_storage,
    make_storage_class,
    node,
    pod,
    spec_requesting,
    spec_with_claims,
)
from properties import examples

from bench.conformance.placement.nodes import random_cluster
from bench.conformance.placement.pods import random_pod
from tensile.policy.placement.placement import CHECKS, FitResult, NodeRefusal, examine, fitting
from tensile.policy.placement.snapshot import Snapshot, pod_of, snapshot_of, storage_of


def drawn(seed: int, pods: int = 6) -> tuple[list[dict], Snapshot]:
    """Return pods that need a node, and the snapshot of a random cluster."""
    chance = Random(seed)
    there = random_cluster(chance, "w")
    shelf = there.random_storage
    claims = [{**one, "metadata": {**one["metadata"], "namespace": "main"}} for one in shelf.claims]
    storage = storage_of(
        claims=claims,
        volumes=shelf.volumes,
        classes=shelf.classes,
        csi_nodes=shelf.nodes,
        attachments=shelf.attachments,
        capacities=shelf.capacities,
    )
    spaces = [make_namespace("main", kind="main"), make_namespace("side", kind="side")]
    return [random_pod(chance, there, f"p{number}") for number in range(pods)], snapshot_of(
        there.nodes, there.pods, spaces, storage
    )


@examples(60)
@given(st.integers(0, 2**32))
def test_fitting_yields_the_same_nodes_as_examine(seed: int) -> None:
    """A caller that needs one node uses the first of these; every other node has a refusal with reasons."""
    wanted, snapshot = drawn(seed)
    for one in wanted:
        found = examine(pod_of(one), snapshot)
        assert tuple(each.name for each in fitting(pod_of(one), snapshot)) == found.fitting
        assert {*found.fitting, *found.refused} == set(snapshot.nodes)
        assert len(found.fitting) + len(found.refused) == len(snapshot.nodes)
        assert all(refusal.reasons for refusal in found.refused.values())


@examples(60)
@given(st.integers(0, 2**32))
def test_examine_does_not_change_the_snapshot(seed: int) -> None:
    """A second examination has the same result, and pods that are added to a copy are not in the original."""
    wanted, snapshot = drawn(seed)
    before = [examine(pod_of(one), snapshot) for one in wanted]
    copy = snapshot.copy()
    for one, found in zip(wanted, before, strict=True):
        if found.fits:
            copy.add(pod_of(one), found.fitting[0])
    assert [examine(pod_of(one), snapshot) for one in wanted] == before


@examples(60)
@given(st.integers(0, 2**32))
def test_adding_pods_equals_a_snapshot_that_has_them(seed: int) -> None:
    """The result of an examination is the same in both cases."""
    chance = Random(seed)
    there = random_cluster(chance, "w")
    whole = snapshot_of(there.nodes, there.pods)
    grown = snapshot_of(there.nodes, there.pods[: len(there.pods) // 2])
    later = there.pods[len(there.pods) // 2 :]
    for one in later:
        if one["status"].get("phase") != "Succeeded":
            grown.add(pod_of(one), one["spec"]["nodeName"])
    for number in range(4):
        wanted = pod_of(random_pod(chance, there, f"p{number}"))
        assert examine(wanted, grown) == examine(wanted, whole)


def test_an_added_pod_uses_room_on_its_node() -> None:
    """The next pod of that size does not fit."""
    snapshot = make_snapshot([node("a", cpu="3")])
    wanted = pod_of(pod(spec=spec_requesting(cpu="2")))
    assert examine(wanted, snapshot).fits
    snapshot.add(wanted, "a")
    assert not examine(pod_of(pod("other", spec=spec_requesting(cpu="2"))), snapshot).fits


def test_a_pod_added_to_an_unknown_node_uses_no_room() -> None:
    """Other pods fit as before."""
    snapshot = make_snapshot([node("a")])
    snapshot.add(pod_of(pod(spec=spec_requesting(cpu="4"))), "b")
    assert examine(pod_of(pod("other", spec=spec_requesting(cpu="4"))), snapshot).fits


def test_the_message_counts_reasons_as_the_scheduler_does() -> None:
    """The reasons are sorted as text, and a node with two reasons counts for both."""
    nodes = [
        node("a", cpu="1", memory="1Gi"),
        node("b", cpu="1"),
        node("c", spec={"unschedulable": True}),
        node("d", spec={"taints": [{"key": "x", "effect": "NoSchedule"}]}),
    ]
    found = examine_placement(pod(spec=spec_requesting(cpu="2", memory="2Gi")), nodes)
    assert found.message == (
        "0/4 nodes are available: 1 Insufficient memory, 1 node(s) had untolerated taint(s), "
        "1 node(s) were unschedulable, 2 Insufficient cpu."
    )


def test_the_message_has_the_number_of_fitting_nodes() -> None:
    """The other nodes are counted by their reasons."""
    found = examine_placement(pod(spec=spec_requesting(cpu="2")), [node("a"), node("b", cpu="1")])
    assert found.message == "1/2 nodes are available: 1 Insufficient cpu."
    assert examine_placement(pod(), [node("a")]).message == "1/1 nodes are available."


def test_a_cluster_without_nodes_fits_no_pod() -> None:
    """The message has zero of zero nodes."""
    found = examine_placement(pod(), [])
    assert not found.fits
    assert found.message == "0/0 nodes are available."


def test_a_reason_of_no_single_node_applies_to_every_node() -> None:
    """The message has it once; a missing claim is such a reason."""
    found = examine_placement(pod(spec=spec_with_claims("gone")), [node("a"), node("b")])
    assert found.nowhere == NodeRefusal("volumes", ('persistentvolumeclaim "gone" not found',))
    assert found.refused == {"a": found.nowhere, "b": found.nowhere}
    assert found.message == '0/2 nodes are available: persistentvolumeclaim "gone" not found.'
    assert list(fitting(pod_of(pod(spec=spec_with_claims("gone"))), make_snapshot([node("a")]))) == []


def test_a_pod_without_constraints_needs_only_the_resource_check() -> None:
    """With thousands of nodes, only checks that the pod needs are run."""
    snapshot = make_snapshot([node("a")])
    prepared = [check.name for check in CHECKS if check.prepare(pod_of(pod()), snapshot)]
    assert prepared == ["resources"]


@pytest.mark.parametrize("name", sorted({check.name for check in CHECKS}))
def test_each_check_fails_for_some_random_pod(name: str) -> None:
    """Otherwise the random tests would not cover it."""
    for seed in range(400):
        wanted, snapshot = drawn(seed)
        found = [examine(pod_of(one), snapshot) for one in wanted]
        if any(refusal.check == name for one in found for refusal in one.refused.values()):
            return
    raise AssertionError(name)


def test_a_refusal_as_text_has_its_reasons_and_its_detail() -> None:
    """The detail is in parentheses."""
    assert str(NodeRefusal("resources", ("Insufficient cpu",), "cpu: 2 asked")) == "Insufficient cpu (cpu: 2 asked)"
    assert str(NodeRefusal("ports", ("one", "two"))) == "one, two"


def test_a_placement_without_nodes_does_not_fit() -> None:
    """That holds for the empty value."""
    assert not FitResult((), {}).fits


def test_claims_and_resources_are_checked_together() -> None:
    """The volume could be created for both nodes, but only one has room."""
    storage = make_storage(claims=[claim(storageClassName="later")], classes=[make_storage_class()])
    found = examine_placement(
        pod(spec=spec_with_claims("data") | spec_requesting(cpu="2")), [node("a", cpu="1"), node("b")], storage=storage
    )
    assert found.fitting == ("b",)
