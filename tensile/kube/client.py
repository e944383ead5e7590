"""A cluster over HTTP, in raw JSON: the protocol of `tensile.cluster` for real.

Model classes drop fields that they do not know and cost more than the request itself, so objects pass as bytes. A write
is sent once: when its answer is lost, whether it happened is for the next decision to see, and preconditions make a
second try harmless. Only reads are tried again in the call, and only on failures that are known to pass; but what was
answered with 401 was not done, and is repeated with the credential read anew.

After a lost connection, a refused credential, or a change of the way there, it has to be shown that the same cluster
answers before anything else is sent that way.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import quote, urlencode

import orjson
import tenacity

from tensile.cluster import Endpoint, Listing, Patch, Read, Selection, WatchEvent
from tensile.errors import ClusterError, Denied, Expired, Throttled, Unauthorized, Unreachable
from tensile.kube.access import Access
from tensile.kube.aio import aiohttp
from tensile.kube.answers import (
    Doing,
    Lines,
    Page,
    apis_of,
    error_of,
    identity_of,
    kinds_of,
    media_shown,
    page_of,
    release_of,
    strange,
    version_of,
)
from tensile.kube.health import Health, SharedCluster, WrongCluster
from tensile.kube.limits import Bucket
from tensile.kube.transport import Clock, Dropped, Reply, Request, Sleep, Transport, Untrusted
from tensile.names import FIELD_MANAGER
from tensile.objects import NAMESPACE, Kind, Manifest, Ref

Observe = Callable[[str, str, str], None]
Admit = Callable[[str], str]

KUBE_SYSTEM = Ref("", NAMESPACE, "", "kube-system")
PAGE = 500
MARGIN = 10.0
_UNDER_WAY = 0.001
"""Seconds in which a request leaves, before other work holds the event loop up."""

_WRITE = urlencode({"fieldManager": FIELD_MANAGER, "fieldValidation": "Ignore"})
_JSON = "application/json"
_MEDIA = {
    "json-patch": "application/json-patch+json",
    "merge-patch": "application/merge-patch+json",
    "strategic-merge-patch": "application/strategic-merge-patch+json",
    "apply-patch": "application/apply-patch+yaml",
}
_PLAIN = re.compile(r"[A-Za-z0-9._:-]*").fullmatch
_WRITES = frozenset({"create", "patch", "delete"})
_TRIES = 3
_PATIENCE = 5.0


class Follower(Protocol):
    """Who follows a kind of this cluster and wants to know when a create contradicts what it has seen."""

    @property
    def newest(self) -> int:
        """The newest resourceVersion seen so far."""
        ...

    def note_created(self, version: int, since: int) -> None:
        """Hear that an object created after `since` was seen got `version`."""
        ...


class HttpCluster:
    """One cluster; made inside a running event loop, closed with `close`.

    `qps` and `burst` bound requests a second (0: no bound), `connections` the calls at one time, `timeout` one call in
    seconds. `anchored`: the way there may not come to lead to another server. `observe(verb, kind, result)` hears of
    every write, result being "ok" or the error's name. `pin` is the UID of kube-system that the cluster has to have, ""
    for the first one that it shows. `admit(uid)` says why it may not be the one of that UID, "" when it may.
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
        observe: Observe | None = None,
        admit: Admit = lambda _uid: "",
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._name = name
        self._admit = admit
        self._clock = clock
        self._margin = margin
        self._observe = observe
        self.health = Health(clock())
        self.followers: dict[Kind, list[Follower]] = {}
        self.pin = pin
        self._doubt = bool(pin)
        self._settling: asyncio.Task[str] | None = None
        self._transport = Transport(
            access,
            bucket=Bucket(qps, burst, clock()),
            connections=connections,
            timeout=timeout,
            anchored=anchored,
            changed=self._mistrust,
            clock=clock,
            sleep=sleep,
        )
        self._retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(_passes_soon),
            stop=tenacity.stop_after_attempt(_TRIES),
            wait=_wait,
            sleep=sleep,
            reraise=True,
        )

    @property
    def name(self) -> str:
        """The lower's name, or `objects.UPPER`."""
        return self._name

    @property
    def access(self) -> Access:
        """The way to it now."""
        return self._transport.access

    @property
    def complaint(self) -> str:
        """What somebody has to put right about its credential or address, "" for nothing."""
        health = self.health
        return health.error if health.wrong or health.shut_out else self._transport.stale

    @property
    def stale(self) -> str:
        """Why what its credential was read from cannot be used as it is by now, "" when it can."""
        return self._transport.stale

    async def refresh(self) -> str:
        """Read credential and address anew; "" when another way is taken from now on, else why not."""
        return await self._transport.refresh()

    def take(self, access: Access) -> str:
        """Go another way from now on; "" when it is taken, else why not."""
        return self._transport.take(access)

    async def close(self) -> None:
        """Close every connection."""
        if self._settling is not None:
            self._settling.cancel()
            await asyncio.gather(self._settling, return_exceptions=True)
        await self._transport.close()

    async def identity(self) -> str:
        """Give the UID of namespace kube-system, which tells clusters apart.

        The first answer is what later ones must be: else WrongCluster is raised, and every call is refused until the
        first cluster is back; SharedCluster likewise for one that is not admitted.
        """
        doing = Doing(self._name, "read", "Namespace kube-system")
        access = self.access
        uid = identity_of(doing, await self._read(doing, KUBE_SYSTEM.path(), settled=False))
        if self.pin and uid != self.pin:
            raise self._wrong(doing, uid)
        objection = self._admit(uid)
        if objection:
            raise self._shared(doing, objection)
        self.pin = uid
        self._doubt = self._doubt and access is not self.access
        self.health.accept(self._clock())
        return uid

    def _wrong(self, doing: Doing, uid: str) -> WrongCluster:
        """Note that another cluster answers, and give the error that says so."""
        self._doubt = True
        intended = (
            "take the lower out of the topology and give the new cluster a name of its own" if self._name else "restart"
        )
        message = (
            f"another cluster answers at {self.access.url} than before (kube-system {uid} instead of {self.pin}): "
            f"nothing is done there; put the address in {self.access.origin} right, or, if it is meant, {intended}"
        )
        self.health.refuse(self._clock(), message)
        return WrongCluster(message, cluster=self._name, doing=str(doing))

    def _shared(self, doing: Doing, objection: str) -> SharedCluster:
        """Note that the cluster may not be this one, and give the error that says so."""
        self._doubt = True
        message = (
            f"{self.access.url} leads to {objection}: nothing is done there under this name; put the address in "
            f"{self.access.origin} right, or take the lower out of the topology"
        )
        self.health.refuse(self._clock(), message, shared=True)
        return SharedCluster(message, cluster=self._name, doing=str(doing))

    def accept_any(self) -> None:
        """Take the cluster that answers next for the right one, whichever it is."""
        self.pin = ""

    def suspect(self, message: str) -> Unreachable:
        """Note that the cluster seems to hang, and give the error that says so."""
        self._doubt = bool(self.pin)
        self.health.silence(self._clock(), message)
        return Unreachable(message, cluster=self._name, doing="read Namespace kube-system")

    async def version(self) -> str:
        """Give the server's version such as "v1.36.3"."""
        doing = Doing(self._name, "read", "version")
        return release_of(doing, await self._read(doing, "/version", settled=False))

    async def read(self, ref: Ref) -> bytes:
        """Give the object at quorum, so that "not found" means that it does not exist."""
        doing = Doing(self._name, "read", _shown(ref))
        return await self._read(doing, _path(doing, ref))

    async def list(self, kind: Kind, selection: Selection, read: Read = bytes) -> Listing:
        """Give what `read` makes of every object of the selection, at quorum, in pages of 500.

        When the store forgets the pages' version on the way, everything is asked for at once.
        """
        doing = Doing(self._name, "list", f"{kind.name} {selection.namespace}".rstrip())
        query = _query(selection)
        try:
            return await self._pages(doing, kind.path(selection.namespace), query, read)
        except Expired:
            page = page_of(doing, await self._read(doing, _target(kind.path(selection.namespace), query)))
            return Listing([read(item) for item in page.items], page.version)

    async def watch(self, kind: Kind, selection: Selection, version: str, seconds: int) -> AsyncIterator[WatchEvent]:
        """Follow the selection from `version` on; ends when the server ends it, after about `seconds`.

        Raises Expired when `version` cannot be resumed from, Unreachable when the end did not come in `seconds` and a
        margin, and the error of an ERROR line.
        """
        doing = Doing(self._name, "watch", f"{kind.name} {selection.namespace}".rstrip())
        query = _query(selection) | {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
            "resourceVersion": version,
        }
        lines = Lines(doing)
        try:
            async with self._opened(doing, _target(kind.path(selection.namespace), query), seconds) as stream:
                async for chunk in stream.iter_any():
                    for event in lines.feed(chunk):
                        yield event
                        self.health.hear(self._clock())
        except ClusterError as error:
            raise self._told(doing, error) from None

    async def kinds(self) -> tuple[Kind, ...]:
        """Give every namespaced kind whose objects can be listed, each in one version."""
        doing = Doing(self._name, "read", "API resources")
        found: dict[tuple[str, str], Kind] = {}
        for api in ("v1", *apis_of(doing, await self._read(doing, "/apis"))):
            path = Kind(api, "", "", namespaced=False).path().rstrip("/")
            for kind in kinds_of(doing, api, await self._read(doing, path)):
                found.setdefault((api.rpartition("/")[0], kind.plural), kind)
        return tuple(found.values())

    async def create(self, ref: Ref, body: Manifest) -> bytes:
        """Create the object (for reviews: ask) and give it as stored."""
        doing = Doing(self._name, "create", _shown(ref))
        since = [(follower, follower.newest) for follower in self.followers.get(ref.kind, ())]
        _path(doing, ref)
        target = f"{ref.kind.path(ref.namespace)}?{_WRITE}"
        raw = await self._write(doing, ref.kind, Request("POST", target, orjson.dumps(body), _JSON))
        for follower, newest in since:
            follower.note_created(version_of(doing, raw), newest)
        return raw

    async def patch(self, ref: Ref, patch: Patch, subresource: str = "") -> bytes:
        """Change the object, or a subresource of it, and give it as stored.

        Raises Conflict when the UID or resourceVersion in the body does not fit any more.
        """
        doing = Doing(self._name, "patch", f"{_shown(ref)} {subresource}".rstrip())
        force = "&force=true" if patch.media == "apply-patch" else ""
        target = f"{_path(doing, ref, subresource)}?{_WRITE}{force}"
        request = Request("PATCH", target, orjson.dumps(patch.body), _MEDIA[patch.media])
        return await self._write(doing, ref.kind, request)

    async def delete(self, ref: Ref, *, uid: str, grace: int | None = None, version: str = "") -> bytes:
        """Delete the object if it is the one with that UID, as it was at that `version` (else Conflict); answered."""
        doing = Doing(self._name, "delete", _shown(ref))
        options: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid, **({"resourceVersion": version} if version else {})},
            "propagationPolicy": "Background",
        }
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        request = Request("DELETE", _path(doing, ref), orjson.dumps(options), _JSON)
        return await self._write(doing, ref.kind, request)

    async def evict(self, ref: Ref, *, uid: str) -> None:
        """Ask for the deletion of a pod if it is the one with that UID (else Conflict); Throttled: a budget says no."""
        doing = Doing(self._name, "evict", _shown(ref))
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": ref.namespace, "name": ref.name},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        request = Request("POST", _path(doing, ref, "eviction"), orjson.dumps(eviction), _JSON)
        await self._write(doing, ref.kind, request)

    async def issue(self, account: Ref, request: Manifest) -> bytes:
        """Have a token of a ServiceAccount issued, as a TokenRequest asks; gives that, answered: it holds the token."""
        doing = Doing(self._name, "create", f"{_shown(account)} token")
        target = _path(doing, account, "token")
        return await self._write(doing, account.kind, Request("POST", target, orjson.dumps(request), _JSON))

    def endpoint(self) -> Endpoint:
        """Say how to open a connection of one's own; raises Unreachable while it is not certain who answers there."""
        access = self.access
        if self._doubt:
            message = self.complaint or "it is being made sure which cluster answers there: try again in a moment"
            raise Unreachable(message, cluster=self._name, doing="open a stream")
        return Endpoint(
            access.address, access.port, access.tls, access.server_name, access.prefix, dict(access.headers)
        )

    async def _pages(self, doing: Doing, path: str, query: dict[str, str], read: Read) -> Listing:
        """Ask for page after page; while one is read, the server works on the next."""

        async def asked(more: dict[str, str]) -> Page:
            """Ask for a page."""
            return page_of(doing, await self._read(doing, _target(path, query | {"limit": str(PAGE)} | more)))

        page, items = await asked({}), []
        while page.more:
            following = asyncio.ensure_future(asked({"continue": page.more}))
            try:
                await asyncio.sleep(_UNDER_WAY)
                items += [read(item) for item in page.items]
                page = await following
            finally:
                following.cancel()
        return Listing(items + [read(item) for item in page.items], page.version)

    @asynccontextmanager
    async def _opened(self, doing: Doing, target: str, seconds: int) -> AsyncIterator[aiohttp.StreamReader]:
        """Open a watch; raises what its refusal means."""
        access = await self._way(settled=True)
        async with self._transport.stream(access, target, seconds + self._margin) as answer:
            if answer.status == HTTPStatus.OK:
                self.health.contact(self._clock())
                yield answer.content
                return
            media, retry_after = (answer.headers.get(name, "") for name in ("Content-Type", "Retry-After"))
            reply = Reply(answer.status, await answer.read(), media, retry_after)
        if reply.status == HTTPStatus.UNAUTHORIZED:
            reply = reply._replace(renewal=await self._transport.renew(access))
        raise _refusal(doing, reply)

    async def _read(self, doing: Doing, target: str, *, settled: bool = True) -> bytes:
        """Send a read, again where a failure is known to pass."""
        return await self._retrying.copy()(self._send, doing, Request("GET", target), settled=settled)

    async def _write(self, doing: Doing, kind: Kind, request: Request) -> bytes:
        """Send a write once, and tell who counts writes."""
        try:
            raw = await self._send(doing, request)
        except ClusterError as error:
            if self._observe:
                self._observe(doing.verb, kind.name, type(error).__name__)
            raise
        if self._observe:
            self._observe(doing.verb, kind.name, "ok")
        return raw

    async def _send(self, doing: Doing, request: Request, *, settled: bool = True) -> bytes:
        """Send a request and give the body of its answer; `settled`: to no other cluster than the one it should be."""
        try:
            reply = await self._asked(request, settled=settled)
            if not 200 <= reply.status < 300:  # noqa: PLR2004
                raise _refusal(doing, reply)
            if not reply.media.startswith(_JSON):
                raise strange(doing, media_shown(reply.media))
        except ClusterError as error:
            raise self._told(doing, error) from None
        self.health.contact(self._clock())
        return reply.body

    async def _asked(self, request: Request, *, settled: bool) -> Reply:
        """Send a request, and once more if the credential is not accepted and there is another."""
        access = await self._way(settled=settled)
        reply = await self._transport.request(access, request)
        if reply.status != HTTPStatus.UNAUTHORIZED:
            return reply
        problem = await self._transport.renew(access)
        if problem:
            return reply._replace(renewal=problem)
        return await self._transport.request(await self._way(settled=settled), request)

    async def _way(self, *, settled: bool) -> Access:
        """Give the way to send by; `settled`: after it has been made sure that the same cluster answers there."""
        if self._clock() >= self.access.good_until:
            await self._transport.renew(self.access)
        while settled and self._doubt:
            await self._settle()
        return self.access

    def _mistrust(self) -> None:
        """Doubt who answers: the way there is another one."""
        self._doubt = bool(self.pin)
        self.health.turn(self._clock())

    def _told(self, doing: Doing, error: ClusterError) -> ClusterError:
        """Complete an error and note what it says about the cluster's health."""
        error.cluster, error.doing = doing.cluster, str(doing)
        if isinstance(error, Unauthorized | Untrusted):
            self.health.shut(self._clock(), error.message)
            self._doubt = bool(self.pin)
        elif not isinstance(error, Unreachable):
            self.health.contact(self._clock())
        elif not isinstance(error, WrongCluster) and not (error.status and doing.verb in _WRITES):
            # A write fails with a webhook too, which says nothing of the cluster; how that is, reads tell.
            self.health.silence(self._clock(), error.message)
            self._doubt = self._doubt or bool(self.pin and not error.status)
        return error

    async def _settle(self) -> None:
        """Ask once for all waiting calls who answers; raises what keeps it from being the cluster it should be."""
        if self._settling is None or self._settling.done():
            self._settling = asyncio.create_task(self.identity())
            self._settling.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._settling)


