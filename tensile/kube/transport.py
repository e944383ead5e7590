"""One cluster's HTTP connections: a request in, an answer or one named failure out.

Calls and watches have connections of their own, so that a burst of writes never keeps a watch from coming back. A
create or patch is never sent twice, with one exception: an answer of 401 says that nothing was done, so the request is
repeated with the credential read anew. (aiohttp repeats what HTTP calls idempotent when a kept connection turns out
closed; a delete carries the UID, so its repetition cannot hit another object.)
"""

import asyncio
import io
import os
import socket
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import NamedTuple

import aiohttp
from yarl import URL

from tensile import __version__
from tensile.errors import TensileError, Unreachable
from tensile.kube.access import Access
from tensile.kube.limits import Bucket

Clock = Callable[[], float]
Sleep = Callable[[float], Awaitable[None]]

_CONNECT_SECONDS = 10.0
_RENEWAL_SECONDS = 10.0
_STREAM_BUFFER = 1 << 20
_LARGE_BODY = 1 << 20
_TURNS = 20
_KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
_FAILURES = (aiohttp.ClientError, OSError, TimeoutError, ValueError)


class Dropped(Unreachable):
    """The connection ended in the middle: a read may be asked again at once."""


class Request(NamedTuple):
    """A call: `target` is path and query, encoded; `media` the body's type."""

    method: str
    target: str
    body: bytes | None = None
    media: str = ""


class Reply(NamedTuple):
    """An answer; `retry_after` as the header says it, `renewal` what went wrong with reading the credential anew."""

    status: int
    body: bytes
    media: str
    retry_after: str
    renewal: str = ""


class Transport:
    """Connections to one cluster; made inside a running event loop, and closed with `close`.

    `connections` bounds concurrent calls, `timeout` is for one call in seconds, from when a connection is free for it.
    """

    def __init__(
        self,
        access: Access,
        *,
        bucket: Bucket,
        connections: int,
        timeout: float,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.access = access
        self._bucket = bucket
        self._clock = clock
        self._sleep = sleep
        self._slots = asyncio.Semaphore(connections)
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._calls = self._session(timeout, 1 << 16)
        self._streams = self._session(None, _STREAM_BUFFER)
        self._renewing = asyncio.Lock()
        self._renew_from = -_RENEWAL_SECONDS
        self._prepared: dict[str, Mapping[str, str]] = {}
        self._credential: Mapping[str, str] = {}

    async def close(self) -> None:
        """Close every connection; one that waits for a frozen server to say goodbye, too, is hung up."""
        await self._calls.close()
        await self._streams.close()
        for lingering in tuple(self._sockets):
            with suppress(OSError):
                lingering.shutdown(socket.SHUT_RDWR)
        for _ in range(_TURNS):
            if all(lingering.fileno() < 0 for lingering in tuple(self._sockets)):
                return
            await asyncio.sleep(0)

    async def request(self, request: Request) -> Reply:
        """Send a request and give the whole answer.

        Raises Unreachable, and Dropped where the connection broke.
        """
        if wait := self._bucket.take(self._clock()):
            await self._sleep(wait)
        access = await self._current()
        reply = await self._exchange(access, request)
        if reply.status == HTTPStatus.UNAUTHORIZED:
            problem = await self._renew(access)
            if not problem:
                return await self._exchange(self.access, request)
            return reply._replace(renewal=problem)
        return reply

    @asynccontextmanager
    async def stream(self, target: str, seconds: float) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open an answer that is read as it comes, for at most `seconds` in all.

        Raises Unreachable also for what goes wrong inside the block while reading.
        """
        access = await self._current()
        try:
            async with self._streams.get(
                URL(access.url + target, encoded=True),
                headers=self._headers(access, ""),
                ssl=access.tls,
                server_hostname=access.server_name,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=seconds, sock_connect=_CONNECT_SECONDS),
            ) as reply:
                yield reply
        except _FAILURES as error:
            raise _failure(error, access) from None

    async def renew(self, refused: Access) -> str:
        """Read the credential anew after `refused` was not accepted; "" when there is a new try, else why not."""
        return await self._renew(refused)

    async def _exchange(self, access: Access, request: Request) -> Reply:
        """Send a request once, on a connection that is free."""
        async with self._slots:
            try:
                async with self._calls.request(
                    request.method,
                    URL(access.url + request.target, encoded=True),
                    data=_payload(request.body),
                    headers=self._headers(access, request.media),
                    ssl=access.tls,
                    server_hostname=access.server_name,
                    allow_redirects=False,
                ) as reply:
                    content = await reply.read()
                    found = reply.headers
                    return Reply(reply.status, content, found.get("Content-Type", ""), found.get("Retry-After", ""))
            except _FAILURES as error:
                raise _failure(error, access) from None

    def _headers(self, access: Access, media: str) -> Mapping[str, str]:
        """Give a request's headers, prepared once for each credential and media type."""
        credential = access.headers
        if credential is not self._credential:
            self._credential = credential
            self._prepared = {}
        prepared = self._prepared.get(media)
        if prepared is None:
            prepared = {"User-Agent": f"tensile/{__version__}", "Accept": "application/json", **credential}
            if media:
                prepared["Content-Type"] = media
            self._prepared[media] = prepared
        return prepared

    def _session(self, timeout: float | None, buffer: int) -> aiohttp.ClientSession:
        """Make a pool of connections."""
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, socket_factory=self._socket),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=timeout, sock_connect=_CONNECT_SECONDS),
            read_bufsize=buffer,
            max_line_size=1 << 16,
            max_field_size=1 << 16,
        )

    def _socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        """Make a socket and remember it for closing."""
        made = _socket(address)
        self._sockets.add(made)
        return made

    async def _current(self) -> Access:
        """Give the access, renewed when its credential has reached its end."""
        if self._clock() >= self.access.good_until:
            await self._renew(self.access)
        return self.access

    async def _renew(self, refused: Access) -> str:
        """Renew once for all that were refused, at most every ten seconds."""
        async with self._renewing:
            if self.access is not refused:
                return ""
            if self._clock() < self._renew_from:
                return "the credential was read anew just before"
            self._renew_from = self._clock() + _RENEWAL_SECONDS
            try:
                fresh = await refused.renew()
            except TensileError as error:
                return str(error)
            if fresh.url != refused.url:
                return f"{refused.origin} names another server by now ({fresh.url}): it is not followed by itself"
            self.access = fresh
            return ""


