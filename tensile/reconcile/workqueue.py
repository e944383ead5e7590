"""The work queue: each key once, one decision per key at a time, and limited concurrency.

A queue holds keys, never events, so a key that changes a hundred times while the cluster is busy is reconciled once.
Each lower has its own queue, so that a slow cluster delays no other.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine
from typing import NamedTuple

from tensile.kube.measures import Histogram
from tensile.reconcile.world import Key

Work = Coroutine[None, None, float | None]


class Pace(NamedTuple):
    """How much of the event loop a queue takes.

    `turn` is the number of decisions per turn of the event loop: 200 are about 10 ms of work. A turn also ends after
    `seconds`, since some decisions take long. `limit` is the maximum of keys in progress.
    """

    turn: int = 200
    limit: int = 96
    seconds: float = 0.05


FULL_PACE = Pace()


class QueueReading(NamedTuple):
    """The state of a work queue, with client-go's terms for its metrics.

    `depth` is the number of keys that wait. `adds` counts the keys that were added, without those that waited already,
    and `retries` those that were added with a delay. `queued` is for how long keys waited, `worked` how long they were
    processed. `unfinished` is the total of the seconds for which the keys in progress have been processed, `longest`
    the longest of them.
    """

    depth: int
    adds: int
    retries: int
    queued: Histogram
    worked: Histogram
    unfinished: float
    longest: float


class WorkQueue:
    """Calls `start(key)` for each added key, and awaits the result in a task of its own.

    `start` decides synchronously and returns None if there is nothing to await. The awaited result is a delay in
    seconds after which the key is enqueued again, or None. `durations` has the time from the start to the end of the
    work, by rule.
    """

    def __init__(
        self,
        start: Callable[[Key], Work | None],
        pace: Pace = FULL_PACE,
        *,
        durations: defaultdict[str, Histogram] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._start = start
        self._pace = pace
        self._durations = durations if durations is not None else defaultdict(Histogram)
        self._clock = clock
        self._adds = self._retries = 0
        self._queued, self._worked = Histogram(), Histogram()
        self._ready: dict[Key, float] = {}
        self._busy: dict[Key, tuple[asyncio.Task[None], Work, float]] = {}
        self._requeued: dict[Key, float] = {}
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._pump: asyncio.Handle | None = None
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def depth(self) -> int:
        """The number of keys that are queued or in progress."""
        return len(self._ready) + len(self._busy)

    @property
    def delayed(self) -> int:
        """The number of keys with a delay."""
        return len(self._timers)

    def read(self) -> QueueReading:
        """Return the present state."""
        now = self._clock()
        running = [now - began for _, _, began in self._busy.values()]
        return QueueReading(
            len(self._ready),
            self._adds,
            self._retries,
            self._queued,
            self._worked,
            sum(running),
            max(running, default=0.0),
        )

    def add(self, key: Key) -> None:
        """Enqueue a key. A key in progress is enqueued again afterwards."""
        if self._closed or key in self._ready or key in self._requeued:
            return
        self._adds += 1
        if key in self._busy:
            self._requeued[key] = self._clock()
        else:
            self._enqueue(key, self._clock())

    def add_after(self, key: Key, delay: float) -> None:
        """Enqueue a key after `delay` seconds, or at its earlier due time."""
        if self._closed:
            return
        self._retries += 1
        loop = asyncio.get_running_loop()
        known = self._timers.get(key)
        if known is not None and known.when() <= loop.time() + delay:
            return
        if known is not None:
            known.cancel()
        self._timers[key] = loop.call_later(delay, self._due, key)

    def expedite(self, within: float) -> bool:
        """Enqueue now the keys that are due within so many seconds. Report whether there were any."""
        latest = asyncio.get_running_loop().time() + within
        due = [key for key, timer in self._timers.items() if timer.when() <= latest]
        for key in due:
            self._timers[key].cancel()
            self._due(key)
        return bool(due)

    async def wait_idle(self) -> None:
        """Wait until no key is queued or in progress. Keys with a delay do not count."""
        await self._idle.wait()

    async def close(self) -> None:
        """Cancel the work in progress and accept no more keys.

        Work whose task was cancelled before it started is closed here. Otherwise Python would warn about it.
        """
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._ready.clear()
        busy = list(self._busy.values())
        for task, _, _ in busy:
            task.cancel()
        await asyncio.gather(*(task for task, _, _ in busy), return_exceptions=True)
        for _, work, _ in busy:
            work.close()
        self._busy.clear()
        self._idle.set()

    def _due(self, key: Key) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def _run_turn(self) -> None:
        self._pump, end = None, self._clock() + self._pace.seconds
        try:
            for _ in range(self._pace.turn):
                if not self._ready or len(self._busy) >= self._pace.limit:
                    break
                self._process(next(iter(self._ready)))
                if self._clock() >= end:
                    break
        finally:
            self._schedule_turn()

    def _process(self, key: Key) -> None:
        """Decide a key."""
        added, began = self._ready.pop(key), self._clock()
        self._queued.observe(began - added)
        work = self._start(key)
        if work is None:
            self._observe_duration(key, began)
        else:
            self._begin(key, work, began)

    def _observe_duration(self, key: Key, began: float) -> None:
        """Record how long a key was processed."""
        seconds = self._clock() - began
        self._worked.observe(seconds)
        self._durations[key.rule].observe(seconds)

    def _enqueue(self, key: Key, added: float) -> None:
        """Enqueue a key that neither waits nor is in progress, and that was added at a time of the clock."""
        self._ready[key] = added
        self._idle.clear()
        if self._pump is None:
            self._pump = asyncio.get_running_loop().call_soon(self._run_turn)

    def _begin(self, key: Key, work: Work, began: float) -> None:
        """Start the work on a key. If its decision enqueued the key again, that runs afterwards, never in parallel."""
        if key in self._ready:
            self._requeued[key] = self._ready.pop(key)
        self._busy[key] = (asyncio.get_running_loop().create_task(self._finish(key, work)), work, began)

    async def _finish(self, key: Key, work: Work) -> None:
        delay: float | None = None
        try:
            delay = await work
        finally:
            _, _, began = self._busy.pop(key)
            self._observe_duration(key, began)
            if delay is not None:
                self.add_after(key, delay)
            added = self._requeued.pop(key, None)
            if added is not None and not self._closed:
                self._enqueue(key, added)
            self._schedule_turn()

    def _schedule_turn(self) -> None:
        if self._ready and self._pump is None and len(self._busy) < self._pace.limit and not self._closed:
            self._pump = asyncio.get_running_loop().call_soon(self._run_turn)
        if not self._ready and not self._busy:
            self._idle.set()
