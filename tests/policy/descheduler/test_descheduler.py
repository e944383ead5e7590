"""Tests of the descheduler in the whole engine: which pods are evicted, when, and that no crash exceeds the limit."""

from datetime import timedelta
from itertools import pairwise

import pytest
from deschedulingkit import NOW, ON, A, B, requesting_pod
from leavingkit import EvictionSimulation, within_limit
from virtualtime import in_virtual_time
from worldkit import make_topology

from tensile.names import TRIED
from tensile.objects import EVENT, NODE, UPPER, Manifest, Ref, annotations
from tensile.policy.descheduler.limits import eviction_records

SMALL = "descheduler: {enabled: true, cooldown: 10m, maxEvictionsPerNode: 2}\n"
DRY = "descheduler: {enabled: true, dryRun: true}\n"


def replicas(count: int, cpu: str = "3") -> list[Manifest]:
    """Create pods that no node of lower-a has room for."""
    return [requesting_pod(f"web-{place}", cpu=cpu) for place in range(count)]


@in_virtual_time
async def test_an_unschedulable_pod_is_evicted_within_two_intervals() -> None:
    """The two minutes that the topology allows count first; its lower pod is deleted too, and the Node records it."""
    simulation = EvictionSimulation(*replicas(1))
    began = simulation.now()
    await simulation.advance_minutes(6)
    ((name, when),) = simulation.evictions
    assert name == "web-0"
    assert timedelta(seconds=120) <= when - began <= timedelta(seconds=240)
    assert await simulation.upper_pod_names() == []
    assert await simulation.listed(A) == []
    node = simulation.find(Ref(UPPER, NODE, "", A))
    assert node is not None
    assert [note.pod for note in eviction_records(node)] == ["Pod-web-0"]
    assert "Rescheduled" in {event["reason"] for event in await simulation.listed(UPPER, EVENT)}
    await simulation.stop()


@in_virtual_time
async def test_evictions_are_limited_per_interval() -> None:
    """At most two pods are evicted within sixty seconds, and all are evicted in the end."""
    simulation = EvictionSimulation(*replicas(5), more=SMALL)
    await simulation.advance_minutes(9)
    assert await simulation.upper_pod_names() == []
    assert within_limit(simulation.evictions)
    await simulation.stop()


@pytest.mark.parametrize("writes", range(1, 9))
def test_a_crash_at_any_write_does_not_exceed_the_eviction_limit(writes: int) -> None:
    """The connection fails after so many writes to the upper cluster, and another engine starts."""

    @in_virtual_time
    async def crashing() -> None:
        """Run the scenario."""
        simulation = EvictionSimulation(*replicas(4), more=SMALL)
        await simulation.advance_minutes(1)
        simulation.clusters[UPPER].failing = writes
        await simulation.advance_minutes(2)
        simulation.clusters[UPPER].failing, simulation.clusters[UPPER].is_down = 0, False
        await simulation.restart()
        await simulation.advance_minutes(9)
        assert await simulation.upper_pod_names() == []
        assert within_limit(simulation.evictions), simulation.evictions
        await simulation.stop()

    crashing()


@in_virtual_time
async def test_no_pod_is_evicted_while_all_lowers_are_full() -> None:
    """Each pod has one event, however long the lack of room lasts."""
    simulation = EvictionSimulation(*replicas(5), b_cpus="2")
    await simulation.advance_minutes(15)
    assert simulation.evictions == []
    events = [event["involvedObject"]["name"] for event in await simulation.listed(UPPER, EVENT)]
    assert sorted(events) == [f"web-{place}" for place in range(5)]
    await simulation.stop()


@in_virtual_time
async def test_room_for_one_pod_allows_one_eviction() -> None:
    """The remaining pods do not count on the same room while the evicted pod is on its way."""
    simulation = EvictionSimulation(*replicas(3), b_cpus="4")
    await simulation.advance_minutes(3)
    assert [name for name, _ in simulation.evictions] == ["web-0"]
    await simulation.stop()


@in_virtual_time
async def test_a_dry_run_writes_neither_a_record_nor_an_event() -> None:
    """The log reports the dry run once."""
    simulation = EvictionSimulation(*replicas(2), more=DRY)
    await simulation.advance_minutes(6)
    assert simulation.evictions == []
    node = simulation.find(Ref(UPPER, NODE, "", A))
    assert node is not None
    assert TRIED not in annotations(node)
    assert await simulation.listed(UPPER, EVENT) == []
    reasons = [line.problem.reason for line in simulation.observer.records if line.problem]
    assert reasons == ["DryRun"]
    await simulation.stop()


@in_virtual_time
async def test_the_descheduler_starts_when_the_topology_enables_it() -> None:
    """No restart is needed, because the watches for placement start with it."""
    simulation = EvictionSimulation(*replicas(1), more="")
    await simulation.advance_minutes(6)
    assert simulation.evictions == []
    simulation.reload(make_topology(f"name: {A}", f"name: {B}", more=ON))
    await simulation.advance_minutes(2)
    assert [name for name, _ in simulation.evictions] == ["web-0"]
    await simulation.stop()


def test_within_limit_rejects_three_evictions_in_a_minute() -> None:
    """The other tests rely on this helper."""
    start = NOW
    times = [start + timedelta(seconds=seconds) for seconds in (0, 30, 59)]
    assert all(one < other for one, other in pairwise(times))
    assert not within_limit([("x", when) for when in times])
