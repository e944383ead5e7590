"""Tests of the work queue: each key once, one at a time, with delays, and never lost."""

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
    """A queue that records when keys are decided, with the work in `work`."""

    def __init__(self, pace: Pace = FULL_PACE) -> None:
        self.decided: list[tuple[str, float]] = []
        self.work: dict[Key, Callable[[], Work]] = {}
        self.queue = WorkQueue(self.start, pace, clock=clock)

    def start(self, key: Key) -> Work | None:
        """Record the decision, and return the work of the key, None if there is none."""
        self.decided.append((key.name, clock()))
        return self.work[key]() if key in self.work else None

    def names(self) -> list[str]:
        """Return the names of the decided keys, in order."""
        return [name for name, _ in self.decided]


class Job:
    """Work that lasts until it is released, and counts how often it runs, and how often at the same time."""

    def __init__(self, delay: float | None = None) -> None:
        self.go = asyncio.Event()
        self.began = asyncio.Event()
        self.delay = delay
        self.running = self.most = self.runs = 0

    async def __call__(self) -> float | None:
        """Run until released."""
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
async def test_a_key_that_is_added_several_times_is_decided_once() -> None:
    """A queue contains keys, not events."""
    desk = QueueWorker()
    for key in (ONE, TWO, ONE, ONE):
        desk.queue.add(key)
    assert (desk.queue.depth, desk.decided) == (2, [])
    await desk.queue.wait_idle()
    assert desk.names() == ["one", "two"]
    assert desk.queue.depth == 0


@in_virtual_time
async def test_a_key_that_is_added_while_in_progress_is_decided_once_more_afterwards() -> None:
    """Changes during its work are reconciled, and the key is never processed twice at the same time."""
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
async def test_a_key_that_is_added_by_its_own_decision_is_not_processed_twice_at_once() -> None:
    """The decision itself may enqueue the key again."""
    desk, job = QueueWorker(), Job()

    def again() -> Work:
        """Enqueue the key again from within the decision."""
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
async def test_a_key_does_not_wait_for_another_key_in_progress() -> None:
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
async def test_a_turn_of_the_event_loop_decides_no_more_keys_than_the_pace_allows() -> None:
    """Other tasks run in between, and the remaining keys follow in later turns."""
    desk = QueueWorker(Pace(turn=1))
    for key in (ONE, TWO, THREE):
        desk.queue.add(key)
    for count in (1, 2, 3):
        await asyncio.sleep(0)
        assert len(desk.decided) == count


@in_virtual_time
async def test_a_turn_ends_after_the_seconds_of_the_pace() -> None:
    """Some decisions are slow, so other tasks run after a few of them."""
    decided: list[Key] = []
    queue = WorkQueue(decided.append, Pace(seconds=0.005), clock=lambda: 0.003 * len(decided))
    for place in range(5):
        queue.add(ONE._replace(name=str(place)))
    for count in (2, 4, 5):
        await asyncio.sleep(0)
        assert len(decided) == count
    assert queue.depth == 0


@in_virtual_time
async def test_no_more_keys_than_the_limit_are_in_progress() -> None:
    """The number of requests to a cluster is limited, and the next key starts when one is done."""
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
async def test_many_keys_do_not_block_the_event_loop() -> None:
    """A thousand decisions do not delay a watch or the kubelet API until all are made."""
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
async def test_a_delayed_key_is_decided_once_when_it_is_due() -> None:
    """No other event is needed."""
    desk = QueueWorker()
    desk.queue.add_after(ONE, 5.0)
    assert (desk.queue.delayed, desk.queue.depth) == (1, 0)
    await asyncio.sleep(10)
    assert desk.decided == [("one", pytest.approx(5.0))]
    assert desk.queue.delayed == 0


@pytest.mark.parametrize("delays", [(5.0, 300.0), (300.0, 5.0)])
@in_virtual_time
async def test_of_two_delays_of_a_key_the_shorter_applies(delays: tuple[float, float]) -> None:
    """The order of the two calls does not matter, and the longer delay is dropped."""
    desk = QueueWorker()
    for delay in delays:
        desk.queue.add_after(ONE, delay)
    assert desk.queue.delayed == 1
    await asyncio.sleep(1000)
    assert desk.decided == [("one", pytest.approx(5.0))]


