"""Serve one connection to a virtual node in this order: TLS, request head, authentication, authorization, pod, answer.

The order matters. The caller is identified before anything about pods is revealed, so that an unknown caller learns
nothing, not even from a 404. Nothing of a request reaches a lower cluster before all of it has been checked.
"""

import asyncio
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NamedTuple

import h11
from structlog.typing import FilteringBoundLogger

from tensile.kube.listener_limits import ClientConnection
from tensile.kube.net import cancel_and_wait
from tensile.kubelet.api import routes
from tensile.kubelet.api.auth import Authenticator, Authorizer, TTLCache, User
from tensile.kubelet.api.certificates import ClientCA, ServingCertificate
from tensile.kubelet.api.connection import ConnectionLimits, StreamShares, TLSConnection, accept
from tensile.kubelet.api.http import ClientDisconnected, LowerExchange, RequestHead, ServerExchange
from tensile.kubelet.api.requests import PodLister, ask_for, command_of
from tensile.kubelet.api.routes import APICall, HTTPError
from tensile.kubelet.api.streaming import follow, tunnel
from tensile.kubelet.stats.collector import MEDIA, StatsCollector, census, running_list, show

_KEPT = 20
"""1/20 of a user's limit is available on each node, even if streams to other nodes use up the limit."""
AGAIN_SECONDS = 600.0
_REMEMBERED = 256
_CLIENT_CERTIFICATE = "the upper apiserver sends its --kubelet-client-certificate"
_BINDING = "if this user is the upper apiserver, bind it to ClusterRole system:kubelet-api-admin"
_JSON = "application/json"


@dataclass
class NodeServer:
    """One virtual node as it is served: its name, its pods, and its usage.

    `connections` are those made to this node.
    """

    node: str
    pods: PodLister
    meter: StatsCollector | None = None
    connections: set[asyncio.Task[None]] = field(default_factory=set)

    async def close(self) -> None:
        """End every connection."""
        await cancel_and_wait(*self.connections)


class RequestAuth(NamedTuple):
    """What decides who is admitted: our certificate, the client CA, authentication and authorization."""

    serving: ServingCertificate
    authority: ClientCA
    authenticator: Authenticator
    authorizer: Authorizer


class _Visit(NamedTuple):
    """A request that was authenticated and authorized."""

    caller: ServerExchange
    request: RequestHead
    call: APICall
    user: User


class StreamLimiter:
    """Counts open streams by user; beyond `limit` new ones are refused with 429. `what` names them in messages.

    The limits hold over all virtual nodes. Each stream holds two connections. A client that leaks them, such as a
    dashboard that follows logs, would use up the file descriptors that the engine needs for its clusters. Usually the
    only user is the upper apiserver, on behalf of everyone. So one node or pod may not use up a user's whole limit: a
    cluster that lets all streams hang does not block those of another.
    """

    def __init__(self, limit: int, what: str = "open streams (logs, exec, attach, port-forward)") -> None:
        self._limit = limit
        self._what = what
        self._open: Counter[Hashable] = Counter()

    @contextmanager
    def one(self, user: str) -> Iterator[None]:
        """Count a stream of a user while the context is open; raise HTTPError when there are too many."""
        if self._open[user] >= self._limit:
            raise self._full(f"user {user}", self._limit)
        with self._counted(user):
            yield

    @contextmanager
    def one_to(self, user: str, node: str, pod: str, most: StreamShares) -> Iterator[None]:
        """Count a stream of a user to a pod; raise HTTPError where the pod, the node or the user has too many."""
        own, nodes, pods = (user, node), ("", node), ("", node, pod)
        if self._open[pods] >= most.pod:
            raise self._full(f"pod {pod}", most.pod)
        if self._open[own] >= most.node:
            raise self._full(f"node {node}", most.node)
        if self._open[user] >= self._limit and self._open[own] >= self._limit // _KEPT:
            raise self._full(f"user {user}", self._limit)
        with self._counted(user, own, nodes, pods):
            yield

    def to(self, node: str) -> int:
        """Return how many streams of all users lead to a node."""
        return self._open["", node]

    @contextmanager
    def _counted(self, *keys: Hashable) -> Iterator[None]:
        self._open.update(keys)
        try:
            yield
        finally:
            self._open.subtract(keys)
            for key in keys:
                if not self._open[key]:
                    del self._open[key]

    def _full(self, who: str, most: int) -> HTTPError:
        return HTTPError(HTTPStatus.TOO_MANY_REQUESTS, f"{who} has {most} {self._what}: close some first")


