"""Pods that no controller would make again: what keeps one where it is, and what it is where one may go.

Its object is all that there is of such a pod, so it leaves only for where a node is known to take it, and only while
what is kept of it is what would be made in its place now.
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
    """Report whether a pod has volumes that are kept where it runs."""
    volumes = pod["spec"].get("volumes") or ()
    return any(one.get("persistentVolumeClaim") or one.get("ephemeral") for one in volumes)


def tie_of(pod: Entry, world: World) -> Problem | None:
    """Return what keeps a pod without a controller where it is, wherever else there may be room; None for nothing."""
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
    """Return the pod as it may go now: what it was kept off longer ago than the cooldown counts no more."""
    manifest = pod.manifest()
    freed = freed_in_time(manifest, world.now, world.topology.descheduler.cooldown)
    return pod if freed is manifest else replace(pod, raw=orjson.dumps(freed))


def successor_now(pod: Entry, world: World, off: Collection[str] = ()) -> Manifest:
    """Return the pod that would be made in one's place now, kept off the virtual nodes `off`."""
    return successor_of(loosed(pod, world).manifest(), off)


def is_safe(pod: Entry, world: World, off: Collection[str] = ()) -> bool:
    """Report whether a pod may leave: what is kept is what would be made now, and nobody is about to let go of it.

    Somebody may have changed the pod since it was kept; and kept off other nodes than `off`, the new one could not go
    where there is room for it.
    """
    kept = kept_of(pod, world)
    if kept is None or kept.pod is None or not kept.is_safe:
        return False
    return is_alike(kept.pod, successor_now(pod, world, off))
