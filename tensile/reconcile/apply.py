"""Carries one step out, to the letter, and decides nothing.

What the cluster answers goes into the caches at once: the next decision then rests on what was written, not on what the
watch has got round to telling.

Makes sure that a namespace is empty before it is deleted: with it, everything goes that is in it, whoever made it.

No precondition of the API says so. So every kind that the cluster knows is listed, those of extensions too; what cannot
be listed may be there. What Kubernetes itself puts into each namespace does not count.
"""

from collections.abc import Callable, Iterable

import orjson

from tensile.errors import Denied, NotFound
from tensile.kube.cluster import Cluster, Selection
from tensile.kube.store import Cache
from tensile.names import OWNER, REPLACES, UPPER_UID
from tensile.objects import (
    CONFIG_MAP,
    EVENT,
    NAMESPACE,
    POD,
    SECRET,
    SERVICE_ACCOUNT,
    UPPER,
    Kind,
    Manifest,
    Ref,
    annotations,
    labels,
    metadata,
    uid,
)
from tensile.reconcile.ownership import upper_uid_of
from tensile.reconcile.plan import EVICTION, Step
from tensile.reconcile.pods.references import PUBLISHED_BELOW
from tensile.reconcile.world import Problem

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
    """Return the name of the first object of a namespace that somebody put there, "" where Kubernetes did with all."""
    return next((name for name in names if not _is_published(kind, name)), "")


def _is_published(kind: Kind, name: str) -> bool:
    """Report whether each namespace gets an object of that kind and name by itself."""
    if kind == CONFIG_MAP:
        return name in PUBLISHED_BELOW
    return kind == SERVICE_ACCOUNT and name == "default"


def _counts(kind: Kind) -> bool:
    """Report whether objects of a kind are somebody's: events only tell of others, and end by themselves."""
    return kind.plural != EVENT.plural and kind.api.partition("/")[0] not in _COUNTED_ELSEWHERE


def _rank(kind: Kind) -> tuple[int, str, str]:
    place = _FIRST.index(kind.plural) if kind.plural in _FIRST else len(_FIRST)
    return (place, kind.api, kind.plural)


def _denied(space: Ref, why: str) -> Denied:
    message = f"Namespace {space.name} in {space.cluster} is ours and nobody needs it, but {why}: it is left alone"
    return Denied(message, cluster=space.cluster, doing=f"delete Namespace {space.name}", reason="NamespaceNotEmpty")


async def carry_out(step: Step, cluster: Cluster, cache: Cache | None) -> None:
    """Send the step's request; raises the ClusterError with which the cluster refused it."""
    match step.verb:
        case "create":
            _doubt(step, cache)
            raw = await cluster.create(step.ref, step.body or {})
        case "patch":
            assert step.patch is not None
            raw = await cluster.patch(step.ref, step.patch, step.subresource)
        case "delete":
            await _delete(step, cluster, cache)
            return
        case "confirm":
            await reread(step, cluster, cache)
            return
    if cache is not None:
        cache.absorb(raw)


def _doubt(step: Step, cache: Cache | None) -> None:
    """Note, before it is sent, that a create may come through even where its answer does not."""
    if cache is not None:
        cache.doubt(step.ref.namespace, step.ref.name)


async def _delete(step: Step, cluster: Cluster, cache: Cache | None) -> None:
    """Delete, and note at once whether the object is gone or only ending; the answer to an eviction does not tell."""
    if step.subresource == EVICTION:
        await cluster.evict(step.ref, uid=step.uid)
        await reread(step, cluster, cache)
        return
    if step.vacant:
        await look_into(cluster, step.ref)
    raw = await cluster.delete(step.ref, uid=step.uid, grace=step.grace, version=step.version)
    if cache is None:
        return
    if _is_gone(orjson.loads(raw), step.grace):
        cache.confirm_deleted(step.ref.namespace, step.ref.name, step.uid)
    else:
        cache.absorb(raw)


def _is_gone(answer: Manifest, grace: int | None) -> bool:
    """Read the answer to a delete: finalizers and a grace period keep an object, and nothing else does."""
    if answer.get("kind") == "Status":
        return True
    meta = metadata(answer)
    if meta.get("finalizers"):
        return False
    return grace == 0 or not meta.get("deletionTimestamp") or meta.get("deletionGracePeriodSeconds") == 0


async def reread(step: Step, cluster: Cluster, cache: Cache | None) -> None:
    """Read the step's object at quorum and let the cache know: of the object, or that it is gone for certain.

    An object of that name which is neither the one of `step.uid` nor made for it, nor one that the cache knows by its
    UID, counts as gone: the name is another's. So does one that the cache does not select: an upper pod on another
    node. That the one of `step.uid` is not there is noted in any case.
    """
    if cache is None:
        return
    since = cache.horizon(step.ref.namespace, step.ref.name)
    try:
        raw = await cluster.read(step.ref)
    except NotFound:
        cache.confirm_absent(step.ref.namespace, step.ref.name, since, sought=step.uid)
        return
    found = orjson.loads(raw)
    known, is_it = cache.get(step.ref.namespace, step.ref.name), _is_about(step, found) and cache.selects(found)
    if not is_it and (known is None or known.uid != uid(found)):
        cache.confirm_absent(step.ref.namespace, step.ref.name, since, sought=step.uid)
        return
    cache.put(raw)
    if not is_it:
        cache.note_gone(step.ref.namespace, step.ref.name, step.uid)


def _is_about(step: Step, found: Manifest) -> bool:
    """Report whether what was read is what the step is about, by its own UID or, below, that of its upper object."""
    is_lower = step.ref.cluster != UPPER
    return step.uid in ("", uid(found)) or (is_lower and step.uid == annotations(found).get(UPPER_UID))


def is_there(step: Step, cache: Cache | None) -> bool:
    """Report whether the object that a step is about is still known to stand."""
    known = cache.get(step.ref.namespace, step.ref.name) if cache else None
    return known is not None and known.uid == step.uid


Judge = Callable[[Manifest], Problem | None]
"""Says what keeps an object that is not ours from being taken over."""


async def taken(step: Step, cluster: Cluster, cache: Cache | None, judge: Judge) -> Problem | None:
    """After AlreadyExists: say that the name is another's; where it is not, the cache gets to know the object.

    It does so too where the watch does not select the object any more, as one that lost a label.
    An Event that exists has been told. A namespace that exists is known already, or will be. A pod whose place another
    is to have is only not gone yet.
    """
    if cache is None:
        return None
    try:
        raw = await cluster.read(step.ref)
    except NotFound:
        return None
    found, wanted = orjson.loads(raw), step.body or {}
    if step.ref.kind == NAMESPACE or _same_owner(found, wanted) or _same_place(found, wanted):
        cache.admit(raw)
        return None
    if uid(found) == annotations(wanted).get(REPLACES):
        return None
    problem = judge(found)
    if problem is None:
        cache.admit(raw)
    return problem


def _same_place(found: Manifest, wanted: Manifest) -> bool:
    """Report whether two pods were made in the same one's place."""
    return REPLACES in annotations(wanted) and annotations(found).get(REPLACES) == annotations(wanted)[REPLACES]


def _same_owner(found: Manifest, wanted: Manifest) -> bool:
    return labels(found).get(OWNER) == labels(wanted).get(OWNER) and bool(upper_uid_of(found))
