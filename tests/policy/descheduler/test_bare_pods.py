"""Pods without a controller in the whole engine: they run elsewhere in the end, whatever happens."""

from datetime import timedelta
from typing import Any

import pytest
from deschedulingkit import DRAIN_ONLY, ON, A, B, seeker
from leavingkit import Leaving, within_limit
from virtualtime import in_virtual_time
from worldkit import lower_node, topology

from tensile.names import DESCHEDULE_COUNT, DESCHEDULED, KEPT_OFF, REPLACES
from tensile.objects import EVENT, NODE, POD, SECRET, UPPER, Manifest, Ref, annotations, labels, uid
from tensile.policy.descheduler.replacement import backup_ref

SMALL = "descheduler: {enabled: true, interval: 70s, cooldown: 10m, maxEvictionsPerNode: 2, recreateBarePods: true}\n"
DRAINED = f"name: {A}, maintenance: drain"
WRITES = {f"name: {A}": 22, DRAINED: 25}
ABOVE = Ref(UPPER, POD, "default", "web")
BELOW = Ref(A, POD, "default", "web")
SAFE = backup_ref("default", "Pod-web")


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


def held_up() -> Leaving:
    """Drain lower-a of a pod that a disruption budget keeps from leaving."""
    stage = Leaving(bare(cpu="1"), more=DRAIN_ONLY)
    stage.clusters[UPPER].budgeted.add("web")
    stage.reload(topology(DRAINED, f"name: {B}", more=DRAIN_ONLY))
    return stage


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
    assert told["message"].endswith("the pod that replaces it avoids node lower-a")
    await stage.stop()


@pytest.mark.parametrize(
    ("lower", "writes"), [(lower, number) for lower, most in WRITES.items() for number in range(1, most + 2)]
)
def test_a_crash_at_any_write_loses_no_pod_and_creates_none_twice(lower: str, writes: int) -> None:
    """The engine dies with the connection after so many writes above, and another goes on from the Secrets."""

    @in_virtual_time
    async def crashing() -> None:
        """Play it."""
        stage = Leaving(*(bare(f"web-{place}") for place in range(3)), more=SMALL)
        await stage.passing(1)
        stage.clusters[UPPER].failing = writes
        stage.reload(topology(lower, f"name: {B}", more=SMALL))
        await stage.passing(4)
        assert stage.clusters[UPPER].down == (writes <= WRITES[lower])
        stage.clusters[UPPER].failing, stage.clusters[UPPER].down = 0, False
        await stage.restart()
        await stage.passing(9)
        for place in range(3):
            assert annotations(moved(stage, f"web-{place}"))[DESCHEDULE_COUNT] == "1"
        assert await stage.above() == [f"web-{place}" for place in range(3)]
        assert [pod["metadata"]["name"] for pod in await stage.listed(B)] == await stage.above()
        assert await kept(stage) == []
        assert lower == DRAINED or within_limit(stage.left), stage.left
        await stage.stop()

    crashing()


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
    events = [one for one in await stage.listed(UPPER, EVENT) if one["reason"] == "RecreateFailed"]
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


@in_virtual_time
async def test_a_pod_whose_name_is_taken_is_kept_until_the_name_is_free() -> None:
    """The other pod is left alone, and not adopted, whatever the topology says of other names."""
    stage = Leaving(bare(), more=ON + "onConflict: adopt\n")
    stage.clusters[UPPER].denied["create", "Pod"] = "not yet"
    await stage.passing(6)
    assert await stage.above() == []
    stage.clusters[UPPER].denied.clear()
    other = seeker(ownerReferences=[], node=B, uid="another", labels={"virtual-pod": "true"})
    stage.clusters[UPPER].place(POD, other)
    await stage.passing(1)
    assert (uid(stage.find(ABOVE) or {}), await kept(stage)) == ("another", [SAFE.name])
    (problem,) = stage.world.problems.values()
    assert problem.reason == "NameConflict"
    assert "Pod default/web exists in the upper cluster and has another owner" in problem.message
    await stage.delete(ABOVE, 0)
    await stage.restart()
    await stage.passing(1)
    assert moved(stage)
    assert await kept(stage) == []
    await stage.stop()


@in_virtual_time
async def test_a_pod_that_somebody_deletes_while_it_is_kept_is_not_made_again() -> None:
    """It is drained, and a budget keeps it for now."""
    stage = Leaving(bare(cpu="1"))
    stage.clusters[UPPER].budgeted.add("web")
    stage.reload(topology(DRAINED, f"name: {B}", more=DRAIN_ONLY))
    await stage.passing(2)
    assert await kept(stage) == [SAFE.name]
    await stage.delete(ABOVE)
    await stage.passing(1)
    assert await stage.above() == []
    assert await kept(stage) == []
    await stage.stop()


