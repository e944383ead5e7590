"""Clusters in memory that commands open, as `tensile.engine.plan_and_apply.opened` opens real ones."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from stagekit import FaultyCluster
from worldkit import (
    A,
    add_namespace,
    add_virtual_node,
    make_lower_pod,
    make_namespace,
    make_service_account,
    make_upper_pod,
    make_world,
    put,
)

from tensile.engine.caches import bound_feed, lower_feeds, upper_feeds
from tensile.engine.clusters import utc_now
from tensile.engine.plan_and_apply import OpenedClusters, previewed, rehearse
from tensile.kube.fleet import InformerSpec
from tensile.objects import SERVICE_ACCOUNT, UPPER, Ref
from tensile.reconcile.dryrun.patch import is_selected
from tensile.reconcile.report import WHOLE_PLAN, PlanScope, Recorder, SavedPlan, SavedTopology, saved
from tensile.reconcile.world import World


class MemoryClusters:
    """The clusters of a world, whose caches follow all writes.

    `unreached` maps lowers that are not opened to the reason.
    """

    def __init__(self, of: World, **unreached: str) -> None:
        self.world = of
        self.unreached = unreached
        self.opened_times = 0
        self.connections = {
            name: FaultyCluster(name, ends_pods=name != UPPER, now=utc_now) for name in (UPPER, *of.lowers)
        }
        feeds = upper_feeds(of.upper, of.owner, of.topology.enabled)
        for lower in of.lowers.values():
            feeds += [bound_feed(lower), *lower_feeds(lower, of.owner)]
        for feed in feeds:
            self._follow(feed)
        for name in of.lowers:
            self.connections[name].place(SERVICE_ACCOUNT, make_service_account())

    def _follow(self, feed: InformerSpec) -> None:
        """Put the objects of a cache into its cluster, and apply the cluster's writes to the cache."""
        cluster = self.connections[feed.cluster]
        for entry in feed.cache:
            if entry.raw:
                cluster.hold(feed.kind, entry.raw)
        cluster.follow(feed.kind, feed.cache, partial(_selects, feed))

    @asynccontextmanager
    async def opening(self) -> AsyncIterator[OpenedClusters]:
        """Yield the clusters as if they had just been opened."""
        self.opened_times += 1
        yield OpenedClusters(self, self.unreached)  # type: ignore[arg-type]

    @property
    def writes(self) -> list[tuple[str, Ref]]:
        """All writes to all clusters since the start."""
        return [write for cluster in self.connections.values() for write in cluster.writes]

    @property
    def lower_writes(self) -> set[str]:
        """The writes to lower-a, each as "create Pod new"."""
        return {f"{verb} {ref.kind.name} {ref.name}" for verb, ref in self.connections[A].writes}


async def saved_plan(clusters: MemoryClusters, only: PlanScope = WHOLE_PLAN) -> SavedPlan:
    """Return what `tensile plan --out` would save."""
    recorder = Recorder()
    async with clusters.opening() as found:
        made = await previewed(found.clusters, found.unreached, recorder, partial(rehearse, observer=recorder), only)
    return saved(made.preview, SavedTopology("demo", "", "0" * 64), made.clusters, "salt")


def _selects(feed: InformerSpec, manifest: dict[str, object]) -> bool:
    return is_selected(manifest, feed.selection)


def mixed_world(*lowers: str) -> World:
    """Return a world with a pod to create, one that is up to date, and one to delete, all in lower-a.

    `lowers` are as in `make_world`; lower-a alone if none are given.
    """
    world = make_world(*(lowers or (f"name: {A}",)))
    add_namespace(world)
    put(world.upper.namespaces, make_namespace())
    add_virtual_node(world)
    kept = make_upper_pod("kept", resourceVersion="3")
    put(world.lowers[A].upper_pods, make_upper_pod("new"), kept)
    put(world.lowers[A].pods, make_lower_pod(kept), make_lower_pod(make_upper_pod("orphan")))
    return world
