"""The copy of an upper object in a lower cluster, and the pods that need it: always derived from the upper object.

Marks say whose an object is, but prove nothing: whoever may create a pod in a lower namespace can write them. So copies
are never found by a search for marks. An upper object maps to one *place*: its lower, the mapped namespace, and its
name. Its copy is the object under that name with our mark and its UID. An object with our mark that no upper object
maps to is a *stray*: it is never read from, changed, deleted, counted or waited for.

Copies are created and updated for upper pods that are bound to the lower's node and run, or will run. A lower pod of
ours whose upper pod is gone protects the copies that it refers to from deletion, unchanged.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from tensile.kube.store import Cache, Delta, Entry
from tensile.names import Owner
from tensile.objects import CONFIG_MAP, POD, SECRET, Kind
from tensile.reconcile.pods.index import is_lower_pod_of, needs_lower_pod
from tensile.reconcile.pods.references import Reference
from tensile.reconcile.world import LowerWorld, World

_NO_REFERENCES = frozenset[Reference]()


def existing_copy(upper: Entry, lower: LowerWorld) -> Entry | None:
    """Return the lower pod with our label under the mapped name of an upper pod, whatever its other marks."""
    namespace = lower.namespace(upper.namespace)
    return lower.pods.get(namespace, upper.name) if lower.upper_namespace(namespace) else None


def mirror_of(upper: Entry, lower: LowerWorld, owner: Owner) -> Entry | None:
    """Return the copy of an upper pod in a lower cluster, None if there is none."""
    found = existing_copy(upper, lower)
    return found if found is not None and is_lower_pod_of(found, upper, owner) else None


def upper_of(lower_pod: Entry, lower: LowerWorld) -> Entry | None:
    """Return the upper pod on the lower's node whose mapped name a lower pod has, whether it is its copy or not."""
    namespace = lower.upper_namespace(lower_pod.namespace)
    return lower.upper_pods.get(namespace, lower_pod.name) if namespace else None


def pods_referring_to(lower: LowerWorld, world: World, kind: str, namespace: str, name: str) -> Iterator[Entry]:
    """Yield the running or starting upper pods that refer to an object, by its kind, upper namespace and name."""
    for entry in lower.upper_pods.select("reference", (kind, namespace, name)):
        if needs_lower_pod(entry, world.topology.exclude_namespaces):
            yield entry


def may_be_created(pods: Iterable[Entry]) -> bool:
    """Report whether a missing copy may be created: not if all pods that need it are being deleted."""
    return any(not pod.facts.terminating for pod in pods)


def is_referenced_in_lower(lower: LowerWorld, kind: str, namespace: str, name: str) -> bool:
    """Report whether a lower pod of ours refers to the copy of an object, by its upper namespace and name."""
    return lower.pods.count("reference", (kind, lower.namespace(namespace), name)) > 0


def has_pods(lower: LowerWorld, namespace: str, world: World) -> bool:
    """Report whether pods of an upper namespace run in a lower, or will."""
    return namespace not in world.topology.exclude_namespaces and lower.upper_pods.count("living", namespace) > 0


def namespaces_with_pods(lower: LowerWorld, world: World) -> Iterator[str]:
    """Yield the upper namespaces of which pods run in a lower, or will, in order."""
    return (name for name in sorted(map(str, lower.upper_pods.values("living"))) if has_pods(lower, name, world))


def has_lower_pods(lower: LowerWorld, namespace: str) -> bool:
    """Report whether a lower pod of ours is in the lower namespace that an upper namespace maps to."""
    return lower.pods.count("namespace", lower.namespace(namespace)) > 0


def is_missing_undeleted(originals: Cache, namespace: str, name: str) -> bool:
    """Report whether the upper cluster does not have an object, though its deletion was not seen."""
    tombstone = originals.tombstone(namespace, name)
    return originals.get(namespace, name) is None and not (tombstone is not None and tombstone.seen)


def changed_references(delta: Delta, excluded: Collection[str] | None = None) -> frozenset[Reference]:
    """Return what a pod begins or ceases to refer to.

    For an upper pod, `excluded` are the namespaces whose pods are not mirrored: one that ends needs nothing any more. A
    lower pod (None) refers to the same until it is deleted.
    """
    before, after = _references(delta.before, excluded), _references(delta.after, excluded)
    return _NO_REFERENCES if before is after else before ^ after


def _references(pod: Entry | None, excluded: Collection[str] | None) -> frozenset[Reference]:
    if pod is None or (excluded is not None and not needs_lower_pod(pod, excluded)):
        return _NO_REFERENCES
    found: frozenset[Reference] = pod.facts.references
    return found


def first_pod_namespace(lower: LowerWorld, delta: Delta) -> str:
    """Return the namespace that an upper pod is the first of, else ""."""
    is_first = _needs_copy(delta.after) and not _needs_copy(delta.before)
    return _if_count(lower.upper_pods, "living", delta, 1) if is_first else ""


def last_pod_namespace(lower: LowerWorld, delta: Delta) -> str:
    """Return the namespace that an upper pod was the last of, else ""."""
    is_last = _needs_copy(delta.before) and not _needs_copy(delta.after)
    return _if_count(lower.upper_pods, "living", delta, 0) if is_last else ""


def last_lower_pod_namespace(lower: LowerWorld, delta: Delta) -> str:
    """Return the upper namespace that a lower pod was the last of, else ""."""
    namespace = "" if delta.after else _if_count(lower.pods, "namespace", delta, 0)
    return lower.upper_namespace(namespace) if namespace else ""


def _needs_copy(pod: Entry | None) -> bool:
    return pod is not None and not (pod.facts.terminal or pod.facts.daemon)


def _if_count(cache: Cache, index: str, delta: Delta, count: int) -> str:
    namespace = delta.entry.namespace
    return namespace if cache.count(index, namespace) == count else ""


class BoundPod(NamedTuple):
    """An upper pod, and the lower to whose node it is bound."""

    pod: Entry
    lower: LowerWorld


def bound(upper_uid: str, world: World) -> BoundPod | None:
    """Return the upper pod of that UID, None if it is on no lower's node."""
    for lower in world.lowers.values():
        for pod in lower.upper_pods.select("uid", upper_uid):
            return BoundPod(pod, lower)
    return None


def bound_as(namespace: str, name: str, world: World) -> BoundPod | None:
    """Return the upper pod of that name, None if it is on no lower's node."""
    for lower in world.lowers.values():
        pod = lower.upper_pods.get(namespace, name)
        if pod is not None:
            return BoundPod(pod, lower)
    return None


def stray_copies(lower: LowerWorld, owner: Owner) -> Iterator[tuple[Kind, Entry]]:
    """Yield the pods, ConfigMaps and Secrets with our mark in namespaces that no upper namespace maps to."""
    for kind, cache in ((POD, lower.pods), (CONFIG_MAP, lower.config_maps), (SECRET, lower.secrets)):
        for entry in cache:
            if entry.facts.owner == owner.mark and not lower.upper_namespace(entry.namespace):
                yield kind, entry


def strays(lower: LowerWorld, owner: Owner) -> int:
    """Return the number of `stray_copies`."""
    return sum(1 for _ in stray_copies(lower, owner))
