"""What an error means, and that no key is lost, whatever happens on the way."""

from typing import Any

import pytest
from answering import Held
from loopkit import ONE, TWO, LoopUnderTest, ScriptedRule, copy, event, present, unfollowed, until
from virtualtime import clock, in_virtual_time
from worldkit import STRANGER, A, config_map, marked, put, upper_pod

from tensile.errors import (
    AlreadyExists,
    ClusterError,
    Conflict,
    Denied,
    Expired,
    NotFound,
    Throttled,
    Unauthorized,
    Unreachable,
)
from tensile.kube.cluster import Patch
from tensile.objects import CONFIG_MAP, EVENT, POD, UPPER, Manifest, Ref
from tensile.reconcile.backoff import RETOLD
from tensile.reconcile.desired import Absent, Decision, EmitEvent, Patched, VerifyAbsent
from tensile.reconcile.world import Problem

WANTED = Decision((present(),))
REF = Ref(A, CONFIG_MAP, "default", "one")


def stored(manifest: Manifest, version: int) -> Manifest:
    """Return an object as a cluster answers it."""
    return {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": str(version)}}


def tries(bench: LoopUnderTest, verb: str = "create") -> int:
    """Count how often the lower cluster was asked for something."""
    return [one.verb for one in bench.lower.asked].count(verb)


@in_virtual_time
async def test_what_is_wanted_is_done_once() -> None:
    """The answer is in the cache at once, so that the next look finds nothing to do."""
    bench = LoopUnderTest()
    await bench.run(WANTED)
    assert bench.noted.verbs() == ["create one"]
    bench.loop.add(ONE)
    await bench.loop.wait_idle()
    assert bench.noted.verbs() == ["create one"]
    assert (bench.noted.errors, bench.noted.troubles, bench.loop.delayed) == ([None], [], 0)


@in_virtual_time
async def test_steps_are_carried_out_in_their_order() -> None:
    """Each after the one before was answered."""
    bench = LoopUnderTest()
    await bench.run(Decision((present("b"), present("a"), present("c"))))
    assert bench.lower.verbs() == ["create ConfigMap b", "create ConfigMap a", "create ConfigMap c"]


PASSING = [Unreachable("x"), Unauthorized("x"), Expired("x"), ClusterError("x")]


@pytest.mark.parametrize("error", PASSING, ids=lambda error: type(error).__name__)
@in_virtual_time
async def test_trouble_that_passes_is_waited_out(error: ClusterError) -> None:
    """With rests that double, and no word to the pod's author, who can do nothing about it."""
    bench = LoopUnderTest()
    bench.lower.answer("create", *[error] * 3)
    await bench.run(WANTED)
    assert (tries(bench), bench.loop.delayed) == (1, 1)
    await until(0.0751)
    assert tries(bench) == 2
    await until(0.2251)
    assert tries(bench) == 3
    await until(10)
    assert tries(bench) == 4
    assert (bench.world.problems, bench.noted.troubles, bench.loop.delayed) == ({}, [], 0)
    assert bench.noted.errors == [error, error, error, None]


@in_virtual_time
async def test_trouble_that_lasts_is_looked_at_every_few_seconds() -> None:
    """So that a cluster that comes back is used soon, and one that does not is not hammered."""
    bench = LoopUnderTest()
    bench.lower.answer("create", *[Unreachable("x")] * 1000)
    await bench.run(WANTED)
    await until(3600)
    assert 3600 / 5 <= tries(bench) <= 3600 / 3
    await bench.close()


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (Denied("no room", reason="Forbidden"), Problem("Forbidden", "no room")),
        (Denied("no room"), Problem("Denied", "no room")),
        (NotFound("no namespace", reason="NotFound"), Problem("NotFound", "no namespace")),
    ],
)
@in_virtual_time
async def test_a_denial_is_said_and_tried_again(error: ClusterError, problem: Problem) -> None:
    """Quotas are raised and rights given: once it comes through, the problem is gone."""
    bench = LoopUnderTest()
    bench.lower.answer("create", *[error] * 3)
    await bench.run(WANTED)
    assert bench.world.problems == {ONE: problem}
    await until(0.2)
    assert bench.world.problems == {ONE: problem}
    await until(15)
    assert (tries(bench), bench.world.problems) == (4, {})
    assert bench.noted.troubles == [problem]
    assert bench.loop.delayed == 0


@in_virtual_time
async def test_a_denied_key_is_decided_at_once_with_its_problem_known() -> None:
    """So that the pod says why it does not start with the first try."""
    bench = LoopUnderTest()
    seen: list[Problem | None] = []

    def says(of: Any) -> Decision:
        """Note what is known when it is asked."""
        seen.append(of.problems.get(ONE))
        return WANTED

    bench.lower.answer("create", Denied("no room"), Held())
    bench.rule.says[ONE] = says
    bench.loop.open(A)
    await bench.loop.wait_idle()
    assert seen == [None, Problem("Denied", "no room")]
    assert tries(bench) == 1
    await bench.close()


