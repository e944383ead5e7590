"""Why a pod is where it is, or nowhere: what the upper cluster, each lower and each of their nodes say of it.

The answer is a document: for programs as it is, for people as a table. The first thing that stands in the pod's way is
said in one sentence; everything else is there to look up.
"""

from collections.abc import Iterable
from typing import Any

from tensile.inspection.picture import Asked, Picture
from tensile.inspection.quotas import exceeded
from tensile.inspection.verdict import verdict
from tensile.names import UPPER_UID
from tensile.objects import POD, QUOTA, Manifest, annotations, metadata, uid
from tensile.policy.placement import Placement, Refusal, examine
from tensile.policy.placing.reading import pod_of
from tensile.topology import Lower

FORMAT = 1
_EVENTS = 5
Document = dict[str, Any]


def explained(picture: Picture, asked: Asked) -> Document:
    """Give the document: `formatVersion`, `pod`, `why`, `lowers` (each with `above`, `below`, `quota`), `events`."""
    pod = asked.pod
    above = examine(pod_of(pod), picture.upper.snapshot(uid(pod)))
    lowers = [_lower(spec, picture, pod, above) for spec in picture.topology.lowers]
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
        "events": [_event(one) for one in _latest(asked.events)],
    }
    return document | {"why": verdict(pod, lowers, picture.topology.exclude_namespaces)}


def _lower(spec: Lower, picture: Picture, pod: Manifest, above: Placement) -> Document:
    """Say what one lower is for the pod: whether the upper may send it there, and where it would run then."""
    sight = picture.lowers[spec.name]
    row: Document = {"name": spec.name, "node": spec.node.name, "above": _above(spec.node.name, above)}
    row["here"] = pod["spec"].get("nodeName") == spec.node.name
    row["trouble"], row["unread"] = sight.trouble, sorted(sight.unread)
    row["below"], row["quota"], row["pod"] = None, [], None
    if sight.trouble:
        return row
    there = _copy(pod, picture, spec.name)
    wanted = pod_of(there or picture.below(pod, spec.name))
    row["below"] = _below(examine(wanted, picture.snapshot(spec.name, [pod], uid(there) if there else "")))
    if there:
        phase = (there.get("status") or {}).get("phase", "Pending")
        row["pod"] = {"namespace": wanted.namespace, "name": wanted.name, "node": wanted.node, "phase": phase}
    else:
        quotas = exceeded(wanted, sight.all(QUOTA), wanted.namespace)
        row["quota"] = [{"name": name, "message": words} for name, words in quotas]
    return row


def _copy(pod: Manifest, picture: Picture, lower: str) -> Manifest | None:
    """Find the lower pod that was made for the pod."""
    found = (one for one in picture.lowers[lower].all(POD) if annotations(one).get(UPPER_UID) == uid(pod))
    return next(found, None)


def _above(node: str, above: Placement) -> Document:
    """Say whether the upper scheduler may choose the virtual node."""
    if node in above.fitting:
        return {"fits": True}
    refusal = above.refused.get(node)
    if refusal is None:
        return {
            "fits": False,
            "check": "node",
            "reasons": [f"there is no node {node}"],
            "detail": "does the engine run?",
        }
    return {"fits": False, **_told(refusal)}


def _below(found: Placement) -> Document:
    """Say on which nodes of a lower it fits, and why not on the others."""
    nodes: list[Document] = [{"name": name, "fits": True} for name in found.fitting]
    nodes += [{"name": name, "fits": False, **_told(refusal)} for name, refusal in found.refused.items()]
    nowhere = _told(found.nowhere) if found.nowhere else None
    return {"fits": len(found.fitting), "nodes": sorted(nodes, key=_name), "message": found.message, "nowhere": nowhere}


def _told(refusal: Refusal) -> Document:
    return {"check": refusal.check, "reasons": list(refusal.reasons), "detail": refusal.detail}


def _name(row: Document) -> str:
    return str(row["name"])


def _latest(events: Iterable[Manifest]) -> list[Manifest]:
    """Give the last events, the newest first."""
    return sorted(events, key=_moment, reverse=True)[:_EVENTS]


def _moment(event: Manifest) -> str:
    series = event.get("series") or {}
    found = (
        series.get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        event.get("firstTimestamp"),
    )
    return next((str(one) for one in found if one), "")


def _event(event: Manifest) -> Document:
    source = event.get("reportingComponent") or (event.get("source") or {}).get("component") or ""
    fields = {"type": event.get("type", ""), "reason": event.get("reason", ""), "message": event.get("message", "")}
    return {"time": _moment(event), **fields, "source": source}
