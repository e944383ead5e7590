"""Tests of bare pods in the whole engine: they finally run in another lower cluster, whatever fails in between."""

from datetime import timedelta
from typing import Any

import pytest
from deschedulingkit import DRAIN_ONLY, ON, A, B, requesting_pod
from leavingkit import EvictionSimulation, within_limit
from virtualtime import in_virtual_time
from worldkit import make_lower_node, make_topology

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
    return requesting_pod(name, cpu=cpu, ownerReferences=[], annotations={"note": "kept"}, **meta)


async def kept(simulation: EvictionSimulation) -> list[str]:
    """Return the names of the backup Secrets."""
    return [one["metadata"]["name"] for one in await simulation.listed(UPPER, SECRET)]


def moved(simulation: EvictionSimulation, name: str = "web") -> Manifest:
    """Return the pod that replaces another and runs in lower-b."""
    pod = simulation.find(Ref(UPPER, POD, "default", name))
    assert pod is not None
    assert pod["spec"]["nodeName"] == B
    assert annotations(pod)[REPLACES] == f"Pod-{name}"
    return pod


def held_up() -> EvictionSimulation:
    """Drain lower-a of a pod that a disruption budget keeps from being evicted."""
    simulation = EvictionSimulation(bare(cpu="1"), more=DRAIN_ONLY)
    simulation.clusters[UPPER].budget_protected.add("web")
    simulation.reload(make_topology(DRAINED, f"name: {B}", more=DRAIN_ONLY))
    return simulation


@in_virtual_time
async def test_an_unschedulable_bare_pod_is_moved_to_another_lower() -> None:
    """It has the same annotations and avoids the node that it left; its backup and its lower pod are deleted."""
    simulation = EvictionSimulation(bare())
    await simulation.advance_minutes(6)
    pod = moved(simulation)
    assert annotations(pod)["note"] == "kept"
    assert (annotations(pod)[DESCHEDULE_COUNT], annotations(pod)[KEPT_OFF]) == ("1", A)
    assert labels(pod)[DESCHEDULED] == "true"
    assert await kept(simulation) == []
    assert await simulation.listed(A) == []
    assert [one["metadata"]["name"] for one in await simulation.listed(B)] == ["web"]
    event = next(one for one in await simulation.listed(UPPER, EVENT) if one["reason"] == "Rescheduled")
    assert event["message"].endswith("the pod that replaces it avoids node lower-a")
    await simulation.stop()


@pytest.mark.parametrize(
    ("lower", "writes"), [(lower, number) for lower, most in WRITES.items() for number in range(1, most + 2)]
)
def test_a_crash_at_any_write_loses_no_pod_and_creates_none_twice(lower: str, writes: int) -> None:
    """The connection fails after so many upper writes, and the next engine continues from the Secrets."""

    @in_virtual_time
    async def crashing() -> None:
        """Run the scenario."""
        simulation = EvictionSimulation(*(bare(f"web-{place}") for place in range(3)), more=SMALL)
        await simulation.advance_minutes(1)
        simulation.clusters[UPPER].failing = writes
        simulation.reload(make_topology(lower, f"name: {B}", more=SMALL))
        await simulation.advance_minutes(4)
        assert simulation.clusters[UPPER].is_down == (writes <= WRITES[lower])
        simulation.clusters[UPPER].failing, simulation.clusters[UPPER].is_down = 0, False
        await simulation.restart()
        await simulation.advance_minutes(9)
        for place in range(3):
            assert annotations(moved(simulation, f"web-{place}"))[DESCHEDULE_COUNT] == "1"
        assert await simulation.upper_pod_names() == [f"web-{place}" for place in range(3)]
        assert [pod["metadata"]["name"] for pod in await simulation.listed(B)] == await simulation.upper_pod_names()
        assert await kept(simulation) == []
        assert lower == DRAINED or within_limit(simulation.evictions), simulation.evictions
        await simulation.stop()

    crashing()


