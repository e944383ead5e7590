"""`tensile explain pod`: why a pod is where it is, or why it has no node, and what to do about it.

The result is a document: JSON for programs, a table for people. It names the first obstacle between the upper scheduler
and the lower containers in one sentence, and lists for reference what every node and quota answered. The advice is
about the first obstacle; a pod that runs, or that only needs time, gets none.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tensile.diagnostics.cluster_snapshot import FleetSnapshot, UpperObject, claim_names
from tensile.engine.status.query import unrenewed
from tensile.kubelet.pods.conditions import conditions_of
from tensile.kubelet.pods.lower_context import DEFAULT_SCHEDULER
from tensile.kubelet.pods.rule import (
    DAEMON_SET_NOT_MIRRORED,
    NOT_IN_TOPOLOGY,
    PREDECESSOR_RUNNING,
    PREDECESSOR_TERMINATING,
    PREDECESSOR_UNREACHABLE,
    excluded,
)
from tensile.kubelet.pods.status import LOWER_POD_LOST
from tensile.names import (
    DELETIONS_BLOCKED,
    LOWER_UNREACHABLE,
    MIRRORED,
    NAMESPACE_EXCLUDED,
    OWNER,
    UNREACHABLE_TAINT,
)
from tensile.objects import POD, QUOTA, Manifest, controller_of, labels, metadata, uid
from tensile.policy.descheduler.replacement import uses_claims
from tensile.policy.placement.placement import FitResult, NodeRefusal, examine
from tensile.policy.placement.selectors import label_test
from tensile.policy.placement.snapshot import Pod, pod_of
from tensile.policy.placement.volume_checks import ELSEWHERE
from tensile.reconcile.ownership import NAME_CONFLICT, other_topology, rename_advice
from tensile.reconcile.pods.index import TERMINAL, facts_of
from tensile.reconcile.rules.claim_rule import CLAIM_NOT_FOUND
from tensile.reconcile.rules.config import CONFIG_MAP_NOT_FOUND, SECRET_NOT_FOUND
from tensile.reconcile.rules.namespaces import TERMINATING
from tensile.reconcile.rules.service_accounts import ACCOUNT_NOT_FOUND
from tensile.resources import is_binary, parse_all, render
from tensile.text import aligned, joined, listed
from tensile.topology import Descheduler, Lower, Topology

FORMAT = 1
_EVENTS = 5
_HEAD = ("CLUSTER", "NODE", "FITS", "CHECK", "WHY")
_ONE_BY_ONE = 20
"""Up to this many nodes get a line each; in a larger cluster, nodes with the same result share a line."""
_WHOLE = 1000
Row = dict[str, Any]
Document = dict[str, Any]
Cells = tuple[str, ...]
START = "start the engine (`tensile run`), or look in its log for why it stopped"
BLOCKED = (
    "run `tensile apply --force`: on a terminal it lists the changes and asks first; see docs/howto/held-deletions.md"
)
ONE_ENGINE = "stop one of them, or run both with --leader-elect"
REMOVED_LOWER = "put the lower cluster back with `maintenance: drain`, and remove it once its node has no pods"
_LABEL = 'virtual-pod: "true"'
_EXTENDER = (
    "with the extender (`extender.enabled`) the upper scheduler chooses only lower clusters that have a node for it"
)
_EXTENDER_NOT_CALLED = (
    "check that the upper scheduler calls the extender, which refuses such a node: see docs/extender.md"
)
_OPTED_IN = ("virtual-pod", "true")
_CHECKS: Mapping[str, str] = {
    "ports": "remove the host port from the pod, or free it on a node",
    "resources": (
        "reduce the requests of the pod, or free capacity or add nodes there; `tensile simulate` shows how many pods "
        "would fit"
    ),
    "spread": (
        "give the virtual nodes the label that `topologySpreadConstraints` of the pod names (`node.labels` in the "
        "topology), raise its `maxSkew`, or set `whenUnsatisfiable: ScheduleAnyway`"
    ),
    "pod affinity": "change the affinity or anti-affinity of the pod to other pods, or let these pods move",
    "attach limits": "delete pods there that no longer need their volumes",
    "zones": "give the virtual node the zone of the volume (`node.labels` in the topology)",
    "node": START,
}
"""What to do if all virtual nodes refuse a pod in one check, except in those that depend on the pod's label."""
_ADVICE_BY_CHECK: Mapping[str, str] = {
    "affinity": "give a node in {name} the labels that the pod selects, or change what the pod selects",
    "unschedulable": "uncordon a node in {name}",
    "taints": "remove the taint from a node in {name}, or add a toleration of it to the pod",
    "ports": "free the host port on a node in {name}, or remove it from the pod",
    "resources": (
        "reduce the requests of the pod, or free capacity or add nodes in {name}; `tensile simulate` shows how many "
        "pods would fit"
    ),
    "spread": (
        "give the nodes in {name} the label that `topologySpreadConstraints` of the pod names, raise its `maxSkew`, or "
        "set `whenUnsatisfiable: ScheduleAnyway`"
    ),
    "pod affinity": "change the affinity or anti-affinity of the pod to other pods, or let these pods move",
    "attach limits": "add nodes in {name}, or delete pods there that no longer need their volumes",
    "zones": "add a node in {name} in the zone of the volume",
}
"""What to do if the nodes of a lower refuse a pod in a check."""
_BLOCKED_PODS = "it sets such pods to Failed, and their controllers create new ones"
_OVER_QUOTA = "exceeded quota"
"""In the message of an apiserver that refuses an object for a quota."""
_CRASHING, _KILLED = "CrashLoopBackOff", "OOMKilled"
_IMAGE = "correct the name of the image in the pod"
_PULL = (
    f"{_IMAGE}; if it is right, give the pod an `imagePullSecrets` for the registry, or let the lower nodes reach it"
)
_STARTS: Mapping[str, str] = {
    "ErrImagePull": _PULL,
    "ImagePullBackOff": _PULL,
    "InvalidImageName": _IMAGE,
    "CreateContainerConfigError": "create what the message names, or correct what the pod refers to",
}
"""What to do about a container that does not start, by the reason why it waits."""
_GATED = "ReadinessGatesNotReady"
_UNAUTHORIZED = " cannot "
"""In the message of an apiserver that denies a user a right: 'User "x" cannot create resource "pods"'."""
_DENIED: Mapping[str, str] = {
    NAME_CONFLICT: (
        'rename or delete one of the two; `onConflict: adopt` takes over an object that is annotated `global: "true"` '
        "there, if its kind allows that: see docs/limits.md#name-conflicts"
    ),
    CONFIG_MAP_NOT_FOUND: "create the ConfigMap in the upper cluster",
    SECRET_NOT_FOUND: "create the Secret in the upper cluster",
    ACCOUNT_NOT_FOUND: "create the ServiceAccount in the upper cluster",
    CLAIM_NOT_FOUND: "create the claim in the upper cluster",
    NAMESPACE_EXCLUDED: "create the pod in another namespace, or change `excludeNamespaces` in the topology",
    DAEMON_SET_NOT_MIRRORED: (
        "keep the DaemonSet off nodes with the label type: virtual-kubelet, or label its pods " + _LABEL
    ),
    NOT_IN_TOPOLOGY: "put the lower cluster back into the topology, or delete the pod",
    PREDECESSOR_TERMINATING: "wait; if the older pod stays, look at its finalizers in the lower cluster",
    PREDECESSOR_RUNNING: "wait; if the older pod stays, delete it in its lower cluster",
    PREDECESSOR_UNREACHABLE: "bring the lower cluster of the older pod back: `tensile doctor` shows what is wrong",
    TERMINATING: "wait; if the lower namespace stays, look there for objects with finalizers",
    LOWER_UNREACHABLE: "find the cause with `tensile doctor`: it checks connections, credentials and permissions",
    "Forbidden": "change the pod as the message says, or the policy of the lower cluster that forbids it",
    "Invalid": "change the pod as the message says, or the LimitRange or webhook of the lower cluster that changes it",
    "InternalError": "mend the admission webhook that the message names, or delete its configuration, there",
}
"""What to do about frequent reasons not to mirror a pod."""


