"""Pods without a controller: what prevents them from moving, and when they may be evicted.

No controller creates such a pod again. So it leaves only if a node is known to take it, and only while its backup
equals the replacement that would be created now.
"""

from collections.abc import Collection

import orjson
from msgspec.structs import replace

from tensile.kube.store import Entry
from tensile.names import REPLACES
from tensile.objects import Manifest, annotations
from tensile.policy.descheduler.records import PREFIX, kept_of
from tensile.policy.descheduler.replacement import freed_in_time, is_alike, successor_of
from tensile.reconcile.world import Problem, World

CLAIMED = Problem("UsesClaims", "its claims are of the lower cluster that it is bound to")
_STATIC = "kubernetes.io/config.mirror"


def uses_claims(pod: Manifest) -> bool:
    """Report whether a pod has volumes that are bound to its lower cluster."""
    volumes = pod["spec"].get("volumes") or ()
    return any(one.get("persistentVolumeClaim") or one.get("ephemeral") for one in volumes)


def tie_of(pod: Entry, world: World) -> Problem | None:
    """Return what prevents a bare pod from moving, regardless of room elsewhere; None for nothing."""
    manifest = pod.manifest()
    if pod.namespace in world.topology.exclude_namespaces:
        return Problem("NamespaceExcluded", "pods of its namespace are not mirrored: delete it, or make it elsewhere")
    if _STATIC in annotations(manifest):
        return Problem("StaticPod", "a file on its node is what makes it: it is nobody else's to make")
    if uses_claims(manifest):
        return CLAIMED
    before = annotations(manifest).get(REPLACES, "")
    if before and world.upper.secrets.get(pod.namespace, PREFIX + before) is not None:
        return Problem("NotSettled", f"Secret {PREFIX}{before} still keeps the pod that it replaces")
    return None


def loosed(pod: Entry, world: World) -> Entry:
    """Return the pod as it may move now: nodes avoided for longer than the cooldown are allowed again."""
    manifest = pod.manifest()
    freed = freed_in_time(manifest, world.now, world.topology.descheduler.cooldown)
    return pod if freed is manifest else replace(pod, raw=orjson.dumps(freed))


def successor_now(pod: Entry, world: World, off: Collection[str] = ()) -> Manifest:
    """Return the replacement that would be created for a pod now; it avoids the virtual nodes `off`."""
    return successor_of(loosed(pod, world).manifest(), off)


def is_safe(pod: Entry, world: World, off: Collection[str] = ()) -> bool:
    """Report whether a pod may leave: it has a backup that is not withdrawn and equals the replacement made now.

    The pod may have been changed since the backup. A backup that avoids other nodes than `off` could not go where there
    is room.
    """
    kept = kept_of(pod, world)
    if kept is None or kept.pod is None or not kept.is_safe:
        return False
    return is_alike(kept.pod, successor_now(pod, world, off))
