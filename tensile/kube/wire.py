"""HTTP connections that send one request at a time and read its complete response.

They replace aiohttp under the `kubernetes` package's REST client, as aiohttp takes more CPU for small requests
(docs/decisions/cluster-access.md). A request is one write, and a parser in C (llhttp) reads the response. Nothing is
sent twice, no redirect is followed, nothing is decompressed, and a connection with unexpected data is not used again.

A response is counted as it arrives, before it is processed: its content, and the bytes around that.
"""

import asyncio
import re
import ssl
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

import httptools

from tensile.errors import Unreachable
from tensile.kube.aio import (
    NO_CONTENT,
    Configuration,
    RESTClientObject,
    UnverifiedServer,
    VerifyCertificate,
    certificate_of,
)
from tensile.kube.credentials import Access
from tensile.kube.dial import connected
from tensile.kube.limits import CHUNKS, HEAD, OBJECT, REFUSAL, SPARSE, ResponseBudget, TooLarge, mebibytes
from tensile.kube.net import keep_alive

CONNECT_SECONDS = 10.0
IDLE_SECONDS = 20.0
"""Seconds after which an unused connection is closed. A probe every ten seconds keeps one open."""
_USED_HEADERS = (b"content-type", b"retry-after")
_BREAKS = re.compile(r"[\r\n\0]").search
_HEADS = 16
"""The most headers of requests that are kept as lines. A client sends one credential and a few media types."""
_FINAL, _ERROR = 200, 300
"""Lower statuses are informational. From `_ERROR` on a status is a redirect or an error."""


class ProtocolError(ConnectionError):
    """The connection ended, or carried invalid HTTP, before the response was complete."""


class KeepAlive(NamedTuple):
    """How connections are kept: for `idle` seconds without a request, if `verify_certificate` accepts the server."""

    verify_certificate: VerifyCertificate = lambda _certificate: True
    idle: float = IDLE_SECONDS


class RequestLimits(NamedTuple):
    """The limits of a request: `seconds` in total (None: no limit), and `most` bytes for its response."""

    seconds: float | None = None
    most: int = OBJECT


