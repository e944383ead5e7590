"""An HTTPS port that bounds connections and buffered bytes before a caller is authenticated.

aiohttp's web server accepts any number of connections, waits up to an hour on each, and logs every one that breaks. So
connections are accepted and counted here, and aiohttp's logger is disabled: what is wrong with a call is reported to
the caller only, and what is wrong with a response to the operator. The head of a request has a deadline and a bound
too. A connection that is idle between two requests has none.

Any client that reaches a port can open connections and send half a request on each, which takes descriptors and memory
from the rest of the engine. Both are bounded for the whole port. Beyond a bound, a connection of the origin that uses
most is dropped: first one that never sent a complete request, then the one idle for longest. A client that floods the
port displaces its own connections, and a caller with a few connections keeps them.
"""

import asyncio
import logging
import socket
import ssl
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, NamedTuple

import structlog
from aiohttp import web

from tensile.errors import described
from tensile.kube.limits import LogThrottle
from tensile.kube.listener_limits import origin_of
from tensile.kube.net import cancel_and_wait, soft_limit

_SHARE = 8
"""A port may use at most this fraction (1/8) of the process's file descriptors."""
_LINGER_SECONDS = 1.0
"""Seconds for which an unread rest of a body is still received, so that the sender gets the response."""
_RETRY_SECONDS = 0.2
_MAX_HEAD = 32 * 1024
"""Bytes of a head that comes in parts. One that comes at once is bounded by the `HeadBounds` alone."""
_log = structlog.get_logger("tensile.front")
_DISABLED_LOGGER = logging.getLogger("tensile.front.http")
_DISABLED_LOGGER.disabled = True
Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class HeadBounds(NamedTuple):
    """Limits of a request's head: how many headers, and bytes of each and of the first line. Go's client sends ten."""

    headers: int = 24
    longest: int = 4096


_DEFAULT_HEAD_BOUNDS = HeadBounds()


class ClientBounds(NamedTuple):
    """Limits of a port: bytes of one body, bytes of all unfinished bodies together, connections, and seconds.

    `patience` limits a TLS handshake and, separately, a head and a body. A busy apiserver keeps a few dozen connections
    open.
    """

    largest: int
    content: int = 16 << 20
    connections: int = 512
    patience: float = 5.0


@dataclass(eq=False, slots=True)
class PortClient:
    """One connection: its origin, when it last sent a complete request (or connected), and its buffered bytes.

    `drop` closes it, `known` is whether it has ever sent a complete request.
    """

    origin: str
    since: float
    drop: Callable[[], object]
    held: int = 0
    known: bool = False

    def record_request(self, now: float) -> None:
        """Record that a complete request arrived."""
        self.known, self.since = True, now


class PortClients:
    """All connections of a port: at most `most` of them, with at most `content` buffered bytes together."""

    def __init__(self, limit: int, content: int) -> None:
        self._limit = limit
        self._content = content
        self._clients: dict[PortClient, None] = {}
        self._held_bytes = 0

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[PortClient]:
        return iter(tuple(self._clients))

    def __contains__(self, client: PortClient) -> bool:
        return client in self._clients

    def add(self, client: PortClient) -> None:
        """Add a connection; another one is dropped if there are too many."""
        self._clients[client] = None
        if len(self._clients) > self._limit:
            self.displace()

    def hold(self, client: PortClient, size: int) -> None:
        """Count bytes buffered for a connection; beyond the bound, connections are dropped, possibly this one."""
        client.held += size
        self._held_bytes += size
        while self._held_bytes > self._content:
            self._end(self._client_to_drop(lambda one: one.held))

    def release(self, client: PortClient) -> None:
        """Count none of a connection's bytes any longer."""
        if client in self._clients:
            self._held_bytes -= client.held
        client.held = 0

    def leave(self, client: PortClient) -> None:
        """Remove a connection that has ended; safe to call more than once."""
        self.release(client)
        self._clients.pop(client, None)

    def displace(self) -> None:
        """Drop one connection, if there is any."""
        if self._clients:
            self._end(self._client_to_drop(lambda _: 1))

    def _client_to_drop(self, weight: Callable[[PortClient], int]) -> PortClient:
        """Return the connection to drop first, of the origin with the largest total weight."""
        weights: Counter[str] = Counter()
        for one in self._clients:
            weights[one.origin] += weight(one)
        (origin, _), *_ = weights.most_common(1)
        candidates = (one for one in self._clients if one.origin == origin and weight(one))
        return min(candidates, key=lambda one: (one.known, one.since))

    def _end(self, client: PortClient) -> None:
        self.leave(client)
        client.drop()


