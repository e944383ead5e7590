"""Tests of pods that are moving from one lower cluster to another, and of the room that is reserved for them."""

from typing import Any

import pytest
from deschedulingkit import (
    NOW,
    ON,
    A,
    B,
    descheduling_world,
    eviction_record,
    owned_by,
    put_eviction_records,
    put_waiting_pods,
    requesting_pod,
)
from worldkit import (
    change_as_other_client,
    decision_and_plan,
    delete_observed,
    make_lower_pod,
    put,
    with_managed_fields,
)

from tensile.names import WITHDRAWN
from tensile.objects import Manifest, annotations
from tensile.policy.descheduler.moves import drain_preview, one_pass
from tensile.policy.descheduler.replacement import backup, successor_of
from tensile.policy.descheduler.rule import DeschedulerRule, key_of
from tensile.policy.descheduler.targets import in_flight
from tensile.reconcile.world import World

C = "lower-c"
ENDING = "2026-03-01T12:00:00Z"
BEFORE = "2026-03-01T11:59:29Z"
LOWERS = (f"name: {A}, maintenance: drain", f"name: {B}", f"name: {C}, maintenance: drain")


def drained(*lowers: str, room: str = "4") -> World:
    """Return a world in which lower-a and lower-c are drained and lower-b has one node."""
    world = descheduling_world(*(lowers or LOWERS), more=ON, cpus=(("8",), (room,), ("8",)))
    for lower in world.lowers.values():
        if lower.spec.maintenance == "drain":
            change_as_other_client(
                world.upper.nodes, lower.node, lambda node: node["spec"].update(unschedulable=True), ""
            )
    return world


def run(world: World, name: str, lower: str = A, **given: Any) -> None:
    """Add a running pod to a lower; by default a bare one."""
    pod = requesting_pod(name, node=lower, **{"ownerReferences": [], **given})
    put(world.lowers[lower].upper_pods, {**pod, "status": {"phase": "Running"}})


def keep(world: World, name: str, lower: str = A, notes: dict[str, str] | None = None) -> Manifest:
    """Store the backup of a pod, and return the pod in it."""
    pod = world.lowers[lower].upper_pods.get("default", name)
    assert pod is not None
    made = successor_of(pod.manifest(), (lower,))
    secret = backup(made, pod, world.owner, "it moves").manifest
    meta = {**secret["metadata"], "uid": "s", "annotations": {**annotations(secret), **(notes or {})}}
    put(world.upper.secrets, with_managed_fields({**secret, "metadata": meta}))
    return made


def names(world: World) -> list[str]:
    """Return the names of the moving pods."""
    return [one.pod.name for one in in_flight(world)]


def stays(world: World, lower: str = A) -> str:
    """Return the message about the pods that a drained lower keeps."""
    problem = decision_and_plan(DeschedulerRule(), key_of(lower), world)[1].problem
    return problem.message.removeprefix("pods block the drain: ") if problem else ""


def test_a_moving_pods_room_is_reserved_until_it_is_bound_again() -> None:
    """There is room for one of two pods, so the second one stays in every intermediate state."""
    world = drained()
    run(world, "one")
    run(world, "two")
    made = keep(world, "one")
    moments = [stays(world)]
    run(world, "one", deletionTimestamp=ENDING)
    moments.append(stays(world))
    delete_observed(world.lowers[A].upper_pods, "one")
    moments.append(stays(world))
    new = {**made, "metadata": {**made["metadata"], "uid": "new"}}
    put(world.upper.remade, new)
    moments.append(stays(world))
    delete_observed(world.upper.secrets, "tensile-pod-Pod-one")
    moments.append(stays(world))
    bound = {**new, "spec": {**new["spec"], "nodeName": B}}
    put(world.lowers[B].upper_pods, bound)
    assert names(world) == [], "its virtual node is told on another watch"
    put(world.upper.remade, bound)
    moments.append(stays(world))
    assert [moment.partition(":")[0] for moment in moments] == ["default/two"] * 6
    delete_observed(world.lowers[B].upper_pods, "one")
    assert stays(world) == ""


