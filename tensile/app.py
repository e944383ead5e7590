"""The engine as one running thing: wires all parts, takes ports, fills caches, runs the loop; stops in reverse.

It starts in two steps. One that stands by follows the upper cluster and serves the webhook; one that drives does the
rest too, so that what takes the place of another has the upper's objects at hand already.
What changes while it runs comes in by `reload`: lowers join, change or leave one by one, and what did not change is
not touched, open streams included.
"""

import asyncio
import random

import structlog

from tensile.clusters import Clusters, utc_now
from tensile.extending import Extending
from tensile.hookport import HookPort, own_namespace
from tensile.joined import Joined, Ways
from tensile.kube.fleet import Fleet
from tensile.kubelet import node
from tensile.kubelet.mirrored import MirroredPods
from tensile.nodeaddress import node_address
from tensile.nodeports import NodePorts
from tensile.objects import CLAIM, UPPER
from tensile.policy.webhook import Hooks
from tensile.reconcile.alias import form
from tensile.reconcile.loop import Loop, Observer, Timing
from tensile.reconcile.observed import has_node
from tensile.reconcile.patience import LONGEST_REST
from tensile.rules import rules
from tensile.supervision import supervised
from tensile.topology import Lower, Topology
from tensile.world import LowerWorld, World

_LOOK = 1.0
_REJOIN = ("kubeconfig", "context", "qps", "burst", "kubeconfig_secret", "namespaces")
_log = structlog.get_logger("tensile.app")


