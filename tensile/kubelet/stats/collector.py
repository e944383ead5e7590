"""Fetch what a virtual node and its pods use from the lower's metrics API, only when a reader requests it.

The requests use connections of their own, like streams: readers come every few seconds and may request much, and must
not delay the engine's own requests to the cluster. Large responses are decoded in a thread, so that the event loop goes
on meanwhile. An answer is cached for some seconds, errors too, since the samples behind it are no fresher.

metrics-server logs only the status line of a response. So an error's reason is also put into the status line, where an
operator who misses figures finds it.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from http import HTTPStatus
from urllib.parse import urlencode

import h11

from tensile.kube.cluster import Cluster
from tensile.kubelet.api import routes
from tensile.kubelet.api.connection import ConnectionLimits
from tensile.kubelet.api.http import PLAIN, ServerExchange, while_present
from tensile.kubelet.api.lower_request import LowerExchange
from tensile.kubelet.api.pods import Log, MirroredPods
from tensile.kubelet.api.requests import LowerRequest
from tensile.kubelet.api.routes import APICall, HTTPError
from tensile.kubelet.stats.output import MEDIA, cadvisor_exposition, exposition, summary
from tensile.kubelet.stats.usage import (
    NODE_METRICS,
    POD_METRICS,
    CPUCounters,
    RunningPod,
    UsageReport,
    node_samples,
    picture,
    pod_samples,
    runner,
    whole,
)
from tensile.names import OWNER, Owner
from tensile.objects import Kind
from tensile.reconcile.world import LowerWorld

FRESH_SECONDS = 5.0
PATIENCE_SECONDS = 8.0
"""Seconds after which a reader gets an error: metrics-server gives up after ten."""
_LARGEST, _PER_POD, _PER_NODE = 1 << 20, 32 << 10, 8 << 10
"""Maximum bytes of a response: a fixed part, and a part for each pod of ours or lower node, labels included."""
_AT_ONCE = 100
_JSON = "application/json"
_REASON_AT_MOST = 400


class StatsCollector:
    """The usage of one virtual node; there is one for as long as the node exists, since its counters must only grow."""

    def __init__(
        self,
        lower: LowerWorld,
        owner: Owner,
        cluster: Callable[[], Cluster | None],
        log: Log,
        *,
        limits: ConnectionLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lower = lower
        self._pods = MirroredPods(lower, owner, cluster)
        self._query = urlencode({"labelSelector": f"{OWNER}={owner.mark}"})
        self._cluster = cluster
        self._log = log
        self._limits = limits or ConnectionLimits()
        self._clock = clock
        self._ledger = CPUCounters()
        self._asking = asyncio.Lock()
        self._known: UsageReport | HTTPError | None = None
        self._until = 0.0
        self._said = ""

    async def picture(self) -> UsageReport:
        """Return the usage of the node and its pods, at most some seconds old; raise HTTPError where it is unknown."""
        async with self._asking:
            if self._known is None or self._clock() >= self._until:
                self._known = await self._measured()
                self._until = self._clock() + FRESH_SECONDS
                self._tell(self._known)
        if isinstance(self._known, HTTPError):
            raise HTTPError(self._known.status, self._known.message)
        return self._known

    async def _measured(self) -> UsageReport | HTTPError:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                most = _LARGEST + _PER_NODE * len(self._lower.nodes)
                nodes = node_samples(await self._asked(NODE_METRICS, most))
                most = _LARGEST + _PER_POD * len(self._lower.pods)
                pods = await asyncio.to_thread(pod_samples, await self._asked(POD_METRICS, most, self._query))
        except HTTPError as refused:
            return self._absent() if refused.status is HTTPStatus.NOT_FOUND else refused
        except TimeoutError:
            return self._failed(HTTPStatus.GATEWAY_TIMEOUT, "no response in time")
        except (OSError, h11.RemoteProtocolError) as error:
            return self._failed(HTTPStatus.BAD_GATEWAY, str(error) or type(error).__name__)
        except (ValueError, RecursionError) as error:
            return self._failed(HTTPStatus.BAD_GATEWAY, f"invalid response: {error}")
        return picture(self._lower.node, whole(nodes), await self._runners(), pods, self._ledger)

    async def _asked(self, kind: Kind, most: int, query: str = "") -> bytes:
        """Return the list of a metrics kind; raise HTTPError, ValueError, or an error of the connection.

        More than `most` bytes are refused: they describe pods and nodes that do not exist.
        """
        cluster = self._cluster()
        if cluster is None:
            raise self._failed(HTTPStatus.SERVICE_UNAVAILABLE, "the cluster is not connected yet")
        body = bytearray()
        ask = LowerRequest(f"list {kind.name}", "GET", kind.path(), query)
        async with aclosing(LowerExchange(cluster, ask, self._limits)) as call:
            await call.answer(HTTPStatus.OK)
            async for piece in call.pieces():
                body += piece
                if len(body) > most:
                    raise ValueError(f"more than {most:,} bytes")
        return bytes(body)

    async def _runners(self) -> list[RunningPod]:
        """Return the running pods; yield to the event loop at intervals, as there may be thousands."""
        found: list[RunningPod] = []
        for count, (upper, below) in enumerate(self._pods.pairs()):
            if count % _AT_ONCE == 0:
                await asyncio.sleep(0)
            found.append(runner(upper, below))
        return found

    def _absent(self) -> HTTPError:
        return HTTPError(
            HTTPStatus.NOT_FOUND,
            f"{self._lower.name} has no metrics API (metrics.k8s.io): install metrics-server there to measure its pods",
        )

    def _failed(self, status: HTTPStatus, why: str) -> HTTPError:
        return HTTPError(status, f"{self._lower.name}: metrics API: {why}")

    def _tell(self, known: UsageReport | HTTPError) -> None:
        """Log once that usage is not available and why, and once that it is available again."""
        words = known.message if isinstance(known, HTTPError) else ""
        if words == self._said:
            return
        self._said = words
        if words:
            self._log.warning("usage of a virtual node cannot be read", node=self._lower.node, why=words)
        else:
            self._log.info("usage of a virtual node can be read again", node=self._lower.node)


async def show(caller: ServerExchange, call: APICall, meter: StatsCollector | None) -> None:
    """Answer with the usage of a node and its pods, or with the reason why it is not known.

    cAdvisor's metrics then say so themselves, as in a kubelet: its page is never missing, whatever cannot be measured.
    """
    is_cadvisor = call.rest == routes.CADVISOR
    try:
        found = await while_present(caller.wire, _picture(meter))
    except HTTPError as refused:
        if is_cadvisor:
            await caller.reply(HTTPStatus.OK, cadvisor_exposition(None), MEDIA)
            return
        await caller.reply(refused.status, f"{refused.message}\n".encode(), PLAIN, reason(refused.message))
        return
    if call.area == routes.STATS:
        await caller.reply(HTTPStatus.OK, await asyncio.to_thread(summary, found), _JSON)
    else:
        text = await asyncio.to_thread(cadvisor_exposition if is_cadvisor else exposition, found)
        await caller.reply(HTTPStatus.OK, text, MEDIA)


async def _picture(meter: StatsCollector | None) -> UsageReport:
    if meter is None:
        raise HTTPError(HTTPStatus.NOT_FOUND, "no usage of this node has been read yet")
    return await meter.picture()


def reason(message: str) -> str:
    """Return a text that is valid in a status line: printable ASCII of limited length."""
    return "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in message[:_REASON_AT_MOST])
