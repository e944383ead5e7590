"""HTTP/1.1 on one wire, in either role: h11 knows the rules, this moves the bytes.

No framework's server can do what a kubelet must: step aside after a 101 whatever the protocol is, and hand out the
bytes that have come already. One connection serves one request, so that nothing of one caller meets another's.

The chunks of an HTTP/1.1 body, in and out: what a log that is followed consists of, thousands of times a second.

h11 makes an event of each part of a chunk in Python; llhttp, by httptools, takes a tenth of that. What came at once
goes on as one chunk, made anew: nothing but content is taken over from a lower's answer, no extension of a chunk and no
trailer.

Work that is worth doing only while the caller is there to have it.

A log that is followed can be silent for days; without this, a caller that left would be noticed with the next line.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar

import h11
import httptools

from tensile.kubelet.api.connection import Wire
from tensile.kubelet.api.errors import Refused
from tensile.kubelet.api.requests import Headers

_HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
_SILENT_AT_MOST = 4096
"""Bytes without content that may come in a row: sizes and extensions of chunks, trailers. llhttp keeps none of them."""


class Chunks:
    """Takes a chunked body apart as it comes. `ended` says that all of it has come."""

    def __init__(self) -> None:
        self.ended = False
        self._found: list[bytes] = []
        self._silent = 0
        self._parser = httptools.HttpResponseParser(self)
        self._parser.feed_data(_HEAD)

    def take(self, data: bytes) -> bytes:
        """Return the content among `data`; raises h11.RemoteProtocolError when it is no chunk.

        Content is never held back, not even of a chunk whose end is still to come. What comes after the end is dropped.
        """
        if self.ended:
            return b""
        self._found.clear()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if not self.ended:
                raise h11.RemoteProtocolError(f"its body is no chunks: {error}") from None
        content = self._found[0] if len(self._found) == 1 else b"".join(self._found)
        self._silent = 0 if content else self._silent + len(data)
        if self._silent > _SILENT_AT_MOST:
            raise h11.RemoteProtocolError("too much stands between chunks, or follows the last one")
        return content

    def on_body(self, content: bytes) -> None:
        """Note content for httptools; of an answer that follows the body there is none."""
        if not self.ended:
            self._found.append(content)

    def on_message_complete(self) -> None:
        """Note the end for httptools."""
        self.ended = True


def chunk(content: bytes) -> bytes:
    """Return content, at least a byte of it, as one chunk."""
    return b"%x\r\n%b\r\n" % (len(content), content)


PLAIN = "text/plain; charset=utf-8"


class Request(NamedTuple):
    """The head of a request; `target` is the path with its query as they came, and plain ASCII."""

    method: str
    target: str
    headers: Headers


class Dialogue:
    """One HTTP exchange; who speaks which part is told by a class derived from it."""

    def __init__(self, wire: Wire, connection: h11.Connection) -> None:
        self.wire = wire
        self.connection = connection

    async def next(self) -> h11.Event | type[h11.PAUSED]:
        """Return the next event; raises h11.RemoteProtocolError when the peer does not speak HTTP or breaks off.

        The error comes without h11's frames: one of them holds the error itself and another all that was received, a
        circle that stays until the collector finds it.
        """
        try:
            while (event := self.connection.next_event()) is h11.NEED_DATA:
                self.connection.receive_data(await self.wire.read())
        except h11.RemoteProtocolError as error:
            raise error.with_traceback(None) from None
        return event  # type: ignore[return-value]  # NEED_DATA is gone by now

    async def send(self, event: h11.Event) -> None:
        """Say something, and wait until it may be followed by more."""
        data = self.connection.send(event)
        if data:
            await self.wire.write(data)

    def early(self) -> bytes:
        """Return the bytes that came behind the head of an upgrade: the first of the stream."""
        return self.connection.trailing_data[0]


class Caller(Dialogue):
    """The server's part, towards whoever called us."""

    def __init__(self, wire: Wire, head: int) -> None:
        super().__init__(wire, h11.Connection(h11.SERVER, max_incomplete_event_size=head))
        self._bodiless = False
        self._in_chunks = False

    @property
    def unanswered(self) -> bool:
        """Whether a whole answer can still be given."""
        return self.connection.our_state in {h11.IDLE, h11.SEND_RESPONSE}

    async def request(self) -> Request:
        """Read the request; h11.RemoteProtocolError for what is none, Refused for one with a body: no route has one."""
        event = await self.next()
        if not isinstance(event, h11.Request):
            raise h11.RemoteProtocolError("the connection ended before a request")
        headers = plain(event.headers)
        self._bodiless = event.method == b"HEAD"
        if _announces_body(headers):
            raise Refused(HTTPStatus.BAD_REQUEST, "no request here has a body")
        await self.next()
        return Request(event.method.decode(), event.target.decode(), headers)

    async def reply(self, status: int, body: bytes, media: str = PLAIN, reason: str = "") -> None:
        """Give a whole answer; `reason` is what the status line says in words, in printable ASCII."""
        await self.begin(status, (("content-type", media), ("content-length", str(len(body)))), reason)
        await self.piece(b"" if self._bodiless else body)
        await self.end()

    async def begin(self, status: int, headers: Headers, reason: str = "") -> None:
        """Give the head of an answer; one in chunks to a caller that speaks HTTP/1.0 goes out without."""
        is_new = (self.connection.their_http_version or b"") >= b"1.1"
        self._in_chunks = is_new and ("transfer-encoding", "chunked") in headers
        own = [("connection", "close"), ("x-content-type-options", "nosniff")]
        await self.send(h11.Response(status_code=status, headers=[*headers, *own], reason=reason.encode("ascii")))

    async def piece(self, data: bytes) -> None:
        """Give a piece of the answer's body, at once; one of a body in chunks in one write, as there are so many."""
        if self._in_chunks and data:
            await self.wire.write(chunk(data))
        else:
            await self.send(h11.Data(data=data))

    async def end(self) -> None:
        """Say that the answer is complete."""
        await self.send(h11.EndOfMessage())

    async def switch(self, headers: Headers) -> None:
        """Answer 101: from here on the wire belongs to another protocol."""
        await self.send(
            h11.InformationalResponse(status_code=101, headers=list(headers), reason=b"Switching Protocols")
        )


def plain(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return h11's header fields as text."""
    return tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)


def _announces_body(headers: Headers) -> bool:
    return any(name == "transfer-encoding" or (name == "content-length" and value != "0") for name, value in headers)


Result = TypeVar("Result")


class Departed(Exception):
    """The caller left: there is nobody to answer."""


async def while_present(wire: Wire, work: Coroutine[Any, Any, Result], *, dropping: bool = False) -> Result:
    """Do the work and give its result; raises Departed, with the work stopped, when the caller leaves before.

    What the caller sends meanwhile is kept, or dropped where nothing more of it is wanted.
    """
    working = asyncio.create_task(work)
    gone = asyncio.create_task(wire.left(dropping=dropping))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        working.cancel()
        gone.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)
    if working.cancelled():
        raise Departed
    return working.result()
