"""Whether an engine has observed everything in its clusters, on which its next decisions depend.

An idle engine may be one that a watch has not yet informed: on a busy machine for seconds.
"""

import asyncio
from collections.abc import Mapping

from sitekit import Site

from tensile.kube.fleet import Fleet, InformerSpec
from tensile.kube.informer import Informer
from tensile.kube.requests import query_of, target_of
from tensile.kube.store import Entry
from tensile.objects import UPPER
from tensile.reconcile.dryrun.patch import is_selected


def positions(fleet: Fleet) -> list[int]:
    """Return the position of each watch; a watch at the same position later has received nothing since."""
    return [informer.resume_version for opened in fleet.values() for _, informer in opened.informers]


async def has_seen_all(fleet: Fleet, upper: Site, lowers: Mapping[str, Site]) -> bool:
    """Compare the caches with each reachable cluster, by administrators' connections; those of lowers by name."""
    by_name = {**lowers, UPPER: upper}
    looks = [
        _has_seen(by_name[name], feed, informer)
        for name, opened in fleet.items()
        if name in by_name and not opened.unreachable_seconds and not opened.denied
        for feed, informer in opened.informers
        if feed.cache.synced and not feed.every
    ]
    return all(await asyncio.gather(*looks))


async def _has_seen(site: Site, feed: InformerSpec, informer: Informer) -> bool:
    """Compare a cache with a cluster; an object that the cache leaves out counts if a newer one was observed."""
    path = target_of(feed.kind.path(feed.selection.namespace), query_of(feed.selection))
    there = (await site.read(path)).get("items", [])
    versions = {
        (one["metadata"].get("namespace", ""), one["metadata"]["name"]): int(one["metadata"]["resourceVersion"])
        for one in there
    }
    entries = {(entry.namespace, entry.name): entry for entry in feed.cache}
    newest = informer.resume_version
    return not any(_is_delivered(feed, entry) for key, entry in entries.items() if key not in versions) and all(
        entries[key].version == version if key in entries else version <= newest for key, version in versions.items()
    )


def _is_delivered(feed: InformerSpec, entry: Entry) -> bool:
    """Report whether the watch covers an object: not one that was read by name and has no label."""
    return not entry.raw or is_selected(entry.manifest(), feed.selection)
