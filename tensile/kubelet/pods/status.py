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
    POD_FAILED,
    READY,
    READY_TO_START,
    SCHEDULED,
    Fields,
    WantedConditions,
    condition,
    reflected_conditions,
    status_patch,
)
from tensile.kubelet.pods.projection import STATUS, FieldVerdict, with_verdict
from tensile.names import LOWER_SCHEDULED, LOWER_UNREACHABLE, MIRRORED, STORE_RESTORED, SYNCED, ConditionReason
from tensile.objects import Manifest
from tensile.reconcile.desired import Patched
from tensile.reconcile.pods.index import TERMINAL, PodView

_EPHEMERAL = "ephemeralContainerStatuses"
CONTAINERS_OF: Mapping[str, str] = MappingProxyType(
    {
        "containerStatuses": "containers",
        "initContainerStatuses": "initContainers",
        _EPHEMERAL: "ephemeralContainers",
    }
)
"""The field of the spec that each list of statuses is about."""

_KILLED_EXIT_CODE = 137
_RESTART_ALL = "RestartAllContainers"
_COPIED_FIELDS = with_verdict(STATUS, FieldVerdict.KEEP)
_NOT_SEEN_MESSAGE = "the pod terminated in the lower cluster before the final status of this container was reported"
LOWER_POD_LOST: ConditionReason = "LowerPodLost"
"""The pod is Failed and has `DisruptionTarget`: another client deleted the lower pod, and it is gone.
Remedy: find out who did it from the audit log of the lower cluster; a controller replaces the pod."""
STATUS_UNKNOWN: ConditionReason = "ContainerStatusUnknown"
"""Of a terminated container: the pod ended before the end of this container was reported; the exit code is 137.
Remedy: nothing."""
_READINESS = (READY, CONTAINERS_READY)
_BY_GARBAGE_COLLECTOR = "DeletionByPodGC"
"""The reason of DisruptionTarget with which PodGC ends the pods of a node that was deleted."""
_NODE_GONE_MESSAGE = "the node of the lower cluster that ran the container was deleted"
_LOST_MESSAGE = "another client deleted the pod in the lower cluster"
_UNREACHABLE_MESSAGE = "the lower cluster that runs the pod does not answer"
_FORGOTTEN_MESSAGE = "the lower cluster lost the pod when its store was restored to an earlier state"


def upper_status(upper: PodView, lower: PodView, *, generation: int, synced: Manifest | None = None) -> Manifest | None:
    """Return the strategic merge patch {"status": ...} that reports the lower pod on the upper pod, None for none.

    Minor differences alone cause no write: that a scheduler found a node, and the first observedGeneration, are sent
    with the next write. `generation` is the upper generation whose spec the lower pod has (0: unknown), `synced` the
    condition Synced, None where it should be absent. A pod that others delete in the lower cluster is not ready,
    and marked as disrupted, from the time of that deletion.
    """
    if upper.phase in TERMINAL and lower.phase != upper.phase:
        return None
    conditions = reflected_conditions(upper, lower, generation)
    conditions[SYNCED] = synced
    fields = _fields(upper, lower)
    number = _observed(lower, generation)
    if number and number > (upper.status.get("observedGeneration") or 0):
        fields["observedGeneration"] = number
    patch = status_patch(upper, fields, conditions)
    return {"status": patch} if patch and _is_worth_a_write(patch, upper) else None


def terminal_status(upper: PodView, lower: PodView | None, now: str) -> Manifest | None:
    """Return the last status of a deleted pod before its object is removed; None when it says so already.

    Job controllers wait for a terminal phase of each pod that they count: the lower pod's last one, else Failed.
    Containers that still ran are reported as a kubelet reports containers that it cannot find. `now` is in RFC 3339.
    """
    fields, conditions = _last_lower_status(upper, lower)
    phase = next(one for one in (upper.phase, fields.get("phase"), "Failed") if one in TERMINAL)
    lists = {field: fields.get(field, entries) for field, entries in present_statuses(upper).items()}
    fields = {
        **fields,
        **ended_statuses(lists, _NOT_SEEN_MESSAGE),
        "phase": phase,
        **_addresses(upper, ended=True),
    }
    unready = {kind: _unready(upper, conditions, kind, now) for kind in (READY, CONTAINERS_READY)}
    patch = status_patch(upper, fields, {**conditions, **unready})
    return {"status": patch} if patch else None


