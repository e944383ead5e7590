"""HTTP/1.1 on one connection, in either role: with a caller of the kubelet API, and with a lower apiserver for it.

h11 implements the protocol, this module moves the bytes. No framework's server can do what a kubelet must: step aside
after a 101 whatever the protocol is, and hand over the bytes that have already arrived. One connection serves one
request, so that requests of different callers never mix.

A request to a lower apiserver (logs, exec, attach, port-forward) has the lower's credential, and sends only what it is
given. Redirects are not followed. The size of what comes before a response, and of error bodies, is limited here, that
of other bodies by their readers. Connections are not opened in advance, which would save two milliseconds: such a
connection could lead to a cluster that has been replaced since.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from http import HTTPStatus
from typing import Any, NamedTuple, TypeVar

import h11
import httptools

from tensile import __version__
from tensile.errors import ClusterError
from tensile.kube.cluster import Cluster, Endpoint
from tensile.kube.net import cancel_and_wait
from tensile.kubelet.api.connection import ConnectionLimits, TLSConnection, dial
from tensile.kubelet.api.requests import Headers, LowerRequest
from tensile.kubelet.api.routes import HTTPError, from_lower

_HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
_MAX_OVERHEAD = 4096
"""Maximum bytes in a row without content: chunk sizes and extensions, trailers. llhttp limits none of them."""
PLAIN = "text/plain; charset=utf-8"

Result = TypeVar("Result")
_MAX_ERROR = 64 * 1024
_MAX_INFORMATIONAL = 20
"""Maximum number of informational responses before the real one; apiservers send none."""
_CHUNKED = ("transfer-encoding", "chunked")


class RequestHead(NamedTuple):
    """The head of a request; `target` is the path with its query as received, in plain ASCII."""

    method: str
    target: str
    headers: Headers


class ClientDisconnected(Exception):
    """The caller disconnected, so that no response can be sent."""


class ChunkDecoder:
    """Parses a chunked body as it arrives. `ended` is true once all of it has been received.

    It uses llhttp (by httptools): a followed log has thousands of chunks a second, and h11 makes Python events of each
    part, at ten times the cost. Data received together is sent as one new chunk. Only content is taken over from a
    lower's response, no chunk extensions and no trailers.
    """

    def __init__(self) -> None:
        self.ended = False
        self._content: list[bytes] = []
        self._overhead = 0
        self._parser = httptools.HttpResponseParser(self)
        self._parser.feed_data(_HEAD)

    def take(self, data: bytes) -> bytes:
        """Return the content in `data`; raise h11.RemoteProtocolError if it is not chunked.

        Content is returned at once, even of an incomplete chunk. Data after the end is dropped.
        """
        if self.ended:
            return b""
        self._content.clear()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if not self.ended:
                raise h11.RemoteProtocolError(f"its body is not valid chunked encoding: {error}") from None
        content = self._content[0] if len(self._content) == 1 else b"".join(self._content)
        self._overhead = 0 if content else self._overhead + len(data)
        if self._overhead > _MAX_OVERHEAD:
            raise h11.RemoteProtocolError("its body has too many bytes between or after the chunks")
        return content

    def on_body(self, content: bytes) -> None:
        """Collect content for httptools; content of a response that follows the body is ignored."""
        if not self.ended:
            self._content.append(content)

    def on_message_complete(self) -> None:
        """Record the end for httptools."""
        self.ended = True


def chunk(content: bytes) -> bytes:
    """Return content, at least a byte, as one chunk."""
    return b"%x\r\n%b\r\n" % (len(content), content)


class Exchange:
    """One HTTP exchange; the h11 connection determines whether we are its client or its server."""

    def __init__(self, wire: TLSConnection, connection: h11.Connection) -> None:
        self.wire = wire
        self.connection = connection

    async def next(self) -> h11.Event | type[h11.PAUSED]:
        """Return the next event; raise h11.RemoteProtocolError when the peer does not speak HTTP or disconnects.

        The error is raised without h11's frames: one of them holds the error itself and another all received data, a
        reference cycle that stays until the garbage collector finds it.
        """
        try:
            while (event := self.connection.next_event()) is h11.NEED_DATA:
                self.connection.receive_data(await self.wire.read())
        except h11.RemoteProtocolError as error:
            raise error.with_traceback(None) from None
        return event  # type: ignore[return-value]  # NEED_DATA is gone by now

    async def send(self, event: h11.Event) -> None:
        """Send an event, and wait until more may be sent."""
        data = self.connection.send(event)
        if data:
            await self.wire.write(data)

    def release(self) -> TLSConnection:
        """Return the connection for what follows the head, which is read from its first byte on: a stream or a body."""
        self.wire.put_back(self.connection.trailing_data[0])
        return self.wire


class ServerExchange(Exchange):
    """The server side of an exchange."""

    def __init__(self, wire: TLSConnection, head: int) -> None:
        super().__init__(wire, h11.Connection(h11.SERVER, max_incomplete_event_size=head))
        self._is_head = False
        self._in_chunks = False

    @property
    def unanswered(self) -> bool:
        """Whether a whole response can still be sent."""
        return self.connection.our_state in {h11.IDLE, h11.SEND_RESPONSE}

    async def request(self) -> RequestHead:
        """Return the request; raise h11.RemoteProtocolError if it is invalid, HTTPError if it has a body (none may)."""
        event = await self.next()
        if not isinstance(event, h11.Request):
            raise h11.RemoteProtocolError("the connection was closed before a request")
        headers = header_text(event.headers)
        self._is_head = event.method == b"HEAD"
        if _has_body(headers):
            raise HTTPError(HTTPStatus.BAD_REQUEST, "requests must not have a body")
        await self.next()
        return RequestHead(event.method.decode(), event.target.decode(), headers)

    async def reply(self, status: int, body: bytes, media: str = PLAIN, reason: str = "") -> None:
        """Send a whole response; `reason` is the text of the status line, in printable ASCII."""
        await self.begin(status, (("content-type", media), ("content-length", str(len(body)))), reason)
        await self.piece(b"" if self._is_head else body)
        await self.end()

    async def begin(self, status: int, headers: Headers, reason: str = "") -> None:
        """Send the head of a response; to an HTTP/1.0 caller, a chunked body is sent without chunks."""
        is_new = (self.connection.their_http_version or b"") >= b"1.1"
        self._in_chunks = is_new and ("transfer-encoding", "chunked") in headers
        own = [("connection", "close"), ("x-content-type-options", "nosniff")]
        await self.send(h11.Response(status_code=status, headers=[*headers, *own], reason=reason.encode("ascii")))

    async def piece(self, data: bytes) -> None:
        """Send a part of the body at once; of a chunked body in one write, for speed."""
        if self._in_chunks and data:
            await self.wire.write(chunk(data))
        else:
            await self.send(h11.Data(data=data))

    async def end(self) -> None:
        """Send the end of the response."""
        await self.send(h11.EndOfMessage())

    async def switch(self, headers: Headers) -> None:
        """Answer 101: from now on the connection belongs to another protocol."""
        await self.send(
            h11.InformationalResponse(status_code=101, headers=list(headers), reason=b"Switching Protocols")
        )


def header_text(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return h11's header fields as text."""
    return tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)


