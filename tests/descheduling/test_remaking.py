"""What is due about a pod that is kept: the rule, look by look."""

from datetime import timedelta
from typing import Any

import pytest
from deschedulingkit import NOW, ON, A, B, ground, refused, seeker
from worldkit import decided, drop, lose, put, reload, twin, written

from tensile.names import PLACE_TAKEN, REPLACES, WITHDRAWN
from tensile.objects import EVENT, POD, SECRET, UPPER, Manifest, Ref, annotations, metadata, timestamp
from tensile.policy.descheduler.records import PREFIX, present, ref_of
from tensile.policy.descheduler.recreate import RecreateRule
from tensile.policy.descheduler.replacement import successor_of
from tensile.reconcile.desired import Decision
from tensile.reconcile.plan import Plan, Step
from tensile.reconcile.world import REMAKING, Key, Problem, World
from tensile.topology import Topology

SAFE = ref_of("default", "Pod-web")
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
    wanted = present(successor_of(bare(), (A,)), pod, here.owner, "it moves").manifest
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


def test_a_pod_that_is_to_leave_is_waited_for() -> None:
    """The descheduler evicts it in its turn; it is looked at again in case there is no more reason."""
    here = stuck()
    decision, plan = decided(RecreateRule(), KEY, here)
    assert (plan.steps, plan.problem, decision.requeue_after) == ((), None, 30.0)


@pytest.mark.parametrize("phase", ["Pending", "Running", "Succeeded", "Failed"])
def test_a_pod_that_was_evicted_is_waited_for_until_it_is_gone(phase: str) -> None:
    """Its lower pod has to end first; then it gets a phase that says so, before its object goes."""
    here = stuck()
    put(here.lowers[A].upper_pods, bare({"phase": phase, "conditions": [EVICTED]}, deletionTimestamp=ENDING))
    assert steps(here) == []


def test_a_pod_that_somebody_deleted_is_not_made_again() -> None:
    """That is no disruption, but somebody's will."""
    here = stuck()
    put(here.lowers[A].upper_pods, bare(deletionTimestamp=ENDING))
    (step,) = steps(here)
    assert is_let_go(step)
    assert step.reason == "somebody deleted the pod"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_is_not_made_again(phase: str) -> None:
    """Nor would anybody else."""
    here = stuck()
    put(here.lowers[A].upper_pods, bare({"phase": phase, "conditions": [EVICTED]}))
    (step,) = steps(here)
    assert is_let_go(step)


def test_a_pod_that_is_gone_is_made_again_as_it_was_kept() -> None:
    """With the marks that say whose place it has."""
    (step,) = steps(left())
    assert (step.verb, step.ref) == ("create", ABOVE)
    assert step.body == successor_of(bare(), (A,))
    assert annotations(step.body or {})[REPLACES] == "Pod-web"


def test_once_it_is_made_the_secret_goes() -> None:
    """Also where an engine before this one has made it."""
    here = left()
    made(here)
    (step,) = steps(here)
    assert is_let_go(step)


def test_the_old_pod_may_be_one_that_was_made_again_itself() -> None:
    """As long as it is told of there, it has not gone."""
    here = left()
    made(here, replaces="older", uid="Pod-web")
    assert steps(here) == []
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
    assert (told.body["involvedObject"]["uid"], told.body["reason"]) == ("secret", "PodNotMadeAgain")
    assert told.body["message"] == "the pod is kept here and tried again until it is made: exceeded quota"


def test_a_place_that_was_freed_is_not_told_of_once_more() -> None:
    """Somebody has taken the note off the Secret; that the name was taken is what was said last."""
    here = left()
    here.problems[KEY] = Problem("PodPlaceTaken", "another pod has the name")
    assert [(step.verb, step.ref) for step in steps(here)] == [("create", ABOVE)]


def test_a_name_that_is_taken_is_noted_and_no_more_is_done() -> None:
    """Whoever comes next reads it there."""
    here = left()
    here.problems[KEY] = Problem("NameConflict", "is not ours")
    (note,) = steps(here)
    assert (note.verb, note.ref, note.uid, note.in_plan) == ("patch", SAFE, "secret", False)
    assert note.patch is not None
    assert note.patch.body["metadata"]["annotations"] == {PLACE_TAKEN: "true"}
    here = left({PLACE_TAKEN: "true"})
    (told,) = steps(here)
    assert told.ref.kind == EVENT
    said = problem(here)
    assert said is not None
    assert said.reason == "PodPlaceTaken"
    assert "another pod has the name default/web" in said.message
    assert f"Secret default/{SAFE.name}" in said.message


