"""What an upper pod's status should say of its lower pod.

By the table of status fields: a phase is never left once it is terminal, conditions go by type, containers by the names
that the upper spec has, addresses in pairs and not beyond the pod's end, and what is immutable above or the lower
cluster's own stays below. Nothing here reads a clock: every time comes from the lower pod, so the same two pods always
give the same answer, and writing that answer leaves nothing to write.
"""

from typing import Any

from tensile.kubelet.conditions import (
    CONTAINERS_READY,
    READY,
    SCHEDULED,
    condition,
    is_terminal,
    observed_generation,
    reflected_conditions,
)
from tensile.kubelet.containerstatuses import ended_containers, present_containers, reflected_containers
from tensile.kubelet.podfields import STATUS, Verdict, with_verdict
from tensile.kubelet.statuspatch import Conditions, Fields, conditions_of, status_of, status_patch
from tensile.names import IN_STEP, LOWER_SCHEDULED
from tensile.objects import Manifest

_COPIED = with_verdict(STATUS, Verdict.KEEP)
_NOT_SEEN_ENDING = "the pod ended in the lower cluster before this container's end was reported"


def upper_status(
    upper_pod: Manifest, lower_pod: Manifest, *, generation: int, in_step: Manifest | None = None
) -> Manifest | None:
    """Give the strategic merge patch {"status": ...} that makes the upper pod say what its lower pod says.

    None when nothing of worth differs: that a scheduler found a node, and a first observedGeneration, travel
    with the next write instead of causing one. `generation` is the upper generation whose spec the lower pod has (0:
    not known), `in_step` the condition of that type, None where it should be absent.
    A pod being deleted below by others is not ready, and marked as disrupted, from the moment of that deletion.
    """
    seen = status_of(upper_pod).get("phase")
    if is_terminal(seen) and _phase(lower_pod) != seen:
        return None
    conditions = {**reflected_conditions(upper_pod, lower_pod, generation), IN_STEP: in_step}
    fields = _fields(upper_pod, lower_pod) | _observed(upper_pod, lower_pod, generation)
    patch = status_patch(upper_pod, fields, conditions)
    return {"status": patch} if _is_of_worth(patch, upper_pod) else None


def ending(upper_pod: Manifest, lower_pod: Manifest | None, now: str) -> Manifest | None:
    """Give the last status of a deleted pod before its object goes; None when it says so already.

    Job controllers wait for a terminal phase of a pod that they count: the lower pod's last one, else Failed. What
    still ran is reported as a kubelet reports containers that it cannot find. `now` is in RFC 3339.
    """
    fields, conditions = _last_words(upper_pod, lower_pod)
    phase = next(one for one in (status_of(upper_pod).get("phase"), fields.get("phase"), "Failed") if is_terminal(one))
    lists = {field: fields.get(field, entries) for field, entries in present_containers(upper_pod).items()}
    fields = {
        **fields,
        **ended_containers(lists, _NOT_SEEN_ENDING),
        "phase": phase,
        **_addresses(upper_pod, ended=True),
    }
    unready = {kind: _unready(upper_pod, conditions, kind, now) for kind in (READY, CONTAINERS_READY)}
    patch = status_patch(upper_pod, fields, {**conditions, **unready})
    return {"status": patch} if patch else None


def _last_words(upper_pod: Manifest, lower_pod: Manifest | None) -> tuple[Fields, Conditions]:
    """Give what the lower pod said last, as far as it can still change the upper pod's status."""
    seen = status_of(upper_pod).get("phase")
    if lower_pod is None or (is_terminal(seen) and _phase(lower_pod) != seen):
        return {}, {}
    return _fields(upper_pod, lower_pod), reflected_conditions(upper_pod, lower_pod, 0)


def _unready(upper_pod: Manifest, conditions: Conditions, kind: str, now: str) -> Manifest:
    """Give a readiness condition that says False: the one that is there or comes up, where it does."""
    for one in (conditions.get(kind), conditions_of(upper_pod).get(kind)):
        if one is not None and one["status"] == "False":
            return one
    return condition(upper_pod, kind, "False", reason="PodFailed", message="", now=now)


def _phase(lower_pod: Manifest) -> str:
    """Give the phase that a pod says, Pending when it says none."""
    return status_of(lower_pod).get("phase") or "Pending"


def _fields(upper_pod: Manifest, lower_pod: Manifest) -> dict[str, Any]:
    """Give every field but conditions and observedGeneration as it should be above."""
    status = status_of(lower_pod)
    phase = _phase(lower_pod)
    copied = {field: status.get(field) for field in _COPIED}
    ended = is_terminal(phase) and not upper_pod["spec"].get("hostNetwork")
    return copied | {"phase": phase} | _addresses(lower_pod, ended=ended) | reflected_containers(upper_pod, lower_pod)


def _addresses(pod: Manifest, *, ended: bool) -> dict[str, Any]:
    """Give the four address fields, each list starting with its single field's value.

    A pod that ended has no address: its sandbox is gone, and another pod may have it by now.
    """
    status = status_of(pod)
    pod_ip, pod_ips = ("", []) if ended else _pair(status.get("podIP"), status.get("podIPs"))
    host_ip, host_ips = _pair(status.get("hostIP"), status.get("hostIPs"))
    return {"podIP": pod_ip, "podIPs": pod_ips, "hostIP": host_ip, "hostIPs": host_ips}


def _pair(single: str | None, several: list[Manifest] | None) -> tuple[str, list[Manifest]]:
    """Make the older, single field and the list agree; where they do not, the single one holds, as in Kubernetes."""
    first = several[0].get("ip", "") if several else ""
    address = single or first
    return address, several if several and first == address else [{"ip": address}] if address else []


def _observed(upper_pod: Manifest, lower_pod: Manifest, generation: int) -> dict[str, Any]:
    """Give observedGeneration where it moves forward."""
    number = observed_generation(status_of(lower_pod).get("observedGeneration"), lower_pod, generation)
    known = status_of(upper_pod).get("observedGeneration") or 0
    return {"observedGeneration": number} if number and number > known else {}


def _is_of_worth(patch: Manifest, upper_pod: Manifest) -> bool:
    """Say whether a patch has something to say that cannot wait for the next one."""
    if patch.keys() - {"conditions", "observedGeneration"}:
        return True
    if "observedGeneration" in patch and status_of(upper_pod).get("observedGeneration"):
        return True
    return any(not _is_mere_scheduling(one, upper_pod) for one in patch.get("conditions", ()))


def _is_mere_scheduling(one: Manifest, upper_pod: Manifest) -> bool:
    """Say whether a condition only tells that a node was found, for the first time."""
    found = one["type"] in (SCHEDULED, LOWER_SCHEDULED) and one.get("status") == "True"
    return found and one["type"] not in conditions_of(upper_pod)