def _has_body(headers: Headers) -> bool:
    return any(name == "transfer-encoding" or (name == "content-length" and value != "0") for name, value in headers)


async def while_connected(
    wire: TLSConnection, coroutine: Coroutine[Any, Any, Result], *, dropping: bool = False
) -> Result:
    """Return the result of the work; raise ClientDisconnected if the caller leaves before, and cancel it.

    A followed log can be silent for days; without this, a disconnect would be noticed only with the next line. What the
    caller sends meanwhile is kept, or dropped where no more of it is wanted.
    """
    task = asyncio.create_task(coroutine)
    leaving = asyncio.create_task(wire.wait_until_left(dropping=dropping))
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_and_wait(task, leaving)
    if task.cancelled():
        raise ClientDisconnected
    return task.result()


class LowerExchange:
    """A request to a lower and its response; to be used within `aclosing`, which closes the connection at the end."""

    def __init__(self, cluster: Cluster, request: LowerRequest, limits: ConnectionLimits) -> None:
        self._cluster = cluster
        self._request = request
        self._limits = limits
        self._exchange: Exchange | None = None
        self._in_chunks = False

    async def aclose(self) -> None:
        """Close the connection, if there is one."""
        if self._exchange is not None:
            self._exchange.wire.abort()
            await self._exchange.wire.lost.wait()

    def release(self) -> TLSConnection:
        """Return the connection after the head of the response."""
        assert self._exchange is not None
        return self._exchange.release()

    async def answer(self, wanted: int) -> Headers:
        """Send the request and return the headers of a response with the wanted status, else raise HTTPError."""
        try:
            async with asyncio.timeout(self._limits.answering):
                response = await self._send()
                headers = header_text(response.headers)
                self._in_chunks = isinstance(response, h11.Response) and _CHUNKED in headers
                if response.status_code == wanted:
                    return headers
                body, request = await self._body(), self._request
                raise from_lower(
                    self._cluster.name, request.doing, response.status_code, body, of_kubelet=request.of_kubelet
                )
        except ClusterError as error:
            raise HTTPError(
                HTTPStatus.BAD_GATEWAY, f"{self._cluster.name}: {self._request.doing}: {error.title}"
            ) from error
        except TimeoutError as error:
            raise self._failed(HTTPStatus.GATEWAY_TIMEOUT, "no response in time") from error
        except h11.LocalProtocolError as error:
            raise self._failed(
                HTTPStatus.BAD_GATEWAY, "its address or credential contains invalid characters"
            ) from error
        except (OSError, h11.RemoteProtocolError) as error:
            raise self._failed(HTTPStatus.BAD_GATEWAY, str(error) or type(error).__name__) from error

    def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives; raise h11.RemoteProtocolError or OSError when it breaks off."""
        return self._unchunked() if self._in_chunks else self._framed()

    async def _unchunked(self) -> AsyncIterator[bytes]:
        chunks, wire = ChunkDecoder(), self.release()
        while not chunks.ended:
            data = await wire.read()
            if not data:
                raise h11.RemoteProtocolError("the connection was closed within the response body")
            if content := chunks.take(data):
                yield content

    async def _framed(self) -> AsyncIterator[bytes]:
        assert self._exchange is not None
        while isinstance(event := await self._exchange.next(), h11.Data):
            yield bytes(event.data)

    async def _send(self) -> h11.Response | h11.InformationalResponse:
        endpoint = self._cluster.endpoint()
        wire = await dial(endpoint, self._limits)
        self._exchange = Exchange(wire, h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_ERROR))
        await self._exchange.send(_head(endpoint, self._request))
        await self._exchange.send(h11.EndOfMessage())
        for _ in range(_MAX_INFORMATIONAL):
            event = await self._exchange.next()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                raise h11.RemoteProtocolError("the connection was closed before a response")
            if event.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
                return event
        raise h11.RemoteProtocolError("it sends only informational responses")

    async def _body(self) -> bytes:
        """Return the beginning of an error's body, as far as it arrives."""
        body = b""
        async for piece in self.pieces():
            body += piece
            if len(body) > _MAX_ERROR:
                break
        return body

    def _failed(self, status: HTTPStatus, reason: str) -> HTTPError:
        return HTTPError(status, f"{self._cluster.name}: {self._request.doing}: the cluster's apiserver: {reason}")


def _head(endpoint: Endpoint, request: LowerRequest) -> h11.Request:
    """Return the head of a request: host, user agent, the lower's credential and the headers of the request."""
    name = f"[{endpoint.address}]" if ":" in endpoint.address else endpoint.address
    own = [("host", f"{name}:{endpoint.port}"), ("user-agent", f"tensile/{__version__}"), *endpoint.headers.items()]
    target = f"{endpoint.prefix}{request.path}" + (f"?{request.query}" if request.query else "")
    return h11.Request(method=request.method, target=target, headers=[*own, *request.headers])
