"""Tests of one pass of the descheduler: which pods leave a full lower cluster, their targets, and which pods stay."""

from datetime import timedelta
from typing import Any

import pytest
from deschedulingkit import NOW, ON, A, B, crowd, ground, left, noted, owned_by, refused, seeker, stranger, wait
from worldkit import changed, lower_node, put

from tensile.objects import timestamp
from tensile.policy.descheduler.moves import PassPlan, one_pass
from tensile.policy.descheduler.replacement import successor_of
from tensile.reconcile.world import World

EARLIER = "2026-03-01T11:50:00Z"
THREE = ("name: lower-a", "name: lower-b", "name: lower-c")


def moves(here: World) -> list[tuple[str, str, str]]:
    """Return the moves as (pod, source, target)."""
    return [(move.upper.name, move.source, move.target) for move in one_pass(here).moves]


def stays(found: PassPlan) -> list[tuple[str, str]]:
    """Return the pods that stay as (pod, reason)."""
    return [(stay.upper.name, stay.reason) for stay in found.stays]


def test_a_pod_moves_to_a_lower_with_a_single_node_with_room() -> None:
    """Both lower clusters have enough capacity in total; the move has the virtual nodes that are unsuitable."""
    here = ground()
    wait(here, seeker())
    (move,) = one_pass(here).moves
    assert (move.source, move.target, move.node, move.owner, move.avoided) == (A, B, "lower-b-n1", "web", (A,))


@pytest.mark.parametrize(
    ("lower", "status", "meta"),
    [
        pytest.param(A, refused(119), {}, id="not for long enough"),
        pytest.param(A, refused(reason="SchedulingGated"), {}, id="gated"),
        pytest.param(A, {"conditions": [{"type": "PodScheduled", "status": "True"}]}, {}, id="scheduled"),
        pytest.param(A, {"phase": "Running"}, {}, id="running"),
        pytest.param(A, refused(), {"deletionTimestamp": "2026-03-01T12:00:00Z"}, id="terminating"),
        pytest.param(f"{A}, maintenance: drain", refused(), {}, id="evicted by a drain"),
    ],
)
def test_a_pod_that_does_not_wait_for_a_node_is_not_moved(lower: str, status: dict[str, Any], meta: Any) -> None:
    """Only pods that are unschedulable for long enough are moved, and none that is deleted anyway."""
    here = ground(f"name: {lower}", f"name: {B}")
    wait(here, seeker(**meta), status=status)
    assert one_pass(here) == PassPlan((), (), 0)


def test_a_pod_that_no_scheduler_processed_is_moved() -> None:
    """Its wait counts from its creation."""
    here = ground()
    pod = seeker()
    wait(here, pod, status={"conditions": []})
    assert not moves(here)
    changed(here.lowers[A].pods, "web", lambda one: one["metadata"].update(creationTimestamp="2026-03-01T11:50:00Z"))
    assert moves(here) == [("web", A, B)]


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
    here = ground()
    wait(here, seeker(cpu=cpu, spec=spec))
    found = one_pass(here)
    assert stays(found) == [("web", "NoFeasibleCluster")]
    assert why in found.stays[0].message
    assert not found.moves


