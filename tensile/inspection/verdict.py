"""The one sentence that a person asked for: why the pod is where it is, or what it waits for.

The first thing in the way of a pod is told, on its way from the scheduler above to the containers below.
"""

from collections.abc import Collection, Sequence
from typing import Any

from tensile.kubelet.exclusion import excluded
from tensile.kubelet.statuspatch import conditions_of
from tensile.names import MIRRORED
from tensile.objects import Manifest, metadata

Row = dict[str, Any]


def verdict(pod: Manifest, lowers: Sequence[Row], exclude_namespaces: Collection[str]) -> str:
    """Say why; `lowers` are the rows of the document."""
    status = pod.get("status") or {}
    if metadata(pod).get("deletionTimestamp"):
        return _ending(pod, lowers)
    if status.get("phase") in ("Succeeded", "Failed"):
        return " ".join(one for one in ("it has ended:", status["phase"], _said(status)) if one)
    if not pod["spec"].get("nodeName"):
        return _unbound(pod, lowers)
    row = next((one for one in lowers if one["here"]), None)
    if row is None:
        return f"it is on node {pod['spec']['nodeName']}, which is none of this topology's"
    return _bound(pod, row, exclude_namespaces)


def _ending(pod: Manifest, lowers: Sequence[Row]) -> str:
    """Say what a pod that is being deleted waits for."""
    since = f"it has been asked to go since {metadata(pod)['deletionTimestamp']}"
    there = next((one for one in lowers if one["pod"]), None)
    silent = next((one for one in lowers if one["here"] and one["trouble"]), None)
    if there:
        return f"{since} and is still in {there['name']}: it is gone when that cluster says so"
    if silent:
        return f"{since}; whether it is gone in {silent['name']} nobody knows: {silent['trouble']}"
    holders = metadata(pod).get("finalizers")
    return f"{since}; finalizers hold it: {', '.join(holders)}" if holders else since


def _unbound(pod: Manifest, lowers: Sequence[Row]) -> str:
    """Say why the upper scheduler has given a pod no node."""
    gates = [one["name"] for one in pod["spec"].get("schedulingGates") or ()]
    if gates:
        return f"scheduling gates hold it: {', '.join(gates)}"
    said = (conditions_of(pod).get("PodScheduled") or {}).get("message", "")
    open_above = [one for one in lowers if one["above"]["fits"]]
    if open_above:
        names = ", ".join(one["node"] for one in open_above)
        told = f"; its scheduler said: {said}" if said else "; its scheduler has said nothing yet"
        return f"the upper cluster has bound it to no node, though it may go to {names}{told}"
    if not lowers:
        return "the topology has no lower clusters"
    common = _common(lowers)
    if common:
        return f"no virtual node does: {common}"
    return "no virtual node does: " + "; ".join(f"{one['node']}: {refusal(one['above'])}" for one in lowers)


def _common(lowers: Sequence[Row]) -> str:
    """Give what all virtual nodes say, "" where they say different things."""
    told = {refusal(one["above"]) for one in lowers}
    return told.pop() if len(told) == 1 else ""


def refusal(told: Row) -> str:
    """Write the refusal of a node."""
    reasons = ", ".join(told["reasons"])
    return f"{reasons} ({told['detail']})" if told["detail"] else reasons


def _bound(pod: Manifest, row: Row, exclude_namespaces: Collection[str]) -> str:
    """Say how a pod that has its virtual node fares below."""
    kept_out = excluded(pod, exclude_namespaces)
    if kept_out:
        return f"it is not mirrored: {kept_out.message}"
    name = row["name"]
    if row["trouble"]:
        return f"{name} does not tell how it is: {row['trouble']}"
    if row["pod"] is None:
        return _unmirrored(pod, row)
    if not row["pod"]["node"]:
        return f"in {name} it waits for a node: {_nodes(row)}"
    where = f"in {name} it is on node {row['pod']['node']}"
    waiting = _waiting(pod)
    if waiting:
        return f"{where}, and waits: {waiting}"
    return f"{where}, {row['pod']['phase']}"


def _unmirrored(pod: Manifest, row: Row) -> str:
    """Say why a pod is not in its lower cluster yet."""
    said = conditions_of(pod).get(MIRRORED) or {}
    if said.get("status") == "False":
        return f"it is not in {row['name']}: {said.get('reason', '')}: {said.get('message', '')}"
    if row["quota"]:
        first = row["quota"][0]
        return f"it is not in {row['name']}: quota {first['name']} there leaves too little: {first['message']}"
    return f"it is not in {row['name']}, and nothing is said of it: does the engine run?"


def _nodes(row: Row) -> str:
    """Say what the nodes of a lower say."""
    below = row["below"]
    if below["fits"]:
        fitting = [one["name"] for one in below["nodes"] if one["fits"]]
        return f"{below['fits']} of its nodes would do ({', '.join(fitting[:3])}), its scheduler has not chosen one yet"
    return str(below["message"])


def _waiting(pod: Manifest) -> str:
    """Give what a container waits for, "" where none does."""
    status = pod.get("status") or {}
    for one in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (one.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "PodInitializing", "ContainerCreating"):
            return f"container {one['name']}: {_said(waiting)}"
    return ""


def _said(status: Manifest) -> str:
    return ": ".join(str(status[name]) for name in ("reason", "message") if status.get(name))