class TLSPort:
    """Serves HTTPS on a bound socket, from the first `show` to `deafen`; `handle` answers a request."""

    def __init__(self, opened: socket.socket, handle: Handle, bounds: ClientBounds) -> None:
        self.clients = PortClients(min(bounds.connections, _max_connections()), bounds.content)
        self._socket = opened
        self._handle = handle
        self._bounds = bounds
        self._is_out_of_descriptors = False
        self._server = _Server(self._serve, self._on_closed, bounds.patience)
        self._client_by_protocol: dict[web.RequestHandler, PortClient] = {}
        self._handshakes: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None
        self._tls: ssl.SSLContext

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._socket.getsockname()[1])

    @property
    def is_used(self) -> bool:
        """Whether any client is connected."""
        return bool(self._client_by_protocol)

    def show(self, tls: ssl.SSLContext) -> None:
        """Serve with this certificate, from the next connection on."""
        self._tls = tls
        if self._accepting is None:
            self._accepting = asyncio.create_task(self._accept())

    async def retire(self, grace: float) -> None:
        """Close all connections; each may take `grace` seconds to finish the response in progress."""
        await cancel_and_wait(*self._handshakes)
        await asyncio.gather(*(protocol.shutdown(grace) for protocol in tuple(self._client_by_protocol)))

    def cut(self) -> None:
        """Close all connections at once."""
        for protocol in tuple(self._client_by_protocol):
            protocol.force_close()

    async def deafen(self) -> None:
        """Stop accepting connections; open connections stay."""
        accepting, self._accepting = self._accepting, None
        if accepting is not None:
            accepting.cancel()
            asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        if accepting is not None:
            await asyncio.gather(accepting, return_exceptions=True)

    async def body(self, request: web.BaseRequest) -> bytes | None:
        """Return a request's body, or None if it is too large.

        Raises TimeoutError if the body does not arrive in time, and OSError if the connection ended or was dropped to
        make room. `handle` need not catch them.
        """
        client = self._client_by_protocol.get(request.protocol)
        if client is None:
            raise ConnectionAbortedError
        content = bytearray()
        try:
            async with asyncio.timeout(self._bounds.patience):
                while len(content) <= self._bounds.largest and (chunk := await request.content.readany()):
                    content += chunk
                    self._hold(client, len(chunk))
        except BaseException:
            content.clear()  # the error and the buffer refer to each other, and stay until the garbage collector runs
            raise
        finally:
            chunk = b""
            self.clients.release(client)
        return bytes(content) if len(content) <= self._bounds.largest else None

    def _hold(self, client: PortClient, size: int) -> None:
        if client in self.clients:
            self.clients.hold(client, size)
        if client not in self.clients:
            raise ConnectionAbortedError

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(self._socket)
            except OSError as error:
                await self._drop_for_descriptors(error)
                continue
            self._is_out_of_descriptors = False
            client = PortClient(origin_of(str(address[0])), loop.time(), connection.close)
            task = asyncio.create_task(self._handshake(connection, client))
            client.drop = task.cancel
            self._handshakes.add(task)
            task.add_done_callback(partial(self._on_handshake_done, connection, client))
            self.clients.add(client)

    async def _drop_for_descriptors(self, error: OSError) -> None:
        """Drop a connection if the process has no descriptors left; log the first error of a row only."""
        if not self._is_out_of_descriptors:
            _log.warning("cannot accept connections", port=self.port, why=str(error))
        self._is_out_of_descriptors = True
        self.clients.displace()
        await asyncio.sleep(_RETRY_SECONDS)

    async def _handshake(self, connection: socket.socket, client: PortClient) -> None:
        """Do the TLS handshake and pass the connection to the web server; raises OSError if the handshake fails."""
        protocol = self._server()
        self._client_by_protocol[protocol] = client
        try:
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol, connection, ssl=self._tls, ssl_handshake_timeout=self._bounds.patience
            )
        except BaseException:
            self._on_closed(protocol)
            raise
        client.drop = transport.abort

    def _on_handshake_done(self, connection: socket.socket, client: PortClient, task: asyncio.Task[None]) -> None:
        """Clean up a connection that failed to start; the failure is not logged."""
        self._handshakes.discard(task)
        if task.cancelled() or task.exception() is not None:
            self.clients.leave(client)
            connection.close()

    def _on_closed(self, protocol: web.RequestHandler) -> None:
        client = self._client_by_protocol.pop(protocol, None)
        if client is not None:
            self.clients.leave(client)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request and restart the idle time of its connection."""
        if (request.content_length or 0) > self._bounds.largest:
            return web.Response(status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        try:
            response = await self._handle(request)
        except TimeoutError:
            return web.Response(status=HTTPStatus.REQUEST_TIMEOUT)
        except OSError:
            return web.Response(status=HTTPStatus.BAD_REQUEST)
        client = self._client_by_protocol.get(request.protocol)
        if client is not None:
            client.record_request(asyncio.get_running_loop().time())
        return response


class QuietServer(web.Server):
    """aiohttp's server, which drops a client with a slow or large head, and logs defects of `handle` only, seldom.

    A head must be complete `patience` seconds after its first byte.
    """

    def __init__(self, handle: Handle, patience: float, bounds: HeadBounds = _DEFAULT_HEAD_BOUNDS) -> None:
        super().__init__(
            self._handled,
            access_log=None,
            logger=_DISABLED_LOGGER,
            auto_decompress=False,
            lingering_time=_LINGER_SECONDS,
            max_headers=bounds.headers,
            max_field_size=bounds.longest,
            max_line_size=bounds.longest,
        )
        self._patience = patience
        self._respond = handle
        self._throttle = LogThrottle(time.monotonic)

    async def _handled(self, request: web.BaseRequest) -> web.StreamResponse:
        """Return the response; a defect fails this response only."""
        try:
            return await self._respond(request)
        except (web.HTTPException, web.RequestPayloadError, OSError):
            raise  # a response, or what the caller sends and how it leaves
        except Exception as error:  # noqa: BLE001 - the port serves on
            fields = {"path": request.path, "error": described(error)}
            message = "a response failed (bug, please report)"
            self._throttle.log(type(error).__name__, lambda more: _log.error(message, **fields, **more))
            return web.Response(status=HTTPStatus.INTERNAL_SERVER_ERROR, text="internal error (bug in tensile)\n")

    def __call__(self) -> web.RequestHandler:
        """Return the protocol of a new connection."""
        return _Protocol(self, self._patience, loop=self._loop, **self._kwargs)


class _Server(QuietServer):
    """Reports closed connections."""

    def __init__(self, handle: Handle, on_closed: Callable[[web.RequestHandler], None], patience: float) -> None:
        super().__init__(handle, patience)
        self._on_closed = on_closed

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """Report a closed connection."""
        super().connection_lost(handler, exc)
        self._on_closed(handler)


class _Protocol(web.RequestHandler):
    """One connection, which is dropped if a head takes too long, or if requests come before the last one is answered.

    No client of these ports sends requests ahead, and each that waits keeps its head in memory.
    """

    def __init__(self, server: QuietServer, patience: float, **options: Any) -> None:
        super().__init__(server, **options)
        self._patience = patience
        self._head = 0
        self._deadline: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        """Count the bytes of an incomplete head, from the first of which it has its time."""
        super().data_received(data)
        if not self._awaits_head():
            self._forget_head()
        elif data and self._deadline is None:
            self._deadline = self._loop.call_later(self._patience, self._drop)
        self._head += len(data) if self._deadline is not None else 0
        if self._head > _MAX_HEAD or len(self._messages) > 1:
            self._drop()

    def connection_lost(self, exc: BaseException | None) -> None:
        """End the time of the head."""
        self._forget_head()
        super().connection_lost(exc)

    def _awaits_head(self) -> bool:
        """Report whether the bytes so far belong to no request; a body that is not read belongs to one."""
        return not self._request_count or (self._waiter is not None and not self._waiter.done())

    def _forget_head(self) -> None:
        self._head = 0
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _drop(self) -> None:
        if self.transport is not None:
            self.transport.abort()


def _max_connections() -> int:
    """Return the maximum of connections for a port, from the process's limit of descriptors."""
    most = soft_limit()
    return sys.maxsize if most is None else max(1, most // _SHARE)
