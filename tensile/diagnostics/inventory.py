"""`tensile list`: every object that this topology owns, cluster by cluster.

The mark says whose an object is and proves nothing: everybody who may write objects can write the label. So the list is
for people who look for what a topology left somewhere, or what stands in the way of its removal. Nothing is decided
from it.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import orjson

from tensile.diagnostics.commands import PATIENCE, read_lower, reading_upper, secrets_of
from tensile.engine.lower import ClusterAccess
from tensile.errors import ClusterError, NotFound, TensileError
from tensile.kube.cluster import Cluster, Selection
from tensile.names import OWNER, UPPER_NAMESPACE, owner_of
from tensile.objects import (
    CLAIM,
    CONFIG_MAP,
    ENDPOINT_SLICE,
    NAMESPACE,
    NODE,
    POD,
    ROLE,
    ROLE_BINDING,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    VOLUME,
    Kind,
    Manifest,
    Ref,
    annotations,
    labels,
    metadata,
)
from tensile.policy.webhook.admission_policy import binding_ref, policy_ref
from tensile.policy.webhook.registration import ref_of
from tensile.text import aligned, counted
from tensile.topology import Topology

FORMAT = "1.0"
_UPPER_KINDS = (NODE, VOLUME, CONFIG_MAP, SECRET)
_LOWER_KINDS = (
    NAMESPACE,
    POD,
    CONFIG_MAP,
    SECRET,
    CLAIM,
    SERVICE,
    ENDPOINT_SLICE,
    SERVICE_ACCOUNT,
    ROLE,
    ROLE_BINDING,
)
_HEAD = ("CLUSTER", "KIND", "NAMESPACE", "NAME", "UPPER NAMESPACE", "CREATED")


class Item(NamedTuple):
    """One object. `upper_namespace` is the namespace that a lower namespace mirrors, "" for other objects."""

    cluster: str
    kind: str
    namespace: str
    name: str
    upper_namespace: str
    created: str


class Inventory(NamedTuple):
    """The objects of each cluster, and the clusters and kinds that could not be listed, with the reasons."""

    items: tuple[Item, ...]
    unread: tuple[str, ...]


def inventory(topology: Topology, cluster_access: ClusterAccess, only: Sequence[str] = ()) -> Inventory:
    """Return what a topology owns, in the upper cluster and its lowers; `only` limits it to these lowers.

    Raises TensileError if the upper cluster is unreachable, or for a lower that is not in the topology.
    """
    names = [spec.name for spec in topology.lowers]
    unknown = next((name for name in only if name not in names), None)
    if unknown is not None:
        raise TensileError(f"list {unknown}: no lower cluster of that name; there are {', '.join(names) or 'none'}")
    return asyncio.run(read_inventory(topology, cluster_access, only))


async def read_inventory(topology: Topology, cluster_access: ClusterAccess, only: Sequence[str] = ()) -> Inventory:
    """Return the same; `only` names lowers of the topology.

    The upper cluster is listed first, since its Secrets may hold the kubeconfigs of lower clusters.
    """
    lowers = [spec for spec in topology.lowers if not only or spec.name in only]
    async with reading_upper(topology, cluster_access) as upper:
        async with asyncio.timeout(PATIENCE):
            mark = owner_of(await upper.identify(), topology.name).mark
        secrets = await secrets_of(upper, lowers)
        named = (ref_of(topology), policy_ref(topology.name), binding_ref(topology.name))
        upper_reads = [] if only else [_owned(upper, _UPPER_KINDS, mark), _registered(upper, named, mark)]
        owned = partial(_owned, kinds=_LOWER_KINDS, mark=mark)
        found = await asyncio.gather(
            *upper_reads, *(read_lower(spec, cluster_access, secrets, owned, _unread) for spec in lowers)
        )
    items = (item for part in found for item in part.items)
    return Inventory(tuple(items), tuple(error for part in found for error in part.unread))


def _unread(_name: str, error: str) -> Inventory:
    return Inventory((), (error,))


async def _registered(upper: Cluster, refs: Iterable[Ref], mark: str) -> Inventory:
    """Read objects whose name follows from the topology's: the engine is permitted to read these alone."""
    items: list[Item] = []
    unread: list[str] = []
    for ref in refs:
        try:
            async with asyncio.timeout(PATIENCE):
                found = orjson.loads(await upper.read(ref))
        except NotFound:
            continue
        except ClusterError as error:
            unread.append(f"upper: {ref.kind.plural} {ref.name}: {error.message}")
            continue
        if labels(found).get(OWNER) == mark:
            items.append(_item(upper.name, ref.kind, found))
    return Inventory(tuple(items), tuple(unread))


async def _owned(cluster: Cluster, kinds: Iterable[Kind], mark: str) -> Inventory:
    """List the objects with the mark; a kind that cannot be listed hides no other."""
    results = await asyncio.gather(*(_listed(cluster, kind, mark) for kind in kinds), return_exceptions=True)
    items: list[Item] = []
    unread: list[str] = []
    for kind, result in zip(kinds, results, strict=True):
        match result:
            case list():
                items += result
            case NotFound():
                pass  # the cluster does not have this kind
            case ClusterError():
                unread.append(f"{cluster.name or 'upper'}: {kind.plural}: {result.message}")
            case TimeoutError():
                unread.append(f"{cluster.name or 'upper'}: {kind.plural}: no answer in {PATIENCE:g} s")
            case BaseException():
                raise result
    return Inventory(tuple(items), tuple(unread))


async def _listed(cluster: Cluster, kind: Kind, mark: str) -> list[Item]:
    async with asyncio.timeout(PATIENCE):
        selection = Selection(labels=f"{OWNER}={mark}")
        found = await cluster.list(kind, selection, lambda raw: _item(cluster.name, kind, orjson.loads(raw)))
    return sorted(found.items)


def _item(cluster: str, kind: Kind, manifest: Manifest) -> Item:
    """Return an object as an item; nothing else of it is kept."""
    meta = metadata(manifest)
    mirrored_namespace = annotations(manifest).get(UPPER_NAMESPACE, "") if kind == NAMESPACE else ""
    cluster_name, created = cluster or "upper", meta.get("creationTimestamp", "")
    return Item(cluster_name, kind.name, meta.get("namespace", ""), meta["name"], mirrored_namespace, created)


def as_json(found: Inventory) -> str:
    """Return the list as JSON: `formatVersion`, `items`, and `unread` for what could not be listed."""
    document: dict[str, Any] = {
        "formatVersion": FORMAT,
        "items": [one._asdict() for one in found.items],
        "unread": found.unread,
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def as_text(found: Inventory) -> str:
    """Return the list as a table, followed by the number of objects of each cluster."""
    rows = [_HEAD, *(tuple(cell or "-" for cell in one) for one in found.items)]
    return "\n".join([*(aligned(rows) if found.items else ()), *([""] if found.items else ()), *_totals(found)])


def _totals(found: Inventory) -> Iterator[str]:
    counts = Counter(one.cluster for one in found.items)
    yield from (f"{cluster}: {counted(count, 'object')}" for cluster, count in counts.items())
    if not counts:
        yield "No objects."
