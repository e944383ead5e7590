"""The pieces of an answer of a hostile apiserver: bytes that are sent, and events between them.

An answer is a generator of pieces and independent of sockets, so that the same one can be used in a test of the client,
in one of the kubelet API, and with a whole engine.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import orjson

from bench.kit.faultproxy.requests import ProxiedRequest

CHUNKED = ("Transfer-Encoding: chunked",)
BLOCK = 1 << 18
"""Bytes of one write of an endless answer: large, so that producing it costs next to nothing."""


@dataclass(frozen=True)
class Wait:
    """Nothing is sent for so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Stall:
    """Nothing is ever sent again, and the connection stays open."""


@dataclass(frozen=True)
class Reset:
    """The connection is reset: without a close in TLS or in TCP."""


@dataclass(frozen=True)
class Deaf:
    """Nothing is read or sent any more, and the connection stays open."""


AnswerPart = bytes | Wait | Stall | Reset | Deaf
Answer = Callable[[ProxiedRequest], Iterator[AnswerPart]]


def head(status: str = "200 OK", *fields: str, media: str = "application/json") -> bytes:
    """Return the head of an answer."""
    return "\r\n".join((f"HTTP/1.1 {status}", f"Content-Type: {media}", *fields, "", "")).encode("latin-1")


def whole(body: Any, status: str = "200 OK", *fields: str) -> bytes:
    """Return an answer of known length; a body that is not bytes is encoded as JSON."""
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    return head(status, f"Content-Length: {len(content)}", *fields) + content


def chunk(content: bytes) -> bytes:
    """Return a chunk of a body."""
    return b"%x\r\n%b\r\n" % (len(content), content)


def line(sort: str, manifest: Any) -> bytes:
    """Return an event of a watch, as a chunk."""
    return chunk(orjson.dumps({"type": sort, "object": manifest}) + b"\n")


def always(content: bytes) -> Iterator[bytes]:
    """Repeat the same content endlessly, many times in one piece if it is short."""
    return repeat(content * max(BLOCK // len(content), 1))


def slowly(content: bytes, every: float = 1.0) -> Iterator[AnswerPart]:
    """Yield one byte at a time with waits between them, and stall at the end."""
    for byte in content:
        yield bytes((byte,))
        yield Wait(every)
    yield Stall()


def answer_with(*parts: AnswerPart | Iterator[AnswerPart]) -> Answer:
    """Return a play that sends the same to every client; an iterator is consumed by the first one."""

    def play(_request: ProxiedRequest) -> Iterator[AnswerPart]:
        for part in parts:
            if isinstance(part, bytes | Wait | Stall | Reset | Deaf):
                yield part
            else:
                yield from part

    return play


def endless(start: bytes, content: bytes) -> Answer:
    """Return a play that sends a beginning and then the same content endlessly."""

    def play(_request: ProxiedRequest) -> Iterator[AnswerPart]:
        yield start
        yield from always(content)

    return play
