"""Tests of pods that are moving from one lower cluster to another, and of the room that is reserved for them."""

from typing import Any

import pytest
from deschedulingkit import NOW, ON, A, B, ground, left, noted, owned_by, seeker, wait
from worldkit import changed, decided, drop, put, twin, written

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
    here = ground(*(lowers or LOWERS), more=ON, cpus=(("8",), (room,), ("8",)))
    for lower in here.lowers.values():
        if lower.spec.maintenance == "drain":
            changed(here.upper.nodes, lower.node, lambda node: node["spec"].update(unschedulable=True), "")
    return here


def run(here: World, name: str, lower: str = A, **given: Any) -> None:
    """Add a running pod to a lower; by default a bare one."""
    pod = seeker(name, node=lower, **{"ownerReferences": [], **given})
    put(here.lowers[lower].upper_pods, {**pod, "status": {"phase": "Running"}})


def keep(here: World, name: str, lower: str = A, notes: dict[str, str] | None = None) -> Manifest:
    """Store the backup of a pod, and return the pod in it."""
    pod = here.lowers[lower].upper_pods.get("default", name)
    assert pod is not None
    made = successor_of(pod.manifest(), (lower,))
    secret = backup(made, pod, here.owner, "it moves").manifest
    meta = {**secret["metadata"], "uid": "s", "annotations": {**annotations(secret), **(notes or {})}}
    put(here.upper.secrets, written({**secret, "metadata": meta}))
    return made


def names(here: World) -> list[str]:
    """Return the names of the moving pods."""
    return [one.pod.name for one in in_flight(here)]


def stays(here: World, lower: str = A) -> str:
    """Return the message about the pods that a drained lower keeps."""
    problem = decided(DeschedulerRule(), key_of(lower), here)[1].problem
    return problem.message.removeprefix("pods block the drain: ") if problem else ""


def test_a_moving_pods_room_is_reserved_until_it_is_bound_again() -> None:
    """There is room for one of two pods, so the second one stays in every intermediate state."""
    here = drained()
    run(here, "one")
    run(here, "two")
    made = keep(here, "one")
    moments = [stays(here)]
    run(here, "one", deletionTimestamp=ENDING)
    moments.append(stays(here))
    drop(here.lowers[A].upper_pods, "one")
    moments.append(stays(here))
    new = {**made, "metadata": {**made["metadata"], "uid": "new"}}
    put(here.upper.remade, new)
    moments.append(stays(here))
    drop(here.upper.secrets, "tensile-pod-Pod-one")
    moments.append(stays(here))
    bound = {**new, "spec": {**new["spec"], "nodeName": B}}
    put(here.lowers[B].upper_pods, bound)
    assert names(here) == [], "its virtual node is told on another watch"
    put(here.upper.remade, bound)
    moments.append(stays(here))
    assert [said.partition(":")[0] for said in moments] == ["default/two"] * 6
    drop(here.lowers[B].upper_pods, "one")
    assert stays(here) == ""


def test_two_drained_lowers_do_not_count_on_the_same_room() -> None:
    """One pass covers both, and the preview of a drain counts recorded pods too."""
    here = drained()
    run(here, "one")
    run(here, "two", C)
    assert stays(here) == ""
    assert stays(here, C).startswith("default/two: ")
    keep(here, "one")
    noted(here, left("Pod-one", ""))
    assert stays(here, C).startswith("default/two: ")
    (told,) = drain_preview(here, C)
    assert not told.leaves
    (own,) = drain_preview(here, A)
    assert own.leaves


def test_a_backup_alone_reserves_no_room() -> None:
    """The pod must also be recorded for eviction with a backup that is not withdrawn, or be terminating."""
    here = drained()
    run(here, "one")
    keep(here, "one")
    assert names(here) == []
    noted(here, left("Pod-one", ""))
    assert names(here) == ["one"], "once, though it is noted and backed up"
    keep(here, "one", notes={WITHDRAWN: ENDING})
    assert names(here) == []
    run(here, "one", deletionTimestamp=ENDING)
    assert names(here) == ["one"], "it has begun to leave for it"


def test_pods_with_a_controller_use_room_before_bare_pods() -> None:
    """A drain evicts them regardless of room, and they would use the room of a bare pod."""
    here = drained()
    run(here, "bare")
    run(here, "owned", ownerReferences=owned_by("x"))
    assert stays(here).startswith("default/bare: ")
    drop(here.lowers[A].upper_pods, "owned")
    assert stays(here) == ""


def test_pods_that_do_not_move_reserve_no_room() -> None:
    """These are pods of a DaemonSet, with claims, of a namespace that is not mirrored, and terminated ones."""
    here = drained()
    claims = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    run(here, "agent", ownerReferences=[{**owned_by("agent")[0], "kind": "DaemonSet"}])
    run(here, "stored", ownerReferences=owned_by("stored"), spec={"volumes": claims})
    run(here, "system", ownerReferences=owned_by("system"), namespace="kube-system")
    put(here.lowers[A].upper_pods, {**seeker("done"), "status": {"phase": "Succeeded"}})
    assert names(here) == []


def test_a_terminating_pod_reserves_no_room_after_its_replacement_is_bound() -> None:
    """Its controller creates the replacement at once, which may be bound before the old pod is removed."""
    here = drained(room="7")
    run(here, "old", ownerReferences=owned_by("x"), deletionTimestamp=ENDING, deletionGracePeriodSeconds=30)
    assert names(here) == ["old"]
    come = seeker("come", node=B, ownerReferences=owned_by("x"), creationTimestamp="2026-03-01T11:59:31Z")
    put(here.lowers[B].upper_pods, come)
    assert names(here) == []
    changed(
        here.lowers[B].upper_pods, "come", lambda pod: pod["metadata"].update(creationTimestamp="2026-03-01T11:59:29Z")
    )
    assert names(here) == ["old"], "that one was there before"


def test_the_descheduler_does_not_use_the_room_of_a_backed_up_pod() -> None:
    """The old pod is removed, and only the Secret shows that the new pod will be created."""
    here = ground(cpus=(("2",), ("4",)), now=NOW)
    run(here, "one")
    keep(here, "one")
    drop(here.lowers[A].upper_pods, "one")
    wait(here, seeker("stuck"))
    (stay,) = one_pass(here).stays
    assert stay.reason == "NoFeasibleCluster"
    drop(here.upper.secrets, "tensile-pod-Pod-one")
    assert [move.upper.name for move in one_pass(here).moves] == ["stuck"]


@pytest.mark.parametrize("volumes", [[], [{"name": "d", "persistentVolumeClaim": {"claimName": "d"}}]])
def test_an_arriving_pod_uses_room_with_or_without_claims(volumes: list[Manifest]) -> None:
    """The location of its volume is unknown, but it uses room on one of the nodes."""
    here = ground(cpus=(("2", "2"), ("4", "2")))
    wait(here, seeker("web"))
    coming = seeker("db-0", node=B, cpu="3", spec={"volumes": volumes})
    put(here.lowers[B].upper_pods, coming)
    put(here.lowers[B].pods, twin(coming, {"phase": "Pending"}, node=B))
    assert one_pass(here).moves == ()
