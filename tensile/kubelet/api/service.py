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
from tensile.kubelet.api.requests import PodLister, command_of, request_to_lower
from tensile.kubelet.api.routes import APICall, HTTPError
from tensile.kubelet.api.streaming import follow, tunnel
from tensile.kubelet.stats.collector import MEDIA, StatsCollector, node_metrics, reply_usage, running_pod_list

_RESERVED_PART = 20
"""1/20 of a user's limit is available on each node, even if streams to other nodes use up the limit."""
AGAIN_SECONDS = 600.0
_MAX_LOGGED = 256
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


class _AdmittedRequest(NamedTuple):
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
        if self._open[user] >= self._limit and self._open[own] >= self._limit // _RESERVED_PART:
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
        self._logged: TTLCache[tuple[str, str], bool] = TTLCache(_MAX_LOGGED)

    def handshake(self, node: str, error: OSError, certificate: str, authority: str) -> None:
        """Log a failed TLS handshake, unless the caller merely disconnected.

        `certificate` describes our certificate, `authority` says where the client CA is read.
        """
        if isinstance(error, ssl.SSLCertVerificationError):
            advice = f"{authority} must contain the CA that signed it; {_CLIENT_CERTIFICATE}"
            self._log_once(node, f"a client certificate was rejected ({error.verify_message})", advice)
        elif isinstance(error, ssl.SSLError) and _is_certificate_alert(error.reason or ""):
            advice = (
                "if the client is the upper apiserver, its --kubelet-certificate-authority must contain the issuer; "
                f"the certificate must be valid for the called address: {certificate}"
            )
            self._log_once(node, f"a client rejected the serving certificate ({_alert(error)})", advice)

    def refused(self, node: str, error: HTTPError, *, has_credential: bool) -> None:
        """Log a rejected request; `has_credential`: the caller sent a certificate or a token."""
        if error.status == HTTPStatus.FORBIDDEN:
            self._log_once(node, error.message, _BINDING)
        elif error.status == HTTPStatus.TOO_MANY_REQUESTS:
            self._log_once(
                node, error.message, "this client sends many invalid tokens or forbidden requests: find out who it is"
            )
        elif error.status == HTTPStatus.UNAUTHORIZED and not has_credential:
            advice = f"{_CLIENT_CERTIFICATE}; other clients must send a token of the upper cluster"
            self._log_once(node, "a client sent neither a certificate nor a token", advice)
        elif error.status == HTTPStatus.UNAUTHORIZED:
            self._log_once(
                node, "the upper cluster does not accept the token or certificate of a client", "use another one"
            )

    def _log_once(self, node: str, why: str, advice: str) -> None:
        now = self._clock()
        if self._logged.get((node, why), now) is None:
            self._logged.put((node, why), True, now + AGAIN_SECONDS)
            self._log.warning("kubelet API request rejected", node=node, why=why, advice=advice)


def _is_certificate_alert(reason: str) -> bool:
    """Report whether the caller refused our certificate: Go says "bad certificate" for any reason."""
    return "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason)


def _alert(error: ssl.SSLError) -> str:
    return (error.reason or "").partition("ALERT_")[2].replace("_", " ").lower()


