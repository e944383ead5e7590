"""What an answer of a hostile apiserver is made of: bytes as they are sent, and what happens between them.

An answer is a generator of pieces and knows nothing of sockets, so that the same one plays in a test of the client, in
one of the kubelet API, and before a whole engine.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import orjson

from bench.kit.faultproxy.asked import Asked

CHUNKED = ("Transfer-Encoding: chunked",)
BLOCK = 1 << 18
"""Bytes of one write of an answer that never ends: large, so that making it costs next to nothing."""


@dataclass(frozen=True)
class Wait:
    """Nothing is sent for so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Stall:
    """Nothing is ever sent again, and the connection stays."""


@dataclass(frozen=True)
class Reset:
    """The connection is reset: no goodbye in TLS nor in TCP."""


@dataclass(frozen=True)
class Deaf:
    """Nothing is read any more, nothing is sent, and the connection stays."""


Piece = bytes | Wait | Stall | Reset | Deaf
Play = Callable[[Asked], Iterator[Piece]]


def head(status: str = "200 OK", *fields: str, media: str = "application/json") -> bytes:
    """Write the head of an answer."""
    return "\r\n".join((f"HTTP/1.1 {status}", f"Content-Type: {media}", *fields, "", "")).encode("latin-1")


def whole(body: Any, status: str = "200 OK", *fields: str) -> bytes:
    """Write an answer of known length; a body that is no bytes becomes JSON."""
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    return head(status, f"Content-Length: {len(content)}", *fields) + content


def chunk(content: bytes) -> bytes:
    """Write a chunk of a body."""
    return b"%x\r\n%b\r\n" % (len(content), content)


def line(sort: str, manifest: Any) -> bytes:
    """Write an event of a watch, as a chunk."""
    return chunk(orjson.dumps({"type": sort, "object": manifest}) + b"\n")


def always(content: bytes) -> Iterator[bytes]:
    """Repeat the same without end, many times in one piece where it is short."""
    return repeat(content * max(BLOCK // len(content), 1))


def slowly(content: bytes, every: float = 1.0) -> Iterator[Piece]:
    """Send a byte, then wait, and stall at the end."""
    for byte in content:
        yield bytes((byte,))
        yield Wait(every)
    yield Stall()


def playing(*pieces: Piece | Iterator[Piece]) -> Play:
    """Make a play that sends the same to whoever asks; an iterator is used up by the first."""

    def play(_asked: Asked) -> Iterator[Piece]:
        for piece in pieces:
            if isinstance(piece, bytes | Wait | Stall | Reset | Deaf):
                yield piece
            else:
                yield from piece

    return play


def endless(start: bytes, content: bytes) -> Play:
    """Make a play that sends a beginning and then the same without end."""

    def play(_asked: Asked) -> Iterator[Piece]:
        yield start
        yield from always(content)

    return play
