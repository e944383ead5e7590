"""Whether an engine has seen all that its clusters have, from which it decides what to do next.

One that has nothing to do may be one that a watch has not told yet: on a busy machine for seconds.
"""

import asyncio
from collections.abc import Mapping

from sitekit import Site

from tensile.kube.fleet import Fleet, InformerSpec
from tensile.kube.informer import Informer
from tensile.kube.requests import query_of, target_of
from tensile.objects import UPPER


def positions(fleet: Fleet) -> list[int]:
    """Return how far each watch has come: what is the same later has told of nothing meanwhile."""
    return [informer.newest for opened in fleet.values() for _, informer in opened.informers]


async def has_seen_all(fleet: Fleet, sites: Mapping[str, Site]) -> bool:
    """Look at each cluster that answers; `sites` are their administrators' connections by name."""
    by_name = {**sites, UPPER: sites["upper"]}
    looks = [
        _has_seen(by_name[name], feed, informer)
        for name, opened in fleet.items()
        if name in by_name and not opened.silent and not opened.denied
        for feed, informer in opened.informers
        if feed.cache.synced and not feed.every
    ]
    return all(await asyncio.gather(*looks))


async def _has_seen(site: Site, feed: InformerSpec, informer: Informer) -> bool:
    """Compare a cache with what a cluster has; what a cache leaves out has been seen when something newer was."""
    path = target_of(feed.kind.path(feed.selection.namespace), query_of(feed.selection))
    there = (await site.read(path)).get("items", [])
    versions = {
        (one["metadata"].get("namespace", ""), one["metadata"]["name"]): int(one["metadata"]["resourceVersion"])
        for one in there
    }
    known = {(entry.namespace, entry.name): entry.version for entry in feed.cache}
    newest = informer.newest
    return known.keys() <= versions.keys() and all(
        known[key] == version if key in known else version <= newest for key, version in versions.items()
    )
