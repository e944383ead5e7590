"""Who leaves a lower cluster because no node there takes it, where it could go, and who stays."""

from datetime import timedelta
from typing import Any

import pytest
from deschedulingkit import NOW, ON, A, B, crowd, ground, left, noted, owned_by, refused, seeker, stranger, wait
from worldkit import changed, lower_node, put

from tensile.objects import timestamp
from tensile.policy.descheduler.plan import PassPlan, one_pass
from tensile.policy.descheduler.replacement import successor_of
from tensile.reconcile.world import World

EARLIER = "2026-03-01T11:50:00Z"
THREE = ("name: lower-a", "name: lower-b", "name: lower-c")


def moves(here: World) -> list[tuple[str, str, str]]:
    """Return the moves as (pod, source, target)."""
    return [(move.upper.name, move.source, move.target) for move in one_pass(here).moves]


def stays(found: PassPlan) -> list[tuple[str, str]]:
    """Return who stays as (pod, reason)."""
    return [(stay.upper.name, stay.reason) for stay in found.stays]


def test_a_pod_moves_to_where_a_single_node_has_room() -> None:
    """Both lowers have enough in sum; the note says which virtual nodes will not do."""
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
        pytest.param(A, refused(), {"deletionTimestamp": "2026-03-01T12:00:00Z"}, id="leaves already"),
        pytest.param(f"{A}, maintenance: drain", refused(), {}, id="leaves with all others of a drain"),
    ],
)
def test_a_pod_that_does_not_wait_for_a_node_is_left_alone(lower: str, status: dict[str, Any], meta: Any) -> None:
    """Only what the lower scheduler has refused for long is moved, and nothing that leaves anyway."""
    here = ground(f"name: {lower}", f"name: {B}")
    wait(here, seeker(**meta), status=status)
    assert one_pass(here) == PassPlan((), (), 0)


def test_a_pod_that_no_scheduler_has_looked_at_moves_too() -> None:
    """It waits since it was made."""
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
def test_what_fits_nowhere_stays(cpu: str, spec: dict[str, Any], why: str) -> None:
    """Both nodes have to take its replacement, the lower and the virtual one; the reasons are the scheduler's own."""
    here = ground()
    wait(here, seeker(cpu=cpu, spec=spec))
    found = one_pass(here)
    assert stays(found) == [("web", "NoFeasibleCluster")]
    assert why in found.stays[0].message
    assert not found.moves


