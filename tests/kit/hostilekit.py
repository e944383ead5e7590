"""A hostile apiserver in front of the engine's client and fleet, and measurements of how they cope."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import psutil
import structlog
from scripted import ScriptedApiserver, WatchStream, access_to, event, listing, make_pod, running
from structlog.testing import LogCapture

from bench.faults.hostile.behaviors import BEHAVIORS
from bench.faults.hostile.server import HostileServer, serving
from tensile.engine.caches import lower_feeds, lower_world
from tensile.kube.client import HttpCluster
from tensile.kube.cluster import Selection
from tensile.kube.fleet import Fleet, InformerSpec
from tensile.kube.limits import InformerTimings
from tensile.kube.store import Cache
from tensile.names import owner_of
from tensile.objects import POD
from tensile.reconcile.world import LowerWorld
from tensile.topology import parse

NAME, HONEST = "lower-x", "lower-y"
OWNER = owner_of("uid", "topology")
FAST_TIMINGS = InformerTimings(first=0.02, cap=0.1, near=0.1, settled=0.2, outage=0.5)
"""Timings for short tests: repeated attempts happen many times in a second."""
MAX_LOG_LINES = 40
"""Log lines about one hostile cluster during a test: one or two for each of its informers."""
MAX_MEMORY_GROWTH = 160 << 20
"""Bytes by which the process, with the hostile server, may grow; an unbounded answer needs far more."""
TIME = 0.2
"""Seconds for which a hostile cluster continues to misbehave."""


def make_hostile_lower() -> LowerWorld:
    """Make the caches of one lower, as the engine has them."""
    entry = {"name": NAME, "kubeconfig": "k"}
    file = {"apiVersion": "tensile-kube.io/v1alpha1", "kind": "Topology", "name": "t", "lowers": [entry]}
    return lower_world(parse(orjson.dumps(file).decode(), name="t").lowers[0])


class HostileClusterHarness:
    """A fleet that follows a hostile cluster, with the lower that it fills, its log, and an honest cluster."""

    def __init__(self, fleet: Fleet, lower: LowerWorld, front: HostileServer, logged: list[Any]) -> None:
        self.fleet = fleet
        self.lower = lower
        self.front = front
        self.logged = logged
        self.honest = ScriptedApiserver("22222222-0000-0000-0000-000000000000")
        self.honest_cache = Cache()
        self._stream = WatchStream()
        self._rss = psutil.Process().memory_info().rss

    @property
    def cluster(self) -> HttpCluster:
        """The client of the hostile cluster."""
        return self.fleet[NAME].cluster

    def log_lines(self, level: str) -> list[Any]:
        """Return the logged lines of a level."""
        return [one for one in self.logged if one["log_level"] == level]

    def memory_growth(self) -> int:
        """Return by how many bytes the process has grown since the beginning."""
        return int(psutil.Process().memory_info().rss) - self._rss

    async def check_honest_cluster(self) -> None:
        """Wait until the fleet has received the list and a watch event of the honest cluster."""
        self.honest.queue("list", listing(20, make_pod("a", 5)))
        self.honest.queue("watch", self._stream)
        self.fleet.open(
            HONEST, access_to(self.honest.port), [InformerSpec(HONEST, POD, Selection(), self.honest_cache)]
        )
        await self.until(lambda: len(self.honest_cache) == 1)
        self._stream.send(event("ADDED", make_pod("b", 21)))
        await self.until(lambda: len(self.honest_cache) == 2)

    async def wait_idle(self) -> None:
        """Wait until the hostile server has received no request for `TIME` seconds."""
        request_count = -1
        while request_count != (request_count := len(self.front.requests)):  # noqa: ASYNC110 - waits for the absence of requests
            await asyncio.sleep(TIME)

    async def until(self, holds: Callable[[], object], seconds: float = 60.0) -> None:
        """Wait until a condition holds, by frequent polling."""
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110 - the conditions are in many places
                await asyncio.sleep(0.01)


@asynccontextmanager
async def hostile_cluster(misbehavior: str) -> AsyncIterator[HostileClusterHarness]:
    """Follow a cluster that misbehaves in this way, with every informer that the engine has for a lower."""
    capture, front = LogCapture(), HostileServer()
    before = structlog.get_config()["processors"]
    structlog.configure(processors=[structlog.stdlib.add_log_level, capture])
    front.set_behavior(BEHAVIORS[misbehavior])
    found = make_hostile_lower()
    fleet = Fleet(chance=lambda: 0.5, pace=FAST_TIMINGS, probe=0.2, patience=2.0)
    try:
        hostile = HostileClusterHarness(fleet, found, front, capture.entries)
        async with serving(front), running(hostile.honest):
            fleet.open(NAME, access_to(front.port), lower_feeds(found, OWNER))
            try:
                yield hostile
            finally:
                async with asyncio.timeout(60):
                    await fleet.close_all()
    finally:
        structlog.configure(processors=before)
