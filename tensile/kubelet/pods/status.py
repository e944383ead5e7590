"""The status of an upper pod, derived from its lower pod or, where no lower pod can speak for it, set by the engine.

A terminal phase is never left. Conditions are merged by type; containers go by the names in the upper spec, so those
that a lower webhook injected are left out. Every time comes from the lower pod and not from a clock, so the same two
pods always give the same status, and writing it leaves nothing to write. The engine's own statuses say in the fields
that kubectl prints why a pod is not mirrored, unreachable or lost. Each is None when the pod says so already, so that
an unchanged world causes no write. `now` is a time in RFC 3339.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tensile.kube.cluster import Patch
from tensile.kubelet.pods.conditions import (
    CONTAINERS_READY,
    DISRUPTION,
    READY,
    READY_TO_START,
    SCHEDULED,
    Conditions,
    Fields,
    condition,
    conditions_of,
    is_terminal,
    observed_generation,
    reflected_conditions,
    status_of,
    status_patch,
)
from tensile.kubelet.pods.fields import STATUS, FieldVerdict, with_verdict
from tensile.names import IN_STEP, LOWER_SCHEDULED, MIRRORED, STORE_RESTORED
from tensile.objects import POD, UPPER, Manifest, Ref, metadata
from tensile.reconcile.desired import Patched

_EPHEMERAL = "ephemeralContainerStatuses"
CONTAINERS_OF: Mapping[str, str] = MappingProxyType(
    {
        "containerStatuses": "containers",
        "initContainerStatuses": "initContainers",
        _EPHEMERAL: "ephemeralContainers",
    }
)
"""The field of the spec that each list of statuses is about."""

_KILLED = 137
_RESTART_ALL = "RestartAllContainers"
_COPIED = with_verdict(STATUS, FieldVerdict.KEEP)
_NOT_SEEN_ENDING = "the pod ended in the lower cluster before this container's end was reported"
LOWER_POD_LOST = "LowerPodLost"
LOWER_UNREACHABLE = "LowerUnreachable"
_READINESS = (READY, CONTAINERS_READY)
_LOST = "the pod's counterpart in the lower cluster was deleted there"
_UNREACHABLE = "the lower cluster that runs the pod does not answer"
_FORGOTTEN = "the lower cluster knows nothing of the pod since its store went back to an earlier state"


def upper_status(
    upper_pod: Manifest, lower_pod: Manifest, *, generation: int, in_step: Manifest | None = None
) -> Manifest | None:
    """Return the strategic merge patch {"status": ...} that reports the lower pod on the upper pod, None for none.

    Minor differences alone cause no write: that a scheduler found a node, and the first observedGeneration, are sent
    with the next write. `generation` is the upper generation whose spec the lower pod has (0: unknown), `in_step` the
    condition of that type, None where it should be absent. A pod that others delete in the lower cluster is not ready,
    and marked as disrupted, from the time of that deletion.
    """
    seen = status_of(upper_pod).get("phase")
    if is_terminal(seen) and _phase(lower_pod) != seen:
        return None
    conditions = {**reflected_conditions(upper_pod, lower_pod, generation), IN_STEP: in_step}
    fields = _fields(upper_pod, lower_pod) | _observed(upper_pod, lower_pod, generation)
    patch = status_patch(upper_pod, fields, conditions)
    return {"status": patch} if _is_of_worth(patch, upper_pod) else None


def ending(upper_pod: Manifest, lower_pod: Manifest | None, now: str) -> Manifest | None:
    """Return the last status of a deleted pod before its object is removed; None when it says so already.

    Job controllers wait for a terminal phase of each pod that they count: the lower pod's last one, else Failed.
    Containers that still ran are reported as a kubelet reports containers that it cannot find. `now` is in RFC 3339.
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
    """Return the lower pod's last status, as far as it can still change the upper pod's status."""
    seen = status_of(upper_pod).get("phase")
    if lower_pod is None or (is_terminal(seen) and _phase(lower_pod) != seen):
        return {}, {}
    return _fields(upper_pod, lower_pod), reflected_conditions(upper_pod, lower_pod, 0)


