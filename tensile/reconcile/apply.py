"""Carries one step out, to the letter, and decides nothing.

What the cluster answers goes into the caches at once: the next decision then rests on what was written, not on what the
watch has got round to telling.
"""

from collections.abc import Callable

import orjson

from tensile.cache import Cache
from tensile.cluster import Cluster
from tensile.errors import NotFound
from tensile.names import OWNER, REPLACES, UPPER_UID
from tensile.objects import NAMESPACE, UPPER, Manifest, annotations, labels, metadata, uid
from tensile.reconcile.observed import upper_uid_of
from tensile.reconcile.plan import EVICTION, Step
from tensile.reconcile.vacancy import look_into
from tensile.world import Problem


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
    """Say whether the object that a step is about is still known to stand."""
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
    """Say whether two pods were made in the same one's place."""
    return REPLACES in annotations(wanted) and annotations(found).get(REPLACES) == annotations(wanted)[REPLACES]


def _same_owner(found: Manifest, wanted: Manifest) -> bool:
    return labels(found).get(OWNER) == labels(wanted).get(OWNER) and bool(upper_uid_of(found))
