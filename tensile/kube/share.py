"""How much of the event loop's time the objects of one cluster get.

All clusters are served by one thread, and reading objects is what a cluster can ask for without end: by lists and by
watches, several at a time. So its part of each turn of the loop has a length, and its part of all time a bound. What is
beyond waits in the connection, where the cluster itself has to keep it.
"""

import asyncio
from time import perf_counter, thread_time

from tensile.kube.bounds import SLICE
from tensile.kube.limits import Bucket
from tensile.kube.transport import Clock, Sleep


class Share:
    """The time of one cluster: `part` of all, 0 for no bound, and so many seconds in a `burst`.

    Time is that of the thread, so that what a busy machine takes away counts for none. Reading it is a system call, so
    it is read once the wall clock, which is never behind it and costs a tenth, says that the part may be over.
    """

    def __init__(self, part: float, burst: int, clock: Clock, sleep: Sleep) -> None:
        self._bucket = Bucket(part, burst, clock())
        self._is_bounded = bool(part)
        self._clock = clock
        self._sleep = sleep
        self._began = 0.0
        self._began_by_wall = 0.0
        self._is_spent = False
        self._next = asyncio.Event()

    async def begin(self) -> None:
        """Wait for a turn of the loop in which there is time left; what follows, up to `rest`, is measured."""
        while self._is_spent:
            await self._next.wait()
        self._began, self._began_by_wall = thread_time(), perf_counter()

    @property
    def is_long(self) -> bool:
        """Whether what began has taken its part of a turn."""
        return self._is_bounded and perf_counter() - self._began_by_wall > SLICE and thread_time() - self._began > SLICE

    def _over(self) -> float:
        """Count what has passed since the beginning, and return for how long to wait before there may be more."""
        spent = thread_time() - self._began
        if spent > SLICE and self._is_bounded:
            self._is_spent = True
            self._next.clear()
            asyncio.get_running_loop().call_soon(self._renew)
        return self._bucket.take(self._clock(), spent)

    async def rest(self) -> None:
        """End what began, and return when there may be more."""
        wait = self._over()
        if wait:
            await self._sleep(wait)

    def _renew(self) -> None:
        self._is_spent = False
        self._next.set()
