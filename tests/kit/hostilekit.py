"""A hostile apiserver in front of the engine's client and fleet, and measurements of how they cope."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import psutil
import structlog
from scripted import Apiserver, Stream, access_to, event, listing, pod, running
from structlog.testing import LogCapture

from bench.faults.hostile.front import Front, serving
from bench.faults.hostile.ways import WAYS
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
HASTY = InformerTimings(first=0.02, cap=0.1, near=0.1, settled=0.2, outage=0.5)
"""Timings for short tests: repeated attempts happen many times in a second."""
LOGGED_AT_MOST = 40
"""Log lines about one hostile cluster during a test: one or two for each of its informers."""
GROWN_AT_MOST = 160 << 20
"""Bytes by which the process, with the hostile server, may grow; an unbounded answer needs far more."""
TIME = 0.2
"""Seconds for which a hostile cluster continues to misbehave."""


def lower() -> LowerWorld:
    """Make the caches of one lower, as the engine has them."""
    entry = {"name": NAME, "kubeconfig": "k"}
    file = {"apiVersion": "tensile-kube.io/v1alpha1", "kind": "Topology", "name": "t", "lowers": [entry]}
    return lower_world(parse(orjson.dumps(file).decode(), name="t").lowers[0])


class Met:
    """A fleet that follows a hostile cluster, with the lower that it fills, its log, and an honest cluster."""

    def __init__(self, fleet: Fleet, lower: LowerWorld, front: Front, logged: list[Any]) -> None:
        self.fleet = fleet
        self.lower = lower
        self.front = front
        self.logged = logged
        self.honest = Apiserver("22222222-0000-0000-0000-000000000000")
        self.others = Cache()
        self._stream = Stream()
        self._rss = psutil.Process().memory_info().rss

    @property
    def cluster(self) -> HttpCluster:
        """The client of the hostile cluster."""
        return self.fleet[NAME].cluster

    def told(self, level: str) -> list[Any]:
        """Return the logged lines of a level."""
        return [one for one in self.logged if one["log_level"] == level]

    def grown(self) -> int:
        """Return by how many bytes the process has grown since the beginning."""
        return int(psutil.Process().memory_info().rss) - self._rss

    async def others_go_on(self) -> None:
        """Wait until the fleet has received the list and a watch event of the honest cluster."""
        self.honest.play("list", listing(20, pod("a", 5)))
        self.honest.play("watch", self._stream)
        self.fleet.open(HONEST, access_to(self.honest.port), [InformerSpec(HONEST, POD, Selection(), self.others)])
        await self.until(lambda: len(self.others) == 1)
        self._stream.send(event("ADDED", pod("b", 21)))
        await self.until(lambda: len(self.others) == 2)

    async def wait_idle(self) -> None:
        """Wait until the hostile server has received no request for `TIME` seconds."""
        asked = -1
        while asked != (asked := len(self.front.heard)):  # noqa: ASYNC110 - waits for the absence of requests
            await asyncio.sleep(TIME)

    async def until(self, holds: Callable[[], object], seconds: float = 60.0) -> None:
        """Wait until a condition holds, by frequent polling."""
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110 - the conditions are in many places
                await asyncio.sleep(0.01)


@asynccontextmanager
async def meeting(way: str) -> AsyncIterator[Met]:
    """Follow a cluster that misbehaves in this way, with every informer that the engine has for a lower."""
    capture, front = LogCapture(), Front()
    before = structlog.get_config()["processors"]
    structlog.configure(processors=[structlog.stdlib.add_log_level, capture])
    front.turn(WAYS[way])
    found = lower()
    fleet = Fleet(chance=lambda: 0.5, pace=HASTY, probe=0.2, patience=2.0)
    try:
        met = Met(fleet, found, front, capture.entries)
        async with serving(front), running(met.honest):
            fleet.open(NAME, access_to(front.port), lower_feeds(found, OWNER))
            try:
                yield met
            finally:
                async with asyncio.timeout(60):
                    await fleet.close_all()
    finally:
        structlog.configure(processors=before)
