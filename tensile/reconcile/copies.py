"""The copy of an upper object in a lower cluster, and who asks for what: always worked out from the upper object down.

Marks say whose an object is, and prove nothing: whoever may create a pod in a lower namespace can write them. So
nothing is found by searching lower objects for marks. An upper object has one *place*: its lower, the namespace that
its own is mapped to, and its name. Its copy is what stands there with our mark and its UID. What carries our mark at no
place is a *stray*: nothing is read from it, and it is neither changed nor deleted nor counted nor waited for.

Copies are made and kept in step for upper pods that are bound here and run, or are going to: these *ask*. A lower pod
of ours that is still there though its upper pod is gone keeps the copies that it refers to from deletion, as they are.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tensile.kube.store import Entry
from tensile.names import Owner
from tensile.reconcile.pods.index import lives_below, mirrors
from tensile.reconcile.world import LowerWorld, World


def standing(upper: Entry, lower: LowerWorld) -> Entry | None:
    """Return the lower pod with our label at the place of an upper pod, whatever else is written on it."""
    namespace = lower.namespace(upper.namespace)
    return lower.pods.get(namespace, upper.name) if lower.upper_namespace(namespace) else None


def mirror_of(upper: Entry, lower: LowerWorld, owner: Owner) -> Entry | None:
    """Return the copy of an upper pod in a lower cluster, None where there is none."""
    found = standing(upper, lower)
    return found if found is not None and mirrors(found, upper, owner) else None


def upper_of(below: Entry, lower: LowerWorld) -> Entry | None:
    """Return the upper pod bound to the lower's node at whose place a lower pod stands, be that its copy or not."""
    namespace = lower.upper_namespace(below.namespace)
    return lower.upper_pods.get(namespace, below.name) if namespace else None


def asking(lower: LowerWorld, world: World, kind: str, namespace: str, name: str) -> Iterator[Entry]:
    """Return the upper pods that ask for an object which they name, by its kind and upper namespace and name."""
    for entry in lower.upper_pods.select("reference", (kind, namespace, name)):
        if lives_below(entry, world.topology.exclude_namespaces):
            yield entry


def may_be_made(askers: Iterator[Entry]) -> bool:
    """Report whether a copy that is missing may be made: for a pod that is being deleted nothing new is."""
    return any(not pod.facts.terminating for pod in askers)


def keeps(lower: LowerWorld, kind: str, namespace: str, name: str) -> bool:
    """Report whether a lower pod of ours refers to the copy of an object, by its upper namespace and name."""
    return lower.pods.count("reference", (kind, lower.namespace(namespace), name)) > 0


def is_inhabited(lower: LowerWorld, namespace: str, world: World) -> bool:
    """Report whether pods of an upper namespace run in a lower, or are going to."""
    return namespace not in world.topology.exclude_namespaces and lower.upper_pods.count("living", namespace) > 0


def keeps_namespace(lower: LowerWorld, namespace: str) -> bool:
    """Report whether a lower pod of ours is in the namespace that an upper one is mapped to."""
    return lower.pods.count("namespace", lower.namespace(namespace)) > 0


class Bound(NamedTuple):
    """An upper pod, and the lower to whose node it is bound."""

    pod: Entry
    lower: LowerWorld


def bound(upper_uid: str, world: World) -> Bound | None:
    """Return the upper pod of that UID, None where it is on no lower's node."""
    for lower in world.lowers.values():
        for pod in lower.upper_pods.select("uid", upper_uid):
            return Bound(pod, lower)
    return None


def bound_as(namespace: str, name: str, world: World) -> Bound | None:
    """Return the upper pod of that name, None where it is on no lower's node."""
    for lower in world.lowers.values():
        pod = lower.upper_pods.get(namespace, name)
        if pod is not None:
            return Bound(pod, lower)
    return None


def strays(lower: LowerWorld, owner: Owner) -> int:
    """Count the pods, ConfigMaps and Secrets of a lower cluster that carry our mark at no place."""
    caches = (lower.pods, lower.config_maps, lower.secrets)
    marked = (one for cache in caches for one in cache if one.facts.owner == owner.mark)
    return sum(not lower.upper_namespace(one.namespace) for one in marked)