@pytest.mark.parametrize("is_on_its_way", [False, True])
def test_room_that_other_pods_use_does_not_count(is_on_its_way: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """Pods of other owners in the lower cluster count, and upper pods that have no lower pod yet."""
    here = ground(cpus=(("2", "2"), ("4", "2")))
    if is_on_its_way:
        put(here.lowers[B].upper_pods, seeker("arriving", node=B))
    else:
        crowd(here, B, stranger("theirs", "lower-b-n1", "2"))
    wait(here, seeker())
    found = one_pass(here)
    assert stays(found) == [("web", "NoFeasibleCluster")]
    assert "0/2 nodes are available: 2 Insufficient cpu" in found.stays[0].message


def test_pods_that_move_in_one_pass_do_not_count_on_the_same_room() -> None:
    """The pod that has waited longest gets the room."""
    here = ground()
    wait(here, seeker("late"), status=refused(200))
    wait(here, seeker("early"), status=refused(300))
    found = one_pass(here)
    assert [move.upper.name for move in found.moves] == ["early"]
    assert stays(found) == [("late", "NoFeasibleCluster")]


@pytest.mark.parametrize("mode", ["cordon", "drain"])
def test_no_pod_moves_to_a_lower_under_maintenance(mode: str) -> None:
    """A cordoned or drained lower cluster accepts no new pods."""
    here = ground(f"name: {A}", f"name: {B}, maintenance: {mode}")
    wait(here, seeker())
    assert stays(one_pass(here)) == [("web", "NoFeasibleCluster")]


@pytest.mark.parametrize("lower", [A, B])
def test_no_pod_moves_from_or_to_an_unreachable_lower(lower: str) -> None:
    """The cached state of an unreachable lower cluster may be outdated."""
    here = ground()
    wait(here, seeker())
    here.lowers[lower].unreachable_seconds = 60.0
    assert not moves(here)


@pytest.mark.parametrize("cache", ["place_nodes", "place_pods", "pods", "upper_pods"])
def test_no_pod_moves_to_a_lower_with_a_cache_that_is_not_synced(cache: str) -> None:
    """An incomplete cache would show room that does not exist."""
    here = ground()
    wait(here, seeker())
    getattr(here.lowers[B], cache).mark_stale()
    assert not moves(here)


def test_a_bare_pod_is_moved() -> None:
    """Its move has an empty owner."""
    here = ground()
    wait(here, seeker(ownerReferences=[]))
    (move,) = one_pass(here).moves
    assert (move.target, move.owner, move.avoided) == (B, "", (A,))


@pytest.mark.parametrize(("minutes", "found"), [(9, []), (10, [("web", A, B)])])
def test_a_bare_pod_returns_to_its_former_node_only_after_the_cooldown(
    minutes: int, found: list[tuple[str, str, str]]
) -> None:
    """The cooldown starts when the replacement is created."""
    here = ground()
    pod = successor_of(seeker(ownerReferences=[]), (B,))
    made = {"uid": "new", "creationTimestamp": timestamp(NOW - timedelta(minutes=minutes))}
    spec = {**pod["spec"], "nodeName": A}
    wait(here, {**pod, "metadata": {**pod["metadata"], **made}, "spec": spec, "status": {}})
    assert moves(here) == found


@pytest.mark.parametrize("owners", [owned_by("web"), []])
def test_a_pod_with_claims_is_not_moved(owners: list[Any]) -> None:
    """Its data is in the lower cluster where it is."""
    here = ground()
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    wait(here, seeker(spec={"volumes": volumes}, ownerReferences=owners))
    assert stays(one_pass(here)) == [("web", "UsesPersistentVolumeClaims")]


@pytest.mark.parametrize("lower", [f"name: {A}", f"name: {A}, maintenance: drain"])
def test_a_bare_pod_is_not_moved_without_recreate_bare_pods(lower: str) -> None:
    """The pass does not search for a target."""
    here = ground(lower, f"name: {B}", more="descheduler: {enabled: true}\n")
    changed(here.upper.nodes, A, lambda node: node["spec"].update(unschedulable=True), "")
    wait(here, seeker(ownerReferences=[]))
    assert stays(one_pass(here)) == [("web", "NoController")]


def test_a_static_pod_is_not_moved() -> None:
    """A file on its node creates it, so it cannot run on another node."""
    here = ground()
    wait(here, seeker(ownerReferences=[], annotations={"kubernetes.io/config.mirror": "x"}))
    assert stays(one_pass(here)) == [("web", "StaticPod")]


def test_no_more_pods_leave_a_node_than_the_topology_allows() -> None:
    """The other pods wait for the next interval."""
    here = ground(more="descheduler: {enabled: true, maxEvictionsPerNode: 2}\n", cpus=(("2",), ("64",)))
    for place in range(5):
        wait(here, seeker(f"web-{place}"))
    found = one_pass(here)
    assert [move.upper.name for move in found.moves] == ["web-0", "web-1"]
    assert found.waiting == 3


def test_bare_pods_without_a_backup_do_not_count_towards_the_limit() -> None:
    """Their Secrets may be refused indefinitely, which must not delay other pods."""
    here = ground(cpus=(("2",), ("64",)), more=ON.replace("true,", "true, maxEvictionsPerNode: 2,"))
    for place in range(3):
        wait(here, seeker(f"bare-{place}", ownerReferences=[]), status=refused(400 - place))
    wait(here, seeker("one"), seeker("two"), seeker("three"))
    assert [name for name, _, _ in moves(here)] == ["bare-0", "bare-1", "bare-2", "one", "three"]
    assert one_pass(here).waiting == 1


def test_pods_that_were_evicted_within_the_interval_count_towards_the_limit() -> None:
    """The records may be from another engine or from before a restart."""
    here = ground(more="descheduler: {enabled: true, maxEvictionsPerNode: 2}\n", cpus=(("2",), ("64",)))
    wait(here, seeker("web-0"), seeker("web-1"))
    noted(here, left("other", "other", ago=59), left("older", "older", ago=60))
    assert [pod for pod, *_ in moves(here)] == ["web-0"]


def test_a_recorded_pod_is_not_evicted_again_within_the_interval() -> None:
    """A refused eviction is retried in the next interval, so that each attempt counts."""
    here = ground()
    wait(here, seeker())
    noted(here, left(ago=59))
    assert one_pass(here) == PassPlan((), (), 0)
    noted(here, left(ago=60))
    assert moves(here) == [("web", A, B)]


def test_a_pod_is_not_moved_to_a_node_that_its_controllers_pods_left_recently() -> None:
    """The node is eligible again after the cooldown."""
    here = ground()
    wait(here, seeker())
    noted(here, left("before", ago=599), lower=B)
    found = one_pass(here)
    assert stays(found) == [("web", "NoFeasibleCluster")]
    assert "lower-b: a pod of its controller was evicted from it recently" in found.stays[0].message
    noted(here, left("before", ago=600), lower=B)
    assert moves(here) == [("web", A, B)]


def test_records_of_another_controller_do_not_exclude_a_node() -> None:
    """An eviction record applies to one controller."""
    here = ground()
    wait(here, seeker())
    noted(here, left("before", "somebody", ago=60), lower=B)
    assert moves(here) == [("web", A, B)]


def test_a_move_lists_all_unsuitable_nodes_to_avoid() -> None:
    """The replacement must avoid its former node and each node without room."""
    here = ground(*THREE, cpus=(("2",), ("2",), ("4",)))
    wait(here, seeker())
    (move,) = one_pass(here).moves
    assert (move.target, move.avoided) == ("lower-c", (A, B))


def test_a_target_of_one_pod_is_not_avoided_by_another_pod() -> None:
    """The upper scheduler chooses between both nodes, so neither replacement avoids a node that fits both."""
    here = ground(*THREE, cpus=(("2", "2"), ("4",), ("4",)))
    wait(here, seeker("one"), status=refused(300))
    wait(here, seeker("other"), status=refused(200))
    first, second = one_pass(here).moves
    assert (first.target, first.others, first.avoided) == (B, ("lower-c",), (A,))
    assert (second.target, second.others, second.avoided) == ("lower-c", (B,), (A,))


def underway(here: World, pod: str, lower: str = A) -> None:
    """Add a pod of a lower that was recorded for eviction and is terminating."""
    wait(here, seeker(pod, node=lower, deletionTimestamp="2026-03-01T12:00:00Z"))
    noted(here, left(f"Pod-{pod}", pod, ago=5), lower=lower)


@pytest.mark.parametrize("lower", [A, "lower-c"])
def test_room_is_reserved_for_an_evicted_pod_until_its_replacement_is_bound(lower: str) -> None:
    """The old pod is terminating and its replacement has no node, so no other pod is moved into that room."""
    here = ground(*THREE, cpus=(("2",), ("4",), ("2",)))
    wait(here, seeker())
    underway(here, "first", lower)
    assert stays(one_pass(here)) == [("web", "NoFeasibleCluster")]


def test_no_room_is_reserved_after_the_replacement_is_bound() -> None:
    """The replacement uses its room itself; a pod that was created before the eviction is no replacement."""
    here = ground(cpus=(("2",), ("4", "4")))
    wait(here, seeker())
    underway(here, "first")
    come = seeker("second", node=B, ownerReferences=owned_by("first"), creationTimestamp="2026-03-01T11:59:56Z")
    put(here.lowers[B].upper_pods, come)
    assert moves(here) == [("web", A, B)]
    changed(here.lowers[B].upper_pods, "second", lambda one: one["metadata"].update(creationTimestamp=EARLIER))
    assert stays(one_pass(here)) == [("web", "NoFeasibleCluster")], "that one was there before"


def test_no_room_is_reserved_for_a_pod_that_was_recorded_long_ago() -> None:
    """After the interval it is not considered to be moving any more."""
    here = ground(cpus=(("2",), ("4",)))
    wait(here, seeker())
    underway(here, "first")
    noted(here, left("Pod-first", "first", ago=60))
    assert moves(here) == [("web", A, B)]


def test_pods_of_all_lowers_are_ordered_by_their_waiting_time() -> None:
    """One pass covers all lower clusters, so the pod that has waited longest gets the room in lower-c."""
    here = ground(*THREE, cpus=(("2",), ("2",), ("4",)))
    wait(here, seeker("one"), status=refused(200))
    wait(here, seeker("other", node=B), status=refused(300))
    assert moves(here) == [("other", B, "lower-c")]


def test_no_replica_moves_if_all_lowers_are_full() -> None:
    """Fifty equal replicas fit in no lower cluster, and each of them is reported."""
    here = ground()
    for place in range(50):
        wait(here, seeker(f"web-{place}", cpu="5", ownerReferences=owned_by("web")))
    found = one_pass(here)
    assert not found.moves
    assert len(found.stays) == 50


def test_a_pods_anti_affinity_does_not_count_the_pod_itself() -> None:
    """It is the only matching upper pod, so it may move to another node of the same topology domain."""
    here = ground()
    apart = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "type"}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}
    wait(here, seeker(spec={"affinity": {"podAntiAffinity": required}}, labels={"app": "web"}))
    assert moves(here) == [("web", A, B)]


def test_a_cordoned_lower_node_has_no_room() -> None:
    """The lower scheduler would bind no pod to it."""
    here = ground()
    put(here.lowers[B].place_nodes, lower_node("lower-b-n1", "4", unschedulable=True))
    wait(here, seeker())
    assert stays(one_pass(here)) == [("web", "NoFeasibleCluster")]


def test_a_pod_of_an_excluded_namespace_is_not_moved() -> None:
    """It is not mirrored, even if a lower pod of the same name exists."""
    here = ground(more=ON + "excludeNamespaces: [default]\n")
    wait(here, seeker())
    assert one_pass(here) == PassPlan((), (), 0)
    assert here.now == NOW