@in_virtual_time
async def test_a_refused_step_rests_while_those_before_it_go_on() -> None:
    """A pod that cannot be made is still reported on."""
    bench = LoopUnderTest()
    bench.lower.answer("create", Denied("no room"))
    await bench.run(WANTED)
    assert tries(bench) == 1
    await bench.run(Decision((unfollowed("report"), present())))
    assert bench.noted.verbs() == ["create one", "create report"]
    await until(10)
    assert bench.noted.verbs()[2:4] == ["create report", "create one"]


@in_virtual_time
async def test_an_event_that_was_told_is_not_told_at_every_look() -> None:
    """Nor when it is there already; while it could not be told, it is tried again, and after a while told anew."""
    bench = LoopUnderTest()
    bench.clusters[UPPER].answer("create", Unreachable("no answer"), AlreadyExists("told"))
    await bench.run(Decision((event(),)))
    await until(5)
    assert bench.noted.verbs() == ["create told"] * 2
    await bench.run(Decision((event(),)))
    assert bench.noted.verbs() == ["create told"] * 2
    await until(2 * RETOLD)
    await bench.run(Decision((event(),)))
    assert bench.noted.verbs() == ["create told"] * 3


@in_virtual_time
async def test_a_problem_ends_with_what_was_wanted() -> None:
    """The pod was deleted: nobody is told any more why it does not start, and it is not tried again."""
    bench = LoopUnderTest()
    bench.lower.answer("create", *[Denied("no room")] * 100)
    await bench.run(WANTED)
    await bench.run(Decision())
    assert bench.world.problems == {}
    await until(100)
    assert tries(bench) == 1


@in_virtual_time
async def test_a_cluster_that_asks_to_wait_is_not_asked_before() -> None:
    """Not even when something else has the key looked at."""
    bench = LoopUnderTest()
    bench.lower.answer("create", Throttled("slowly", retry_after=30.0))
    await bench.run(WANTED)
    for moment in (1, 10, 29.9):
        await until(moment)
        bench.loop.add(ONE)
        await bench.loop.wait_idle()
        assert tries(bench) == 1
    await until(31)
    assert tries(bench) == 2
    assert bench.noted.troubles == [Problem("Throttled", "slowly")]


RACE_LOST = (
    Conflict("changed"),
    Denied("the server rejected our request due to an error in our request", status=422, reason="Invalid"),
)
"""How a JSON patch is refused that was worked out on an older object: by its fence, or by a path that is gone."""


@pytest.mark.parametrize("error", RACE_LOST, ids=["conflict", "unprocessable"])
@in_virtual_time
async def test_a_lost_race_is_decided_again_from_what_is_there_now(error: ClusterError) -> None:
    """Somebody wrote first: the object is read, and the change is worked out anew, with the new fence."""
    bench = LoopUnderTest()
    put(bench.world.lowers[A].config_maps, {**copy(), "data": {"key": "old"}})
    theirs = stored({**copy(), "data": {"key": "old", "theirs": "yes"}}, 90)
    bench.lower.answer("patch", error, stored(copy(), 95))
    bench.lower.answer("read", theirs)
    await bench.run(WANTED)
    assert bench.lower.verbs() == ["patch ConfigMap one", "read ConfigMap one"]
    await until(1)
    patch, _ = bench.lower.asked[-1].carried
    assert {"op": "remove", "path": "/data/theirs"} in patch.body
    assert bench.world.problems == {}
    assert bench.loop.delayed == 0


@in_virtual_time
async def test_what_vanished_before_a_change_is_made_again() -> None:
    """It is known to be gone, so that what rests on that can go on."""
    bench = LoopUnderTest()
    cache = bench.world.lowers[A].config_maps
    put(cache, {**copy(), "data": {"key": "old"}})
    bench.lower.answer("patch", NotFound("gone"))
    await bench.run(WANTED)
    assert cache.tombstone("default", "one") is not None
    await until(1)
    assert bench.noted.verbs() == ["patch one", "create one"]


