"""Pods without a controller in the whole engine: they run elsewhere in the end, whatever happens."""

from datetime import timedelta
from typing import Any

import pytest
from deschedulingkit import ON, A, B, seeker
from leavingkit import Leaving, within_limit
from virtualtime import in_virtual_time
from worldkit import lower_node, topology

from tensile.names import DESCHEDULE_COUNT, DESCHEDULED, KEPT_OFF, PLACE_TAKEN, REPLACES
from tensile.objects import EVENT, NODE, POD, SECRET, UPPER, Manifest, Ref, annotations, labels, uid
from tensile.policy.descheduler.records import PREFIX, ref_of

SMALL = "descheduler: {enabled: true, cooldown: 10m, maxEvictionsPerNode: 2}\n"
DRAINED = f"name: {A}, maintenance: drain"
ABOVE = Ref(UPPER, POD, "default", "web")
BELOW = Ref(A, POD, "default", "web")
SAFE = ref_of("default", "Pod-web")


def bare(name: str = "web", cpu: str = "3", **meta: Any) -> Manifest:
    """Make a pod without a controller that no node of lower-a has room for."""
    return seeker(name, cpu=cpu, ownerReferences=[], annotations={"note": "kept"}, **meta)


async def kept(stage: Leaving) -> list[str]:
    """Return the names of the Secrets that keep pods."""
    return [one["metadata"]["name"] for one in await stage.listed(UPPER, SECRET)]


def moved(stage: Leaving, name: str = "web") -> Manifest:
    """Return the pod that was made in another's place and runs in lower-b."""
    pod = stage.find(Ref(UPPER, POD, "default", name))
    assert pod is not None
    assert pod["spec"]["nodeName"] == B
    assert annotations(pod)[REPLACES] == f"Pod-{name}"
    return pod


@in_virtual_time
async def test_a_pod_without_a_controller_comes_to_run_elsewhere() -> None:
    """With all that it said of itself, kept off the node that it left; nothing is left of the move."""
    stage = Leaving(bare())
    await stage.passing(6)
    pod = moved(stage)
    assert annotations(pod)["note"] == "kept"
    assert (annotations(pod)[DESCHEDULE_COUNT], annotations(pod)[KEPT_OFF]) == ("1", A)
    assert labels(pod)[DESCHEDULED] == "true"
    assert await kept(stage) == []
    assert await stage.listed(A) == []
    assert [one["metadata"]["name"] for one in await stage.listed(B)] == ["web"]
    told = next(one for one in await stage.listed(UPPER, EVENT) if one["reason"] == "Rescheduled")
    assert told["message"].endswith("the pod that is made in its place is kept off lower-a")
    await stage.stop()


@pytest.mark.parametrize("writes", range(1, 14))
def test_a_crash_at_any_write_loses_no_pod_and_lets_no_more_leave(writes: int) -> None:
    """The engine dies with the connection after so many writes above, and another goes on from the Secrets."""

    @in_virtual_time
    async def crashing() -> None:
        """Play it."""
        stage = Leaving(*(bare(f"web-{place}") for place in range(4)), more=SMALL)
        await stage.passing(1)
        stage.clusters[UPPER].failing = writes
        await stage.passing(2)
        stage.clusters[UPPER].failing, stage.clusters[UPPER].down = 0, False
        await stage.restart()
        await stage.passing(9)
        for place in range(4):
            assert annotations(moved(stage, f"web-{place}"))[DESCHEDULE_COUNT] == "1"
        assert await stage.above() == [f"web-{place}" for place in range(4)]
        assert await kept(stage) == []
        assert within_limit(stage.left), stage.left
        await stage.stop()

    crashing()


@in_virtual_time
async def test_nobody_leaves_while_all_lowers_are_full() -> None:
    """Nor is anything kept; each is told of once."""
    stage = Leaving(*(bare(f"web-{place}") for place in range(3)), room="2")
    await stage.passing(10)
    assert stage.left == []
    assert await kept(stage) == []
    events = [event["involvedObject"]["name"] for event in await stage.listed(UPPER, EVENT)]
    assert sorted(events) == [f"web-{place}" for place in range(3)]
    await stage.stop()


