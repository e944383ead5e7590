"""Tests of bare pods in the whole engine: they finally run in another lower cluster, whatever fails in between."""

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
    """Create a bare pod that no node of lower-a has room for."""
    return seeker(name, cpu=cpu, ownerReferences=[], annotations={"note": "kept"}, **meta)


async def kept(stage: Leaving) -> list[str]:
    """Return the names of the backup Secrets."""
    return [one["metadata"]["name"] for one in await stage.listed(UPPER, SECRET)]


def moved(stage: Leaving, name: str = "web") -> Manifest:
    """Return the pod that replaces another and runs in lower-b."""
    pod = stage.find(Ref(UPPER, POD, "default", name))
    assert pod is not None
    assert pod["spec"]["nodeName"] == B
    assert annotations(pod)[REPLACES] == f"Pod-{name}"
    return pod


def held_up() -> Leaving:
    """Drain lower-a of a pod that a disruption budget keeps from being evicted."""
    stage = Leaving(bare(cpu="1"), more=DRAIN_ONLY)
    stage.clusters[UPPER].budgeted.add("web")
    stage.reload(topology(DRAINED, f"name: {B}", more=DRAIN_ONLY))
    return stage


@in_virtual_time
async def test_an_unschedulable_bare_pod_is_moved_to_another_lower() -> None:
    """It has the same annotations and avoids the node that it left; its backup and its lower pod are deleted."""
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
    """The connection fails after so many upper writes, and the next engine continues from the Secrets."""

    @in_virtual_time
    async def crashing() -> None:
        """Run the scenario."""
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
async def test_a_backup_is_kept_and_retried_until_the_pod_can_be_created() -> None:
    """A quota refuses the new pod, so only the Secret remains; it has an event, and the next engine continues."""
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
async def test_a_bare_pod_is_not_evicted_if_its_backup_is_refused() -> None:
    """Without a backup no engine could create it again."""
    stage = Leaving(bare())
    stage.clusters[UPPER].denied["create", "Secret"] = "secrets is forbidden"
    await stage.passing(6)
    assert stage.left == []
    assert "secrets is forbidden" in {problem.message for problem in stage.world.problems.values()}
    await stage.stop()


@in_virtual_time
async def test_a_backup_is_kept_until_the_pods_name_is_free() -> None:
    """The other pod of that name is not adopted, even with onConflict: adopt."""
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
async def test_a_backed_up_pod_that_a_user_deletes_is_not_created_again() -> None:
    """A drain backed it up, and a disruption budget delayed its eviction."""
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
async def test_a_drain_moves_a_bare_pod_when_its_disruption_budget_allows_it() -> None:
    """The eviction is retried, and the problem has the reason of the delay."""
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
    """Block the deletion of a lower pod that once was a preemption candidate and was not preempted."""
    pod["metadata"]["finalizers"] = ["example.com/held"]
    denied = {"type": "DisruptionTarget", "status": "False", "reason": "PreemptionByScheduler"}
    pod["status"] = {"phase": "Pending", "conditions": [denied]}


@in_virtual_time
async def test_a_lower_pods_false_disruption_condition_does_not_lose_an_evicted_pod() -> None:
    """The lower pod denies a disruption while the upper pod terminates, but the upper pod was evicted."""
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
async def test_a_cancelled_drain_deletes_its_backups_after_a_delay() -> None:
    """An eviction that was already sent may still arrive during the delay; the pod is unchanged."""
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
async def test_a_second_move_increments_the_count_and_keeps_the_annotations() -> None:
    """The first node is eligible again after the cooldown, because it has room by then."""
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
async def test_the_plan_has_every_step_of_a_bare_pods_move_with_its_reason() -> None:
    """A plan consists of the same steps on clusters in memory."""
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
async def test_a_bare_pod_is_evicted_in_the_pass_that_backed_it_up() -> None:
    """Pods with a controller were evicted seconds before; so a plan of one pass shows both."""
    stage = Leaving(seeker("owned"), seeker("bare", ownerReferences=[]))
    await stage.passing(4)
    (_, first), (_, second) = stage.left
    assert {name for name, _ in stage.left} == {"owned", "bare"}
    assert second - first < timedelta(seconds=5)
    await stage.stop()


@in_virtual_time
async def test_a_pod_that_changes_while_its_eviction_is_delayed_is_created_with_the_change() -> None:
    """The backup is updated before the pod is evicted."""
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
async def test_bare_pods_are_not_moved_without_recreate_bare_pods() -> None:
    """Neither the descheduler nor a drain evicts them or writes a Secret; both report why."""
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
async def test_an_evicted_pod_is_created_again_after_recreate_bare_pods_is_disabled() -> None:
    """Only the Secret remains of that pod; a backup of a pod that still runs is deleted."""
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