def test_the_name_may_be_taken_by_a_pod_that_was_made_in_anothers_place() -> None:
    """It is as strange as any other: that is noted, and nothing of what is kept of it is read."""
    here = left()
    made(here, replaces="another")
    (note,) = steps(here)
    assert (note.verb, note.ref) == ("patch", SAFE)
    assert note.patch is not None
    assert note.patch.body["metadata"]["annotations"] == {PLACE_TAKEN: "true"}


def test_a_secret_without_a_pod_is_said() -> None:
    """Nobody can make what it does not hold."""
    here = left(data={})
    said = problem(here)
    assert steps(here) == []
    assert said == ("PodNotMadeAgain", f"Secret default/{SAFE.name} does not hold a pod: mend it, or delete it")


def test_a_pod_that_may_stay_is_let_go_of_after_a_while() -> None:
    """An eviction may be on its way still: the Secret outlasts it."""
    here = keeping(ground())
    (note,) = steps(here)
    assert note.verb == "patch"
    assert note.patch is not None
    assert note.patch.body["metadata"]["annotations"] == {WITHDRAWN: timestamp(NOW)}
    for seconds, due in ((119, []), (120, [True])):
        here = keeping(ground(), {WITHDRAWN: timestamp(NOW - timedelta(seconds=seconds))})
        assert [is_let_go(step) for step in steps(here)] == due


@pytest.mark.parametrize("cache", ["pods", "nodes"])
def test_nothing_is_withdrawn_while_it_is_not_known_whether_it_is_wanted(cache: str) -> None:
    """An engine that starts knows nothing yet."""
    here = keeping(ground())
    (here.lowers[A].pods if cache == "pods" else here.upper.nodes).mark_stale()
    assert steps(here) == []


def test_what_nobody_may_rely_on_goes_though_the_pod_is_to_leave() -> None:
    """Others keep it anew, as it is by then."""
    assert steps(stuck({WITHDRAWN: timestamp(NOW)})) == []
    assert list(map(is_let_go, steps(stuck({WITHDRAWN: timestamp(NOW - timedelta(seconds=120))})))) == [True]


@pytest.mark.parametrize("more", ["", "descheduler: {enabled: true, dryRun: true}\n"])
def test_a_descheduler_that_is_off_has_nobody_leave(more: str) -> None:
    """Nor one that only rehearses."""
    here = stuck()
    reload(here, f"name: {A}", f"name: {B}", more=more)
    assert [step.verb for step in steps(here)] == ["patch"]


def test_others_secrets_are_none_of_its_business() -> None:
    """By their name alone they are not ours."""
    here = ground()
    put(here.upper.secrets, {"metadata": {"name": SAFE.name, "namespace": "default", "uid": "x"}, "data": {}})
    here.lowers[B].upper_pods.mark_stale()
    assert decided(RecreateRule(), KEY, here) == (Decision(), Plan(()))


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
    here = left({PLACE_TAKEN: "true"})
    here.problems[KEY] = Problem("PodPlaceTaken", "said before")
    assert list(RecreateRule().keys(here, A)) == [KEY]
    reload(here, f"name: {B}", f"name: {A}")
    assert list(RecreateRule().keys(here, A)) == [KEY]
    assert decided(RecreateRule(), KEY, here) == (Decision(), Plan(()))
    other = KEY._replace(lower=B)
    assert list(RecreateRule().keys(here, B)) == [other]
    said = decided(RecreateRule(), other, here)[1].problem
    assert said is not None
    assert said.reason == "PodPlaceTaken"


@pytest.mark.parametrize("here", [left({PLACE_TAKEN: "true"}), left(data={})], ids=["taken", "no pod"])
def test_what_is_said_is_looked_at_again(here: World) -> None:
    """A lower that joins may come first, and says it from then on."""
    assert decided(RecreateRule(), KEY, here)[0].requeue_after == 30.0


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
    put(here.upper.secrets, {"metadata": {"name": PREFIX, "namespace": "default", "uid": "x"}})
    assert heard[3:] == [KEY._replace(name=PREFIX)]
    assert metadata(bare())["name"] == "web"
    assert SAFE.kind == SECRET
