"""Has the upper cluster issue a virtual node's serving certificate, and the next one before that ends.

A person or a controller of the cluster has to approve each request, which may take days or never happen. So nothing
waits for it: the node is served meanwhile, and the log says which command is missing.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple

from tensile.certificates import Pair
from tensile.cluster import Cluster
from tensile.errors import AlreadyExists, ClusterError, Denied, NotFound, Unauthorized
from tensile.kubelet.api.certs import Serving
from tensile.kubelet.api.signing import (
    LONGEST_NODE,
    Lack,
    Request,
    Standing,
    lacking,
    pause,
    renewal,
    request_for,
    standing,
)
from tensile.kubelet.api.target import Log
from tensile.objects import SIGNING_REQUEST, UPPER, Ref
from tensile.supervision import insist

REFUSED_SECONDS = 900.0
"""How long after a refusal the next request is made."""

_LOOK_SECONDS = 3600.0
_RIGHTS = "certificatesigningrequests.certificates.k8s.io"


class Clocks(NamedTuple):
    """The time of day, seconds that pass, and how to let some pass."""

    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    seconds: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


class Enrolment:
    """Keeps the certificates of virtual nodes; `run` is one node's, and never ends."""

    def __init__(self, upper: Cluster, serving: Serving, log: Log, clocks: Clocks | None = None) -> None:
        self._upper = upper
        self._serving = serving
        self._log = log
        self._clocks = clocks or Clocks()

    async def run(self, node: str) -> None:
        """Ask for a certificate, and again whenever the time has come."""
        if len(node) > LONGEST_NODE:
            advice = f"set kubelet.tlsCertFile and kubelet.tlsKeyFile, or a node.name of {LONGEST_NODE} characters"
            self._log.warning(
                "no serving certificate is asked for: the node's name is too long", node=node, advice=advice
            )
            return
        while True:
            pair = self._serving.issued(node)
            if pair is None or renewal(pair.certificate) <= self._clocks.now():
                await self._enrol(node)
            else:
                rest = (renewal(pair.certificate) - self._clocks.now()).total_seconds()
                await self._clocks.sleep(min(rest, _LOOK_SECONDS))

    async def _enrol(self, node: str) -> None:
        """Go the whole way of one request; a refusal is said, and rested after."""
        request = request_for(node, self._serving.address)
        try:
            await self._send(request)
            found = await self._awaited(node, request)
        except (Denied, Unauthorized) as error:
            advice = f"allow the engine to create and get {_RIGHTS}, or set kubelet.tlsCertFile and kubelet.tlsKeyFile"
            found = Standing(refusal=f"{error}: {advice}")
        except NotFound:
            found = Standing(refusal="the request was taken away, or the cluster takes none")
        if found.certificate:
            self._serving.take(node, Pair(found.certificate, request.key))
            self._log.info(
                "serving with the certificate that the upper cluster issued", node=node, request=request.name
            )
        else:
            self._log.warning("no serving certificate was issued", node=node, request=request.name, why=found.refusal)
            await self._clocks.sleep(REFUSED_SECONDS)

    async def _send(self, request: Request) -> None:
        """Make the request; an upper out of reach is tried until it answers."""
        begun = self._clocks.seconds()
        with suppress(AlreadyExists):
            await insist(
                lambda: self._upper.create(_ref(request), request.manifest),
                ClusterError,
                lambda: pause(self._clocks.seconds() - begun),
                unless=(AlreadyExists, Denied, Unauthorized),
                sleep=self._clocks.sleep,
            )

    async def _awaited(self, node: str, request: Request) -> Standing:
        """Look at the request until something came of it; NotFound when it was taken away."""
        begun, said = self._clocks.seconds(), Lack()
        while True:
            found = await self._seen(request)
            if found.certificate or found.refusal:
                return found
            waited = self._clocks.seconds() - begun
            lack = lacking(request.name, found, waited)
            if lack not in {Lack(), said}:
                said = lack
                self._log.warning("a serving certificate is awaited", node=node, waits_for=lack.what, do=lack.remedy)
            await self._clocks.sleep(pause(waited))

    async def _seen(self, request: Request) -> Standing:
        """Look at the request; an upper out of reach tells nothing."""
        try:
            return standing(await self._upper.read(_ref(request)), request.key)
        except (Denied, Unauthorized, NotFound):
            raise
        except ClusterError:
            return Standing()


def _ref(request: Request) -> Ref:
    return Ref(UPPER, SIGNING_REQUEST, "", request.name)
