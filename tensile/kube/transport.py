"""One cluster's HTTP connections: send a request, return a response or one specific error.

Calls and watches have separate connections, so that a burst of writes never delays a new watch.

The access can be replaced while it is used. Requests in progress end on the old one, and each request uses the access
it was given, so that what was verified about that access holds for it.
"""

import asyncio
import math
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import NamedTuple

from tensile import __version__
from tensile.errors import TensileError, Unreachable
from tensile.kube.aio import NO_CONTENT, UnverifiedServer, VerifyCertificate, aiohttp, is_overlong
from tensile.kube.credentials import Access, token_expiry
from tensile.kube.limits import OBJECT, ResponseBudget, TokenBucket, TooLarge
from tensile.kube.measures import RequestMetrics
from tensile.kube.net import cancel_and_wait
from tensile.kube.pools import RequestPool, StreamPool
from tensile.kube.wire import KeepAlive, ProtocolError, RequestLimits

Clock = Callable[[], float]
Sleep = Callable[[float], Awaitable[None]]

_RENEWAL_SECONDS = 10.0
_RENEWAL_LONGEST = 80.0
_FAILURES = (aiohttp.ClientError, OSError, TimeoutError, ValueError)


class ConnectionDropped(Unreachable):
    """The connection ended during the request. A read may be retried at once."""


class NoConnection(Unreachable):
    """No connection could be opened: nothing listens at the address, or nothing leads to it."""


class UntrustedServer(Unreachable):
    """The server's certificate is not from the known CA, or not for its name. A user has to correct it."""


class UnverifiedConnection(ConnectionDropped):
    """A new connection leads to a server that is not proven to be the cluster. Nothing was sent."""

    title = "identity not verified"


class HTTPCall(NamedTuple):
    """A call. `target` is the encoded path and query, `media` the body's type, `most` limits the response's bytes."""

    method: str
    target: str
    body: bytes | None = None
    media: str = ""
    most: int = OBJECT


class HTTPReply(NamedTuple):
    """A response. `retry_after` is the header's value, `renewal` the error of reloading the credential."""

    status: int
    body: bytes
    media: str
    retry_after: str
    renewal: str = ""


@dataclass
class CredentialRefresh:
    """The result of reloading a credential.

    `stale` says why the present source cannot be used, "" if it can. `refused` is the error behind that, if any.
    `happened` is set after each reload.
    """

    stale: str = ""
    refused: TensileError | None = None
    happened: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, stale: str = "", refused: TensileError | None = None) -> str:
        """Record a result. Returns `stale`."""
        self.stale, self.refused = stale, refused
        self.happened.set()
        return stale