def _refusal(doing: Doing, reply: Reply) -> ClusterError:
    """Give the error that an answer means."""
    if 300 <= reply.status < 400:  # noqa: PLR2004
        return strange(doing, f"a redirect, HTTP {reply.status}")
    error = error_of(doing, reply.status, reply.body, reply.retry_after, reply.media)
    if reply.renewal:
        error.message += f" ({reply.renewal})"
    return error


def _passes_soon(error: BaseException) -> bool:
    """Tell whether a read may be asked again within the call."""
    return isinstance(error, Dropped) or (isinstance(error, Throttled) and error.retry_after <= _PATIENCE)


def _wait(state: tenacity.RetryCallState) -> float:
    """Give the seconds before the next try of a read."""
    error = state.outcome.exception() if state.outcome else None
    return error.retry_after if isinstance(error, Throttled) else 0.1 * state.attempt_number


def _shown(ref: Ref) -> str:
    """Name an object for an error."""
    return f"{ref.kind.name} {ref.namespace}/{ref.name}" if ref.namespace else f"{ref.kind.name} {ref.name}"


def _path(doing: Doing, ref: Ref, subresource: str = "") -> str:
    """Give the URL path of an object.

    References inside a pod's spec are not checked by Kubernetes, so a name may hold what would lead to another path.
    """
    if _PLAIN(ref.name) and _PLAIN(ref.namespace) and ref.name not in (".", "..") and ref.namespace not in (".", ".."):
        return ref.path(subresource)
    for part in (ref.namespace, ref.name):
        if part in (".", "..") or "/" in part or "%" in part:
            raise Denied(
                f"{part!r} is no name in Kubernetes: correct what refers to it", cluster=doing.cluster, doing=str(doing)
            )
    return quote(ref.path(subresource), safe="/:")


def _query(selection: Selection) -> dict[str, str]:
    """Give a selection's query parameters."""
    asked = {"labelSelector": selection.labels, "fieldSelector": selection.fields}
    return {key: value for key, value in asked.items() if value}


def _target(path: str, query: dict[str, str]) -> str:
    """Join path and query."""
    return f"{path}?{urlencode(query)}" if query else path
