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
_LINGERING = 1.0
"""Seconds for which an unread rest of a body is still received, so that the sender gets the response."""
_OUT_OF_RESOURCES = 0.2
_MOST_HEAD = 32 * 1024
"""Bytes of a head that comes in parts. One that comes at once is bounded by the `HeadBounds` alone."""
_log = structlog.get_logger("tensile.front")
_QUIET = logging.getLogger("tensile.front.http")
_QUIET.disabled = True
Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class HeadBounds(NamedTuple):
    """Limits of a request's head: how many headers, and bytes of each and of the first line. Go's client sends ten."""

    headers: int = 24
    longest: int = 4096


_FEW = HeadBounds()


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

    def ask(self, now: float) -> None:
        """Record that a complete request arrived."""
        self.known, self.since = True, now


class PortClients:
    """All connections of a port: at most `most` of them, with at most `content` buffered bytes together."""

    def __init__(self, most: int, content: int) -> None:
        self._most = most
        self._content = content
        self._here: dict[PortClient, None] = {}
        self._held = 0

    def __len__(self) -> int:
        return len(self._here)

    def __iter__(self) -> Iterator[PortClient]:
        return iter(tuple(self._here))

    def __contains__(self, visitor: PortClient) -> bool:
        return visitor in self._here

    def enter(self, visitor: PortClient) -> None:
        """Add a connection; another one is dropped if there are too many."""
        self._here[visitor] = None
        if len(self._here) > self._most:
            self.displace()

    def hold(self, visitor: PortClient, size: int) -> None:
        """Count bytes buffered for a connection; beyond the bound, connections are dropped, possibly this one."""
        visitor.held += size
        self._held += size
        while self._held > self._content:
            self._end(self._chosen(lambda one: one.held))

    def release(self, visitor: PortClient) -> None:
        """Count none of a connection's bytes any longer."""
        if visitor in self._here:
            self._held -= visitor.held
        visitor.held = 0

    def leave(self, visitor: PortClient) -> None:
        """Remove a connection that has ended; safe to call more than once."""
        self.release(visitor)
        self._here.pop(visitor, None)

    def displace(self) -> None:
        """Drop one connection, if there is any."""
        if self._here:
            self._end(self._chosen(lambda _: 1))

    def _chosen(self, weight: Callable[[PortClient], int]) -> PortClient:
        """Return the connection to drop first, of the origin with the largest total weight."""
        weights: Counter[str] = Counter()
        for one in self._here:
            weights[one.origin] += weight(one)
        (origin, _), *_ = weights.most_common(1)
        crowd = (one for one in self._here if one.origin == origin and weight(one))
        return min(crowd, key=lambda one: (one.known, one.since))

    def _end(self, visitor: PortClient) -> None:
        self.leave(visitor)
        visitor.drop()


