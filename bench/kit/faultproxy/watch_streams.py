"""A watch through a proxy, and all faults that can be applied to it while it is open.

A stream passes on line after line; between them it can be held, be made to report that its version is expired, become
permanently silent, end, or break. A `Tamper` handles single events: it returns the lines that are passed on instead of
one line.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, NamedTuple

import orjson

from bench.kit.faultproxy.faults import status
from bench.kit.faultproxy.requests import ProxiedRequest

End = Literal["expired", "silent", "ended", "reset"]


class Event(NamedTuple):
    """One line of a watch: its type, its object's place, UID and version, and the line as received."""

    type: str
    namespace: str
    name: str
    uid: str
    version: str
    line: bytes


Tamper = Callable[[ProxiedRequest, Event], Sequence[bytes]]
Send = Callable[[bytes], Awaitable[None]]


def unchanged(_request: ProxiedRequest, event: Event) -> Sequence[bytes]:
    """Pass an event on as it is."""
    return (event.line,)


def parse_event(line: bytes) -> Event:
    """Parse a line of a watch."""
    event: dict[str, Any] = orjson.loads(line)
    meta = event["object"].get("metadata") or {}
    found = [str(meta.get(field, "")) for field in ("namespace", "name", "uid", "resourceVersion")]
    return Event(event["type"], found[0], found[1], found[2], found[3], line)


def expired_event() -> bytes:
    """Return the line with which an apiserver reports that a watch cannot continue from a version."""
    event = {"type": "ERROR", "object": status(410, "too old resource version: 1 (2)")}
    return orjson.dumps(event) + b"\n"


class Stream:
    """One open watch; `request` opened it, `forwarded_lines` counts the lines that it has passed on."""

    def __init__(self, request: ProxiedRequest) -> None:
        self.request = request
        self.forwarded_lines = 0
        self._open = asyncio.Event()
        self._open.set()
        self._requested_end: asyncio.Future[End] = asyncio.get_running_loop().create_future()

    def hold(self) -> None:
        """Pass nothing on until `release`, which then passes on all lines in their order."""
        self._open.clear()

    def release(self) -> None:
        """Pass lines on again."""
        self._open.set()

    def end(self, end: End) -> None:
        """End the stream in this way, even if lines are still pending."""
        if not self._requested_end.done():
            self._requested_end.set_result(end)

    async def forward(self, lines: Any, tamper: Tamper, send: Send) -> End:
        """Pass lines on until the apiserver ends the watch or an end is ordered, and return the end."""
        pump = asyncio.create_task(self._pump(lines, tamper, send))
        try:
            either: tuple[asyncio.Future[Any], ...] = (pump, self._requested_end)
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)
        return self._requested_end.result() if self._requested_end.done() else "ended"

    async def _pump(self, lines: Any, tamper: Tamper, send: Send) -> None:
        while line := await lines.readline():
            await self._open.wait()
            for out in tamper(self.request, parse_event(line)):
                await send(out)
                self.forwarded_lines += 1