class Transport:
    """Connections to one cluster. Create it in a running event loop, close it with `close`.

    `account` counts the bytes of its responses. `connections` limits concurrent calls, and `timeout` is for one call in
    seconds, from when a connection is available. `access` is the one in use, `reread` the result of the last reload.
    `anchored`: a later kubeconfig must not name another server. `changed` is called when another access is used, before
    anything is sent with it. Calls and streams only use servers whose certificate `verify_certificate` accepts.
    `requests` counts every request.
    """

    def __init__(
        self,
        access: Access,
        *,
        bucket: TokenBucket,
        account: ResponseBudget,
        connections: int,
        timeout: float,
        anchored: bool = False,
        changed: Callable[[], None] = lambda: None,
        verify_certificate: VerifyCertificate = lambda _certificate: True,
        requests: RequestMetrics | None = None,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.access = access
        self._requests = requests or RequestMetrics()
        self.reread = CredentialRefresh()
        self._anchored = anchored
        self._changed = changed
        self._bucket = bucket
        self._clock = clock
        self._sleep = sleep
        self._slots = asyncio.Semaphore(connections)
        self._timeout = timeout
        self.probed = b""
        self._last_certificate = b""
        self._probing = asyncio.Lock()
        self._calls = RequestPool(account, KeepAlive(verify_certificate))
        self._streams = StreamPool(KeepAlive(verify_certificate))
        self._probes = RequestPool(account, KeepAlive(self._record_certificate))
        self._renewing = asyncio.Lock()
        self._renewals: set[asyncio.Task[str]] = set()
        self._renew_from = -math.inf
        self._renewed = ""
        """Why the last renewal brought no new credential, "" if it brought one."""
        self._renewal_seconds = _RENEWAL_SECONDS
        self._prepared: dict[str, Mapping[str, str]] = {}
        self._prepared_for: Access | None = None

    def limit(self, qps: float, burst: int) -> None:
        """Limit the requests that begin from now on to `qps` a second, and `burst` at once."""
        self._bucket.change(qps, burst, self._clock())

    async def close(self) -> None:
        """Close every connection, and end renewals."""
        await cancel_and_wait(*self._renewals)
        await self._calls.close()
        await self._streams.close()
        await self._probes.close()

    def hang_up(self) -> None:
        """End the connections of calls. Requests in progress fail."""
        self._calls.hang_up()

    def forget_probe(self) -> None:
        """Make the next probe open a new connection, which shows the server that responds now."""
        self._probes.hang_up()

    async def request(self, access: Access, request: HTTPCall, *, probe: bool = False) -> HTTPReply:
        """Send a request with that access and return the complete response.

        A `probe` reads the identity: it has a separate connection, to any server, and sets `probed` to that server's
        certificate. Raises Unreachable, ConnectionDropped if the connection broke, UnverifiedConnection if
        `verify_certificate` does not accept the server, and TooLarge for a response beyond its limit.
        """
        if wait := self._bucket.take(self._clock()):
            await self._sleep(wait)
        reply = await (self._probe(access, request) if probe else self._exchange(access, request, self._calls))
        if reply.status != HTTPStatus.UNAUTHORIZED and access is self.access:
            self._renewal_seconds = _RENEWAL_SECONDS
        return reply

    @asynccontextmanager
    async def stream(self, access: Access, target: str, seconds: float) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open a response that is read as it arrives, for at most `seconds` in total.

        Raises Unreachable also for errors while reading inside the block.
        """
        began, status = self._clock(), 0
        try:
            headers = _headers(access.headers, "")
            async with self._streams.opened(access, target, headers, seconds=seconds) as reply:
                status = reply.status
                self._observe(access, "GET", status, began)
                yield reply
        except _FAILURES as error:
            if not status:
                self._observe(access, "GET", 0, began)
            raise _failure(error, access) from None

    async def renew(self, refused: Access) -> str:
        """Reload the credential after `refused` was rejected. Return "" if there is a new one to try, else why not.

        One reload serves all rejected requests. The next is possible after ten seconds, then after twice as long each
        time until a credential is accepted. A request that is not waited for any longer does not end the reload: an
        exec plugin may take longer than a probe of the cluster. `close` does.
        """
        task = asyncio.create_task(self._renew(refused))
        self._renewals.add(task)
        task.add_done_callback(self._renewals.discard)
        await asyncio.wait({task})
        return "the connection is closed" if task.cancelled() else task.result()

    async def _renew(self, refused: Access) -> str:
        async with self._renewing:
            if self.access is not refused:
                return ""
            if self._clock() < self._renew_from:
                return self._unrenewed(refused) or "the new credential was rejected too"
            self._renew_from = self._clock() + self._renewal_seconds
            self._renewal_seconds = min(2 * self._renewal_seconds, _RENEWAL_LONGEST)
            self._renewed = await self._reread()
            return self._renewed and self._unrenewed(refused)

    def _unrenewed(self, refused: Access) -> str:
        """Return why the last renewal brought nothing to replace a rejected credential, "" if it did."""
        return self.reread.stale or token_expiry(refused, datetime.now(UTC)) or self._renewed

    async def refresh(self) -> str:
        """Reload everything after its files changed. Return "" if another access is used now, else why not."""
        async with self._renewing:
            return await self._reread()

    def take(self, new: Access) -> str:
        """Use another access from now on. Return "" if it is accepted, else why not."""
        known = self.access
        self.reread.note()
        if self._anchored and new.url != known.url:
            return self.reread.note(
                f"{new.origin} names another server now ({new.url}): the previous one stays in use; "
                "restart the engine to change the upper cluster"
            )
        if new.visible_parts() == known.visible_parts():
            self.access = replace(known, files=new.files, renew=new.renew, good_until=new.good_until)
            return f"{new.origin} has no other credential"
        self.access = new.with_tls_of(known)
        self._changed()
        return ""

    def _record_certificate(self, certificate: bytes) -> bool:
        """Store the certificate of a probed server. Any server is accepted."""
        self._last_certificate = certificate
        return True

    async def _probe(self, access: Access, request: HTTPCall) -> HTTPReply:
        """Send a probe, one at a time, so that the last certificate is that of the server that responded."""
        async with self._probing:
            reply = await self._exchange(access, request, self._probes)
            self.probed = self._last_certificate
        return reply

    async def _exchange(self, access: Access, request: HTTPCall, calls: RequestPool) -> HTTPReply:
        """Send a request once, when a connection is available. Probes have one beside the calls."""
        headers, limits = self._headers(access, request.media), RequestLimits(self._timeout, request.most)
        async with nullcontext() if calls is self._probes else self._slots:
            began = self._clock()
            try:
                answer = await calls.call(access, request.method, request.target, headers, request.body, limits=limits)
            except _FAILURES as error:
                self._observe(access, request.method, 0, began)
                raise _failure(error, access) from None
        self._observe(access, request.method, answer.status, began)
        found = answer.headers
        return HTTPReply(answer.status, answer.body, found.get("content-type", ""), found.get("retry-after", ""))

    def _observe(self, access: Access, method: str, status: int, began: float) -> None:
        """Count a request that was sent at `began`; status 0: there was no response."""
        self._requests.observe(access.address, access.port, method, status, self._clock() - began)

    def _headers(self, access: Access, media: str) -> Mapping[str, str]:
        """Return a call's headers, built once for each access and media type."""
        if access is not self._prepared_for:
            self._prepared_for = access
            self._prepared = {}
        prepared = self._prepared.get(media)
        if prepared is None:
            prepared = self._prepared[media] = _headers(access.headers, media)
        return prepared

    async def _reread(self) -> str:
        """Reload everything, and use the result unless it is invalid."""
        try:
            return self.take(await self.access.renew())
        except TensileError as error:
            return self.reread.note(str(error), error)


def _headers(credential: Mapping[str, str], media: str) -> Mapping[str, str]:
    """Return a request's headers."""
    headers = {"User-Agent": f"tensile/{__version__}", "Accept": "application/json", **credential}
    return {**headers, "Content-Type": media} if media else headers


def _failure(error: Exception, access: Access) -> Unreachable:
    """Return the error for a failed connection. Failures that users correct differently have different types."""
    where = f"{access.address}:{access.port}"
    if isinstance(error, UnverifiedServer):
        return UnverifiedConnection(f"the identity of the cluster at {where} is being verified: the request is retried")
    if isinstance(error, aiohttp.ClientError) and is_overlong(error):
        return TooLarge(NO_CONTENT)
    if isinstance(error, aiohttp.ClientConnectorCertificateError | ssl.SSLCertVerificationError):
        untrusted = f"the certificate of {where} is not trusted ({cause_of(error)})"
        return UntrustedServer(
            f"{untrusted}: check that it is the apiserver of this cluster, and the CA in {access.origin}"
        )
    if isinstance(error, aiohttp.ClientSSLError | ssl.SSLError):
        return Unreachable(
            f"{where}: TLS failed ({cause_of(error)}): check that it is an apiserver, and check the client certificate"
        )
    if isinstance(error, TimeoutError):
        return Unreachable(
            f"{where} did not respond in time: check that the apiserver runs and is reachable from this host"
        )
    if isinstance(error, aiohttp.ClientConnectorError) or _is_systems(error):
        return NoConnection(
            f"cannot connect to {where} ({cause_of(error)}): check the address and that the apiserver runs"
        )
    return ConnectionDropped(f"{where} closed the connection ({type(error).__name__}): check that the apiserver runs")


def _is_systems(error: Exception) -> bool:
    """Report whether it is an error of the operating system from before there was a connection."""
    return isinstance(error, OSError) and not isinstance(error, aiohttp.ClientError | ProtocolError)


def cause_of(error: Exception, otherwise: str = "") -> str:
    """Return the cause of a failed connection in a few words, `otherwise` or the error's type if it has none.

    The error's own text is not used: it may contain a credential.
    """
    cause = getattr(error, "certificate_error", None) or getattr(error, "os_error", None) or error
    for text in (getattr(cause, "verify_message", ""), getattr(cause, "reason", "")):
        if text:
            return str(text)
    if isinstance(cause, socket.gaierror):
        return str(cause.strerror or "unknown host name")
    number = getattr(cause, "errno", None)
    return os.strerror(number) if number and number > 0 else otherwise or type(cause).__name__
