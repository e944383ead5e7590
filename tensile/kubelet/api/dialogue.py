"""HTTP/1.1 on one wire, in either role: h11 knows the rules, this moves the bytes.

No framework's server can do what a kubelet must: step aside after a 101 whatever the protocol is, and hand out the
bytes that have come already. One connection serves one request, so that nothing of one caller meets another's.
"""

from collections.abc import Iterable
from http import HTTPStatus
from typing import NamedTuple

import h11

from tensile.kubelet.api.chunks import chunk
from tensile.kubelet.api.refusal import Refused
from tensile.kubelet.api.upgrades import Headers
from tensile.kubelet.api.wire import Wire

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
        """Give the next event; raises h11.RemoteProtocolError when the peer does not speak HTTP or breaks off.

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
        """Give the bytes that came behind the head of an upgrade: the first of the stream."""
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
    """Give h11's header fields as text."""
    return tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)


def _announces_body(headers: Headers) -> bool:
    return any(name == "transfer-encoding" or (name == "content-length" and value != "0") for name, value in headers)
