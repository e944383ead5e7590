"""Tests of how the loop handles each error, and that no key is lost."""

from typing import Any

import pytest
from answering import HeldResponse
from loopkit import ONE, TWO, LoopUnderTest, ScriptedRule, copy, event, present, present_uncached, sleep_until
from virtualtime import clock, in_virtual_time
from worldkit import STRANGER, A, config_map, make_upper_pod, put, with_owner_marks

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
from tensile.reconcile.backoff import EVENT_INTERVAL
from tensile.reconcile.desired import Absent, Decision, EmitEvent, Patched, VerifyAbsent
from tensile.reconcile.world import Problem

WANTED = Decision((present(),))
REF = Ref(A, CONFIG_MAP, "default", "one")


def stored(manifest: Manifest, version: int) -> Manifest:
    """Return an object as a cluster returns it."""
    return {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": str(version)}}


def tries(bench: LoopUnderTest, verb: str = "create") -> int:
    """Return the number of requests with that verb to the lower cluster."""
    return [one.verb for one in bench.lower.calls].count(verb)


@in_virtual_time
async def test_a_desired_object_is_created_once() -> None:
    """The response is cached at once, so the next decision needs no step."""
    bench = LoopUnderTest()
    await bench.run(WANTED)
    assert bench.observer.verbs() == ["create one"]
    bench.loop.add(ONE)
    await bench.loop.wait_idle()
    assert bench.observer.verbs() == ["create one"]
    assert (bench.observer.errors, bench.observer.problems, bench.loop.delayed) == ([None], [], 0)


@in_virtual_time
async def test_steps_are_carried_out_in_order() -> None:
    """Each step is sent after the response to the previous one."""
    bench = LoopUnderTest()
    await bench.run(Decision((present("b"), present("a"), present("c"))))
    assert bench.lower.verbs() == ["create ConfigMap b", "create ConfigMap a", "create ConfigMap c"]


PASSING = [Unreachable("x"), Unauthorized("x"), Expired("x"), ClusterError("x")]


@pytest.mark.parametrize("error", PASSING, ids=lambda error: type(error).__name__)
@in_virtual_time
async def test_a_transient_error_is_retried_with_doubling_back_off(error: ClusterError) -> None:
    """It causes no problem of the key, because the pod's author cannot fix it."""
    bench = LoopUnderTest()
    bench.lower.queue_responses("create", *[error] * 3)
    await bench.run(WANTED)
    assert (tries(bench), bench.loop.delayed) == (1, 1)
    await sleep_until(0.0751)
    assert tries(bench) == 2
    await sleep_until(0.2251)
    assert tries(bench) == 3
    await sleep_until(10)
    assert tries(bench) == 4
    assert (bench.world.problems, bench.observer.problems, bench.loop.delayed) == ({}, [], 0)
    assert bench.observer.errors == [error, error, error, None]


@in_virtual_time
async def test_a_lasting_transient_error_is_retried_every_few_seconds() -> None:
    """A cluster that is back is used soon, and one that is not does not get too many requests."""
    bench = LoopUnderTest()
    bench.lower.queue_responses("create", *[Unreachable("x")] * 1000)
    await bench.run(WANTED)
    await sleep_until(3600)
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
async def test_a_denied_step_is_a_problem_of_its_key_and_is_retried(error: ClusterError, problem: Problem) -> None:
    """A quota may be raised or a right granted, and the problem is removed once the step succeeds."""
    bench = LoopUnderTest()
    bench.lower.queue_responses("create", *[error] * 3)
    await bench.run(WANTED)
    assert bench.world.problems == {ONE: problem}
    await sleep_until(0.2)
    assert bench.world.problems == {ONE: problem}
    await sleep_until(15)
    assert (tries(bench), bench.world.problems) == (4, {})
    assert bench.observer.problems == [problem]
    assert bench.loop.delayed == 0


@in_virtual_time
async def test_a_denied_key_is_decided_again_at_once_with_its_problem() -> None:
    """The pod then shows after the first try why it does not start."""
    bench = LoopUnderTest()
    seen: list[Problem | None] = []

    def says(of: Any) -> Decision:
        """Record the known problem at each decision."""
        seen.append(of.problems.get(ONE))
        return WANTED

    bench.lower.queue_responses("create", Denied("no room"), HeldResponse())
    bench.rule.decisions[ONE] = says
    bench.loop.open(A)
    await bench.loop.wait_idle()
    assert seen == [None, Problem("Denied", "no room")]
    assert tries(bench) == 1
    await bench.close()


@in_virtual_time
async def test_a_refused_step_in_back_off_does_not_block_earlier_steps() -> None:
    """The status of a pod that cannot be created is still updated."""
    bench = LoopUnderTest()
    bench.lower.queue_responses("create", Denied("no room"))
    await bench.run(WANTED)
    assert tries(bench) == 1
    await bench.run(Decision((present_uncached("report"), present())))
    assert bench.observer.verbs() == ["create one", "create report"]
    await sleep_until(10)
    assert bench.observer.verbs()[2:4] == ["create report", "create one"]


@in_virtual_time
async def test_an_event_is_created_once_and_again_only_after_a_while() -> None:
    """It is retried if the cluster does not respond, but not if it exists already."""
    bench = LoopUnderTest()
    bench.clusters[UPPER].queue_responses("create", Unreachable("no answer"), AlreadyExists("told"))
    await bench.run(Decision((event(),)))
    await sleep_until(5)
    assert bench.observer.verbs() == ["create told"] * 2
    await bench.run(Decision((event(),)))
    assert bench.observer.verbs() == ["create told"] * 2
    await sleep_until(2 * EVENT_INTERVAL)
    await bench.run(Decision((event(),)))
    assert bench.observer.verbs() == ["create told"] * 3


@in_virtual_time
async def test_a_problem_ends_when_its_step_is_not_wanted_any_more() -> None:
    """The pod was deleted, so its step is neither reported nor retried."""
    bench = LoopUnderTest()
    bench.lower.queue_responses("create", *[Denied("no room")] * 100)
    await bench.run(WANTED)
    await bench.run(Decision())
    assert bench.world.problems == {}
    await sleep_until(100)
    assert tries(bench) == 1


@in_virtual_time
async def test_the_retry_after_of_a_cluster_is_respected() -> None:
    """Even if another change enqueues the key, the step is not retried earlier."""
    bench = LoopUnderTest()
    bench.lower.queue_responses("create", Throttled("slowly", retry_after=30.0))
    await bench.run(WANTED)
    for moment in (1, 10, 29.9):
        await sleep_until(moment)
        bench.loop.add(ONE)
        await bench.loop.wait_idle()
        assert tries(bench) == 1
    await sleep_until(31)
    assert tries(bench) == 2
    assert bench.observer.problems == [Problem("Throttled", "slowly")]


RACE_LOST = (
    Conflict("changed"),
    Denied("the server rejected our request due to an error in our request", status=422, reason="Invalid"),
)
"""The responses to a JSON patch of an older object: by its precondition, or by a path that is absent."""


@pytest.mark.parametrize("error", RACE_LOST, ids=["conflict", "unprocessable"])
@in_virtual_time
async def test_after_a_lost_race_the_patch_is_planned_again_on_the_current_object(error: ClusterError) -> None:
    """Another client wrote first, so the object is read, and the patch gets a new precondition."""
    bench = LoopUnderTest()
    put(bench.world.lowers[A].config_maps, {**copy(), "data": {"key": "old"}})
    theirs = stored({**copy(), "data": {"key": "old", "theirs": "yes"}}, 90)
    bench.lower.queue_responses("patch", error, stored(copy(), 95))
    bench.lower.queue_responses("read", theirs)
    await bench.run(WANTED)
    assert bench.lower.verbs() == ["patch ConfigMap one", "read ConfigMap one"]
    await sleep_until(1)
    patch, _ = bench.lower.calls[-1].payload
    assert {"op": "remove", "path": "/data/theirs"} in patch.body
    assert bench.world.problems == {}
    assert bench.loop.delayed == 0


@in_virtual_time
async def test_an_object_that_vanished_before_its_patch_is_created_again() -> None:
    """The cache records that it is absent, so decisions that depend on that can continue."""
    bench = LoopUnderTest()
    cache = bench.world.lowers[A].config_maps
    put(cache, {**copy(), "data": {"key": "old"}})
    bench.lower.queue_responses("patch", NotFound("gone"))
    await bench.run(WANTED)
    assert cache.tombstone("default", "one") is not None
    await sleep_until(1)
    assert bench.observer.verbs() == ["patch one", "create one"]


@in_virtual_time
async def test_a_delete_with_an_outdated_uid_keeps_the_successor() -> None:
    """The object of that name belongs to another owner now, and the engine's own object is recorded as deleted."""
    bench = LoopUnderTest()
    cache = bench.world.lowers[A].config_maps
    put(cache, copy())

    def end(_: object) -> Decision:
        """Return a decision to delete our object as long as it is cached."""
        known = cache.get("default", "one")
        return Decision((Absent(REF, known.uid, "because"),) if known else ())

    bench.lower.queue_responses("delete", Conflict("another UID"))
    bench.lower.queue_responses("read", stored(config_map("one", uid="theirs"), 90))
    bench.rule.decisions[ONE] = end
    bench.loop.open(A)
    await sleep_until(10)
    assert bench.lower.verbs() == ["delete ConfigMap one", "read ConfigMap one"]
    assert cache.tombstone("default", "one") is not None


@in_virtual_time
async def test_a_failed_read_after_a_conflict_is_retried() -> None:
    """The state of the object is unknown then, so nothing is recorded as deleted."""
    bench = LoopUnderTest()
    put(bench.world.lowers[A].config_maps, {**copy(), "data": {"key": "old"}})
    bench.lower.queue_responses("patch", Conflict("changed"))
    bench.lower.queue_responses("read", Unreachable("no answer"))
    await bench.run(WANTED)
    assert bench.world.lowers[A].config_maps.tombstone("default", "one") is None
    assert bench.loop.delayed == 1
    await sleep_until(1)
    assert bench.observer.errors[-1] is None


FOREIGN = {
    "no owner's": config_map("one"),
    "another owner's": with_owner_marks(config_map("one"), "above", STRANGER),
}


@pytest.mark.parametrize("foreign", FOREIGN.values(), ids=FOREIGN.keys())
@in_virtual_time
async def test_a_name_of_another_owners_object_is_a_conflict_until_it_is_free(foreign: Manifest) -> None:
    """The object is not changed, the conflict is reported once, and the create is retried every few seconds."""
    bench = LoopUnderTest()
    bench.lower.queue_responses("create", *[AlreadyExists("taken")] * 4)
    bench.lower.queue_responses("read", *[stored(foreign, 90)] * 4)
    await bench.run(WANTED)
    assert bench.world.problems[ONE].reason == "NameConflict"
    await sleep_until(60)
    assert {one.verb for one in bench.lower.calls} == {"create", "read"}
    assert (tries(bench), bench.world.problems) == (5, {})
    assert len(bench.observer.problems) == 1


@in_virtual_time
async def test_an_existing_object_of_this_owner_is_cached_and_patched() -> None:
    """The response to its creation was lost, so the engine reads it and updates it."""
    bench = LoopUnderTest()
    bench.lower.queue_responses("create", AlreadyExists("there"))
    bench.lower.queue_responses("read", stored({**copy(), "data": {"key": "old"}}, 90))
    await bench.run(WANTED)
    await sleep_until(1)
    assert bench.lower.verbs() == ["create ConfigMap one", "read ConfigMap one", "patch ConfigMap one"]
    assert bench.observer.problems == []


@in_virtual_time
async def test_a_name_that_is_free_and_in_use_in_turns_is_retried_with_back_off() -> None:
    """Another client may create and delete the object all the time, or the store was restored."""
    bench = LoopUnderTest()
    bench.lower.queue_responses("create", *[AlreadyExists("there")] * 1000)
    await bench.run(WANTED)
    await sleep_until(60)
    assert 5 <= tries(bench) <= 30
    assert bench.observer.problems == []
    await bench.close()


@pytest.mark.parametrize("error", [AlreadyExists("told"), Denied("namespace is ending"), NotFound("no namespace")])
@in_virtual_time
async def test_a_denied_or_existing_event_does_not_block_later_steps(error: ClusterError) -> None:
    """An Event that exists has been recorded, and one that cannot be created must not delay a pod."""
    bench = LoopUnderTest()
    bench.clusters[UPPER].queue_responses("create", error)
    await bench.run(Decision((event(), present())))
    assert bench.observer.verbs() == ["create told", "create one"]
    assert (bench.world.problems, bench.loop.delayed) == ({}, 0)


@in_virtual_time
async def test_an_event_whose_cluster_does_not_respond_does_not_block_later_steps() -> None:
    """The Event is retried, but later steps may be for a cluster that responds."""
    bench = LoopUnderTest()
    bench.clusters[UPPER].queue_responses("create", Unreachable("no answer"))
    emitted = EmitEvent(Ref(UPPER, POD, "default", "web"), "u", "Told", "it is so")
    await bench.run(Decision((emitted, present())))
    await sleep_until(1)
    assert [step.ref.kind for step in bench.observer.steps][:3] == [EVENT, CONFIG_MAP, EVENT]


@in_virtual_time
async def test_a_step_for_a_cluster_without_a_connection_is_retried() -> None:
    """The credentials of the cluster may not be readable yet, which is no problem of the key."""
    bench = LoopUnderTest()
    connection = bench.clusters.pop(A)
    await bench.run(WANTED)
    assert isinstance(bench.observer.errors[0], Unreachable)
    bench.clusters[A] = connection
    await sleep_until(10)
    assert bench.observer.errors[-1] is None
    assert bench.observer.problems == []


@in_virtual_time
async def test_a_confirm_enqueues_its_key_again() -> None:
    """The next decision depends on its result, even if the cache did not change."""
    bench = LoopUnderTest()
    confirm = Decision((VerifyAbsent(REF, "above", "because"),))
    await bench.run(confirm, WANTED)
    assert bench.observer.verbs() == ["confirm one", "create one"]


@in_virtual_time
async def test_an_exception_in_one_rule_stops_no_other_rule() -> None:
    """The exception is reported, and its key is enqueued again after a delay."""
    bench = LoopUnderTest(ScriptedRule(), ScriptedRule("other"))
    fails = [True]

    def failing(_: object) -> Decision:
        """Raise an exception at the first call only."""
        if fails.pop():
            fails.append(False)
            raise ZeroDivisionError
        fails.append(False)
        return Decision((present("late"),))

    bench.rules[1].decisions[TWO._replace(rule="other")] = failing
    await bench.run(WANTED)
    assert [type(one) for one in bench.observer.defects] == [ZeroDivisionError]
    assert bench.observer.verbs() == ["create one"]
    await sleep_until(10)
    assert bench.observer.verbs() == ["create one", "create late"]


@in_virtual_time
async def test_an_unexpected_exception_of_a_step_loses_no_key() -> None:
    """An exception other than a ClusterError is reported, and the key is retried."""
    bench = LoopUnderTest()
    bench.lower.queue_responses("create", ZeroDivisionError())
    await bench.run(WANTED)
    assert [type(one) for one in bench.observer.defects] == [ZeroDivisionError]
    await sleep_until(10)
    assert bench.observer.errors == [None]


@in_virtual_time
async def test_a_key_of_an_unknown_rule_is_reported_as_a_rule_error() -> None:
    """The queue continues with the next key."""
    bench = LoopUnderTest()
    bench.loop.open(A)
    bench.loop.add(ONE._replace(rule="unknown"))
    await bench.run(WANTED)
    assert [type(one) for one in bench.observer.defects] == [KeyError]
    assert bench.observer.verbs() == ["create one"]
    await bench.close()


def change(**spec: str) -> Patched:
    """Return an independent patch of a running pod."""
    fence = {"metadata": {"uid": "uid-pod"}}
    patch = Patch("strategic-merge-patch", {**fence, "spec": spec})
    return Patched(Ref(A, POD, "default", "pod"), patch, "because", "resize", in_plan=True, independent=True)


def forbidden(message: str = "no") -> Denied:
    """Return a denial that is likely to last."""
    return Denied(message, status=403, reason="Forbidden")


@in_virtual_time
async def test_a_refused_independent_step_does_not_block_later_steps() -> None:
    """Later steps are carried out once, and the refused step is retried without a further event."""
    bench = LoopUnderTest()
    bench.lower.queue_responses("patch", *(forbidden() for _ in range(50)))
    await bench.run(Decision((change(size="2"), present())))
    assert bench.observer.verbs() == ["patch pod", "create one"]
    assert bench.world.problems == {ONE: Problem("Forbidden", "no")}
    await sleep_until(300)
    assert 8 < tries(bench, "patch") < 25
    assert tries(bench) == 1
    await bench.close()


@in_virtual_time
async def test_the_problem_combines_the_messages_of_two_refused_steps() -> None:
    """When one of them is not wanted any more, the message of the other one stays."""
    bench = LoopUnderTest()
    bench.lower.queue_responses("patch", forbidden(), forbidden("too large"), *(forbidden() for _ in range(50)))
    await bench.run(Decision((change(size="2"), change(image="b"))))
    assert bench.world.problems[ONE].message == "no; too large"
    await bench.run(Decision((change(image="b"),)))
    assert bench.world.problems[ONE].message == "too large"
    await bench.close()


@in_virtual_time
async def test_a_missing_subresource_of_an_existing_pod_is_a_problem() -> None:
    """An older apiserver does not have the subresource, so a retry does not help."""
    bench = LoopUnderTest()
    pod = make_upper_pod("pod", uid="uid-pod")
    put(bench.world.lowers[A].pods, pod)
    bench.lower.queue_responses("patch", NotFound("the server could not find the requested resource", status=404))
    bench.lower.queue_responses("read", stored(pod, 1))
    await bench.run(Decision((change(size="2"),)))
    assert bench.world.problems == {
        ONE: Problem("NotFound", "resize: the server could not find the requested resource")
    }
    await bench.close()


@in_virtual_time
async def test_a_conflict_of_an_independent_step_does_not_delay_the_next_step() -> None:
    """The next step is carried out at once, before the conflicting step is retried."""
    bench = LoopUnderTest()
    bench.lower.queue_responses("patch", Conflict("changed since", status=409))
    await bench.run(Decision((change(size="2"), present())))
    assert bench.observer.verbs() == ["patch pod", "create one"]
    assert clock() == 0
    await bench.close()