def _last_lower_status(upper: PodView, lower: PodView | None) -> tuple[Fields, WantedConditions]:
    """Return the lower pod's last status, as far as it can still change the upper pod's status."""
    if lower is None or (upper.phase in TERMINAL and lower.phase != upper.phase):
        return {}, {}
    return _fields(upper, lower), reflected_conditions(upper, lower, 0)


def _unready(upper: PodView, conditions: WantedConditions, kind: str, now: str) -> Manifest:
    """Return a readiness condition with status False: the new or present one if it is False, else one of our own."""
    for one in (conditions.get(kind), upper.conditions.get(kind)):
        if one is not None and one["status"] == "False":
            return one
    return condition(upper, kind, "False", reason=POD_FAILED, message="", now=now)


def _fields(upper: PodView, lower: PodView) -> dict[str, Any]:
    """Return every field but conditions and observedGeneration as it should be in the upper pod."""
    fields: dict[str, Any] = {field: lower.status.get(field) for field in _COPIED_FIELDS}
    fields["phase"] = lower.phase
    fields |= _addresses(lower, ended=lower.phase in TERMINAL and not upper.spec.get("hostNetwork"))
    containers = reflected_statuses(upper, lower)
    return fields | (ended_statuses(containers, _NODE_GONE_MESSAGE) if _has_lost_its_node(lower) else containers)


def _has_lost_its_node(lower: PodView) -> bool:
    """Report whether Kubernetes ended a pod because its node is gone: no kubelet will report the end of containers."""
    condition = lower.conditions.get(DISRUPTION) or {}
    return lower.phase == "Failed" and (condition.get("status"), condition.get("reason")) == (
        "True",
        _BY_GARBAGE_COLLECTOR,
    )


def _addresses(pod: PodView, *, ended: bool) -> dict[str, Any]:
    """Return the four address fields, each list starting with its single field's value.

    A pod that ended has no address: its sandbox is gone, and another pod may have the address by now.
    """
    status = pod.status
    pod_ip, pod_ips = ("", []) if ended else _pair(status.get("podIP"), status.get("podIPs"))
    host_ip, host_ips = _pair(status.get("hostIP"), status.get("hostIPs"))
    return {"podIP": pod_ip, "podIPs": pod_ips, "hostIP": host_ip, "hostIPs": host_ips}


def _pair(single: str | None, several: list[Manifest] | None) -> tuple[str, list[Manifest]]:
    """Return the older, single field and the list in agreement; the single one wins, as in Kubernetes."""
    first = several[0].get("ip", "") if several else ""
    address = single or first
    return address, several if several and first == address else [{"ip": address}] if address else []


def _observed(lower: PodView, generation: int) -> int | None:
    """Return the upper generation that a lower status is about; None if it is about an older one than the last.

    A kubelet that sets no observedGeneration is taken to have observed the last.
    """
    number = lower.status.get("observedGeneration")
    return generation if number is None or number >= (lower.meta.get("generation") or 0) else None


def _is_worth_a_write(patch: Manifest, upper: PodView) -> bool:
    """Report whether a patch contains something that cannot wait for the next one."""
    if patch.keys() - {"conditions", "observedGeneration"}:
        return True
    if "observedGeneration" in patch and upper.status.get("observedGeneration"):
        return True
    return any(not _is_first_scheduling(one, upper) for one in patch.get("conditions", ()))


