"""A port for calls over TLS: connections, and what is sent on them, are bounded before anybody is known.

The web server is aiohttp's. It takes any number of connections, waits an hour for each, and tells of every one that
breaks off; so connections are accepted here, where they are counted, and its own words are left out: what is wrong with
a call is the caller's to hear, and nobody else's.

Who is connected to a port, how much of what they send is kept, and who makes room when that is too much.

Whoever reaches a port can open connections and send half of something on each: that takes descriptors and memory which
the rest of the engine needs. So both are bounded, for all of a port together; beyond a bound one who is there goes, of
the address that has most: first who has never asked a whole question, then of whom none has come for longest. Who
floods a port displaces its own by that, and a caller with a few connections keeps them.
"""

import asyncio
import logging
import socket
import ssl
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple

import structlog
from aiohttp import web

from tensile.kube.net import soft_limit

_SITE = 64
"""Bits of an IPv6 address that are one machine's network: it has all addresses behind them."""


@dataclass(eq=False, slots=True)
class Visitor:
    """One connection: where it comes from, since when it has asked nothing, and the bytes that are kept of it.

    `drop` ends it, `known` is whether it has ever asked a whole question.
    """

    origin: str
    since: float
    drop: Callable[[], object]
    held: int = 0
    known: bool = False

    def ask(self, now: float) -> None:
        """Note that it has asked a whole question."""
        self.known, self.since = True, now


class Visitors:
    """All that are connected to a port: at most `most` of them, of whom at most `content` bytes are kept together."""

    def __init__(self, most: int, content: int) -> None:
        self._most = most
        self._content = content
        self._here: dict[Visitor, None] = {}
        self._held = 0

    def __len__(self) -> int:
        return len(self._here)

    def __iter__(self) -> Iterator[Visitor]:
        return iter(tuple(self._here))

    def __contains__(self, visitor: Visitor) -> bool:
        return visitor in self._here

    def enter(self, visitor: Visitor) -> None:
        """Count one who has come; another one may have to go for it."""
        self._here[visitor] = None
        if len(self._here) > self._most:
            self.displace()

    def hold(self, visitor: Visitor, size: int) -> None:
        """Count bytes that are kept of a visitor from now on; it may be the one who has to go for them."""
        visitor.held += size
        self._held += size
        while self._held > self._content:
            self._end(self._chosen(lambda one: one.held))

    def release(self, visitor: Visitor) -> None:
        """Count none of a visitor's bytes any more."""
        if visitor in self._here:
            self._held -= visitor.held
        visitor.held = 0

    def leave(self, visitor: Visitor) -> None:
        """Forget one who has gone; more than once is as good as once."""
        self.release(visitor)
        self._here.pop(visitor, None)

    def displace(self) -> None:
        """Have one go, if anybody is there."""
        if self._here:
            self._end(self._chosen(lambda _: 1))

    def _chosen(self, weight: Callable[[Visitor], int]) -> Visitor:
        """Return who goes first of the origin that weighs most."""
        weights: Counter[str] = Counter()
        for one in self._here:
            weights[one.origin] += weight(one)
        (origin, _), *_ = weights.most_common(1)
        crowd = (one for one in self._here if one.origin == origin and weight(one))
        return min(crowd, key=lambda one: (one.known, one.since))

    def _end(self, visitor: Visitor) -> None:
        self.leave(visitor)
        visitor.drop()


