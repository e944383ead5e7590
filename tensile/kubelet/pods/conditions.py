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

from tensile.names import LOWER_SCHEDULED, MIRRORED
from tensile.objects import Manifest, deleted_at, metadata, timestamp

READY = "Ready"
CONTAINERS_READY = "ContainersReady"
SCHEDULED = "PodScheduled"
READY_TO_START = "PodReadyToStartContainers"
DISRUPTION = "DisruptionTarget"
POD_DELETED = "LowerPodDeleted"
_KUBELETS = (
    READY_TO_START,
    "Initialized",
    READY,
    CONTAINERS_READY,
    "PodResizePending",
    "PodResizeInProgress",
    "AllContainersRestarting",
)
"""The types that a kubelet writes, in its order, in which people read them."""
_TERMINAL_REASONS = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}
_DELETED_BELOW = "the pod's counterpart in the lower cluster is being deleted there"

_MERGED_LISTS = frozenset({"podIPs", "hostIPs", "addresses"})
_DIRECTIVE = "$patch"
_REPLACE = {_DIRECTIVE: "replace"}

Fields = Mapping[str, Any]
"""Status fields as they should be; an empty value means absent."""

Conditions = Mapping[str, Manifest | None]
"""Conditions as they should be, by type; None means absent. Types that are not named stay as they are."""


def status_of(pod: Manifest) -> Manifest:
    """Return a pod's status, {} when it has none."""
    status: Manifest = pod.get("status") or {}
    return status


def conditions_of(pod: Manifest) -> dict[str, Manifest]:
    """Return a pod's conditions by type, without the nulls that the API writes for unset times."""
    present = status_of(pod).get("conditions") or ()
    return {one["type"]: {field: value for field, value in one.items() if value is not None} for one in present}


def unplaced(pod: Manifest, reasons: Container[str]) -> Manifest | None:
    """Return the condition by which a scheduler found no node for a pod, for one of these reasons; else None."""
    said = conditions_of(pod).get("PodScheduled") or {}
    return said if said.get("status") == "False" and said.get("reason") in reasons else None


def status_patch(upper_pod: Manifest, fields: Fields, conditions: Conditions) -> Manifest:
    """Return the patch of `status` that makes it so, {} without differences."""
    seen = status_of(upper_pod)
    patch = {
        field: replacing(field, value, seen.get(field))
        for field, value in fields.items()
        if _differs(value or None, seen.get(field) or None)
    }
    if changed := _condition_patches(conditions_of(upper_pod), conditions):
        patch["conditions"] = changed
    return patch


def _differs(value: Any, seen: Any) -> bool:
    """Report whether values differ, ignoring nulls: not every version of the API writes them for unset times."""
    if value == seen or value is None or seen is None:
        return bool(value != seen)
    return bool(_bare(value) != _bare(seen))


def _bare(value: Any) -> Any:
    """Return a value without the nulls in it."""
    if isinstance(value, dict):
        return {field: _bare(inner) for field, inner in value.items() if inner is not None}
    return [_bare(one) for one in value] if isinstance(value, list) else value


def replacing(field: str, value: Any, seen: Any) -> Any:
    """Return what to send for a field: null to remove it, with a replace directive where Kubernetes would merge."""
    if not value:
        return None
    if seen and field in _MERGED_LISTS:
        return [_REPLACE, *value]
    return {**value, **_REPLACE} if seen and isinstance(value, dict) else value


def _condition_patches(seen: Mapping[str, Manifest], wanted: Conditions) -> list[Manifest]:
    """Return the list elements that turn the present conditions into the wanted ones."""
    pairs = ((kind, seen.get(kind), condition) for kind, condition in wanted.items())
    return [patch for kind, old, new in pairs if (patch := _condition_patch(kind, old, new))]


def _condition_patch(kind: str, old: Manifest | None, new: Manifest | None) -> Manifest | None:
    """Return the list element that turns one condition into another.

    Kubernetes keeps an observedGeneration that a patch removes, so none is removed.
    """
    if new is None:
        return None if old is None else {"type": kind, _DIRECTIVE: "delete"}
    if old is None:
        return new
    stays = {"observedGeneration": old["observedGeneration"]} if "observedGeneration" in old else {}
    target = stays | new
    return None if target == old else {field: None for field in old if field not in target} | target


def is_terminal(phase: str | None) -> bool:
    """Report whether a pod never leaves this phase."""
    return phase in _TERMINAL_REASONS


def condition(upper_pod: Manifest, kind: str, status: str, *, reason: str, message: str, now: str) -> Manifest:
    """Return a condition; it keeps its present transition time if the status is the same."""
    old = conditions_of(upper_pod).get(kind) or {}
    since = old.get("lastTransitionTime") if old.get("status") == status else None
    made = {"type": kind, "status": status, "reason": reason, "message": message}
    return {field: value for field, value in made.items() if value} | {"lastTransitionTime": since or now}


def reflected_conditions(upper_pod: Manifest, lower_pod: Manifest, generation: int) -> dict[str, Manifest | None]:
    """Return what the upper pod's conditions should be, by type; None means that the type should be absent.

    `generation` is the upper generation whose spec the lower pod has.
    """
    above = conditions_of(upper_pod)
    below = {kind: _renumbered(one, lower_pod, generation) for kind, one in conditions_of(lower_pod).items()}
    wanted: dict[str, Manifest | None] = {kind: below.get(kind) for kind in _KUBELETS}
    wanted |= {READY: _ready(upper_pod, lower_pod, below), MIRRORED: None}
    if SCHEDULED not in above:
        wanted[SCHEDULED] = _bound_from_the_start(upper_pod)
    scheduled = below.get(SCHEDULED)
    wanted[LOWER_SCHEDULED] = scheduled and {**scheduled, "type": LOWER_SCHEDULED}
    if is_terminal(status_of(lower_pod).get("phase")):
        wanted[CONTAINERS_READY] = _unready_at_end(wanted[CONTAINERS_READY], lower_pod)
    if disruption := _disruption(upper_pod, lower_pod, above, below):
        wanted[DISRUPTION] = disruption
    return wanted


