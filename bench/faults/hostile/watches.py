"""The answers of a hostile apiserver to a watch."""

import gzip
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from typing import Any
from urllib.parse import parse_qs

import orjson

from bench.faults.hostile.lists import MEBIBYTE, misshapen, misshapen_within, noted, without_name
from bench.faults.hostile.objects import HUGE, Manifest, invented
from bench.faults.hostile.pieces import (
    BLOCK,
    CHUNKED,
    Piece,
    Play,
    Reset,
    Stall,
    chunk,
    endless,
    head,
    line,
    playing,
    slowly,
    whole,
)
from bench.kit.faultproxy.asked import Asked

_OPEN = head("200 OK", *CHUNKED)
_LETTERS = chunk(b"x" * BLOCK)
_AT_ONCE = 500
"""Events of one piece of a flood."""


def start_of(asked: Asked) -> int:
    """Return the resourceVersion from which a watch was requested."""
    found = parse_qs(asked.query).get("resourceVersion", ["0"])[0]
    return int(found) if found.isdecimal() else 0


def telling(events: Callable[[Asked, int], Iterator[bytes]], *, stays: bool = True) -> Play:
    """Return a play of events; each is created with the version at which the watch begins."""

    def play(asked: Asked) -> Iterator[Piece]:
        yield _OPEN
        yield from events(asked, start_of(asked))
        yield Stall() if stays else b"0\r\n\r\n"

    return play


def one(change: Callable[[Manifest], Any], sort: str = "ADDED") -> Play:
    """Return a play of one event whose object was changed, between two valid events."""

    def events(asked: Asked, start: int) -> Iterator[bytes]:
        yield line("ADDED", invented(asked, 1, version=start + 1))
        yield line(sort, change(invented(asked, 2, version=start + 2)))
        yield line("ADDED", invented(asked, 3, version=start + 3))

    return telling(events)


def flood(sort: str, *, distinct: bool) -> Play:
    """Return a play of endless valid events: of one object, or of another each time."""

    def events(asked: Asked, start: int) -> Iterator[bytes]:
        mould = _mould(sort, asked)
        for first in count(start + 1, _AT_ONCE):
            numbers = range(first, first + _AT_ONCE)
            yield chunk(b"".join(mould % (at if distinct else 1, at if distinct else 1, at) for at in numbers))

    return telling(events)


def _mould(sort: str, asked: Asked) -> bytes:
    """Return a template of an event for a flood, with placeholders for numbers in its name, UID and version."""
    made = noted(name="invented-%d", uid="uid-%d", resourceVersion="%d")(invented(asked, 1))
    return orjson.dumps({"type": sort, "object": made}) + b"\n"


def _huge_lines(asked: Asked, start: int) -> Iterator[bytes]:
    for number in count(1):
        made = orjson.dumps(noted(annotations={"note": "x"})(invented(asked, number, version=start + number)))
        first, last = made.split(b'"x"')
        yield chunk(b'{"type":"ADDED","object":' + first + b'"')
        for _ in range(6 * MEBIBYTE // BLOCK):
            yield _LETTERS
        yield chunk(b'"' + last + b"}\n")


def _backwards(asked: Asked, start: int) -> Iterator[bytes]:
    yield line("ADDED", invented(asked, 1, version=start + 1))
    yield line("BOOKMARK", {"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}})


def _other_uids(asked: Asked, start: int) -> Iterator[bytes]:
    for turn in range(1, 500):
        yield line("MODIFIED", noted(uid=f"uid-{turn}")(invented(asked, 1, version=start + turn)))


def _told(code: int, reason: str, message: str = "words") -> dict[str, Any]:
    return {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}


def _expired(asked: Asked, start: int) -> Iterator[bytes]:
    yield line("MODIFIED", invented(asked, 1, version=start + 1))
    yield line("ERROR", _told(410, "Expired"))


@cache
def _packed() -> bytes:
    return gzip.compress(b" " * (256 * MEBIBYTE))


def _zipped(_asked: Asked) -> Iterator[Piece]:
    yield head("200 OK", "Content-Encoding: gzip", *CHUNKED)
    yield chunk(_packed())
    yield Stall()


WATCHES: dict[str, Play] = {
    "watch-endless-line": endless(_OPEN + chunk(b'{"type":"ADDED","object":{"a":"'), chunk(b"x" * BLOCK)),
    "watch-huge-lines": telling(_huge_lines),
    "watch-endless-headers": endless(b"HTTP/1.1 200 OK\r\n", b"X-More: and more\r\n"),
    "watch-endless-header": endless(b"HTTP/1.1 200 OK\r\nX-More: ", b"x" * BLOCK),
    "watch-endless-informational": endless(b"", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"),
    "watch-endless-extension": endless(_OPEN + b"5;x=", b"x" * BLOCK),
    "watch-endless-trailers": endless(_OPEN + b"0\r\n", b"X-More: and more\r\n"),
    "watch-empty-lines": endless(_OPEN, chunk(b"\n")),
    "watch-endless-refusal": endless(head("500 Internal Server Error", *CHUNKED), chunk(b" " * BLOCK)),
    "watch-flood-of-one": flood("MODIFIED", distinct=False),
    "watch-flood-of-many": flood("ADDED", distinct=True),
    "watch-flood-of-deleted": flood("DELETED", distinct=True),
    "watch-flood-of-unknown": flood("PERHAPS", distinct=True),
    "watch-ends-at-once": telling(lambda _asked, _start: iter(()), stays=False),
    "watch-expired": telling(_expired, stays=False),
    "watch-huge-error": telling(lambda _a, _s: iter((line("ERROR", _told(500, "X", "m" * (6 * MEBIBYTE))),))),
    "watch-bookmark-back": telling(_backwards),
    "watch-other-uids": telling(_other_uids),
    "watch-unnamed": one(without_name),
    "watch-misshapen": one(misshapen),
    "watch-misshapen-within": one(misshapen_within),
    "watch-scalar": one(lambda _made: 5),
    "watch-long-version": one(noted(resourceVersion=HUGE)),
    "watch-no-version": one(noted(resourceVersion="new")),
    "watch-other-kind": one(lambda made: {**made, "kind": "Gremlin"}),
    "watch-unasked": one(noted(labels={}, namespace="kube-system")),
    "watch-no-event": telling(lambda _asked, _start: iter((chunk(b'{"hello":1}\n'),))),
    "watch-no-json": telling(lambda _asked, _start: iter((chunk(b"\xff\xfe\n"),))),
    "watch-slow": lambda _asked: slowly(_OPEN + chunk(b'{"type":"ADDED"')),
    "watch-never": playing(Stall()),
    "watch-reset": playing(_OPEN, Reset()),
    "watch-redirect": playing(whole(b"", "302 Found", "Location: /elsewhere")),
    "watch-zipped": _zipped,
}
"""The plays of watch requests by name."""
