"""The descheduler in the whole engine: what leaves, when, and that no crash makes more leave than may."""

from datetime import timedelta
from itertools import pairwise

import pytest
from deschedulingkit import NOW, ON, A, B, seeker
from leavingkit import Leaving, within_limit
from virtualtime import in_virtual_time
from worldkit import topology

from tensile.names import TRIED
from tensile.objects import EVENT, NODE, UPPER, Manifest, Ref, annotations
from tensile.policy.descheduler.limits import notes_on

SMALL = "descheduler: {enabled: true, cooldown: 10m, maxEvictionsPerNode: 2}\n"
DRY = "descheduler: {enabled: true, dryRun: true}\n"


def replicas(count: int, cpu: str = "3") -> list[Manifest]:
    """Make pods that no node of lower-a has room for."""
    return [seeker(f"web-{place}", cpu=cpu) for place in range(count)]


@in_virtual_time
async def test_a_pod_leaves_soon_after_it_has_waited_long_enough() -> None:
    """Within two intervals of the time that the topology allows it; its lower pod goes with it."""
    stage = Leaving(*replicas(1))
    began = stage.now()
    await stage.passing(6)
    ((name, when),) = stage.left
    assert name == "web-0"
    assert timedelta(seconds=120) <= when - began <= timedelta(seconds=240)
    assert await stage.above() == []
    assert await stage.listed(A) == []
    node = stage.find(Ref(UPPER, NODE, "", A))
    assert node is not None
    assert [note.pod for note in notes_on(node)] == ["Pod-web-0"]
    assert "Rescheduled" in {event["reason"] for event in await stage.listed(UPPER, EVENT)}
    await stage.stop()


@in_virtual_time
async def test_many_leave_by_a_few_in_each_interval() -> None:
    """Never more than two within sixty seconds, and all in the end."""
    stage = Leaving(*replicas(5), more=SMALL)
    await stage.passing(9)
    assert await stage.above() == []
    assert within_limit(stage.left)
    await stage.stop()


@pytest.mark.parametrize("writes", range(1, 9))
def test_a_crash_at_any_write_lets_no_more_leave(writes: int) -> None:
    """The engine dies with the connection after so many writes above, and another begins."""

    @in_virtual_time
    async def crashing() -> None:
        """Play it."""
        stage = Leaving(*replicas(4), more=SMALL)
        await stage.passing(1)
        stage.clusters[UPPER].failing = writes
        await stage.passing(2)
        stage.clusters[UPPER].failing, stage.clusters[UPPER].down = 0, False
        await stage.restart()
        await stage.passing(9)
        assert await stage.above() == []
        assert within_limit(stage.left), stage.left
        await stage.stop()

    crashing()


@in_virtual_time
async def test_nobody_leaves_while_all_lowers_are_full() -> None:
    """However long it lasts; each is told of once."""
    stage = Leaving(*replicas(5), room="2")
    await stage.passing(15)
    assert stage.left == []
    events = [event["involvedObject"]["name"] for event in await stage.listed(UPPER, EVENT)]
    assert sorted(events) == [f"web-{place}" for place in range(5)]
    await stage.stop()


@in_virtual_time
async def test_room_for_one_lets_one_go() -> None:
    """That it leaves is looked at at once, when its room is free still; the others do not count on it."""
    stage = Leaving(*replicas(3), room="4")
    await stage.passing(3)
    assert [name for name, _ in stage.left] == ["web-0"]
    await stage.stop()


@in_virtual_time
async def test_a_dry_run_writes_nothing() -> None:
    """Neither a note nor an event."""
    stage = Leaving(*replicas(2), more=DRY)
    await stage.passing(6)
    assert stage.left == []
    node = stage.find(Ref(UPPER, NODE, "", A))
    assert node is not None
    assert TRIED not in annotations(node)
    assert await stage.listed(UPPER, EVENT) == []
    told = [line.problem.reason for line in stage.script.lines if line.problem]
    assert told == ["DryRun"]
    await stage.stop()


@in_virtual_time
async def test_it_begins_when_it_is_switched_on() -> None:
    """Without another start of the engine; what placement needs is followed from then on."""
    stage = Leaving(*replicas(1), more="")
    await stage.passing(6)
    assert stage.left == []
    stage.reload(topology(f"name: {A}", f"name: {B}", more=ON))
    await stage.passing(2)
    assert [name for name, _ in stage.left] == ["web-0"]
    await stage.stop()


def test_the_limit_is_told_from_times() -> None:
    """What the other tests rest on: three in a minute are too many."""
    start = NOW
    times = [start + timedelta(seconds=seconds) for seconds in (0, 30, 59)]
    assert all(one < other for one, other in pairwise(times))
    assert not within_limit([("x", when) for when in times])
