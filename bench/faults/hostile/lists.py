"""The answers of a hostile apiserver to a LIST: endless, huge, slow, malformed, redirecting, and false."""

import gzip
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from typing import Any

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
    slowly,
    whole,
)
from bench.faults.hostile.objects import HUGE, Manifest, fresh, invented, listing
from bench.kit.faultproxy.requests import ProxiedRequest

MEBIBYTE = 1 << 20
_BEGUN = b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"100"},"items":['
_BLANKS = b" " * BLOCK
_LETTERS = chunk(b"x" * BLOCK)


def of(items: Callable[[ProxiedRequest], list[Any]], **more: str) -> Answer:
    """Return a play that lists the objects that `items` returns."""

    def play(request: ProxiedRequest) -> Iterator[AnswerPart]:
        yield whole(listing(request, *items(request), **more))

    return play


def altered(change: Callable[[Manifest], Any]) -> Answer:
    """Return a play that lists a valid object, one that was changed, and another valid one."""

    def items(request: ProxiedRequest) -> list[Any]:
        first, second, third = (invented(request, number) for number in (1, 2, 3))
        return [first, change(second), third]

    return of(items)


def without_name(made: Manifest) -> Manifest:
    """Remove an object's name."""
    del made["metadata"]["name"]
    return made


def misshapen(made: Manifest) -> Manifest:
    """Return an object whose parts have wrong types."""
    return {
        **made,
        "metadata": {**made["metadata"], "labels": ["a"], "annotations": 5, "managedFields": "x"},
        "spec": 5,
        "status": {"conditions": {"type": "Ready"}, "containerStatuses": 7, "phase": ["Running"]},
    }


def misshapen_within(made: Manifest) -> Manifest:
    """Return an object with valid metadata, in whose spec and status the fields have wrong types."""
    spec = {"containers": [5, None], "volumes": "all", "nodeName": {"a": 1}}
    return {**made, "spec": spec, "status": {"conditions": [7], "containerStatuses": [["x"]], "phase": 9}}


def noted(**fields: Any) -> Callable[[Manifest], Manifest]:
    """Return a function that sets fields of an object's metadata."""
    return lambda made: {**made, "metadata": {**made["metadata"], **fields}}


def _pages(size: int, *, repeating: bool = False) -> Answer:
    """Return a play of pages that never end, each with so many objects."""

    def play(request: ProxiedRequest) -> Iterator[AnswerPart]:
        numbers = range(size) if repeating else [fresh() for _ in range(size)]
        more = "again" if repeating else f"token-{fresh()}"
        yield whole(listing(request, *(invented(request, number + 1, version=50) for number in numbers), more=more))

    return play


def _huge_objects(count_of: int, size: int) -> Answer:
    """Return a play of a page of valid objects, each of so many bytes."""

    def play(request: ProxiedRequest) -> Iterator[AnswerPart]:
        yield head("200 OK", *CHUNKED)
        before, after = orjson.dumps(listing(request)).split(b"[]")
        yield chunk(before + b"[")
        for number in range(count_of):
            made = orjson.dumps(noted(annotations={"note": "x"})(invented(request, number + 1)))
            first, last = made.split(b'"x"')
            yield chunk((b"," if number else b"") + first + b'"')
            for _ in range(size // BLOCK):
                yield _LETTERS
            yield chunk(b'"' + last)
        yield chunk(b"]" + after) + b"0\r\n\r\n"

    return play


def _many_resources(request: ProxiedRequest) -> list[Any]:
    amounts = {f"example.com/r-{number}": "1" for number in range(20_000)} | {"cpu": "1e999999999"}
    made = invented(request, 1)
    made["spec"] = {"containers": [{"name": "c", "resources": {"requests": amounts}}]}
    made["status"] = {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    return [made]


def _informational(_request: ProxiedRequest) -> Iterator[AnswerPart]:
    for _ in count():
        yield b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 2_000


@cache
def _packed() -> bytes:
    return gzip.compress(b" " * (64 * MEBIBYTE))


def _zipped(_request: ProxiedRequest) -> Iterator[AnswerPart]:
    yield whole(_packed(), "200 OK", "Content-Encoding: gzip")


def _table(_request: ProxiedRequest) -> Iterator[AnswerPart]:
    rows = [{"cells": ["a", 1], "object": {"metadata": {"name": f"row-{number}"}}} for number in range(100)]
    yield whole({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": "1"}, "rows": rows})


def _elsewhere(request: ProxiedRequest) -> list[Any]:
    return [noted(namespace="kube-system", labels={})(invented(request, number)) for number in range(1, 500)]


def _cookies(request: ProxiedRequest) -> Iterator[AnswerPart]:
    yield whole(listing(request), "200 OK", *(f"Set-Cookie: c{number}=chased; Path=/" for number in range(100)))


LISTS: dict[str, Answer] = {
    "list-endless-body": endless(head("200 OK", *CHUNKED) + chunk(_BEGUN), chunk(_BLANKS)),
    "list-endless-declared": endless(head("200 OK", f"Content-Length: {1 << 40}") + _BEGUN, _BLANKS),
    "list-endless-untold": endless(head("200 OK", "Connection: close") + _BEGUN, _BLANKS),
    "list-endless-headers": endless(b"HTTP/1.1 200 OK\r\n", b"X-More: and more\r\n"),
    "list-endless-header": endless(b"HTTP/1.1 200 OK\r\nX-More: ", _BLANKS.replace(b" ", b"x")),
    "list-endless-reason": endless(b"HTTP/1.1 200 ", b"O" * BLOCK),
    "list-endless-informational": _informational,
    "list-endless-extension": endless(head("200 OK", *CHUNKED) + b"5;x=", b"x" * BLOCK),
    "list-endless-trailers": endless(head("200 OK", *CHUNKED) + b"2\r\n{}\r\n0\r\n", b"X-More: and more\r\n"),
    "list-endless-trailer": endless(head("200 OK", *CHUNKED) + b"2\r\n{}\r\n0\r\nX-More: ", b"x" * BLOCK),
    "list-tiny-chunks": endless(head("200 OK", *CHUNKED), chunk(b" ")),
    "list-chunk-too-long": answer_with(head("200 OK", *CHUNKED) + b"ffffffffffffffff\r\n", _BLANKS, Stall()),
    "list-chunk-lies": answer_with(head("200 OK", *CHUNKED) + b"2\r\n{}}}}}}\r\n0\r\n\r\n", Stall()),
    "list-chunk-negative": answer_with(head("200 OK", *CHUNKED) + b"-5\r\nhello\r\n", Stall()),
    "list-slow": lambda _request: slowly(head("200 OK", *CHUNKED) + chunk(_BEGUN)),
    "list-slow-head": lambda _request: slowly(head("200 OK", *CHUNKED)),
    "list-never": answer_with(Stall()),
    "list-half": answer_with(head("200 OK", "Content-Length: 1000") + _BEGUN, Stall()),
    "list-reset": answer_with(head("200 OK", "Content-Length: 1000") + _BEGUN, Reset()),
    "list-no-http": answer_with(b"SSH-2.0-OpenSSH_9.9\r\n", Stall()),
    "list-redirect": answer_with(whole(b"", "307 Temporary Redirect", "Location: /elsewhere")),
    "list-cookies": _cookies,
    "list-html": answer_with(whole(b"<html>", "200 OK", "Content-Type: text/html")),
    "list-no-json": answer_with(whole(b"{" * 1_000)),
    "list-deep": answer_with(whole(b'{"metadata":{},"items":[' + b"[" * MEBIBYTE)),
    "list-deep-object": answer_with(
        whole(b'{"metadata":{},"items":[{"metadata":{"name":"x"},"spec":' + b'{"a":' * 200_000)
    ),
    "list-no-text": of(lambda request: [invented(request, 1)], version="\x00\ud7ff"),
    "list-zipped": _zipped,
    "list-table": _table,
    "list-null": answer_with(whole(b"null")),
    "list-array": answer_with(whole(b"[]")),
    "list-endless-pages": _pages(0),
    "list-same-page": _pages(3, repeating=True),
    "list-endless-objects": _pages(500),
    "list-huge-token": of(lambda request: [invented(request, 1)], more="x" * MEBIBYTE),
    "list-huge-object": _huge_objects(1, 60 * MEBIBYTE),
    "list-huge-objects": _huge_objects(60, MEBIBYTE),
    "list-long-version": of(lambda request: [invented(request, 1)], version=HUGE),
    "list-no-version": of(lambda request: [invented(request, 1)], version="new"),
    "list-object-version": altered(noted(resourceVersion=HUGE)),
    "list-unnamed": altered(without_name),
    "list-long-name": altered(noted(name="n" * MEBIBYTE)),
    "list-long-uid": altered(noted(uid="u" * MEBIBYTE)),
    "list-long-label": altered(noted(labels={"a" * MEBIBYTE: "b"})),
    "list-scalars": altered(lambda _made: 5),
    "list-misshapen": altered(misshapen),
    "list-misshapen-within": altered(misshapen_within),
    "list-other-kind": altered(lambda made: {**made, "kind": "Gremlin", "apiVersion": "zoo.io/v1"}),
    "list-unasked": of(_elsewhere),
    "list-twice-the-same": of(lambda request: [invented(request, 1, version=number) for number in range(1, 500)]),
    "list-many-resources": of(_many_resources),
    "list-endless-error": endless(head("500 Internal Server Error", *CHUNKED), chunk(_BLANKS)),
    "list-huge-refusal": answer_with(
        whole(orjson.dumps({"kind": "Status", "code": 403, "message": "m" * (8 * MEBIBYTE)}), "403 Forbidden")
    ),
    "list-wait-a-century": answer_with(whole(b"{}", "429 Too Many Requests", f"Retry-After: {HUGE}")),
    "list-not-accepted": answer_with(whole(b"{}", "401 Unauthorized", "WWW-Authenticate: Basic realm=elsewhere")),
}
"""The plays of LIST requests by name."""


def forbidding(_request: ProxiedRequest) -> Iterator[AnswerPart]:
    """Refuse, with a different message each time."""
    status = {"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": f"no {fresh()}"}
    yield whole(status, "403 Forbidden")


LISTS["list-forbidden-in-new-words"] = forbidding