class Explanation(NamedTuple):
    """The state of a pod in one sentence, and what a user can do about it, the most useful first."""

    why: str
    advice: tuple[str, ...] = ()


def explained(fleet: FleetSnapshot, upper_object: UpperObject) -> Document:
    """Return the document: `formatVersion`, `pod`, `why`, `advice`, `lowers` and `events`.

    Each lower has `upper_placement`, `placement` and `quota`.
    """
    pod = upper_object.manifest
    upper_placement = examine(pod_of(pod), fleet.upper.snapshot(uid(pod)))
    lowers = [_lower(spec, fleet, pod, upper_placement) for spec in fleet.topology.lowers]
    meta, status = metadata(pod), pod.get("status") or {}
    document = {
        "formatVersion": FORMAT,
        "pod": {
            "namespace": meta["namespace"],
            "name": meta["name"],
            "phase": status.get("phase", "Pending"),
            "node": pod["spec"].get("nodeName") or "",
        },
        "lowers": lowers,
        "events": event_rows(upper_object.events),
    }
    why, advice = _on_lost_node(pod, fleet) or _verdict(pod, lowers, fleet.topology, upper_object.budgets)
    node = fleet.node(pod["spec"].get("nodeName") or "")
    unrenewed_for = unrenewed(upper_object.lease, node, fleet.world.now) if any(row["here"] for row in lowers) else ""
    if unrenewed_for and not has_ended(pod):
        why = f"{why}; no engine has renewed the lease of its node {unrenewed_for}, so its status may be old"
        advice = (START, *(line for line in advice if line != START))
    return document | {"why": why, "advice": list(advice)}


