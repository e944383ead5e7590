"""The conditions of an upper pod, out of those of its lower pod.

Each type has one author. A kubelet's types are mirrored exactly, so that one that ended below ends above. PodScheduled
above is the upper scheduler's, or true where the pod came bound, as with any kubelet; what the lower scheduler says
comes under a name of its own, where people and the descheduler find it. Ready above waits for readiness gates too,
which only upper controllers know how to open.
"""

from tensile.kubelet.statuspatch import conditions_of, status_of
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


def is_terminal(phase: str | None) -> bool:
    """Say whether a phase is one that a pod never leaves."""
    return phase in _TERMINAL_REASONS


def condition(upper_pod: Manifest, kind: str, status: str, *, reason: str, message: str, now: str) -> Manifest:
    """Make a condition; its transition time is the present one's where the status is the same."""
    old = conditions_of(upper_pod).get(kind) or {}
    since = old.get("lastTransitionTime") if old.get("status") == status else None
    made = {"type": kind, "status": status, "reason": reason, "message": message}
    return {field: value for field, value in made.items() if value} | {"lastTransitionTime": since or now}


def reflected_conditions(upper_pod: Manifest, lower_pod: Manifest, generation: int) -> dict[str, Manifest | None]:
    """Give what the upper pod's conditions should be, by type; None: the type should be absent.

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
    """Say whether somebody below is ending a pod that nobody above has deleted."""
    deleted = metadata(lower_pod).get("deletionTimestamp") and not metadata(upper_pod).get("deletionTimestamp")
    return bool(deleted) and not is_terminal(status_of(lower_pod).get("phase"))


def observed_generation(number: int | None, lower_pod: Manifest, generation: int) -> int | None:
    """Say which upper generation an observation below is about; None when it is about an older one than the last.

    `number` is what the lower status says, in the lower pod's own count, None from a kubelet that does not count.
    """
    newest = metadata(lower_pod).get("generation") or 0
    return generation if number is None or number >= newest else None


def _bound_from_the_start(upper_pod: Manifest) -> Manifest:
    """Make the condition of a pod that no scheduler placed."""
    created = metadata(upper_pod).get("creationTimestamp")
    return {"type": SCHEDULED, "status": "True"} | ({"lastTransitionTime": created} if created else {})


def _renumbered(one: Manifest, lower_pod: Manifest, generation: int) -> Manifest:
    """Replace the lower pod's count of generations by the upper's."""
    if "observedGeneration" not in one:
        return one
    number = observed_generation(one["observedGeneration"], lower_pod, generation)
    rest = {field: value for field, value in one.items() if field != "observedGeneration"}
    return rest | ({"observedGeneration": number} if number else {})


def _ready(upper_pod: Manifest, lower_pod: Manifest, below: dict[str, Manifest]) -> Manifest | None:
    """Give Ready as it should be above; None where nothing below speaks of readiness."""
    base = _ready_below(below)
    if base is None or base["status"] != "True":
        return base
    if is_terminal(status_of(lower_pod).get("phase")):
        return _unready_at_end(base, lower_pod)
    if is_disrupted(upper_pod, lower_pod):
        return _deleted_below(READY, "False", lower_pod)
    return _gated(upper_pod, base) if upper_pod["spec"].get("readinessGates") else base


def _ready_below(below: dict[str, Manifest]) -> Manifest | None:
    """Give what the lower cluster says of readiness, under the type Ready.

    A node that fails turns Ready false and leaves ContainersReady; a kubelet keeps the two together otherwise.
    """
    ready, containers = below.get(READY), below.get(CONTAINERS_READY)
    if containers is not None and (ready is None or containers["status"] != "True"):
        return {**containers, "type": READY} if ready is None or ready["status"] == "True" else ready
    return ready


def _unready_at_end(base: Manifest | None, lower_pod: Manifest) -> Manifest | None:
    """Turn a condition that still says True false: containers of a pod that has ended are not ready."""
    if base is None or base["status"] != "True":
        return base
    ended = {"status": "False", "reason": _TERMINAL_REASONS[lower_pod["status"]["phase"]]}
    return {field: value for field, value in base.items() if field != "message"} | ended


def _gated(upper_pod: Manifest, base: Manifest) -> Manifest:
    """Let the upper pod's readiness gates decide, as a kubelet does."""
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
    """Give since when Ready has a status: what it says itself, where it has that status already; {} when unknown."""
    ready = above.get(READY) or {}
    known = ready.get("lastTransitionTime") if ready.get("status") == status else None
    time = known or otherwise
    return {"lastTransitionTime": time} if time else {}


def _disruption(
    upper_pod: Manifest, lower_pod: Manifest, above: dict[str, Manifest], below: dict[str, Manifest]
) -> Manifest | None:
    """Give the condition that tells a Job's failure policy that a pod did not fail by itself; None: leave as it is.

    What is said above, by an eviction for one, is taken back above alone: it says whether the pod is made again.
    """
    marked = (above.get(DISRUPTION) or {}).get("status") == "True"
    said = below.get(DISRUPTION)
    if said is not None and (said["status"] == "True" or not marked):
        return said
    if marked or not is_disrupted(upper_pod, lower_pod):
        return None
    return _deleted_below(DISRUPTION, "True", lower_pod)


def _deleted_below(kind: str, status: str, lower_pod: Manifest) -> Manifest:
    """Make a condition that starts when the lower pod was deleted."""
    made = {"type": kind, "status": status, "reason": POD_DELETED, "message": _DELETED_BELOW}
    return made | {"lastTransitionTime": timestamp(deleted_at(lower_pod))}