@in_virtual_time
async def test_a_pod_that_may_not_be_made_again_is_kept_and_told_and_tried_until_it_is() -> None:
    """A quota says no after it has left; the Secret is what is left of it, also for the next engine."""
    stage = Leaving(bare())
    stage.clusters[UPPER].denied["create", "Pod"] = "exceeded quota: small"
    await stage.passing(6)
    assert await stage.above() == []
    assert await kept(stage) == [SAFE.name]
    await stage.restart()
    await stage.passing(1)
    events = [one for one in await stage.listed(UPPER, EVENT) if one["reason"] == "PodNotMadeAgain"]
    assert {one["involvedObject"]["name"] for one in events} == {SAFE.name}
    assert "exceeded quota: small" in events[0]["message"]
    assert "exceeded quota: small" in {problem.message for problem in stage.world.problems.values()}
    stage.clusters[UPPER].denied.clear()
    await stage.passing(2)
    assert moved(stage)
    assert await kept(stage) == []
    assert not stage.world.problems
    await stage.stop()


@in_virtual_time
async def test_a_pod_that_may_not_be_kept_does_not_leave() -> None:
    """Nobody could make it again."""
    stage = Leaving(bare())
    stage.clusters[UPPER].denied["create", "Secret"] = "secrets is forbidden"
    await stage.passing(6)
    assert stage.left == []
    assert "secrets is forbidden" in {problem.message for problem in stage.world.problems.values()}
    await stage.stop()


ADOPTING = ON + "onConflict: adopt\n"


@in_virtual_time
async def test_a_pod_whose_name_is_taken_is_kept_and_nothing_is_done_until_a_person_has_spoken() -> None:
    """Not even when the name is free again: somebody may have meant the other one to be the last.

    Nor is that one taken over, whatever the topology says of other names.
    """
    stage = Leaving(bare(), more=ADOPTING)
    stage.clusters[UPPER].denied["create", "Pod"] = "not yet"
    await stage.passing(6)
    assert await stage.above() == []
    stage.clusters[UPPER].denied.clear()
    stage.clusters[UPPER].place(POD, seeker(ownerReferences=[], node=B, uid="another", labels={"virtual-pod": "true"}))
    await stage.passing(1)
    secret = stage.find(SAFE)
    assert secret is not None
    assert PLACE_TAKEN in annotations(secret)
    (problem,) = stage.world.problems.values()
    assert problem.reason == "PodPlaceTaken"
    assert f"Secret default/{SAFE.name}" in problem.message
    await stage.delete(ABOVE, 0)
    await stage.restart()
    await stage.passing(2)
    assert await stage.above() == []
    stage.clusters[UPPER].alter(SAFE, lambda one: one["metadata"]["annotations"].pop(PLACE_TAKEN))
    await stage.passing(1)
    assert moved(stage)
    assert await kept(stage) == []
    await stage.stop()


@in_virtual_time
async def test_a_pod_that_somebody_deletes_while_it_is_kept_is_not_made_again() -> None:
    """It is drained, and a budget keeps it for now."""
    stage = Leaving(bare(cpu="1"))
    stage.clusters[UPPER].budgeted.add("web")
    stage.reload(topology(DRAINED, f"name: {B}"))
    await stage.passing(2)
    assert await kept(stage) == [SAFE.name]
    await stage.delete(ABOVE)
    await stage.passing(1)
    assert await stage.above() == []
    assert await kept(stage) == []
    await stage.stop()


@in_virtual_time
async def test_a_drain_moves_what_has_no_controller_when_its_budget_allows_it() -> None:
    """It is asked again and again; what it was not kept off it is not kept off."""
    stage = Leaving(bare(cpu="1"), more="")
    await stage.passing(1)
    stage.clusters[UPPER].budgeted.add("web")
    stage.reload(topology(DRAINED, f"name: {B}"))
    await stage.passing(3)
    assert await stage.above() == ["web"]
    assert "TooManyRequests" in {problem.reason for problem in stage.world.problems.values()}
    stage.clusters[UPPER].budgeted.clear()
    await stage.passing(2)
    assert KEPT_OFF not in annotations(moved(stage))
    assert await kept(stage) == []
    assert not stage.world.problems
    await stage.stop()