@in_virtual_time
async def test_a_backup_is_kept_and_retried_until_the_pod_can_be_created() -> None:
    """A quota refuses the new pod, so only the Secret remains; it has an event, and the next engine continues."""
    simulation = EvictionSimulation(bare())
    simulation.clusters[UPPER].denied["create", "Pod"] = "exceeded quota: small"
    await simulation.advance_minutes(6)
    assert await simulation.upper_pod_names() == []
    assert await kept(simulation) == [SAFE.name]
    await simulation.restart()
    await simulation.advance_minutes(1)
    events = [one for one in await simulation.listed(UPPER, EVENT) if one["reason"] == "RecreateFailed"]
    assert {one["involvedObject"]["name"] for one in events} == {SAFE.name}
    assert "exceeded quota: small" in events[0]["message"]
    assert "exceeded quota: small" in {problem.message for problem in simulation.world.problems.values()}
    simulation.clusters[UPPER].denied.clear()
    await simulation.advance_minutes(2)
    assert moved(simulation)
    assert await kept(simulation) == []
    assert not simulation.world.problems
    await simulation.stop()


@in_virtual_time
async def test_a_bare_pod_is_not_evicted_if_its_backup_is_refused() -> None:
    """Without a backup no engine could create it again."""
    simulation = EvictionSimulation(bare())
    simulation.clusters[UPPER].denied["create", "Secret"] = "secrets is forbidden"
    await simulation.advance_minutes(6)
    assert simulation.evictions == []
    assert "secrets is forbidden" in {problem.message for problem in simulation.world.problems.values()}
    await simulation.stop()


@in_virtual_time
async def test_a_backup_is_kept_until_the_pods_name_is_free() -> None:
    """The other pod of that name is not adopted, even with onConflict: adopt."""
    simulation = EvictionSimulation(bare(), more=ON + "onConflict: adopt\n")
    simulation.clusters[UPPER].denied["create", "Pod"] = "not yet"
    await simulation.advance_minutes(6)
    assert await simulation.upper_pod_names() == []
    simulation.clusters[UPPER].denied.clear()
    other = requesting_pod(ownerReferences=[], node=B, uid="another", labels={"virtual-pod": "true"})
    simulation.clusters[UPPER].place(POD, other)
    await simulation.advance_minutes(1)
    assert (uid(simulation.find(ABOVE) or {}), await kept(simulation)) == ("another", [SAFE.name])
    (problem,) = simulation.world.problems.values()
    assert problem.reason == "NameConflict"
    assert "Pod default/web exists in the upper cluster and has another owner" in problem.message
    await simulation.delete(ABOVE, 0)
    await simulation.restart()
    await simulation.advance_minutes(1)
    assert moved(simulation)
    assert await kept(simulation) == []
    await simulation.stop()


@in_virtual_time
async def test_a_backed_up_pod_that_a_user_deletes_is_not_created_again() -> None:
    """A drain backed it up, and a disruption budget delayed its eviction."""
    simulation = EvictionSimulation(bare(cpu="1"))
    simulation.clusters[UPPER].budget_protected.add("web")
    simulation.reload(make_topology(DRAINED, f"name: {B}", more=DRAIN_ONLY))
    await simulation.advance_minutes(2)
    assert await kept(simulation) == [SAFE.name]
    await simulation.delete(ABOVE)
    await simulation.advance_minutes(1)
    assert await simulation.upper_pod_names() == []
    assert await kept(simulation) == []
    await simulation.stop()


@in_virtual_time
async def test_a_drain_moves_a_bare_pod_when_its_disruption_budget_allows_it() -> None:
    """The eviction is retried, and the problem has the reason of the delay."""
    simulation = held_up()
    await simulation.advance_minutes(3)
    assert await simulation.upper_pod_names() == ["web"]
    assert "TooManyRequests" in {problem.reason for problem in simulation.world.problems.values()}
    simulation.clusters[UPPER].budget_protected.clear()
    await simulation.advance_minutes(2)
    assert annotations(moved(simulation))[KEPT_OFF] == A
    assert await kept(simulation) == []
    assert not simulation.world.problems
    await simulation.stop()


