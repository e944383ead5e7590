"""A fleet that retries at once, and helpers to fill and read its caches."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from scripted import WAIT

from tensile.kube.cluster import Selection
from tensile.kube.fleet import Fleet, InformerSpec
from tensile.kube.limits import InformerTimings
from tensile.kube.store import Cache
from tensile.objects import POD

QUICK = InformerTimings(first=0.01, cap=0.02, near=0.02, shortest=60, longest=60, settled=0.0)


@asynccontextmanager
async def fleet_of(**options: object) -> AsyncIterator[Fleet]:
    """Yield a fleet with very short timings, and close it."""
    settings = {"chance": lambda: 0.5, "pace": QUICK, "probe": 0.02, "patience": WAIT}
    fleet = Fleet(**{**settings, **options})  # type: ignore[arg-type]
    try:
        async with asyncio.timeout(2 * WAIT):
            yield fleet
    finally:
        await fleet.close_all()


def pods(name: str, cache: Cache) -> InformerSpec:
    """Make the spec of an informer that fills a cache with all pods of a cluster."""
    return InformerSpec(name, POD, Selection(), cache)


def names(cache: Cache) -> list[str]:
    """Return the cached names, sorted."""
    return sorted(entry.name for entry in cache)
