"""A hostile apiserver before the client and the fleet that the engine uses, and what is measured of it."""

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
"""Waits of a test's length: what is tried again and again is, many times in a second."""
LOGGED_AT_MOST = 40
"""Lines of a log about one hostile cluster in a test's time: one or two for each of its feeds."""
GROWN_AT_MOST = 160 << 20
"""Bytes by which the process may grow meanwhile, the hostile server in it; an answer without a bound is far more."""
TIME = 0.2
"""Seconds in which a hostile cluster goes on in its way."""


def lower() -> LowerWorld:
    """Make the caches of one lower, as the engine has them."""
    entry = {"name": NAME, "kubeconfig": "k"}
    file = {"apiVersion": "tensile-kube.io/v1alpha1", "kind": "Topology", "name": "t", "lowers": [entry]}
    return lower_world(parse(orjson.dumps(file).decode(), name="t").lowers[0])


class Met:
    """A fleet that follows a hostile cluster, with the lower that it fills, what is logged, and an honest cluster."""

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
        """The client."""
        return self.fleet[NAME].cluster

    def told(self, level: str) -> list[Any]:
        """Return the lines of a level that were logged."""
        return [one for one in self.logged if one["log_level"] == level]

    def grown(self) -> int:
        """Return by how many bytes the process has grown since the beginning."""
        return int(psutil.Process().memory_info().rss) - self._rss

    async def others_go_on(self) -> None:
        """Return when the honest cluster is followed: its list, and an event of its watch."""
        self.honest.play("list", listing(20, pod("a", 5)))
        self.honest.play("watch", self._stream)
        self.fleet.open(HONEST, access_to(self.honest.port), [InformerSpec(HONEST, POD, Selection(), self.others)])
        await self.until(lambda: len(self.others) == 1)
        self._stream.send(event("ADDED", pod("b", 21)))
        await self.until(lambda: len(self.others) == 2)

    async def wait_idle(self) -> None:
        """Return when nothing has been asked for `TIME`, which what is left alone is not."""
        asked = -1
        while asked != (asked := len(self.front.heard)):  # noqa: ASYNC110 - that nothing happens is looked for
            await asyncio.sleep(TIME)

    async def until(self, holds: Callable[[], object], seconds: float = 60.0) -> None:
        """Return when something holds, which is looked at often."""
        async with asyncio.timeout(seconds):
            while not holds():  # noqa: ASYNC110 - what is waited for happens in many places
                await asyncio.sleep(0.01)


@asynccontextmanager
async def meeting(way: str) -> AsyncIterator[Met]:
    """Follow a cluster that answers in that way, with every feed that the engine has for a lower."""
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
