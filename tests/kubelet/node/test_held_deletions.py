"""Tests of the Node condition about blocked deletions, and of how long it records a restored store."""

from collections.abc import Callable

import pytest
from worldkit import (
    A,
    add_namespace,
    add_virtual_node,
    make_lower_pod,
    make_object,
    make_upper_pod,
    make_world,
    put,
    relist_without,
    with_managed_fields,
    with_owner_marks,
)

from tensile.kubelet.node.status import held_back, keys
from tensile.names import DELETIONS_BLOCKED, STORE_RESTORED
from tensile.objects import SERVICE, Manifest
from tensile.reconcile.guard import is_restored, restored_condition
from tensile.reconcile.world import Problem, World

HOLDS, RESTORED = Problem("DeletionLimitExceeded", "21 deletions"), Problem(STORE_RESTORED, "went back")


def node(reason: str = STORE_RESTORED, status: str = "True") -> Manifest:
    """Return a Node with the DeletionsBlocked condition."""
    condition = {"type": DELETIONS_BLOCKED, "status": status, "reason": reason, "message": "went back"}
    return {**make_object("Node", A, ""), "status": {"conditions": [condition]}}


def orphaned(*, orphan: bool = True) -> World:
    """Return a world with a pod on both sides, or in the lower cluster only."""
    world = make_world(more="controllers: [Service]\n")
    add_namespace(world)
    add_virtual_node(world)
    put(world.lowers[A].upper_pods, make_upper_pod())
    put(world.lowers[A].pods, make_lower_pod(make_upper_pod()))
    if orphan:
        relist_without(world.lowers[A].upper_pods, "web")
    return world


@pytest.mark.parametrize("key", keys(A), ids=lambda key: key.rule)
def test_blocked_deletions_of_every_rule_are_reported_on_the_node(key: object) -> None:
    """The report is the guard's own problem, and a restored store is reported before other problems."""
    world = orphaned(orphan=False)
    assert held_back({}, world.lowers[A], world) is None
    world.problems[key] = HOLDS  # type: ignore[index]
    assert held_back({}, world.lowers[A], world) == HOLDS
    world.problems[next(one for one in keys(A) if one != key)] = RESTORED
    assert held_back({}, world.lowers[A], world) == RESTORED


def test_a_restored_store_is_reported_while_an_orphan_exists() -> None:
    """An engine that starts has blocked nothing yet, so it continues the report of the Node."""
    world = orphaned()
    assert held_back(node(), world.lowers[A], world) == RESTORED
    world = orphaned(orphan=False)
    assert held_back(node(), world.lowers[A], world) is None


@pytest.mark.parametrize(("reason", "status"), [("DeletionLimitExceeded", "True"), (STORE_RESTORED, "False")])
def test_other_conditions_are_not_continued_from_the_node(reason: str, status: str) -> None:
    """Limits of deletions are evaluated again each time, and a condition that is False reports nothing."""
    world = orphaned()
    assert held_back(node(reason, status), world.lowers[A], world) is None


DOUBTS: dict[str, Callable[[World], object]] = {
    "silent": lambda world: setattr(world.lowers[A], "unreachable_seconds", 1.0),
    "pods": lambda world: world.lowers[A].pods.mark_stale(),
    "upper namespaces": lambda world: world.upper.namespaces.mark_stale(),
    "upper Services": lambda world: world.upper.more[SERVICE].mark_stale(),
    "lower Services": lambda here: here.lowers[A].more[SERVICE].mark_stale(),
}


@pytest.mark.parametrize("doubt", DOUBTS.values(), ids=DOUBTS)
def test_a_restored_store_is_reported_while_the_state_is_uncertain(doubt: Callable[[World], object]) -> None:
    """Without complete caches and a reachable lower it is unknown whether an orphan exists."""
    world = orphaned(orphan=False)
    doubt(world)
    assert held_back(node(), world.lowers[A], world) == RESTORED


def test_only_the_report_on_a_node_of_this_topology_counts_for_the_guard() -> None:
    """A Node without this owner's marks, or without the condition, does not."""
    world = orphaned()
    assert not is_restored(world.lowers[A], world)
    node_status = node()["status"]
    ours = world.upper.nodes.get("", A)
    assert ours is not None
    put(world.upper.nodes, {**ours.manifest(), "status": node_status})
    assert is_restored(world.lowers[A], world)
    put(world.upper.nodes, {**with_managed_fields(node()), "status": node_status})
    assert not is_restored(world.lowers[A], world)
    assert restored_condition(with_owner_marks(node(), "x")) is not None
    assert restored_condition(make_object("Node", A, "")) is None
