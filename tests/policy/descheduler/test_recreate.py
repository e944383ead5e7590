"""What is due about a pod that is backed up: the rule, look by look."""

from datetime import timedelta
from typing import Any

import pytest
from deschedulingkit import NOW, ON, A, B, ground, refused, seeker
from worldkit import decided, drop, lose, put, reload, twin, written

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
    """Make a pod without a controller, on lower-a."""
    return {**seeker(ownerReferences=[], **meta), "status": {"phase": "Pending", **(status or {})}}


def keeping(here: World, notes: dict[str, str] | None = None, **fields: Any) -> World:
    """Let a Secret keep the pod, with notes."""
    pod = put(here.lowers[A].upper_pods, bare())
    wanted = backup(successor_of(bare(), (A,)), pod, here.owner, "it moves").manifest
    meta = {**wanted["metadata"], "uid": "secret"}
    meta["annotations"] = {**meta["annotations"], **(notes or {})}
    put(here.upper.secrets, written({**wanted, "metadata": meta, **fields}))
    return here


def stuck(notes: dict[str, str] | None = None) -> World:
    """Make a world in which the pod is kept, and waits in lower-a for a node."""
    here = keeping(ground(), notes)
    put(here.lowers[A].pods, twin(bare(), refused()))
    return here


def left(notes: dict[str, str] | None = None, **fields: Any) -> World:
    """Make a world in which the pod has left."""
    here = keeping(ground(), notes, **fields)
    drop(here.lowers[A].upper_pods, "web")
    return here


def steps(here: World) -> list[Step]:
    """Return what is due."""
    return list(decided(RecreateRule(), KEY, here)[1].steps)


def problem(here: World) -> Problem | None:
    """Return what is said."""
    return decided(RecreateRule(), KEY, here)[1].problem


def made(here: World, replaces: str = "Pod-web", uid: str = "new") -> None:
    """Let a pod that a descheduler made be in its place."""
    put(here.upper.remade, bare(uid=uid, annotations={REPLACES: replaces}))


def is_let_go(step: Step) -> bool:
    """Report whether a step deletes the Secret, as it was."""
    return (step.verb, step.ref, step.uid, bool(step.version)) == ("delete", SAFE, "secret", True)


@pytest.mark.parametrize("phase", ["Pending", "Running", "Succeeded", "Failed"])
def test_a_pod_that_was_evicted_is_waited_for_until_it_is_gone(phase: str) -> None:
    """Its lower pod has to end first; then it gets a phase that says so, before its object goes."""
    here = stuck()
    put(here.lowers[A].upper_pods, bare({"phase": phase, "conditions": [EVICTED]}, deletionTimestamp=ENDING))
    assert steps(here) == []


@pytest.mark.parametrize(
    ("status", "meta"),
    [
        ({}, {"deletionTimestamp": ENDING}),
        ({"phase": "Succeeded"}, {}),
        ({"phase": "Failed", "conditions": [EVICTED]}, {}),
    ],
)
def test_a_pod_that_somebody_deleted_or_that_has_ended_is_not_made_again(status: Manifest, meta: Manifest) -> None:
    """That is no disruption, but somebody's will, or its own end: the Secret goes, as it was read."""
    here = stuck()
    put(here.lowers[A].upper_pods, bare(status, **meta))
    (step,) = steps(here)
    assert is_let_go(step)


def test_a_pod_that_is_gone_is_made_again_and_then_the_secret_goes() -> None:
    """As it was backed up; also where an engine before this one has made it."""
    here = left()
    (step,) = steps(here)
    assert (step.verb, step.ref, step.body) == ("create", ABOVE, successor_of(bare(), (A,)))
    made(here)
    (step,) = steps(here)
    assert is_let_go(step)


def test_the_old_pod_may_be_one_that_was_made_again_itself() -> None:
    """As long as the watch on such pods tells of it, it has not gone."""
    here = left()
    made(here, replaces="older", uid="Pod-web")
    assert decided(RecreateRule(), KEY, here) == (Decision(requeue_after=2.0), Plan(()))
    lose(here.upper.remade, "web")
    assert [step.verb for step in steps(here)] == ["create"]


def test_nothing_is_made_while_it_is_not_known_which_pods_there_are() -> None:
    """What is missing may only not be told yet; nobody says when it is, so it is looked at again."""
    here = left()
    here.lowers[B].upper_pods.mark_stale()
    decision, plan = decided(RecreateRule(), KEY, here)
    assert (plan.steps, decision.requeue_after) == ((), 2.0)


def test_what_keeps_it_from_being_made_is_told_at_the_secret() -> None:
    """Where people find the pod."""
    here = left()
    here.problems[KEY] = Problem("Forbidden", "exceeded quota")
    told, create = steps(here)
    assert (told.ref.kind, create.verb) == (EVENT, "create")
    assert told.body is not None
    assert told.body["involvedObject"]["kind"] == "Secret"
    assert (told.body["involvedObject"]["uid"], told.body["reason"]) == ("secret", "RecreateFailed")
    assert told.body["message"].endswith(": exceeded quota")