@in_virtual_time
async def test_a_drain_moves_what_has_no_controller_when_its_budget_allows_it() -> None:
    """It is asked again and again, and it is said why it waits."""
    stage = held_up()
    await stage.passing(3)
    assert await stage.above() == ["web"]
    assert "TooManyRequests" in {problem.reason for problem in stage.world.problems.values()}
    stage.clusters[UPPER].budgeted.clear()
    await stage.passing(2)
    assert annotations(moved(stage))[KEPT_OFF] == A
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
    stage = Leaving(bare(cpu="1"), more=DRAIN_ONLY)
    await stage.passing(1)
    stage.reload(topology(DRAINED, f"name: {B}", more=DRAIN_ONLY))
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
    stage = held_up()
    await stage.passing(2)
    stage.reload(topology(f"name: {A}", f"name: {B}", more=DRAIN_ONLY))
    await stage.passing(1)
    assert await kept(stage) == [SAFE.name]
    stage.clusters[UPPER].budgeted.clear()
    await stage.passing(3)
    assert await kept(stage) == []
    assert stage.find(ABOVE) is not None
    assert uid(stage.find(ABOVE) or {}) == "Pod-web"
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
    assert annotations(pod)[KEPT_OFF] == B
    assert await kept(stage) == []
    await stage.stop()


@in_virtual_time
async def test_what_a_person_would_want_to_know_is_in_the_plan() -> None:
    """Step by step, with the reason: a plan is these very steps on clusters in memory."""
    stage = Leaving(bare(cpu="1"), more=DRAIN_ONLY)
    await stage.passing(1)
    before = len(stage.script.lines)
    stage.reload(topology(DRAINED, f"name: {B}", more=DRAIN_ONLY))
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
    assert "lower cluster lower-a is being drained: it fits on node lower-b (lower-b-n1)" in {
        step.reason for step in said
    }
    await stage.stop()


@in_virtual_time
async def test_one_that_is_backed_up_leaves_together_with_those_that_need_not_be() -> None:
    """Its turn is the pass that backed it up, though others have left by then: a plan of one pass shows it too."""
    stage = Leaving(seeker("owned"), seeker("bare", ownerReferences=[]))
    await stage.passing(4)
    (_, first), (_, second) = stage.left
    assert {name for name, _ in stage.left} == {"owned", "bare"}
    assert second - first < timedelta(seconds=5)
    await stage.stop()


@in_virtual_time
async def test_what_changes_while_a_budget_holds_it_up_is_created_as_it_is_by_then() -> None:
    """It does not leave for what it was: the backup is brought up to date first."""
    stage = held_up()
    await stage.passing(1)
    assert await kept(stage) == [SAFE.name]
    stage.clusters[UPPER].alter(ABOVE, lambda one: one["metadata"].update(labels={"new": "yes"}))
    stage.clusters[UPPER].budgeted.clear()
    await stage.passing(4)
    assert labels(moved(stage))["new"] == "yes"
    assert await kept(stage) == []
    assert not stage.world.problems
    await stage.stop()


OFF = "descheduler: {enabled: true}\n"


@in_virtual_time
async def test_bare_pods_stay_unless_the_topology_has_them_recreated() -> None:
    """Neither the descheduler nor a drain touches them or writes a Secret; both say so."""
    stage = Leaving(bare(), more=OFF)
    await stage.passing(4)
    (problem,) = stage.world.problems.values()
    words = (
        "default/web: not moved: it has no controller; with descheduler.recreateBarePods it moves if another lower "
        "cluster has room"
    )
    assert problem == ("NoController", words)
    stage.reload(topology(DRAINED, f"name: {B}"))
    await stage.passing(2)
    (problem,) = stage.world.problems.values()
    assert problem == ("NoController", f"pods block the drain: {words}")
    assert (uid(stage.find(ABOVE) or {}), await kept(stage), stage.left) == ("Pod-web", [], [])
    await stage.stop()


@in_virtual_time
async def test_a_pod_that_has_left_is_created_again_though_it_is_switched_off_meanwhile() -> None:
    """Its Secret is all that is left of it; a backup of a pod that still runs goes."""
    stage = Leaving(bare("gone", cpu="1"), bare("held", cpu="1"), more=DRAIN_ONLY)
    stage.clusters[UPPER].budgeted.add("held")
    stage.clusters[UPPER].denied["create", "Pod"] = "not yet"
    stage.reload(topology(DRAINED, f"name: {B}", more=DRAIN_ONLY))
    await stage.passing(2)
    assert (await stage.above(), len(await kept(stage))) == (["held"], 2)
    stage.clusters[UPPER].denied.clear()
    stage.reload(topology(DRAINED, f"name: {B}"))
    await stage.passing(4)
    assert moved(stage, "gone")
    assert uid(stage.find(Ref(UPPER, POD, "default", "held")) or {}) == "Pod-held"
    assert await kept(stage) == []
    await stage.stop()
