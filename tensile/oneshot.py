"""`plan` and `apply`: the engine's own loop, run until there is nothing left to do.

`plan` lets it loose on rehearsals over copies of the caches, so it cannot say anything else than what `run` would do;
`apply` on the clusters themselves. Both need every cluster: half a picture would be a wrong plan.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

from tensile.cache import Cache
from tensile.cluster import Cluster
from tensile.clusters import Clusters, Connections, utc_now
from tensile.errors import TensileError
from tensile.feeds import bound_feed, lower_feeds, upper_feeds
from tensile.joined import Joined, Ways
from tensile.kube.denials import ADVICE
from tensile.kube.fleet import Feed, Fleet
from tensile.nodeaddress import address_in_use, node_address
from tensile.objects import UPPER
from tensile.reconcile.loop import Loop, Observer, Timing
from tensile.reconcile.rehearsal import Rehearsal
from tensile.reconcile.selecting import is_selected
from tensile.rules import rules
from tensile.topology import Lower, Topology
from tensile.world import Key, Problem, World

PATIENCE = 20.0
"""Seconds in which every cluster has to answer and to list everything."""
_LONGEST = 120.0
_SOON = 1.0
_PAUSE = 0.2


class Unreached(TensileError):
    """A cluster did not answer in time."""


@asynccontextmanager
async def opened(topology: Topology, ways: Ways) -> AsyncIterator[Clusters]:
    """Open every cluster of a topology and read everything; Unreached names those that do not answer."""
    fleet = Fleet(chance=random.random)
    clusters = Clusters(fleet, ways, lambda _lower: None, beat=False)
    try:
        await clusters.open_upper(topology)
        await _fill(clusters, topology)
        yield clusters
    finally:
        await clusters.close()


Problems = dict[Key, Problem]


async def rehearse(clusters: Clusters, observer: Observer) -> Problems:
    """Let the loop do all that it would, in memory; gives what would stand in the way then."""
    world = clusters.world.copy()
    rehearsals = {name: _rehearsal(name, world, clusters.connections) for name in (UPPER, *world.lowers)}
    for feed in _feeds(world):
        rehearsals[feed.cluster].follow(feed.kind, feed.cache, partial(_picks, feed))
    loop = _loop(world, rehearsals, observer)
    while True:
        await loop.quiet()
        if not loop.hasten(_SOON):
            break
    problems = dict(world.problems)
    await _close(loop, world)
    return problems


async def converge(clusters: Clusters, observer: Observer, *, forced: bool) -> Problems:
    """Do all that there is to do; gives what stands in the way of the rest."""
    world = clusters.world
    loop = _loop(world, dict(clusters.connections), observer, forced=forced)
    try:
        async with asyncio.timeout(_LONGEST):
            await _until_calm(loop)
        return dict(world.problems)
    except TimeoutError:
        raise Unreached(f"the clusters did not come to rest in {_LONGEST:g} s: {loop.depth}") from None
    finally:
        await _close(loop, world)


async def _fill(clusters: Clusters, topology: Topology) -> None:
    by_file, by_secret = _by_source(topology)
    await _check_credentials(clusters, by_file, Cache())
    waiting = {UPPER}
    try:
        async with asyncio.timeout(PATIENCE):
            await clusters.make_world(topology, node_address(topology, clusters.upper_address))
            await clusters.fleet.synced(UPPER)
            clusters.world.node_address = address_in_use(clusters.world)
            await _check_credentials(clusters, by_secret, clusters.world.upper.secrets)
            for spec in topology.lowers:
                clusters.join(spec)
            for stray in clusters.strays():
                clusters.join(stray, connect=False)
            waiting = set(clusters.joined)
            await asyncio.gather(*(_completed(joined, waiting) for joined in clusters.joined.values()))
            waiting = {UPPER}
            await clusters.fleet.synced(UPPER)
    except TimeoutError:
        raise Unreached("\n".join(_why(clusters, name) for name in sorted(waiting))) from None


async def _completed(joined: Joined, waiting: set[str]) -> None:
    """Wait for one lower beside the others, so that one that does not answer is not taken for all of them."""
    await joined.complete()
    waiting.discard(joined.lower.name)


def _by_source(topology: Topology) -> tuple[list[Lower], list[Lower]]:
    """Give the lowers whose kubeconfig is a file, and those that have it in a Secret."""
    by_secret = [spec for spec in topology.lowers if spec.kubeconfig_secret is not None]
    return [spec for spec in topology.lowers if spec not in by_secret], by_secret


async def _check_credentials(clusters: Clusters, lowers: Iterable[Lower], secrets: Cache) -> None:
    """Say at once which credentials cannot be read: waiting would not help."""
    troubles = []
    for spec in lowers:
        try:
            await clusters.ways.lower_access(spec, secrets)
        except TensileError as error:
            troubles.append(f"{spec.name}: {error}")
    if troubles:
        raise Unreached("\n".join(troubles))


def _why(clusters: Clusters, name: str) -> str:
    """Say what is known of a cluster that did not answer, or not all that it was asked."""
    joined, fleet = clusters.joined.get(name), clusters.fleet
    known, denied = (fleet.health(name).error, fleet.denied(name)) if name in fleet.names() else ("", "")
    if denied and not known:
        return f"{denied}: {ADVICE}"
    reason = (joined.lower.refusal if joined else "") or known or "lists did not come in time"
    return f"{name or 'upper'}: out of reach: {reason}"


def _loop(world: World, clusters: Mapping[str, Cluster], observer: Observer, *, forced: bool = False) -> Loop:
    loop = Loop(world, rules(), clusters, observer, Timing(utc_now, random.random), forced=forced)
    for name in world.lowers:
        loop.open(name)
    return loop


async def _close(loop: Loop, world: World) -> None:
    for name in world.lowers:
        await loop.close(name)


async def _until_calm(loop: Loop) -> None:
    """Wait until nothing is worked on, nothing comes soon, and nothing waits for what may still come."""
    calm = 0
    while calm < 1 / _PAUSE:
        await loop.quiet()
        await asyncio.sleep(_PAUSE)
        calm = 0 if loop.hasten(_PAUSE) or any(loop.depth.values()) or loop.waiting else calm + 1


def _rehearsal(name: str, world: World, connections: Connections) -> Rehearsal:
    rehearsal = Rehearsal(name, behind=connections.get(name), ends_pods=name != UPPER, now=utc_now)
    for feed in _feeds(world):
        for entry in feed.cache if feed.cluster == name else ():
            if entry.raw:
                rehearsal.hold(feed.kind, entry.raw)
    return rehearsal


def _feeds(world: World) -> Iterator[Feed]:
    yield from upper_feeds(world.upper, world.owner, world.topology.enabled)
    for lower in world.lowers.values():
        yield bound_feed(lower)
        yield from lower_feeds(lower, world.owner, places=world.topology.places)


def _picks(feed: Feed, manifest: dict[str, object]) -> bool:
    return is_selected(manifest, feed.selection)
