"""A watch through a proxy, and all faults that can be applied to it while it is open.

A stream passes on line after line; between them it can be held, be made to report that its version is expired, become
permanently silent, end, or break. A `Tamper` handles single events: it returns the lines that are passed on instead of
one line.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, NamedTuple

import orjson

from bench.kit.faultproxy.asked import Asked
from bench.kit.faultproxy.faults import status

End = Literal["expired", "silent", "ended", "reset"]


class Event(NamedTuple):
    """One line of a watch: its type, its object's place, UID and version, and the line as received."""

    type: str
    namespace: str
    name: str
    uid: str
    version: str
    line: bytes


Tamper = Callable[[Asked, Event], Sequence[bytes]]
Send = Callable[[bytes], Awaitable[None]]


def untouched(_asked: Asked, event: Event) -> Sequence[bytes]:
    """Pass an event on as it is."""
    return (event.line,)


def event_of(line: bytes) -> Event:
    """Parse a line of a watch."""
    told: dict[str, Any] = orjson.loads(line)
    meta = told["object"].get("metadata") or {}
    found = [str(meta.get(field, "")) for field in ("namespace", "name", "uid", "resourceVersion")]
    return Event(told["type"], found[0], found[1], found[2], found[3], line)


def expired() -> bytes:
    """Return the line with which an apiserver reports that a watch cannot continue from a version."""
    told = {"type": "ERROR", "object": status(410, "too old resource version: 1 (2)")}
    return orjson.dumps(told) + b"\n"


class Stream:
    """One open watch; `asked` is its request, `passed` is the number of lines that it has passed on."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.passed = 0
        self._open = asyncio.Event()
        self._open.set()
        self._ordered: asyncio.Future[End] = asyncio.get_running_loop().create_future()

    def hold(self) -> None:
        """Pass nothing on until `release`, which then passes on all lines in their order."""
        self._open.clear()

    def release(self) -> None:
        """Pass lines on again."""
        self._open.set()

    def order(self, end: End) -> None:
        """End the stream in this way, even if lines are still pending."""
        if not self._ordered.done():
            self._ordered.set_result(end)

    async def carry(self, lines: Any, tamper: Tamper, send: Send) -> End:
        """Pass lines on until the apiserver ends the watch or an end is ordered, and return the end."""
        pump = asyncio.create_task(self._pump(lines, tamper, send))
        try:
            either: tuple[asyncio.Future[Any], ...] = (pump, self._ordered)
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)
        return self._ordered.result() if self._ordered.done() else "ended"

    async def _pump(self, lines: Any, tamper: Tamper, send: Send) -> None:
        while line := await lines.readline():
            await self._open.wait()
            for out in tamper(self.asked, event_of(line)):
                await send(out)
                self.passed += 1