def _is_first_scheduling(one: Manifest, upper: PodView) -> bool:
    """Report whether a condition only says, for the first time, that a node was found."""
    found = one["type"] in (SCHEDULED, LOWER_SCHEDULED) and one.get("status") == "True"
    return found and one["type"] not in upper.conditions


def reflected_statuses(upper: PodView, lower: PodView) -> dict[str, list[Manifest]]:
    """Return what the three lists of container statuses should be in the upper pod.

    The apiserver refuses a whole status if a container that may not restart runs again, so such a container keeps the
    end that was reported.
    """
    found: dict[str, list[Manifest]] = {}
    for field in CONTAINERS_OF:
        statuses = lower.status.get(field)
        found[field] = _reflected(field, statuses, upper) if statuses else []
    return found


def ended_statuses(statuses: Mapping[str, list[Manifest]], message: str) -> dict[str, list[Manifest]]:
    """Return the lists with every container ended that had not: exit code 137, reason ContainerStatusUnknown.

    That is what a kubelet reports for a container that it cannot find any more. Init and ephemeral containers that were
    not running keep their state.
    """
    return {field: [_ended(field, one, message) for one in entries] for field, entries in statuses.items()}


def present_statuses(upper: PodView) -> dict[str, list[Manifest]]:
    """Return the three lists as they are in the upper pod."""
    return {field: upper.status.get(field) or [] for field in CONTAINERS_OF}


def _reflected(field: str, lower_statuses: list[Manifest], upper: PodView) -> list[Manifest]:
    """Return one list as it should be in the upper pod, from the lower pod's."""
    specs = {one["name"]: one for one in upper.spec.get(CONTAINERS_OF[field]) or ()}
    shown = [one for one in lower_statuses if one["name"] in specs]
    upper_statuses: list[Manifest] = upper.status.get(field) or []
    ended = {one["name"]: one for one in upper_statuses if (one.get("state") or {}).get("terminated")}
    if not ended:
        return shown
    running_again = {
        one["name"] for one in shown if one["name"] in ended and "terminated" not in (one.get("state") or {})
    }
    if not running_again or (field != _EPHEMERAL and _restarts_together(upper.spec)):
        return shown
    refused = {
        name for name in running_again if field == _EPHEMERAL or not _may_restart(specs[name], ended[name], upper.spec)
    }
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
    is_listed = exit_code in (codes.get("values") or ())
    return is_listed if codes.get("operator") == "In" else not is_listed


def _ended(field: str, status: Manifest, message: str) -> Manifest:
    """Return a status as ended, unless it has ended, or is of an init or ephemeral container that is not running."""
    state = status.get("state") or {}
    if "terminated" in state or (field != "containerStatuses" and "running" not in state):
        return status
    running = state.get("running") or {}
    end = {"exitCode": _KILLED_EXIT_CODE, "reason": STATUS_UNKNOWN, "message": message}
    times = {"startedAt": running.get("startedAt"), "containerID": status.get("containerID")}
    terminated = end | {name: value for name, value in times.items() if value}
    return {**status, "ready": False, "started": False, "state": {"terminated": terminated}}


def pending_status(upper: PodView, reason: str, message: str, now: str) -> Manifest | None:
    """Return the status of a bound pod without a lower pod, with the reason; None when it says so or has ended.

    kubectl shows a status reason in its STATUS column; the lower pod's first status removes it again.
    """
    if upper.phase in TERMINAL:
        return None
    mirrored = condition(upper, MIRRORED, "False", reason=reason, message=message, now=now)
    waiting = condition(upper, READY_TO_START, "False", reason="", message="", now=now)
    fields = {"phase": upper.phase, "reason": reason, "message": message}
    return _body(status_patch(upper, fields, {MIRRORED: mirrored, READY_TO_START: waiting}))


