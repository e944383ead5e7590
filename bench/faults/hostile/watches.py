"""The answers of a hostile apiserver to a watch."""

import gzip
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from typing import Any
from urllib.parse import parse_qs

import orjson

from bench.faults.hostile.answer_parts import (
    BLOCK,
    CHUNKED,
    Answer,
    AnswerPart,
    Reset,
    Stall,
    answer_with,
    chunk,
    endless,
    head,
    line,
    slowly,
    whole,
)
from bench.faults.hostile.lists import MEBIBYTE, misshapen, misshapen_within, noted, without_name
from bench.faults.hostile.objects import HUGE, Manifest, invented
from bench.kit.faultproxy.requests import ProxiedRequest

_OPEN = head("200 OK", *CHUNKED)
_LETTERS = chunk(b"x" * BLOCK)
_AT_ONCE = 500
"""Events of one piece of a flood."""


def start_of(request: ProxiedRequest) -> int:
    """Return the resourceVersion from which a watch was requested."""
    found = parse_qs(request.query).get("resourceVersion", ["0"])[0]
    return int(found) if found.isdecimal() else 0


def watch_answer(events: Callable[[ProxiedRequest, int], Iterator[bytes]], *, stays: bool = True) -> Answer:
    """Return a play of events; each is created with the version at which the watch begins."""

    def play(request: ProxiedRequest) -> Iterator[AnswerPart]:
        yield _OPEN
        yield from events(request, start_of(request))
        yield Stall() if stays else b"0\r\n\r\n"

    return play


def one(change: Callable[[Manifest], Any], sort: str = "ADDED") -> Answer:
    """Return a play of one event whose object was changed, between two valid events."""

    def events(request: ProxiedRequest, start: int) -> Iterator[bytes]:
        yield line("ADDED", invented(request, 1, version=start + 1))
        yield line(sort, change(invented(request, 2, version=start + 2)))
        yield line("ADDED", invented(request, 3, version=start + 3))

    return watch_answer(events)


def flood(sort: str, *, distinct: bool) -> Answer:
    """Return a play of endless valid events: of one object, or of another each time."""

    def events(request: ProxiedRequest, start: int) -> Iterator[bytes]:
        template = _template(sort, request)
        for first in count(start + 1, _AT_ONCE):
            numbers = range(first, first + _AT_ONCE)
            yield chunk(b"".join(template % (at if distinct else 1, at if distinct else 1, at) for at in numbers))

    return watch_answer(events)


def _template(sort: str, request: ProxiedRequest) -> bytes:
    """Return a template of an event for a flood, with placeholders for numbers in its name, UID and version."""
    made = noted(name="invented-%d", uid="uid-%d", resourceVersion="%d")(invented(request, 1))
    return orjson.dumps({"type": sort, "object": made}) + b"\n"


def _huge_lines(request: ProxiedRequest, start: int) -> Iterator[bytes]:
    for number in count(1):
        made = orjson.dumps(noted(annotations={"note": "x"})(invented(request, number, version=start + number)))
        first, last = made.split(b'"x"')
        yield chunk(b'{"type":"ADDED","object":' + first + b'"')
        for _ in range(6 * MEBIBYTE // BLOCK):
            yield _LETTERS
        yield chunk(b'"' + last + b"}\n")


def _backwards(request: ProxiedRequest, start: int) -> Iterator[bytes]:
    yield line("ADDED", invented(request, 1, version=start + 1))
    yield line("BOOKMARK", {"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}})


def _other_uids(request: ProxiedRequest, start: int) -> Iterator[bytes]:
    for turn in range(1, 500):
        yield line("MODIFIED", noted(uid=f"uid-{turn}")(invented(request, 1, version=start + turn)))


def _error_event(code: int, reason: str, message: str = "words") -> dict[str, Any]:
    return {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}


def _expired(request: ProxiedRequest, start: int) -> Iterator[bytes]:
    yield line("MODIFIED", invented(request, 1, version=start + 1))
    yield line("ERROR", _error_event(410, "Expired"))


@cache
def _packed() -> bytes:
    return gzip.compress(b" " * (256 * MEBIBYTE))


def _zipped(_request: ProxiedRequest) -> Iterator[AnswerPart]:
    yield head("200 OK", "Content-Encoding: gzip", *CHUNKED)
    yield chunk(_packed())
    yield Stall()


WATCHES: dict[str, Answer] = {
    "watch-endless-line": endless(_OPEN + chunk(b'{"type":"ADDED","object":{"a":"'), chunk(b"x" * BLOCK)),
    "watch-huge-lines": watch_answer(_huge_lines),
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
    "watch-ends-at-once": watch_answer(lambda _request, _start: iter(()), stays=False),
    "watch-expired": watch_answer(_expired, stays=False),
    "watch-huge-error": watch_answer(
        lambda _a, _s: iter((line("ERROR", _error_event(500, "X", "m" * (6 * MEBIBYTE))),))
    ),
    "watch-bookmark-back": watch_answer(_backwards),
    "watch-other-uids": watch_answer(_other_uids),
    "watch-unnamed": one(without_name),
    "watch-misshapen": one(misshapen),
    "watch-misshapen-within": one(misshapen_within),
    "watch-scalar": one(lambda _made: 5),
    "watch-long-version": one(noted(resourceVersion=HUGE)),
    "watch-no-version": one(noted(resourceVersion="new")),
    "watch-other-kind": one(lambda made: {**made, "kind": "Gremlin"}),
    "watch-unasked": one(noted(labels={}, namespace="kube-system")),
    "watch-no-event": watch_answer(lambda _request, _start: iter((chunk(b'{"hello":1}\n'),))),
    "watch-no-json": watch_answer(lambda _request, _start: iter((chunk(b"\xff\xfe\n"),))),
    "watch-slow": lambda _request: slowly(_OPEN + chunk(b'{"type":"ADDED"')),
    "watch-never": answer_with(Stall()),
    "watch-reset": answer_with(_OPEN, Reset()),
    "watch-redirect": answer_with(whole(b"", "302 Found", "Location: /elsewhere")),
    "watch-zipped": _zipped,
}
"""The plays of watch requests by name."""
