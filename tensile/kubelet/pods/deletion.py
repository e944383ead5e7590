"""Delete pods: the lower pod first, then a terminal phase where a controller waits for one, the upper object last.

No other component ends a pod that is bound to a virtual node: without this, it would stay Terminating indefinitely.

Pods are also evicted if their lower cluster is unreachable for longer than `unreachable.evictAfter`. Without that
setting none is, because their state is unknown and most of them run. The engine deletes the upper pod itself instead of
using a taint: what Kubernetes deletes because of its node counts as unrequested, and the guard would keep the lower
pod. The object stays Terminating until the cluster has confirmed that its pod is gone. Only the time that this engine
has observed counts, so a restarted engine starts at zero. A cluster that could not be asked at all does not count as
unreachable, nor one that rejects our credential.
"""

from datetime import datetime, timedelta

import orjson

from tensile.kube.store import Entry
from tensile.kubelet.pods.status import eviction_status, status_write, terminal_status, upper_status
from tensile.names import UNREACHABLE_TAINT, EventReason
from tensile.objects import Manifest, Ref, controller_of, metadata, moment_of, timestamp, tolerates
from tensile.reconcile.desired import Absent, Decision, EmitEvent, Wanted
from tensile.reconcile.ownership import upper_uid_of
from tensile.reconcile.pods.index import PodView, view_of
from tensile.reconcile.world import LowerWorld, World

EVICTED: EventReason = "EvictedFromUnreachable"
"""On a pod: it is deleted because its lower cluster has not answered for longer than `unreachable.evictAfter`.
Remedy: bring the cluster back; a controller replaces the pod."""
TAINT = {"key": UNREACHABLE_TAINT, "effect": "NoSchedule"}
"""The taint of a node whose lower cluster is unreachable: a pod that tolerates it would come back to that node."""
_MIN_REQUEUE_SECONDS = 1.0


def delete_lower(upper: PodView, lower_entry: Entry, ref: Ref, *, requested: bool) -> Decision:
    """Delete the lower pod within the time that the upper one has left, and keep reporting its status.

    If the deletion was not `requested`, the lower pod is not deleted, since the guard has to decide about it. The
    deletion itself counts as a generation, which is not worth a write of its own.
    """
    lower_pod = view_of(lower_entry.manifest())
    wanted: list[Wanted] = []
    grace = upper.meta.get("deletionGracePeriodSeconds")
    if requested and _has_to_shorten(lower_pod.meta, grace):
        wanted.append(Absent(ref, lower_entry.uid, "the upper pod was deleted", grace))
    status = upper_status(upper, lower_pod, generation=upper.status.get("observedGeneration") or 0)
    if status is not None:
        wanted.append(status_write(upper, status, "the status of the lower pod changed"))
    return Decision(tuple(wanted))


def remove_upper(upper: PodView, last: PodView | None, now: datetime) -> Decision:
    """Remove the upper object, now that its lower pod is certainly gone; `last` is the lower pod's last known state.

    Controllers that hold a finalizer, and those that count ended pods, wait for a terminal phase. It costs a write, so
    it is written only for them. An object whose grace period is 0 already is kept only by its finalizers. Without
    finalizers it was left by an interrupted deletion, and Kubernetes removes it when it is deleted again.
    """
    meta = upper.meta
    wanted: list[Wanted] = []
    counted = meta.get("finalizers") or upper.spec.get("restartPolicy", "Always") != "Always"
    status = terminal_status(upper, last, timestamp(now)) if counted else None
    if status is not None:
        wanted.append(status_write(upper, status, "the pod terminated"))
    if meta.get("deletionGracePeriodSeconds") != 0 or not meta.get("finalizers"):
        wanted.append(Absent(upper.ref, meta["uid"], "its lower pod is gone", 0))
    return Decision(tuple(wanted))


def has_run(upper: Entry, lower: LowerWorld) -> bool:
    """Report whether containers of a pod have been seen, in its status or in the lower pod that is gone by now."""
    tombstone = lower.pods.tombstone(lower.namespace(upper.namespace), upper.name)
    facts = tombstone.facts if tombstone else None
    return upper.facts.ran or (facts is not None and facts.ran and facts.upper_uid == upper.uid)


def last_known_status(upper: Entry, lower: LowerWorld) -> PodView | None:
    """Return the lower pod of an upper one as last seen by the watch before its deletion, None if not kept."""
    raw = lower.pods.last(lower.namespace(upper.namespace), upper.name)
    last: Manifest | None = orjson.loads(raw) if raw else None
    return view_of(last) if last is not None and upper_uid_of(last) == upper.uid else None


def _has_to_shorten(meta: Manifest, grace: int | None) -> bool:
    """Report whether a lower pod is not being deleted yet, or has a longer grace period than the upper one."""
    if "deletionTimestamp" not in meta:
        return True
    given = meta.get("deletionGracePeriodSeconds")
    return grace is not None and given is not None and grace < given


def or_eviction(decision: Decision, upper: PodView, lower: LowerWorld, world: World) -> Decision:
    """Return the pod's eviction if it is due, else `decision`, requeued for when it will be."""
    seconds = _seconds_to_eviction(upper.manifest, lower, world)
    if seconds is None:
        return decision
    return (
        _eviction(upper, lower, world)
        if seconds <= 0
        else decision._replace(requeue_after=max(seconds, _MIN_REQUEUE_SECONDS))
    )


def _seconds_to_eviction(upper_pod: Manifest, lower: LowerWorld, world: World) -> float | None:
    """Return the seconds until a pod is to be evicted, None where it never is.

    The pod itself has to be that old: a pod that was created again for the same node, despite its taint, is not evicted
    repeatedly at once.
    """
    evict_after = lower.spec.unreachable.evict_after
    if evict_after is None or not _is_unanswering(lower) or not lower.in_topology or _would_return(upper_pod):
        return None
    created = metadata(upper_pod).get("creationTimestamp")
    waited = min(
        timedelta(seconds=lower.unreachable_seconds), world.now - moment_of(created) if created else evict_after
    )
    return (evict_after - waited).total_seconds()


def _is_unanswering(lower: LowerWorld) -> bool:
    """Report whether the cluster does not answer, as opposed to a problem with our address or credential for it."""
    return lower.silence_is_evidence and not lower.access_error and not lower.is_wrong


def _would_return(upper_pod: Manifest) -> bool:
    """Report whether a pod would come back to the same node: of a DaemonSet, or one that tolerates its taint."""
    if controller_of(upper_pod).get("kind") == "DaemonSet":
        return True
    return any(tolerates(one, TAINT) for one in upper_pod["spec"].get("tolerations") or ())


def _eviction(upper: PodView, lower: LowerWorld, world: World) -> Decision:
    """Report why, and delete the pod with its own grace period."""
    uid, ref = upper.meta["uid"], upper.ref
    message = f"lower cluster {lower.name} has not answered for longer than unreachable.evictAfter"
    body = eviction_status(upper, message, timestamp(world.now))
    steps = [status_write(upper, body, message)] if body else []
    return Decision((*steps, EmitEvent(ref, uid, EVICTED, message), Absent(ref, uid, message, cause="unreachable")))