def has_ended(pod: Manifest) -> bool:
    """Report whether all containers of a pod have terminated for good."""
    return (pod.get("status") or {}).get("phase") in TERMINAL


def _on_lost_node(pod: Manifest, fleet: FleetSnapshot) -> Explanation | None:
    """Return the explanation of a pod whose Node is of a removed lower, or of another topology.

    None for any other pod.
    """
    name = pod["spec"].get("nodeName") or ""
    node = fleet.node(name)
    if not node or has_ended(pod) or metadata(pod).get("deletionTimestamp"):
        return None
    if topology := other_topology(node, fleet.owner):
        return Explanation(f"its node {name} belongs to topology {topology}", (rename_advice(topology),))
    is_declared = any(spec.node.name == name for spec in fleet.topology.lowers)
    if is_declared or labels(node).get(OWNER) != fleet.owner.mark:
        return None
    why = f"its node {name} is of a lower cluster that was removed from the topology; it runs on"
    return Explanation(why, (REMOVED_LOWER,))


def _lower(spec: Lower, fleet: FleetSnapshot, pod: Manifest, upper_placement: FitResult) -> Document:
    """Return the row of one lower: whether the upper scheduler may choose it, and where the pod would run then."""
    snapshot = fleet.lowers[spec.name]
    row: Document = {
        "name": spec.name,
        "node": spec.node.name,
        "above": _upper_document(spec.node.name, upper_placement),
    }
    row["here"] = pod["spec"].get("nodeName") == spec.node.name
    row["deletionsBlocked"] = blocked_deletions(fleet.node(spec.node.name))
    row["trouble"], row["unread"] = snapshot.trouble, sorted(snapshot.unread)
    row["below"], row["quota"], row["pod"] = None, [], None
    if snapshot.trouble:
        return row
    existing = fleet.counterpart(pod, POD, spec.name)
    if not fleet.is_copy_of(existing, pod):
        existing = {}
    wanted = pod_of(existing or fleet.projected_pod(pod, spec.name))
    row["below"] = _lower_document(examine(wanted, fleet.snapshot(spec.name, [pod], uid(existing) if existing else "")))
    if existing:
        phase = (existing.get("status") or {}).get("phase", "Pending")
        row["pod"] = {"namespace": wanted.namespace, "name": wanted.name, "node": wanted.node, "phase": phase}
    else:
        quotas = exceeded(wanted, snapshot.all(QUOTA), wanted.namespace)
        row["quota"] = [{"name": name, "message": message} for name, message in quotas]
    return row


def blocked_deletions(node: Manifest) -> str:
    """Return what a Node reports about deletions that the guard blocks, "" for none."""
    condition = conditions_of(node).get(DELETIONS_BLOCKED) or {}
    return str(condition.get("message", "")) if condition.get("status") == "True" else ""


def _upper_document(node: str, placement: FitResult) -> Document:
    """Return whether the upper scheduler may choose the virtual node, and why not."""
    if node in placement.fitting:
        return {"fits": True}
    refusal = placement.refused.get(node)
    if refusal is None:
        return {
            "fits": False,
            "check": "node",
            "reasons": [f"there is no node {node}"],
            "detail": "does the engine run?",
        }
    return {"fits": False, **_refusal_fields(refusal)}


def _lower_document(placement: FitResult) -> Document:
    """Return the nodes of a lower that the pod fits on, and why it does not fit on the others."""
    nodes: list[Document] = [{"name": name, "fits": True} for name in placement.fitting]
    nodes += [{"name": name, "fits": False, **_refusal_fields(refusal)} for name, refusal in placement.refused.items()]
    nowhere = _refusal_fields(placement.nowhere) if placement.nowhere else None
    return {
        "fits": len(placement.fitting),
        "nodes": sorted(nodes, key=_name),
        "message": placement.message,
        "nowhere": nowhere,
    }


def _refusal_fields(refusal: NodeRefusal) -> Document:
    return {"check": refusal.check, "reasons": list(refusal.reasons), "detail": refusal.detail}


def _name(row: Document) -> str:
    return str(row["name"])


def _latest_events(events: Iterable[Manifest]) -> list[Manifest]:
    """Return the latest events, newest first."""
    return sorted(events, key=_event_time, reverse=True)[:_EVENTS]


def _event_time(event: Manifest) -> str:
    series = event.get("series") or {}
    found = (
        series.get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        event.get("firstTimestamp"),
    )
    return next((str(one) for one in found if one), "")


def reason_and_message(status: Manifest) -> str:
    """Return the reason and the message of a condition or a state, as far as it has them."""
    return ": ".join(str(status[name]) for name in ("reason", "message") if status.get(name))


def event_rows(events: Iterable[Manifest]) -> list[Document]:
    """Return the latest events as rows."""
    return [_event(one) for one in _latest_events(events)]


