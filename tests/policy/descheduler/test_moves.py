"""Tests of one pass of the descheduler: which pods leave a full lower cluster, their targets, and which pods stay."""

from datetime import timedelta
from typing import Any

import pytest
from deschedulingkit import (
    NOW,
    ON,
    A,
    B,
    descheduling_world,
    eviction_record,
    foreign_pod,
    owned_by,
    put_eviction_records,
    put_foreign_pods,
    put_waiting_pods,
    requesting_pod,
    unschedulable_status,
)
from worldkit import change_as_other_client, make_lower_node, put

from tensile.objects import timestamp
from tensile.policy.descheduler.moves import PassPlan, one_pass
from tensile.policy.descheduler.replacement import successor_of
from tensile.reconcile.world import World

EARLIER = "2026-03-01T11:50:00Z"
THREE = ("name: lower-a", "name: lower-b", "name: lower-c")


def moves(world: World) -> list[tuple[str, str, str]]:
    """Return the moves as (pod, source, target)."""
    return [(move.upper.name, move.source, move.target) for move in one_pass(world).moves]


def stays(found: PassPlan) -> list[tuple[str, str]]:
    """Return the pods that stay as (pod, reason)."""
    return [(stay.upper.name, stay.reason) for stay in found.stays]


def test_a_pod_moves_to_a_lower_with_a_single_node_with_room() -> None:
    """Both lower clusters have enough capacity in total; the move has the virtual nodes that are unsuitable."""
    world = descheduling_world()
    put_waiting_pods(world, requesting_pod())
    (move,) = one_pass(world).moves
    assert (move.source, move.target, move.node, move.owner, move.avoided) == (A, B, "lower-b-n1", "web", (A,))


@pytest.mark.parametrize(
    ("lower", "status", "meta"),
    [
        pytest.param(A, unschedulable_status(119), {}, id="not for long enough"),
        pytest.param(A, unschedulable_status(reason="SchedulingGated"), {}, id="gated"),
        pytest.param(A, {"conditions": [{"type": "PodScheduled", "status": "True"}]}, {}, id="scheduled"),
        pytest.param(A, {"phase": "Running"}, {}, id="running"),
        pytest.param(A, unschedulable_status(), {"deletionTimestamp": "2026-03-01T12:00:00Z"}, id="terminating"),
        pytest.param(f"{A}, maintenance: drain", unschedulable_status(), {}, id="evicted by a drain"),
    ],
)
def test_a_pod_that_does_not_wait_for_a_node_is_not_moved(lower: str, status: dict[str, Any], meta: Any) -> None:
    """Only pods that are unschedulable for long enough are moved, and none that is deleted anyway."""
    world = descheduling_world(f"name: {lower}", f"name: {B}")
    put_waiting_pods(world, requesting_pod(**meta), status=status)
    assert one_pass(world) == PassPlan((), (), 0)


def test_a_pod_that_no_scheduler_processed_is_moved() -> None:
    """Its wait counts from its creation."""
    world = descheduling_world()
    pod = requesting_pod()
    put_waiting_pods(world, pod, status={"conditions": []})
    assert not moves(world)
    change_as_other_client(
        world.lowers[A].pods, "web", lambda one: one["metadata"].update(creationTimestamp="2026-03-01T11:50:00Z")
    )
    assert moves(world) == [("web", A, B)]


@pytest.mark.parametrize(
    ("cpu", "spec", "why"),
    [
        pytest.param("5", {}, "Insufficient cpu", id="no lower node has room"),
        pytest.param(
            "3",
            {"nodeSelector": {"clusterID": A}},
            "didn't match Pod's node affinity/selector",
            id="no other virtual node is selected",
        ),
        pytest.param("3", {"tolerations": []}, "untolerated taint", id="the taint of virtual nodes is not tolerated"),
    ],
)
def test_a_pod_that_fits_no_other_lower_is_not_moved(cpu: str, spec: dict[str, Any], why: str) -> None:
    """It needs both a lower node and a virtual node that fit; the reason is in the scheduler's words."""
    world = descheduling_world()
    put_waiting_pods(world, requesting_pod(cpu=cpu, spec=spec))
    found = one_pass(world)
    assert stays(found) == [("web", "NoFeasibleCluster")]
    assert why in found.stays[0].message
    assert not found.moves