def held(pod: Manifest) -> None:
    """Keep a lower pod from going, which was to be preempted once, and was not."""
    pod["metadata"]["finalizers"] = ["example.com/held"]
    denied = {"type": "DisruptionTarget", "status": "False", "reason": "PreemptionByScheduler"}
    pod["status"] = {"phase": "Pending", "conditions": [denied]}


@in_virtual_time
async def test_what_the_lower_pod_says_of_a_disruption_does_not_lose_one_that_was_evicted() -> None:
    """It denies one while the pod above is ending; that was evicted all the same."""
    stage = Leaving(bare(cpu="1"), more="")
    await stage.passing(1)
    stage.reload(topology(DRAINED, f"name: {B}"))
    stage.clusters[A].alter(BELOW, held)
    await stage.passing(2)
    assert "deletionTimestamp" in (stage.find(ABOVE) or {})["metadata"]
    stage.clusters[A].alter(BELOW, lambda one: one["metadata"].pop("finalizers"))
    await stage.passing(2)
    assert moved(stage)
    assert await kept(stage) == []
    await stage.stop()


@in_virtual_time
async def test_a_drain_that_is_taken_back_lets_go_of_what_it_kept() -> None:
    """After a while, in which an eviction that was sent would have come; the pod stays as it was."""
    stage = Leaving(bare(cpu="1"), more="")
    stage.clusters[UPPER].budgeted.add("web")
    stage.reload(topology(DRAINED, f"name: {B}"))
    await stage.passing(2)
    stage.reload(topology(f"name: {A}", f"name: {B}"))
    await stage.passing(1)
    assert await kept(stage) == [SAFE.name]
    stage.clusters[UPPER].budgeted.clear()
    await stage.passing(3)
    assert await kept(stage) == []
    assert stage.find(ABOVE) is not None
    assert uid(stage.find(ABOVE) or {}) == "Pod-web"
    await stage.stop()


@in_virtual_time
async def test_what_fits_nowhere_stays_while_its_node_is_drained() -> None:
    """And it is said why; what others leave comes to be looked at again."""
    stage = Leaving(bare(cpu="3"), more="", room="2")
    stage.reload(topology(DRAINED, f"name: {B}"))
    await stage.passing(2)
    (problem,) = stage.world.problems.values()
    assert problem.reason == "FitsNowhereElse"
    assert problem.message.startswith(
        "default/web: it has no controller, and fits in no other lower cluster: lower-b: "
    )
    assert (await stage.above(), await kept(stage)) == (["web"], [])
    await stage.stop()


@in_virtual_time
async def test_a_second_move_counts_on_and_keeps_what_the_first_one_kept() -> None:
    """The node that it left first takes it again once the cooldown is over: there is room by then."""
    stage = Leaving(bare(), more=ON)
    await stage.passing(6)
    first = uid(moved(stage))
    stage.reload(topology(f"name: {A}", f"name: {B}, maintenance: drain", more=ON))
    await stage.passing(15)
    assert await stage.above() == ["web"], "lower-a has no room"
    stage.clusters[A].place(NODE, lower_node("roomy", "64"))
    await stage.passing(3)
    pod = stage.find(ABOVE)
    assert pod is not None
    assert pod["spec"]["nodeName"] == A
    assert annotations(pod)["note"] == "kept"
    assert (annotations(pod)[DESCHEDULE_COUNT], annotations(pod)[REPLACES]) == ("2", first)
    assert KEPT_OFF not in annotations(pod)
    assert await kept(stage) == []
    await stage.stop()


@in_virtual_time
async def test_secrets_of_others_by_such_a_name_are_none_of_ours() -> None:
    """What is in one is not made, whatever it says; nor is it read as ours."""
    stage = Leaving()
    secret = {"metadata": {"name": PREFIX + "x", "namespace": "default"}, "data": {"pod.json": "e30="}}
    stage.clusters[UPPER].place(SECRET, secret)
    await stage.passing(2)
    assert await kept(stage) == [PREFIX + "x"]
    assert await stage.above() == []
    await stage.stop()


