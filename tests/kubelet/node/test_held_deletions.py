"""What a Node tells of deletions that are held back, and for how long it keeps a note for engines to come."""

from collections.abc import Callable

import pytest
from worldkit import A, home, lose, marked, put, raised, thing, twin, upper_pod, world, written

from tensile.kubelet.node.status import held_back, keys
from tensile.names import DELETIONS_BLOCKED, STORE_RESTORED
from tensile.objects import SERVICE, Manifest
from tensile.reconcile.guard import is_restored, noted
from tensile.reconcile.world import Problem, World

HOLDS, RESTORED = Problem("DeletionLimitExceeded", "21 deletions"), Problem(STORE_RESTORED, "went back")


def node(reason: str = STORE_RESTORED, status: str = "True") -> Manifest:
    """Make a Node that says that deletions are held back, for a reason."""
    said = {"type": DELETIONS_BLOCKED, "status": status, "reason": reason, "message": "went back"}
    return {**thing("Node", A, ""), "status": {"conditions": [said]}}


def orphaned(*, orphan: bool = True) -> World:
    """Make a world with a pod on both sides, or one below only."""
    here = world(more="controllers: [Service]\n")
    home(here)
    raised(here)
    put(here.lowers[A].upper_pods, upper_pod())
    put(here.lowers[A].pods, twin(upper_pod()))
    if orphan:
        lose(here.lowers[A].upper_pods, "web")
    return here


@pytest.mark.parametrize("key", keys(A), ids=lambda key: key.rule)
def test_every_rule_that_ends_what_nobody_deleted_is_told_of(key: object) -> None:
    """With the guard's own words; that a store was restored is said first."""
    here = orphaned(orphan=False)
    assert held_back({}, here.lowers[A], here) is None
    here.problems[key] = HOLDS  # type: ignore[index]
    assert held_back({}, here.lowers[A], here) == HOLDS
    here.problems[next(one for one in keys(A) if one != key)] = RESTORED
    assert held_back({}, here.lowers[A], here) == RESTORED


def test_a_note_stays_while_something_rests_on_it() -> None:
    """An engine that starts has held nothing back yet."""
    here = orphaned()
    assert held_back(node(), here.lowers[A], here) == RESTORED
    here = orphaned(orphan=False)
    assert held_back(node(), here.lowers[A], here) is None


@pytest.mark.parametrize(("reason", "status"), [("DeletionLimitExceeded", "True"), (STORE_RESTORED, "False")])
def test_other_conditions_are_no_note(reason: str, status: str) -> None:
    """The limits are looked at anew each time."""
    here = orphaned()
    assert held_back(node(reason, status), here.lowers[A], here) is None


DOUBTS: dict[str, Callable[[World], object]] = {
    "silent": lambda here: setattr(here.lowers[A], "unreachable_seconds", 1.0),
    "pods": lambda here: here.lowers[A].pods.mark_stale(),
    "namespaces above": lambda here: here.upper.namespaces.mark_stale(),
    "Services above": lambda here: here.upper.more[SERVICE].mark_stale(),
    "Services below": lambda here: here.lowers[A].more[SERVICE].mark_stale(),
}


@pytest.mark.parametrize("doubt", DOUBTS.values(), ids=DOUBTS)
def test_a_note_stays_while_it_is_not_certain_that_nothing_rests_on_it(doubt: Callable[[World], object]) -> None:
    """While nothing is known there is nothing to hold; that is no end of it."""
    here = orphaned(orphan=False)
    doubt(here)
    assert held_back(node(), here.lowers[A], here) == RESTORED


def test_the_note_on_a_node_of_ours_counts_for_the_guard() -> None:
    """Not what somebody else's says, nor none."""
    here = orphaned()
    assert not is_restored(here.lowers[A], here)
    said = node()["status"]
    ours = here.upper.nodes.get("", A)
    assert ours is not None
    put(here.upper.nodes, {**ours.manifest(), "status": said})
    assert is_restored(here.lowers[A], here)
    put(here.upper.nodes, {**written(node()), "status": said})
    assert not is_restored(here.lowers[A], here)
    assert noted(marked(node(), "x")) is not None
    assert noted(thing("Node", A, "")) is None
