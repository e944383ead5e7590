"""Keys on their way to a decision: each once, one at a time, later or sooner, and never lost."""

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
from virtualtime import clock, in_virtual_time

from tensile.kube.measures import Histogram
from tensile.reconcile.workqueue import FULL_PACE, Pace, Work, WorkQueue
from tensile.reconcile.world import Key

if TYPE_CHECKING:
    from collections.abc import Callable

ONE, TWO, THREE = (Key("rule", "a", "default", name) for name in ("one", "two", "three"))


class QueueWorker:
    """Decides keys for a queue: notes when, and has work for those that `work` knows."""

    def __init__(self, pace: Pace = FULL_PACE) -> None:
        self.decided: list[tuple[str, float]] = []
        self.work: dict[Key, Callable[[], Work]] = {}
        self.queue = WorkQueue(self.start, pace, clock=clock)

    def start(self, key: Key) -> Work | None:
        """Note the decision and give the work, if there is any."""
        self.decided.append((key.name, clock()))
        return self.work[key]() if key in self.work else None

    def names(self) -> list[str]:
        """Return the names of the keys decided, in order."""
        return [name for name, _ in self.decided]


class Job:
    """Work that lasts until it is let go; counts how often it runs, and how often at once."""

    def __init__(self, delay: float | None = None) -> None:
        self.go = asyncio.Event()
        self.began = asyncio.Event()
        self.delay = delay
        self.running = self.most = self.runs = 0

    async def __call__(self) -> float | None:
        """Run until let go."""
        self.running += 1
        self.runs += 1
        self.most = max(self.most, self.running)
        self.began.set()
        try:
            await self.go.wait()
        finally:
            self.running -= 1
        return self.delay


@in_virtual_time
async def test_a_key_added_often_is_decided_once() -> None:
    """A queue holds keys, not events."""
    desk = QueueWorker()
    for key in (ONE, TWO, ONE, ONE):
        desk.queue.add(key)
    assert (desk.queue.depth, desk.decided) == (2, [])
    await desk.queue.wait_idle()
    assert desk.names() == ["one", "two"]
    assert desk.queue.depth == 0


@in_virtual_time
async def test_a_key_being_worked_on_is_decided_once_more_afterwards() -> None:
    """What changed meanwhile is looked at, once, and never two at a time."""
    desk, job = QueueWorker(), Job()
    desk.work[ONE] = job
    desk.queue.add(ONE)
    await job.began.wait()
    for _ in range(3):
        desk.queue.add(ONE)
    assert desk.names() == ["one"]
    job.go.set()
    await desk.queue.wait_idle()
    assert desk.names() == ["one", "one"]
    assert job.most == 1


@in_virtual_time
async def test_a_key_added_while_it_is_decided_is_never_worked_on_twice_at_once() -> None:
    """The decision itself may lead to the key being looked at again."""
    desk, job = QueueWorker(), Job()

    def again() -> Work:
        """Ask for another look from within the decision."""
        if job.runs == 0:
            desk.queue.add(ONE)
        return job()

    desk.work[ONE] = again
    desk.queue.add(ONE)
    await job.began.wait()
    desk.queue.add(TWO)
    await asyncio.sleep(1)
    assert desk.names() == ["one", "two"]
    job.go.set()
    await desk.queue.wait_idle()
    assert desk.names() == ["one", "two", "one"]
    assert job.most == 1


@in_virtual_time
async def test_another_key_does_not_wait_for_a_busy_one() -> None:
    """Only the same key waits."""
    desk, job = QueueWorker(), Job()
    desk.work[ONE] = job
    desk.queue.add(ONE)
    await job.began.wait()
    desk.queue.add(TWO)
    await asyncio.sleep(0.001)
    assert desk.names() == ["one", "two"]
    await desk.queue.close()


@in_virtual_time
async def test_a_turn_of_the_event_loop_takes_no_more_than_the_pace() -> None:
    """So that others run in between; the rest follows by itself."""
    desk = QueueWorker(Pace(turn=1))
    for key in (ONE, TWO, THREE):
        desk.queue.add(key)
    for count in (1, 2, 3):
        await asyncio.sleep(0)
        assert len(desk.decided) == count


@in_virtual_time
async def test_a_turn_ends_after_the_time_of_the_pace() -> None:
    """Some decisions take long: others run after a few of them, however many the turn may have."""
    decided: list[Key] = []
    queue = WorkQueue(decided.append, Pace(seconds=0.005), clock=lambda: 0.003 * len(decided))
    for place in range(5):
        queue.add(ONE._replace(name=str(place)))
    for count in (2, 4, 5):
        await asyncio.sleep(0)
        assert len(decided) == count
    assert queue.depth == 0