def origin_of(host: str) -> str:
    """Return what counts as one origin of connections: an IPv4 address, however it is written, or a network of IPv6."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Address(int(address) >> _SITE << _SITE))


_SHARE = 8
"""One of so many of the descriptors that this process may have is the most for a port."""
_LINGERING = 1.0
"""Seconds in which the rest of a body that nobody reads may come, so that its sender hears why."""
_OUT_OF_RESOURCES = 0.2
_log = structlog.get_logger("tensile.front")
_QUIET = logging.getLogger("tensile.front.http")
_QUIET.disabled = True

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Bounds(NamedTuple):
    """What callers may take: bytes of a body, and of all that have begun to come; connections; and seconds.

    So many seconds a handshake may take, and a body. A few dozen connections are open from an apiserver that is busy.
    """

    largest: int
    content: int = 16 << 20
    connections: int = 512
    patience: float = 5.0


class Front:
    """Serves HTTP on a port that was taken, from the first `show` to `deafen`; `handle` answers a request."""

    def __init__(self, opened: socket.socket, handle: Handle, bounds: Bounds) -> None:
        self.visitors = Visitors(min(bounds.connections, _share()), bounds.content)
        self._socket = opened
        self._handle = handle
        self._bounds = bounds
        self._is_short = False
        self._server = _Server(self._serve, self._left)
        self._by_protocol: dict[web.RequestHandler, Visitor] = {}
        self._beginning: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None
        self._tls: ssl.SSLContext

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._socket.getsockname()[1])

    @property
    def is_used(self) -> bool:
        """Whether anybody is connected."""
        return bool(self._by_protocol)

    def show(self, tls: ssl.SSLContext) -> None:
        """Serve with this certificate, from the next connection on."""
        self._tls = tls
        if self._accepting is None:
            self._accepting = asyncio.create_task(self._accept())

    async def retire(self, grace: float) -> None:
        """End the connections that are there, each with the answer that it waits for, if that takes no longer."""
        for task in tuple(self._beginning):
            task.cancel()
        await asyncio.gather(*self._beginning, return_exceptions=True)
        await asyncio.gather(*(protocol.shutdown(grace) for protocol in tuple(self._by_protocol)))

    def cut(self) -> None:
        """End the connections that are there at once."""
        for protocol in tuple(self._by_protocol):
            protocol.force_close()

    async def deafen(self) -> None:
        """Take no more connections, from this moment on; those that are there stay."""
        accepting, self._accepting = self._accepting, None
        if accepting is not None:
            accepting.cancel()
            asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()
        if accepting is not None:
            await asyncio.gather(accepting, return_exceptions=True)

    async def body(self, request: web.BaseRequest) -> bytes | None:
        """Read a request's body, as long as others send no more than all may together; None for one that is too large.

        Raises TimeoutError for one that does not come in time, and OSError where the connection has ended: `handle`
        need not mind them.
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
            found.clear()  # the error and what came stay in each other's reach, until somebody collects both
            raise
        finally:
            chunk = b""
            self.visitors.release(visitor)
        return bytes(found) if len(found) <= self._bounds.largest else None

    def _hold(self, visitor: Visitor, size: int) -> None:
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
            visitor = Visitor(origin_of(str(address[0])), loop.time(), connection.close)
            task = asyncio.create_task(self._begin(connection, visitor))
            visitor.drop = task.cancel
            self._beginning.add(task)
            task.add_done_callback(partial(self._begun, connection, visitor))
            self.visitors.enter(visitor)

    async def _run_short(self, error: OSError) -> None:
        """Make room where the process has no descriptors left, and tell of it once."""
        if not self._is_short:
            _log.warning("cannot take a connection", port=self.port, why=str(error))
        self._is_short = True
        self.visitors.displace()
        await asyncio.sleep(_OUT_OF_RESOURCES)

    async def _begin(self, connection: socket.socket, visitor: Visitor) -> None:
        """Agree on TLS, and let the web server have the connection; OSError where the other side does not agree."""
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

    def _begun(self, connection: socket.socket, visitor: Visitor, task: asyncio.Task[None]) -> None:
        """Let go of a connection that came to nothing: what went wrong is its own matter."""
        self._beginning.discard(task)
        if task.cancelled() or task.exception() is not None:
            self.visitors.leave(visitor)
            connection.close()

    def _left(self, protocol: web.RequestHandler) -> None:
        visitor = self._by_protocol.pop(protocol, None)
        if visitor is not None:
            self.visitors.leave(visitor)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request; whoever has asked a whole question begins to wait anew."""
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


class _Server(web.Server):
    """aiohttp's server, which tells of connections that have gone and says nothing else."""

    def __init__(self, handle: Handle, left: Callable[[web.RequestHandler], None]) -> None:
        super().__init__(handle, access_log=None, logger=_QUIET, auto_decompress=False, lingering_time=_LINGERING)
        self._tell = left

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """Note a connection that has gone."""
        super().connection_lost(handler, exc)
        self._tell(handler)


def _share() -> int:
    """Return how many connections a port may have at most, by the descriptors that this process may have."""
    most = soft_limit()
    return sys.maxsize if most is None else max(1, most // _SHARE)