def _event(event: Manifest) -> Document:
    source = event.get("reportingComponent") or (event.get("source") or {}).get("component") or ""
    fields = {"type": event.get("type", ""), "reason": event.get("reason", ""), "message": event.get("message", "")}
    return {"time": _event_time(event), **fields, "source": source}


def _verdict(pod: Manifest, lowers: Sequence[Row], topology: Topology, budgets: Sequence[Manifest] = ()) -> Explanation:
    """Return the first obstacle of a pod on its way to a lower node, or out of a lower cluster that is drained.

    `lowers` are the rows of the document, `budgets` as in `UpperObject`.
    """
    status = pod.get("status") or {}
    if metadata(pod).get("deletionTimestamp"):
        return _ending(pod, lowers)
    if has_ended(pod):
        disrupted = conditions_of(pod).get("DisruptionTarget") or {}
        is_disrupted = disrupted.get("status") == "True"
        reason_text = reason_and_message(status) or (reason_and_message(disrupted) if is_disrupted else "")
        is_lost = is_disrupted or status.get("reason") == LOWER_POD_LOST
        advice = ("create it again: it has no controller that does",) if is_lost and not controller_of(pod) else ()
        return Explanation(f"it has ended ({reason_text})" if reason_text else "it has ended", advice)
    if not pod["spec"].get("nodeName"):
        return _unbound(pod, lowers, topology)
    row = next((one for one in lowers if one["here"]), None)
    if row is None:
        return Explanation(f"its node {pod['spec']['nodeName']} is not a virtual node of this topology")
    found = _bound(pod, row, topology.exclude_namespaces)
    if _is_unplaced(row):
        return Explanation(found.why, (*found.advice, *_room_elsewhere(pod, row, lowers, topology)))
    spec = next(one for one in topology.lowers if one.name == row["name"])
    if spec.maintenance != "drain" or not row["pod"]:
        return found
    return _drained_bare(pod, found, lowers, topology) or _drained(pod, found, budgets)


def _ending(pod: Manifest, lowers: Sequence[Row]) -> Explanation:
    """Return what a pod that is being deleted waits for."""
    since = f"its deletion was requested at {metadata(pod)['deletionTimestamp']}"
    if remaining := next((one for one in lowers if one["pod"]), None):
        return Explanation(f"{since}, and it still exists in {remaining['name']}")
    if unreadable := next((one for one in lowers if one["here"] and one["trouble"]), None):
        why = f"{since}; whether it still runs in {unreadable['name']} is unknown: {unreadable['trouble']}"
        return Explanation(why, (_doctor_advice(unreadable),))
    finalizers = metadata(pod).get("finalizers")
    return Explanation(f"{since}; it waits for its finalizers: {', '.join(finalizers)}" if finalizers else since)


# A pod without a node.


def _unbound(pod: Manifest, lowers: Sequence[Row], topology: Topology) -> Explanation:
    """Return why the upper scheduler has bound a pod to no node."""
    if gates := [one["name"] for one in pod["spec"].get("schedulingGates") or ()]:
        why = f"it has scheduling gates: {', '.join(gates)}"
        return Explanation(why, ("wait until the owner of the gates removes them",))
    if not lowers:
        return Explanation("the topology has no lower clusters", ("add a lower cluster to the topology",))
    if accepting := [one for one in lowers if one["above"]["fits"]]:
        return _unchosen(pod, accepting)
    advice = tuple(_for_refusals(pod, lowers, topology))
    reasons = {_refusal(one["above"]) for one in lowers}
    if len(reasons) == 1:
        return Explanation(f"no virtual node accepts it: {reasons.pop()}", advice)
    each = "; ".join(f"{one['node']}: {_refusal(one['above'])}" for one in lowers)
    return Explanation(f"no virtual node accepts it: {each}", advice)


def _unchosen(pod: Manifest, accepting: Sequence[Row]) -> Explanation:
    """Return why a pod has no node although these virtual nodes would accept it."""
    names = ", ".join(one["node"] for one in accepting)
    message = (conditions_of(pod).get("PodScheduled") or {}).get("message", "")
    scheduler_report = f"reports: {message}" if message else "has reported no reason"
    if not all(one["below"] is not None and not one["below"]["fits"] for one in accepting):
        return _unscheduled(pod, f"although it fits on {names}; it {scheduler_report}", is_reported=bool(message))
    advice = tuple(dict.fromkeys(line for one in accepting for line in _for_unplaced(pod, one)))
    return Explanation(
        f"it fits on {names} in sum, but on no single node there; the upper scheduler {scheduler_report}", advice
    )


def _unscheduled(pod: Manifest, detail: str, *, is_reported: bool) -> Explanation:
    """Return that no scheduler bound a pod that fits; `is_reported`: whether one reported why, and so runs."""
    name = pod["spec"].get("schedulerName") or DEFAULT_SCHEDULER
    scheduler = "the upper scheduler" if name == DEFAULT_SCHEDULER else f"its scheduler {name}"
    why = f"{scheduler} has not bound it, {detail}"
    if is_reported:
        return Explanation(why)
    if name == DEFAULT_SCHEDULER:
        return Explanation(why, ("wait; if the pod stays Pending, check that the scheduler of the upper cluster runs",))
    advice = f"check that a scheduler {name} runs in the upper cluster, or remove `schedulerName` from the pod"
    return Explanation(why, (advice,))