def _unready(upper_pod: Manifest, conditions: Conditions, kind: str, now: str) -> Manifest:
    """Return a readiness condition with status False: the new or present one if it is False, else one of our own."""
    for one in (conditions.get(kind), conditions_of(upper_pod).get(kind)):
        if one is not None and one["status"] == "False":
            return one
    return condition(upper_pod, kind, "False", reason="PodFailed", message="", now=now)


def _phase(lower_pod: Manifest) -> str:
    """Return the phase of a pod, Pending when it has none."""
    return status_of(lower_pod).get("phase") or "Pending"


def _fields(upper_pod: Manifest, lower_pod: Manifest) -> dict[str, Any]:
    """Return every field but conditions and observedGeneration as it should be in the upper pod."""
    status = status_of(lower_pod)
    phase = _phase(lower_pod)
    copied = {field: status.get(field) for field in _COPIED}
    ended = is_terminal(phase) and not upper_pod["spec"].get("hostNetwork")
    return copied | {"phase": phase} | _addresses(lower_pod, ended=ended) | reflected_containers(upper_pod, lower_pod)


def _addresses(pod: Manifest, *, ended: bool) -> dict[str, Any]:
    """Return the four address fields, each list starting with its single field's value.

    A pod that ended has no address: its sandbox is gone, and another pod may have the address by now.
    """
    status = status_of(pod)
    pod_ip, pod_ips = ("", []) if ended else _pair(status.get("podIP"), status.get("podIPs"))
    host_ip, host_ips = _pair(status.get("hostIP"), status.get("hostIPs"))
    return {"podIP": pod_ip, "podIPs": pod_ips, "hostIP": host_ip, "hostIPs": host_ips}


def _pair(single: str | None, several: list[Manifest] | None) -> tuple[str, list[Manifest]]:
    """Return the older, single field and the list in agreement; the single one wins, as in Kubernetes."""
    first = several[0].get("ip", "") if several else ""
    address = single or first
    return address, several if several and first == address else [{"ip": address}] if address else []


def _observed(upper_pod: Manifest, lower_pod: Manifest, generation: int) -> dict[str, Any]:
    """Return observedGeneration where it moves forward."""
    number = observed_generation(status_of(lower_pod).get("observedGeneration"), lower_pod, generation)
    known = status_of(upper_pod).get("observedGeneration") or 0
    return {"observedGeneration": number} if number and number > known else {}


def _is_of_worth(patch: Manifest, upper_pod: Manifest) -> bool:
    """Report whether a patch contains something that cannot wait for the next one."""
    if patch.keys() - {"conditions", "observedGeneration"}:
        return True
    if "observedGeneration" in patch and status_of(upper_pod).get("observedGeneration"):
        return True
    return any(not _is_mere_scheduling(one, upper_pod) for one in patch.get("conditions", ()))


def _is_mere_scheduling(one: Manifest, upper_pod: Manifest) -> bool:
    """Report whether a condition only says, for the first time, that a node was found."""
    found = one["type"] in (SCHEDULED, LOWER_SCHEDULED) and one.get("status") == "True"
    return found and one["type"] not in conditions_of(upper_pod)


def reflected_containers(upper_pod: Manifest, lower_pod: Manifest) -> dict[str, list[Manifest]]:
    """Return what the three lists of container statuses should be in the upper pod.

    The apiserver refuses a whole status if a container that may not restart runs again, so such a container keeps the
    end that was reported.
    """
    return {field: _reflected(field, upper_pod, lower_pod) for field in CONTAINERS_OF}


def ended_containers(statuses: Mapping[str, list[Manifest]], message: str) -> dict[str, list[Manifest]]:
    """Return the lists with every container ended that had not: exit code 137, reason ContainerStatusUnknown.

    That is what a kubelet reports for a container that it cannot find any more. Init and ephemeral containers that were
    not running keep their state.
    """
    return {field: [_ended(field, one, message) for one in entries] for field, entries in statuses.items()}