@in_virtual_time
async def test_a_deletion_of_what_was_replaced_leaves_the_successor() -> None:
    """The UID did not fit any more: what stands there now is another's, and ours is gone."""
    bench = LoopUnderTest()
    cache = bench.world.lowers[A].config_maps
    put(cache, copy())

    def end(_: object) -> Decision:
        """Want our object gone as long as it is known."""
        known = cache.get("default", "one")
        return Decision((Absent(REF, known.uid, "because"),) if known else ())

    bench.lower.answer("delete", Conflict("another UID"))
    bench.lower.answer("read", stored(config_map("one", uid="theirs"), 90))
    bench.rule.says[ONE] = end
    bench.loop.open(A)
    await until(10)
    assert bench.lower.verbs() == ["delete ConfigMap one", "read ConfigMap one"]
    assert cache.tombstone("default", "one") is not None


@in_virtual_time
async def test_a_read_that_fails_after_a_refusal_is_waited_out() -> None:
    """Nothing is known then, so nothing is said."""
    bench = LoopUnderTest()
    put(bench.world.lowers[A].config_maps, {**copy(), "data": {"key": "old"}})
    bench.lower.answer("patch", Conflict("changed"))
    bench.lower.answer("read", Unreachable("no answer"))
    await bench.run(WANTED)
    assert bench.world.lowers[A].config_maps.tombstone("default", "one") is None
    assert bench.loop.delayed == 1
    await until(1)
    assert bench.noted.errors[-1] is None


FOREIGN = {
    "nobody's": config_map("one"),
    "another owner's": marked(config_map("one"), "above", STRANGER),
}


@pytest.mark.parametrize("foreign", FOREIGN.values(), ids=FOREIGN.keys())
@in_virtual_time
async def test_a_name_that_is_anothers_is_a_conflict_until_it_is_free(foreign: Manifest) -> None:
    """It is not touched, it is said, and looked at again every few seconds."""
    bench = LoopUnderTest()
    bench.lower.answer("create", *[AlreadyExists("taken")] * 4)
    bench.lower.answer("read", *[stored(foreign, 90)] * 4)
    await bench.run(WANTED)
    assert bench.world.problems[ONE].reason == "NameConflict"
    await until(60)
    assert {one.verb for one in bench.lower.asked} == {"create", "read"}
    assert (tries(bench), bench.world.problems) == (5, {})
    assert len(bench.noted.troubles) == 1


@in_virtual_time
async def test_our_own_object_is_met_again() -> None:
    """Its creation was answered into a broken connection: it is taken over, and brought up to date."""
    bench = LoopUnderTest()
    bench.lower.answer("create", AlreadyExists("there"))
    bench.lower.answer("read", stored({**copy(), "data": {"key": "old"}}, 90))
    await bench.run(WANTED)
    await until(1)
    assert bench.lower.verbs() == ["create ConfigMap one", "read ConfigMap one", "patch ConfigMap one"]
    assert bench.noted.troubles == []


@in_virtual_time
async def test_a_name_that_is_free_and_taken_in_turns_is_not_hammered() -> None:
    """Somebody makes and deletes it all the time, or the store was restored: the rests double as for any trouble."""
    bench = LoopUnderTest()
    bench.lower.answer("create", *[AlreadyExists("there")] * 1000)
    await bench.run(WANTED)
    await until(60)
    assert 5 <= tries(bench) <= 30
    assert bench.noted.troubles == []
    await bench.close()


@pytest.mark.parametrize("error", [AlreadyExists("told"), Denied("namespace is ending"), NotFound("no namespace")])
@in_virtual_time
async def test_an_event_keeps_nothing_waiting(error: ClusterError) -> None:
    """One that exists has been told; one that cannot be told is not worth a pod."""
    bench = LoopUnderTest()
    bench.clusters[UPPER].answer("create", error)
    await bench.run(Decision((event(), present())))
    assert bench.noted.verbs() == ["create told", "create one"]
    assert (bench.world.problems, bench.loop.delayed) == ({}, 0)


@in_virtual_time
async def test_an_event_that_cannot_be_stored_holds_up_nothing() -> None:
    """It is tried again; what comes after it may be in a cluster that answers."""
    bench = LoopUnderTest()
    bench.clusters[UPPER].answer("create", Unreachable("no answer"))
    told = EmitEvent(Ref(UPPER, POD, "default", "web"), "u", "Told", "it is so")
    await bench.run(Decision((told, present())))
    await until(1)
    assert [step.ref.kind for step in bench.noted.steps][:3] == [EVENT, CONFIG_MAP, EVENT]


@in_virtual_time
async def test_a_cluster_without_a_connection_is_waited_for() -> None:
    """Its credentials cannot be read yet."""
    bench = LoopUnderTest()
    connection = bench.clusters.pop(A)
    await bench.run(WANTED)
    assert isinstance(bench.noted.errors[0], Unreachable)
    bench.clusters[A] = connection
    await until(10)
    assert bench.noted.errors[-1] is None
    assert bench.noted.troubles == []