class HTTPAnswer(NamedTuple):
    """A response: HTTP status, the headers that are used (names in lower case), and the body.

    Of an error's body it is the beginning.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


class ConnectionRESTClient(RESTClientObject):  # type: ignore[misc]  # the package is not typed
    """The package's REST client on our own connections to one server.

    Create it in a running event loop. `account` counts the bytes of all incomplete responses.
    """

    def __init__(self, configuration: Configuration, access: Access, account: ResponseBudget, keep: KeepAlive) -> None:
        super().__init__(configuration)
        parts = urlsplit(access.url)
        self._access = access
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._host = parts.netloc
        self._budget = account
        self._keep = keep
        self._free: deque[_Connection] = deque()
        """Connections without a request, the most recently used at the end."""
        self._open: set[_Connection] = set()
        self._header_cache: dict[tuple[tuple[str, str], ...], str] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def left(self) -> int:
        """The number of open connections."""
        return len(self._open)

    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        post_params: object = None,  # noqa: ARG002 - the package's
        _request_timeout: RequestLimits | None = None,
    ) -> HTTPAnswer:
        """Send a request and return its response. The package passes `_request_timeout` on unchanged.

        Raises ssl.SSLError, OSError and TimeoutError for a server that cannot be connected to, UnverifiedServer,
        TooLarge, ValueError for a header with a line break, and Unreachable if the account is full. A request that is
        cancelled or takes too long ends its connection: a late response would be taken for that of the next request.
        """
        limits = _request_timeout or RequestLimits()
        content = _written(method, url.removeprefix(self._origin), self._head(headers or {}), body)
        deadline = None if limits.seconds is None else asyncio.get_running_loop().time() + limits.seconds
        connection = self._pop_free()
        if connection is None:
            async with asyncio.timeout_at(deadline):
                connection = await self._connect()
        try:
            answer = await connection.exchange(content, limits.most, deadline)
        except BaseException:
            connection.end()
            raise
        self._put_back(connection)
        return answer

    def hang_up(self) -> None:
        """End every connection and open no more. Requests in progress fail."""
        self._is_closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in tuple(self._open):
            connection.end()
        self._free.clear()

    async def close(self) -> None:
        """Do the same, under the package's name."""
        self.hang_up()

    def _head(self, headers: Mapping[str, str]) -> str:
        """Return the lines of a request's headers, built once: most requests have those of an earlier one."""
        given = tuple(headers.items())
        known = self._header_cache.get(given)
        if known is None:
            if len(self._header_cache) >= _HEADS:
                self._header_cache.clear()
            known = self._header_cache[given] = _head_lines({"Host": self._host, **headers})
        return known

    def _pop_free(self) -> "_Connection | None":
        """Return the most recently used free connection."""
        while self._free:
            connection = self._free.pop()
            if connection.is_usable:
                return connection
        return None

    def _put_back(self, connection: "_Connection") -> None:
        """Keep a connection after its response, unless it cannot be used again."""
        if not connection.is_usable or self._is_closed:
            connection.end()
            return
        loop = asyncio.get_running_loop()
        connection.free_since = loop.time()
        self._free.append(connection)
        if self._sweeping is None:
            self._sweeping = loop.call_later(self._keep.idle, self._sweep)

    def _sweep(self) -> None:
        """Close the connections that were idle too long."""
        loop = asyncio.get_running_loop()
        until = loop.time() - self._keep.idle
        while self._free and self._free[0].free_since <= until:
            self._free.popleft().end()
        remaining = self._free[0].free_since - until if self._free else 0.0
        self._sweeping = loop.call_later(remaining, self._sweep) if self._free else None

    async def _connect(self) -> "_Connection":
        """Open a connection. Raises UnverifiedServer if `verify_certificate` refuses the server."""
        access, connection = self._access, _Connection(self._open, self._budget)
        tls, name = (access.tls, access.server_name) if access.is_encrypted else (None, None)
        async with asyncio.timeout(CONNECT_SECONDS):
            sock = await connected(access.address, access.port)
            try:
                keep_alive(sock, idle=15, interval=5)
                loop = asyncio.get_running_loop()
                transport, _ = await loop.create_connection(
                    lambda: connection, sock=sock, ssl=tls, server_hostname=name
                )
            except BaseException:
                sock.close()
                raise
        if self._is_closed:
            connection.end()
            raise ProtocolError("closed")
        if not self._keep.verify_certificate(certificate_of(transport)):
            connection.end()
            raise UnverifiedServer
        return connection


def _head_lines(headers: Mapping[str, str]) -> str:
    """Return headers as lines. Raises ValueError for one with a line break."""
    if any(_BREAKS(name) or _BREAKS(value) for name, value in headers.items()):
        raise ValueError("a header contains a line break")
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())


def _written(method: str, target: str, head: str, body: bytes | None) -> bytes:
    """Return the bytes of a request; `head` are the lines of its headers."""
    content = body or b""
    length = f"Content-Length: {len(content)}\r\n" if content or method != "GET" else ""
    return f"{method} {target} HTTP/1.1\r\n{head}{length}\r\n".encode("latin-1") + content