@pytest.mark.parametrize("is_on_its_way", [False, True])
def test_room_that_others_take_is_not_there(is_on_its_way: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """A stranger below takes it, though the pod would be let in above; and so does a pod without its lower pod yet."""
    here = ground(cpus=(("2", "2"), ("4", "2")))
    if is_on_its_way:
        put(here.lowers[B].upper_pods, seeker("arriving", node=B))
    else:
        crowd(here, B, stranger("theirs", "lower-b-n1", "2"))
    wait(here, seeker())
    found = one_pass(here)
    assert stays(found) == [("web", "NoFeasibleCluster")]
    assert "0/2 nodes are available: 2 Insufficient cpu" in found.stays[0].message


def test_those_that_leave_together_do_not_count_on_the_same_room() -> None:
    """The one that waits longest gets it."""
    here = ground()
    wait(here, seeker("late"), status=refused(200))
    wait(here, seeker("early"), status=refused(300))
    found = one_pass(here)
    assert [move.upper.name for move in found.moves] == ["early"]
    assert stays(found) == [("late", "NoFeasibleCluster")]


@pytest.mark.parametrize("mode", ["cordon", "drain"])
def test_nothing_moves_to_a_lower_under_maintenance(mode: str) -> None:
    """It shall take no new pods."""
    here = ground(f"name: {A}", f"name: {B}, maintenance: {mode}")
    wait(here, seeker())
    assert stays(one_pass(here)) == [("web", "NoFeasibleCluster")]


@pytest.mark.parametrize("lower", [A, B])
def test_nothing_moves_from_or_to_a_lower_that_does_not_answer(lower: str) -> None:
    """What is known of it may not be true any more."""
    here = ground()
    wait(here, seeker())
    here.lowers[lower].unreachable_seconds = 60.0
    assert not moves(here)


@pytest.mark.parametrize("cache", ["place_nodes", "place_pods", "pods", "upper_pods"])
def test_nothing_moves_to_a_lower_that_is_not_wholly_known(cache: str) -> None:
    """Half a picture shows room that is not there."""
    here = ground()
    wait(here, seeker())
    getattr(here.lowers[B], cache).mark_stale()
    assert not moves(here)


def test_a_pod_without_a_controller_moves_too() -> None:
    """It is told apart by having no owner."""
    here = ground()
    wait(here, seeker(ownerReferences=[]))
    (move,) = one_pass(here).moves
    assert (move.target, move.owner, move.avoided) == (B, "", (A,))


@pytest.mark.parametrize(("minutes", "found"), [(9, []), (10, [("web", A, B)])])
def test_a_pod_without_a_controller_goes_back_once_the_cooldown_is_over(
    minutes: int, found: list[tuple[str, str, str]]
) -> None:
    """It was kept off the node that it left; that it was made then is when."""
    here = ground()
    pod = successor_of(seeker(ownerReferences=[]), (B,))
    made = {"uid": "new", "creationTimestamp": timestamp(NOW - timedelta(minutes=minutes))}
    spec = {**pod["spec"], "nodeName": A}
    wait(here, {**pod, "metadata": {**pod["metadata"], **made}, "spec": spec, "status": {}})
    assert moves(here) == found


@pytest.mark.parametrize("owners", [owned_by("web"), []])
def test_a_pod_with_claims_stays(owners: list[Any]) -> None:
    """What it has stored is in the cluster where it is."""
    here = ground()
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    wait(here, seeker(spec={"volumes": volumes}, ownerReferences=owners))
    assert stays(one_pass(here)) == [("web", "UsesPersistentVolumeClaims")]


@pytest.mark.parametrize("lower", [f"name: {A}", f"name: {A}, maintenance: drain"])
def test_a_pod_without_a_controller_stays_unless_the_topology_has_it_recreated(lower: str) -> None:
    """It is not even looked for a place."""
    here = ground(lower, f"name: {B}", more="descheduler: {enabled: true}\n")
    changed(here.upper.nodes, A, lambda node: node["spec"].update(unschedulable=True), "")
    wait(here, seeker(ownerReferences=[]))
    assert stays(one_pass(here)) == [("web", "NoController")]


def test_a_static_pod_stays() -> None:
    """A file makes it, where it is."""
    here = ground()
    wait(here, seeker(ownerReferences=[], annotations={"kubernetes.io/config.mirror": "x"}))
    assert stays(one_pass(here)) == [("web", "StaticPod")]


def test_no_more_leave_a_node_than_the_topology_allows() -> None:
    """The rest waits for the next interval."""
    here = ground(more="descheduler: {enabled: true, maxEvictionsPerNode: 2}\n", cpus=(("2",), ("64",)))
    for place in range(5):
        wait(here, seeker(f"web-{place}"))
    found = one_pass(here)
    assert [move.upper.name for move in found.moves] == ["web-0", "web-1"]
    assert found.waiting == 3


def test_those_that_are_to_be_kept_take_nobody_elses_turn() -> None:
    """Something may refuse their Secrets for ever."""
    here = ground(cpus=(("2",), ("64",)), more=ON.replace("true,", "true, maxEvictionsPerNode: 2,"))
    for place in range(3):
        wait(here, seeker(f"bare-{place}", ownerReferences=[]), status=refused(400 - place))
    wait(here, seeker("one"), seeker("two"), seeker("three"))
    assert [name for name, _, _ in moves(here)] == ["bare-0", "bare-1", "bare-2", "one", "three"]
    assert one_pass(here).waiting == 1


def test_who_left_within_the_interval_counts() -> None:
    """Also where another engine, or this one before it was started again, has noted it."""
    here = ground(more="descheduler: {enabled: true, maxEvictionsPerNode: 2}\n", cpus=(("2",), ("64",)))
    wait(here, seeker("web-0"), seeker("web-1"))
    noted(here, left("other", "other", ago=59), left("older", "older", ago=60))
    assert [pod for pod, *_ in moves(here)] == ["web-0"]


def test_who_was_told_to_go_is_not_told_again_within_the_interval() -> None:
    """An eviction that was refused is tried again by the next interval, so that it counts each time."""
    here = ground()
    wait(here, seeker())
    noted(here, left(ago=59))
    assert one_pass(here) == PassPlan((), (), 0)
    noted(here, left(ago=60))
    assert moves(here) == [("web", A, B)]


def test_a_pod_does_not_go_back_where_its_owner_left_lately() -> None:
    """Once the cooldown is over it may."""
    here = ground()
    wait(here, seeker())
    noted(here, left("before", ago=599), lower=B)
    found = one_pass(here)
    assert stays(found) == [("web", "NoFeasibleCluster")]
    assert "lower-b: a pod of its controller was evicted from it recently" in found.stays[0].message
    noted(here, left("before", ago=600), lower=B)
    assert moves(here) == [("web", A, B)]


def test_another_owner_is_not_kept_off() -> None:
    """What was tried was tried for one controller."""
    here = ground()
    wait(here, seeker())
    noted(here, left("before", "somebody", ago=60), lower=B)
    assert moves(here) == [("web", A, B)]


def test_those_that_will_not_do_are_told_apart_from_the_one_that_will() -> None:
    """The replacement is to be kept off both."""
    here = ground(*THREE, cpus=(("2",), ("2",), ("4",)))
    wait(here, seeker())
    (move,) = one_pass(here).moves
    assert (move.target, move.avoided) == ("lower-c", (A, B))


def test_room_that_is_counted_on_for_one_is_not_barred_to_the_other() -> None:
    """Where each goes is the upper scheduler's choice, so neither replacement is kept off what will do for both."""
    here = ground(*THREE, cpus=(("2", "2"), ("4",), ("4",)))
    wait(here, seeker("one"), status=refused(300))
    wait(here, seeker("other"), status=refused(200))
    first, second = one_pass(here).moves
    assert (first.target, first.others, first.avoided) == (B, ("lower-c",), (A,))
    assert (second.target, second.others, second.avoided) == ("lower-c", (B,), (A,))


def underway(here: World, pod: str, lower: str = A) -> None:
    """Let a pod of a lower have been told to leave, and be on its way out."""
    wait(here, seeker(pod, node=lower, deletionTimestamp="2026-03-01T12:00:00Z"))
    noted(here, left(f"Pod-{pod}", pod, ago=5), lower=lower)


@pytest.mark.parametrize("lower", [A, "lower-c"])
def test_room_is_kept_for_those_that_have_left_and_are_not_there_yet(lower: str) -> None:
    """The old pod is ending, its replacement has no node yet: nobody else is sent there."""
    here = ground(*THREE, cpus=(("2",), ("4",), ("2",)))
    wait(here, seeker())
    underway(here, "first", lower)
    assert stays(one_pass(here)) == [("web", "NoFeasibleCluster")]


def test_one_whose_replacement_has_come_keeps_no_room() -> None:
    """It has taken it itself: what is left is for others."""
    here = ground(cpus=(("2",), ("4", "4")))
    wait(here, seeker())
    underway(here, "first")
    come = seeker("second", node=B, ownerReferences=owned_by("first"), creationTimestamp="2026-03-01T11:59:56Z")
    put(here.lowers[B].upper_pods, come)
    assert moves(here) == [("web", A, B)]
    changed(here.lowers[B].upper_pods, "second", lambda one: one["metadata"].update(creationTimestamp=EARLIER))
    assert stays(one_pass(here)) == [("web", "NoFeasibleCluster")], "that one was there before"


def test_one_that_was_told_long_ago_keeps_no_room() -> None:
    """Whatever became of it, it is not on its way any more."""
    here = ground(cpus=(("2",), ("4",)))
    wait(here, seeker())
    underway(here, "first")
    noted(here, left("Pod-first", "first", ago=60))
    assert moves(here) == [("web", A, B)]


def test_pods_of_several_lowers_are_looked_at_in_one_order() -> None:
    """One plan for all: room in lower-c goes to the one that waits longest, wherever it is."""
    here = ground(*THREE, cpus=(("2",), ("2",), ("4",)))
    wait(here, seeker("one"), status=refused(200))
    wait(here, seeker("other", node=B), status=refused(300))
    assert moves(here) == [("other", B, "lower-c")]


def test_a_full_world_is_looked_at_once_for_all_that_are_alike() -> None:
    """Five hundred replicas that fit nowhere move nobody, and are all told of."""
    here = ground()
    for place in range(50):
        wait(here, seeker(f"web-{place}", cpu="5", ownerReferences=owned_by("web")))
    found = one_pass(here)
    assert not found.moves
    assert len(found.stays) == 50


def test_an_own_rule_against_company_does_not_count_the_pod_itself() -> None:
    """It is alone above, so its anti-affinity across zones lets it go to another node of its zone."""
    here = ground()
    apart = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "type"}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}
    wait(here, seeker(spec={"affinity": {"podAntiAffinity": required}}, labels={"app": "web"}))
    assert moves(here) == [("web", A, B)]


def test_a_cordoned_real_node_takes_nothing() -> None:
    """As the lower scheduler would have it."""
    here = ground()
    put(here.lowers[B].place_nodes, lower_node("lower-b-n1", "4", unschedulable=True))
    wait(here, seeker())
    assert stays(one_pass(here)) == [("web", "NoFeasibleCluster")]


def test_a_pod_of_an_excluded_namespace_is_left_alone() -> None:
    """It is not mirrored, whatever stands below in its name."""
    here = ground(more=ON + "excludeNamespaces: [default]\n")
    wait(here, seeker())
    assert one_pass(here) == PassPlan((), (), 0)
    assert here.now == NOW
