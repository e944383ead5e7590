"""The answers of a hostile apiserver to requests for logs, exec, attach and port-forward."""

from collections.abc import Iterator

from bench.faults.hostile.answer_parts import (
    BLOCK,
    CHUNKED,
    Answer,
    AnswerPart,
    Deaf,
    Reset,
    Stall,
    Wait,
    answer_with,
    chunk,
    endless,
    head,
    slowly,
    whole,
)
from bench.kit.faultproxy.requests import ProxiedRequest

_LOG = head("200 OK", *CHUNKED, media="text/plain")
_LINES = b"a line of a log that never ends\n" * 1_000
_SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
BEFORE = b"bytes that nothing but a 101 allows"
"""Bytes that are sent before or instead of a 101, and must not reach a client."""


def _late(_request: ProxiedRequest) -> Iterator[AnswerPart]:
    yield Wait(60.0)
    yield _SWITCHED
    yield Stall()


LOGS: dict[str, Answer] = {
    "log-endless": endless(_LOG, chunk(_LINES)),
    "log-endless-headers": endless(b"HTTP/1.1 200 OK\r\n", b"X-More: and more\r\n"),
    "log-endless-informational": endless(b"", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"),
    "log-endless-refusal": endless(head("500 Internal Server Error", *CHUNKED), chunk(b"x" * BLOCK)),
    "log-endless-extension": endless(_LOG + b"5;x=", b"x" * BLOCK),
    "log-endless-trailers": endless(_LOG + b"0\r\n", b"X-More: and more\r\n"),
    "log-gigantic-chunk": endless(_LOG + b"fffffffffffffff\r\n", _LINES),
    "log-chunk-beyond-counting": answer_with(_LOG + b"f" * 100 + b"\r\n", Stall()),
    "log-chunk-lies": answer_with(_LOG + b"5\r\nhello, world\r\n", Stall()),
    "log-tiny-chunks": endless(_LOG, chunk(b"x")),
    "log-trailers": answer_with(_LOG + chunk(b"a line\n") + b"0\r\nSet-Cookie: a=b\r\nX-A: b\r\n\r\n"),
    "log-stalls": answer_with(_LOG + chunk(b"a line\n"), Stall()),
    "log-slow": lambda _request: slowly(_LOG + chunk(b"a line\n"), every=0.2),
    "log-never": answer_with(Stall()),
    "log-reset": answer_with(_LOG + chunk(b"a line\n"), Reset()),
    "log-redirect": answer_with(whole(BEFORE, "307 Temporary Redirect", "Location: /elsewhere")),
    "log-switched": answer_with(_SWITCHED + BEFORE, Stall()),
    "log-no-http": answer_with(b"\x00" * 1_000, Stall()),
}
EXECS: dict[str, Answer] = {
    "exec-never": answer_with(Stall()),
    "exec-late": _late,
    "exec-endless-headers": endless(b"HTTP/1.1 101 Switching Protocols\r\n", b"X-More: and more\r\n"),
    "exec-endless-informational": endless(b"", b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"),
    "exec-endless-body": endless(head("500 Internal Server Error", *CHUNKED), chunk(b"x" * BLOCK)),
    "exec-body-first": endless(b"", BEFORE),
    "exec-ok": answer_with(whole(BEFORE)),
    "exec-redirect": answer_with(whole(BEFORE, "302 Found", "Location: /elsewhere")),
    "exec-reset": answer_with(Reset()),
    "exec-stalls": answer_with(_SWITCHED, Stall()),
    "exec-deaf": answer_with(_SWITCHED, Deaf()),
    "exec-flood": endless(_SWITCHED, _LINES),
    "exec-reset-within": answer_with(_SWITCHED + b"some", Reset()),
    "exec-slow": lambda _request: slowly(_SWITCHED, every=0.2),
    "exec-no-http": answer_with(b"\x16\x03\x01" * 100, Stall()),
}
