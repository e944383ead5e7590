"""What is remembered of pods that left, on the Node that they left."""

from datetime import datetime, timedelta

import pytest
from deschedulingkit import NOW, ON, A, B, ground, left, noted
from worldkit import decided, put, raised, reload, world
from worldkit import written as written_by_us

from tensile.kube.store import Cache
from tensile.kubelet.node.rule import NodeRule
from tensile.kubelet.node.rule import key_of as node_key
from tensile.names import TRIED
from tensile.policy.descheduler.limits import (
    MOST,
    EvictionRecord,
    kept_for,
    nodes_left,
    nodes_tried,
    notes_on,
    recent,
    written,
)
from tensile.reconcile.world import World
from tensile.topology import Descheduler


def seen(here: World) -> tuple[Cache, Descheduler, datetime]:
    """Return what it is read from: the virtual nodes, the policy and the time."""
    return here.upper.nodes, here.topology.descheduler, here.now


def test_notes_are_read_as_they_were_written() -> None:
    """Times keep their parts of a second."""
    notes = [EvictionRecord("rs", "pod", NOW + timedelta(milliseconds=250), (A, B)), EvictionRecord("rs", "other", NOW)]
    assert notes_on({"metadata": {"annotations": {TRIED: written(notes)}}}) == notes


def test_notes_always_fit_into_the_annotations_of_a_node() -> None:
    """The oldest lose the names of nodes; who left and when is all there, in their order."""
    nodes = tuple(f"{place:03}{'n' * 60}" for place in range(100))
    uids = [f"{place:036}" for place in range(MOST)]
    notes = [
        EvictionRecord(uid, uid, NOW + timedelta(seconds=place, milliseconds=1), nodes)
        for place, uid in enumerate(uids)
    ]
    text = written(notes)
    assert len(text) < 200 * 1024
    found = notes_on({"metadata": {"annotations": {TRIED: text}}})
    assert [(note.owner, note.pod, note.at) for note in found] == [(note.owner, note.pod, note.at) for note in notes]
    full = [bool(note.nodes) for note in found]
    assert full == sorted(full)
    assert found[-1] == notes[-1]
    few = notes[-20:]
    assert notes_on({"metadata": {"annotations": {TRIED: written(few)}}}) == few


@pytest.mark.parametrize(
    "text", ["", "no JSON", "{}", '[{"owner": 1}]', '[{"owner":"a","pod":"b","at":"2026-03-01T12:00:00"}]']
)
def test_what_is_no_note_says_nothing(text: str) -> None:
    """Anybody who may write Nodes may write there."""
    assert notes_on({"metadata": {"annotations": {TRIED: text}}}) == []


def test_only_the_latest_count() -> None:
    """A note of the future, by a clock that went wrong, counts as one of now."""
    notes = [left("a", ago=60), left("b", ago=59), left("c", ago=-5)]
    assert [note.pod for note in recent(notes, NOW, timedelta(seconds=60))] == ["b", "c"]


def test_notes_are_kept_for_whatever_looks_back_longest() -> None:
    """The limit looks back for an interval, the way back for the cooldown."""
    policy = Descheduler.model_construct(interval=timedelta(minutes=9), cooldown=timedelta(minutes=5))
    assert kept_for(policy) == timedelta(minutes=9)


def test_a_controller_is_kept_off_what_its_pods_left_and_what_would_not_do_either() -> None:
    """Another's notes do not count, nor do those of before the cooldown."""
    here = ground()
    noted(
        here,
        left(ago=30, nodes=(A, "lower-c")),
        left("x", "other", nodes=("lower-d",)),
        left("y", ago=900, nodes=("e",)),
    )
    assert nodes_left(*seen(here), "web") == {A}
    assert nodes_tried(*seen(here), "web") == (A, "lower-c")
    assert nodes_tried(*seen(here), "nobody") == ()


def test_what_would_not_do_before_may_do_now() -> None:
    """Only the word on the pod that left last counts: else nothing might be left to go to."""
    here = ground()
    noted(here, left("first", ago=60, nodes=(A, "lower-c")))
    noted(here, left("second", ago=30, nodes=(B, A)), lower=B)
    assert nodes_tried(*seen(here), "web") == (A, B)


def test_nobody_is_kept_off_once_the_descheduler_is_off() -> None:
    """Notes stay on the Node until they are written over."""
    here = ground()
    noted(here, left())
    reload(here, f"name: {A}", f"name: {B}")
    assert nodes_tried(*seen(here), "web") == ()


def test_the_rule_of_the_node_lets_notes_be() -> None:
    """It writes the other annotations, and would take away what it does not know of its own."""
    here = world(more=ON)
    raised(here)
    noted(here, left())
    entry = here.upper.nodes.get("", A)
    assert entry is not None
    put(here.upper.nodes, written_by_us(entry.manifest()))
    steps = decided(NodeRule(), node_key(here.lowers[A]), here)[1].steps
    assert not [one for step in steps for one in step.operations if "tried" in one["path"]]
