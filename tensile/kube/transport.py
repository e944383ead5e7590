"""One cluster's HTTP connections: a request in, an answer or one named failure out.

Calls and watches have connections of their own, so that a burst of writes never keeps a watch from coming back.

The way there can be exchanged while it is used: what runs ends on the old one, and a request goes the way that it was
given, so that what was found out about that way holds for it.
"""

import asyncio
import math
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import NamedTuple

from tensile import __version__
from tensile.errors import TensileError, Unreachable
from tensile.kube.aio import NO_CONTENT, UnprovenServer, Vouch, aiohttp, is_overlong
from tensile.kube.credentials import Access
from tensile.kube.limits import OBJECT, Account, Bucket, TooLarge
from tensile.kube.rest import Calls, Streams
from tensile.kube.wire import Broken, Keep, Limits

Clock = Callable[[], float]
Sleep = Callable[[float], Awaitable[None]]

_RENEWAL_SECONDS = 10.0
_RENEWAL_LONGEST = 80.0
_FAILURES = (aiohttp.ClientError, OSError, TimeoutError, ValueError)


class Dropped(Unreachable):
    """The connection ended in the middle: a read may be asked again at once."""


class Untrusted(Unreachable):
    """The server's certificate is not by the CA that is known, or not for its name: somebody has to put that right."""


class Unproven(Dropped):
    """A new connection leads to a server that has not been shown to be the cluster: nothing was sent."""


class Request(NamedTuple):
    """A call: `target` is path and query, encoded; `media` the body's type. Its answer has `most` bytes at most."""

    method: str
    target: str
    body: bytes | None = None
    media: str = ""
    most: int = OBJECT


class Reply(NamedTuple):
    """An answer; `retry_after` as the header says it, `renewal` what went wrong with reading the credential anew."""

    status: int
    body: bytes
    media: str
    retry_after: str
    renewal: str = ""


@dataclass
class Reread:
    """What came of reading a credential anew.

    `stale` says why what it was read from cannot be used as it is by now, "" when it can; `refused` is the error
    behind that, where there is one. `happened` is set by each time.
    """

    stale: str = ""
    refused: TensileError | None = None
    happened: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, stale: str = "", refused: TensileError | None = None) -> str:
        """Note what came of it; returns `stale`."""
        self.stale, self.refused = stale, refused
        self.happened.set()
        return stale