@in_virtual_time
async def test_what_a_person_would_want_to_know_is_in_the_plan() -> None:
    """Step by step, with the reason: a plan is these very steps on clusters in memory."""
    stage = Leaving(bare(cpu="1"), more="")
    await stage.passing(1)
    before = len(stage.script.lines)
    stage.reload(topology(DRAINED, f"name: {B}"))
    await stage.calm()
    said = [line.step for line in stage.script.lines[before:] if line.step and line.step.in_plan]
    assert [(step.verb, str(step.ref), step.subresource) for step in said if step.ref.kind != NODE] == [
        ("create", f"upper: Secret default/{SAFE.name}", ""),
        ("delete", "upper: Pod default/web", "eviction"),
        ("delete", "lower-a: Pod default/web", ""),
        ("delete", "upper: Pod default/web", ""),
        ("create", "upper: Pod default/web", ""),
        ("delete", f"upper: Secret default/{SAFE.name}", ""),
    ]
    assert "lower cluster lower-a is drained, and the pod fits on node lower-b (lower-b-n1)" in {
        step.reason for step in said
    }
    await stage.stop()


@in_virtual_time
async def test_a_pod_that_somebody_holds_is_made_again_when_it_is_let_go() -> None:
    """With a finalizer it is told to have ended, and stays for its holder to see that."""
    stage = Leaving(bare(cpu="1", finalizers=["example.com/held"]), more="")
    await stage.passing(1)
    stage.reload(topology(DRAINED, f"name: {B}"))
    await stage.passing(2)
    held = stage.find(ABOVE)
    assert held is not None
    assert (uid(held), held["status"]["phase"]) == ("Pod-web", "Failed")
    assert await kept(stage) == [SAFE.name]
    stage.clusters[UPPER].alter(ABOVE, lambda one: one["metadata"].pop("finalizers"))
    await stage.passing(2)
    assert moved(stage)["metadata"]["finalizers"] == ["example.com/held"]
    assert await kept(stage) == []
    await stage.stop()


@in_virtual_time
async def test_one_that_is_kept_leaves_together_with_those_that_need_not_be() -> None:
    """Its turn is the pass that kept it, though others have left by the time it is safe."""
    stage = Leaving(seeker("owned"), seeker("bare", ownerReferences=[]))
    await stage.passing(4)
    (_, first), (_, second) = stage.left
    assert {name for name, _ in stage.left} == {"owned", "bare"}
    assert second - first < timedelta(seconds=5)
    await stage.stop()


@in_virtual_time
async def test_what_changes_while_a_budget_holds_it_up_is_made_as_it_is_by_then() -> None:
    """What was kept first is let go of, and the pod is kept anew before it leaves."""
    stage = Leaving(bare(cpu="1"), more="")
    stage.clusters[UPPER].budgeted.add("web")
    stage.reload(topology(DRAINED, f"name: {B}"))
    await stage.passing(1)
    assert await kept(stage) == [SAFE.name]
    stage.clusters[UPPER].alter(ABOVE, lambda one: one["metadata"].update(labels={"new": "yes"}))
    await stage.passing(1)
    stage.clusters[UPPER].budgeted.clear()
    await stage.passing(1)
    assert uid(stage.find(ABOVE) or {}) == "Pod-web", "it does not leave for what it was"
    await stage.passing(4)
    assert labels(moved(stage))["new"] == "yes"
    assert await kept(stage) == []
    assert not stage.world.problems
    await stage.stop()


@in_virtual_time
async def test_of_two_for_whom_there_is_one_place_one_stays() -> None:
    """A pod that could run nowhere else goes on where it is, in whatever moment of the other's move it is looked at."""
    stage = Leaving(bare("one", cpu="1"), bare("two", cpu="1"), more="", room="1")
    stage.clusters[UPPER].denied["create", "Pod"] = "not yet"
    stage.reload(topology(DRAINED, f"name: {B}"))
    await stage.passing(2)
    stage.clusters[UPPER].denied.clear()
    await stage.passing(2)
    assert moved(stage, "one")
    assert [name for name, _ in stage.left] == ["one"]
    (problem,) = stage.world.problems.values()
    assert problem.message.startswith("default/two: ")
    await stage.stop()
