"""What one connection to a virtual node goes through, in this order: TLS, head, who, may, where, answer.

The order is the point. Who calls is settled before anything about pods is said, so that a stranger learns nothing, not
even from a 404; and nothing of a request reaches a lower cluster before all of it has been checked.
"""

import asyncio
import socket
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NamedTuple

import h11

from tensile.door import Guest
from tensile.kubelet.api import routes
from tensile.kubelet.api.asks import ask_for
from tensile.kubelet.api.authentication import Authenticator, User
from tensile.kubelet.api.authority import ClientAuthority
from tensile.kubelet.api.authorization import Authorizer
from tensile.kubelet.api.certs import Serving
from tensile.kubelet.api.complaints import Complaints
from tensile.kubelet.api.dialogue import Caller, Request
from tensile.kubelet.api.exec import tunnel
from tensile.kubelet.api.logs import follow
from tensile.kubelet.api.lower import LowerCall
from tensile.kubelet.api.meter import Meter
from tensile.kubelet.api.presence import Departed
from tensile.kubelet.api.queries import command_of
from tensile.kubelet.api.refusal import Refused
from tensile.kubelet.api.routes import Call
from tensile.kubelet.api.streams import Streams
from tensile.kubelet.api.target import Log, Pods
from tensile.kubelet.api.use import show
from tensile.kubelet.api.wire import Limits, Wire, accept
from tensile.kubelet.usage.census import census, running_list
from tensile.kubelet.usage.exposition import MEDIA

_JSON = "application/json"


@dataclass
class Site:
    """One virtual node as it is served: its name, its pods, how many streams are open to them, and what they use.

    `connections` are those that were made to it, at whichever port.
    """

    node: str
    pods: Pods
    streams: int = 0
    meter: Meter | None = None
    connections: set[asyncio.Task[None]] = field(default_factory=set)

    async def close(self) -> None:
        """End every connection."""
        ending = tuple(self.connections)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)


class Gate(NamedTuple):
    """What decides who gets in: our certificate, the authority over theirs, and the two reviews."""

    serving: Serving
    authority: ClientAuthority
    authenticator: Authenticator
    authorizer: Authorizer


class _Visit(NamedTuple):
    """A request that was let in."""

    caller: Caller
    request: Request
    call: Call
    user: User


