"""Tests of the Node condition about blocked deletions, and of how long it records a restored store."""

from collections.abc import Callable

import pytest
from worldkit import A, home, lose, marked, put, raised, thing, twin, upper_pod, world, written

from tensile.kubelet.node.status import held_back, keys
from tensile.names import DELETIONS_BLOCKED, STORE_RESTORED
from tensile.objects import SERVICE, Manifest
from tensile.reconcile.guard import is_restored, restored_condition
from tensile.reconcile.world import Problem, World

HOLDS, RESTORED = Problem("DeletionLimitExceeded", "21 deletions"), Problem(STORE_RESTORED, "went back")


def node(reason: str = STORE_RESTORED, status: str = "True") -> Manifest:
    """Return a Node with the DeletionsBlocked condition."""
    said = {"type": DELETIONS_BLOCKED, "status": status, "reason": reason, "message": "went back"}
    return {**thing("Node", A, ""), "status": {"conditions": [said]}}


def orphaned(*, orphan: bool = True) -> World:
    """Return a world with a pod on both sides, or in the lower cluster only."""
    here = world(more="controllers: [Service]\n")
    home(here)
    raised(here)
    put(here.lowers[A].upper_pods, upper_pod())
    put(here.lowers[A].pods, twin(upper_pod()))
    if orphan:
        lose(here.lowers[A].upper_pods, "web")
    return here


@pytest.mark.parametrize("key", keys(A), ids=lambda key: key.rule)
def test_blocked_deletions_of_every_rule_are_reported_on_the_node(key: object) -> None:
    """The report is the guard's own problem, and a restored store is reported before other problems."""
    here = orphaned(orphan=False)
    assert held_back({}, here.lowers[A], here) is None
    here.problems[key] = HOLDS  # type: ignore[index]
    assert held_back({}, here.lowers[A], here) == HOLDS
    here.problems[next(one for one in keys(A) if one != key)] = RESTORED
    assert held_back({}, here.lowers[A], here) == RESTORED


def test_a_restored_store_is_reported_while_an_orphan_exists() -> None:
    """An engine that starts has blocked nothing yet, so it continues the report of the Node."""
    here = orphaned()
    assert held_back(node(), here.lowers[A], here) == RESTORED
    here = orphaned(orphan=False)
    assert held_back(node(), here.lowers[A], here) is None


@pytest.mark.parametrize(("reason", "status"), [("DeletionLimitExceeded", "True"), (STORE_RESTORED, "False")])
def test_other_conditions_are_not_continued_from_the_node(reason: str, status: str) -> None:
    """Limits of deletions are evaluated again each time, and a condition that is False reports nothing."""
    here = orphaned()
    assert held_back(node(reason, status), here.lowers[A], here) is None


DOUBTS: dict[str, Callable[[World], object]] = {
    "silent": lambda here: setattr(here.lowers[A], "unreachable_seconds", 1.0),
    "pods": lambda here: here.lowers[A].pods.mark_stale(),
    "upper namespaces": lambda here: here.upper.namespaces.mark_stale(),
    "upper Services": lambda here: here.upper.more[SERVICE].mark_stale(),
    "lower Services": lambda here: here.lowers[A].more[SERVICE].mark_stale(),
}


@pytest.mark.parametrize("doubt", DOUBTS.values(), ids=DOUBTS)
def test_a_restored_store_is_reported_while_the_state_is_uncertain(doubt: Callable[[World], object]) -> None:
    """Without complete caches and a reachable lower it is unknown whether an orphan exists."""
    here = orphaned(orphan=False)
    doubt(here)
    assert held_back(node(), here.lowers[A], here) == RESTORED


def test_only_the_report_on_a_node_of_this_topology_counts_for_the_guard() -> None:
    """A Node without this owner's marks, or without the condition, does not."""
    here = orphaned()
    assert not is_restored(here.lowers[A], here)
    said = node()["status"]
    ours = here.upper.nodes.get("", A)
    assert ours is not None
    put(here.upper.nodes, {**ours.manifest(), "status": said})
    assert is_restored(here.lowers[A], here)
    put(here.upper.nodes, {**written(node()), "status": said})
    assert not is_restored(here.lowers[A], here)
    assert restored_condition(marked(node(), "x")) is not None
    assert restored_condition(thing("Node", A, "")) is None