class Transport:
    """Connections to one cluster; made inside a running event loop, and closed with `close`.

    `account` counts what its answers hold. `connections` bounds concurrent calls, `timeout` is for one call in seconds,
    from when a connection is free for it. `access` is the way there now, `reread` what came of reading it anew.
    `anchored`: it stays at its server, whatever its kubeconfig says later.
    `changed` is called when another way is taken, before anything is sent that way. Calls and streams go to
    those servers alone whose certificate `vouch` accepts.
    """

    def __init__(
        self,
        access: Access,
        *,
        bucket: Bucket,
        account: Account,
        connections: int,
        timeout: float,
        anchored: bool = False,
        changed: Callable[[], None] = lambda: None,
        vouch: Vouch = lambda _certificate: True,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.access = access
        self.reread = Reread()
        self._anchored = anchored
        self._changed = changed
        self._bucket = bucket
        self._clock = clock
        self._sleep = sleep
        self._slots = asyncio.Semaphore(connections)
        self._timeout = timeout
        self.probed = b""
        self._shown = b""
        self._probing = asyncio.Lock()
        self._calls = Calls(account, Keep(vouch))
        self._streams = Streams(Keep(vouch))
        self._probes = Calls(account, Keep(self._note))
        self._renewing = asyncio.Lock()
        self._renew_from = -math.inf
        self._renewal_seconds = _RENEWAL_SECONDS
        self._prepared: dict[str, Mapping[str, str]] = {}
        self._prepared_for: Access | None = None

    async def close(self) -> None:
        """Close every connection."""
        await self._calls.close()
        await self._streams.close()
        await self._probes.close()

    def hang_up(self) -> None:
        """End the connections of calls; what is under way fails."""
        self._calls.hang_up()

    def forget_probe(self) -> None:
        """Have the next probe make a new connection: it then shows who answers now."""
        self._probes.hang_up()

    async def request(self, access: Access, request: Request, *, probe: bool = False) -> Reply:
        """Send a request that way and return the whole answer.

        A `probe` asks who answers: it has a connection of its own, to whatever server there is, and `probed` is then
        that server's certificate. Raises Unreachable, Dropped where the connection broke, Unproven where `vouch` does
        not accept the server, and TooLarge for an answer beyond its bound.
        """
        if wait := self._bucket.take(self._clock()):
            await self._sleep(wait)
        reply = await (self._probe(access, request) if probe else self._exchange(access, request, self._calls))
        if reply.status != HTTPStatus.UNAUTHORIZED and access is self.access:
            self._renewal_seconds = _RENEWAL_SECONDS
        return reply

    @asynccontextmanager
    async def stream(self, access: Access, target: str, seconds: float) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open an answer that is read as it comes, for at most `seconds` in all.

        Raises Unreachable also for what goes wrong inside the block while reading.
        """
        try:
            headers = _headers(access.headers, "")
            async with self._streams.opened(access, target, headers, seconds=seconds) as reply:
                yield reply
        except _FAILURES as error:
            raise _failure(error, access) from None

    async def renew(self, refused: Access) -> str:
        """Read the credential anew after `refused` was not accepted; "" when there is a new try, else why not.

        Once for all that were refused, and after ten seconds at the earliest again, then after twice as long each time
        as long as nothing is accepted.
        """
        async with self._renewing:
            if self.access is not refused:
                return ""
            if self._clock() < self._renew_from:
                return self.reread.stale or "the credential was read anew just before"
            self._renew_from = self._clock() + self._renewal_seconds
            self._renewal_seconds = min(2 * self._renewal_seconds, _RENEWAL_LONGEST)
            return await self._reread()

    async def refresh(self) -> str:
        """Read everything anew because its files have changed; "" when another way is taken now, else why not."""
        async with self._renewing:
            return await self._reread()

    def take(self, fresh: Access) -> str:
        """Go another way from now on; "" when it is taken, else why not."""
        known = self.access
        self.reread.note()
        if self._anchored and fresh.url != known.url:
            return self.reread.note(
                f"{fresh.origin} names another server by now ({fresh.url}): what was read before stays in use; "
                "another upper cluster needs a restart"
            )
        if fresh.shows() == known.shows():
            self.access = replace(known, files=fresh.files, renew=fresh.renew, good_until=fresh.good_until)
            return f"{fresh.origin} holds the same credential as before"
        self.access = fresh.keeping(known)
        self._changed()
        return ""

    def _note(self, certificate: bytes) -> bool:
        """Note the certificate of a server that is probed; any server may be."""
        self._shown = certificate
        return True

    async def _probe(self, access: Access, request: Request) -> Reply:
        """Send a probe, one at a time: the certificate that was shown last is then that of the server that answered."""
        async with self._probing:
            reply = await self._exchange(access, request, self._probes)
            self.probed = self._shown
        return reply

    async def _exchange(self, access: Access, request: Request, calls: Calls) -> Reply:
        """Send a request once, on a connection that is free."""
        headers, limits = self._headers(access, request.media), Limits(self._timeout, request.most)
        async with self._slots:
            try:
                answer = await calls.call(access, request.method, request.target, headers, request.body, limits=limits)
            except _FAILURES as error:
                raise _failure(error, access) from None
        found = answer.headers
        return Reply(answer.status, answer.body, found.get("content-type", ""), found.get("retry-after", ""))

    def _headers(self, access: Access, media: str) -> Mapping[str, str]:
        """Return a call's headers, put together once for each access and media type."""
        if access is not self._prepared_for:
            self._prepared_for = access
            self._prepared = {}
        prepared = self._prepared.get(media)
        if prepared is None:
            prepared = self._prepared[media] = _headers(access.headers, media)
        return prepared

    async def _reread(self) -> str:
        """Read everything anew, and take what was found unless it cannot be used."""
        try:
            return self.take(await self.access.renew())
        except TensileError as error:
            return self.reread.note(str(error), error)


def _headers(credential: Mapping[str, str], media: str) -> Mapping[str, str]:
    """Return a request's headers."""
    headers = {"User-Agent": f"tensile/{__version__}", "Accept": "application/json", **credential}
    return {**headers, "Content-Type": media} if media else headers


def _failure(error: Exception, access: Access) -> Unreachable:
    """Return what a failed connection means; the sorts of trouble that a person mends differently are told apart."""
    where = f"{access.address}:{access.port}"
    if isinstance(error, UnprovenServer):
        return Unproven(f"it is being made sure which cluster answers at {where}: it is asked again in a moment")
    if isinstance(error, aiohttp.ClientError) and is_overlong(error):
        return TooLarge(NO_CONTENT)
    if isinstance(error, aiohttp.ClientConnectorCertificateError | ssl.SSLCertVerificationError):
        return Untrusted(
            f"{where} shows a certificate that is not trusted ({cause_of(error)}): check the CA in {access.origin}"
        )
    if isinstance(error, aiohttp.ClientSSLError | ssl.SSLError):
        return Unreachable(
            f"{where}: TLS failed ({cause_of(error)}): check that it is an apiserver, and the certificate used"
        )
    if isinstance(error, TimeoutError):
        return Unreachable(f"{where} did not answer in time: check that the apiserver runs and is reachable from here")
    if isinstance(error, aiohttp.ClientConnectorError) or _is_systems(error):
        return Unreachable(
            f"{where} cannot be connected to ({cause_of(error)}): check the address and that the apiserver runs"
        )
    return Dropped(f"{where} broke the connection off ({type(error).__name__}): check that the apiserver runs")


def _is_systems(error: Exception) -> bool:
    """Report whether it is an error of the system itself, from before there was a connection."""
    return isinstance(error, OSError) and not isinstance(error, aiohttp.ClientError | Broken)


def cause_of(error: Exception, otherwise: str = "") -> str:
    """Return the cause inside a failed connection in a few words; where it has none, `otherwise` or the error's type.

    The error's own text is not used here: it may hold a credential.
    """
    inner = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
    for words in (getattr(inner, "verify_message", ""), getattr(inner, "reason", "")):
        if words:
            return str(words)
    if isinstance(inner, socket.gaierror):
        return str(inner.strerror or "not known")
    number = getattr(inner, "errno", None)
    return os.strerror(number) if number and number > 0 else otherwise or type(inner).__name__
