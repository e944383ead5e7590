"""Makes sure that a namespace is empty before it is deleted: with it, everything goes that is in it, whoever made it.

No precondition of the API says so. So every kind that the cluster knows is listed, those of extensions too; what cannot
be listed may be there. What Kubernetes itself puts into each namespace does not count.
"""

from collections.abc import Iterable

import orjson

from tensile.cluster import Cluster, Selection
from tensile.errors import Denied
from tensile.objects import CONFIG_MAP, EVENT, POD, SECRET, SERVICE_ACCOUNT, Kind, Ref, metadata
from tensile.reconcile.references import PUBLISHED_BELOW

_FIRST = (POD.plural, CONFIG_MAP.plural, SECRET.plural)
"""Asked for before the others: where something is, one of these is."""
_COUNTED_ELSEWHERE = frozenset({"metrics.k8s.io"})
"""API groups of which every object stands for one of another group."""


async def look_into(cluster: Cluster, space: Ref) -> None:
    """Return where nothing is in a namespace; raises Denied, with the reason NamespaceNotEmpty, where something may be.

    Raises the ClusterError of a cluster that does not answer.
    """
    for kind in sorted(await cluster.kinds(), key=_rank):
        if _counts(kind):
            await _look_for(kind, cluster, space)


async def _look_for(kind: Kind, cluster: Cluster, space: Ref) -> None:
    """Raise Denied where an object of a kind is in a namespace, or may not be looked for."""
    try:
        listing = await cluster.list(kind, Selection(space.name), name_in)
    except Denied as error:
        raise _denied(space, f"whether it holds any {kind.plural} cannot be seen: {error.message}") from None
    found = first_of_somebody(kind, listing.items)
    if found:
        raise _denied(space, f"it holds {kind.name} {found}")


def name_in(raw: bytes) -> str:
    """Return an object's name: of a namespace with much in it, nothing more is kept."""
    return str(metadata(orjson.loads(raw))["name"])


def first_of_somebody(kind: Kind, names: Iterable[str]) -> str:
    """Give the name of the first object of a namespace that somebody put there, "" where Kubernetes did with all."""
    return next((name for name in names if not _is_published(kind, name)), "")


def _is_published(kind: Kind, name: str) -> bool:
    """Say whether each namespace gets an object of that kind and name by itself."""
    if kind == CONFIG_MAP:
        return name in PUBLISHED_BELOW
    return kind == SERVICE_ACCOUNT and name == "default"


def _counts(kind: Kind) -> bool:
    """Say whether objects of a kind are somebody's: events only tell of others, and end by themselves."""
    return kind.plural != EVENT.plural and kind.api.partition("/")[0] not in _COUNTED_ELSEWHERE


def _rank(kind: Kind) -> tuple[int, str, str]:
    place = _FIRST.index(kind.plural) if kind.plural in _FIRST else len(_FIRST)
    return (place, kind.api, kind.plural)


def _denied(space: Ref, why: str) -> Denied:
    message = f"Namespace {space.name} in {space.cluster} is ours and nobody needs it, but {why}: it is left alone"
    return Denied(message, cluster=space.cluster, doing=f"delete Namespace {space.name}", reason="NamespaceNotEmpty")
