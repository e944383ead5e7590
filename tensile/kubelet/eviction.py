"""Eviction of pods whose lower cluster is out of reach for longer than the topology allows.

Nobody knows how such pods are, and most of them run, so none is evicted unless `unreachable.evictAfter` says so. The
engine deletes the pod above itself and leaves it to no taint: what Kubernetes deletes for its node's sake is nobody's
wish, and the guard would keep the lower pod. The object stays, Terminating, until the cluster has confirmed that its
pod is gone. How long a cluster has been away is what this engine has seen: one that was just started asks anew. What
was never asked, for want of a way there, is not away; nor is what answers that our credential is not good.
"""

from datetime import timedelta

from tensile.kubelet.ownstatus import evicted
from tensile.kubelet.statuswrite import status_write
from tensile.names import UNREACHABLE_TAINT
from tensile.objects import POD, UPPER, Manifest, Ref, controller_of, metadata, moment_of, timestamp
from tensile.reconcile.desired import Absent, Decision, Told
from tensile.taints import tolerates
from tensile.world import LowerWorld, World

EVICTED = "EvictedFromUnreachable"
TAINT = {"key": UNREACHABLE_TAINT, "effect": "NoSchedule"}
"""What a node whose lower cluster is out of reach has: whoever tolerates it would come back to that node."""
_SOONEST = 1.0


def or_evicted(said: Decision, upper_pod: Manifest, lower: LowerWorld, world: World) -> Decision:
    """Give the pod's eviction if it is due, else what is `said` of it, with another look when it will be."""
    left = _left(upper_pod, lower, world)
    if left is None:
        return said
    return _evicted(upper_pod, lower, world) if left <= 0 else said._replace(again=max(left, _SOONEST))


def _left(upper_pod: Manifest, lower: LowerWorld, world: World) -> float | None:
    """Give the seconds until a pod is to be evicted, None where it never is.

    The pod itself has to be that old: what is made again for the same node, past its taint, is not evicted at once,
    over and over.
    """
    after = lower.spec.unreachable.evict_after
    if after is None or not _is_away(lower) or not lower.in_topology or _belongs_there(upper_pod):
        return None
    born = metadata(upper_pod).get("creationTimestamp")
    waited = min(timedelta(seconds=lower.silent), world.now - moment_of(born) if born else after)
    return (after - waited).total_seconds()


def _is_away(lower: LowerWorld) -> bool:
    """Say whether it is the cluster that does not answer, and not we who do not know how to ask it."""
    return lower.tried and not lower.refusal and not lower.is_wrong


def _belongs_there(upper_pod: Manifest) -> bool:
    """Say whether a pod would come back to the same node: a DaemonSet's, or one that tolerates its taint."""
    if controller_of(upper_pod).get("kind") == "DaemonSet":
        return True
    return any(tolerates(one, TAINT) for one in upper_pod["spec"].get("tolerations") or ())


def _evicted(upper_pod: Manifest, lower: LowerWorld, world: World) -> Decision:
    """Say why, and delete the pod with its own grace period."""
    meta = metadata(upper_pod)
    ref = Ref(UPPER, POD, meta["namespace"], meta["name"])
    words = f"lower cluster {lower.name} has not answered for longer than unreachable.evictAfter allows"
    body = evicted(upper_pod, words, timestamp(world.now))
    said = [status_write(upper_pod, body, words)] if body else []
    return Decision((*said, Told(ref, meta["uid"], EVICTED, words), Absent(ref, meta["uid"], words)))