class _Connection(asyncio.Protocol):
    """One connection, with the callbacks of its parser.

    `open_connections` contains it while it is open. `free_since` is when its last response was complete, by the event
    loop's clock.
    """

    def __init__(self, open_connections: "set[_Connection]", account: ResponseBudget) -> None:
        self.is_usable = False
        self.free_since = 0.0
        self._open_connections = open_connections
        self._budget = account
        self._transport: asyncio.Transport | None = None
        self._parser: Any = httptools.HttpResponseParser(self)
        self._response: asyncio.Future[HTTPAnswer] | None = None
        self._headers: dict[str, str] = {}
        self._most = self._received = self._head = self._overhead = 0
        self._is_error = False
        self._parts: list[bytes] = []

    async def exchange(self, content: bytes, most: int, deadline: float | None) -> HTTPAnswer:
        """Send a request and return its response, of `most` bytes at most.

        Raises TimeoutError at `deadline`, by the event loop's clock. asyncio.timeout would do the same, and take longer
        than the rest of this function.
        """
        if self._transport is None or not self.is_usable:
            raise ProtocolError("the connection is closed")
        loop = asyncio.get_running_loop()
        self._most, self._overhead = most + HEAD, 0
        self._response = loop.create_future()
        self._transport.write(content)
        expiry = loop.call_at(deadline, self._fail, TimeoutError()) if deadline is not None else None
        try:
            return await self._response
        finally:
            if expiry is not None:
                expiry.cancel()

    def end(self) -> None:
        """Close the connection without waiting for the other side."""
        self.is_usable = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept requests from now on."""
        self._transport = cast("asyncio.Transport", transport)
        self.is_usable = True
        self._open_connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the awaited response. If TLS failed, use its error."""
        self._open_connections.discard(self)
        self._fail(exc if isinstance(exc, ssl.SSLError) else ProtocolError(str(exc or "closed")))
        self._forget()

    def data_received(self, data: bytes) -> None:
        """Parse the data. Data that is not awaited ends the connection."""
        if self._response is None or self._response.done():
            self.end()
            return
        try:
            self._read(data)
        except Unreachable as error:
            self._fail(error)
            self.end()
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(TooLarge(NO_CONTENT) if self._head > HEAD else ProtocolError(type(error).__name__))
            self.end()

    def on_message_begin(self) -> None:
        """Begin a response."""
        self._headers, self._head, self._parts, self._is_error = {}, 0, [], False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header, and keep it if it is used. An exception here ends the parsing."""
        self._head += len(name) + len(value)
        if self._head > HEAD:
            raise TooLarge(NO_CONTENT)
        known = name.lower()
        if known in _USED_HEADERS:
            self._headers[known.decode()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Record whether it is an error, of whose body less is read."""
        self._is_error = self._parser.get_status_code() >= _ERROR

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body."""
        self._parts.append(body)

    def on_message_complete(self) -> None:
        """Return the response, unless it is informational."""
        if self._parser.get_status_code() >= _FINAL:
            self.is_usable = self.is_usable and self._parser.should_keep_alive()
            self._answer()

    def _read(self, data: bytes) -> None:
        """Count and parse data. Raises Unreachable if it exceeds a limit."""
        self._received += len(data)
        self._budget.take(len(data))
        if self._received > self._most and not self._is_error:
            raise TooLarge(f"a response of more than {mebibytes(self._most - HEAD)}")
        count = len(self._parts)
        self._parser.feed_data(data)
        if self._response is None or self._response.done():
            return
        self._overhead = 0 if len(self._parts) > count else self._overhead + len(data)
        if self._overhead > HEAD:
            raise TooLarge(NO_CONTENT)
        if len(self._parts) > CHUNKS and self._received < SPARSE * len(self._parts):
            raise TooLarge(NO_CONTENT)
        if self._is_error and self._received > REFUSAL:
            self._answer()
            self.end()

    def _answer(self) -> None:
        """Complete the request and release its data. Without a request, mark the connection as unusable."""
        if self._response is None or self._response.done():
            self.is_usable = False
            return
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        answer = HTTPAnswer(self._parser.get_status_code(), self._headers, body[:REFUSAL] if self._is_error else body)
        self._forget()
        self._response.set_result(answer)

    def _forget(self) -> None:
        """Release the data of a finished response."""
        self._budget.give_back(self._received)
        self._received, self._parts = 0, []

    def _fail(self, error: Exception) -> None:
        self.is_usable = False
        if self._response is not None and not self._response.done():
            self._response.set_exception(error)