@in_virtual_time
async def test_no_more_than_the_limit_is_in_flight() -> None:
    """A cluster is not asked for more at a time; the next key goes when one is done."""
    desk, jobs = QueueWorker(Pace(limit=2)), [Job(), Job(), Job()]
    for key, job in zip((ONE, TWO, THREE), jobs, strict=True):
        desk.work[key] = job
        desk.queue.add(key)
    await jobs[1].began.wait()
    assert desk.names() == ["one", "two"]
    assert desk.queue.depth == 3
    jobs[1].go.set()
    await jobs[2].began.wait()
    assert desk.names() == ["one", "two", "three"]
    await desk.queue.close()


@in_virtual_time
async def test_many_keys_leave_the_event_loop_its_turns() -> None:
    """A thousand decisions do not keep a watch, or the kubelet API, waiting for all of them."""
    desk = QueueWorker()
    for place in range(1000):
        desk.queue.add(ONE._replace(name=str(place)))
    seen: list[int] = []
    while desk.queue.depth:
        await asyncio.sleep(0)
        seen.append(len(desk.decided))
    assert len(set(seen)) >= 5
    assert len(desk.decided) == 1000


@in_virtual_time
async def test_a_delayed_key_comes_when_it_is_due() -> None:
    """By itself, once."""
    desk = QueueWorker()
    desk.queue.add_after(ONE, 5.0)
    assert (desk.queue.delayed, desk.queue.depth) == (1, 0)
    await asyncio.sleep(10)
    assert desk.decided == [("one", pytest.approx(5.0))]
    assert desk.queue.delayed == 0


@pytest.mark.parametrize("delays", [(5.0, 300.0), (300.0, 5.0)])
@in_virtual_time
async def test_of_two_delays_the_sooner_counts(delays: tuple[float, float]) -> None:
    """Whichever was asked for first; the later one is dropped."""
    desk = QueueWorker()
    for delay in delays:
        desk.queue.add_after(ONE, delay)
    assert desk.queue.delayed == 1
    await asyncio.sleep(1000)
    assert desk.decided == [("one", pytest.approx(5.0))]


@in_virtual_time
async def test_work_says_when_its_key_comes_back() -> None:
    """The delay counts from the end of the work."""
    desk, job = QueueWorker(), Job(delay=5.0)
    desk.work[ONE] = job
    desk.queue.add(ONE)
    await asyncio.sleep(100)
    job.delay = 5.0
    job.go.set()
    await desk.queue.wait_idle()
    assert desk.queue.delayed == 1
    del desk.work[ONE]
    await asyncio.sleep(100)
    assert desk.decided == [("one", 0.0), ("one", pytest.approx(105.0))]


@in_virtual_time
async def test_quiet_does_not_wait_for_what_is_delayed() -> None:
    """A heartbeat in five minutes is no reason to call a queue busy."""
    desk = QueueWorker()
    desk.queue.add_after(ONE, 300.0)
    await desk.queue.wait_idle()
    assert clock() == 0.0
    await desk.queue.close()


@in_virtual_time
async def test_quiet_waits_for_what_is_worked_on() -> None:
    """And for what that leads to."""
    desk, job = QueueWorker(), Job()
    desk.work[ONE] = job
    desk.queue.add(ONE)
    await job.began.wait()
    desk.queue.add(ONE)
    waiting = asyncio.create_task(desk.queue.wait_idle())
    await asyncio.sleep(1)
    assert not waiting.done()
    job.go.set()
    await waiting
    assert job.runs == 2


@in_virtual_time
async def test_work_that_fails_frees_its_place() -> None:
    """Whatever it was: the key can be decided again, and the next one gets its turn."""
    desk = QueueWorker(Pace(limit=1))

    async def failing() -> float | None:
        """Fail in a way that nobody foresaw."""
        raise ValueError("a defect")

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    desk.work[ONE] = failing
    desk.queue.add(ONE)
    desk.queue.add(TWO)
    await desk.queue.wait_idle()
    assert desk.names() == ["one", "two"]
    desk.queue.add(ONE)
    await desk.queue.wait_idle()
    assert desk.names() == ["one", "two", "one"]


