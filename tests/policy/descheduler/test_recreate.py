"""Tests of the rule that creates a backed-up pod again: its decision in each state."""

from datetime import timedelta
from typing import Any

import pytest
from deschedulingkit import NOW, ON, A, B, descheduling_world, requesting_pod, unschedulable_status
from worldkit import (
    apply_topology,
    decision_and_plan,
    delete_observed,
    make_lower_pod,
    put,
    relist_without,
    with_managed_fields,
)

from tensile.names import REPLACES, WITHDRAWN
from tensile.objects import EVENT, POD, UPPER, Manifest, Ref, timestamp
from tensile.policy.descheduler.recreate import RecreateRule
from tensile.policy.descheduler.replacement import BACKUP, backup, backup_ref, successor_of
from tensile.reconcile.desired import Decision
from tensile.reconcile.plan import Plan, Step
from tensile.reconcile.world import REMAKING, Key, Problem, World
from tensile.topology import Topology

SAFE = backup_ref("default", "Pod-web")
KEY = Key(REMAKING, A, "default", SAFE.name)
ABOVE = Ref(UPPER, POD, "default", "web")
ENDING = "2026-03-01T12:00:00Z"
EVICTED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}


def bare(status: Manifest | None = None, **meta: Any) -> Manifest:
    """Create a bare pod on lower-a."""
    return {**requesting_pod(ownerReferences=[], **meta), "status": {"phase": "Pending", **(status or {})}}


def keeping(world: World, notes: dict[str, str] | None = None, **fields: Any) -> World:
    """Store a backup Secret of the pod with these annotations."""
    pod = put(world.lowers[A].upper_pods, bare())
    wanted = backup(successor_of(bare(), (A,)), pod, world.owner, "it moves").manifest
    meta = {**wanted["metadata"], "uid": "secret"}
    meta["annotations"] = {**meta["annotations"], **(notes or {})}
    put(world.upper.secrets, with_managed_fields({**wanted, "metadata": meta, **fields}))
    return world


def stuck(notes: dict[str, str] | None = None) -> World:
    """Return a world in which the pod is backed up and waits in lower-a for a node."""
    world = keeping(descheduling_world(), notes)
    put(world.lowers[A].pods, make_lower_pod(bare(), unschedulable_status()))
    return world


def left(notes: dict[str, str] | None = None, **fields: Any) -> World:
    """Return a world in which the backed-up pod is deleted."""
    world = keeping(descheduling_world(), notes, **fields)
    delete_observed(world.lowers[A].upper_pods, "web")
    return world


def steps(world: World) -> list[Step]:
    """Return the steps of the rule."""
    return list(decision_and_plan(RecreateRule(), KEY, world)[1].steps)


def problem(world: World) -> Problem | None:
    """Return the problem that the rule reports."""
    return decision_and_plan(RecreateRule(), KEY, world)[1].problem


def made(world: World, replaces: str = "Pod-web", uid: str = "new") -> None:
    """Store a pod of the same name that a descheduler created."""
    put(world.upper.remade, bare(uid=uid, annotations={REPLACES: replaces}))


def is_let_go(step: Step) -> bool:
    """Report whether a step deletes the Secret with its UID and its version as preconditions."""
    return (step.verb, step.ref, step.uid, bool(step.version)) == ("delete", SAFE, "secret", True)


@pytest.mark.parametrize("phase", ["Pending", "Running", "Succeeded", "Failed"])
def test_an_evicted_pod_is_not_created_again_before_it_is_removed(phase: str) -> None:
    """Its lower pod has to terminate first, which sets a final phase before the upper pod is removed."""
    world = stuck()
    put(world.lowers[A].upper_pods, bare({"phase": phase, "conditions": [EVICTED]}, deletionTimestamp=ENDING))
    assert steps(world) == []


@pytest.mark.parametrize(
    ("status", "meta"),
    [
        ({}, {"deletionTimestamp": ENDING}),
        ({"phase": "Succeeded"}, {}),
        ({"phase": "Failed", "conditions": [EVICTED]}, {}),
    ],
)
def test_the_backup_of_a_deleted_or_terminated_pod_is_deleted(status: Manifest, meta: Manifest) -> None:
    """A user deleted the pod, or it terminated by itself, so it must not be created again."""
    world = stuck()
    put(world.lowers[A].upper_pods, bare(status, **meta))
    (step,) = steps(world)
    assert is_let_go(step)


def test_a_removed_pod_is_created_again_and_then_its_backup_is_deleted() -> None:
    """The pod is created as in the backup, and the new pod may be from an earlier engine."""
    world = left()
    (step,) = steps(world)
    assert (step.verb, step.ref, step.body) == ("create", ABOVE, successor_of(bare(), (A,)))
    made(world)
    (step,) = steps(world)
    assert is_let_go(step)


def test_a_re_created_pod_is_not_created_again_while_its_watch_still_has_it() -> None:
    """The backed-up pod may be a replacement itself, which a second watch reports."""
    world = left()
    made(world, replaces="older", uid="Pod-web")
    assert decision_and_plan(RecreateRule(), KEY, world) == (Decision(requeue_after=2.0), Plan(()))
    relist_without(world.upper.remade, "web")
    assert [step.verb for step in steps(world)] == ["create"]


def test_no_pod_is_created_before_all_pod_caches_are_synced() -> None:
    """A missing pod may only be unknown; no event reports the sync, so the key is requeued."""
    world = left()
    world.lowers[B].upper_pods.mark_stale()
    decision, plan = decision_and_plan(RecreateRule(), KEY, world)
    assert (plan.steps, decision.requeue_after) == ((), 2.0)


