"""Statuses that the engine gives an upper pod by itself, where no lower pod can speak for it.

Each says in the fields that kubectl prints why the pod is as it is: not mirrored yet, out of reach, or lost. Each is
None when the pod says so already, so that an unchanged world causes no write. `now` is a time in RFC 3339.
"""

from tensile.kubelet.conditions import (
    CONTAINERS_READY,
    DISRUPTION,
    READY,
    READY_TO_START,
    condition,
    is_terminal,
)
from tensile.kubelet.containerstatuses import ended_containers, present_containers
from tensile.kubelet.statuspatch import conditions_of, status_of, status_patch
from tensile.names import MIRRORED, STORE_RESTORED
from tensile.objects import Manifest, metadata

LOWER_POD_LOST = "LowerPodLost"
LOWER_UNREACHABLE = "LowerUnreachable"
_READINESS = (READY, CONTAINERS_READY)
_LOST = "the pod's counterpart in the lower cluster was deleted there"
_UNREACHABLE = "the lower cluster that runs the pod does not answer"
_FORGOTTEN = "the lower cluster knows nothing of the pod since its store went back to an earlier state"


def pending_because(upper_pod: Manifest, reason: str, message: str, now: str) -> Manifest | None:
    """Say why a bound pod has no lower pod yet: {"status": ...}, None when it says so or its phase is terminal.

    kubectl shows a status reason in its STATUS column; the lower pod's first status takes it away again.
    """
    if is_terminal(status_of(upper_pod).get("phase")):
        return None
    mirrored = condition(upper_pod, MIRRORED, "False", reason=reason, message=message, now=now)
    waiting = condition(upper_pod, READY_TO_START, "False", reason="", message="", now=now)
    fields = {"phase": status_of(upper_pod).get("phase") or "Pending", "reason": reason, "message": message}
    return _body(status_patch(upper_pod, fields, {MIRRORED: mirrored, READY_TO_START: waiting}))


def lost(upper_pod: Manifest, now: str) -> Manifest | None:
    """Fail a pod whose lower pod is gone for certain though nobody above deleted it.

    Never for one that is being deleted, or whose phase is terminal. It carries DisruptionTarget, so that a Job's
    failure policy does not count it as the pod's own failure.
    """
    if is_terminal(status_of(upper_pod).get("phase")) or metadata(upper_pod).get("deletionTimestamp"):
        return None
    conditions = {kind: _unready(upper_pod, kind, "PodFailed", "", now) for kind in _READINESS}
    if not _is_true(upper_pod, DISRUPTION):
        conditions[DISRUPTION] = condition(upper_pod, DISRUPTION, "True", reason=LOWER_POD_LOST, message=_LOST, now=now)
    fields = {"phase": "Failed", "reason": LOWER_POD_LOST, "message": _LOST, "podIP": "", "podIPs": []}
    containers = ended_containers(present_containers(upper_pod), _LOST)
    return _body(status_patch(upper_pod, fields | containers, conditions))


def unreachable(upper_pod: Manifest, now: str) -> Manifest | None:
    """Take readiness from a pod whose cluster does not answer: its Services stop sending, and nothing else changes.

    Only conditions that are there change: one that was never mirrored has none, and a phase or container state that
    nobody can see is left as it was last seen.
    """
    if is_terminal(status_of(upper_pod).get("phase")):
        return None
    return _body(status_patch(upper_pod, {}, _unreadiness(upper_pod, LOWER_UNREACHABLE, _UNREACHABLE, now)))


def forgotten(upper_pod: Manifest, now: str) -> Manifest | None:
    """Take readiness from a pod of which its lower cluster knows nothing since its store was restored."""
    return _body(status_patch(upper_pod, {}, _unreadiness(upper_pod, STORE_RESTORED, _FORGOTTEN, now)))


def evicted(upper_pod: Manifest, words: str, now: str) -> Manifest | None:
    """Mark a pod that is about to be deleted because its cluster is out of reach, as Kubernetes marks evicted ones."""
    conditions = _unreadiness(upper_pod, LOWER_UNREACHABLE, _UNREACHABLE, now)
    if not _is_true(upper_pod, DISRUPTION):
        conditions[DISRUPTION] = condition(
            upper_pod, DISRUPTION, "True", reason=LOWER_UNREACHABLE, message=words, now=now
        )
    return _body(status_patch(upper_pod, {}, conditions))


def _unreadiness(upper_pod: Manifest, reason: str, message: str, now: str) -> dict[str, Manifest | None]:
    """Give the readiness conditions that are there, saying False."""
    present = [kind for kind in _READINESS if kind in conditions_of(upper_pod)]
    return {kind: _unready(upper_pod, kind, reason, message, now) for kind in present}


def _unready(upper_pod: Manifest, kind: str, reason: str, message: str, now: str) -> Manifest:
    """Make a readiness condition that says False."""
    return condition(upper_pod, kind, "False", reason=reason, message=message, now=now)


def _is_true(upper_pod: Manifest, kind: str) -> bool:
    """Say whether a condition of the pod says True."""
    return (conditions_of(upper_pod).get(kind) or {}).get("status") == "True"


def _body(patch: Manifest) -> Manifest | None:
    """Make the body of a patch, None when there is nothing in it."""
    return {"status": patch} if patch else None