def _refusal(refusal: Row) -> str:
    """Return the reasons of a node that refuses a pod, as text."""
    reasons = ", ".join(refusal["reasons"])
    return f"{reasons} ({refusal['detail']})" if refusal["detail"] else reasons


def _for_refusals(pod: Manifest, lowers: Sequence[Row], topology: Topology) -> Iterator[str]:
    """Yield what to do about the checks in which all virtual nodes refuse a pod.

    If some refuse it for another reason, these are the nodes that it selects: the selection is not the obstacle.
    """
    refusals = {one["name"]: one["above"] for one in lowers}
    checks = dict.fromkeys(one["check"] for one in refusals.values())
    if len(checks) > 1:
        checks.pop("affinity", None)
    is_elsewhere = any(ELSEWHERE in one["reasons"] for one in refusals.values())
    refusing = {check: [spec for spec in topology.lowers if refusals[spec.name]["check"] == check] for check in checks}
    for check, specs in refusing.items():
        if check == "volumes" and is_elsewhere:
            other = "let the pod select the lower cluster that has the data of its claims, or use another claim"
            yield f"{other}: {_claim_commands(pod)}"
        elif check == "unschedulable":
            yield from _for_cordons(specs)
        elif check == "taints" and (held := [one for one in lowers if UNREACHABLE_TAINT in one["above"]["detail"]]):
            yield from map(_for_held_back, held)
        elif check == "resources" and any(spec.capacity.limit or spec.capacity.reserve for spec in specs):
            yield _for_capacity(specs)
        elif line := _for_check(check, pod, serves_webhook=topology.webhook.enabled):
            yield line


def _for_cordons(specs: Sequence[Lower]) -> Iterator[str]:
    """Yield how to let pods onto cordoned virtual nodes: the engine puts a cordon of the topology back."""
    in_maintenance = [spec.name for spec in specs if spec.maintenance != "none"]
    if in_maintenance:
        yield f"remove `maintenance` of {' or '.join(in_maintenance)} from the topology"
    yield from (f"run `kubectl uncordon {spec.node.name}`" for spec in specs if spec.maintenance == "none")


def _for_held_back(row: Row) -> str:
    """Return what to do about a node with the taint that the engine removes when its lower cluster can run pods."""
    return (
        _doctor_advice(row)
        if row["trouble"]
        else f"uncordon or repair a node in {row['name']}: none is Ready and schedulable"
    )


def _for_capacity(specs: Sequence[Lower]) -> str:
    """Return what to do where the topology bounds what virtual nodes advertise."""
    bounded = [spec for spec in specs if spec.capacity.limit or spec.capacity.reserve]
    names = " and ".join(spec.name for spec in bounded)
    bounds = (
        f"change `capacity` of {names} in the topology: its limit and reserve bound what the virtual node advertises"
    )
    free = "" if all(spec.capacity.limit for spec in specs) else ", free capacity or add nodes there"
    return f"reduce the requests of the pod{free}, or {bounds}"


def _for_check(check: str, pod: Manifest, *, serves_webhook: bool = False) -> str:
    """Return what to do about a check in which virtual nodes refuse a pod, "" if nothing general can be said."""
    is_opted_in = _OPTED_IN in labels(pod).items()
    if check == "taints":
        tolerate = "add a toleration of the taint to the pod"
        return tolerate if is_opted_in else f"{tolerate}, or label it {_LABEL}: the engine then adds the toleration"
    if check == "affinity":
        recreate = "create the pod again" if is_opted_in else f"create the pod again with the label {_LABEL}"
        check_webhook = (
            "check the webhook (`tensile doctor`)" if serves_webhook else "serve the webhook (`webhook.enabled`)"
        )
        return (
            "select labels that a virtual node has (`kubectl get nodes --show-labels`), or give it those that the pod "
            f"selects (`node.labels` in the topology); for labels of lower nodes, {check_webhook} and {recreate}; "
            "without the extender (`extender.enabled`), the upper scheduler may then choose a lower cluster without "
            "such a node"
        )
    if check == "volumes":
        return f"create those of its claims that do not exist; see why others are not bound: {_claim_commands(pod)}"
    return _CHECKS.get(check, "")


def _claim_commands(pod: Manifest) -> str:
    """Return the commands that explain the claims of a pod."""
    namespace = metadata(pod)["namespace"]
    found = (f"`tensile explain claim {name} -n {namespace}`" for name in claim_names(pod))
    return ", ".join(found) or "`kubectl get pvc`"


# A pod that is bound to a virtual node.