def test_a_failed_creation_is_an_event_on_the_backup_secret() -> None:
    """The Secret is the only remaining object of the pod."""
    world = left()
    world.problems[KEY] = Problem("Forbidden", "exceeded quota")
    step, create = steps(world)
    assert (step.ref.kind, create.verb) == (EVENT, "create")
    assert step.body is not None
    assert step.body["involvedObject"]["kind"] == "Secret"
    assert (step.body["involvedObject"]["uid"], step.body["reason"]) == ("secret", "RecreateFailed")
    assert step.body["message"].endswith(": exceeded quota")


def test_a_name_conflict_with_another_re_created_pod_is_reported() -> None:
    """The other pod is neither adopted nor changed, and the Secret is kept."""
    world = left()
    made(world, replaces="another")
    (step,) = steps(world)
    reported = problem(world)
    assert (step.ref.kind, reported and reported.reason) == (EVENT, "NameConflict")
    assert decision_and_plan(RecreateRule(), KEY, world)[0].requeue_after == 30.0


def test_a_backup_without_a_pod_is_a_problem() -> None:
    """The message is to correct the Secret or to delete it."""
    world = left(data={})
    reported = problem(world)
    assert steps(world) == []
    assert reported == (
        "RecreateFailed",
        f"Secret default/{SAFE.name} does not contain a pod: correct it, or delete it",
    )


def test_a_backup_is_kept_while_the_pod_has_to_be_evicted_or_caches_are_not_synced() -> None:
    """A starting engine cannot know yet whether the pod has to be evicted."""
    stuck_pod, no_pods, no_nodes = stuck(), keeping(descheduling_world()), keeping(descheduling_world())
    no_pods.lowers[A].pods.mark_stale()
    no_nodes.upper.nodes.mark_stale()
    for world in (stuck_pod, no_pods, no_nodes):
        assert decision_and_plan(RecreateRule(), KEY, world) == (Decision(requeue_after=30.0), Plan(()))


@pytest.mark.parametrize(
    "more",
    [
        ON,
        "descheduler: {recreateBarePods: true}\n",
        "descheduler: {enabled: true, recreateBarePods: false}\n",
        "descheduler: {enabled: true, recreateBarePods: true, dryRun: true}\n",
    ],
)
def test_a_backup_that_is_not_needed_is_withdrawn_and_deleted_after_two_minutes(more: str) -> None:
    """The pod has a node or the topology lets it stay, but an eviction that was sent may still arrive."""
    known = [None, timedelta(seconds=119), timedelta(seconds=120)]
    found: list[list[Step]] = []
    for ago in known:
        notes = {} if ago is None else {WITHDRAWN: timestamp(NOW - ago)}
        world = keeping(descheduling_world(), notes) if more == ON else stuck(notes)
        apply_topology(world, f"name: {A}", f"name: {B}", more=more)
        found.append(steps(world))
    (note,), none, (gone,) = found
    assert (note.verb, note.ref, note.uid, none, is_let_go(gone)) == ("patch", SAFE, "secret", [], True)
    assert note.patch is not None
    assert note.patch.body["metadata"]["annotations"] == {WITHDRAWN: timestamp(NOW)}
    assert note.patch.body["metadata"]["resourceVersion"]


def test_the_first_lower_of_the_topology_handles_all_backups() -> None:
    """The pod's own lower cluster may have left the topology; a leaving one is used only if no other exists."""
    world = keeping(descheduling_world())
    assert list(RecreateRule().keys(world, A)) == [KEY]
    assert list(RecreateRule().keys(world, B)) == []
    apply_topology(world, f"name: {B}")
    assert world.speaker == B
    world.topology = Topology.model_construct(lowers=[])
    assert world.speaker == A
    world.lowers.clear()
    assert world.speaker == ""


def test_a_problem_moves_to_the_queue_of_the_new_first_lower() -> None:
    """The former first lower clears its problem, so that it is reported only once."""
    world = left(data={})
    world.problems[KEY] = Problem("RecreateFailed", "said before")
    assert list(RecreateRule().keys(world, A)) == [KEY]
    apply_topology(world, f"name: {B}", f"name: {A}")
    assert list(RecreateRule().keys(world, A)) == [KEY]
    assert decision_and_plan(RecreateRule(), KEY, world) == (Decision(), Plan(()))
    other = KEY._replace(lower=B)
    assert list(RecreateRule().keys(world, B)) == [other]
    decision, (_, reported) = decision_and_plan(RecreateRule(), other, world)
    assert (decision.requeue_after, reported and reported.reason) == (30.0, "RecreateFailed")


def test_the_rule_watches_backups_old_pods_and_new_pods() -> None:
    """Other pods are ignored."""
    world = descheduling_world(more=ON)
    enqueued: list[Key] = []
    secrets, pods, remade = RecreateRule().watches()
    world.upper.secrets.subscribe(lambda delta: enqueued.extend(secrets.keys(world, A, delta)))
    world.lowers[A].upper_pods.subscribe(lambda delta: enqueued.extend(pods.keys(world, A, delta)))
    world.upper.remade.subscribe(lambda delta: enqueued.extend(remade.keys(world, A, delta)))
    keeping(world)
    assert enqueued == [KEY]
    put(world.lowers[A].upper_pods, requesting_pod("other"))
    assert enqueued == [KEY]
    delete_observed(world.lowers[A].upper_pods, "web")
    made(world)
    assert enqueued == [KEY] * 3
    put(world.upper.secrets, {"metadata": {"name": BACKUP, "namespace": "default", "uid": "x"}})
    assert enqueued[3:] == [KEY._replace(name=BACKUP)]