@in_virtual_time
async def test_the_result_of_the_work_is_the_delay_of_its_key() -> None:
    """The delay starts at the end of the work."""
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
async def test_wait_idle_does_not_wait_for_delayed_keys() -> None:
    """A heartbeat in five minutes does not make a queue busy."""
    desk = QueueWorker()
    desk.queue.add_after(ONE, 300.0)
    await desk.queue.wait_idle()
    assert clock() == 0.0
    await desk.queue.close()


@in_virtual_time
async def test_wait_idle_waits_for_keys_in_progress() -> None:
    """It also waits for keys that were enqueued again during their work."""
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
async def test_an_exception_in_the_work_of_a_key_frees_its_slot() -> None:
    """The key can be decided again, and the next key is processed."""
    desk = QueueWorker(Pace(limit=1))

    async def failing() -> float | None:
        """Raise an unexpected exception."""
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
async def test_an_exception_in_a_decision_stops_no_other_key() -> None:
    """The other keys are decided, and the queue becomes idle."""
    desk, reported = QueueWorker(), list[object]()

    def failing() -> Work:
        """Raise an unexpected exception."""
        raise ValueError("a defect")

    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["exception"]))
    desk.work[ONE] = failing
    desk.queue.add(ONE)
    desk.queue.add(TWO)
    await desk.queue.wait_idle()
    assert desk.names() == ["one", "two"]
    assert [type(one) for one in reported] == [ValueError]


@in_virtual_time
async def test_expediting_enqueues_keys_that_are_due_soon() -> None:
    """Keys that are due later stay delayed, and the result shows whether any key was expedited."""
    desk = QueueWorker()
    desk.queue.add_after(ONE, 0.5)
    desk.queue.add_after(TWO, 300.0)
    assert desk.queue.expedite(1.0)
    await desk.queue.wait_idle()
    assert (desk.decided, desk.queue.delayed) == ([("one", 0.0)], 1)
    assert not desk.queue.expedite(1.0)
    await desk.queue.close()


@in_virtual_time
async def test_a_closed_queue_processes_no_keys() -> None:
    """Work in progress is canceled, waiting and delayed keys are dropped, and wait_idle returns."""
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
async def test_closing_a_queue_discards_work_that_has_not_started() -> None:
    """Closing right after a decision causes no warning."""
    desk, job = QueueWorker(), Job()
    desk.work[ONE] = job
    desk.queue.add(ONE)
    desk.queue._run_turn()
    await desk.queue.close()
    assert (job.runs, desk.queue.depth) == (0, 0)


@in_virtual_time
async def test_the_queue_measures_how_long_keys_wait_and_are_processed() -> None:
    """As in client-go, a waiting key is not added again, but a key in progress is, and waits from then on."""
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
async def test_durations_are_recorded_by_rule() -> None:
    """All queues share them, because they have the same rules."""
    durations: defaultdict[str, Histogram] = defaultdict(Histogram)
    queue = WorkQueue(lambda _: None, durations=durations, clock=clock)
    queue.add(ONE)
    queue.add(ONE._replace(rule="other"))
    await queue.wait_idle()
    assert {rule: sum(found.counts) for rule, found in durations.items()} == {"rule": 1, "other": 1}
    await queue.close()


@in_virtual_time
async def test_a_key_that_is_added_with_a_delay_counts_as_a_retry() -> None:
    """As in client-go, this also applies if the key was due earlier anyway."""
    worker = QueueWorker()
    worker.queue.add_after(ONE, 1.0)
    worker.queue.add_after(ONE, 2.0)
    assert (worker.queue.read().retries, worker.queue.read().adds) == (2, 0)
    await asyncio.sleep(1.5)
    assert (worker.queue.read().retries, worker.queue.read().adds) == (2, 1)
    await worker.queue.close()