def _bound(pod: Manifest, row: Row, exclude_namespaces: Collection[str]) -> Explanation:
    """Return the state in its lower cluster of a pod that is bound to a virtual node."""
    name = row["name"]
    if exclusion := excluded(pod, exclude_namespaces):
        return Explanation(f"it is not mirrored: {exclusion.message}", (_DENIED[exclusion.reason],))
    if row["trouble"]:
        return Explanation(f"its state in {name} is unknown: {row['trouble']}", (_doctor_advice(row),))
    if row["pod"] is None:
        return _unmirrored(pod, row)
    if not row["pod"]["node"]:
        advice = tuple(_for_unplaced(pod, row)) if _is_unplaced(row) else ()
        return Explanation(f"in {name} it waits for a node: {_nodes(row)}", advice)
    return _placed(pod, row)


def _placed(pod: Manifest, row: Row) -> Explanation:
    """Return what a pod that has its lower node waits for, if it does."""
    location, pod_arguments = f"in {row['name']} it is on node {row['pod']['node']}", _kubectl_arguments(pod)
    describe_advice = f"see its containers and events: `kubectl describe pod {pod_arguments}`"
    if container := _waiting_container(pod):
        found = _not_started(container, pod_arguments)
        return Explanation(f"{location}, and waits: {found.why}", (*found.advice, describe_advice))
    ready = conditions_of(pod).get("Ready") or {}
    if row["pod"]["phase"] == "Running" and ready.get("status") == "False":
        gate = "look at the controller that has to set the condition of the readiness gate"
        advice = gate if ready.get("reason") == _GATED else describe_advice
        reason_text = reason_and_message(ready)
        return Explanation(f"{location}, and is not Ready{f': {reason_text}' if reason_text else ''}", (advice,))
    return Explanation(location, (describe_advice,) if row["pod"]["phase"] == "Pending" else ())


_BEING_DRAINED = "; its lower cluster is being drained"


def _drained_bare(pod: Manifest, found: Explanation, lowers: Sequence[Row], topology: Topology) -> Explanation | None:
    """Return what keeps a pod without a controller in a lower that is drained, None if that is not why it is there."""
    if controller_of(pod) or facts_of(pod).pinned:
        return None
    reason = f"{found.why}{_BEING_DRAINED}, and it stays, as it has no controller"
    if uses_claims(pod):
        return Explanation(f"{reason}, and its volumes are there", ("delete it",))
    enable_advice = "" if topology.descheduler.recreate_bare_pods else "set `descheduler.recreateBarePods`"
    others = [one for one in lowers if not one["here"] and one["above"]["fits"]]
    if not any(one["below"] is None or one["below"]["fits"] for one in others):
        advice = "delete it, or make it fit in another lower cluster" + (
            f" and {enable_advice}" if enable_advice else ""
        )
        return Explanation(f"{reason}, and fits in no other lower cluster", (advice,))
    return Explanation(reason, (f"delete it, or {enable_advice}",)) if enable_advice else None


def _drained(pod: Manifest, found: Explanation, budgets: Sequence[Manifest]) -> Explanation:
    """Return what keeps a pod in a lower that is drained, though it could leave."""
    why = f"{found.why}{_BEING_DRAINED}"
    meta = metadata(pod)
    exhausted_budgets = [
        metadata(one)["name"]
        for one in budgets
        if not (one.get("status") or {}).get("disruptionsAllowed")
        and label_test((one.get("spec") or {}).get("selector"))(labels(pod))
    ]
    if facts_of(pod).pinned:
        return Explanation(
            f"{why}, but an annotation forbids its eviction", ("remove the annotation, or delete the pod",)
        )
    if exhausted_budgets:
        describe = f"`kubectl describe pdb {exhausted_budgets[0]} -n {meta['namespace']}`"
        advice = f"make its other pods Ready, add replicas, or change the budget, which {describe} shows"
        return Explanation(f"{why}, and PodDisruptionBudget {exhausted_budgets[0]} allows no disruption", (advice,))
    return Explanation(f"{why}, and it is evicted in its turn", ("`tensile plan` says why, if it stays", *found.advice))


def _kubectl_arguments(pod: Manifest) -> str:
    """Return the name of a pod and its namespace, as arguments of kubectl."""
    return f"{metadata(pod)['name']} -n {metadata(pod)['namespace']}"


def _unmirrored(pod: Manifest, row: Row) -> Explanation:
    """Return why a pod does not exist in its lower cluster yet."""
    not_created = f"it is not created in {row['name']}"
    condition = conditions_of(pod).get(MIRRORED) or {}
    if condition.get("status") == "False":
        reason, message = str(condition.get("reason", "")), str(condition.get("message", ""))
        return Explanation(f"{not_created}: {reason}: {message}", (_for_reason(reason, message, row),))
    if facts_of(pod).ran:
        why = f"its lower pod in {row['name']} is gone, but no user deleted the upper pod"
        if blocked := row["deletionsBlocked"]:
            return Explanation(f"{why}; the guard keeps it unchanged: {blocked}", (BLOCKED, _BLOCKED_PODS))
        return Explanation(f"{why}; the engine sets it to Failed")
    if row["quota"]:
        first = row["quota"][0]
        return Explanation(f"{not_created}: quota {first['name']} is too small: {first['message']}", (_for_quota(row),))
    return Explanation(f"{not_created}, and the engine has not reported why: does it run?", (START,))