def is_disrupted(upper_pod: Manifest, lower_pod: Manifest) -> bool:
    """Report whether the lower pod is being deleted though the upper one is not."""
    deleted = metadata(lower_pod).get("deletionTimestamp") and not metadata(upper_pod).get("deletionTimestamp")
    return bool(deleted) and not is_terminal(status_of(lower_pod).get("phase"))


def observed_generation(number: int | None, lower_pod: Manifest, generation: int) -> int | None:
    """Return the upper generation that a lower observation is about; None if it is about an older one than the last.

    `number` is the lower status's observedGeneration, None from a kubelet that does not set it.
    """
    newest = metadata(lower_pod).get("generation") or 0
    return generation if number is None or number >= newest else None


def _bound_from_the_start(upper_pod: Manifest) -> Manifest:
    """Return the condition of a pod that no scheduler placed."""
    created = metadata(upper_pod).get("creationTimestamp")
    return {"type": SCHEDULED, "status": "True"} | ({"lastTransitionTime": created} if created else {})


def _renumbered(one: Manifest, lower_pod: Manifest, generation: int) -> Manifest:
    """Return a condition with the upper pod's generation in place of the lower pod's."""
    if "observedGeneration" not in one:
        return one
    number = observed_generation(one["observedGeneration"], lower_pod, generation)
    rest = {field: value for field, value in one.items() if field != "observedGeneration"}
    return rest | ({"observedGeneration": number} if number else {})


def _ready(upper_pod: Manifest, lower_pod: Manifest, below: dict[str, Manifest]) -> Manifest | None:
    """Return Ready as it should be in the upper cluster; None where the lower pod has no readiness condition."""
    base = _ready_below(below)
    if base is None or base["status"] != "True":
        return base
    if is_terminal(status_of(lower_pod).get("phase")):
        return _unready_at_end(base, lower_pod)
    if is_disrupted(upper_pod, lower_pod):
        return _deleted_below(READY, "False", lower_pod)
    return _gated(upper_pod, base) if upper_pod["spec"].get("readinessGates") else base


def _ready_below(below: dict[str, Manifest]) -> Manifest | None:
    """Return what the lower cluster reports about readiness, under the type Ready.

    When a node fails, Kubernetes sets Ready to False and leaves ContainersReady; a kubelet keeps the two in step
    otherwise.
    """
    ready, containers = below.get(READY), below.get(CONTAINERS_READY)
    if containers is not None and (ready is None or containers["status"] != "True"):
        return {**containers, "type": READY} if ready is None or ready["status"] == "True" else ready
    return ready


def _unready_at_end(base: Manifest | None, lower_pod: Manifest) -> Manifest | None:
    """Return a condition with True replaced by False: containers of a pod that has ended are not ready."""
    if base is None or base["status"] != "True":
        return base
    ended = {"status": "False", "reason": _TERMINAL_REASONS[lower_pod["status"]["phase"]]}
    return {field: value for field, value in base.items() if field != "message"} | ended


def _gated(upper_pod: Manifest, base: Manifest) -> Manifest:
    """Return Ready as the upper pod's readiness gates decide it, as in a kubelet."""
    above = conditions_of(upper_pod)
    kinds = [gate["conditionType"] for gate in upper_pod["spec"]["readinessGates"]]
    closed = [kind for kind in kinds if (above.get(kind) or {}).get("status") != "True"]
    times = [one["lastTransitionTime"] for kind in kinds if "lastTransitionTime" in (one := above.get(kind) or {})]
    latest = max([*times, base.get("lastTransitionTime") or ""])
    if not closed:
        return base | _since(above, "True", latest)
    message = ", ".join(f'readiness gate "{kind}" is not "True"' for kind in closed)
    made = {"type": READY, "status": "False", "reason": "ReadinessGatesNotReady", "message": message}
    numbered = {"observedGeneration": base["observedGeneration"]} if "observedGeneration" in base else {}
    return made | numbered | _since(above, "False", latest)


def _since(above: dict[str, Manifest], status: str, otherwise: str) -> dict[str, str]:
    """Return the transition time of Ready: its present one, if it has that status already; {} when unknown."""
    ready = above.get(READY) or {}
    known = ready.get("lastTransitionTime") if ready.get("status") == status else None
    time = known or otherwise
    return {"lastTransitionTime": time} if time else {}


def _disruption(
    upper_pod: Manifest, lower_pod: Manifest, above: dict[str, Manifest], below: dict[str, Manifest]
) -> Manifest | None:
    """Return the condition that tells a Job's failure policy that a pod did not fail by itself; None: no change.

    A condition that was set in the upper cluster, for example by an eviction, is removed only there: it decides whether
    the pod is created again.
    """
    marked = (above.get(DISRUPTION) or {}).get("status") == "True"
    said = below.get(DISRUPTION)
    if said is not None and (said["status"] == "True" or not marked):
        return said
    if marked or not is_disrupted(upper_pod, lower_pod):
        return None
    return _deleted_below(DISRUPTION, "True", lower_pod)


def _deleted_below(kind: str, status: str, lower_pod: Manifest) -> Manifest:
    """Return a condition whose transition time is the deletion of the lower pod."""
    made = {"type": kind, "status": status, "reason": POD_DELETED, "message": _DELETED_BELOW}
    return made | {"lastTransitionTime": timestamp(deleted_at(lower_pod))}
