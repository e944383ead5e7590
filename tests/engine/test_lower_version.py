"""Tests of the version of a lower cluster, which an upgrade changes while the engine runs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from answering import FakeCluster
from scripted import access_to
from virtualtime import clock, in_virtual_time
from worldkit import NOW, A, make_world

from tensile.engine.lower import ClusterAccess, LowerConnection
from tensile.errors import ClusterError, Unreachable
from tensile.objects import UPPER

INTERVAL = 300.0


class VersionedCluster(FakeCluster):
    """A cluster with a version, that records when the version is requested."""

    def __init__(self) -> None:
        super().__init__(A)
        self.release = "v1.35.4"
        self.error: ClusterError | None = None
        self.read_at: list[float] = []
        self.access = access_to(1)

    async def version(self) -> str:
        """Return the version, or fail."""
        self.read_at.append(clock())
        if self.error is not None:
            raise self.error
        return self.release


class OpenFleet(dict[str, Any]):
    """A fleet whose clusters are open."""

    def follow(self, _spec: object) -> None:
        """Follow no cache."""

    async def leave(self, _cluster: str, _cache: object) -> None:
        """Leave no cache."""

    async def close(self, name: str) -> None:
        """Close a cluster."""
        del self[name]


@asynccontextmanager
async def joined(cluster: VersionedCluster) -> AsyncIterator[tuple[LowerConnection, list[float]]]:
    """Connect an engine to a lower cluster, and yield the lower and the times at which it was enqueued."""
    opened = SimpleNamespace(cluster=cluster, identity="uid", is_identified=True, health=None)
    fleet, woken = OpenFleet({A: opened, UPPER: SimpleNamespace(cluster=FakeCluster(UPPER))}), list[float]()
    world = make_world(f"name: {A}")
    lower = LowerConnection(
        world,
        fleet,  # type: ignore[arg-type]
        ClusterAccess(Path()),
        lambda: NOW,
        lambda _name: woken.append(clock()),
    )
    lower.begin(world.topology.lowers[0], engine="engine-1")
    try:
        yield lower, woken
    finally:
        await lower.end()


@in_virtual_time
async def test_the_version_of_a_lower_is_read_every_five_minutes() -> None:
    """An upgrade enqueues the lower, whose Node shows the version; an unchanged version does not."""
    cluster = VersionedCluster()
    async with joined(cluster) as (connection, woken):
        await asyncio.sleep(INTERVAL + 1)
        assert (connection.lower.version, cluster.read_at, woken) == ("v1.35.4", [0.0, INTERVAL], [0.0])
        cluster.release = "v1.36.3"
        await asyncio.sleep(INTERVAL)
        assert (connection.lower.version, woken) == ("v1.36.3", [0.0, 2 * INTERVAL])
        assert cluster.read_at == [0.0, INTERVAL, 2 * INTERVAL]


@in_virtual_time
async def test_a_version_that_cannot_be_read_is_kept_until_the_next_request() -> None:
    """The cluster may be restarting for its upgrade."""
    cluster = VersionedCluster()
    async with joined(cluster) as (connection, woken):
        await asyncio.sleep(1)
        cluster.release, cluster.error = "v1.36.3", Unreachable("away")
        await asyncio.sleep(INTERVAL)
        assert (connection.lower.version, woken) == ("v1.35.4", [0.0])
        cluster.error = None
        await asyncio.sleep(INTERVAL)
        assert (connection.lower.version, woken) == ("v1.36.3", [0.0, 2 * INTERVAL])