def held(pod: Manifest) -> None:
    """Block the deletion of a lower pod that once was a preemption candidate and was not preempted."""
    pod["metadata"]["finalizers"] = ["example.com/held"]
    denied = {"type": "DisruptionTarget", "status": "False", "reason": "PreemptionByScheduler"}
    pod["status"] = {"phase": "Pending", "conditions": [denied]}


@in_virtual_time
async def test_a_lower_pods_false_disruption_condition_does_not_lose_an_evicted_pod() -> None:
    """The lower pod denies a disruption while the upper pod terminates, but the upper pod was evicted."""
    simulation = EvictionSimulation(bare(cpu="1"), more=DRAIN_ONLY)
    await simulation.advance_minutes(1)
    simulation.reload(make_topology(DRAINED, f"name: {B}", more=DRAIN_ONLY))
    simulation.clusters[A].alter(BELOW, held)
    await simulation.advance_minutes(2)
    assert "deletionTimestamp" in (simulation.find(ABOVE) or {})["metadata"]
    simulation.clusters[A].alter(BELOW, lambda one: one["metadata"].pop("finalizers"))
    await simulation.advance_minutes(2)
    assert moved(simulation)
    assert await kept(simulation) == []
    await simulation.stop()


@in_virtual_time
async def test_a_cancelled_drain_deletes_its_backups_after_a_delay() -> None:
    """An eviction that was already sent may still arrive during the delay; the pod is unchanged."""
    simulation = held_up()
    await simulation.advance_minutes(2)
    simulation.reload(make_topology(f"name: {A}", f"name: {B}", more=DRAIN_ONLY))
    await simulation.advance_minutes(1)
    assert await kept(simulation) == [SAFE.name]
    simulation.clusters[UPPER].budget_protected.clear()
    await simulation.advance_minutes(3)
    assert await kept(simulation) == []
    assert simulation.find(ABOVE) is not None
    assert uid(simulation.find(ABOVE) or {}) == "Pod-web"
    await simulation.stop()


@in_virtual_time
async def test_a_second_move_increments_the_count_and_keeps_the_annotations() -> None:
    """The first node is eligible again after the cooldown, because it has room by then."""
    simulation = EvictionSimulation(bare(), more=ON)
    await simulation.advance_minutes(6)
    first = uid(moved(simulation))
    simulation.reload(make_topology(f"name: {A}", f"name: {B}, maintenance: drain", more=ON))
    await simulation.advance_minutes(15)
    assert await simulation.upper_pod_names() == ["web"], "lower-a has no room"
    simulation.clusters[A].place(NODE, make_lower_node("roomy", "64"))
    await simulation.advance_minutes(3)
    pod = simulation.find(ABOVE)
    assert pod is not None
    assert pod["spec"]["nodeName"] == A
    assert annotations(pod)["note"] == "kept"
    assert (annotations(pod)[DESCHEDULE_COUNT], annotations(pod)[REPLACES]) == ("2", first)
    assert annotations(pod)[KEPT_OFF] == B
    assert await kept(simulation) == []
    await simulation.stop()