def _for_reason(reason: str, message: str, row: Row) -> str:
    """Return what to do about a reason that the engine reports in condition Mirrored."""
    if _UNAUTHORIZED in message:
        return "grant the engine this right: `tensile doctor` lists what is missing, with the commands"
    if _OVER_QUOTA in message and row["quota"]:
        return _for_quota(row)
    if reason == "Forbidden" and message.rstrip(".").endswith("not found"):
        return f"create in {row['name']} what the message says is not found, or change the pod"
    if reason == NAMESPACE_EXCLUDED:  # not by the topology
        return "create the pod in another namespace, or give the engine's account a namespace of its own"
    return _DENIED.get(reason, f"see the reason {reason} in docs/reference/conditions.md")


def _for_quota(row: Row) -> str:
    is_count = all(one["message"].startswith(("pods:", "count/pods:")) for one in row["quota"])
    instead = "delete pods there" if is_count else "reduce the requests of the pod"
    return f"raise the quota in {row['name']}, or {instead}"


def _nodes(row: Row) -> str:
    """Return what the nodes of a lower answer."""
    lower_result = row["below"]
    if lower_result["fits"]:
        fitting = ", ".join([one["name"] for one in lower_result["nodes"] if one["fits"]][:3])
        return f"it fits on {lower_result['fits']} of them ({fitting}), but the scheduler has not chosen one yet"
    return str(lower_result["message"])


def _waiting_container(pod: Manifest) -> Manifest:
    """Return the status of the first container that waits, {} if none does; the usual steps of a start do not count."""
    status = pod.get("status") or {}
    for one in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (one.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "PodInitializing", "ContainerCreating"):
            found: Manifest = one
            return found
    return {}


def _not_started(container: Manifest, pod_arguments: str) -> Explanation:
    """Return why a container waits, how it ended before, and what to do; `pod_arguments` names the pod for kubectl."""
    waiting = container["state"]["waiting"]
    ended = (container.get("lastState") or {}).get("terminated") or {}
    previous_end = (
        f"; it ended before with {ended.get('reason', 'Error')}, exit code {ended['exitCode']}" if ended else ""
    )
    if ended.get("reason") == _KILLED:
        advice = "raise the memory limit of the container, or make it use less"
    elif waiting["reason"] == _CRASHING:
        advice = f"read why its container ended: `kubectl logs {pod_arguments} --previous`"
    else:
        advice = _STARTS.get(waiting["reason"], "")
    why = f"container {container['name']}: {reason_and_message(waiting)}{previous_end}"
    return Explanation(why, (advice,) if advice else ())


def _is_unplaced(row: Row) -> bool:
    """Report whether a pod exists in a lower whose nodes all refuse it."""
    return bool(row["pod"]) and not row["pod"]["node"] and not row["below"]["fits"]


def _for_unplaced(pod: Manifest, row: Row) -> Iterator[str]:
    """Yield what to do in a lower whose nodes all refuse a pod, for each check in which they do."""
    checks, name = _failed_checks(row), row["name"]
    advice = [_ADVICE_BY_CHECK[check] for check in checks if check in _ADVICE_BY_CHECK]
    if "volumes" in checks and not any(ELSEWHERE in one.get("reasons", ()) for one in row["below"]["nodes"]):
        advice.append(f"see why its claims are not bound there: {_claim_commands(pod)}")
    elif "volumes" in checks and not advice:
        advice.append("bring the node in {name} back that has the volume of its claims, or use another claim")
    yield from (line.format(name=name) for line in advice or [_ADVICE_BY_CHECK["resources"]])


def _failed_checks(row: Row) -> dict[str, None]:
    """Return the checks in which the nodes of a lower refuse a pod, in the order of the nodes."""
    placement = row["below"]
    refusals = [placement["nowhere"]] if placement["nowhere"] else placement["nodes"]
    return dict.fromkeys(one["check"] for one in refusals)


def _room_elsewhere(pod: Manifest, row: Row, lowers: Sequence[Row], topology: Topology) -> Iterator[str]:
    """Yield what brings a pod that no node of its lower takes to another lower."""
    if _failed_checks(row).keys() != {"volumes"}:
        yield _EXTENDER_NOT_CALLED if topology.extender.enabled else _EXTENDER
    if not uses_claims(pod) and any(
        not other_row["here"] and (other_row["below"] or {}).get("fits") for other_row in lowers
    ):
        yield _descheduler_advice(pod, topology.descheduler)


