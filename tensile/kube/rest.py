"""Requests to one server through the `kubernetes` package: its Configuration, its ApiClient, its REST client.

The package's transport is aiohttp. What it does by default and an engine must not do is off here: proxies and
passwords from the environment, redirects, cookies, decompression, retries, a body that is encoded once more. Bytes go
in and come out as they are, and an answer is counted while it is read.

A create or patch is never sent twice. aiohttp repeats what HTTP calls idempotent when a kept connection turns out
closed; a delete carries the UID, so its repetition cannot hit another object.
"""

import asyncio
import re
import socket
import ssl
import weakref
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from io import BytesIO
from typing import Any, NamedTuple

from yarl import URL

from tensile.kube.access import Access
from tensile.kube.aio import (
    ApiClient,
    Bounded,
    Configuration,
    RESTClientObject,
    RESTResponse,
    Vouch,
    aiohttp,
    beginning,
    without_authorities,
)
from tensile.kube.bounds import HEAD, OBJECT, REFUSAL, Account, TooLarge, mebibytes
from tensile.kube.dialing import Resolver
from tensile.sockets import keep_alive

CONNECT_SECONDS = 10.0
IDLE_SECONDS = 20.0
"""Seconds after which a connection that nothing uses is closed. A probe each ten seconds keeps one open."""
_LARGE = 1 << 20
"""Bytes from which on aiohttp wants to read a body piece by piece."""
_TURNS = 20
_BLANKS = re.compile(r"[^\x21-\x7e]").search
_Way = tuple[str, str, ssl.SSLContext]


class Closed(ConnectionError):
    """The connections were closed by us."""


class Answer(NamedTuple):
    """An answer: HTTP's status, its headers, and the body; of an error's body the beginning."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Keep(NamedTuple):
    """How a pool keeps connections.

    One that nothing uses is closed after `idle` seconds. There are at most `most` (0: any number), and none to a server
    that nobody vouches for. `buffer` bounds what of an answer is held unread, in bytes.
    """

    vouch: Vouch = lambda _certificate: True
    idle: float = IDLE_SECONDS
    most: int = 0
    buffer: int = 1 << 18


class Rest(RESTClientObject):  # type: ignore[misc]  # the package is not typed
    """The package's REST client, which sends bytes as they are and returns the answer unread."""

    pool_manager: aiohttp.ClientSession | None

    def __init__(
        self, configuration: Configuration, tls: ssl.SSLContext, sockets: "weakref.WeakSet[socket.socket]", keep: Keep
    ) -> None:
        super().__init__(configuration)
        self.ssl_context = tls
        self._sockets = sockets
        self._keep = keep

    async def request(  # noqa: D102 - the package's
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | BytesIO | None = None,
        post_params: object = None,  # noqa: ARG002 - the package's
        _request_timeout: aiohttp.ClientTimeout | None = None,
    ) -> RESTResponse:
        if self.pool_manager is None:
            self.pool_manager = self._create_pool_manager()
        reply = await self.pool_manager.request(
            method,
            URL(url, encoded=True),
            headers=headers,
            data=body,
            timeout=_request_timeout,
            server_hostname=self.configuration.tls_server_name,
            allow_redirects=False,
        )
        return RESTResponse(reply)

    def _create_connector(self) -> Bounded:
        return Bounded(
            self._keep.vouch,
            limit=self._keep.most,
            ssl=self.ssl_context,
            resolver=Resolver(),
            socket_factory=self._socket,
            keepalive_timeout=self._keep.idle,
        )

    def _socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        """Make a socket and remember it for closing."""
        family, sort, protocol, _, _ = address
        made = socket.socket(family=family, type=sort, proto=protocol)
        keep_alive(made, idle=15, interval=5, count=3)
        self._sockets.add(made)
        return made