def test_two_drained_lowers_do_not_count_on_the_same_room() -> None:
    """One pass covers both, and the preview of a drain counts recorded pods too."""
    world = drained()
    run(world, "one")
    run(world, "two", C)
    assert stays(world) == ""
    assert stays(world, C).startswith("default/two: ")
    keep(world, "one")
    put_eviction_records(world, eviction_record("Pod-one", ""))
    assert stays(world, C).startswith("default/two: ")
    (eviction,) = drain_preview(world, C)
    assert not eviction.leaves
    (own,) = drain_preview(world, A)
    assert own.leaves


def test_a_backup_alone_reserves_no_room() -> None:
    """The pod must also be recorded for eviction with a backup that is not withdrawn, or be terminating."""
    world = drained()
    run(world, "one")
    keep(world, "one")
    assert names(world) == []
    put_eviction_records(world, eviction_record("Pod-one", ""))
    assert names(world) == ["one"], "once, though it is noted and backed up"
    keep(world, "one", notes={WITHDRAWN: ENDING})
    assert names(world) == []
    run(world, "one", deletionTimestamp=ENDING)
    assert names(world) == ["one"], "it has begun to leave for it"


def test_pods_with_a_controller_use_room_before_bare_pods() -> None:
    """A drain evicts them regardless of room, and they would use the room of a bare pod."""
    world = drained()
    run(world, "bare")
    run(world, "owned", ownerReferences=owned_by("x"))
    assert stays(world).startswith("default/bare: ")
    delete_observed(world.lowers[A].upper_pods, "owned")
    assert stays(world) == ""


def test_pods_that_do_not_move_reserve_no_room() -> None:
    """These are pods of a DaemonSet, with claims, of a namespace that is not mirrored, and terminated ones."""
    world = drained()
    claims = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    run(world, "agent", ownerReferences=[{**owned_by("agent")[0], "kind": "DaemonSet"}])
    run(world, "stored", ownerReferences=owned_by("stored"), spec={"volumes": claims})
    run(world, "system", ownerReferences=owned_by("system"), namespace="kube-system")
    put(world.lowers[A].upper_pods, {**requesting_pod("done"), "status": {"phase": "Succeeded"}})
    assert names(world) == []


def test_a_terminating_pod_reserves_no_room_after_its_replacement_is_bound() -> None:
    """Its controller creates the replacement at once, which may be bound before the old pod is removed."""
    world = drained(room="7")
    run(world, "old", ownerReferences=owned_by("x"), deletionTimestamp=ENDING, deletionGracePeriodSeconds=30)
    assert names(world) == ["old"]
    replacement = requesting_pod(
        "come", node=B, ownerReferences=owned_by("x"), creationTimestamp="2026-03-01T11:59:31Z"
    )
    put(world.lowers[B].upper_pods, replacement)
    assert names(world) == []
    change_as_other_client(
        world.lowers[B].upper_pods, "come", lambda pod: pod["metadata"].update(creationTimestamp="2026-03-01T11:59:29Z")
    )
    assert names(world) == ["old"], "that one was there before"


def test_the_descheduler_does_not_use_the_room_of_a_backed_up_pod() -> None:
    """The old pod is removed, and only the Secret shows that the new pod will be created."""
    world = descheduling_world(cpus=(("2",), ("4",)), now=NOW)
    run(world, "one")
    keep(world, "one")
    delete_observed(world.lowers[A].upper_pods, "one")
    put_waiting_pods(world, requesting_pod("stuck"))
    (stay,) = one_pass(world).stays
    assert stay.reason == "NoFeasibleCluster"
    delete_observed(world.upper.secrets, "tensile-pod-Pod-one")
    assert [move.upper.name for move in one_pass(world).moves] == ["stuck"]


@pytest.mark.parametrize("volumes", [[], [{"name": "d", "persistentVolumeClaim": {"claimName": "d"}}]])
def test_an_arriving_pod_uses_room_with_or_without_claims(volumes: list[Manifest]) -> None:
    """The location of its volume is unknown, but it uses room on one of the nodes."""
    world = descheduling_world(cpus=(("2", "2"), ("4", "2")))
    put_waiting_pods(world, requesting_pod("web"))
    coming = requesting_pod("db-0", node=B, cpu="3", spec={"volumes": volumes})
    put(world.lowers[B].upper_pods, coming)
    put(world.lowers[B].pods, make_lower_pod(coming, {"phase": "Pending"}, node=B))
    assert one_pass(world).moves == ()
