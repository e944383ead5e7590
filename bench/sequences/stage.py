"""The engine's rules and loop on clusters in memory, whose writes can fail and whose watches can be late.

Time is virtual. A crash throws the loop and all its caches away, and begins anew with lists; what had been written
stays. Nothing here knows what is right: `model.py` does.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal

import orjson

from bench.histories import Sight
from tensile.app import rules
from tensile.cache import Cache
from tensile.cluster import Cluster, Patch
from tensile.errors import Conflict, Throttled, Unreachable
from tensile.feeds import bound_feed, lower_feeds, lower_world, upper_feeds, upper_world
from tensile.kube.fleet import Feed
from tensile.names import owner_of
from tensile.objects import NAMESPACE, NODE, POD, UPPER, Manifest, Ref
from tensile.reconcile.loop import Loop, Timing
from tensile.reconcile.plan import Step
from tensile.reconcile.rehearsal import Rehearsal
from tensile.reconcile.selecting import is_selected
from tensile.topology import parse
from tensile.world import Key, Problem, World

Fault = Literal["dropped", "lost", "conflict", "throttled"]
LOWER = "lower-a"
SPACE = "default"
OWNER = owner_of("11111111-upper", "demo")
_NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
_TEXT = f"""apiVersion: tensile-kube.io/v1alpha1
kind: Topology
name: demo
controllers: []
lowers: [{{name: {LOWER}, kubeconfig: k}}]
"""
_LATENCY = 0.01


class Line(Cache):
    """Passes what a cluster tells on to a cache of the engine's: at once, or later, or not any more."""

    def __init__(self, to: Cache) -> None:
        super().__init__()
        self.is_held = False
        self._to: Cache | None = to
        self._late: deque[Callable[[], None]] = deque()

    def put(self, raw: bytes) -> None:
        """Tell of an object that is new or changed."""
        super().put(raw)
        if self._to is not None:
            self._late.append(partial(self._to.put, raw))
        self.flow()

    def remove(self, raw: bytes) -> None:
        """Tell of an object's end."""
        super().remove(raw)
        if self._to is not None:
            self._late.append(partial(self._to.remove, raw))
        self.flow()

    def flow(self) -> None:
        """Tell what waits, unless it is held."""
        while self._late and not self.is_held:
            self._late.popleft()()

    def cut(self) -> None:
        """Never tell anything again."""
        self._to = None
        self._late.clear()


class Faulty:
    """A cluster in memory whose next writes meet with these faults; `writes` has what a body's fences were."""

    def __init__(self, real: Rehearsal) -> None:
        self.faults: deque[Fault] = deque()
        self.unfenced: list[str] = []
        self._real = real

    def __getattr__(self, name: str) -> Any:
        """Give what is not a write as the cluster has it."""
        return getattr(self._real, name)

    async def create(self, ref: Ref, body: Manifest) -> bytes:
        """Create, or fail."""
        return await self._met(lambda: self._real.create(ref, body))

    async def patch(self, ref: Ref, patch: Patch, subresource: str = "") -> bytes:
        """Change, or fail."""
        if not _is_fenced(patch.body):
            self.unfenced.append(f"patch {ref} {subresource}".rstrip())
        return await self._met(lambda: self._real.patch(ref, patch, subresource))

    async def delete(self, ref: Ref, *, uid: str, grace: int | None = None) -> bytes:
        """Delete, or fail."""
        return await self._met(lambda: self._real.delete(ref, uid=uid, grace=grace))

    async def _met(self, write: Callable[[], Awaitable[bytes]]) -> bytes:
        fault = self.faults.popleft() if self.faults else ""
        await asyncio.sleep(_LATENCY)
        if fault == "dropped":
            raise Unreachable("dropped")
        if fault == "conflict":
            raise Conflict("somebody else wrote first", status=409, reason="Conflict")
        if fault == "throttled":
            raise Throttled("later", status=429, reason="TooManyRequests", retry_after=1.0)
        answer = await write()
        await asyncio.sleep(_LATENCY)
        if fault == "lost":
            raise Unreachable("lost")
        return answer


class Heard:
    """An observer that keeps defects."""

    def __init__(self) -> None:
        self.defects: list[str] = []

    def stepped(self, key: Key, step: Step, error: Exception | None) -> None:
        """Pass over a step."""

    def stuck(self, key: Key, problem: Problem) -> None:
        """Pass over a problem."""

    def broke(self, key: Key, error: Exception) -> None:
        """Keep a defect."""
        self.defects.append(f"{key}: {error!r}")


