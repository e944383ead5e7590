"""Keys on their way to a decision: each once, one at a time, no more in flight than is good for the cluster.

A queue holds keys, never events, so a key that changes a hundred times while the cluster is busy is decided once. There
is one queue for each lower: what one cluster keeps waiting never waits for another.
"""

import asyncio
from collections.abc import Callable, Coroutine

from tensile.reconcile.world import Key

_TURN = 200
"""Keys decided before the event loop gets its turn: about 10 ms of work."""

Work = Coroutine[None, None, float | None]


class WorkQueue:
    """Runs `start(key)` for each key added; what it returns is awaited as a task of its own.

    `start` decides synchronously and returns None when there is nothing to await. The awaited result is a delay in
    seconds after which the key is looked at again, or None.
    """

    def __init__(self, start: Callable[[Key], Work | None], limit: int = 96) -> None:
        self._start = start
        self._limit = limit
        self._ready: dict[Key, None] = {}
        self._busy: dict[Key, tuple[asyncio.Task[None], Work]] = {}
        self._again: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._pump: asyncio.Handle | None = None
        self._closed = False
        self._quiet = asyncio.Event()
        self._quiet.set()

    @property
    def depth(self) -> int:
        """How many keys wait to be decided, or are being worked on."""
        return len(self._ready) + len(self._busy)

    @property
    def delayed(self) -> int:
        """How many keys come back by themselves later."""
        return len(self._timers)

    def add(self, key: Key) -> None:
        """Have a key decided soon; one that is being worked on is decided again afterwards."""
        if self._closed:
            return
        if key in self._busy:
            self._again.add(key)
            return
        self._ready[key] = None
        self._quiet.clear()
        if self._pump is None:
            self._pump = asyncio.get_running_loop().call_soon(self._turn)

    def later(self, key: Key, delay: float) -> None:
        """Have a key decided after `delay` seconds, or sooner if it was to come sooner."""
        loop = asyncio.get_running_loop()
        known = self._timers.get(key)
        if self._closed or (known is not None and known.when() <= loop.time() + delay):
            return
        if known is not None:
            known.cancel()
        self._timers[key] = loop.call_later(delay, self._due, key)

    def hasten(self, within: float) -> bool:
        """Have what comes back by itself within so many seconds come back now; says whether there was any."""
        latest = asyncio.get_running_loop().time() + within
        due = [key for key, timer in self._timers.items() if timer.when() <= latest]
        for key in due:
            self._timers[key].cancel()
            self._due(key)
        return bool(due)

    async def quiet(self) -> None:
        """Return when no key is waiting or worked on; those that come back later do not count."""
        await self._quiet.wait()

    async def close(self) -> None:
        """Stop: work in flight is cancelled, nothing is taken on any more.

        Work whose task was cancelled before its first step is closed here: nobody else would, and Python warns of it.
        """
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._ready.clear()
        busy = list(self._busy.values())
        for task, _ in busy:
            task.cancel()
        await asyncio.gather(*(task for task, _ in busy), return_exceptions=True)
        for _, work in busy:
            work.close()
        self._busy.clear()
        self._quiet.set()

    def _due(self, key: Key) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def _turn(self) -> None:
        self._pump = None
        try:
            for _ in range(_TURN):
                if not self._ready or len(self._busy) >= self._limit:
                    break
                self._take(next(iter(self._ready)))
        finally:
            self._settle()

    def _take(self, key: Key) -> None:
        """Decide a key; whatever comes of it, it does not stand in the others' way."""
        del self._ready[key]
        work = self._start(key)
        if work is not None:
            self._begin(key, work)

    def _begin(self, key: Key, work: Work) -> None:
        """Work on a key; one that its own decision asked for again comes afterwards, never at the same time."""
        if key in self._ready:
            del self._ready[key]
            self._again.add(key)
        self._busy[key] = (asyncio.get_running_loop().create_task(self._finish(key, work)), work)

    async def _finish(self, key: Key, work: Work) -> None:
        delay: float | None = None
        try:
            delay = await work
        finally:
            del self._busy[key]
            if delay is not None:
                self.later(key, delay)
            if key in self._again:
                self._again.discard(key)
                self.add(key)
            self._settle()

    def _settle(self) -> None:
        if self._ready and self._pump is None and len(self._busy) < self._limit and not self._closed:
            self._pump = asyncio.get_running_loop().call_soon(self._turn)
        if not self._ready and not self._busy:
            self._quiet.set()