def _descheduler_advice(pod: Manifest, descheduler: Descheduler) -> str:
    """Return what to do so that the descheduler moves a pod to another lower."""
    bare_pods_option = (
        "" if controller_of(pod) or descheduler.recreate_bare_pods else " and `descheduler.recreateBarePods`"
    )
    if bare_pods_option or not descheduler.enabled:
        return f"with `descheduler.enabled`{bare_pods_option} the engine moves such pods to another lower cluster"
    return "`tensile plan` shows where the descheduler moves it, or why it does not"


def _doctor_advice(row: Row) -> str:
    return f"find the cause with `tensile doctor`: it checks connection, credential and permissions of {row['name']}"


# Quotas.


def exceeded(pod: Pod, quotas: Iterable[Manifest], namespace: str) -> Iterator[tuple[str, str]]:
    """Yield each quota that one more pod would exceed: its name, and a description.

    Quotas with scopes apply to some pods only, which the apiserver decides, so they are skipped.
    """
    for quota in quotas:
        spec, status = quota.get("spec") or {}, quota.get("status") or {}
        if metadata(quota)["namespace"] != namespace or spec.get("scopes") or spec.get("scopeSelector"):
            continue
        hard, used = parse_all(status.get("hard") or {}), parse_all(status.get("used") or {})
        messages = [
            _quota_message(name, requested, hard[name], used.get(name, 0))
            for name, requested in _requested_amounts(pod, hard)
            if requested > hard[name] - used.get(name, 0)
        ]
        if messages:
            yield metadata(quota)["name"], "; ".join(messages)


def _requested_amounts(pod: Pod, hard: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yield how much the pod uses of each limited resource, as far as its requests tell."""
    for name in hard:
        if name in ("pods", "count/pods"):
            yield name, _WHOLE
        elif name.removeprefix("requests.") in pod.requests:
            yield name, pod.requests[name.removeprefix("requests.")]


def _quota_message(name: str, requested: int, hard: int, used: int) -> str:
    binary = is_binary(name.removeprefix("requests."))
    remaining = render(max(hard - used, 0), binary=binary)
    return f"{name}: {render(requested, binary=binary)} asked, {remaining} of {render(hard, binary=binary)} left"


# As text.


def explanation_text(document: Row) -> str:
    """Return an explanation as text, without a trailing newline: a sentence, a table, the latest events, what to do."""
    pod = document["pod"]
    location = f" on virtual node {pod['node']}" if any(one["here"] for one in document["lowers"]) else ""
    lines = [f"Pod {pod['namespace']}/{pod['name']} is {pod['phase']}{location}: {document['why'].rstrip('.')}."]
    rows = [cells for one in document["lowers"] for cells in _lower_cells(one)]
    if rows:
        lines += ["", *aligned([_HEAD, *rows])]
    unread = [f"{one['name']}: cannot be read: {what}" for one in document["lowers"] for what in one["unread"]]
    lines += ["", *unread] if unread else []
    return joined([*lines, *events_and_advice(document)])


def events_and_advice(document: Document) -> Iterator[str]:
    """Yield the lines that end every explanation: the latest events, then what to do."""
    if document["events"]:
        yield from ("", "Last events:")
    for one in document["events"]:
        yield " ".join(("", one["time"], one["type"], f"{one['reason']}:", one["message"]))
    if document["advice"]:
        yield from ("", *(f"-> {line}" for line in document["advice"]))


def _lower_cells(row: Row) -> Iterator[Cells]:
    """Yield the table rows of one lower: its virtual node, then the nodes of the lower cluster."""
    yield ("upper", row["node"], *_result_cells(row["above"]))
    name = row["name"]
    if row["trouble"]:
        yield (name, "-", "?", "reach", row["trouble"])
        return
    for quota in row["quota"]:
        yield (name, "-", "no", "quota", f"{quota['name']}: {quota['message']}")
    placement = row["below"]
    if placement["nowhere"]:
        yield (name, "any", *_result_cells({"fits": False, **placement["nowhere"]}))
        return
    nodes = placement["nodes"]
    yield from ((name, *cells) for cells in (_one_by_one(nodes) if len(nodes) <= _ONE_BY_ONE else _grouped(nodes)))
    if not nodes:
        yield (name, "-", "no", "node", "the cluster has no nodes")


def _one_by_one(nodes: Iterable[Row]) -> Iterator[Cells]:
    return ((one["name"], *_result_cells(one)) for one in nodes)


def _grouped(nodes: Iterable[Row]) -> Iterator[Cells]:
    """Yield one row for all nodes with the same result; details such as amounts may differ."""
    groups: dict[Cells, list[str]] = {}
    for one in nodes:
        groups.setdefault(_result_cells({**one, "detail": ""}), []).append(one["name"])
    for cells, names in sorted(groups.items(), key=lambda group: -len(group[1])):
        yield (listed(names), *cells)


def _result_cells(result: Row) -> Cells:
    return ("yes", "", "") if result["fits"] else ("no", result["check"], _refusal(result))
