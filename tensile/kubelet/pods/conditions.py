"""The conditions of an upper pod, derived from those of its lower pod, and patches of its status.

Each type has one author. A kubelet's types are mirrored exactly, so that a pod that ended in the lower cluster ends in
the upper one. PodScheduled belongs to the upper scheduler, or is true where the pod was created bound, as with any
kubelet. The lower scheduler's condition is mirrored under a name of its own, for people and the descheduler. Ready in
the upper cluster also depends on readiness gates, which only upper controllers set.

A patch changes only the fields and condition types that are named, because others write to the same status: readiness
gates, the scheduler, the taint manager. Lists and maps that Kubernetes merges are replaced, or an old IP would stay
beside a new one and be refused.
"""

from collections.abc import Container, Mapping
from typing import Any

from tensile.names import LOWER_SCHEDULED, MIRRORED, ConditionReason, ConditionType
from tensile.objects import Manifest, deleted_at, timestamp
from tensile.reconcile.pods.index import TERMINAL, PodView, view_of

READY: ConditionType = "Ready"
"""On a pod: whether it is ready in the lower cluster, the lower cluster answers, and the readiness gates of the
upper pod are true. Remedy: while it is False, look up the reason, and debug the pod as any other."""
CONTAINERS_READY: ConditionType = "ContainersReady"
"""On a pod: as in the lower cluster; False while that does not answer. Remedy: as for `Ready`."""
SCHEDULED: ConditionType = "PodScheduled"
"""On a pod: as the upper scheduler wrote it; the engine writes True on a pod that was created with a node. Remedy:
while it is False, see [a pod that is Pending](../howto/pending-pod.md)."""
READY_TO_START: ConditionType = "PodReadyToStartContainers"
"""On a pod: as in the lower cluster; False while there is no lower pod. Remedy: nothing."""
DISRUPTION: ConditionType = "DisruptionTarget"
"""On a pod: as in the lower cluster; also True when the lower pod was deleted there, or the engine evicts or
preempts the pod. Remedy: look up the reason."""
INITIALIZED: ConditionType = "Initialized"
"""On a pod: as in the lower cluster. Remedy: nothing."""
RESIZE_PENDING: ConditionType = "PodResizePending"
"""On a pod: as in the lower cluster. Remedy: see its message: the node there has no room for the new resources now,
or ever."""
RESIZE_IN_PROGRESS: ConditionType = "PodResizeInProgress"
"""On a pod: as in the lower cluster. Remedy: nothing."""
ALL_RESTARTING: ConditionType = "AllContainersRestarting"
"""On a pod: as in the lower cluster. Remedy: nothing."""
POD_DELETED: ConditionReason = "LowerPodDeleted"
"""`Ready`, `DisruptionTarget`: another client deletes the lower pod. Remedy: find out who did it from
the audit log of the lower cluster; a controller replaces the pod."""
POD_COMPLETED: ConditionReason = "PodCompleted"
"""`Ready`, `ContainersReady`: the pod has succeeded. Remedy: nothing."""
POD_FAILED: ConditionReason = "PodFailed"
"""`Ready`, `ContainersReady`: the pod has failed or was deleted. Remedy: as with any pod: `kubectl logs`, `kubectl
describe pod`."""
GATES_NOT_READY: ConditionReason = "ReadinessGatesNotReady"
"""`Ready`: a readiness gate of the upper pod is not True. Remedy: see the controller that sets the condition in the
message."""
_KUBELET_TYPES = (
    READY_TO_START,
    INITIALIZED,
    READY,
    CONTAINERS_READY,
    RESIZE_PENDING,
    RESIZE_IN_PROGRESS,
    ALL_RESTARTING,
)
"""The types that a kubelet writes, in its order, in which people read them."""
_TERMINAL_REASONS = {"Succeeded": POD_COMPLETED, "Failed": POD_FAILED}
_DELETED_MESSAGE = "another client is deleting the pod in the lower cluster"

_MERGED_LISTS = frozenset({"podIPs", "hostIPs", "addresses"})
_DIRECTIVE = "$patch"
_REPLACE = {_DIRECTIVE: "replace"}

Fields = Mapping[str, Any]
"""Status fields as they should be; an empty value means absent."""

Conditions = Mapping[str, Manifest]
"""Conditions by type."""

WantedConditions = Mapping[str, Manifest | None]
"""Conditions as they should be, by type; None means absent. Types that are not named stay as they are."""


def conditions_of(pod: Manifest) -> Conditions:
    """Return a pod's conditions by type, without the nulls that the API writes for unset times."""
    return view_of(pod).conditions