class Service:
    """Serves connections to any virtual node; holds nothing of them."""

    def __init__(self, gate: Gate, log: Log, limits: Limits) -> None:
        self._gate = gate
        self._log = log
        self._limits = limits
        self._complaints = Complaints(log, time.monotonic)
        self._streams = Streams(limits.streams)
        self._requests = Streams(limits.streams, "requests under way (pods, metrics, stats, health)")

    async def serve(self, connection: socket.socket, site: Site, guest: Guest) -> None:
        """Serve one connection to its end; `guest` leaves the door when the caller has shown who it is, and may."""
        with ExitStack() as until_taken_over:
            until_taken_over.callback(connection.close)
            authority = await self._gate.authority.pem()
            context = self._gate.serving.context(site.node, authority)
            until_taken_over.pop_all()
        try:
            wire = await accept(connection, context, self._limits, guest)
        except OSError as error:
            shown = self._gate.serving.shown(site.node)
            self._complaints.handshake(site.node, error, shown, self._gate.authority.which)
            return
        guest.advance(known=bool(wire.certificate))
        await self._converse(wire, site, guest, trusting=bool(authority))

    async def _converse(self, wire: Wire, site: Site, guest: Guest, *, trusting: bool) -> None:
        caller = Caller(wire, self._limits.head if guest.is_known else self._limits.unknown)
        try:
            request = await self._request(caller, guest)
            visit = await self._admit(caller, request, site.node, guest.origin if trusting else None)
            guest.be_admitted()
            await self._answer(visit, site)
        except Refused as refused:
            guest.advance(known=guest.is_known)
            await self._refuse(caller, refused.status, refused.message)
        except h11.RemoteProtocolError as error:
            guest.advance(known=guest.is_known)
            await self._refuse(caller, _blamed(error), str(error))
        except (OSError, Departed):
            wire.abort()
        else:
            await wire.close()
        finally:
            wire.abort()
            await wire.lost.wait()

    async def _request(self, caller: Caller, guest: Guest) -> Request:
        """Read the request, which has to come in time; TimeoutError if it does not."""
        async with asyncio.timeout(self._limits.asking):
            request = await caller.request()
        guest.advance(known=guest.is_known)
        return request

    async def _admit(self, caller: Caller, request: Request, node: str, origin: str | None) -> _Visit:
        """Establish that the sender of a request may make it; Refused (401, 403, 429, 503) if not.

        `origin` is the address that it is from, None where nobody is let in yet.
        """
        if origin is None:
            raise Refused(HTTPStatus.UNAUTHORIZED, "Unauthorized")
        certificate = caller.wire.certificate
        try:
            user = await self._gate.authenticator.user(certificate, request.headers, origin)
            call = routes.understand(request.method, request.target)
            await self._gate.authorizer.permit(user, routes.accesses(call), node)
        except Refused as refused:
            named = bool(certificate) or any(name == "authorization" for name, _ in request.headers)
            self._complaints.refused(node, refused, named=named)
            raise
        return _Visit(caller, request, call, user)

    async def _answer(self, visit: _Visit, site: Site) -> None:
        place = routes.place(visit.call)
        if place.pod:
            pod = f"{place.namespace}/{place.pod}"
            with self._streams.one_to(visit.user.name, site.node, pod, self._limits.portion):
                call = self._lower_call(visit, place, site)
                await self._stream(visit, call, site)
            return
        with self._requests.one(visit.user.name):
            await self._tell(visit, site)

    async def _tell(self, visit: _Visit, site: Site) -> None:
        """Answer what is asked about the node as a whole."""
        match visit.call.area:
            case routes.HEALTH:
                await visit.caller.reply(HTTPStatus.OK, b"ok")
            case routes.PODS:
                await visit.caller.reply(HTTPStatus.OK, site.pods.listed(), _JSON)
            case routes.RUNNING_PODS:
                await visit.caller.reply(HTTPStatus.OK, running_list(site.pods.running()), _JSON)
            case routes.METRICS if not visit.call.rest:
                await visit.caller.reply(HTTPStatus.OK, census(site.node, site.pods.running()), MEDIA)
            case _:
                await show(visit.caller, visit.call, site.meter)

    def _lower_call(self, visit: _Visit, place: routes.Place, site: Site) -> LowerCall:
        """Prepare what a call means below; 404 for a pod that is not ours, or not on this node."""
        target = site.pods.locate(place.namespace, place.pod)
        if target is None:
            raise Refused(
                HTTPStatus.NOT_FOUND, f"pod {place.namespace}/{place.pod} does not run through node {site.node}"
            )
        call = visit.call
        ask = ask_for(call, place, target, visit.request.headers)
        if call.area != routes.LOGS:
            who = {"user": visit.user.name, "node": site.node, "lower": target.cluster.name}
            command = command_of(call.query)
            size = {"command_words": len(command), "command_length": sum(map(len, command))}
            self._log.info(call.area, **who, **place._asdict(), **size)
        return LowerCall(target.cluster, ask, self._limits)

    async def _stream(self, visit: _Visit, call: LowerCall, site: Site) -> None:
        site.streams += 1
        try:
            if visit.call.area == routes.LOGS:
                await follow(visit.caller, call)
            else:
                await tunnel(visit.caller, call, self._limits)
        finally:
            site.streams -= 1

    async def _refuse(self, caller: Caller, status: int, message: str) -> None:
        """Say no and close, without waiting long; where an answer has begun, it is broken off instead."""
        if caller.unanswered:
            with suppress(OSError):
                async with asyncio.timeout(self._limits.leaving):
                    await caller.reply(status, message.encode(errors="replace"))
                    await caller.wire.close()


def _blamed(error: h11.RemoteProtocolError) -> int:
    """Give the status for what is no HTTP as we take it: the caller's fault, whatever it is."""
    hint: int = error.error_status_hint
    return hint if hint < HTTPStatus.INTERNAL_SERVER_ERROR else HTTPStatus.BAD_REQUEST
