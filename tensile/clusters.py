"""The clusters of a topology, opened: the world that their caches make up, and the connections for writing.

The same for the engine and for a command that runs once; what is done with the world is theirs.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tensile.cluster import Cluster
from tensile.descriptors import parts, soft_limit
from tensile.feeds import lower_feeds, place_caches, upper_feeds, upper_world
from tensile.joined import Joined, Ways, left_behind
from tensile.kube.fleet import Fleet
from tensile.kube.health import Objection
from tensile.kube.tokenclaims import account_namespace
from tensile.names import LOWER_UID, owner_of
from tensile.objects import UPPER, annotations
from tensile.reconcile.alias import server_of
from tensile.reconcile.observed import is_ours
from tensile.topology import Lower, Topology
from tensile.world import World

if TYPE_CHECKING:
    from tensile.kube.access import Access


class Connections(Mapping[str, Cluster]):
    """The open connections by cluster name, as of now; UPPER included."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def __getitem__(self, name: str) -> Cluster:
        return self._fleet.cluster(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._fleet.names())

    def __len__(self) -> int:
        return len(self._fleet.names())


def utc_now() -> datetime:
    """Give the time."""
    return datetime.now(UTC)


class Clusters:
    """The upper cluster and the lowers joined to it. `wake` has everything of one lower looked at again.

    With `beat`, leases of the virtual nodes are renewed; with `busy`, events are carried up while it denies that there
    are better things to do for a lower.
    """

    def __init__(
        self,
        fleet: Fleet,
        ways: Ways,
        wake: Callable[[str], None],
        *,
        beat: bool,
        busy: Callable[[str], bool] | None = None,
    ) -> None:
        self.fleet = fleet
        self.connections = Connections(fleet)
        self.joined: dict[str, Joined] = {}
        self.ways = ways
        self._wake = wake
        self._beat = beat
        self._busy = busy
        self._access: Access
        fleet.heed(self._claimed)

    async def open_upper(self, topology: Topology) -> Cluster:
        """Begin to follow the upper cluster, whether it answers or not; raises AccessError for bad credentials."""
        upper = topology.upper
        self._access = await self.ways.upper_access(upper)
        calls = parts(len(topology.lowers), soft_limit()).upper_calls
        return self.fleet.open(UPPER, self._access, qps=upper.qps, burst=upper.burst, connections=calls, anchored=True)

    @property
    def upper_address(self) -> tuple[str, int]:
        """Where the upper's apiserver is reached: host and port."""
        return self._access.address, self._access.port

    async def make_world(self, topology: Topology, node_address: str) -> World:
        """Wait for the upper cluster and give the world, with no lowers in it yet."""
        owner = owner_of(await self.fleet.identified(UPPER), topology.name)
        upper = upper_world()
        upper.account = account_namespace(self._access)
        inside = self.ways.is_inside(topology.upper)
        server = server_of(topology.upper.advertise_url, None if inside else self.upper_address)
        self.world = World(topology, owner, upper, utc_now(), node_address, server)
        self.follow_controllers()
        return self.world

    def follow_controllers(self) -> None:
        """Follow what the topology's controllers need, beside what is followed already; nothing is left again.

        A controller that was switched off has yet to take back what it made.
        """
        world = self.world
        for feed in upper_feeds(world.upper, world.owner, world.topology.enabled):
            self.fleet.ensure(feed)
        for lower in world.lowers.values():
            if lower.name in self.fleet.names():
                for feed in lower_feeds(lower, world.owner, places=world.topology.places):
                    self.fleet.ensure(feed)
        for joined in self.joined.values():
            joined.hear_events()

    async def leave_places(self) -> None:
        """Follow what placement needs no more, and keep nothing of it, where nothing asks where pods fit."""
        for lower in () if self.world.topology.places else self.world.lowers.values():
            for cache in lower.place_caches():
                await self.fleet.leave(lower.name, cache)
            lower.place_nodes, lower.place_pods = place_caches()

    def join(self, spec: Lower, *, connect: bool = True, remaps: bool = False) -> Joined:
        """Begin with a lower, whether it answers or not; without `connect`, with one that was left behind.

        One that `remaps` is empty, and takes the mapping of namespaces that its topology asks for.
        """
        joined = Joined(self.world, self.fleet, self.ways, utc_now, self._wake)
        self.joined[spec.name] = joined
        joined.begin(spec, beat=self._beat, connect=connect, remaps=remaps, busy=self._busy)
        return joined

    def strays(self) -> list[Lower]:
        """Give a lower for each of our Nodes that no lower has: what an engine left behind that is not running."""
        known = {joined.lower.node for joined in self.joined.values()}
        nodes = [entry.manifest() for entry in self.world.upper.nodes if entry.name not in known]
        return [left_behind(node) for node in nodes if is_ours(node, self.world.owner)]

    def _claimed(self, name: str, identity: str) -> Objection | None:
        """Return why the cluster of an identity may not be a lower: one that left the topology still has pods there.

        The Node of that lower notes the identity, whether this engine joined it or an earlier one.
        """
        if name == UPPER:  # there is no world before it answers
            return None
        world = self.world
        for entry in world.upper.nodes:
            holder = next((lower for lower in world.lowers.values() if lower.node == entry.name), None)
            if holder is not None and (holder.in_topology or holder.name == name or holder.is_vacant):
                continue
            node = entry.manifest()
            if annotations(node).get(LOWER_UID) != identity or not is_ours(node, world.owner):
                continue
            what = f"the cluster of node {entry.name}, which is in the topology no more and has pods there"
            return Objection(what, f"to go on with them, write node: {{name: {entry.name}}} for lower {name}")
        return None

    async def leave(self, name: str) -> None:
        """Leave a lower."""
        await self.joined.pop(name).end()

    async def close(self) -> None:
        """Leave every lower and close every connection."""
        for name in tuple(self.joined):
            await self.leave(name)
        await self.fleet.close_all()