def is_ready(pod: Manifest) -> bool:
    """Report whether a pod has the condition Ready=True."""
    return (conditions_of(pod).get(READY) or {}).get("status") == "True"


def unschedulable_condition(pod: Manifest, reasons: Container[str]) -> Manifest | None:
    """Return the condition by which a scheduler found no node for a pod, for one of these reasons; else None."""
    condition = conditions_of(pod).get(SCHEDULED) or {}
    return condition if condition.get("status") == "False" and condition.get("reason") in reasons else None


def status_patch(upper: PodView, fields: Fields, conditions: WantedConditions) -> Manifest:
    """Return the patch of `status` that makes it so, {} without differences."""
    seen, patch = upper.status, {}
    for field, value in fields.items():
        old = seen.get(field) or None
        if (value or None) != old and _differs(value or None, old):
            patch[field] = replacing(field, value, old)
    for kind, new in conditions.items():
        known = upper.conditions.get(kind)
        if new != known and (changed := _condition_patch(kind, known, new)):
            patch.setdefault("conditions", []).append(changed)
    return patch


def _differs(value: Any, seen: Any) -> bool:
    """Report whether values differ, ignoring nulls: not every version of the API writes them for unset times."""
    return value is None or seen is None or bool(_without_nulls(value) != _without_nulls(seen))