class Stage:
    """Two clusters with a namespace and a real node below, and an engine; `sights` are what happened to lower pods."""

    def __init__(self) -> None:
        self.upper = Rehearsal(UPPER, ends_pods=False, now=self._now)
        self.lower = Rehearsal(LOWER, ends_pods=True, now=self._now)
        self.ways = {UPPER: Faulty(self.upper), LOWER: Faulty(self.lower)}
        self.lines: list[Line] = []
        self.heard = Heard()
        self.sights: list[Sight] = []
        self._loop: Loop | None = None
        for cluster in (self.upper, self.lower):
            cluster.place(NAMESPACE, {"metadata": {"name": SPACE}})
        self.lower.place(NODE, _node())
        self.lower.follow(POD, Watching(self.sights), lambda manifest: "labels" in manifest["metadata"])

    async def start(self) -> None:
        """Start an engine, as after a crash of the one before."""
        world = World(parse(_TEXT), OWNER, upper_world(), self._now(), "10.0.0.1")
        spec = world.topology.lowers[0]
        lower = world.lowers[LOWER] = lower_world(spec)
        lower.version = "v1.36.3"
        feeds = (
            *upper_feeds(world.upper, OWNER, world.topology.enabled),
            bound_feed(lower),
            *lower_feeds(lower, OWNER),
        )
        for feed in feeds:
            await self._follow(feed)
        clusters: dict[str, Cluster] = dict(self.ways)
        self._loop = Loop(world, rules(), clusters, self.heard, Timing(self._now, lambda: 0.5))
        self._loop.open(LOWER)

    async def crash(self) -> None:
        """End the engine, whatever it is doing."""
        for line in self.lines:
            line.cut()
        self.lines.clear()
        if self._loop is not None:
            await self._loop.close(LOWER)

    async def rest(self, seconds: float) -> None:
        """Let time pass, and then return when the engine has nothing to do at this moment."""
        await asyncio.sleep(seconds)
        assert self._loop is not None
        await self._loop.quiet()

    async def pause(self, steps: int) -> None:
        """Let the engine go on by a few steps of its own."""
        for _ in range(steps):
            await asyncio.sleep(_LATENCY / 2)

    def hold(self, number: int) -> None:
        """Hold one of the watches."""
        self.lines[number % len(self.lines)].is_held = True

    def release(self) -> None:
        """Let all watches tell what they held."""
        for line in self.lines:
            line.is_held = False
            line.flow()

    async def _follow(self, feed: Feed) -> None:
        cluster = self.upper if feed.cluster == UPPER else self.lower
        listing = await cluster.list(feed.kind, feed.selection)
        line = Line(feed.cache)
        for cache in (line, feed.cache):
            cache.replace(listing.items, int(listing.version))
        cluster.follow(feed.kind, line, partial(is_selected, selection=feed.selection))
        self.lines.append(line)

    def _now(self) -> datetime:
        return _NOW + timedelta(seconds=asyncio.get_running_loop().time())


class Watching(Cache):
    """Notes all that happens to the lower pods of ours, as a watch past everything tells it."""

    def __init__(self, sights: list[Sight]) -> None:
        super().__init__()
        self._sights = sights

    def put(self, raw: bytes) -> None:
        """Note a pod that is new or changed."""
        super().put(raw)
        self._sights.append(Sight(LOWER, "MODIFIED", orjson.loads(raw)))

    def remove(self, raw: bytes) -> None:
        """Note a pod's end."""
        super().remove(raw)
        self._sights.append(Sight(LOWER, "DELETED", orjson.loads(raw)))


def _is_fenced(body: Any) -> bool:
    """Say whether a patch carries a UID or a resourceVersion."""
    if isinstance(body, list):
        return any(one["path"] in ("/metadata/uid", "/metadata/resourceVersion") for one in body)
    return bool({"uid", "resourceVersion"} & (body.get("metadata") or {}).keys())


def _node() -> Manifest:
    """Make a real node of the lower cluster."""
    amounts = {"cpu": "64", "memory": "64Gi", "pods": "110"}
    info = {"architecture": "amd64", "operatingSystem": "linux", "kubeletVersion": "v1.36.3"}
    status = {"allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": info}
    return {"metadata": {"name": "n1"}, "spec": {}, "status": status}