@in_virtual_time
async def test_the_plan_has_every_step_of_a_bare_pods_move_with_its_reason() -> None:
    """A plan consists of the same steps on clusters in memory."""
    simulation = EvictionSimulation(bare(cpu="1"), more=DRAIN_ONLY)
    await simulation.advance_minutes(1)
    before = len(simulation.observer.records)
    simulation.reload(make_topology(DRAINED, f"name: {B}", more=DRAIN_ONLY))
    await simulation.advance()
    steps = [line.step for line in simulation.observer.records[before:] if line.step and line.step.in_plan]
    assert [(step.verb, str(step.ref), step.subresource) for step in steps if step.ref.kind != NODE] == [
        ("create", f"upper: Secret default/{SAFE.name}", ""),
        ("delete", "upper: Pod default/web", "eviction"),
        ("delete", "lower-a: Pod default/web", ""),
        ("delete", "upper: Pod default/web", ""),
        ("create", "upper: Pod default/web", ""),
        ("delete", f"upper: Secret default/{SAFE.name}", ""),
    ]
    assert "lower cluster lower-a is being drained: it fits on node lower-b (lower-b-n1)" in {
        step.reason for step in steps
    }
    await simulation.stop()


@in_virtual_time
async def test_a_bare_pod_is_evicted_in_the_pass_that_backed_it_up() -> None:
    """Pods with a controller were evicted seconds before; so a plan of one pass shows both."""
    simulation = EvictionSimulation(requesting_pod("owned"), requesting_pod("bare", ownerReferences=[]))
    await simulation.advance_minutes(4)
    (_, first), (_, second) = simulation.evictions
    assert {name for name, _ in simulation.evictions} == {"owned", "bare"}
    assert second - first < timedelta(seconds=5)
    await simulation.stop()


@in_virtual_time
async def test_a_pod_that_changes_while_its_eviction_is_delayed_is_created_with_the_change() -> None:
    """The backup is updated before the pod is evicted."""
    simulation = held_up()
    await simulation.advance_minutes(1)
    assert await kept(simulation) == [SAFE.name]
    simulation.clusters[UPPER].alter(ABOVE, lambda one: one["metadata"].update(labels={"new": "yes"}))
    simulation.clusters[UPPER].budget_protected.clear()
    await simulation.advance_minutes(4)
    assert labels(moved(simulation))["new"] == "yes"
    assert await kept(simulation) == []
    assert not simulation.world.problems
    await simulation.stop()


OFF = "descheduler: {enabled: true}\n"


@in_virtual_time
async def test_bare_pods_are_not_moved_without_recreate_bare_pods() -> None:
    """Neither the descheduler nor a drain evicts them or writes a Secret; both report why."""
    simulation = EvictionSimulation(bare(), more=OFF)
    await simulation.advance_minutes(4)
    (problem,) = simulation.world.problems.values()
    message = (
        "default/web: not moved: it has no controller; with descheduler.recreateBarePods it moves if another lower "
        "cluster has room"
    )
    assert problem == ("NoController", message)
    simulation.reload(make_topology(DRAINED, f"name: {B}"))
    await simulation.advance_minutes(2)
    (problem,) = simulation.world.problems.values()
    assert problem == ("NoController", f"pods block the drain: {message}")
    assert (uid(simulation.find(ABOVE) or {}), await kept(simulation), simulation.evictions) == ("Pod-web", [], [])
    await simulation.stop()


@in_virtual_time
async def test_an_evicted_pod_is_created_again_after_recreate_bare_pods_is_disabled() -> None:
    """Only the Secret remains of that pod; a backup of a pod that still runs is deleted."""
    simulation = EvictionSimulation(bare("gone", cpu="1"), bare("held", cpu="1"), more=DRAIN_ONLY)
    simulation.clusters[UPPER].budget_protected.add("held")
    simulation.clusters[UPPER].denied["create", "Pod"] = "not yet"
    simulation.reload(make_topology(DRAINED, f"name: {B}", more=DRAIN_ONLY))
    await simulation.advance_minutes(2)
    assert (await simulation.upper_pod_names(), len(await kept(simulation))) == (["held"], 2)
    simulation.clusters[UPPER].denied.clear()
    simulation.reload(make_topology(DRAINED, f"name: {B}"))
    await simulation.advance_minutes(4)
    assert moved(simulation, "gone")
    assert uid(simulation.find(Ref(UPPER, POD, "default", "held")) or {}) == "Pod-held"
    assert await kept(simulation) == []
    await simulation.stop()
