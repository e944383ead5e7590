"""The chain of checks: what it finds, how it says it, and that the quick way to a node finds the same."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from placekit import asking, claim, kind, node, place, pod, seen, space, stock, using
from properties import examples

from bench.conformance.placement.nodes import ground
from bench.conformance.placement.seekers import seeker
from tensile.policy.placement.placement import CHECKS, NodeRefusal, Placement, examine, fitting
from tensile.policy.placement.snapshot import Snapshot, pod_of, snapshot_of, storage_of


def drawn(seed: int, pods: int = 6) -> tuple[list[dict], Snapshot]:
    """Make a random cluster as a snapshot, and pods that look for a node in it."""
    chance = Random(seed)
    there = ground(chance, "w")
    shelf = there.shelf
    claims = [{**one, "metadata": {**one["metadata"], "namespace": "main"}} for one in shelf.claims]
    storage = storage_of(
        claims=claims,
        volumes=shelf.volumes,
        classes=shelf.classes,
        csi_nodes=shelf.nodes,
        attachments=shelf.attachments,
        capacities=shelf.capacities,
    )
    spaces = [space("main", kind="main"), space("side", kind="side")]
    return [seeker(chance, there, f"p{number}") for number in range(pods)], snapshot_of(
        there.nodes, there.pods, spaces, storage
    )


@examples(60)
@given(st.integers(0, 2**32))
def test_the_quick_way_finds_the_same(seed: int) -> None:
    """Whoever needs the first node only gets the first of those that the whole judgement has."""
    wanted, snapshot = drawn(seed)
    for one in wanted:
        found = examine(pod_of(one), snapshot)
        assert tuple(each.name for each in fitting(pod_of(one), snapshot)) == found.fitting
        assert {*found.fitting, *found.refused} == set(snapshot.nodes)
        assert len(found.fitting) + len(found.refused) == len(snapshot.nodes)
        assert all(refusal.reasons for refusal in found.refused.values())


@examples(60)
@given(st.integers(0, 2**32))
def test_a_snapshot_is_not_changed_by_looking(seed: int) -> None:
    """Asked twice, it answers the same; and pods added to a copy are not in the other."""
    wanted, snapshot = drawn(seed)
    before = [examine(pod_of(one), snapshot) for one in wanted]
    copy = snapshot.copy()
    for one, found in zip(wanted, before, strict=True):
        if found.fits:
            copy.add(pod_of(one), found.fitting[0])
    assert [examine(pod_of(one), snapshot) for one in wanted] == before


@examples(60)
@given(st.integers(0, 2**32))
def test_pods_added_are_pods_that_were_there(seed: int) -> None:
    """Adding a pod says the same as reading a cluster that has it."""
    chance = Random(seed)
    there = ground(chance, "w")
    whole = snapshot_of(there.nodes, there.pods)
    grown = snapshot_of(there.nodes, there.pods[: len(there.pods) // 2])
    later = there.pods[len(there.pods) // 2 :]
    for one in later:
        if one["status"].get("phase") != "Succeeded":
            grown.add(pod_of(one), one["spec"]["nodeName"])
    for number in range(4):
        wanted = pod_of(seeker(chance, there, f"p{number}"))
        assert examine(wanted, grown) == examine(wanted, whole)


def test_a_pod_takes_room_where_it_is_put() -> None:
    """The next one finds less."""
    snapshot = seen([node("a", cpu="3")])
    wanted = pod_of(pod(spec=asking(cpu="2")))
    assert examine(wanted, snapshot).fits
    snapshot.add(wanted, "a")
    assert not examine(pod_of(pod("other", spec=asking(cpu="2"))), snapshot).fits


def test_a_pod_on_a_node_that_is_not_known() -> None:
    """It takes nothing anywhere."""
    snapshot = seen([node("a")])
    snapshot.add(pod_of(pod(spec=asking(cpu="4"))), "b")
    assert examine(pod_of(pod("other", spec=asking(cpu="4"))), snapshot).fits


def test_the_message_counts_reasons_as_the_scheduler_does() -> None:
    """Sorted as text, a node with two reasons in both."""
    nodes = [
        node("a", cpu="1", memory="1Gi"),
        node("b", cpu="1"),
        node("c", spec={"unschedulable": True}),
        node("d", spec={"taints": [{"key": "x", "effect": "NoSchedule"}]}),
    ]
    found = place(pod(spec=asking(cpu="2", memory="2Gi")), nodes)
    assert found.message == (
        "0/4 nodes are available: 1 Insufficient memory, 1 node(s) had untolerated taint(s), "
        "1 node(s) were unschedulable, 2 Insufficient cpu."
    )


def test_the_message_where_some_do() -> None:
    """It says how many."""
    found = place(pod(spec=asking(cpu="2")), [node("a"), node("b", cpu="1")])
    assert found.message == "1/2 nodes are available: 1 Insufficient cpu."
    assert place(pod(), [node("a")]).message == "1/1 nodes are available."


def test_a_cluster_without_nodes() -> None:
    """Nothing fits in nothing."""
    found = place(pod(), [])
    assert not found.fits
    assert found.message == "0/0 nodes are available."


def test_a_reason_that_is_no_nodes() -> None:
    """It is told for every node, and once in the message."""
    found = place(pod(spec=using("gone")), [node("a"), node("b")])
    assert found.nowhere == NodeRefusal("volumes", ('persistentvolumeclaim "gone" not found',))
    assert found.refused == {"a": found.nowhere, "b": found.nowhere}
    assert found.message == '0/2 nodes are available: persistentvolumeclaim "gone" not found.'
    assert list(fitting(pod_of(pod(spec=using("gone"))), seen([node("a")]))) == []


def test_a_pod_that_asks_for_nothing_is_judged_by_few() -> None:
    """Thousands of nodes cost only what the pod constrains."""
    snapshot = seen([node("a")])
    prepared = [check.name for check in CHECKS if check.prepare(pod_of(pod()), snapshot)]
    assert prepared == ["resources"]


@pytest.mark.parametrize("name", sorted({check.name for check in CHECKS}))
def test_each_check_can_fail(name: str) -> None:
    """There is no check that random pods never meet."""
    for seed in range(400):
        wanted, snapshot = drawn(seed)
        found = [examine(pod_of(one), snapshot) for one in wanted]
        if any(refusal.check == name for one in found for refusal in one.refused.values()):
            return
    raise AssertionError(name)


def test_the_words_of_a_refusal() -> None:
    """Reasons, and in brackets what a person would ask next."""
    assert str(NodeRefusal("resources", ("Insufficient cpu",), "cpu: 2 asked")) == "Insufficient cpu (cpu: 2 asked)"
    assert str(NodeRefusal("ports", ("one", "two"))) == "one, two"


def test_nothing_fits_nowhere() -> None:
    """The value of it."""
    assert not Placement((), {}).fits


def test_claims_and_nodes_are_judged_together() -> None:
    """The node with room is not the one with the volume."""
    storage = stock(claims=[claim(storageClassName="later")], classes=[kind()])
    found = place(pod(spec=using("data") | asking(cpu="2")), [node("a", cpu="1"), node("b")], storage=storage)
    assert found.fitting == ("b",)