def present_containers(upper_pod: Manifest) -> dict[str, list[Manifest]]:
    """Return the three lists as they are in the upper pod."""
    return {field: status_of(upper_pod).get(field) or [] for field in CONTAINERS_OF}


def _reflected(field: str, upper_pod: Manifest, lower_pod: Manifest) -> list[Manifest]:
    """Return one list as it should be in the upper pod."""
    below: list[Manifest] = status_of(lower_pod).get(field) or []
    if not below:
        return []
    above: list[Manifest] = status_of(upper_pod).get(field) or []
    spec = upper_pod["spec"]
    specs = {one["name"]: one for one in spec.get(CONTAINERS_OF[field]) or ()}
    ended = {one["name"]: one for one in above if (one.get("state") or {}).get("terminated")}
    shown = [one for one in below if one["name"] in specs]
    back = {one["name"] for one in shown if one["name"] in ended and "terminated" not in (one.get("state") or {})}
    if not back or (field != _EPHEMERAL and _restarts_together(spec)):
        return shown
    refused = {name for name in back if field == _EPHEMERAL or not _may_restart(specs[name], ended[name], spec)}
    return [ended[one["name"]] if one["name"] in refused else one for one in shown]


def _may_restart(container: Manifest, status: Manifest, spec: Manifest) -> bool:
    """Report whether Kubernetes allows a container that ended so to run again."""
    exit_code = status["state"]["terminated"].get("exitCode", 0)
    if _has_restart_rule(container, exit_code):
        return True
    policy = container.get("restartPolicy") or spec.get("restartPolicy") or "Always"
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def _restarts_together(spec: Manifest) -> bool:
    """Report whether any container has a rule that restarts all of them."""
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    return any(rule.get("action") == _RESTART_ALL for one in containers for rule in one.get("restartPolicyRules") or ())


def _has_restart_rule(container: Manifest, exit_code: int) -> bool:
    """Report whether a rule of the container restarts it after this exit code."""
    rules = container.get("restartPolicyRules") or ()
    return any(rule.get("action") == "Restart" and _matches(rule.get("exitCodes") or {}, exit_code) for rule in rules)


def _matches(codes: Manifest, exit_code: int) -> bool:
    """Report whether a rule applies to an exit code."""
    listed = exit_code in (codes.get("values") or ())
    return listed if codes.get("operator") == "In" else not listed


def _ended(field: str, status: Manifest, message: str) -> Manifest:
    """Return a status as ended, unless it has ended or never began."""
    state = status.get("state") or {}
    if "terminated" in state or (field != "containerStatuses" and "running" not in state):
        return status
    running = state.get("running") or {}
    end = {"exitCode": _KILLED, "reason": "ContainerStatusUnknown", "message": message}
    times = {"startedAt": running.get("startedAt"), "containerID": status.get("containerID")}
    terminated = end | {name: value for name, value in times.items() if value}
    return {**status, "ready": False, "started": False, "state": {"terminated": terminated}}


def pending_because(upper_pod: Manifest, reason: str, message: str, now: str) -> Manifest | None:
    """Return the status of a bound pod without a lower pod, with the reason; None when it says so or has ended.

    kubectl shows a status reason in its STATUS column; the lower pod's first status removes it again.
    """
    if is_terminal(status_of(upper_pod).get("phase")):
        return None
    mirrored = condition(upper_pod, MIRRORED, "False", reason=reason, message=message, now=now)
    waiting = condition(upper_pod, READY_TO_START, "False", reason="", message="", now=now)
    fields = {"phase": status_of(upper_pod).get("phase") or "Pending", "reason": reason, "message": message}
    return _body(status_patch(upper_pod, fields, {MIRRORED: mirrored, READY_TO_START: waiting}))