class RejectionLog:
    """Logs why callers are rejected, the same reason again only after a while; `clock` returns seconds.

    The caller learns little, and kubectl shows only "unauthorized" or "bad certificate" of an apiserver that knows
    nothing about our side. So the reason and a remedy are logged here, each once in ten minutes, since rejected callers
    retry.
    """

    def __init__(self, log: FilteringBoundLogger, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._said: TTLCache[tuple[str, str], bool] = TTLCache(_REMEMBERED)

    def handshake(self, node: str, error: OSError, shown: str, authority: str) -> None:
        """Log a failed TLS handshake, unless the caller merely disconnected.

        `shown` describes our certificate, `authority` says where the client CA is read.
        """
        if isinstance(error, ssl.SSLCertVerificationError):
            advice = f"{authority} must contain the CA that signed it; {_CLIENT_CERTIFICATE}"
            self._say(node, f"a client certificate was rejected ({error.verify_message})", advice)
        elif isinstance(error, ssl.SSLError) and _is_about_us(error.reason or ""):
            advice = (
                "if the client is the upper apiserver, its --kubelet-certificate-authority must contain the issuer; "
                f"the certificate must be valid for the called address: {shown}"
            )
            self._say(node, f"a client rejected the serving certificate ({_alert(error)})", advice)

    def refused(self, node: str, refused: HTTPError, *, named: bool) -> None:
        """Log a rejected request; `named`: the caller sent a certificate or a token."""
        if refused.status == HTTPStatus.FORBIDDEN:
            self._say(node, refused.message, _BINDING)
        elif refused.status == HTTPStatus.TOO_MANY_REQUESTS:
            self._say(
                node, refused.message, "this client sends many invalid tokens or forbidden requests: find out who it is"
            )
        elif refused.status == HTTPStatus.UNAUTHORIZED and not named:
            advice = f"{_CLIENT_CERTIFICATE}; other clients must send a token of the upper cluster"
            self._say(node, "a client sent neither a certificate nor a token", advice)
        elif refused.status == HTTPStatus.UNAUTHORIZED:
            self._say(node, "the upper cluster does not accept the token or certificate of a client", "use another one")

    def _say(self, node: str, why: str, advice: str) -> None:
        now = self._clock()
        if self._said.get((node, why), now) is None:
            self._said.put((node, why), True, now + AGAIN_SECONDS)
            self._log.warning("kubelet API request rejected", node=node, why=why, advice=advice)


def _is_about_us(reason: str) -> bool:
    """Report whether the caller refused our certificate: Go says "bad certificate" for any reason."""
    return "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason)


def _alert(error: ssl.SSLError) -> str:
    return (error.reason or "").partition("ALERT_")[2].replace("_", " ").lower()


class Service:
    """Serves connections to any virtual node; what belongs to one node is in its `NodeServer`."""

    def __init__(self, gate: RequestAuth, log: FilteringBoundLogger, limits: ConnectionLimits) -> None:
        self._gate = gate
        self._log = log
        self._limits = limits
        self._complaints = RejectionLog(log, time.monotonic)
        self._streams = StreamLimiter(limits.streams)
        self._requests = StreamLimiter(limits.streams, "requests in progress (pods, metrics, stats, health)")

    def streams(self, node: str) -> int:
        """Return the number of open streams to a virtual node."""
        return self._streams.to(node)

    async def serve(self, connection: socket.socket, site: NodeServer, guest: ClientConnection) -> None:
        """Serve one connection to its end; `guest` no longer counts as waiting once the caller is admitted.

        What calls this closes a connection that was not taken over.
        """
        authority = await self._gate.authority.pem()
        context = self._gate.serving.context(site.node, authority)
        try:
            wire = await accept(connection, context, self._limits, guest)
        except OSError as error:
            shown = self._gate.serving.shown(site.node)
            self._complaints.handshake(site.node, error, shown, self._gate.authority.which)
            return
        guest.advance(known=bool(wire.certificate))
        await self._converse(wire, site, guest, trusting=bool(authority))

    async def _converse(
        self, wire: TLSConnection, site: NodeServer, guest: ClientConnection, *, trusting: bool
    ) -> None:
        caller = ServerExchange(wire, self._limits.head if guest.is_known else self._limits.unknown)
        try:
            async with asyncio.timeout(self._limits.asking):
                request = await caller.request()
            guest.advance(known=guest.is_known)
            visit = await self._admit(caller, request, site.node, guest.origin if trusting else None)
            guest.be_admitted()
            await self._answer(visit, site)
        except (HTTPError, h11.RemoteProtocolError) as error:
            guest.advance(known=guest.is_known)
            status = error.status if isinstance(error, HTTPError) else _blamed(error)
            await self._refuse(caller, status, str(error))
        except (OSError, ClientDisconnected):
            wire.abort()
        else:
            await wire.close()
        finally:
            wire.abort()
            await wire.lost.wait()

    async def _admit(self, caller: ServerExchange, request: RequestHead, node: str, origin: str | None) -> _Visit:
        """Return the request with its user if the user may make it; raise HTTPError (401, 403, 429, 503) if not.

        `origin` is the caller's address, None while no caller can be admitted.
        """
        if origin is None:
            raise HTTPError(HTTPStatus.UNAUTHORIZED, "Unauthorized")
        certificate = caller.wire.certificate
        try:
            user = await self._gate.authenticator.user(certificate, request.headers, origin)
            call = routes.understand(request.method, request.target)
            await self._gate.authorizer.permit(user, routes.accesses(call), node)
        except HTTPError as refused:
            named = bool(certificate) or any(name == "authorization" for name, _ in request.headers)
            self._complaints.refused(node, refused, named=named)
            raise
        return _Visit(caller, request, call, user)

    async def _answer(self, visit: _Visit, site: NodeServer) -> None:
        place = routes.place(visit.call)
        if place.pod:
            pod = f"{place.namespace}/{place.pod}"
            with self._streams.one_to(visit.user.name, site.node, pod, self._limits.portion):
                lower_call = self._lower_call(visit, place, site)
                if visit.call.area == routes.LOGS:
                    await follow(visit.caller, lower_call)
                else:
                    await tunnel(visit.caller, lower_call, self._limits)
            return
        with self._requests.one(visit.user.name):
            await self._tell(visit, site)

    async def _tell(self, visit: _Visit, site: NodeServer) -> None:
        """Answer a request about the node as a whole."""
        match visit.call.area:
            case routes.HEALTH:
                await visit.caller.reply(HTTPStatus.OK, b"ok")
            case routes.PODS:
                await visit.caller.reply(HTTPStatus.OK, site.pods.listed(), _JSON)
            case routes.RUNNING_PODS:
                await visit.caller.reply(HTTPStatus.OK, running_list(site.pods.running()), _JSON)
            case routes.METRICS if not visit.call.rest:
                await visit.caller.reply(HTTPStatus.OK, census(site.node, site.pods.running()), MEDIA)
            case routes.METRICS if visit.call.rest in routes.WITHOUT_SAMPLES:
                await visit.caller.reply(HTTPStatus.OK, b"", MEDIA)
            case _:
                await show(visit.caller, visit.call, site.meter)

    def _lower_call(self, visit: _Visit, place: routes.ContainerRef, site: NodeServer) -> LowerExchange:
        """Return the request to the lower for a call; 404 if the pod is not ours or not on this node."""
        target = site.pods.locate(place.namespace, place.pod)
        if target is None:
            raise HTTPError(HTTPStatus.NOT_FOUND, f"pod {place.namespace}/{place.pod} is not on node {site.node}")
        call = visit.call
        ask = ask_for(call, place, target, visit.request.headers)
        if call.area != routes.LOGS:
            who = {"user": visit.user.name, "node": site.node, "lower": target.cluster.name}
            command = command_of(call.query)
            size = {"command_words": len(command), "command_length": sum(map(len, command))}
            self._log.info(call.area, **who, **place._asdict(), **size)
        return LowerExchange(target.cluster, ask, self._limits)

    async def _refuse(self, caller: ServerExchange, status: int, message: str) -> None:
        """Send an error and close, with a short timeout; a response that has begun is aborted instead."""
        if caller.unanswered:
            with suppress(OSError):
                async with asyncio.timeout(self._limits.leaving):
                    await caller.reply(status, message.encode(errors="replace"))
                    await caller.wire.close()


def _blamed(error: h11.RemoteProtocolError) -> int:
    """Return the status for HTTP that cannot be parsed: always a 4xx, the caller's fault."""
    hint: int = error.error_status_hint
    return hint if hint < HTTPStatus.INTERNAL_SERVER_ERROR else HTTPStatus.BAD_REQUEST