@in_virtual_time
async def test_a_decision_that_fails_stops_no_other() -> None:
    """Whatever it was: the other keys are decided, and the queue comes to rest."""
    desk, told = QueueWorker(), list[object]()

    def failing() -> Work:
        """Fail in a way that nobody foresaw."""
        raise ValueError("a defect")

    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
    desk.work[ONE] = failing
    desk.queue.add(ONE)
    desk.queue.add(TWO)
    await desk.queue.wait_idle()
    assert desk.names() == ["one", "two"]
    assert [type(one) for one in told] == [ValueError]


@in_virtual_time
async def test_what_comes_soon_can_come_now() -> None:
    """What comes later does not, and it is said whether there was any."""
    desk = QueueWorker()
    desk.queue.add_after(ONE, 0.5)
    desk.queue.add_after(TWO, 300.0)
    assert desk.queue.expedite(1.0)
    await desk.queue.wait_idle()
    assert (desk.decided, desk.queue.delayed) == ([("one", 0.0)], 1)
    assert not desk.queue.expedite(1.0)
    await desk.queue.close()


@in_virtual_time
async def test_a_closed_queue_does_nothing_any_more() -> None:
    """Work in flight is cancelled, what waits is dropped, delays end, and whoever waits for quiet goes on."""
    desk, job = QueueWorker(), Job()
    desk.work[ONE] = job
    desk.queue.add(ONE)
    await job.began.wait()
    desk.queue.add(ONE)
    desk.queue.add(TWO)
    desk.queue.add_after(THREE, 5.0)
    waiting = asyncio.create_task(desk.queue.wait_idle())
    await desk.queue.close()
    await waiting
    assert (job.running, desk.queue.depth, desk.queue.delayed) == (0, 0, 0)
    desk.queue.add(TWO)
    desk.queue.add_after(THREE, 5.0)
    await asyncio.sleep(100)
    assert desk.names() == ["one"]


@in_virtual_time
async def test_work_that_had_no_chance_to_begin_is_dropped_cleanly() -> None:
    """Closing right after a decision leaves nothing behind, not even a warning."""
    desk, job = QueueWorker(), Job()
    desk.work[ONE] = job
    desk.queue.add(ONE)
    desk.queue._turn()
    await desk.queue.close()
    assert (job.runs, desk.queue.depth) == (0, 0)


@in_virtual_time
async def test_it_tells_how_long_keys_wait_and_work() -> None:
    """With client-go's terms: one that waits already is not added again, one in progress is, and waits from then on."""
    worker, job = QueueWorker(Pace(limit=1)), Job()
    worker.work[ONE] = job
    worker.queue.add(ONE)
    worker.queue.add(ONE)
    worker.queue.add(TWO)
    await job.began.wait()
    await asyncio.sleep(0.2)
    worker.queue.add(ONE)
    worker.queue.add(ONE)
    await asyncio.sleep(0.1)
    now = worker.queue.read()
    assert (now.depth, now.adds, now.retries) == (1, 3, 0)
    assert now.unfinished == now.longest == pytest.approx(0.3)
    assert sum(now.worked.counts) == 0
    job.go.set()
    await worker.queue.wait_idle()
    ended = worker.queue.read()
    assert (ended.depth, ended.adds, ended.unfinished, ended.longest) == (0, 3, 0.0, 0.0)
    assert (sum(ended.queued.counts), sum(ended.worked.counts)) == (3, 3)
    assert ended.queued.total == pytest.approx(0.3 + 0.1)
    assert ended.worked.total == pytest.approx(0.3)
    await worker.queue.close()


@in_virtual_time
async def test_durations_are_kept_by_rule() -> None:
    """For all queues together, whose rules are the same."""
    durations: defaultdict[str, Histogram] = defaultdict(Histogram)
    queue = WorkQueue(lambda _: None, durations=durations, clock=clock)
    queue.add(ONE)
    queue.add(ONE._replace(rule="other"))
    await queue.wait_idle()
    assert {rule: sum(found.counts) for rule, found in durations.items()} == {"rule": 1, "other": 1}
    await queue.close()


@in_virtual_time
async def test_what_is_added_with_a_delay_counts_as_a_retry() -> None:
    """As in client-go, also where the key was due anyway."""
    worker = QueueWorker()
    worker.queue.add_after(ONE, 1.0)
    worker.queue.add_after(ONE, 2.0)
    assert (worker.queue.read().retries, worker.queue.read().adds) == (2, 0)
    await asyncio.sleep(1.5)
    assert (worker.queue.read().retries, worker.queue.read().adds) == (2, 1)
    await worker.queue.close()