def _without_nulls(value: Any) -> Any:
    """Return a value without the nulls in it."""
    if isinstance(value, dict):
        return {field: _without_nulls(inner) for field, inner in value.items() if inner is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value


def replacing(field: str, value: Any, seen: Any) -> Any:
    """Return what to send for a field: null to remove it, with a replace directive where Kubernetes would merge."""
    if not value:
        return None
    if seen and field in _MERGED_LISTS:
        return [_REPLACE, *value]
    return {**value, **_REPLACE} if seen and isinstance(value, dict) else value


def _condition_patch(kind: str, old: Manifest | None, new: Manifest | None) -> Manifest | None:
    """Return the list element that turns one condition into another.

    Kubernetes keeps an observedGeneration that a patch removes, so none is removed.
    """
    if new is None:
        return None if old is None else {"type": kind, _DIRECTIVE: "delete"}
    if old is None:
        return new
    preserved = {"observedGeneration": old["observedGeneration"]} if "observedGeneration" in old else {}
    target = preserved | new
    return None if target == old else {field: None for field in old if field not in target} | target


def condition(upper: PodView, kind: str, status: str, *, reason: str, message: str, now: str) -> Manifest:
    """Return a condition; it keeps its present transition time if the status is the same."""
    present = upper.conditions.get(kind) or {}
    since = present.get("lastTransitionTime") if present.get("status") == status else None
    fields = {"type": kind, "status": status, "reason": reason, "message": message}
    return {field: value for field, value in fields.items() if value} | {"lastTransitionTime": since or now}


def reflected_conditions(upper: PodView, lower: PodView, generation: int) -> dict[str, Manifest | None]:
    """Return what the upper pod's conditions should be, by type; None means that the type should be absent.

    `generation` is the upper generation whose spec the lower pod has.
    """
    lower_conditions = _with_upper_generation(lower, generation)
    wanted: dict[str, Manifest | None] = dict.fromkeys(_KUBELET_TYPES)
    for kind in wanted.keys() & lower_conditions.keys():
        wanted[kind] = lower_conditions[kind]
    wanted[READY] = _ready(upper, lower, lower_conditions)
    wanted[MIRRORED] = None
    if SCHEDULED not in upper.conditions:
        wanted[SCHEDULED] = _scheduled_at_creation(upper)
    scheduled = lower_conditions.get(SCHEDULED)
    wanted[LOWER_SCHEDULED] = scheduled and {**scheduled, "type": LOWER_SCHEDULED}
    if lower.phase in TERMINAL:
        wanted[CONTAINERS_READY] = _unready_at_end(wanted[CONTAINERS_READY], lower)
    if disruption := _disruption(upper, lower, lower_conditions):
        wanted[DISRUPTION] = disruption
    return wanted


def is_disrupted(upper: PodView, lower: PodView) -> bool:
    """Report whether the lower pod is being deleted though the upper one is not."""
    deleted = lower.meta.get("deletionTimestamp") and not upper.meta.get("deletionTimestamp")
    return bool(deleted) and lower.phase not in TERMINAL


def _scheduled_at_creation(upper: PodView) -> Manifest:
    """Return the condition of a pod that no scheduler placed."""
    created = upper.meta.get("creationTimestamp")
    return {"type": SCHEDULED, "status": "True"} | ({"lastTransitionTime": created} if created else {})


def _with_upper_generation(lower: PodView, generation: int) -> Conditions:
    """Return the lower pod's conditions with the upper pod's generation in place of the lower pod's."""
    found, newest = dict(lower.conditions), lower.meta.get("generation") or 0
    for kind, one in lower.conditions.items():
        number = one.get("observedGeneration")
        if number is not None:
            found[kind] = {**one, "observedGeneration": generation}
            if not generation or number < newest:
                del found[kind]["observedGeneration"]
    return found


def _ready(upper: PodView, lower: PodView, lower_conditions: Conditions) -> Manifest | None:
    """Return Ready as it should be in the upper cluster; None where the lower pod has no readiness condition."""
    base = _lower_readiness(lower_conditions)
    if base is None or base["status"] != "True":
        return base
    if lower.phase in TERMINAL:
        return _unready_at_end(base, lower)
    if lower.meta.get("deletionTimestamp") and is_disrupted(upper, lower):
        return _deletion_condition(READY, "False", lower)
    return _apply_readiness_gates(upper, base) if upper.spec.get("readinessGates") else base


def _lower_readiness(lower_conditions: Conditions) -> Manifest | None:
    """Return what the lower cluster reports about readiness, under the type Ready.

    When a node fails, Kubernetes sets Ready to False and leaves ContainersReady; a kubelet keeps the two in step
    otherwise.
    """
    ready, containers = lower_conditions.get(READY), lower_conditions.get(CONTAINERS_READY)
    if containers is not None and (ready is None or containers["status"] != "True"):
        return {**containers, "type": READY} if ready is None or ready["status"] == "True" else ready
    return ready


def _unready_at_end(base: Manifest | None, lower: PodView) -> Manifest | None:
    """Return a condition with True replaced by False: containers of a pod that has ended are not ready."""
    if base is None or base["status"] != "True":
        return base
    ended = {"status": "False", "reason": _TERMINAL_REASONS[lower.phase]}
    return {field: value for field, value in base.items() if field != "message"} | ended


def _apply_readiness_gates(upper: PodView, base: Manifest) -> Manifest:
    """Return Ready as the upper pod's readiness gates decide it, as in a kubelet."""
    upper_conditions = upper.conditions
    gates = [gate["conditionType"] for gate in upper.spec["readinessGates"]]
    closed_gates = [kind for kind in gates if (upper_conditions.get(kind) or {}).get("status") != "True"]
    times = [
        one["lastTransitionTime"] for kind in gates if "lastTransitionTime" in (one := upper_conditions.get(kind) or {})
    ]
    latest = max([*times, base.get("lastTransitionTime") or ""])
    if not closed_gates:
        return base | _transition_time(upper_conditions, "True", latest)
    message = ", ".join(f'readiness gate "{kind}" is not "True"' for kind in closed_gates)
    condition = {"type": READY, "status": "False", "reason": GATES_NOT_READY, "message": message}
    numbered = {"observedGeneration": base["observedGeneration"]} if "observedGeneration" in base else {}
    return condition | numbered | _transition_time(upper_conditions, "False", latest)


def _transition_time(upper_conditions: Conditions, status: str, default: str) -> dict[str, str]:
    """Return the transition time of Ready: its present one, if it has that status already; {} when unknown."""
    ready = upper_conditions.get(READY) or {}
    known = ready.get("lastTransitionTime") if ready.get("status") == status else None
    time = known or default
    return {"lastTransitionTime": time} if time else {}


def _disruption(upper: PodView, lower: PodView, lower_conditions: Conditions) -> Manifest | None:
    """Return the condition that tells a Job's failure policy that a pod did not fail by itself; None: no change.

    A condition that was set in the upper cluster, for example by an eviction, is removed only there: it decides whether
    the pod is created again.
    """
    is_upper_disrupted = (upper.conditions.get(DISRUPTION) or {}).get("status") == "True"
    lower_condition = lower_conditions.get(DISRUPTION)
    if lower_condition is not None and (lower_condition["status"] == "True" or not is_upper_disrupted):
        return lower_condition
    if is_upper_disrupted or not is_disrupted(upper, lower):
        return None
    return _deletion_condition(DISRUPTION, "True", lower)


def _deletion_condition(kind: str, status: str, lower: PodView) -> Manifest:
    """Return a condition whose transition time is the deletion of the lower pod."""
    condition = {"type": kind, "status": status, "reason": POD_DELETED, "message": _DELETED_MESSAGE}
    return condition | {"lastTransitionTime": timestamp(deleted_at(lower.manifest))}
