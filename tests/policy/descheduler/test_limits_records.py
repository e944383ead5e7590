"""Tests of the records of evicted pods, which are in an annotation of the Node that they left."""

from datetime import datetime, timedelta

import pytest
from deschedulingkit import NOW, ON, A, B, descheduling_world, eviction_record, put_eviction_records
from worldkit import add_virtual_node, apply_topology, decision_and_plan, make_world, put, with_managed_fields

from tensile.kube.store import Cache
from tensile.kubelet.node.rule import NodeRule
from tensile.kubelet.node.rule import key_of as node_key
from tensile.names import TRIED
from tensile.policy.descheduler.limits import (
    MAX_RECORDS,
    EvictionRecord,
    encode_records,
    eviction_records,
    nodes_to_avoid,
    recent,
    recently_left_nodes,
    record_retention,
)
from tensile.reconcile.world import World
from tensile.topology import Descheduler


def seen(world: World) -> tuple[Cache, Descheduler, datetime]:
    """Return the inputs of the limits: the virtual nodes, the policy and the time."""
    return world.upper.nodes, world.topology.descheduler, world.now


def test_eviction_records_are_read_as_they_were_written() -> None:
    """Their times keep fractions of a second."""
    notes = [EvictionRecord("rs", "pod", NOW + timedelta(milliseconds=250), (A, B)), EvictionRecord("rs", "other", NOW)]
    assert eviction_records({"metadata": {"annotations": {TRIED: encode_records(notes)}}}) == notes


def test_eviction_records_fit_into_the_annotations_of_a_node() -> None:
    """The oldest records lose the names of their nodes; owners, pods and times are complete and in order."""
    nodes = tuple(f"{place:03}{'n' * 60}" for place in range(100))
    uids = [f"{place:036}" for place in range(MAX_RECORDS)]
    notes = [
        EvictionRecord(uid, uid, NOW + timedelta(seconds=place, milliseconds=1), nodes)
        for place, uid in enumerate(uids)
    ]
    text = encode_records(notes)
    assert len(text) < 200 * 1024
    found = eviction_records({"metadata": {"annotations": {TRIED: text}}})
    assert [(note.owner, note.pod, note.at) for note in found] == [(note.owner, note.pod, note.at) for note in notes]
    full = [bool(note.nodes) for note in found]
    assert full == sorted(full)
    assert found[-1] == notes[-1]
    few = notes[-20:]
    assert eviction_records({"metadata": {"annotations": {TRIED: encode_records(few)}}}) == few


@pytest.mark.parametrize(
    "text", ["", "no JSON", "{}", '[{"owner": 1}]', '[{"owner":"a","pod":"b","at":"2026-03-01T12:00:00"}]']
)
def test_invalid_eviction_records_are_ignored(text: str) -> None:
    """Any client that may write Nodes can write the annotation."""
    assert eviction_records({"metadata": {"annotations": {TRIED: text}}}) == []


def test_only_recent_eviction_records_count() -> None:
    """A record of the future, from a wrong clock, counts as recent."""
    notes = [eviction_record("a", ago=60), eviction_record("b", ago=59), eviction_record("c", ago=-5)]
    assert [note.pod for note in recent(notes, NOW, timedelta(seconds=60))] == ["b", "c"]


def test_eviction_records_are_kept_for_the_longer_of_interval_and_cooldown() -> None:
    """The limit needs those of an interval, and the return to a node those of the cooldown."""
    policy = Descheduler.model_construct(interval=timedelta(minutes=9), cooldown=timedelta(minutes=5))
    assert record_retention(policy) == timedelta(minutes=9)


def test_a_controllers_pods_avoid_the_nodes_of_its_recent_records() -> None:
    """Records of other controllers and records older than the cooldown do not count."""
    world = descheduling_world()
    put_eviction_records(
        world,
        eviction_record(ago=30, nodes=(A, "lower-c")),
        eviction_record("x", "other", nodes=("lower-d",)),
        eviction_record("y", ago=900, nodes=("e",)),
    )
    assert recently_left_nodes(*seen(world), "web") == {A}
    assert nodes_to_avoid(*seen(world), "web") == (A, "lower-c")
    assert nodes_to_avoid(*seen(world), "no-such-owner") == ()


def test_only_the_newest_record_lists_unsuitable_nodes() -> None:
    """An earlier unsuitable node may fit by now, and otherwise no node might remain."""
    world = descheduling_world()
    put_eviction_records(world, eviction_record("first", ago=60, nodes=(A, "lower-c")))
    put_eviction_records(world, eviction_record("second", ago=30, nodes=(B, A)), lower=B)
    assert nodes_to_avoid(*seen(world), "web") == (A, B)


def test_eviction_records_are_ignored_if_the_descheduler_is_disabled() -> None:
    """The records remain on the Node until they are overwritten."""
    world = descheduling_world()
    put_eviction_records(world, eviction_record())
    apply_topology(world, f"name: {A}", f"name: {B}")
    assert nodes_to_avoid(*seen(world), "web") == ()


def test_the_node_rule_does_not_remove_eviction_records() -> None:
    """It manages the Node's other annotations, and removes unknown ones of its own."""
    world = make_world(more=ON)
    add_virtual_node(world)
    put_eviction_records(world, eviction_record())
    entry = world.upper.nodes.get("", A)
    assert entry is not None
    put(world.upper.nodes, with_managed_fields(entry.manifest()))
    steps = decision_and_plan(NodeRule(), node_key(world.lowers[A]), world)[1].steps
    assert not [one for step in steps for one in step.operations if "tried" in one["path"]]