class _Client:
    """An ApiClient with its connections, and how many requests are on them.

    One that is retired takes no new ones, and is closed with the last.
    """

    def __init__(self, access: Access, keep: Keep) -> None:
        self.way = _way_of(access)
        self.sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self.requests = 0
        self.is_retired = False
        configuration = Configuration(
            host=access.url,
            tls_server_name=access.server_name if access.is_encrypted else None,
            client_session_kwargs=_session(keep.buffer),
        )
        with without_authorities():  # the access has its TLS context: those that the package makes are not used
            self.api = ApiClient(configuration)
            self.api.rest_client = Rest(configuration, access.tls, self.sockets, keep)

    def hang_up(self) -> None:
        """End every connection without waiting for the other side."""
        for one in tuple(self.sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class Pool:
    """Connections to one server; made inside a running event loop, closed with `close`.

    `account` counts what all answers hold that have not ended. Connections that a burst opened do not stay: with many
    clusters they would take more file descriptors than everything else. Raises what aiohttp raises, UnprovenServer,
    TooLarge, and Unreachable where the account is full.
    """

    def __init__(self, account: Account | None = None, keep: Keep | None = None) -> None:
        self._account = account or Account()
        self._keep = keep or Keep()
        self._clients: set[_Client] = set()
        """Those that are not closed yet, at most one of them not retired."""
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def call(
        self,
        access: Access,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        seconds: float | None = None,
        most: int = OBJECT,
    ) -> Answer:
        """Send a request and return its whole answer. An answer of more than `most` bytes is TooLarge."""
        async with self.answered(access, method, target, headers, body, seconds=seconds) as reply:
            if reply.status >= 300:  # noqa: PLR2004 - HTTP's classes
                return Answer(reply.status, reply.headers, await beginning(reply.content, REFUSAL))
            return Answer(reply.status, reply.headers, await self._whole(reply.content, most))

    @asynccontextmanager
    async def answered(
        self,
        access: Access,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        seconds: float | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and return its answer to be read in the block, `seconds` in all."""
        if _BLANKS(target):
            raise ValueError("a path with a blank")
        client = self._client(access)
        client.requests += 1
        try:
            answer = await client.api.call_api(
                method,
                access.url + target,
                headers,
                BytesIO(body) if body and len(body) > _LARGE else body,
                _request_timeout=_time_out(seconds),
            )
            async with answer.response as reply:
                yield reply
        except (asyncio.CancelledError, TimeoutError):
            self._retire(client)  # where one connection does not answer, each free one may cost a time-out as well
            raise
        finally:
            client.requests -= 1
            self._close_if_done(client)

    def hang_up(self) -> None:
        """End every connection; what is under way fails."""
        for client in tuple(self._clients):
            self._retire(client)
            client.hang_up()

    async def close(self) -> None:
        """End every connection, and take no requests from now on; a server that is frozen is not waited for."""
        self._is_closed = True
        sockets = [one for client in self._clients for one in client.sockets]
        self.hang_up()
        for client in tuple(self._clients):
            self._end(client)
        await asyncio.gather(*self._closing, return_exceptions=True)
        for _ in range(_TURNS):
            if all(one.fileno() < 0 for one in sockets):
                return
            await asyncio.sleep(0)

    async def _whole(self, content: aiohttp.StreamReader, most: int) -> bytes:
        """Read a body to its end; raises TooLarge."""
        parts: list[bytes] = []
        try:
            await self._collect(content, most, parts)
        except BaseException:
            parts.clear()  # whoever keeps the error keeps this frame
            raise
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _collect(self, content: aiohttp.StreamReader, most: int, parts: list[bytes]) -> None:
        size = 0
        try:
            async for part in content.iter_any():
                size += len(part)
                self._account.take(len(part))
                if size > most:
                    raise TooLarge(f"an answer of more than {mebibytes(most)}")
                parts.append(part)
        finally:
            self._account.give_back(size)

    def _client(self, access: Access) -> _Client:
        """Return the client for this server and these papers; those for others end with what is under way."""
        if self._is_closed:
            raise Closed("closed")
        way = _way_of(access)
        found = next((one for one in self._clients if one.way == way and not one.is_retired), None)
        if found is None:
            for other in tuple(self._clients):
                self._retire(other)
            found = _Client(access, self._keep)
            self._clients.add(found)
        return found

    def _retire(self, client: _Client) -> None:
        client.is_retired = True
        self._close_if_done(client)

    def _close_if_done(self, client: _Client) -> None:
        if client.is_retired and not client.requests and client in self._clients:
            self._end(client)

    def _end(self, client: _Client) -> None:
        """Close a client in a task of its own."""
        self._clients.discard(client)
        task = asyncio.get_running_loop().create_task(_ended(client))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def _way_of(access: Access) -> _Way:
    return access.url, access.server_name, access.tls


@lru_cache(maxsize=256)
def _time_out(seconds: float | None) -> aiohttp.ClientTimeout:
    """Return the time-outs of a request; nearly all requests have the same."""
    return aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)


async def _ended(client: _Client) -> None:
    """Close a client; a server that is frozen is not waited for."""
    await client.api.close()
    client.hang_up()


def _session(buffer: int) -> dict[str, Any]:
    """Return what aiohttp's session is made with."""
    return {
        "trust_env": False,
        "cookie_jar": aiohttp.DummyCookieJar(),
        "auto_decompress": False,
        "skip_auto_headers": ("Accept-Encoding",),
        "read_bufsize": buffer,
        "max_line_size": 1 << 16,
        "max_field_size": 1 << 16,
        "max_headers": HEAD,
    }
