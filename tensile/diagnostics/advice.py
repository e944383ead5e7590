"""What to do about a pod that does not run: the last lines of `tensile explain pod`.

Each piece of advice answers the obstacle that the explanation names first. A pod that runs, or that only needs time,
gets none.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tensile.kubelet.pods.conditions import conditions_of
from tensile.names import LOWER_UNREACHABLE, MIRRORED
from tensile.objects import Manifest, labels, metadata
from tensile.reconcile.ownership import NAME_CONFLICT
from tensile.reconcile.rules.config import CONFIG_MAP_NOT_FOUND, SECRET_NOT_FOUND

_LABEL = 'virtual-pod: "true"'
_OPTED_IN = ("virtual-pod", "true")
_FULL = "free capacity or add nodes there; `tensile simulate` shows how many pods would fit"
_CHECKS: Mapping[str, str] = {
    "unschedulable": "uncordon the node, or remove `maintenance` of its lower cluster from the topology",
    "ports": "remove the host port from the pod, or free it on a node",
    "resources": f"reduce the requests of the pod, or {_FULL}",
    "volumes": "check the claims of the pod: `kubectl describe pvc`",
    "node": "start the engine; `tensile status` shows whether it runs",
}
"""What to do if all virtual nodes refuse a pod in one check, except in those that depend on the pod's label."""
_DENIED: Mapping[str, str] = {
    NAME_CONFLICT: "move the object of that name in the lower cluster, or set `onConflict: adopt`",
    CONFIG_MAP_NOT_FOUND: "create the ConfigMap in the upper cluster",
    SECRET_NOT_FOUND: "create the Secret in the upper cluster",
    LOWER_UNREACHABLE: "restore the connection to the lower cluster; `tensile doctor` shows what is wrong",
}
"""What to do about frequent reasons not to mirror a pod."""
Row = Mapping[str, Any]


def advice(pod: Manifest, lowers: Sequence[Row]) -> list[str]:
    """Return what a user can do about the first obstacle of a pod; `lowers` are the rows of the explanation."""
    return list(_advice(pod, lowers))


def _advice(pod: Manifest, lowers: Sequence[Row]) -> Iterator[str]:
    phase = (pod.get("status") or {}).get("phase")
    if metadata(pod).get("deletionTimestamp"):
        yield from (_reach(one) for one in lowers if one["here"] and one["trouble"])
    elif not pod["spec"].get("nodeName"):
        yield from _for_unbound(pod, lowers)
    elif phase not in ("Succeeded", "Failed"):
        yield from (line for one in lowers if one["here"] for line in _for_bound(pod, one))


def _for_unbound(pod: Manifest, lowers: Sequence[Row]) -> Iterator[str]:
    if pod["spec"].get("schedulingGates"):
        yield "wait until the owner of the gates removes them"
    elif not lowers:
        yield "add a lower cluster to the topology"
    elif not any(one["above"]["fits"] for one in lowers):
        checks = dict.fromkeys(one["above"]["check"] for one in lowers)
        yield from (line for check in checks if (line := _for_check(check, pod)))


def _for_check(check: str, pod: Manifest) -> str:
    """Return what to do about a check in which virtual nodes refuse a pod, "" if nothing general can be said."""
    is_opted_in = _OPTED_IN in labels(pod).items()
    if check == "taints":
        tolerate = "add a toleration of the taint to the pod"
        return tolerate if is_opted_in else f"{tolerate}, or label it {_LABEL}: the engine then adds the toleration"
    if check == "affinity":
        give = "give a virtual node these labels (`node.labels` in the topology)"
        if is_opted_in:
            return f"{give}, or serve the webhook (`webhook.enabled`) and recreate the pod"
        return f"{give}; for labels of lower nodes, label the pod {_LABEL} and serve the webhook (`webhook.enabled`)"
    return _CHECKS.get(check, "")


def _for_bound(pod: Manifest, row: Row) -> Iterator[str]:
    """Yield what to do about a pod that is bound to the virtual node of a lower."""
    name = row["name"]
    if row["trouble"]:
        yield _reach(row)
    elif row["pod"] is None:
        yield from _for_unmirrored(pod, row)
    elif not row["pod"]["node"] and not row["below"]["fits"]:
        yield f"{_FULL.replace('there', f'in {name}')}; with `descheduler.enabled` the engine moves such pods"
    elif row["pod"]["phase"] == "Pending" and row["pod"]["node"]:
        meta = metadata(pod)
        yield f"see its containers and events: `kubectl describe pod {meta['name']} -n {meta['namespace']}`"


def _for_unmirrored(pod: Manifest, row: Row) -> Iterator[str]:
    said = conditions_of(pod).get(MIRRORED) or {}
    if said.get("status") == "False":
        reason = str(said.get("reason", ""))
        yield _DENIED.get(reason, f"see the reason {reason} in docs/reference/conditions.md")
    elif row["quota"]:
        yield f"raise the quota in {row['name']}, or reduce the requests of the pod"
    else:
        yield _CHECKS["node"]


def _reach(row: Row) -> str:
    return f"restore the connection to {row['name']}; `tensile doctor` shows what is wrong"
