"""A cluster over HTTP: the implementation of the protocol in `tensile.kube.cluster`.

Model classes drop unknown fields and cost more than the request itself, so objects stay raw bytes. A write is sent
once: if its response is lost, the next decision sees whether it happened, and preconditions make a second try harmless.
Only reads are retried within a call, and only for failures that are known to pass. A request that was rejected with 401
had no effect, so it is repeated after the credential was reloaded. No request is sent while the cluster's identity is
in doubt (`tensile.kube.health`), except those that prove it.

A cluster that sends more than `limits` allows is paused, for twice as long after each breach.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import urlencode

import orjson
import structlog

from tensile.errors import ClusterError, Denied, Expired, NotFound, Throttled, Unauthorized, Unreachable
from tensile.kube import limits
from tensile.kube.aio import aiohttp, beginning
from tensile.kube.cluster import Endpoint, Listing, Patch, Read, Selection, WatchEvent
from tensile.kube.credentials import Access
from tensile.kube.health import NOT_CONTACTED, CheckIdentity, ClusterIdentity, Health, WrongCluster
from tensile.kube.limits import CacheLimit, ClusterPaused, OversizeBackoff, ResponseBudget, TokenBucket, TooLarge
from tensile.kube.measures import RequestMetrics
from tensile.kube.requests import FetchPage, Pager, TimeShare, path_of, query_of, retrying, shown, target_of
from tensile.kube.responses import (
    Page,
    RequestInfo,
    WatchDecoder,
    apis_of,
    error_of,
    identity_of,
    kinds_of,
    media_shown,
    mismatch,
    page_of,
    release_of,
    shallow,
    unexpected_response,
    version_of,
)
from tensile.kube.store import CacheTotals
from tensile.kube.transport import (
    Clock,
    CredentialRefresh,
    HTTPCall,
    HTTPReply,
    NoConnection,
    Sleep,
    Transport,
    UntrustedServer,
    UnverifiedConnection,
)
from tensile.names import FIELD_MANAGER
from tensile.objects import NAMESPACE, Kind, Manifest, Ref

ObserveRequest = Callable[[str, str, str], None]

KUBE_SYSTEM = Ref("", NAMESPACE, "", "kube-system")
MARGIN = 10.0
_WRITE = urlencode({"fieldManager": FIELD_MANAGER, "fieldValidation": "Ignore"})
_JSON = "application/json"
_MEDIA = {
    "json-patch": "application/json-patch+json",
    "merge-patch": "application/merge-patch+json",
    "strategic-merge-patch": "application/strategic-merge-patch+json",
    "apply-patch": "application/apply-patch+yaml",
}
_INCONCLUSIVE = frozenset({"create", "patch", "delete", "evict", "discover"})
"""Requests that fail also when a webhook does, or a server of another API: that says nothing about the cluster."""
_SERVERS = 5
"""The most servers whose certificates one call verifies. A cluster may have several behind one address, each with its
own certificate."""
_log = structlog.get_logger("tensile.kube.client")


class VersionTracker(Protocol):
    """An informer of this cluster, which must know when a create contradicts what it has seen."""

    @property
    def resume_version(self) -> int:
        """The newest resourceVersion seen so far."""
        ...

    def note_created(self, version: int, since: int) -> None:
        """Record that an object created after `since` was seen has resourceVersion `version`."""
        ...


class HttpCluster:
    """One cluster over HTTP. Create it in a running event loop, close it with `close`.

    `qps` and `burst` limit requests per second (0: no limit), `connections` limits concurrent calls, `timeout` one call
    in seconds. `anchored`: the server's URL must not change. `tally` counts the objects in all caches of a lower
    cluster, and `allowance` limits them. `observe(verb, kind, result)` is called for every write, with result "ok" or
    the error's name, and `requests` counts every HTTP request. `pin` is the required UID of kube-system, "" for the
    first UID that the cluster returns. `admit(uid)` returns why the cluster of that UID must not be used under this
    name, None if it may.
    """

    def __init__(
        self,
        name: str,
        access: Access,
        *,
        qps: float = 0,
        burst: int = 1000,
        connections: int = 64,
        timeout: float = 30.0,
        margin: float = MARGIN,
        anchored: bool = False,
        pin: str = "",
        allowance: CacheLimit | None = None,
        observe: ObserveRequest | None = None,
        requests: RequestMetrics | None = None,
        admit: CheckIdentity = lambda _uid: None,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._name = name
        self._clock = clock
        self._margin = margin
        self._observe = observe
        self.health = Health(clock())
        self.identity = ClusterIdentity(name, self.health, pin=pin, admit=admit, clock=clock)
        self.followers: dict[Kind, list[VersionTracker]] = {}
        self.tally = CacheTotals()
        self._allowance = allowance or CacheLimit()
        self._oversize_backoff = OversizeBackoff()
        self._budget = ResponseBudget()
        self._listings = asyncio.Semaphore(limits.LISTINGS)
        self._share = TimeShare(limits.SHARE if name else 0.0, limits.BURST, clock, sleep)
        self._transport = Transport(
            access,
            bucket=TokenBucket(qps, burst, clock()),
            account=self._budget,
            connections=connections,
            timeout=timeout,
            anchored=anchored,
            changed=self._access_changed,
            verify_certificate=self.identity.is_proven,
            requests=requests,
            clock=clock,
            sleep=sleep,
        )
        self._retrying = retrying(sleep)

    @property
    def name(self) -> str:
        """The lower's name, or `objects.UPPER`."""
        return self._name

    @property
    def access(self) -> Access:
        """The access in use."""
        return self._transport.access

    @property
    def credential_error(self) -> str:
        """What a user has to correct about the cluster's credential, address or size, "" for nothing."""
        health = self.health
        is_reported = health.wrong or health.is_locked_out or health.excessive
        return health.error if is_reported else self._transport.reread.stale

    @property
    def reread(self) -> CredentialRefresh:
        """The result of the last reload of the credential."""
        return self._transport.reread

    def limit(self, qps: float, burst: int) -> None:
        """Limit the requests that begin from now on: `qps` a second (0: no limit), and `burst` at once."""
        self._transport.limit(qps, burst)

    async def refresh(self) -> str:
        """Reload credential and address. Return "" if another access is used from now on, else why not."""
        return await self._transport.refresh()

    def take(self, access: Access) -> str:
        """Use another access from now on. Return "" if it is accepted, else why not."""
        return self._transport.take(access)

    async def close(self) -> None:
        """Close every connection."""
        await self.identity.close()
        await self._transport.close()

    async def identify(self) -> str:
        """Read the UID of namespace kube-system, which identifies the cluster, and return it.

        The first UID is pinned. For another one later, raises WrongCluster, and every call is refused until the first
        cluster is back. For a UID that `admit` rejects, raises SharedCluster with the same effect.
        """
        doing = RequestInfo(self._name, "read", "Namespace kube-system")
        access = self.access
        try:
            raw = await self._read(doing, KUBE_SYSTEM.path(), settled=False, most=limits.SMALL)
        except Denied as error:
            self.health.unproven = error.description if self.identity.in_doubt else ""
            raise
        try:
            uid = identity_of(doing, raw)
        except ClusterError as error:
            raise self._record_error(doing, error) from None
        certificate, now = self._transport.probed, self.access
        self.identity.verify(uid, certificate, now, is_current=access is now)
        return uid

    async def version(self) -> str:
        """Return the server's version such as "v1.36.3"."""
        doing = RequestInfo(self._name, "read", "version")
        return release_of(doing, await self._read(doing, "/version", settled=False, most=limits.SMALL))

    async def read(self, ref: Ref) -> bytes:
        """Return the object from a quorum read, so that "not found" means that it does not exist."""
        doing = RequestInfo(self._name, "read", shown(ref))
        return self._check_object(ref, doing, shallow(await self._read(doing, path_of(doing, ref))))

    async def list(self, kind: Kind, selection: Selection, read: Read = bytes) -> Listing:
        """Return what `read` makes of every selected object: a quorum read in pages of 500.

        Objects for which `read` returns None are left out. If the store compacts the version of the pages meanwhile,
        the whole list is requested at once. Raises TooLarge for a list without end.
        """
        doing = RequestInfo(self._name, "list", f"{kind.name} {selection.namespace}".rstrip())
        path, query = kind.path(selection.namespace), query_of(selection)

        listed = "" if kind.is_custom else kind.name

        async def fetch(more: dict[str, str], *, spare: bool, most: int = limits.PAGE) -> Page:
            """Request a page. `spare`: a page that is too long is no breach, as a shorter one can be requested."""
            target = target_of(path, query | more)
            return page_of(doing, await self._read(doing, target, most=most, spare=spare), listed)

        async with self._listings:
            try:
                return await self._pager(doing, fetch, read).all()
            except Expired as expired:
                try:
                    page = await fetch({}, spare=True, most=limits.WHOLE)
                except TooLarge:
                    raise expired from None
                return await self._pager(doing, fetch, read).take(page)
            except TooLarge as error:
                raise self._record_error(doing, error) from None

    async def watch(
        self, kind: Kind, selection: Selection, version: str, seconds: int, opened: Callable[[], object] | None = None
    ) -> AsyncIterator[WatchEvent]:
        """Watch the selection from `version` on, until the server ends the watch after about `seconds`.

        Calls `opened` once the server has accepted the watch.

        Raises Expired when `version` cannot be resumed from, Unreachable when the end did not come within `seconds` and
        a margin, and the error of an ERROR event.
        """
        doing = RequestInfo(self._name, "watch", f"{kind.name} {selection.namespace}".rstrip())
        query = query_of(selection) | {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
            "resourceVersion": version,
        }
        lines = WatchDecoder(doing, account=self._budget)
        try:
            async with self._opened(doing, target_of(kind.path(selection.namespace), query), seconds) as accepted:
                stream, access = accepted
                if opened is not None:
                    opened()
                async for chunk in stream.iter_any():
                    self._check_paused()
                    await self._share.begin()
                    for event in lines.feed(chunk):
                        yield event
                        # A watch goes on when the kubeconfig names another server, and says nothing about that one.
                        # An apiserver sends bookmarks from its memory, whatever the state of its store.
                        if event.type != "BOOKMARK" and access.url == self.access.url:
                            self.health.record_event(self._clock())
                        self._allowance.check(self.tally)
                        if self._share.is_long:
                            await self._share.rest()
                            await self._share.begin()
                    await self._share.rest()
        except ClusterError as error:
            raise self._record_error(doing, error) from None
        finally:
            lines.forget()

    async def kinds(self) -> tuple[Kind, ...]:
        """Return every namespaced kind whose objects can be listed, each in one version."""
        doing = RequestInfo(self._name, "read", "API resources")
        found: dict[tuple[str, str], Kind] = {}
        try:
            apis = apis_of(doing, await self._read(doing, "/apis", most=limits.SMALL))
        except TooLarge as error:
            raise self._record_error(doing, error) from None
        for api in ("v1", *apis):
            doing = RequestInfo(self._name, "discover", api)
            path = Kind(api, "", "", namespaced=False).path().rstrip("/")
            for kind in kinds_of(doing, api, await self._read(doing, path, most=limits.SMALL)):
                found.setdefault((kind.group, kind.plural), kind)
        return tuple(found.values())

    async def create(self, ref: Ref, body: Manifest) -> bytes:
        """Create the object (for a review: request it) and return it as stored."""
        doing = RequestInfo(self._name, "create", shown(ref))
        since = [(follower, follower.resume_version) for follower in self.followers.get(ref.kind, ())]
        path_of(doing, ref)
        target = f"{ref.kind.path(ref.namespace)}?{_WRITE}"
        raw = await self._write(doing, ref.kind, HTTPCall("POST", target, orjson.dumps(body), _JSON))
        raw = self._check_object(ref, doing, raw)
        version = version_of(doing, raw) if since else 0
        for follower, resume_version in since:
            follower.note_created(version, resume_version)
        return raw

    async def patch(self, ref: Ref, patch: Patch, subresource: str = "") -> bytes:
        """Patch the object, or one of its subresources, and return it as stored.

        Raises Conflict when the UID or resourceVersion in the body does not match any more.
        """
        doing = RequestInfo(self._name, "patch", f"{shown(ref)} {subresource}".rstrip())
        force = "&force=true" if patch.media == "apply-patch" else ""
        target = f"{path_of(doing, ref, subresource)}?{_WRITE}{force}"
        request = HTTPCall("PATCH", target, orjson.dumps(patch.body), _MEDIA[patch.media])
        return self._check_object(ref, doing, await self._write(doing, ref.kind, request))

    async def delete(self, ref: Ref, *, uid: str, grace: int | None = None, version: str = "") -> bytes:
        """Delete the object if its UID, and `version` if given, match, else raise Conflict. Return the response."""
        doing = RequestInfo(self._name, "delete", shown(ref))
        options: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid, **({"resourceVersion": version} if version else {})},
            "propagationPolicy": "Background",
        }
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        request = HTTPCall("DELETE", path_of(doing, ref), orjson.dumps(options), _JSON)
        return self._check_object(ref, doing, await self._write(doing, ref.kind, request))

    async def evict(self, ref: Ref, *, uid: str) -> None:
        """Evict a pod if it has that UID, else raise Conflict. Raises Throttled if a disruption budget forbids it."""
        doing = RequestInfo(self._name, "evict", shown(ref))
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": ref.namespace, "name": ref.name},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        request = HTTPCall("POST", path_of(doing, ref, "eviction"), orjson.dumps(eviction), _JSON)
        await self._write(doing, ref.kind, request)

    async def issue(self, account: Ref, request: Manifest) -> bytes:
        """Request a token for a ServiceAccount. Return the answered TokenRequest, which contains the token."""
        doing = RequestInfo(self._name, "create", f"{shown(account)} token")
        target = path_of(doing, account, "token")
        return await self._write(doing, account.kind, HTTPCall("POST", target, orjson.dumps(request), _JSON))

    def endpoint(self) -> Endpoint:
        """Return how to open a direct connection.

        While the cluster's identity is unproven, raises Denied or Unauthorized for a right or a credential, Unreachable
        while the cluster does not respond, WrongCluster while another one does, else UnverifiedConnection.
        """
        access = self.access
        if self.identity.in_doubt:
            raise self._unproven()
        return Endpoint(
            access.address, access.port, access.tls, access.server_name, access.prefix, dict(access.headers)
        )

    def _unproven(self) -> ClusterError:
        """Return the error for a stream to a cluster whose identity is unproven."""
        health = self.health
        error_type: type[ClusterError] = UnverifiedConnection
        message = "the identity of the cluster is being verified: try again in a moment"
        if health.unreachable_for(self._clock()) and health.error != NOT_CONTACTED:
            error_type, message = Unreachable, health.error
        if health.unproven:
            error_type = Denied
        elif health.rejected:
            error_type = Unauthorized
        elif health.wrong:
            error_type = WrongCluster
        return error_type(self.credential_error or message, cluster=self._name, doing="open a stream")

    def _pager(self, doing: RequestInfo, fetch: FetchPage, read: Read) -> Pager:
        return Pager(doing, fetch, read, self._share, tally=self.tally, allowance=self._allowance)

    @asynccontextmanager
    async def _opened(
        self, doing: RequestInfo, target: str, seconds: int
    ) -> AsyncIterator[tuple[aiohttp.StreamReader, Access]]:
        """Open a watch, and return it with the access that it uses. If it is refused, raise the matching error."""
        access = await self._usable_access(settled=True)
        async with self._transport.stream(access, target, seconds + self._margin) as answer:
            if answer.status == HTTPStatus.OK:
                self.health.record_response(self._clock())
                yield answer.content, access
                return
            media, retry_after = (answer.headers.get(name, "") for name in ("Content-Type", "Retry-After"))
            reply = HTTPReply(answer.status, await beginning(answer.content, limits.REFUSAL), media, retry_after)
        if reply.status == HTTPStatus.UNAUTHORIZED:
            reply = reply._replace(renewal=await self._transport.renew(access))
        raise _refusal(doing, reply)

    async def _read(
        self, doing: RequestInfo, target: str, *, settled: bool = True, most: int = limits.OBJECT, spare: bool = False
    ) -> bytes:
        """Send a read, with retries for failures that are known to pass. `spare` as in `_send`."""
        request = HTTPCall("GET", target, most=most)
        return await self._retrying.copy()(self._send, doing, request, settled=settled, spare=spare)

    async def _write(self, doing: RequestInfo, kind: Kind, request: HTTPCall) -> bytes:
        """Send a write once, and report its result to `observe`."""
        try:
            raw = shallow(await self._send(doing, request))
        except ClusterError as error:
            if self._observe:
                self._observe(doing.verb, kind.name, type(error).__name__)
            raise
        if self._observe:
            self._observe(doing.verb, kind.name, "ok")
        return raw

    async def _send(self, doing: RequestInfo, request: HTTPCall, *, settled: bool = True, spare: bool = False) -> bytes:
        """Send a request and return the body of its response.

        `settled`: only after the cluster's identity is proven. `spare`: a response that is too long is no breach, as
        less can be requested.
        """
        try:
            reply = await self._send_renewing(request, settled=settled)
            if not 200 <= reply.status < 300:  # noqa: PLR2004
                error = _refusal(doing, reply)
                raise error if settled else _without_contact(doing, error)
            if not reply.media.startswith(_JSON):
                raise unexpected_response(doing, media_shown(reply.media))
        except ClusterError as error:
            if spare and type(error) is TooLarge:
                raise
            raise self._record_error(doing, error) from None
        self.health.record_response(self._clock())
        return reply.body

    def _check_object(self, ref: Ref, doing: RequestInfo, raw: bytes) -> bytes:
        """Return a response about the requested object. For another object of a lower cluster, raises Unreachable."""
        if self._name and (objection := mismatch(ref, raw)):
            raise self._record_error(doing, unexpected_response(doing, objection))
        return raw

    def _check_paused(self) -> None:
        """Raise ClusterPaused while the cluster is paused because it sent too much."""
        if remaining := self._oversize_backoff.left(self._clock()):
            raise ClusterPaused(
                f"{self._oversize_backoff.message}; requests resume in {remaining:.0f} s", retry_after=remaining
            )

    async def _send_renewing(self, request: HTTPCall, *, settled: bool) -> HTTPReply:
        """Send a request, and once more if the credential was rejected and a new one is available."""
        access = await self._usable_access(settled=settled)
        reply = await self._send_proven(access, request, settled=settled)
        if reply.status != HTTPStatus.UNAUTHORIZED:
            return reply
        problem = await self._transport.renew(access)
        if problem:
            return reply._replace(renewal=problem)
        return await self._send_proven(await self._usable_access(settled=settled), request, settled=settled)

    async def _send_proven(self, access: Access, request: HTTPCall, *, settled: bool) -> HTTPReply:
        """Send a request. If a new connection leads to an unknown server, prove its identity first."""
        for _ in range(_SERVERS):
            try:
                return await self._transport.request(access, request, probe=not settled)
            except UnverifiedConnection:
                self._require_proof()
                access = await self._usable_access(settled=settled)
        return await self._transport.request(access, request, probe=not settled)

    def _require_proof(self) -> None:
        """Require a new identity check, as a new connection leads to an unknown server.

        The next probe opens a new connection too.
        """
        if not self.identity.in_doubt:
            self.identity.require_proof()
            self._transport.forget_probe()

    async def _usable_access(self, *, settled: bool) -> Access:
        """Return the access to use. `settled`: only after the cluster's identity is proven."""
        self._check_paused()
        if self._clock() >= self.access.good_until:
            await self._transport.renew(self.access)
        while settled and self.identity.in_doubt:
            await self.identity.prove(self.identify)
        return self.access

    def _access_changed(self) -> None:
        """Require a new identity check, as the access changed."""
        self.identity.require_proof()
        self.health.record_access_change(self._clock())

    def _record_error(self, doing: RequestInfo, error: ClusterError) -> ClusterError:
        """Complete an error with cluster and request, and record what it means for the cluster's health."""
        error.cluster, error.doing = doing.cluster, str(doing)
        if self._oversize_backoff.left(self._clock()):
            return error
        if isinstance(error, UnverifiedConnection):
            self._require_proof()
        elif isinstance(error, TooLarge) and self._name:
            self._pause(error)
        elif isinstance(error, Unauthorized | UntrustedServer):
            self.health.record_rejection(self._clock(), error.message, ours=isinstance(error, Unauthorized))
            self.identity.require_proof()
        elif not isinstance(error, Unreachable):
            self.health.record_response(self._clock())
        elif not isinstance(error, WrongCluster) and not (error.status and doing.verb in _INCONCLUSIVE):
            self.health.record_failure(self._clock(), error.message, unconnected=isinstance(error, NoConnection))
            if not error.status:
                self.identity.require_proof()
        return error

    def _pause(self, error: TooLarge) -> None:
        """Pause a cluster that sent too much, and abort its calls in progress."""
        now = self._clock()
        message = f"{error.doing}: received {error.message}"
        pause = self._oversize_backoff.note(now, message)
        self.health.record_excess(now, message, self._oversize_backoff.trusted_from)
        self._transport.hang_up()
        _log.warning(
            "response limit exceeded, requests paused", cluster=self._name, error=message, seconds=round(pause)
        )


def _without_contact(doing: RequestInfo, error: ClusterError) -> ClusterError:
    """Return the error of a request that every apiserver knows; if no Kubernetes Status explains it, another server's.

    Such an answer is no contact with the cluster.
    """
    is_unexplained = type(error) in (Denied, NotFound, Throttled) and not error.reason
    return Unreachable(error.message, cluster=doing.cluster, doing=str(doing)) if is_unexplained else error


def _refusal(doing: RequestInfo, reply: HTTPReply) -> ClusterError:
    """Return the error for a response."""
    if 300 <= reply.status < 400:  # noqa: PLR2004
        return unexpected_response(doing, f"a redirect, HTTP {reply.status}")
    error = error_of(doing, reply.status, reply.body, reply.retry_after, reply.media)
    if reply.renewal:
        error.message += f" ({reply.renewal})"
    return error