class Engine:
    """Drives the clusters of a topology until it is stopped; used inside one event loop."""

    loop: Loop
    ports: NodePorts
    hook: HookPort
    extender: Extending

    def __init__(self, topology: Topology, ways: Ways, observer: Observer, fleet: Fleet) -> None:
        self.topology = topology
        self._ways = ways
        self._observer = observer
        self.clusters = Clusters(fleet, ways, self._wake, beat=True, busy=self._is_busy)
        self._tasks: list[asyncio.Task[None]] = []
        self._opened: set[str] = set()
        self._silent: set[str] = set()
        self._stands_by = False
        self._leads = True
        self._changing = asyncio.Lock()

    @property
    def is_running(self) -> bool:
        """Whether `start` or `stand_by` has come through."""
        return self._stands_by or self.drives

    @property
    def drives(self) -> bool:
        """Whether `drive` has come through."""
        return bool(self._tasks)

    async def start(self) -> None:
        """Start; returns when the upper cluster has answered. TensileError: bad credentials, or a port is taken."""
        await self._open()
        await self.drive()

    async def stand_by(self) -> None:
        """Start with what another engine that drives is not hindered by; else like `start`."""
        self._leads = False
        await self._open()
        self._stands_by = True

    async def _open(self) -> None:
        await self.clusters.open_upper(self.topology)
        self.ports = self._ports(self.topology)
        await self.ports.open(self.topology)
        world = await self.clusters.make_world(self.topology, self._address(self.topology))
        _say_without_alias(world)
        self.hook = HookPort(self._home_of_webhook(world), self.clusters.fleet)
        await self.hook.open(self.topology)
        self.extender = Extending(world, self.clusters.connections[UPPER], self._ways.directory)
        timing = Timing(utc_now, random.random)
        self.loop = Loop(world, rules(), self.clusters.connections, self._observer, timing)

    async def drive(self) -> None:
        """Join the lowers and drive them from now on; raises TensileError: the extender's port is taken.

        Only one that drives serves the extender: another knows nothing of the lowers, and would let everything pass.
        """
        async with self._changing:
            if not self._leads:
                self._leads = True
                await self.hook.serve(self.topology)
            await self.extender.open(self.topology)
            for spec in self.topology.lowers:
                await self._join(spec)
            self._tasks = [supervised("lookout", self._keep_looking)]

    async def stop(self) -> None:
        """Stop, in reverse; what is in flight is given up."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for name in tuple(self._opened):
            await self.loop.close(name)
        if hasattr(self, "extender"):
            await self.extender.close()
        if hasattr(self, "hook"):
            await self.hook.close()
        if hasattr(self, "ports"):
            await self.ports.close()
        await self.clusters.close()

    async def reload(self, topology: Topology) -> None:
        """Put another topology in force, lower by lower; its name and upper are those of the one in force."""
        async with self._changing:
            await self._reload(topology)

    async def look(self) -> None:
        """Watch over silence, and see lowers off that have left the topology and are empty; done every second.

        Never in the middle of a reload, when a lower that is opened anew looks like one that nobody has.
        """
        async with self._changing:
            await self._look()

    async def _reload(self, topology: Topology) -> None:
        kubelet = self.topology.kubelet
        self.topology = self.clusters.world.topology = topology
        if topology.kubelet != kubelet:
            await self._renew_ports()
        await self.hook.serve(topology)
        if self.drives:
            await self._reload_lowers(topology)
        self.clusters.follow_controllers()
        if self.drives:
            await self.extender.serve(topology)
        await self.clusters.leave_places()
        for name in tuple(self._opened):
            self._wake(name)

    async def _reload_lowers(self, topology: Topology) -> None:
        """Have lowers join, change and leave as a topology says."""
        wanted = {spec.name: spec for spec in topology.lowers}
        for name, joined in tuple(self.clusters.joined.items()):
            if name not in wanted:
                joined.lower.in_topology = False
        for spec in topology.lowers:
            joined_now = self.clusters.joined.get(spec.name)
            if joined_now is None:
                await self._join(spec)
            else:
                await self._change(joined_now, spec)

    def _home_of_webhook(self, world: World) -> Hooks:
        upper, claims = self.clusters.connections[UPPER], world.upper.more[CLAIM]
        nodes, home = world.upper.nodes, self._ways.directory
        return Hooks(upper, world.owner, home, claims, nodes, own_namespace(), lambda: self._leads)

    def _ports(self, topology: Topology) -> NodePorts:
        upper = self.clusters.connections[UPPER]
        return NodePorts(topology, self._ways.directory, upper, self._address(topology))

    def _address(self, topology: Topology) -> str:
        return node_address(topology, self.clusters.upper_address)

    async def _renew_ports(self) -> None:
        """Serve all nodes anew, as other certificates or another address ask for; what is open ends."""
        await self.ports.close()
        self.ports = self._ports(self.topology)
        self.clusters.world.node_address = self._address(self.topology)
        for joined in self.clusters.joined.values():
            if joined.lower.connected:
                await self._serve(joined)

    async def _change(self, joined: Joined, spec: Lower) -> None:
        """Give a lower that goes on its new fields; only what asks for it is opened again."""
        known = joined.lower.spec
        if spec.namespaces != known.namespaces and not _is_free(joined.lower):
            _log.error(
                "namespaces.mapping cannot change while pods are mirrored: the old mapping stays in force",
                lower=spec.name,
                mapping=known.namespaces.mapping,
            )
            spec = spec.model_copy(update={"namespaces": known.namespaces})
        if spec.node.name != known.node.name:
            await self._rename(joined, spec)
        elif any(getattr(known, field) != getattr(spec, field) for field in _REJOIN):
            await self._leave(spec.name)
            await self._join(spec)
        else:
            joined.lower.spec, joined.lower.in_topology = spec, True
            await self._serve(joined)

    async def _rename(self, joined: Joined, spec: Lower) -> None:
        """Have the old node go, and the new one come once it is gone; not while pods are bound to it."""
        if not _is_free(joined.lower):
            _log.error(
                "node.name cannot change while pods are mirrored: the old name stays in force",
                lower=spec.name,
                node=joined.lower.node,
            )
        else:
            joined.lower.in_topology = False

    async def _join(self, spec: Lower, *, connect: bool = True) -> None:
        joined = self.clusters.join(spec, connect=connect)
        if connect:
            await self._serve(joined)
        self.loop.open(spec.name)
        self._opened.add(spec.name)
        self.extender.follow()

    async def _leave(self, name: str) -> None:
        node = self.clusters.joined[name].lower.node
        self._opened.discard(name)
        await self.loop.close(name)
        await self.clusters.leave(name)
        await self.ports.stop(node)
        self.extender.follow()

    async def _serve(self, joined: Joined) -> None:
        lower, connections = joined.lower, self.clusters.connections
        pods = MirroredPods(lower, self.clusters.world.owner, lambda: connections.get(lower.name))
        await self.ports.serve(self.topology, lower.node, lower.spec.node.kubelet_port, pods, joined.meter)

    async def _keep_looking(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(_LOOK)

    async def _look(self) -> None:
        self._greet()
        for name in self.extender.relieved():
            self.loop.wake(name, node.NAME)
        for stray in self.clusters.strays():
            await self._join(stray, connect=False)
        for name, joined in tuple(self.clusters.joined.items()):
            if joined.look():
                self._wake(name)
            if self._has_gone(joined):
                await self._leave(name)
                spec = next((one for one in self.topology.lowers if one.name == name), None)
                if spec is not None:
                    await self._join(spec)

    def _greet(self) -> None:
        """Have tried at once what rests, when a cluster answers again that did not."""
        fleet = self.clusters.fleet
        silent = {name for name in fleet.names() if fleet.silent(name)}
        if self._silent - silent:
            self.loop.hasten(LONGEST_REST)
        self._silent = silent

    def _has_gone(self, joined: Joined) -> bool:
        """Say whether a lower that left has no pods and no node any more, and what they needed has been taken back."""
        lower, nodes = joined.lower, self.clusters.world.upper.nodes
        gone = nodes.synced and not has_node(lower, self.clusters.world)
        return gone and not lower.in_topology and lower.is_empty and not self._is_busy(lower.name)

    def _is_busy(self, name: str) -> bool:
        return bool(self.loop.depth.get(name))

    def _wake(self, name: str) -> None:
        if name in self._opened:
            self.loop.wake(name)


def _is_free(lower: LowerWorld) -> bool:
    """Say whether no pods are mirrored, so that they may be found by other names from now on."""
    return not lower.is_bound and not len(lower.pods)


def _say_without_alias(world: World) -> None:
    """Tell that pods below find no Service of the upper cluster, where they could have one."""
    server = world.upper_server
    if "Service" in world.topology.enabled and (server is None or not form(server)):
        _log.info(
            "no Service leads to the upper cluster: set upper.advertiseURL to where pods below reach it",
            service=world.topology.services.upper_alias,
            address=server.host if server else "inside its cluster",
        )
