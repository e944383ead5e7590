"""One row for each lower cluster, out of the world."""

from collections.abc import Callable

import pytest
from statuskit import row
from worldkit import A, B, drop, put, raised, reload, thing, upper_pod, world

from tensile.engine.status.report import LowerRow, amounts, are_known, coarse, rows
from tensile.kube.health import NOT_CONTACTED
from tensile.kubelet.node.rule import key_of
from tensile.objects import Manifest
from tensile.reconcile.world import Key, Problem, World


def node(name: str, *, ready: bool = True, cpu: str = "32") -> Manifest:
    """Make a lower node."""
    condition = {"type": "Ready", "status": str(ready)}
    allocatable = {"cpu": cpu, "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "4"}
    return {**thing("Node", name, ""), "status": {"allocatable": allocatable, "conditions": [condition]}}


def standing() -> World:
    """Make two lowers, the first with nodes, a virtual node and pods."""
    here = world()
    put(here.lowers[A].nodes, node("n1"), node("n2"), node("n3", ready=False))
    raised(here)
    put(here.lowers[A].upper_pods, upper_pod("one"), upper_pod("two"))
    return here


def first(here: World, **troubles: str) -> LowerRow:
    """Return the row of the first lower."""
    return rows(here, troubles)[0]


def test_a_lower_that_is_well_has_all_in_its_row() -> None:
    """What its node offers, what its nodes have, and the pods that are bound to it."""
    assert first(standing()) == LowerRow(
        name=A,
        node=A,
        reachable=True,
        message="",
        pods=2,
        lag=0,
        advertised={"cpu": "64", "memory": "128Gi", "pods": "220"},
        real={"cpu": "64", "memory": "128Gi", "pods": "220"},
        version=standing().lowers[A].version,
        nodes={"ready": 2, "total": 3},
    )


def test_a_cordoned_node_does_not_count_as_ready() -> None:
    """No pod can start on it; without a list of nodes nothing is counted."""
    here = standing()
    put(here.lowers[A].nodes, {**node("n1"), "spec": {"unschedulable": True}})
    assert first(here).nodes == {"ready": 1, "total": 3}
    here.lowers[A].nodes.mark_stale()
    assert first(here).nodes == {}


def test_there_is_a_row_for_every_lower() -> None:
    """In the order of the topology; without a node nothing is advertised."""
    found = rows(standing(), {})
    assert [one.name for one in found] == [A, B]
    assert (found[1].advertised, found[1].pods) == ({}, 0)


@pytest.mark.parametrize(("silent", "reachable", "lag"), [(0.0, True, 0), (9.9, True, 9), (10.1, False, 10)])
def test_lag_is_how_long_it_has_not_answered(silent: float, lag: int, *, reachable: bool) -> None:
    """A moment's silence is none yet."""
    here = standing()
    here.lowers[A].unreachable_seconds = silent
    assert (first(here).reachable, first(here).lag) == (reachable, lag)


def test_one_that_never_answered_is_not_reachable() -> None:
    """However short the time."""
    here = standing()
    here.lowers[A].version = ""
    assert first(here).reachable is False


def test_without_a_list_of_nodes_what_it_has_is_not_known() -> None:
    """That is not the same as nothing."""
    here = standing()
    here.lowers[A].nodes.mark_stale()
    assert (first(here).real, first(here).message) == ({}, "not all its objects are listed yet")


def test_what_is_wrong_is_said_the_gravest_first() -> None:
    """Credentials, then the connection, then what is left of the topology."""
    here = standing()
    lower = here.lowers[A]
    lower.in_topology = False
    assert first(here).message == (
        "removed from the topology, but its node has pods: delete them, or put it back with maintenance: drain"
    )
    lower.other_engine = "host_2_b"
    assert first(here).message == (
        "engine host_2_b runs this topology too, and both undo each other's changes: "
        "stop one, or run both with --leader-elect"
    )
    lower.warning = "the Secret is gone"
    assert first(here).message == "the Secret is gone"
    lower.denied = "list Secret: denied"
    assert first(here).message == "list Secret: denied"
    assert first(here, **{A: "refused"}).message == "refused"
    lower.refusal = "no such file"
    assert first(here, **{A: "refused"}).message == "no such file"
    lower.connected = False
    assert first(here).message == (
        "its `node.name` was changed before this engine started; its node is kept, and its pods are not served: "
        "write the former one again"
    )
    reload(here, "name: lower-b")
    assert first(here).message == (
        "removed from the topology before this engine started; its node is kept, and its pods are not served: "
        "put it back with maintenance: drain"
    )
    assert first(here).reachable is False


def test_what_the_guard_blocks_is_told() -> None:
    """It is no state of the connection, so it comes after what is wrong with that; it is not counted as an object."""
    here = standing()
    here.problems[Key("orphans", A, "", "")] = Problem("DeletionLimitExceeded", "40 pods are gone")
    assert (first(here).message, first(here).blocked) == ("40 pods are gone", 0)
    here.lowers[A].warning = "the Secret is gone"
    assert first(here).message == "the Secret is gone"


def test_blocked_objects_are_counted_by_lower() -> None:
    """Why each is blocked is in the plan and on the object."""
    here = standing()
    for lower, name in ((A, "web-0"), (A, "web-1"), ("elsewhere", "web-2")):
        here.problems[Key("pods", lower, "shop", name)] = Problem("NameConflict", "taken")
    assert (first(here).blocked, first(here).message) == (2, "")


def test_how_lowers_are_is_known_when_each_has_answered_or_will_not() -> None:
    """A start is no news of them."""
    here = standing()
    assert are_known(here)
    lower = here.lowers[B]
    lower.version = ""
    assert not are_known(here)
    lower.unreachable_seconds = 11.0
    assert are_known(here)
    lower.unreachable_seconds, lower.refusal = 0.0, "no such Secret"
    assert are_known(here)
    lower.refusal, lower.version = "", "v1.36.3"
    lower.pods.mark_stale()
    assert not are_known(here)
    lower.denied = "list Pod: denied"
    assert are_known(here), "it never will be"
    lower.denied, lower.connected = "", False
    assert are_known(here)


@pytest.mark.parametrize(
    ("lag", "told"),
    [(0, 0), (9, 0), (10, 10), (19, 10), (25, 20), (30, 30), (59, 30), (60, 60), (119, 60), (125, 120), (3601, 3600)],
)
def test_a_lag_that_is_written_grows_in_steps(lag: int, told: int) -> None:
    """A cluster that is away for an hour is worth a write a minute."""
    assert coarse(row(lag=lag)).lag == told


def test_only_what_people_ask_for_is_told_of_a_node() -> None:
    """And nothing of one that offers nothing."""
    assert amounts(node("n1")) == {"cpu": "32", "memory": "64Gi", "pods": "110"}
    assert amounts({}) == {}


Change = Callable[[World], object]


def having(**fields: object) -> Change:
    """Return what sets fields of the first lower."""
    return lambda here: [setattr(here.lowers[A], name, value) for name, value in fields.items()]


def drained(here: World) -> None:
    """Put a topology in force that drains the first lower."""
    reload(here, f"name: {A}, maintenance: drain", f"name: {B}")


def emptied(here: World) -> None:
    """Let the last pods of a drained lower go."""
    drained(here)
    for name in ("one", "two"):
        drop(here.lowers[A].upper_pods, name)


def cordoned(here: World) -> None:
    """Cordon the virtual node."""
    found = here.upper.nodes.get("", A)
    assert found is not None
    put(here.upper.nodes, {**found.manifest(), "spec": {"unschedulable": True}})


def without_ready_nodes(here: World) -> None:
    """Let the nodes of the lower be not Ready."""
    put(here.lowers[A].nodes, *(node(name, ready=False) for name in ("n1", "n2")))


STATES: dict[str, tuple[Change, str]] = {
    "well": (having(), "Ready"),
    "left the topology": (having(in_topology=False), "Leaving"),
    "left while the engine was down": (having(connected=False), "Leaving"),
    "without credentials": (having(refusal="no such file", version=""), "Error"),
    "silent": (having(unreachable_seconds=11.0), "NoAnswer"),
    "never heard of": (having(version=""), "Starting"),
    "without a permission": (having(denied="list Secret: denied"), "Forbidden"),
    "without a permission from the start": (having(denied="read Namespace: denied", version=""), "Forbidden"),
    "not listed yet": (lambda here: here.lowers[A].pods.mark_stale(), "Starting"),
    "without ready nodes": (without_ready_nodes, "NotReady"),
    "cordoned": (cordoned, "Cordoned"),
    "drained with pods": (drained, "Draining"),
    "drained without pods": (emptied, "Drained"),
}


@pytest.mark.parametrize(("change", "state"), STATES.values(), ids=STATES)
def test_the_state_is_one_word(change: Change, state: str) -> None:
    """The most severe one of what is known."""
    here = standing()
    change(here)
    assert first(here).state == state


def test_a_lower_without_ready_nodes_says_what_to_do() -> None:
    """Its state alone, NotReady, could be that of the virtual node."""
    here = standing()
    assert first(here).message == ""
    without_ready_nodes(here)
    assert first(here).message == "no node there is Ready and schedulable: uncordon or repair one"


def test_a_lower_that_fails_from_the_start_is_no_longer_starting() -> None:
    """Its connection has an error, which is more than that it was not contacted yet."""
    here = standing()
    here.lowers[A].version = ""
    assert first(here, **{A: NOT_CONTACTED}).state == "Starting"
    assert first(here, **{A: "lower-a: read Namespace kube-system: denied"}).state == "Error"


def test_a_lower_whose_requests_fail_is_not_ready_although_it_still_counts_as_reachable() -> None:
    """From the first failure on; a problem of a credential that is not needed yet leaves it Ready."""
    here = standing()
    assert first(here, **{A: "lower-a: cannot be read"}).state == "Ready"
    here.lowers[A].unreachable_seconds = 2.0
    assert first(here).state == "Ready"
    assert first(here, **{A: "lower-a: cannot connect"}).state == "Error"


def test_a_lower_without_its_node_is_starting() -> None:
    """The engine has not created it yet, or cannot, which is an error with its reason."""
    here = standing()
    assert rows(here, {})[1].state == "Starting"
    here.problems[key_of(here.lowers[B])] = Problem("NameConflict", "Node lower-b belongs to topology other")
    found = rows(here, {})[1]
    assert (found.state, found.message) == ("Error", "Node lower-b belongs to topology other")
