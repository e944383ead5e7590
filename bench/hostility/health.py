"""What an engine takes, and how soon it answers, from beginning to end."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from typing import Any

from bench.rig import Rig

MEMORY_AT_MOST = 300 << 20
"""Bytes of resident memory."""
ANSWERS_IN = 1.0
"""Seconds in which /healthz answers."""
_PAUSE = 0.25
_LIMIT = 30.0


class Health:
    """Samples an engine; `away` says whether it is not there, or is just coming."""

    def __init__(self, rig: Rig, away: Callable[[], bool]) -> None:
        self.memory = 0
        self.slowest = 0.0
        self.samples = 0
        self._rig = rig
        self._away = away

    async def watch(self) -> None:
        """Sample four times a second, until it is cancelled."""
        while True:
            if not self._away():
                await self._sample()
            await asyncio.sleep(_PAUSE)

    async def _sample(self) -> None:
        """Ask in a thread, so that what goes on here meanwhile delays nothing."""
        taken = await asyncio.to_thread(_asked, self._rig.ports[-1])
        if self._away() or self._rig.child is None or not self._rig.child.is_running:
            return
        self.slowest = max(self.slowest, taken)
        self.memory = max(self.memory, self._rig.child.usage().rss)
        self.samples += 1

    def figures(self) -> dict[str, Any]:
        """Return what was measured."""
        return {"rss_mib": self.memory >> 20, "healthz_s": round(self.slowest, 3), "samples": self.samples}

    def broken(self) -> list[str]:
        """Return which bar is not held."""
        said = [f"{self.memory >> 20} MiB of memory"] if self.memory > MEMORY_AT_MOST else []
        return said + ([f"/healthz took {self.slowest:.2f} s"] if self.slowest > ANSWERS_IN else [])


def _asked(port: int) -> float:
    """Return in how many seconds /healthz answered."""
    connection = HTTPConnection("127.0.0.1", port, timeout=_LIMIT)
    begin = time.monotonic()
    with suppress(OSError, HTTPException):
        connection.request("GET", "/healthz")
        connection.getresponse().read()
    connection.close()
    return time.monotonic() - begin
