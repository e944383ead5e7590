"""Whose Services a lower cluster gets: those of the namespaces that have pods there.

A Service is of use to its neighbours only, and names in other namespaces stay the lower's own. Services are made and
kept in step for the pods of their namespace that are bound here. Those that are there outlast the last of them as long
as a lower pod of ours is in the namespace, as they are: whatever still runs there still calls its Services.
"""

from collections.abc import Iterator

from tensile.cache import Cache, Delta, Entry
from tensile.names import Owner
from tensile.objects import ENDPOINT_SLICE, SERVICE
from tensile.reconcile import ownership
from tensile.world import Key, LowerWorld, World

KUBE_SYSTEM = "kube-system"
SERVICE_RULE = "service"
SLICE_RULE = "slice"
_CONTROLLER = "Service"


def service_key(lower: str, namespace: str, name: str) -> Key:
    """Give the key of one Service, by its upper namespace and name."""
    return Key(SERVICE_RULE, lower, namespace, name)


def slice_key(lower: str, namespace: str, name: str) -> Key:
    """Give the key of one EndpointSlice, by its upper namespace and name."""
    return Key(SLICE_RULE, lower, namespace, name)


def is_enabled(lower: LowerWorld) -> bool:
    """Say whether a lower is to have Services."""
    return _CONTROLLER in lower.spec.controllers


def is_known(lower: LowerWorld, world: World) -> bool:
    """Say whether everything that decides about Services has been listed."""
    caches = [side.more[kind] for side in (world.upper, lower) for kind in (SERVICE, ENDPOINT_SLICE)]
    return lower.settled and all(cache.synced for cache in caches)


def is_exposed(lower: LowerWorld, namespace: str, world: World) -> bool:
    """Say whether the Services of an upper namespace belong in a lower; kube-system's only on request."""
    if not is_enabled(lower):
        return False
    if namespace == KUBE_SYSTEM:
        return world.topology.services.kube_system and lower.in_topology
    return ownership.is_inhabited(lower, namespace, world)


def is_kept(lower: LowerWorld, namespace: str) -> bool:
    """Report whether the Services of an upper namespace that are in a lower stay there as they are."""
    return is_enabled(lower) and namespace != KUBE_SYSTEM and ownership.keeps_namespace(lower, namespace)


def exposed(lower: LowerWorld, world: World) -> Iterator[str]:
    """Return the upper namespaces whose Services belong in a lower, in order."""
    found = set(map(str, lower.upper_pods.values("living")))
    yield from sorted(name for name in found | {KUBE_SYSTEM} if is_exposed(lower, name, world))


def began(lower: LowerWorld, delta: Delta) -> str:
    """Give the namespace that an upper pod is the first of, else ""."""
    is_first = _lives(delta.after) and not _lives(delta.before)
    return _if_count(lower.upper_pods, "living", delta, 1) if is_first else ""


def ended(lower: LowerWorld, delta: Delta) -> str:
    """Give the namespace that an upper pod was the last of, else ""."""
    is_last = _lives(delta.before) and not _lives(delta.after)
    return _if_count(lower.upper_pods, "living", delta, 0) if is_last else ""


def ended_below(lower: LowerWorld, delta: Delta) -> str:
    """Give the upper namespace that a lower pod was the last of, else ""."""
    namespace = "" if delta.after else _if_count(lower.pods, "namespace", delta, 0)
    return lower.upper_namespace(namespace) if namespace else ""


def is_made_for(entry: Entry | None, owner: Owner, upper_uid: str) -> bool:
    """Say whether a Service or slice below is this owner's and was made for the upper object of that UID."""
    return entry is not None and entry.facts.owner == owner.mark and entry.facts.upper_uid == upper_uid


def _lives(pod: Entry | None) -> bool:
    return pod is not None and not (pod.facts.terminal or pod.facts.daemon)


def _if_count(cache: Cache, index: str, delta: Delta, count: int) -> str:
    namespace = delta.entry.namespace
    return namespace if cache.count(index, namespace) == count else ""