@pytest.mark.parametrize("is_on_its_way", [False, True])
def test_room_that_other_pods_use_does_not_count(is_on_its_way: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """Pods of other owners in the lower cluster count, and upper pods that have no lower pod yet."""
    world = descheduling_world(cpus=(("2", "2"), ("4", "2")))
    if is_on_its_way:
        put(world.lowers[B].upper_pods, requesting_pod("arriving", node=B))
    else:
        put_foreign_pods(world, B, foreign_pod("theirs", "lower-b-n1", "2"))
    put_waiting_pods(world, requesting_pod())
    found = one_pass(world)
    assert stays(found) == [("web", "NoFeasibleCluster")]
    assert "0/2 nodes are available: 2 Insufficient cpu" in found.stays[0].message


def test_pods_that_move_in_one_pass_do_not_count_on_the_same_room() -> None:
    """The pod that has waited longest gets the room."""
    world = descheduling_world()
    put_waiting_pods(world, requesting_pod("late"), status=unschedulable_status(200))
    put_waiting_pods(world, requesting_pod("early"), status=unschedulable_status(300))
    found = one_pass(world)
    assert [move.upper.name for move in found.moves] == ["early"]
    assert stays(found) == [("late", "NoFeasibleCluster")]


@pytest.mark.parametrize("mode", ["cordon", "drain"])
def test_no_pod_moves_to_a_lower_under_maintenance(mode: str) -> None:
    """A cordoned or drained lower cluster accepts no new pods."""
    world = descheduling_world(f"name: {A}", f"name: {B}, maintenance: {mode}")
    put_waiting_pods(world, requesting_pod())
    assert stays(one_pass(world)) == [("web", "NoFeasibleCluster")]


@pytest.mark.parametrize("lower", [A, B])
def test_no_pod_moves_from_or_to_an_unreachable_lower(lower: str) -> None:
    """The cached state of an unreachable lower cluster may be outdated."""
    world = descheduling_world()
    put_waiting_pods(world, requesting_pod())
    world.lowers[lower].unreachable_seconds = 60.0
    assert not moves(world)


@pytest.mark.parametrize("cache", ["place_nodes", "place_pods", "pods", "upper_pods"])
def test_no_pod_moves_to_a_lower_with_a_cache_that_is_not_synced(cache: str) -> None:
    """An incomplete cache would show room that does not exist."""
    world = descheduling_world()
    put_waiting_pods(world, requesting_pod())
    getattr(world.lowers[B], cache).mark_stale()
    assert not moves(world)


def test_a_bare_pod_is_moved() -> None:
    """Its move has an empty owner."""
    world = descheduling_world()
    put_waiting_pods(world, requesting_pod(ownerReferences=[]))
    (move,) = one_pass(world).moves
    assert (move.target, move.owner, move.avoided) == (B, "", (A,))


@pytest.mark.parametrize(("minutes", "found"), [(9, []), (10, [("web", A, B)])])
def test_a_bare_pod_returns_to_its_former_node_only_after_the_cooldown(
    minutes: int, found: list[tuple[str, str, str]]
) -> None:
    """The cooldown starts when the replacement is created."""
    world = descheduling_world()
    pod = successor_of(requesting_pod(ownerReferences=[]), (B,))
    made = {"uid": "new", "creationTimestamp": timestamp(NOW - timedelta(minutes=minutes))}
    spec = {**pod["spec"], "nodeName": A}
    put_waiting_pods(world, {**pod, "metadata": {**pod["metadata"], **made}, "spec": spec, "status": {}})
    assert moves(world) == found


@pytest.mark.parametrize("owners", [owned_by("web"), []])
def test_a_pod_with_claims_is_not_moved(owners: list[Any]) -> None:
    """Its data is in the lower cluster where it is."""
    world = descheduling_world()
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    put_waiting_pods(world, requesting_pod(spec={"volumes": volumes}, ownerReferences=owners))
    assert stays(one_pass(world)) == [("web", "UsesPersistentVolumeClaims")]


@pytest.mark.parametrize("lower", [f"name: {A}", f"name: {A}, maintenance: drain"])
def test_a_bare_pod_is_not_moved_without_recreate_bare_pods(lower: str) -> None:
    """The pass does not search for a target."""
    world = descheduling_world(lower, f"name: {B}", more="descheduler: {enabled: true}\n")
    change_as_other_client(world.upper.nodes, A, lambda node: node["spec"].update(unschedulable=True), "")
    put_waiting_pods(world, requesting_pod(ownerReferences=[]))
    assert stays(one_pass(world)) == [("web", "NoController")]


def test_a_static_pod_is_not_moved() -> None:
    """A file on its node creates it, so it cannot run on another node."""
    world = descheduling_world()
    put_waiting_pods(world, requesting_pod(ownerReferences=[], annotations={"kubernetes.io/config.mirror": "x"}))
    assert stays(one_pass(world)) == [("web", "StaticPod")]


def test_no_more_pods_leave_a_node_than_the_topology_allows() -> None:
    """The other pods wait for the next interval."""
    world = descheduling_world(more="descheduler: {enabled: true, maxEvictionsPerNode: 2}\n", cpus=(("2",), ("64",)))
    for place in range(5):
        put_waiting_pods(world, requesting_pod(f"web-{place}"))
    found = one_pass(world)
    assert [move.upper.name for move in found.moves] == ["web-0", "web-1"]
    assert found.waiting == 3


def test_bare_pods_without_a_backup_do_not_count_towards_the_limit() -> None:
    """Their Secrets may be refused indefinitely, which must not delay other pods."""
    world = descheduling_world(cpus=(("2",), ("64",)), more=ON.replace("true,", "true, maxEvictionsPerNode: 2,"))
    for place in range(3):
        put_waiting_pods(
            world, requesting_pod(f"bare-{place}", ownerReferences=[]), status=unschedulable_status(400 - place)
        )
    put_waiting_pods(world, requesting_pod("one"), requesting_pod("two"), requesting_pod("three"))
    assert [name for name, _, _ in moves(world)] == ["bare-0", "bare-1", "bare-2", "one", "three"]
    assert one_pass(world).waiting == 1


def test_pods_that_were_evicted_within_the_interval_count_towards_the_limit() -> None:
    """The records may be from another engine or from before a restart."""
    world = descheduling_world(more="descheduler: {enabled: true, maxEvictionsPerNode: 2}\n", cpus=(("2",), ("64",)))
    put_waiting_pods(world, requesting_pod("web-0"), requesting_pod("web-1"))
    put_eviction_records(world, eviction_record("other", "other", ago=59), eviction_record("older", "older", ago=60))
    assert [pod for pod, *_ in moves(world)] == ["web-0"]


def test_a_recorded_pod_is_not_evicted_again_within_the_interval() -> None:
    """A refused eviction is retried in the next interval, so that each attempt counts."""
    world = descheduling_world()
    put_waiting_pods(world, requesting_pod())
    put_eviction_records(world, eviction_record(ago=59))
    assert one_pass(world) == PassPlan((), (), 0)
    put_eviction_records(world, eviction_record(ago=60))
    assert moves(world) == [("web", A, B)]


def test_a_pod_is_not_moved_to_a_node_that_its_controllers_pods_left_recently() -> None:
    """The node is eligible again after the cooldown."""
    world = descheduling_world()
    put_waiting_pods(world, requesting_pod())
    put_eviction_records(world, eviction_record("before", ago=599), lower=B)
    found = one_pass(world)
    assert stays(found) == [("web", "NoFeasibleCluster")]
    assert "lower-b: a pod of its controller was evicted from it recently" in found.stays[0].message
    put_eviction_records(world, eviction_record("before", ago=600), lower=B)
    assert moves(world) == [("web", A, B)]


def test_records_of_another_controller_do_not_exclude_a_node() -> None:
    """An eviction record applies to one controller."""
    world = descheduling_world()
    put_waiting_pods(world, requesting_pod())
    put_eviction_records(world, eviction_record("before", "somebody", ago=60), lower=B)
    assert moves(world) == [("web", A, B)]


def test_a_move_lists_all_unsuitable_nodes_to_avoid() -> None:
    """The replacement must avoid its former node and each node without room."""
    world = descheduling_world(*THREE, cpus=(("2",), ("2",), ("4",)))
    put_waiting_pods(world, requesting_pod())
    (move,) = one_pass(world).moves
    assert (move.target, move.avoided) == ("lower-c", (A, B))


def test_a_target_of_one_pod_is_not_avoided_by_another_pod() -> None:
    """The upper scheduler chooses between both nodes, so neither replacement avoids a node that fits both."""
    world = descheduling_world(*THREE, cpus=(("2", "2"), ("4",), ("4",)))
    put_waiting_pods(world, requesting_pod("one"), status=unschedulable_status(300))
    put_waiting_pods(world, requesting_pod("other"), status=unschedulable_status(200))
    first, second = one_pass(world).moves
    assert (first.target, first.others, first.avoided) == (B, ("lower-c",), (A,))
    assert (second.target, second.others, second.avoided) == ("lower-c", (B,), (A,))


def underway(world: World, pod: str, lower: str = A) -> None:
    """Add a pod of a lower that was recorded for eviction and is terminating."""
    put_waiting_pods(world, requesting_pod(pod, node=lower, deletionTimestamp="2026-03-01T12:00:00Z"))
    put_eviction_records(world, eviction_record(f"Pod-{pod}", pod, ago=5), lower=lower)


@pytest.mark.parametrize("lower", [A, "lower-c"])
def test_room_is_reserved_for_an_evicted_pod_until_its_replacement_is_bound(lower: str) -> None:
    """The old pod is terminating and its replacement has no node, so no other pod is moved into that room."""
    world = descheduling_world(*THREE, cpus=(("2",), ("4",), ("2",)))
    put_waiting_pods(world, requesting_pod())
    underway(world, "first", lower)
    assert stays(one_pass(world)) == [("web", "NoFeasibleCluster")]


def test_no_room_is_reserved_after_the_replacement_is_bound() -> None:
    """The replacement uses its room itself; a pod that was created before the eviction is no replacement."""
    world = descheduling_world(cpus=(("2",), ("4", "4")))
    put_waiting_pods(world, requesting_pod())
    underway(world, "first")
    replacement = requesting_pod(
        "second", node=B, ownerReferences=owned_by("first"), creationTimestamp="2026-03-01T11:59:56Z"
    )
    put(world.lowers[B].upper_pods, replacement)
    assert moves(world) == [("web", A, B)]
    change_as_other_client(
        world.lowers[B].upper_pods, "second", lambda one: one["metadata"].update(creationTimestamp=EARLIER)
    )
    assert stays(one_pass(world)) == [("web", "NoFeasibleCluster")], "that one was there before"


def test_no_room_is_reserved_for_a_pod_that_was_recorded_long_ago() -> None:
    """After the interval it is not considered to be moving any more."""
    world = descheduling_world(cpus=(("2",), ("4",)))
    put_waiting_pods(world, requesting_pod())
    underway(world, "first")
    put_eviction_records(world, eviction_record("Pod-first", "first", ago=60))
    assert moves(world) == [("web", A, B)]


def test_pods_of_all_lowers_are_ordered_by_their_waiting_time() -> None:
    """One pass covers all lower clusters, so the pod that has waited longest gets the room in lower-c."""
    world = descheduling_world(*THREE, cpus=(("2",), ("2",), ("4",)))
    put_waiting_pods(world, requesting_pod("one"), status=unschedulable_status(200))
    put_waiting_pods(world, requesting_pod("other", node=B), status=unschedulable_status(300))
    assert moves(world) == [("other", B, "lower-c")]


def test_no_replica_moves_if_all_lowers_are_full() -> None:
    """Fifty equal replicas fit in no lower cluster, and each of them is reported."""
    world = descheduling_world()
    for place in range(50):
        put_waiting_pods(world, requesting_pod(f"web-{place}", cpu="5", ownerReferences=owned_by("web")))
    found = one_pass(world)
    assert not found.moves
    assert len(found.stays) == 50


def test_a_pods_anti_affinity_does_not_count_the_pod_itself() -> None:
    """It is the only matching upper pod, so it may move to another node of the same topology domain."""
    world = descheduling_world()
    apart = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "type"}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}
    put_waiting_pods(world, requesting_pod(spec={"affinity": {"podAntiAffinity": required}}, labels={"app": "web"}))
    assert moves(world) == [("web", A, B)]


def test_a_cordoned_lower_node_has_no_room() -> None:
    """The lower scheduler would bind no pod to it."""
    world = descheduling_world()
    put(world.lowers[B].place_nodes, make_lower_node("lower-b-n1", "4", unschedulable=True))
    put_waiting_pods(world, requesting_pod())
    assert stays(one_pass(world)) == [("web", "NoFeasibleCluster")]


def test_a_pod_of_an_excluded_namespace_is_not_moved() -> None:
    """It is not mirrored, even if a lower pod of the same name exists."""
    world = descheduling_world(more=ON + "excludeNamespaces: [default]\n")
    put_waiting_pods(world, requesting_pod())
    assert one_pass(world) == PassPlan((), (), 0)
    assert world.now == NOW
