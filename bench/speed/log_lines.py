"""Log lines that contain their number and the time when they were written, and the check of what a reader received.

Each line has a fixed length and known content, so a reader detects lines that are lost, duplicated, out of order or
damaged. Its delay is the time from the write to the read, on the clock of one machine.
"""

import re
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_TIME = re.compile(rb"\d+ \d+ (\d+) ")
_CRI = b"%s stdout F %s\n"
_SAID = 5
"""The number of wrong lines that are quoted for each reader."""


class LineShape(NamedTuple):
    """The form of logs: their number, `rate` bytes per second each, in lines of `line` bytes with the newline."""

    streams: int
    rate: int
    line: int

    @property
    def pause(self) -> float:
        """The seconds from one line of a log to the next."""
        return self.line / self.rate


def line(stream: int, number: int, now: int, size: int) -> bytes:
    """Return a line; `now` is in nanoseconds."""
    head = b"%04d %08d %d " % (stream, number, now)
    return head + b"x" * (size - len(head) - 1)


def entry(text: bytes, stamp: bytes) -> bytes:
    """Return a line in the format of a container runtime; `stamp` is RFC 3339."""
    return _CRI % (stamp, text)


def due(shape: LineShape, stream: int, seconds: float) -> int:
    """Return how many lines of a log are due after so many seconds; the logs take turns."""
    return max(0, int(seconds / shape.pause + 1 - stream / shape.streams))


class Reading:
    """The lines that a reader of one log has received; they are counted from 0."""

    def __init__(self, stream: int, size: int) -> None:
        self.lines = 0
        self.wrong: list[str] = []
        self.written = array("d")
        """When each line was written, in seconds since the epoch."""
        self.delays = array("d")
        """The delay of each line in seconds."""
        self._stream = stream
        self._size = size
        self._rest = b""

    def take(self, data: bytes, now: int) -> None:
        """Process data that were read at a time in nanoseconds."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        for each in whole:
            self._line(each, now)

    def _line(self, text: bytes, now: int) -> None:
        found = _TIME.match(text)
        written = int(found[1]) if found else 0
        if text != line(self._stream, self.lines, written, self._size) and len(self.wrong) < _SAID:
            self.wrong.append(f"log {self._stream}: not line {self.lines}: {text[:60]!r} ({len(text)} bytes)")
        self.lines += 1
        self.written.append(written / 1e9)
        self.delays.append((now - written) / 1e9)


def wrong_lines(readings: Sequence[Reading], written: Sequence[int]) -> list[str]:
    """Return which lines readers did not receive as written; `written` is the number of lines of each log."""
    failures = [failure for one in readings for failure in one.wrong]
    lost = {number: total - one.lines for number, (one, total) in enumerate(zip(readings, written, strict=True))}
    return failures + [f"log {number}: {count} lines are missing" for number, count in lost.items() if count]


def between(readings: Iterable[Reading], begin: float, end: float) -> list[float]:
    """Return the sorted delays of the lines that were written in a period."""
    return sorted(
        delay
        for one in readings
        for written, delay in zip(one.written, one.delays, strict=True)
        if begin <= written < end
    )


def delay_figures(delays: Sequence[float]) -> dict[str, float]:
    """Return count, median, 99th percentile and maximum of sorted delays, in milliseconds; zeros for none."""
    found = delays or [0.0]
    marks = {"p50_ms": 0.5, "p99_ms": 0.99, "max_ms": 1.0}
    at = {name: round(found[min(int(len(found) * share), len(found) - 1)] * 1000, 1) for name, share in marks.items()}
    return {"lines": len(delays), **at}
