"""The engine: it wires all parts, opens ports, fills caches, runs the loop, and stops in reverse order.

It starts in two steps. A standby watches the upper cluster, serves the webhook, opens the kubelet ports and requests
their certificates. The leader does everything else as well. So a standby that takes over has the upper objects in its
caches already.

Changes while it runs arrive by `reload`: lower clusters join, change or leave one by one. What did not change is not
touched, and its open streams continue.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

from tensile.engine.caches import rules
from tensile.engine.clusters import Clusters, CredentialChecks, node_address, own_namespace, utc_now
from tensile.engine.extender_server import ExtenderServer
from tensile.engine.kubelet_server import KubeletServers, endpoints_of, noted_ports
from tensile.engine.leader_election import new_identity
from tensile.engine.lower import ClusterAccess, LowerConnection
from tensile.engine.lower_transitions import Action, Transition, defer, has_to_map, plan_transition, removed_lowers
from tensile.engine.tracing import PodTraces, SyncLatency
from tensile.errors import Denied, TensileError
from tensile.kube.cluster import Cluster, Selection
from tensile.kube.fleet import Fleet, InformerSpec
from tensile.kube.net import cancel_and_wait, supervised
from tensile.kubelet.api.requests import MirroredPods
from tensile.kubelet.api.server import NodeEndpoint
from tensile.kubelet.node import rule
from tensile.objects import CLAIM, UPPER
from tensile.policy.webhook.admission_policy import PolicyRegistration
from tensile.policy.webhook.server import WebhookContext, WebhookServer
from tensile.reconcile.backoff import MAX_DELAY
from tensile.reconcile.loop import Loop, Observer, Timing
from tensile.reconcile.ownership import has_node
from tensile.reconcile.rules.services import form
from tensile.reconcile.world import LowerWorld, World
from tensile.topology import Lower, Topology
from tensile.topology.diff import concerns_all

_CHECK_INTERVAL = 1.0
_RESPONSE_TIMEOUT = 3.0
"""Seconds to wait for the upper cluster where a kubelet port is in use."""
_log = structlog.get_logger("tensile.engine.engine")


class WebhookPort:
    """The webhook on its port; the cache of claims in `context` is filled from when it is first enabled."""

    def __init__(self, context: WebhookContext, fleet: Fleet) -> None:
        self.server = WebhookServer(context)
        self._feed = InformerSpec(UPPER, CLAIM, Selection(), context.claims)
        self._fleet = fleet
        self._task: asyncio.Task[None] | None = None

    async def open(self, topology: Topology) -> None:
        """Serve as a topology says; raises TensileError if that is not possible yet: it is tried again."""
        if topology.webhook.enabled:
            self._fleet.follow(self._feed)
        if self._task is None:
            self._task = supervised("webhook", self.server.run)
        await self.server.serve(topology)

    async def close(self) -> None:
        """Stop serving."""
        task, self._task = self._task, None
        await cancel_and_wait(task)
        await self.server.close()


ReadAcceptedTopology = Callable[[Cluster, str], Awaitable[Topology]]
"""Returns the accepted topology, as the upper cluster of a UID knows it."""


class Engine:
    """Runs the clusters of a topology until it is stopped; used inside one event loop.

    `latency` is how long pods take from one cluster to the other. `traces` follows their starts, if that is wanted.
    """

    loop: Loop
    ports: KubeletServers
    webhook: WebhookPort
    extender: ExtenderServer
    admission: PolicyRegistration
    credential_checks: CredentialChecks

    def __init__(
        self,
        topology: Topology,
        access: ClusterAccess,
        observer: Observer,
        fleet: Fleet,
        traces: PodTraces | None = None,
        *,
        find_address: Callable[[Topology, tuple[str, int]], str] = node_address,
    ) -> None:
        self.topology = topology
        self._find_address = find_address
        self._access = access
        self._observer = observer
        self.identity = new_identity()
        self.clusters = Clusters(fleet, access, self._wake, engine=self.identity, busy=self._is_busy)
        self.latency = SyncLatency()
        self._traces = traces
        self._tasks: list[asyncio.Task[None]] = []
        self._opened: set[str] = set()
        self._unreachable: set[str] = set()
        self._is_open = False
        self._may_lead = True
        self._changing = asyncio.Lock()
        self._deferred: tuple[str, ...] = ()
        self._parts: tuple[WebhookPort | ExtenderServer, ...] = ()

    @property
    def pending(self) -> tuple[str, ...]:
        """Parts of the topology that are not active yet, one message each."""
        pending_parts = (
            (*self.ports.pending, *self.webhook.server.unregistered, *self.extender.pending) if self._parts else ()
        )
        return (*self._deferred, *pending_parts)

    @property
    def is_running(self) -> bool:
        """Whether `start`, `open` or `standby` has succeeded; also after `stop`."""
        return self._is_open or self.is_leader

    @property
    def is_leader(self) -> bool:
        """Whether `lead` has succeeded, so that this engine leads."""
        return bool(self._tasks)

    async def start(self) -> None:
        """Start and lead; return when the upper cluster has responded.

        Raises TensileError for bad credentials or a port in use.
        """
        await self.open()
        await self.lead()

    async def open(self, accepted: ReadAcceptedTopology | None = None) -> None:
        """Do the first half of `start`: return when the upper cluster has responded, without leading yet.

        `accepted` returns the topology to start on, if only the upper cluster knows it. Raises TensileError for bad
        credentials or a port in use.
        """
        await self._open(accepted)
        self._is_open = True

    async def standby(self, accepted: ReadAcceptedTopology | None = None) -> None:
        """Start like `open`, but without what would conflict with another engine that leads."""
        self._may_lead = False
        await self._open(accepted)
        self._is_open = True

    async def _open(self, accepted: ReadAcceptedTopology | None) -> None:
        await self.clusters.open_upper(self.topology)
        self.ports = self._ports(await self._address())
        world = await self._make_world()
        if not world.node_address:  # the upper cluster's name was not resolved before it responded
            await self._renew_ports()
        if accepted is not None:
            await self._use_accepted(await accepted(self.clusters.connections[UPPER], world.owner.upper))
        _log_missing_alias(world)
        self.webhook = WebhookPort(self._webhook_context(world), self.clusters.fleet)
        self.extender = ExtenderServer(
            world, self.clusters.connections[UPPER], self._access.directory, self.clusters.fleet.watcher
        )
        self._parts = (self.webhook, self.extender)
        inside = own_namespace(self._access.account)
        self.admission = PolicyRegistration(self.clusters.connections[UPPER], world.owner, inside)
        await self.webhook.open(self.topology)
        timing = Timing(utc_now, random.random)
        self.credential_checks = CredentialChecks(
            lambda spec: self._access.lower_access(spec, world.upper.secrets), self.clusters.fleet.watcher
        )
        self.loop = Loop(world, rules(), self.clusters.connections, self._observer, timing)
        with suppress(Denied):  # without Nodes to be read there are none to be served
            await self.clusters.fleet[UPPER].listed(world.upper.nodes)
        endpoints = self._endpoints()
        await self.ports.open(endpoints)
        self.ports.request_certificates(endpoints)

    async def _use_accepted(self, topology: Topology) -> None:
        """Use the accepted topology, before anything is done for the one that was read."""
        before, self.topology = self.topology, topology
        self.clusters.world.topology = topology
        if topology.kubelet != before.kubelet:
            await self._renew_ports()
        self.clusters.follow_controllers()

    async def _make_world(self) -> World:
        """Return the world when the upper cluster has responded; raises TensileError for a port in use.

        If a port is in use, the upper cluster has a few seconds to respond: one of its Nodes may record another port.
        """
        address = self.ports.address
        try:
            await self.ports.open(endpoints_of(self.topology, {}, self._pods, {}))
        except TensileError:
            with suppress(TimeoutError):
                async with asyncio.timeout(_RESPONSE_TIMEOUT):
                    return await self.clusters.make_world(self.topology, address)
            raise
        return await self.clusters.make_world(self.topology, address)

    async def lead(self) -> None:
        """Join the lower clusters and begin to lead.

        Raises TensileError if the extender's port is in use when the engine starts; a standby that takes over waits for
        the port instead. Only the leader serves the extender: a standby knows nothing of the lower clusters and would
        accept everything.
        """
        async with self._changing:
            if self._may_lead:
                await self.extender.open(self.topology)
            else:
                self._may_lead = True
                await _follow(self.topology, self.webhook, self.extender)
            self.admission.follow(self.topology)
            await self._apply_lowers()
            jobs = (("periodic check", self._check_periodically), ("admission policy", self.admission.run))
            self._tasks = [supervised(name, job) for name, job in jobs]

    async def stop(self) -> None:
        """Stop in reverse order; work in progress is abandoned."""
        await cancel_and_wait(*self._tasks)
        for name in tuple(self._opened):
            await self.loop.close(name)
        if hasattr(self, "credential_checks"):
            await self.credential_checks.close()
        for part in reversed(self._parts):
            await part.close()
        if hasattr(self, "ports"):
            await self.ports.close()
        await self.clusters.close()

    async def reload(self, topology: Topology) -> None:
        """Activate another topology, one lower cluster after the other; its name and upper must be unchanged."""
        async with self._changing:
            await self._reload(topology)

    async def check(self) -> None:
        """Update reachability, remove lower clusters that left and are empty, and retry what waits, such as ports.

        Called every second. It never runs during a reload, when a lower cluster that is being reopened looks like an
        orphaned Node.
        """
        async with self._changing:
            await self._check()

    async def _reload(self, topology: Topology) -> None:
        before, self.topology = self.topology, topology
        self.clusters.world.topology = topology
        if topology.kubelet != before.kubelet:
            await self._renew_ports()
        await self._serve()
        await _follow(topology, self.webhook)
        if self.is_leader:
            self.admission.follow(topology)
            await self._apply_lowers()
        self.clusters.follow_controllers()
        if self.is_leader:
            await _follow(topology, self.extender)
        await self.clusters.leave_places()
        for name in tuple(self._opened) if concerns_all(before, topology) else ():
            self._wake(name)

    async def _apply_lowers(self) -> None:
        """Join, change, delay or remove lower clusters as the active topology says."""
        for lower in removed_lowers(self.topology, self.clusters.world):
            lower.in_topology = False
        transitions = [await self._apply_lower(spec) for spec in self.topology.lowers]
        logged, self._deferred = (
            self._deferred,
            tuple(message for transition in transitions for message in transition.waits),
        )
        for message in self._deferred:
            if message not in logged:
                _log.warning("topology change pending", reason=message)

    async def _apply_lower(self, spec: Lower) -> Transition:
        """Apply the transition of one lower of the topology, and return it.

        An open connection is kept as long as the credentials of its replacement cannot be read.
        """
        transition = plan_transition(spec, self.topology, self.clusters.world)
        if self._replaces_connection(transition):
            error = await self.credential_checks.error(spec)
            transition = plan_transition(spec, self.topology, self.clusters.world)
            if error and self._replaces_connection(transition):
                transition = defer(transition, error)
        await self._carry_out(transition)
        return transition

    def _replaces_connection(self, transition: Transition) -> bool:
        """Report whether an open connection would be closed and replaced by another one to the same lower."""
        return (
            transition.action is Action.JOIN
            and transition.before is not None
            and transition.before.name in self.clusters.fleet
        )

    async def _carry_out(self, transition: Transition) -> None:
        before = self.clusters.joined[transition.before.name] if transition.before is not None else None
        match transition.action, before:
            case Action.JOIN, _:
                if transition.remaps and before is not None and self._is_busy(before.lower.name):
                    return  # objects in flight would be looked up under other names: the next check tries again
                if before is not None:
                    await self._leave(before.lower.name)
                await self._join(transition.spec, remaps=transition.remaps)
            case Action.KEEP, LowerConnection():
                before.keep_connection(transition.objection)
                self._change(before, transition.spec)
            case Action.LEAVE, LowerConnection():
                before.lower.in_topology = False
                self._wake(before.lower.name)

    def _webhook_context(self, world: World) -> WebhookContext:
        return WebhookContext(
            self.clusters.connections[UPPER],
            world.owner,
            self._access.directory,
            world.upper.more[CLAIM],
            world.upper.nodes,
            world.upper.secrets,
            self.clusters.fleet.watcher,
            own_namespace(self._access.account),
            lambda: self._may_lead,
        )

    def _ports(self, address: str) -> KubeletServers:
        upper = self.clusters.connections[UPPER]
        directory, watcher = self._access.directory, self.clusters.fleet.watcher
        return KubeletServers(self.topology, directory, upper, address, watcher)

    async def _address(self) -> str:
        """Return the virtual nodes' address, "" if it is not known. A thread finds it, since a DNS query may block."""
        return await asyncio.to_thread(self._find_address, self.topology, self.clusters.upper_address)

    async def _renew_ports(self) -> None:
        """Serve all nodes again, for other certificates or another address; open streams end."""
        world = self.clusters.world
        world.node_address = await self._address() or world.node_address
        held = self.ports.serving.held()
        await self.ports.close()
        self.ports = self._ports(world.node_address)
        self.ports.serving.resume(held)

    def _change(self, joined: LowerConnection, spec: Lower) -> None:
        """Set new fields of a lower that stays joined."""
        lower = joined.lower
        if (lower.spec, lower.in_topology) != (spec, True):
            lower.spec, lower.in_topology = spec, True
            joined.limit()
            self._wake(spec.name)

    async def _join(self, spec: Lower, *, connect: bool = True, remaps: bool = False) -> None:
        lower = self.clusters.join(spec, connect=connect, remaps=remaps).lower
        self.latency.follow(lower)
        if self._traces is not None:
            self._traces.follow(lower)
        await self._serve()
        self.loop.open(spec.name)
        self._opened.add(spec.name)
        self.extender.follow()

    async def _leave(self, name: str) -> None:
        node = self.clusters.joined[name].lower.node
        self._opened.discard(name)
        await self.loop.close(name)
        await self.ports.stop(node)
        await self.clusters.leave(name)
        self.extender.follow()
        for other in tuple(self._opened):  # a claim may wait for the cluster that left
            self._wake(other)

    async def _serve(self) -> None:
        """Serve every virtual node that can be served now, and set the port on its Node."""
        await self.ports.serve(self._endpoints())
        for lower in (one.lower for one in self.clusters.joined.values() if one.lower.connected):
            port = self.ports.port(lower.node)
            if lower.port != port:
                lower.port = port
                self._wake(lower.name)

    def _endpoints(self) -> dict[str, NodeEndpoint]:
        return endpoints_of(self.topology, self.clusters.joined, self._pods, noted_ports(self.clusters.world))

    def _pods(self, lower: LowerWorld) -> MirroredPods:
        connections = self.clusters.connections
        return MirroredPods(lower, self.clusters.world.owner, lambda: connections.get(lower.name))

    async def _check_periodically(self) -> None:
        while True:
            await self.check()
            await asyncio.sleep(_CHECK_INTERVAL)

    async def _check(self) -> None:
        self._expedite_recovered()
        for name in self.extender.lowers_with_new_room():
            self.loop.enqueue_all(name, rule.NAME)
        for stray in self.clusters.strays():
            await self._join(stray, connect=False)
        for name, joined in tuple(self.clusters.joined.items()):
            if joined.refresh():
                self._wake(name)
            if self._can_be_removed(joined):
                await self._leave(name)
        if self._deferred or any(map(self._has_to_map, self.topology.lowers)):
            await self._apply_lowers()
        await self._serve()

    def _has_to_map(self, spec: Lower) -> bool:
        """Report whether a joined lower uses another namespace mapping than the topology wants."""
        joined = self.clusters.world.lowers.get(spec.name)
        return joined is not None and has_to_map(joined, spec, self.clusters.world)

    def _expedite_recovered(self) -> None:
        """Retry waiting keys at once when an unreachable cluster responds again."""
        unreachable = {name for name, opened in self.clusters.fleet.items() if opened.unreachable_seconds}
        if self._unreachable - unreachable:
            self.loop.expedite(MAX_DELAY)
        self._unreachable = unreachable

    def _can_be_removed(self, joined: LowerConnection) -> bool:
        """Report whether a lower that left has no pods and no Node any more, and its objects have been deleted."""
        lower, nodes = joined.lower, self.clusters.world.upper.nodes
        is_node_gone = nodes.synced and not has_node(lower, self.clusters.world)
        return is_node_gone and not lower.in_topology and lower.is_empty and not self._is_busy(lower.name)

    def _is_busy(self, name: str) -> bool:
        return bool(self.loop.depth.get(name))

    def _wake(self, name: str) -> None:
        if name in self._opened:
            self.loop.enqueue_all(name)


async def _follow(topology: Topology, *parts: WebhookPort | ExtenderServer) -> None:
    """Have servers follow the active topology; what is not possible yet is pending, and they try it again."""
    for part in parts:
        with suppress(TensileError):
            await part.open(topology)


def _log_missing_alias(world: World) -> None:
    """Log that pods in lower clusters get no Service for the upper cluster, if they could have one."""
    server = world.upper_server
    if "Service" in world.topology.enabled and (server is None or not form(server)):
        _log.info(
            "lower clusters have no Service for the upper cluster: set upper.advertiseURL to an address pods reach",
            service=world.topology.services.upper_alias,
            address=server.host if server else "in-cluster",
        )
