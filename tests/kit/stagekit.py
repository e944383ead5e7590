"""A simulation for the engine's rules and loop, on clusters in memory under a test's control.

Every cluster can be unreachable, refuse requests, or do a write and lose its answer; its caches can receive events
late, or miss them. Time passes only if the test advances it, so the result does not depend on the machine.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

import orjson
from worldkit import NOW, make_world, with_managed_fields

from tensile.engine.caches import bound_feed, lower_feeds, lower_world, rules, upper_feeds
from tensile.errors import ClusterError, Denied, Throttled, Unreachable
from tensile.kube.cluster import Patch, Selection
from tensile.kube.fleet import InformerSpec
from tensile.kube.store import Cache
from tensile.kubelet.node.rule import NodeRule
from tensile.kubelet.node.rule import key_of as node_key
from tensile.objects import NODE, POD, UPPER, Kind, Manifest, Ref, uid
from tensile.reconcile.desired import Present
from tensile.reconcile.dryrun.cluster import DryRunCluster
from tensile.reconcile.dryrun.patch import is_selected
from tensile.reconcile.loop import Loop, Timing
from tensile.reconcile.plan import Step
from tensile.reconcile.world import Key, NamespaceNaming, Problem, World
from tensile.topology import Topology

_SOON = 1.0
_ROUNDS = 60


class FaultyCluster(DryRunCluster):
    """A dry-run cluster with faults: `is_down`, `denied` writes by (verb, kind), and `failing`.

    It goes down after `failing` more writes, of which the last is done, and its answer lost. `on_write` is called
    before an object is created or deleted. `budget_protected` are the names of pods that disruption budgets protect.

    If pods do not end at once, they are bound to a real node as soon as they are created.
    """

    def __init__(self, name: str, *, ends_pods: bool, now: Callable[[], datetime]) -> None:
        super().__init__(name, ends_pods=ends_pods, version="v1.36.3", now=now)
        self._binds = not ends_pods and name != UPPER
        self.is_down = False
        self.denied: dict[tuple[str, str], str] = {}
        self.failing = 0
        self.budget_protected: set[str] = set()
        self.writes: list[tuple[str, Ref]] = []
        self.on_write: Callable[[str, Ref, Manifest], None] = lambda _verb, _ref, _body: None

    async def read(self, ref: Ref) -> bytes:
        """Read, unless a fault is set."""
        self._answers("read", ref)
        return await super().read(ref)

    async def create(self, ref: Ref, body: Manifest) -> bytes:
        """Create, unless a fault is set."""
        self._answers("create", ref)
        self.on_write("create", ref, body)
        if self._binds and ref.kind == POD:
            body = {**body, "spec": {**body["spec"], "nodeName": "n1"}}
        return self._answered("create", ref, await super().create(ref, body))

    async def issue(self, account: Ref, request: Manifest) -> bytes:
        """Issue a token, unless a fault is set."""
        self._answers("issue", account)
        return await super().issue(account, request)

    async def patch(self, ref: Ref, patch: Patch, subresource: str = "") -> bytes:
        """Patch, unless a fault is set."""
        self._answers("patch", ref)
        return self._answered("patch", ref, await super().patch(ref, patch, subresource))

    async def delete(self, ref: Ref, *, uid: str, grace: int | None = None, version: str = "") -> bytes:
        """Delete, unless a fault is set."""
        self._answers("delete", ref)
        self.on_write("delete", ref, {"metadata": {"uid": uid}})
        return self._answered("delete", ref, await super().delete(ref, uid=uid, grace=grace, version=version))

    async def evict(self, ref: Ref, *, uid: str) -> None:
        """Evict, unless a fault is set or a disruption budget protects the pod."""
        self._answers("evict", ref)
        if ref.name in self.budget_protected:
            message = "Cannot evict pod as it would violate the pod's disruption budget."
            raise Throttled(message, cluster=self.name, doing="evict", status=429, reason="TooManyRequests")
        self.on_write("delete", ref, {"metadata": {"uid": uid}})
        await super().evict(ref, uid=uid)
        self._answered("evict", ref, b"")

    def _answers(self, verb: str, ref: Ref) -> None:
        if self.is_down:
            raise Unreachable("no answer", cluster=self.name, doing=verb)
        message = self.denied.get((verb, ref.kind.name))
        if message is not None:
            raise Denied(message, cluster=self.name, doing=verb, status=403, reason="Forbidden")

    def _answered(self, verb: str, ref: Ref, answer: bytes) -> bytes:
        self.writes.append((verb, ref))
        was_failing = self.failing
        self.failing -= bool(self.failing)
        self.is_down = self.is_down or was_failing > self.failing == 0
        if self.is_down:
            raise Unreachable("the connection broke", cluster=self.name, doing=verb)
        return answer


class DelayedWatch:
    """A watch between a cluster and a cache, which can hold events back.

    While `late`, events wait until the test has them delivered.
    """

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.late = False
        self._held: list[Callable[[], None]] = []
        self._known: set[tuple[str, str]] = set()

    def put(self, raw: bytes) -> None:
        """Deliver an object, now or later."""
        meta = orjson.loads(raw)["metadata"]
        self._known.add((meta.get("namespace", ""), meta["name"]))
        self._deliver(partial(self.cache.put, raw))

    def remove(self, raw: bytes) -> None:
        """Deliver the deletion of an object, now or later."""
        meta = orjson.loads(raw)["metadata"]
        self._known.discard((meta.get("namespace", ""), meta["name"]))
        self._deliver(partial(self.cache.remove, raw))

    def get(self, namespace: str, name: str) -> object | None:
        """Return True if the watch has delivered or queued an object, None otherwise."""
        return True if (namespace, name) in self._known else None

    def deliver(self) -> None:
        """Deliver all events that were held back, in their order."""
        waiting, self._held = self._held, []
        for telling in waiting:
            telling()

    def forget(self) -> None:
        """Drop all events that were held back, because a list will replace them."""
        self._held.clear()

    def listed(self, raws: list[bytes], version: int, *, rewound: bool = False) -> None:
        """Replace the cache by a list; `rewound` means a list of a store that was restored to an earlier state."""
        self.forget()
        metas = [orjson.loads(raw)["metadata"] for raw in raws]
        self._known = {(meta.get("namespace", ""), meta["name"]) for meta in metas}
        self.cache.take_over(map(self.cache.read, raws), version, rewound=rewound)

    def _deliver(self, telling: Callable[[], None]) -> None:
        if self.late:
            self._held.append(telling)
        else:
            telling()


class LoopRecord(NamedTuple):
    """One report of the loop to its observer: a step and its error, or a problem."""

    key: Key
    step: Step | None = None
    error: ClusterError | None = None
    problem: Problem | None = None


class RecordingObserver:
    """An observer that records what the loop does; a rule error fails the test."""

    def __init__(self) -> None:
        self.records: list[LoopRecord] = []

    def on_step(self, key: Key, step: Step, error: ClusterError | None) -> None:
        """Record a step."""
        self.records.append(LoopRecord(key, step=step, error=error))

    def on_blocked(self, key: Key, problem: Problem) -> None:
        """Record a problem."""
        self.records.append(LoopRecord(key, problem=problem))

    def on_unexpected_error(self, key: Key, error: Exception) -> None:
        """Fail the test."""
        raise AssertionError(key) from error


class EngineSimulation:
    """Clusters that outlive engines, and the engine that runs on them now; used inside one event loop.

    Lower pods that are deleted vanish at once (`prompt`), or exist until the test removes them.
    """

    def __init__(self, *lowers: str, more: str = "", prompt: bool = True) -> None:
        self.observer = RecordingObserver()
        self._arguments = (lowers, more)
        names = [spec.name for spec in make_world(*lowers, more=more).topology.lowers]
        self.clusters = {
            name: FaultyCluster(name, ends_pods=prompt and name != UPPER, now=self.now) for name in (UPPER, *names)
        }
        self.unreachable_seconds: dict[str, float] = {}
        self.world = self._made()
        self.watches = self._attached()
        self.loop: Loop | None = None

    def now(self) -> datetime:
        """Return the time in the simulation."""
        return NOW + timedelta(seconds=asyncio.get_running_loop().time())

    def create_nodes(self) -> None:
        """Create the virtual nodes just as the engine would."""
        for lower in self.world.lowers.values():
            (made,) = NodeRule().decide(node_key(lower), self.world).wanted
            assert isinstance(made, Present)
            node = {**made.manifest, "metadata": made.manifest["metadata"] | {"uid": f"node-{lower.node}"}}
            self.clusters[UPPER].place(NODE, with_managed_fields(node))

    def start(self, *, forced: bool = False) -> None:
        """Start an engine on the content of the caches; `forced` as if a user had confirmed the state."""
        timing = Timing(self.now, lambda: 0.5)
        self.loop = Loop(self.world, rules(), self.clusters, self.observer, timing, forced=forced)
        for name in self.world.lowers:
            self.loop.open(name)

    async def stop(self) -> None:
        """Stop the engine, even in the middle of its work."""
        if self.loop is not None:
            for name in self.world.lowers:
                await self.loop.close(name)
        self.loop = None

    async def restart(self, *, forced: bool = False, unread: str | None = None) -> None:
        """Stop the engine, and start another one whose caches are filled by lists; `forced` as in `start`.

        The caches of the cluster `unread` have had no list yet.
        """
        await self.stop()
        spoken = self.world.topology
        self.world = self._made()
        self._reload(spoken)
        self.watches = self._attached()
        for name in self.clusters:
            if name == unread:
                self.mark_stale(name)
            else:
                self.relist(name)
        self._apply_unreachable()
        self.start(forced=forced)

    def reload(self, topology: Topology) -> None:
        """Apply another topology, and follow the kinds that it requires in addition."""
        self._reload(topology)
        known = {id(feed.cache) for feed, _ in self.watches}
        fresh = self._attached(known)
        self.watches += fresh
        for feed, ear in fresh:
            self._list(feed, ear)
        self.enqueue_all()

    def set_unreachable(self, lower: str, seconds: float) -> None:
        """Make a lower unreachable since so many seconds (0: it is reachable), as its health check would notice."""
        self.clusters[lower].is_down = seconds > 0
        self.unreachable_seconds[lower] = seconds
        self._apply_unreachable()
        self.enqueue_all(lower)

    def enqueue_all(self, *lowers: str) -> None:
        """Enqueue every key."""
        for name in lowers or tuple(self.world.lowers):
            if self.loop is not None:
                self.loop.enqueue_all(name)

    def relist(self, cluster: str | None = None, kind: Kind | None = None) -> None:
        """Replace caches by lists; changes in between that were missed stay unobserved."""
        for feed, ear in self.watches:
            if cluster in (None, feed.cluster) and kind in (None, feed.kind):
                self._list(feed, ear)

    def mark_stale(self, cluster: str) -> None:
        """Mark a cluster's caches as stale."""
        for feed, _ in self.watches:
            if feed.cluster == cluster:
                feed.cache.mark_stale()

    def delete_without_event(self, ref: Ref, *, relist: bool = True) -> None:
        """Remove an object without a watch event; only the next list shows that it is absent."""
        mine = [ear for feed, ear in self.watches if (feed.cluster, feed.kind) == (ref.cluster, ref.kind)]
        before = [ear.late for ear in mine]
        for ear in mine:
            ear.late = True
        self.clusters[ref.cluster].vanish(ref)
        for ear, late in zip(mine, before, strict=True):
            ear.late = late
            ear.forget()
        if relist:
            self.relist(ref.cluster, ref.kind)

    def restore(self, *forgotten: Ref) -> None:
        """Restore stores to a state without some objects: without watch events, and lists show that state."""
        for ref in forgotten:
            self.delete_without_event(ref, relist=False)
        for feed, ear in self.watches:
            if feed.cluster in {ref.cluster for ref in forgotten}:
                self._list(feed, ear, rewound=True)

    def restore_older(self, ref: Ref, older: Manifest) -> None:
        """Restore a store to a state in which an older object existed in place of another one."""
        self.delete_without_event(ref, relist=False)
        self.hold_events(ref.cluster)
        self.clusters[ref.cluster].place(ref.kind, older)
        for feed, ear in self.watches:
            ear.late = ear.late and feed.cluster != ref.cluster
            if feed.cluster == ref.cluster:
                self._list(feed, ear, rewound=True)

    def relist_without(self, ref: Ref) -> None:
        """Relist without an object that exists."""
        for feed, ear in self.watches:
            if (feed.cluster, feed.kind) == (ref.cluster, ref.kind):
                self._list(feed, ear, lacking=(ref.namespace, ref.name))

    def hold_events(self, cluster: str) -> None:
        """Hold back the events of a cluster's watches until the test has them delivered."""
        for feed, ear in self.watches:
            ear.late = ear.late or feed.cluster == cluster

    def deliver_events(self, cluster: str) -> None:
        """Deliver the events that a cluster's watches hold back, and hold back no more."""
        for feed, ear in self.watches:
            if feed.cluster == cluster:
                ear.late = False
                ear.deliver()

    async def wait_idle(self) -> None:
        """Run until no step is due within a second, as a dry run does."""
        if self.loop is None:
            return
        for _ in range(_ROUNDS):
            await self.loop.wait_idle()
            if not self.loop.expedite(_SOON):
                return
        raise AssertionError([(one.key, one.step and one.step.reason, one.error) for one in self.observer.records[-6:]])

    async def advance(self, seconds: float = 20.0) -> None:
        """Advance the time, and then run until nothing is left to do."""
        await asyncio.sleep(seconds)
        await self.wait_idle()

    def find(self, ref: Ref) -> Manifest | None:
        """Return an object as its cluster has it."""
        return self.clusters[ref.cluster].find(ref.kind, ref.namespace, ref.name)

    async def delete(self, ref: Ref, grace: int | None = None) -> None:
        """Delete an object as another client, regardless of faults."""
        seen = self.find(ref)
        assert seen is not None
        await DryRunCluster.delete(self.clusters[ref.cluster], ref, uid=uid(seen), grace=grace)

    async def listed(self, cluster: str, kind: Kind = POD) -> list[Manifest]:
        """Return every object of a kind that a cluster has."""
        found = await self.clusters[cluster].list(kind, Selection())
        return [orjson.loads(raw) for raw in found.items]

    def _made(self) -> World:
        """Make a world of empty caches that have had their first list, as the engine itself makes them."""
        made = make_world(*self._arguments[0], more=self._arguments[1], now=self.now())
        for name, plain in made.lowers.items():
            made.lowers[name] = lower = lower_world(plain.spec, NamespaceNaming(made.topology.name, made.owner.mark))
            lower.version = plain.version
            for cache in (*lower.caches(), *lower.more.values(), *lower.place_caches()):
                cache.replace((), 1)
        return made

    def _attached(self, known: Collection[int] = ()) -> list[tuple[InformerSpec, DelayedWatch]]:
        """Feed every cache, except those whose `id` is in `known`."""
        found = []
        for feed in (one for one in _feeds(self.world) if id(one.cache) not in known):
            ear = DelayedWatch(feed.cache)
            self.clusters[feed.cluster].follow(feed.kind, ear, partial(_picks, feed))  # type: ignore[arg-type]
            found.append((feed, ear))
        return found

    def _list(
        self, feed: InformerSpec, ear: DelayedWatch, lacking: tuple[str, str] | None = None, *, rewound: bool = False
    ) -> None:
        held = self.clusters[feed.cluster]._held[feed.kind]
        found = [raw for place, raw in held.items() if place != lacking]
        raws = [raw for raw in found if is_selected(orjson.loads(raw), feed.selection)]
        ear.listed(raws, self.clusters[feed.cluster]._count, rewound=rewound)

    def _reload(self, topology: Topology) -> None:
        self.world.topology = topology
        specs = {spec.name: spec for spec in topology.lowers}
        for name, lower in self.world.lowers.items():
            lower.in_topology = name in specs
            lower.spec = specs.get(name, lower.spec)

    def _apply_unreachable(self) -> None:
        for name, seconds in self.unreachable_seconds.items():
            self.world.lowers[name].unreachable_seconds = seconds


def _feeds(of: World) -> Iterator[InformerSpec]:
    yield from upper_feeds(of.upper, of.owner, of.topology.enabled)
    for lower in of.lowers.values():
        yield bound_feed(lower)
        yield from lower_feeds(lower, of.owner, places=of.topology.places)


def _picks(feed: InformerSpec, manifest: Manifest) -> bool:
    return is_selected(manifest, feed.selection)
