"""What an engine takes, and how soon it answers, from beginning to end."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from typing import Any, NamedTuple

from bench.kit.rig import Rig

MEMORY_AT_MOST = 300 << 20
"""Bytes of resident memory."""
ANSWERS_IN = 1.0
"""Seconds in which /healthz answers."""
_PAUSE = 0.25
_LIMIT = 30.0


class Sample(NamedTuple):
    """In how many seconds an engine answered, and its resident memory in bytes."""

    seconds: float
    memory: int


class Health:
    """Samples an engine by `look`, which gives None while there is none, in a thread."""

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
        """Return what was measured."""
        return {"rss_mib": self.memory >> 20, "healthz_s": round(self.slowest, 3), "samples": self.samples}

    def broken(self) -> list[str]:
        """Return which bar is not held."""
        said = [f"{self.memory >> 20} MiB of memory"] if self.memory > MEMORY_AT_MOST else []
        return said + ([f"/healthz took {self.slowest:.2f} s"] if self.slowest > ANSWERS_IN else [])


def sample(rig: Rig, is_away: Callable[[], bool]) -> Sample | None:
    """Ask a rig's engine for its health; None where it is away, or goes meanwhile."""
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