def test_a_name_that_another_re_created_pod_has_is_reported() -> None:
    """Nothing of that pod is read, adopted or changed; the Secret stays."""
    here = left()
    made(here, replaces="another")
    (told,) = steps(here)
    said = problem(here)
    assert (told.ref.kind, said and said.reason) == (EVENT, "NameConflict")
    assert decided(RecreateRule(), KEY, here)[0].requeue_after == 30.0


def test_a_secret_without_a_pod_is_said() -> None:
    """Nobody can make what it does not hold."""
    here = left(data={})
    said = problem(here)
    assert steps(here) == []
    assert said == ("RecreateFailed", f"Secret default/{SAFE.name} does not contain a pod: correct it, or delete it")


def test_a_backup_is_kept_while_the_pod_has_to_leave() -> None:
    """Or while it is not known whether it has to: an engine that starts knows nothing yet."""
    stuck_pod, no_pods, no_nodes = stuck(), keeping(ground()), keeping(ground())
    no_pods.lowers[A].pods.mark_stale()
    no_nodes.upper.nodes.mark_stale()
    for here in (stuck_pod, no_pods, no_nodes):
        assert decided(RecreateRule(), KEY, here) == (Decision(requeue_after=30.0), Plan(()))


@pytest.mark.parametrize(
    "more",
    [
        ON,
        "descheduler: {recreateBarePods: true}\n",
        "descheduler: {enabled: true, recreateBarePods: false}\n",
        "descheduler: {enabled: true, recreateBarePods: true, dryRun: true}\n",
    ],
)
def test_a_backup_of_a_pod_that_may_stay_goes_after_a_while(more: str) -> None:
    """It has a node, or the topology has it stay. The Secret outlasts an eviction that may be on its way still."""
    known = [None, timedelta(seconds=119), timedelta(seconds=120)]
    found: list[list[Step]] = []
    for ago in known:
        notes = {} if ago is None else {WITHDRAWN: timestamp(NOW - ago)}
        here = keeping(ground(), notes) if more == ON else stuck(notes)
        reload(here, f"name: {A}", f"name: {B}", more=more)
        found.append(steps(here))
    (note,), none, (gone,) = found
    assert (note.verb, note.ref, note.uid, none, is_let_go(gone)) == ("patch", SAFE, "secret", [], True)
    assert note.patch is not None
    assert note.patch.body["metadata"]["annotations"] == {WITHDRAWN: timestamp(NOW)}
    assert note.patch.body["metadata"]["resourceVersion"]


def test_the_first_lower_speaks_for_all() -> None:
    """The one that the pod was on may have left; one that leaves is the last choice."""
    here = keeping(ground())
    assert list(RecreateRule().keys(here, A)) == [KEY]
    assert list(RecreateRule().keys(here, B)) == []
    reload(here, f"name: {B}")
    assert here.speaker == B
    here.topology = Topology.model_construct(lowers=[])
    assert here.speaker == A
    here.lowers.clear()
    assert here.speaker == ""


def test_what_the_first_lower_said_is_looked_at_again_when_another_comes_first() -> None:
    """That says it now: once is enough."""
    here = left(data={})
    here.problems[KEY] = Problem("RecreateFailed", "said before")
    assert list(RecreateRule().keys(here, A)) == [KEY]
    reload(here, f"name: {B}", f"name: {A}")
    assert list(RecreateRule().keys(here, A)) == [KEY]
    assert decided(RecreateRule(), KEY, here) == (Decision(), Plan(()))
    other = KEY._replace(lower=B)
    assert list(RecreateRule().keys(here, B)) == [other]
    decision, (_, said) = decided(RecreateRule(), other, here)
    assert (decision.requeue_after, said and said.reason) == (30.0, "RecreateFailed")


def test_it_hears_of_all_that_matters() -> None:
    """The Secret, the old pod, the new one; not of other pods."""
    here = ground(more=ON)
    heard: list[Key] = []
    secrets, pods, remade = RecreateRule().watches()
    here.upper.secrets.subscribe(lambda delta: heard.extend(secrets.keys(here, A, delta)))
    here.lowers[A].upper_pods.subscribe(lambda delta: heard.extend(pods.keys(here, A, delta)))
    here.upper.remade.subscribe(lambda delta: heard.extend(remade.keys(here, A, delta)))
    keeping(here)
    assert heard == [KEY]
    put(here.lowers[A].upper_pods, seeker("other"))
    assert heard == [KEY]
    drop(here.lowers[A].upper_pods, "web")
    made(here)
    assert heard == [KEY] * 3
    put(here.upper.secrets, {"metadata": {"name": BACKUP, "namespace": "default", "uid": "x"}})
    assert heard[3:] == [KEY._replace(name=BACKUP)]