def _payload(body: bytes | None) -> bytes | io.BytesIO | None:
    """Give a body as aiohttp wants it: large ones as a file."""
    return io.BytesIO(body) if body is not None and len(body) > _LARGE_BODY else body


def _socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """Make a socket that finds out within 30 s that the other side is gone, also when nothing is sent."""
    family, sort, protocol, _, _ = address
    made = socket.socket(family=family, type=sort, proto=protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


def _failure(error: Exception, access: Access) -> Unreachable:
    """Say what a failed connection means; the sorts of trouble that a person mends differently are told apart."""
    where = f"{access.address}:{access.port}"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return Unreachable(
            f"{where} shows a certificate that is not trusted ({_why(error)}): check the CA in {access.origin}"
        )
    if isinstance(error, aiohttp.ClientSSLError):
        return Unreachable(
            f"{where}: TLS failed ({_why(error)}): check that it is an apiserver, and the certificate used"
        )
    if isinstance(error, TimeoutError):
        return Unreachable(f"{where} did not answer in time: check that the apiserver runs and is reachable from here")
    if isinstance(error, aiohttp.ClientConnectorError):
        return Unreachable(
            f"{where} cannot be connected to ({_why(error)}): check the address and that the apiserver runs"
        )
    return Dropped(f"{where} broke the connection off ({type(error).__name__}): check that the apiserver runs")


def _why(error: Exception) -> str:
    """Give the cause inside a failed connection in a few words."""
    inner = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
    for words in (getattr(inner, "verify_message", ""), getattr(inner, "reason", "")):
        if words:
            return str(words)
    number = getattr(inner, "errno", None)
    return os.strerror(number) if number and number > 0 else type(inner).__name__
