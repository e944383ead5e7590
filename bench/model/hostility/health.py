"""The memory of an engine and the latency of its /healthz, sampled during a whole sequence."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from typing import Any, NamedTuple

from bench.kit.rig import Rig

MEMORY_AT_MOST = 300 << 20
"""The limit for resident memory, in bytes."""
ANSWERS_IN = 1.0
"""The limit for the latency of /healthz, in seconds."""
_PAUSE = 0.25
_LIMIT = 30.0


class Sample(NamedTuple):
    """The seconds in which an engine answered, and its resident memory in bytes."""

    seconds: float
    memory: int


class Health:
    """Samples an engine by calling `look` in a thread; `look` returns None while there is no engine."""

    def __init__(self, look: Callable[[], Sample | None]) -> None:
        self.memory = 0
        self.slowest = 0.0
        self.samples = 0
        self._look = look

    async def watch(self) -> None:
        """Sample four times a second, until it is cancelled."""
        while True:
            found = await asyncio.to_thread(self._look)
            if found is not None:
                self.slowest = max(self.slowest, found.seconds)
                self.memory = max(self.memory, found.memory)
                self.samples += 1
            await asyncio.sleep(_PAUSE)

    def figures(self) -> dict[str, Any]:
        """Return the measurements."""
        return {"rss_mib": self.memory >> 20, "healthz_s": round(self.slowest, 3), "samples": self.samples}

    def broken(self) -> list[str]:
        """Return which limits were exceeded."""
        exceeded = [f"{self.memory >> 20} MiB of memory"] if self.memory > MEMORY_AT_MOST else []
        return exceeded + ([f"/healthz took {self.slowest:.2f} s"] if self.slowest > ANSWERS_IN else [])


def sample(rig: Rig, is_away: Callable[[], bool]) -> Sample | None:
    """Request /healthz of a rig's engine; return None if the engine is away or stops during the request."""
    if is_away():
        return None
    connection = HTTPConnection("127.0.0.1", rig.ports[-1], timeout=_LIMIT)
    begin = time.monotonic()
    with suppress(OSError, HTTPException):
        connection.request("GET", "/healthz")
        connection.getresponse().read()
    taken = time.monotonic() - begin
    connection.close()
    if is_away() or rig.child is None or not rig.child.is_running:
        return None
    return Sample(taken, rig.child.usage().rss)