def lost_status(upper: PodView, now: str) -> Manifest | None:
    """Return the status Failed for a pod whose lower pod is certainly gone though the upper one was not deleted.

    It is None for a pod that is being deleted, or whose phase is terminal. It sets DisruptionTarget, so that a Job's
    failure policy does not count it as the pod's own failure.
    """
    if upper.phase in TERMINAL or upper.meta.get("deletionTimestamp"):
        return None
    conditions = {kind: condition(upper, kind, "False", reason=POD_FAILED, message="", now=now) for kind in _READINESS}
    if not _is_true(upper, DISRUPTION):
        conditions[DISRUPTION] = condition(
            upper, DISRUPTION, "True", reason=LOWER_POD_LOST, message=_LOST_MESSAGE, now=now
        )
    fields = {"phase": "Failed", "reason": LOWER_POD_LOST, "message": _LOST_MESSAGE, "podIP": "", "podIPs": []}
    containers = ended_statuses(present_statuses(upper), _LOST_MESSAGE)
    return _body(status_patch(upper, fields | containers, conditions))


def unreachable_status(upper: PodView, now: str) -> Manifest | None:
    """Return the status that makes a pod unready because its cluster does not answer, so that Services stop using it.

    Only existing readiness conditions change: a pod that was never mirrored has none, and phase and container states
    stay as they were last seen.
    """
    if upper.phase in TERMINAL:
        return None
    return _body(status_patch(upper, {}, _unreadiness(upper, LOWER_UNREACHABLE, _UNREACHABLE_MESSAGE, now)))


def forgotten_status(upper: PodView, now: str) -> Manifest | None:
    """Return the status that makes a pod unready because its restored lower cluster does not know it."""
    return _body(status_patch(upper, {}, _unreadiness(upper, STORE_RESTORED, _FORGOTTEN_MESSAGE, now)))


def eviction_status(upper: PodView, message: str, now: str) -> Manifest | None:
    """Return the status of a pod that is to be deleted because its cluster is unreachable, as for an eviction."""
    conditions = _unreadiness(upper, LOWER_UNREACHABLE, _UNREACHABLE_MESSAGE, now)
    if not _is_true(upper, DISRUPTION):
        conditions[DISRUPTION] = condition(
            upper, DISRUPTION, "True", reason=LOWER_UNREACHABLE, message=message, now=now
        )
    return _body(status_patch(upper, {}, conditions))


def _unreadiness(upper: PodView, reason: str, message: str, now: str) -> dict[str, Manifest | None]:
    """Return the existing readiness conditions with status False."""
    present = [kind for kind in _READINESS if kind in upper.conditions]
    return {kind: condition(upper, kind, "False", reason=reason, message=message, now=now) for kind in present}


def _is_true(upper: PodView, kind: str) -> bool:
    """Report whether a condition of the pod is True."""
    return (upper.conditions.get(kind) or {}).get("status") == "True"


def _body(patch: Manifest) -> Manifest | None:
    """Return the body of a patch, None when it is empty."""
    return {"status": patch} if patch else None


def status_write(upper: PodView, body: Manifest, reason: str, *, requested: bool = True, lost: bool = False) -> Patched:
    """Return the write of {"status": ...}, with its preconditions.

    It is conditional on the pod's UID. With a phase it is also conditional on the resourceVersion, because two keys may
    write a phase, and a slow write must not revert an end that was reported meanwhile. The same holds for
    DisruptionTarget, which an eviction also sets just before it deletes the pod. Other statuses need no such condition:
    a later decision corrects them. One that no user `requested` ends a pod, so a plan shows it.
    """
    meta, status = upper.meta, body["status"]
    fence = {"uid": meta["uid"]}
    is_contested = "phase" in status or DISRUPTION in [one["type"] for one in status.get("conditions", ())]
    if is_contested and "resourceVersion" in meta:
        fence["resourceVersion"] = meta["resourceVersion"]
    patch = Patch("strategic-merge-patch", {"metadata": fence, **body})
    return Patched(upper.ref, patch, reason, "status", in_plan=not requested, requested=requested, after_restore=lost)