@in_virtual_time
async def test_a_confirmation_has_its_key_looked_at_again() -> None:
    """What is decided rests on its result, also where the cache did not change."""
    bench = LoopUnderTest()
    confirm = Decision((VerifyAbsent(REF, "above", "because"),))
    await bench.run(confirm, WANTED)
    assert bench.noted.verbs() == ["confirm one", "create one"]


@in_virtual_time
async def test_a_rule_that_fails_stops_no_other() -> None:
    """The defect is told, and its key is looked at again after a while."""
    bench = LoopUnderTest(ScriptedRule(), ScriptedRule("other"))
    fails = [True]

    def failing(_: object) -> Decision:
        """Fail once."""
        if fails.pop():
            fails.append(False)
            raise ZeroDivisionError
        fails.append(False)
        return Decision((present("late"),))

    bench.rules[1].says[TWO._replace(rule="other")] = failing
    await bench.run(WANTED)
    assert [type(one) for one in bench.noted.defects] == [ZeroDivisionError]
    assert bench.noted.verbs() == ["create one"]
    await until(10)
    assert bench.noted.verbs() == ["create one", "create late"]


@in_virtual_time
async def test_a_defect_while_a_step_is_carried_out_loses_no_key() -> None:
    """Something that is no error of a cluster: it is told, and the key comes back."""
    bench = LoopUnderTest()
    bench.lower.answer("create", ZeroDivisionError())
    await bench.run(WANTED)
    assert [type(one) for one in bench.noted.defects] == [ZeroDivisionError]
    await until(10)
    assert bench.noted.errors == [None]


@in_virtual_time
async def test_a_key_without_a_rule_is_a_defect_that_is_told() -> None:
    """It does not end the queue."""
    bench = LoopUnderTest()
    bench.loop.open(A)
    bench.loop.add(ONE._replace(rule="unknown"))
    await bench.run(WANTED)
    assert [type(one) for one in bench.noted.defects] == [KeyError]
    assert bench.noted.verbs() == ["create one"]
    await bench.close()


def change(**spec: str) -> Patched:
    """Make a change of a running pod that holds up nothing."""
    fence = {"metadata": {"uid": "uid-pod"}}
    patch = Patch("strategic-merge-patch", {**fence, "spec": spec})
    return Patched(Ref(A, POD, "default", "pod"), patch, "because", "resize", in_plan=True, independent=True)


def forbidden(words: str = "no") -> Denied:
    """Make a refusal that is likely to last."""
    return Denied(words, status=403, reason="Forbidden")


@in_virtual_time
async def test_a_refused_change_holds_up_nothing() -> None:
    """What comes after it is done at once, and not again while it rests; it is tried again by itself."""
    bench = LoopUnderTest()
    bench.lower.answer("patch", *(forbidden() for _ in range(50)))
    await bench.run(Decision((change(size="2"), present())))
    assert bench.noted.verbs() == ["patch pod", "create one"]
    assert bench.world.problems == {ONE: Problem("Forbidden", "no")}
    await until(300)
    assert 8 < tries(bench, "patch") < 25
    assert tries(bench) == 1
    await bench.close()


@in_virtual_time
async def test_two_refused_changes_are_both_told() -> None:
    """And one that comes through leaves the other's reason."""
    bench = LoopUnderTest()
    bench.lower.answer("patch", forbidden(), forbidden("too large"), *(forbidden() for _ in range(50)))
    await bench.run(Decision((change(size="2"), change(image="b"))))
    assert bench.world.problems[ONE].message == "no; too large"
    await bench.run(Decision((change(image="b"),)))
    assert bench.world.problems[ONE].message == "too large"
    await bench.close()


@in_virtual_time
async def test_a_way_of_changing_that_a_cluster_does_not_have_is_told() -> None:
    """A pod that stands, whose subresource is not found: an older apiserver, that nothing helps but patience."""
    bench = LoopUnderTest()
    pod = upper_pod("pod", uid="uid-pod")
    put(bench.world.lowers[A].pods, pod)
    bench.lower.answer("patch", NotFound("the server could not find the requested resource", status=404))
    bench.lower.answer("read", stored(pod, 1))
    await bench.run(Decision((change(size="2"),)))
    assert bench.world.problems == {
        ONE: Problem("NotFound", "resize: the server could not find the requested resource")
    }
    await bench.close()


@in_virtual_time
async def test_a_lost_race_of_a_change_does_not_delay_the_next_step() -> None:
    """It is done in the same turn, and not only when the change is tried again."""
    bench = LoopUnderTest()
    bench.lower.answer("patch", Conflict("changed since", status=409))
    await bench.run(Decision((change(size="2"), present())))
    assert bench.noted.verbs() == ["patch pod", "create one"]
    assert clock() == 0
    await bench.close()
