"""The webhook of the topology in force, as the engine holds it, and by itself (`tensile run --only webhook`).

By itself it needs nothing of the lower clusters, so none is opened: what it looks up is the upper's claims, and what
the descheduler has noted on the virtual nodes.
"""

import asyncio
from contextlib import suppress

from tensile.cache import Cache
from tensile.cluster import Selection
from tensile.errors import TensileError
from tensile.feeds import node_feed
from tensile.inforce import InForce
from tensile.joined import Ways
from tensile.kube.access import SERVICE_ACCOUNT
from tensile.kube.fleet import Feed, Fleet
from tensile.names import owner_of
from tensile.objects import CLAIM, UPPER
from tensile.policy.webhook import Hooks, WebhookServer
from tensile.reconcile import claims
from tensile.reconcile.observed import digest_node
from tensile.supervision import supervised
from tensile.topology import Topology

_CONNECTIONS = 4


class HookPort:
    """The webhook beside what else runs; the cache of claims in `home` is fed while it is served."""

    def __init__(self, home: Hooks, fleet: Fleet) -> None:
        self.server = WebhookServer(home)
        self._feed = Feed(UPPER, CLAIM, Selection(), home.claims)
        self._fleet = fleet
        self._task: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port that it listens on, 0 for none."""
        return self.server.port

    async def open(self, topology: Topology) -> None:
        """Do from now on as a topology says; raises TensileError, and all is as before, where that is not possible."""
        await self.server.serve(topology)
        if topology.webhook.enabled:
            self._fleet.ensure(self._feed)
        if self._task is None:
            self._task = supervised("webhook", self.server.run)

    async def close(self) -> None:
        """Serve no more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self.server.close()


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
        known, nodes = Cache(claims.digest, claims.INDEXES), Cache(digest_node)
        self._fleet.follow(node_feed(nodes))
        home = Hooks(cluster, owner, self._ways.directory, known, nodes, self._fleet.watcher, own_namespace())
        self.port = HookPort(home, self._fleet)
        self._in_force = InForce("webhook", self.port)
        await self._in_force.open(self.topology)
        self.is_running = True

    async def stop(self) -> None:
        """Stop; what is registered stays."""
        if self.is_running:
            await self._in_force.close()
        await self._fleet.close_all()

    async def reload(self, topology: Topology) -> None:
        """Put another topology in force; its name and upper are those of the one in force."""
        self.topology = topology
        await self._in_force.follow(topology)

    @property
    def pending(self) -> tuple[str, ...]:
        """What of the topology is not in force yet, in words."""
        return self._in_force.pending if self.is_running else ()

    def missing(self) -> str:
        """Say why it is not ready, "" when it is."""
        return self.port.server.waits() if self.is_running else "the upper cluster has not answered yet"


def own_namespace() -> str:
    """Give the namespace that this program runs in, "" where it runs in no cluster."""
    with suppress(OSError):
        return (SERVICE_ACCOUNT / "namespace").read_text().strip()
    return ""
