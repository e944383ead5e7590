"""The engine's rules and loop on an upper and two lower clusters in memory, in virtual time.

A crash discards the loop and all its caches, and the next loop begins with lists; completed writes persist. This module
does not know what is right: `model.py` does.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from bench.kit.histories import PodEvent
from bench.model.sequences.connections import LATENCY, ClusterConnection, WatchConnection
from bench.model.sequences.controllers import Controllers
from bench.model.sequences.model import LOWERS, SPACE
from tensile.engine.caches import bound_feed, lower_feeds, lower_world, rules, upper_feeds, upper_world
from tensile.kube.fleet import InformerSpec
from tensile.names import OWNER as OWNER_LABEL
from tensile.names import owner_of
from tensile.objects import NAMESPACE, NODE, POD, STORAGE_CLASS, UPPER, Kind, Manifest, Ref, labels
from tensile.reconcile.dryrun.cluster import DryRunCluster
from tensile.reconcile.loop import Loop, Timing
from tensile.reconcile.plan import Step
from tensile.reconcile.world import Key, NamespaceNaming, Problem, World
from tensile.topology import Topology, parse

if TYPE_CHECKING:
    from tensile.kube.cluster import Cluster

CLUSTERS = (UPPER, *LOWERS)
OWNER = owner_of("11111111-upper", "demo")
BEGIN = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
"""The time at which a sequence begins."""
_HEAD = "apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: demo\n"
_A, _B = "{name: lower-a, kubeconfig: a", "{name: lower-b, kubeconfig: b"
TOPOLOGIES = tuple(
    parse(_HEAD + text)
    for text in (
        f"lowers: [{_A}}}, {_B}}}]",
        f"lowers: [{_A}}}, {_B}, controllers: []}}]",
        f"lowers: [{_A}}}]",
        f"lowers: [{_A}, maintenance: cordon}}, {_B}}}]",
        f"lowers: [{_A}, controllers: [Service]}}, {_B}, ignoreLabels: [team]}}]",
    )
)
"""The topology files: first the one that is in force in the end, then edits of it."""
_VERSION = "v1.36.3"
_STEPS = 5_000
"""The limit for steps in one sequence; more would mean that the loop never stops."""
_ROUND = 6.0
"""Seconds in which refused writes are retried, and collected changes are processed."""


class Simulation:
    """Clusters that outlive engines, and the current engine.

    `on_write` receives every write just before it is carried out, `done` holds the completed ones. `pod_events` are the
    observed states of the engine's lower pods and of all upper pods, `defects` the errors of the engine itself. With
    `shared`, another engine runs on the clusters of that simulation. `topologies` are the possible topology files, the
    first of them in the beginning, `namespaces` the upper ones; `cluster` and `controllers` are the classes of the
    clusters and of Kubernetes' controllers.
    """

    def __init__(
        self,
        on_write: Callable[[str, Ref, Any], None],
        shared: "Simulation | None" = None,
        *,
        topologies: tuple[Topology, ...] = TOPOLOGIES,
        namespaces: tuple[str, ...] = (SPACE,),
        cluster: type[DryRunCluster] = DryRunCluster,
        controllers: type[Controllers] = Controllers,
    ) -> None:
        self.pod_events: list[PodEvent] = []
        self.defects: list[str] = []
        self.watch_connections: list[WatchConnection] = []
        self.topology = topologies[0]
        self._topologies = topologies
        self._unreachable_seconds = dict.fromkeys(LOWERS, 0.0)
        self._steps = 0
        self._world: World | None = None
        self._loop: Loop | None = None
        if shared is None:
            made = {name: cluster(name, ends_pods=False, version=_VERSION, now=self.now) for name in CLUSTERS}
            self.clusters, self.done = made, list[str]()
            self.controllers = {name: controllers(one, self._pod_recorder(name)) for name, one in made.items()}
            self._create_initial_objects(namespaces)
        else:
            self.clusters, self.done, self.controllers = shared.clusters, shared.done, shared.controllers
        self.connections = {name: ClusterConnection(one, on_write, self.done) for name, one in self.clusters.items()}

    def find(self, ref: Ref) -> Manifest | None:
        """Return an object as its cluster stores it."""
        return self.clusters[ref.cluster].find(ref.kind, ref.namespace, ref.name)

    def writes_since(self, start: int = 0) -> list[str]:
        """Return the engine's completed writes from index `start` on, except those of nodes."""
        return [one for one in self.done[start:] if ": Node " not in one]

    async def start(self) -> None:
        """Start an engine with empty caches."""
        self._world = World(self.topology, OWNER, upper_world(), self.now(), "10.0.0.1")
        for spec in self.topology.lowers:
            naming = NamespaceNaming(self.topology.name, OWNER.mark)
            lower = self._world.lowers[spec.name] = lower_world(spec, naming, self._world.upper.namespaces)
            lower.version, lower.unreachable_seconds = _VERSION, self._unreachable_seconds[spec.name]
        for feed in (*upper_feeds(self._world.upper, OWNER, self.topology.enabled), *self._lower_feeds(self._world)):
            await self._follow(feed)
        connections: dict[str, Cluster] = dict(self.connections)
        self._loop = Loop(self._world, rules(), connections, self, Timing(self.now, lambda: 0.5))
        for name in LOWERS:
            self._loop.open(name)

    async def crash(self) -> None:
        """End the engine at any point of its work; the next one reads the first topology file."""
        for watch in self.watch_connections:
            watch.stop()
        self.watch_connections.clear()
        if self._loop is not None:
            for name in LOWERS:
                await self._loop.close(name)
        self._loop, self.topology = None, self._topologies[0]

    def reload(self, number: int) -> None:
        """Apply another topology."""
        assert self._world is not None
        self.topology = self._world.topology = self._topologies[number % len(self._topologies)]
        specs = {spec.name: spec for spec in self.topology.lowers}
        for name, lower in self._world.lowers.items():
            lower.in_topology = name in specs
            lower.spec = specs.get(name, lower.spec)
        self._enqueue_all()

    def disconnect(self, cluster: str, seconds: float) -> None:
        """Make a cluster unreachable, a lower one already for so many seconds; its watches deliver nothing."""
        self.connections[cluster].is_down = True
        for watch in self._watches_of(cluster):
            watch.drops_events = True
        if cluster != UPPER:
            self._set_unreachable_seconds(cluster, seconds)

    async def reconnect(self, cluster: str) -> None:
        """Let a cluster respond again: lists deliver what its watches missed."""
        self.connections[cluster].is_down = False
        for watch in self._watches_of(cluster):
            if watch.drops_events or not watch.feed.cache.synced:
                await watch.list(self.clusters[cluster])
        if cluster != UPPER:
            self._set_unreachable_seconds(cluster, 0.0)

    async def relist(self, cluster: str) -> None:
        """Restart every watch of a cluster, as if its resourceVersion had expired."""
        for watch in self._watches_of(cluster):
            if not self.connections[cluster].is_down:
                await watch.list(self.clusters[cluster])

    async def recover(self) -> None:
        """End all faults."""
        for connection in self.connections.values():
            connection.faults.clear()
        for controllers in self.controllers.values():
            controllers.keeps_terminating_pods = False
            controllers.enqueue_all()
        for cluster in CLUSTERS:
            await self.reconnect(cluster)
        for watch in self.watch_connections:
            watch.is_held = False
            watch.deliver()
        self.reload(0)

    async def let_time_pass(self, seconds: float) -> None:
        """Let time pass, and then wait until the engine has nothing to do at this moment."""
        await asyncio.sleep(seconds)
        assert self._loop is not None
        await self._loop.wait_idle()

    async def wait_until_quiet(self, rounds: int = 12) -> None:
        """Wait until nothing was written for three rounds, at most so many rounds."""
        still = 0
        for _ in range(rounds):
            start = len(self.done)
            await self.let_time_pass(_ROUND)
            still = 0 if self.writes_since(start) else still + 1
            if still == 3:  # noqa: PLR2004 - see the docstring
                return

    async def pause(self, steps: int) -> None:
        """Let the engine go on by a few steps of its own."""
        for _ in range(steps):
            await asyncio.sleep(LATENCY / 2)

    def now(self) -> datetime:
        """Return the virtual time."""
        return BEGIN + timedelta(seconds=asyncio.get_running_loop().time())

    # The observer of the loop.

    def on_step(self, key: Key, step: Step, _error: Exception | None) -> None:
        """Count steps."""
        self._steps += 1
        if self._steps > _STEPS:
            raise RuntimeError(f"{self._steps} steps, now {key}: {step.verb} {step.ref}")

    def on_blocked(self, key: Key, problem: Problem) -> None:
        """Ignore a problem."""

    def on_unexpected_error(self, key: Key, error: Exception) -> None:
        """Record a defect."""
        self.defects.append(f"{key}: {error!r}")

    def _create_initial_objects(self, namespaces: tuple[str, ...]) -> None:
        upper = self.clusters[UPPER]
        for name in ("default", *namespaces):
            upper.place(NAMESPACE, {"metadata": {"name": name}})
        for name, policy in (("goes", "Delete"), ("stays", "Retain")):
            upper.place(STORAGE_CLASS, {"metadata": {"name": name}, "reclaimPolicy": policy})
        for name in LOWERS:
            self.clusters[name].place(NODE, _node())

    def _lower_feeds(self, world: World) -> list[InformerSpec]:
        return [feed for lower in world.lowers.values() for feed in (bound_feed(lower), *lower_feeds(lower, OWNER))]

    async def _follow(self, feed: InformerSpec) -> None:
        """Feed a cache; if the cluster does not respond, the cache has no list until it responds again."""
        watch = WatchConnection(feed)
        cluster = self.clusters[feed.cluster]
        cluster.follow(feed.kind, watch, watch.selects)
        self.watch_connections.append(watch)
        if self.connections[feed.cluster].is_down:
            watch.drops_events = True
        else:
            await watch.list(cluster)

    def _watches_of(self, cluster: str) -> list[WatchConnection]:
        return [watch for watch in self.watch_connections if watch.feed.cluster == cluster]

    def _set_unreachable_seconds(self, lower: str, seconds: float) -> None:
        assert self._world is not None
        self._unreachable_seconds[lower] = self._world.lowers[lower].unreachable_seconds = seconds
        self._enqueue_all(lower)

    def _enqueue_all(self, *lowers: str) -> None:
        for name in lowers or LOWERS:
            if self._loop is not None:
                self._loop.enqueue_all(name)

    def _pod_recorder(self, cluster: str) -> Callable[[Kind, str, Manifest], None]:
        def record(kind: Kind, what: str, manifest: Manifest) -> None:
            """Record the observed state of a pod."""
            if kind == POD and (cluster == UPPER or labels(manifest).get(OWNER_LABEL) == OWNER.mark):
                self.pod_events.append(PodEvent(cluster, "DELETED" if what == "DELETED" else "MODIFIED", manifest))

        return record


def _node() -> Manifest:
    """Return a real node of a lower cluster."""
    amounts = {"cpu": "64", "memory": "64Gi", "pods": "110"}
    info = {"architecture": "amd64", "operatingSystem": "linux", "kubeletVersion": _VERSION}
    status = {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": info}
    return {"metadata": {"name": "n1"}, "spec": {}, "status": status}
