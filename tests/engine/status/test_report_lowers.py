"""Tests of the row for each lower cluster in the status report."""

from collections.abc import Callable

import pytest
from statuskit import row
from worldkit import (
    A,
    B,
    add_virtual_node,
    apply_topology,
    delete_observed,
    make_object,
    make_upper_pod,
    make_world,
    put,
)

from tensile.engine.status.report import LowerRow, amounts, are_known, coarse, rows
from tensile.kube.health import NOT_CONTACTED
from tensile.kubelet.node.rule import key_of
from tensile.objects import Manifest
from tensile.reconcile.world import Key, Problem, World


def node(name: str, *, ready: bool = True, cpu: str = "32") -> Manifest:
    """Return a Node of a lower cluster."""
    condition = {"type": "Ready", "status": str(ready)}
    allocatable = {"cpu": cpu, "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "4"}
    return {**make_object("Node", name, ""), "status": {"allocatable": allocatable, "conditions": [condition]}}


def reported_world() -> World:
    """Create a world with two lowers, the first of which has nodes, a virtual node and pods."""
    world = make_world()
    put(world.lowers[A].nodes, node("n1"), node("n2"), node("n3", ready=False))
    add_virtual_node(world)
    put(world.lowers[A].upper_pods, make_upper_pod("one"), make_upper_pod("two"))
    return world


def first(world: World, **problems: str) -> LowerRow:
    """Return the row of the first lower."""
    return rows(world, problems)[0]


def test_the_row_of_a_healthy_lower_has_every_value() -> None:
    """It has the resources of its virtual node and of its real nodes, and the number of pods that are bound to it."""
    assert first(reported_world()) == LowerRow(
        name=A,
        node=A,
        reachable=True,
        message="",
        pods=2,
        lag=0,
        advertised={"cpu": "64", "memory": "128Gi", "pods": "220"},
        real={"cpu": "64", "memory": "128Gi", "pods": "220"},
        version=reported_world().lowers[A].version,
        nodes={"ready": 2, "total": 3},
    )


def test_a_cordoned_node_of_a_lower_does_not_count_as_ready() -> None:
    """No pod can start on it. Without a complete list of nodes, none are counted."""
    world = reported_world()
    put(world.lowers[A].nodes, {**node("n1"), "spec": {"unschedulable": True}})
    assert first(world).nodes == {"ready": 1, "total": 3}
    world.lowers[A].nodes.mark_stale()
    assert first(world).nodes == {}


def test_every_lower_has_a_row_in_the_order_of_the_topology() -> None:
    """A lower without a virtual node has no advertised resources."""
    found = rows(reported_world(), {})
    assert [one.name for one in found] == [A, B]
    assert (found[1].advertised, found[1].pods) == ({}, 0)


@pytest.mark.parametrize(("silent", "reachable", "lag"), [(0.0, True, 0), (9.9, True, 9), (10.1, False, 10)])
def test_lag_is_the_time_for_which_a_lower_has_not_responded(silent: float, lag: int, *, reachable: bool) -> None:
    """A lower is reachable until that time exceeds ten seconds."""
    world = reported_world()
    world.lowers[A].unreachable_seconds = silent
    assert (first(world).reachable, first(world).lag) == (reachable, lag)


def test_a_lower_that_never_responded_is_not_reachable() -> None:
    """Its version is not known yet, however short the time."""
    world = reported_world()
    world.lowers[A].version = ""
    assert first(world).reachable is False


def test_the_real_resources_of_a_lower_are_unknown_without_a_list_of_its_nodes() -> None:
    """The message states that not all its objects are listed yet."""
    world = reported_world()
    world.lowers[A].nodes.mark_stale()
    assert (first(world).real, first(world).message) == ({}, "not all its objects are listed yet")


def test_the_message_of_a_row_is_the_most_severe_problem() -> None:
    """Credentials come before the connection, and that before a lower that has left the topology."""
    world = reported_world()
    lower = world.lowers[A]
    lower.in_topology = False
    assert first(world).message == (
        "removed from the topology, but its node has pods: delete them, or put it back with maintenance: drain"
    )
    lower.other_engine = "host_2_b"
    assert first(world).message == (
        "engine host_2_b runs this topology too, and both undo each other's changes: "
        "stop one, or run both with --leader-elect"
    )
    lower.warning = "the Secret is gone"
    assert first(world).message == "the Secret is gone"
    lower.denied = "list Secret: denied"
    assert first(world).message == "list Secret: denied"
    assert first(world, **{A: "refused"}).message == "refused"
    lower.access_error = "no such file"
    assert first(world, **{A: "refused"}).message == "no such file"
    lower.connected = False
    assert first(world).message == (
        "its `node.name` was changed before this engine started; its node is kept, and its pods are not served: "
        "write the former one again"
    )
    apply_topology(world, "name: lower-b")
    assert first(world).message == (
        "removed from the topology before this engine started; its node is kept, and its pods are not served: "
        "put it back with maintenance: drain"
    )
    assert first(world).reachable is False


def test_deletions_that_the_guard_blocks_are_the_message_of_a_row() -> None:
    """A problem of the connection is reported first, and the deletions are not counted as blocked objects."""
    world = reported_world()
    world.problems[Key("orphans", A, "", "")] = Problem("DeletionLimitExceeded", "40 pods are gone")
    assert (first(world).message, first(world).blocked) == ("40 pods are gone", 0)
    world.lowers[A].warning = "the Secret is gone"
    assert first(world).message == "the Secret is gone"


def test_blocked_objects_are_counted_for_each_lower() -> None:
    """The reasons are in the plan and on the objects."""
    world = reported_world()
    for lower, name in ((A, "web-0"), (A, "web-1"), ("elsewhere", "web-2")):
        world.problems[Key("pods", lower, "shop", name)] = Problem("NameConflict", "taken")
    assert (first(world).blocked, first(world).message) == (2, "")


def test_the_state_of_the_lowers_is_known_once_each_is_listed_or_has_failed() -> None:
    """A lower that has not responded yet, or whose pods are not listed yet, is neither."""
    world = reported_world()
    assert are_known(world)
    lower = world.lowers[B]
    lower.version = ""
    assert not are_known(world)
    lower.unreachable_seconds = 11.0
    assert are_known(world)
    lower.unreachable_seconds, lower.access_error = 0.0, "no such Secret"
    assert are_known(world)
    lower.access_error, lower.version = "", "v1.36.3"
    lower.pods.mark_stale()
    assert not are_known(world)
    lower.denied = "list Pod: denied"
    assert are_known(world), "it never will be"
    lower.denied, lower.connected = "", False
    assert are_known(world)


@pytest.mark.parametrize(
    ("lag", "reported"),
    [(0, 0), (9, 0), (10, 10), (19, 10), (25, 20), (30, 30), (59, 30), (60, 60), (119, 60), (125, 120), (3601, 3600)],
)
def test_the_lag_in_the_status_config_map_grows_in_steps(lag: int, reported: int) -> None:
    """An unreachable cluster thus causes at most one write a minute after the first minute."""
    assert coarse(row(lag=lag)).lag == reported


def test_amounts_are_cpu_memory_and_pods_of_a_node() -> None:
    """Other resources are left out, and a node without allocatable has no amounts."""
    assert amounts(node("n1")) == {"cpu": "32", "memory": "64Gi", "pods": "110"}
    assert amounts({}) == {}


Change = Callable[[World], object]


def having(**fields: object) -> Change:
    """Return a change that sets fields of the first lower."""
    return lambda world: [setattr(world.lowers[A], name, value) for name, value in fields.items()]


def drained(world: World) -> None:
    """Activate a topology that drains the first lower."""
    apply_topology(world, f"name: {A}, maintenance: drain", f"name: {B}")


def emptied(world: World) -> None:
    """Drain the first lower, and remove its last pods."""
    drained(world)
    for name in ("one", "two"):
        delete_observed(world.lowers[A].upper_pods, name)


def cordoned(world: World) -> None:
    """Cordon the virtual node."""
    found = world.upper.nodes.get("", A)
    assert found is not None
    put(world.upper.nodes, {**found.manifest(), "spec": {"unschedulable": True}})


def without_ready_nodes(world: World) -> None:
    """Set the nodes of the lower to not Ready."""
    put(world.lowers[A].nodes, *(node(name, ready=False) for name in ("n1", "n2")))


STATES: dict[str, tuple[Change, str]] = {
    "healthy": (having(), "Ready"),
    "left the topology": (having(in_topology=False), "Leaving"),
    "left while the engine was down": (having(connected=False), "Leaving"),
    "without credentials": (having(access_error="no such file", version=""), "Error"),
    "no response": (having(unreachable_seconds=11.0), "NoAnswer"),
    "never responded": (having(version=""), "Starting"),
    "without a permission": (having(denied="list Secret: denied"), "Forbidden"),
    "without a permission from the start": (having(denied="read Namespace: denied", version=""), "Forbidden"),
    "not listed yet": (lambda world: world.lowers[A].pods.mark_stale(), "Starting"),
    "without ready nodes": (without_ready_nodes, "NotReady"),
    "cordoned": (cordoned, "Cordoned"),
    "drained with pods": (drained, "Draining"),
    "drained without pods": (emptied, "Drained"),
}


@pytest.mark.parametrize(("change", "state"), STATES.values(), ids=STATES)
def test_the_state_of_a_lower_is_one_word_for_its_most_severe_problem(change: Change, state: str) -> None:
    """The word is Ready if there is no problem."""
    world = reported_world()
    change(world)
    assert first(world).state == state


def test_a_lower_without_ready_nodes_has_a_message_with_the_remedy() -> None:
    """Its state NotReady alone could be understood as that of the virtual node."""
    world = reported_world()
    assert first(world).message == ""
    without_ready_nodes(world)
    assert first(world).message == "no node there is Ready and schedulable: uncordon or repair one"


def test_a_lower_that_was_never_reached_is_in_error_if_its_connection_fails() -> None:
    """A lower that was not contacted yet is still Starting."""
    world = reported_world()
    world.lowers[A].version = ""
    assert first(world, **{A: NOT_CONTACTED}).state == "Starting"
    assert first(world, **{A: "lower-a: read Namespace kube-system: denied"}).state == "Error"


def test_a_lower_whose_requests_fail_is_in_error_from_the_first_failure() -> None:
    """It still counts as reachable then; a problem of a credential that is not needed yet leaves it Ready."""
    world = reported_world()
    assert first(world, **{A: "lower-a: cannot be read"}).state == "Ready"
    world.lowers[A].unreachable_seconds = 2.0
    assert first(world).state == "Ready"
    assert first(world, **{A: "lower-a: cannot connect"}).state == "Error"


def test_a_lower_without_its_virtual_node_is_starting() -> None:
    """The engine has not created the node yet; if it cannot, the state is Error with the reason."""
    world = reported_world()
    assert rows(world, {})[1].state == "Starting"
    world.problems[key_of(world.lowers[B])] = Problem("NameConflict", "Node lower-b belongs to topology other")
    found = rows(world, {})[1]
    assert (found.state, found.message) == ("Error", "Node lower-b belongs to topology other")
