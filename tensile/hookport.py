"""The webhook of the topology in force, as the engine holds it, and by itself (`tensile run --only webhook`).

By itself it needs nothing of the lower clusters, so none is opened: what it looks up is the upper's claims, and what
the descheduler has noted on the virtual nodes.
"""

import asyncio
from contextlib import suppress

import structlog

from tensile.cache import Cache
from tensile.cluster import Selection
from tensile.errors import TensileError
from tensile.feeds import node_feed
from tensile.joined import Ways
from tensile.kube.access import SERVICE_ACCOUNT
from tensile.kube.fleet import Feed, Fleet
from tensile.names import owner_of
from tensile.objects import CLAIM, UPPER
from tensile.policy.webhook import Hooks, WebhookServer
from tensile.reconcile import claims
from tensile.reconcile.observed import digest_mark
from tensile.supervision import supervised
from tensile.topology import Topology

_CONNECTIONS = 4
_log = structlog.get_logger("tensile.webhook")


class HookPort:
    """The webhook beside what else runs; the cache of claims in `home` is fed while it is served."""

    def __init__(self, home: Hooks, fleet: Fleet) -> None:
        self.server = WebhookServer(home)
        self._feed = Feed(UPPER, CLAIM, Selection(), home.claims)
        self._fleet = fleet
        self._task: asyncio.Task[None] | None = None

    async def open(self, topology: Topology) -> None:
        """Begin; raises TensileError when the port cannot be had."""
        await self.server.serve(topology)
        self._follow(topology)
        self._task = supervised("webhook", self.server.run)

    async def serve(self, topology: Topology) -> None:
        """Do from now on as a topology says; where that is not possible it is said, and all is as before."""
        try:
            await self.server.serve(topology)
            self._follow(topology)
        except TensileError as error:
            _log.error("the webhook stays as it is", error=str(error))

    async def close(self) -> None:
        """Serve no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.server.close()

    def _follow(self, topology: Topology) -> None:
        if topology.webhook.enabled:
            self._fleet.ensure(self._feed)


class WebhookAlone:
    """The webhook of a topology and nothing else; used inside one event loop."""

    port: HookPort

    def __init__(self, topology: Topology, ways: Ways, fleet: Fleet) -> None:
        self.topology = topology
        self.is_running = False
        self._ways = ways
        self._fleet = fleet

    async def start(self) -> None:
        """Start; returns when the upper cluster has answered. TensileError: bad credentials, or a port is taken."""
        if not self.topology.webhook.enabled:
            raise TensileError("webhook.enabled is false: there is nothing to run with --only webhook")
        upper = self.topology.upper
        access = await self._ways.upper_access(upper)
        cluster = self._fleet.open(
            UPPER, access, qps=upper.qps, burst=upper.burst, connections=_CONNECTIONS, anchored=True
        )
        owner = owner_of(await self._fleet.identified(UPPER), self.topology.name)
        known, nodes = Cache(claims.digest, claims.INDEXES), Cache(digest_mark)
        self._fleet.follow(node_feed(nodes))
        home = Hooks(cluster, owner, self._ways.directory, known, nodes, own_namespace())
        self.port = HookPort(home, self._fleet)
        await self.port.open(self.topology)
        self.is_running = True

    async def stop(self) -> None:
        """Stop; what is registered stays."""
        if hasattr(self, "port"):
            await self.port.close()
        await self._fleet.close_all()

    async def reload(self, topology: Topology) -> None:
        """Put another topology in force; its name and upper are those of the one in force."""
        self.topology = topology
        await self.port.serve(topology)

    def missing(self) -> str:
        """Say why it is not ready, "" when it is."""
        return self.port.server.waits() if self.is_running else "the upper cluster has not answered yet"


def own_namespace() -> str:
    """Give the namespace that this program runs in, "" where it runs in no cluster."""
    with suppress(OSError):
        return (SERVICE_ACCOUNT / "namespace").read_text().strip()
    return ""