class TLSPort:
    """Serves HTTPS on a bound socket, from the first `show` to `deafen`; `handle` answers a request."""

    def __init__(self, opened: socket.socket, handle: Handle, bounds: ClientBounds) -> None:
        self.visitors = PortClients(min(bounds.connections, _share()), bounds.content)
        self._socket = opened
        self._handle = handle
        self._bounds = bounds
        self._is_short = False
        self._server = _Server(self._serve, self._left, bounds.patience)
        self._by_protocol: dict[web.RequestHandler, PortClient] = {}
        self._beginning: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None
        self._tls: ssl.SSLContext

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._socket.getsockname()[1])

    @property
    def is_used(self) -> bool:
        """Whether any client is connected."""
        return bool(self._by_protocol)

    def show(self, tls: ssl.SSLContext) -> None:
        """Serve with this certificate, from the next connection on."""
        self._tls = tls
        if self._accepting is None:
            self._accepting = asyncio.create_task(self._accept())

    async def retire(self, grace: float) -> None:
        """Close all connections; each may take `grace` seconds to finish the response in progress."""
        await cancel_and_wait(*self._beginning)
        await asyncio.gather(*(protocol.shutdown(grace) for protocol in tuple(self._by_protocol)))

    def cut(self) -> None:
        """Close all connections at once."""
        for protocol in tuple(self._by_protocol):
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
        visitor = self._by_protocol.get(request.protocol)
        if visitor is None:
            raise ConnectionAbortedError
        found = bytearray()
        try:
            async with asyncio.timeout(self._bounds.patience):
                while len(found) <= self._bounds.largest and (chunk := await request.content.readany()):
                    found += chunk
                    self._hold(visitor, len(chunk))
        except BaseException:
            found.clear()  # the error and the buffer refer to each other, and stay until the garbage collector runs
            raise
        finally:
            chunk = b""
            self.visitors.release(visitor)
        return bytes(found) if len(found) <= self._bounds.largest else None

    def _hold(self, visitor: PortClient, size: int) -> None:
        if visitor in self.visitors:
            self.visitors.hold(visitor, size)
        if visitor not in self.visitors:
            raise ConnectionAbortedError

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(self._socket)
            except OSError as error:
                await self._run_short(error)
                continue
            self._is_short = False
            visitor = PortClient(origin_of(str(address[0])), loop.time(), connection.close)
            task = asyncio.create_task(self._begin(connection, visitor))
            visitor.drop = task.cancel
            self._beginning.add(task)
            task.add_done_callback(partial(self._begun, connection, visitor))
            self.visitors.enter(visitor)

    async def _run_short(self, error: OSError) -> None:
        """Drop a connection if the process has no descriptors left; log the first error of a row only."""
        if not self._is_short:
            _log.warning("cannot accept connections", port=self.port, why=str(error))
        self._is_short = True
        self.visitors.displace()
        await asyncio.sleep(_OUT_OF_RESOURCES)

    async def _begin(self, connection: socket.socket, visitor: PortClient) -> None:
        """Do the TLS handshake and pass the connection to the web server; raises OSError if the handshake fails."""
        protocol = self._server()
        self._by_protocol[protocol] = visitor
        try:
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol, connection, ssl=self._tls, ssl_handshake_timeout=self._bounds.patience
            )
        except BaseException:
            self._left(protocol)
            raise
        visitor.drop = transport.abort

    def _begun(self, connection: socket.socket, visitor: PortClient, task: asyncio.Task[None]) -> None:
        """Clean up a connection that failed to start; the failure is not logged."""
        self._beginning.discard(task)
        if task.cancelled() or task.exception() is not None:
            self.visitors.leave(visitor)
            connection.close()

    def _left(self, protocol: web.RequestHandler) -> None:
        visitor = self._by_protocol.pop(protocol, None)
        if visitor is not None:
            self.visitors.leave(visitor)

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
        visitor = self._by_protocol.get(request.protocol)
        if visitor is not None:
            visitor.ask(asyncio.get_running_loop().time())
        return response


class QuietServer(web.Server):
    """aiohttp's server, which drops a client with a slow or large head, and logs defects of `handle` only, seldom.

    A head must be complete `patience` seconds after its first byte.
    """

    def __init__(self, handle: Handle, patience: float, bounds: HeadBounds = _FEW) -> None:
        super().__init__(
            self._handled,
            access_log=None,
            logger=_QUIET,
            auto_decompress=False,
            lingering_time=_LINGERING,
            max_headers=bounds.headers,
            max_field_size=bounds.longest,
            max_line_size=bounds.longest,
        )
        self._patience = patience
        self._respond = handle
        self._seldom = LogThrottle(time.monotonic)

    async def _handled(self, request: web.BaseRequest) -> web.StreamResponse:
        """Return the response; a defect fails this response only."""
        try:
            return await self._respond(request)
        except (web.HTTPException, web.RequestPayloadError, OSError):
            raise  # a response, or what the caller sends and how it leaves
        except Exception as error:  # noqa: BLE001 - the port serves on
            said = {"path": request.path, "error": described(error)}
            words = "a response failed (bug, please report)"
            self._seldom.tell(type(error).__name__, lambda more: _log.error(words, **said, **more))
            return web.Response(status=HTTPStatus.INTERNAL_SERVER_ERROR, text="internal error (bug in tensile)\n")

    def __call__(self) -> web.RequestHandler:
        """Return the protocol of a new connection."""
        return _Protocol(self, self._patience, loop=self._loop, **self._kwargs)


class _Server(QuietServer):
    """Reports closed connections."""

    def __init__(self, handle: Handle, left: Callable[[web.RequestHandler], None], patience: float) -> None:
        super().__init__(handle, patience)
        self._tell = left

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """Report a closed connection."""
        super().connection_lost(handler, exc)
        self._tell(handler)


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
        if self._head > _MOST_HEAD or len(self._messages) > 1:
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


def _share() -> int:
    """Return the maximum of connections for a port, from the process's limit of descriptors."""
    most = soft_limit()
    return sys.maxsize if most is None else max(1, most // _SHARE)