class Service:
    """Serves connections to any virtual node; what belongs to one node is in its `NodeServer`."""

    def __init__(self, auth: RequestAuth, log: FilteringBoundLogger, limits: ConnectionLimits) -> None:
        self._auth = auth
        self._log = log
        self._limits = limits
        self._rejections = RejectionLog(log, time.monotonic)
        self._streams = StreamLimiter(limits.streams)
        self._requests = StreamLimiter(limits.streams, "requests in progress (pods, metrics, stats, health)")

    def streams(self, node: str) -> int:
        """Return the number of open streams to a virtual node."""
        return self._streams.to(node)

    async def serve(self, connection: socket.socket, node_server: NodeServer, client: ClientConnection) -> None:
        """Serve one connection to its end; `client` no longer counts as waiting once the caller is admitted.

        What calls this closes a connection that was not taken over.
        """
        authority = await self._auth.authority.pem()
        context = self._auth.serving.context(node_server.node, authority)
        try:
            wire = await accept(connection, context, self._limits, client)
        except OSError as error:
            certificate = self._auth.serving.shown(node_server.node)
            self._rejections.handshake(node_server.node, error, certificate, self._auth.authority.which)
            return
        client.advance(known=bool(wire.certificate))
        await self._exchange(wire, node_server, client, has_client_ca=bool(authority))

    async def _exchange(
        self, wire: TLSConnection, node_server: NodeServer, client: ClientConnection, *, has_client_ca: bool
    ) -> None:
        caller = ServerExchange(wire, self._limits.head if client.is_known else self._limits.unknown)
        try:
            async with asyncio.timeout(self._limits.asking):
                request = await caller.request()
            client.advance(known=client.is_known)
            admitted = await self._admit(caller, request, node_server.node, client.origin if has_client_ca else None)
            client.be_admitted()
            await self._answer(admitted, node_server)
        except (HTTPError, h11.RemoteProtocolError) as error:
            client.advance(known=client.is_known)
            status = error.status if isinstance(error, HTTPError) else _client_error_status(error)
            await self._refuse(caller, status, str(error))
        except (OSError, ClientDisconnected):
            wire.abort()
        else:
            await wire.close()
        finally:
            wire.abort()
            await wire.lost.wait()

    async def _admit(
        self, caller: ServerExchange, request: RequestHead, node: str, origin: str | None
    ) -> _AdmittedRequest:
        """Return the request with its user if the user may make it; raise HTTPError (401, 403, 429, 503) if not.

        `origin` is the caller's address, None while no caller can be admitted.
        """
        if origin is None:
            raise HTTPError(HTTPStatus.UNAUTHORIZED, "Unauthorized")
        certificate = caller.wire.certificate
        try:
            user = await self._auth.authenticator.user(certificate, request.headers, origin)
            call = routes.parse_call(request.method, request.target)
            await self._auth.authorizer.permit(user, routes.accesses(call), node)
        except HTTPError as refused:
            has_credential = bool(certificate) or any(name == "authorization" for name, _ in request.headers)
            self._rejections.refused(node, refused, has_credential=has_credential)
            raise
        return _AdmittedRequest(caller, request, call, user)

    async def _answer(self, admitted: _AdmittedRequest, node_server: NodeServer) -> None:
        container_ref = routes.container_ref(admitted.call)
        if container_ref.pod:
            pod = f"{container_ref.namespace}/{container_ref.pod}"
            with self._streams.one_to(admitted.user.name, node_server.node, pod, self._limits.portion):
                lower_call = self._lower_call(admitted, container_ref, node_server)
                if admitted.call.area == routes.LOGS:
                    await follow(admitted.caller, lower_call)
                else:
                    await tunnel(admitted.caller, lower_call, self._limits)
            return
        with self._requests.one(admitted.user.name):
            await self._answer_about_node(admitted, node_server)

    async def _answer_about_node(self, admitted: _AdmittedRequest, node_server: NodeServer) -> None:
        """Answer a request about the node as a whole."""
        match admitted.call.area:
            case routes.HEALTH:
                await admitted.caller.reply(HTTPStatus.OK, b"ok")
            case routes.PODS:
                await admitted.caller.reply(HTTPStatus.OK, node_server.pods.listed(), _JSON)
            case routes.RUNNING_PODS:
                await admitted.caller.reply(HTTPStatus.OK, running_pod_list(node_server.pods.running()), _JSON)
            case routes.METRICS if not admitted.call.rest:
                await admitted.caller.reply(
                    HTTPStatus.OK, node_metrics(node_server.node, node_server.pods.running()), MEDIA
                )
            case routes.METRICS if admitted.call.rest in routes.WITHOUT_SAMPLES:
                await admitted.caller.reply(HTTPStatus.OK, b"", MEDIA)
            case _:
                await reply_usage(admitted.caller, admitted.call, node_server.meter)

    def _lower_call(
        self, admitted: _AdmittedRequest, container_ref: routes.ContainerRef, node_server: NodeServer
    ) -> LowerExchange:
        """Return the request to the lower for a call; 404 if the pod is not ours or not on this node."""
        target = node_server.pods.locate(container_ref.namespace, container_ref.pod)
        if target is None:
            raise HTTPError(
                HTTPStatus.NOT_FOUND,
                f"pod {container_ref.namespace}/{container_ref.pod} is not on node {node_server.node}",
            )
        call = admitted.call
        request = request_to_lower(call, container_ref, target, admitted.request.headers)
        if call.area != routes.LOGS:
            who = {"user": admitted.user.name, "node": node_server.node, "lower": target.cluster.name}
            command = command_of(call.query)
            size = {"command_words": len(command), "command_length": sum(map(len, command))}
            self._log.info(call.area, **who, **container_ref._asdict(), **size)
        return LowerExchange(target.cluster, request, self._limits)

    async def _refuse(self, caller: ServerExchange, status: int, message: str) -> None:
        """Send an error and close, with a short timeout; a response that has begun is aborted instead."""
        if caller.unanswered:
            with suppress(OSError):
                async with asyncio.timeout(self._limits.leaving):
                    await caller.reply(status, message.encode(errors="replace"))
                    await caller.wire.close()


def _client_error_status(error: h11.RemoteProtocolError) -> int:
    """Return the status for HTTP that cannot be parsed: always a 4xx, the caller's fault."""
    hint: int = error.error_status_hint
    return hint if hint < HTTPStatus.INTERNAL_SERVER_ERROR else HTTPStatus.BAD_REQUEST