def lost(upper_pod: Manifest, now: str) -> Manifest | None:
    """Return the status Failed for a pod whose lower pod is certainly gone though the upper one was not deleted.

    It is None for a pod that is being deleted, or whose phase is terminal. It sets DisruptionTarget, so that a Job's
    failure policy does not count it as the pod's own failure.
    """
    if is_terminal(status_of(upper_pod).get("phase")) or metadata(upper_pod).get("deletionTimestamp"):
        return None
    conditions = {kind: _condition_unready(upper_pod, kind, "PodFailed", "", now) for kind in _READINESS}
    if not _is_true(upper_pod, DISRUPTION):
        conditions[DISRUPTION] = condition(upper_pod, DISRUPTION, "True", reason=LOWER_POD_LOST, message=_LOST, now=now)
    fields = {"phase": "Failed", "reason": LOWER_POD_LOST, "message": _LOST, "podIP": "", "podIPs": []}
    containers = ended_containers(present_containers(upper_pod), _LOST)
    return _body(status_patch(upper_pod, fields | containers, conditions))


def unreachable(upper_pod: Manifest, now: str) -> Manifest | None:
    """Return the status that makes a pod unready because its cluster does not answer, so that Services stop using it.

    Only existing readiness conditions change: a pod that was never mirrored has none, and phase and container states
    stay as they were last seen.
    """
    if is_terminal(status_of(upper_pod).get("phase")):
        return None
    return _body(status_patch(upper_pod, {}, _unreadiness(upper_pod, LOWER_UNREACHABLE, _UNREACHABLE, now)))


def forgotten(upper_pod: Manifest, now: str) -> Manifest | None:
    """Return the status that makes a pod unready because its restored lower cluster does not know it."""
    return _body(status_patch(upper_pod, {}, _unreadiness(upper_pod, STORE_RESTORED, _FORGOTTEN, now)))


def evicted(upper_pod: Manifest, words: str, now: str) -> Manifest | None:
    """Return the status of a pod that is to be deleted because its cluster is unreachable, as for an eviction."""
    conditions = _unreadiness(upper_pod, LOWER_UNREACHABLE, _UNREACHABLE, now)
    if not _is_true(upper_pod, DISRUPTION):
        conditions[DISRUPTION] = condition(
            upper_pod, DISRUPTION, "True", reason=LOWER_UNREACHABLE, message=words, now=now
        )
    return _body(status_patch(upper_pod, {}, conditions))


def _unreadiness(upper_pod: Manifest, reason: str, message: str, now: str) -> dict[str, Manifest | None]:
    """Return the existing readiness conditions with status False."""
    present = [kind for kind in _READINESS if kind in conditions_of(upper_pod)]
    return {kind: _condition_unready(upper_pod, kind, reason, message, now) for kind in present}


def _condition_unready(upper_pod: Manifest, kind: str, reason: str, message: str, now: str) -> Manifest:
    """Return a readiness condition with status False."""
    return condition(upper_pod, kind, "False", reason=reason, message=message, now=now)


def _is_true(upper_pod: Manifest, kind: str) -> bool:
    """Report whether a condition of the pod is True."""
    return (conditions_of(upper_pod).get(kind) or {}).get("status") == "True"


def _body(patch: Manifest) -> Manifest | None:
    """Return the body of a patch, None when it is empty."""
    return {"status": patch} if patch else None


def status_write(
    upper_pod: Manifest, body: Manifest, reason: str, *, asked: bool = True, lost: bool = False
) -> Patched:
    """Return the write of {"status": ...}, with its preconditions.

    It is conditional on the pod's UID. With a phase it is also conditional on the resourceVersion, because two keys may
    write a phase, and a slow write must not revert an end that was reported meanwhile. The same holds for
    DisruptionTarget, which an eviction also sets just before it deletes the pod. Other statuses need no such condition:
    a later decision corrects them.
    """
    meta = metadata(upper_pod)
    fields = ("uid", "resourceVersion") if _is_shared(body["status"]) else ("uid",)
    fence = {field: meta[field] for field in fields if field in meta}
    patch = Patch("strategic-merge-patch", {"metadata": fence, **body})
    return Patched(
        Ref(UPPER, POD, meta["namespace"], meta["name"]), patch, reason, "status", requested=asked, after_rollback=lost
    )


def _is_shared(status: Manifest) -> bool:
    """Report whether a status has fields that others write too."""
    return "phase" in status or any(one["type"] == DISRUPTION for one in status.get("conditions", ()))
