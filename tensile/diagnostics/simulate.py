"""How many pods of a template would run, and where; what if lowers are lost, or have more nodes.

Nothing is asked of a cluster: it is placement on what was seen. When a lower is lost, the pods that are on its node
have to go elsewhere first, and what finds no place is told.

A simulation as `tensile simulate` prints it: a table of lowers, what is lost, and one line that sums up.

A pod that does not exist yet, as the upper scheduler will see it: with what admission and the engine add to it.

Who asks whether a pod fits asks about the pod that is created, not about the file: the webhook prepares what carries
the label `virtual-pod`, and where there is no webhook the engine adds the tolerations that such a pod lacks.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from tensile.diagnostics.cluster_snapshot import Picture
from tensile.diagnostics.podfile import Template
from tensile.errors import TensileError
from tensile.kubelet.pods.rule import excluded
from tensile.objects import NODE, POD, Manifest, metadata
from tensile.policy.placement.fit import MOST, Place, Share, put, spread_out
from tensile.policy.placement.placement import examine
from tensile.policy.placement.reader import pod_of
from tensile.policy.placement.snapshot import Node, Snapshot
from tensile.policy.webhook.admission import Unprepared, is_prepared_for, prepared, terms_of
from tensile.reconcile.pods.scheduling import lacking_for, tolerations_for_upper
from tensile.resources import add
from tensile.text import aligned, joined
from tensile.topology import Topology

_HEAD = ("LOWER", "FITS", "NODES", "WHY NOT MORE")
_NAMED = 3
_LISTED = 10

Row = dict[str, Any]


def as_text(document: Row) -> str:
    """Write it as lines, without a newline at the end."""
    lines = []
    if document["pod"]:
        lines += [*aligned([_HEAD, *map(_cells, document["lowers"])]), ""]
    lines += [f"{one['name']}: not looked at: {what}" for one in document["lowers"] for what in one["unread"]]
    lines += _moved(document["moved"], [one["name"] for one in document["lowers"] if one["lost"]])
    return joined([*lines, _sum(document)] if document["pod"] else lines or ["Nothing was asked."]).rstrip("\n")


def _cells(row: Row) -> tuple[str, ...]:
    if row["lost"] or row["trouble"]:
        return row["name"], "0", "-", "lost" if row["lost"] else row["trouble"]
    names = [f"{one['name']} {one['fits']}" for one in row["nodes"]]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    fits = f"{row['fits']} or more" if row["more"] else str(row["fits"])
    return row["name"], fits, ", ".join(names[:_NAMED]) + more or "-", row["why"]


def _moved(moved: list[Row], lost: list[str]) -> Iterator[str]:
    """Tell what becomes of the pods of lost lowers."""
    if not lost:
        return
    left = [one for one in moved if not one["lower"]]
    if moved:
        yield f"{len(moved) - len(left)} of {len(moved)} pods of what is lost find another place."
    else:
        yield f"No pod has to leave {', '.join(lost)}."
    yield from (f"  {one['namespace']}/{one['name']} finds none: {one['why']}" for one in left[:_LISTED])
    if len(left) > _LISTED:
        yield f"  and {len(left) - _LISTED} more find none."
    yield ""


def _sum(document: Row) -> str:
    name = f"{document['pod']['namespace']}/{document['pod']['name']}"
    more = " or more" if any(one["more"] for one in document["lowers"]) else ""
    if document["asked"] is None:
        return f"{document['fits']}{more} of {name} fit."
    short = document["asked"] - document["fits"]
    return (
        f"All {document['asked']} of {name} fit."
        if short <= 0
        else f"{document['fits']} of {document['asked']} of {name} fit: {short} do not."
    )


def admitted(pod: Manifest, topology: Topology) -> Manifest:
    """Return a pod as it waits for a node; the very same one where nothing is done to it."""
    terms = terms_of(topology)
    if not is_prepared_for(pod, metadata(pod).get("namespace") or "default", terms):
        return pod
    if topology.webhook.enabled and topology.webhook.is_reachable:
        try:
            return prepared(pod, terms)
        except Unprepared:
            pass  # it is created as it is, and treated as one that no webhook saw
    spec = pod["spec"]
    if not lacking_for(spec.get("tolerations") or (), terms.taints):
        return pod
    return {**pod, "spec": {**spec, "tolerations": tolerations_for_upper(pod, terms.taints)}}


FORMAT = 1
_ENDED = ("Succeeded", "Failed")
_HOSTNAME = "kubernetes.io/hostname"
_NEW = "-new-"
Document = dict[str, Any]


class Addition(NamedTuple):
    """So many more nodes in a lower, like one that it has ("" for the first that takes pods)."""

    lower: str
    nodes: int
    like: str = ""


class Case(NamedTuple):
    """What is asked: how many replicas (None for as many as fit), which lowers are lost, which nodes come."""

    replicas: int | None = None
    lost: frozenset[str] = frozenset()
    added: tuple[Addition, ...] = ()


def simulated(picture: Picture, template: Template | None, case: Case) -> Document:
    """Return the document: `fits` in all, a row for each lower, and what becomes of the pods of lost ones.

    Raises TensileError for a lower or a node that there is not.
    """
    _check(picture, case)
    pod = admitted(template.pod, picture.topology) if template else None
    displaced = _displaced(picture, case.lost)
    seekers = [*displaced, *([pod] if pod else [])]
    grounds = {
        name: _grown(picture.snapshot(name, seekers), case.added, name)
        for name, sight in picture.lowers.items()
        if name not in case.lost and not sight.trouble
    }
    upper = _upper(picture, grounds, case)
    moved = [_move(one, picture, upper, grounds) for one in displaced]
    wanted = case.replicas if case.replicas is not None or template is None else template.replicas
    rows = [_row(name, picture, case) for name in picture.lowers]
    if pod:
        places = {
            name: Place(picture.world.lowers[name].node, pod_of(picture.below(pod, name)), ground)
            for name, ground in grounds.items()
        }
        found = spread_out(pod_of(pod), upper, places, max(MOST, wanted or 0))
        rows = [row | (_filled(found[row["name"]]) if row["name"] in found else {}) for row in rows]
    fits = sum(row["fits"] for row in rows) if pod else None
    shown = {"namespace": pod["metadata"]["namespace"], "name": pod["metadata"]["name"]} if pod else None
    return {"formatVersion": FORMAT, "pod": shown, "asked": wanted, "fits": fits, "lowers": rows, "moved": moved}


def _check(picture: Picture, case: Case) -> None:
    """Refuse what there is not."""
    known = ", ".join(picture.lowers) or "none"
    for name in (*case.lost, *(one.lower for one in case.added)):
        if name not in picture.lowers:
            raise TensileError(f"{name}: no lower cluster of the topology; there are: {known}")
    for one in case.added:
        names = [metadata(node)["name"] for node in picture.lowers[one.lower].all(NODE)]
        if (one.like and one.like not in names) or not names:
            raise TensileError(
                f"{one.lower}: no node {one.like or 'to take as a model'}; there are: {', '.join(names) or 'none'}"
            )


def _grown(snapshot: Snapshot, added: Iterable[Addition], name: str) -> Snapshot:
    """Add the nodes that come to a lower: empty ones, like one that it has."""
    for one in added:
        if one.lower == name:
            model = snapshot.nodes[one.like] if one.like else _first(snapshot)
            for _ in range(one.nodes):
                number = sum(each.startswith(f"{model.name}{_NEW}") for each in snapshot.nodes)
                own = f"{model.name}{_NEW}{number + 1}"
                labels = {**model.labels, _HOSTNAME: own}
                snapshot.nodes[own] = replace(model, name=own, labels=labels, unschedulable=False, used={}, pods={})
    return snapshot


def _upper(picture: Picture, grounds: Mapping[str, Snapshot], case: Case) -> Snapshot:
    """Return the upper cluster without the nodes of lost lowers, and with what new nodes below add to the others."""
    upper = picture.upper.snapshot()
    for name in case.lost:
        upper.nodes.pop(picture.world.lowers[name].node, None)
    for name, ground in grounds.items():
        node = upper.nodes.get(picture.world.lowers[name].node)
        for new in (one for own, one in ground.nodes.items() if _NEW in own):
            if node:
                node.allocatable = add(node.allocatable, new.allocatable)
    return upper


def _first(snapshot: Snapshot) -> Node:
    """Return the first node that takes pods, or the first of all."""
    nodes = list(snapshot.nodes.values())
    return next((node for node in nodes if not node.unschedulable and not node.taints), nodes[0])


def _displaced(picture: Picture, lost: Collection[str]) -> list[Manifest]:
    """Return the pods that lose their lower, the largest first: those are the hardest to place."""
    nodes = {picture.world.lowers[name].node for name in lost}
    spaces = picture.topology.exclude_namespaces
    found = [
        one
        for one in picture.upper.all(POD)
        if one["spec"].get("nodeName") in nodes
        and (one.get("status") or {}).get("phase") not in _ENDED
        and not excluded(one, spaces)
    ]
    return sorted(found, key=lambda one: sum(pod_of(one).requests.values()), reverse=True)


def _move(pod: Manifest, picture: Picture, upper: Snapshot, grounds: Mapping[str, Snapshot]) -> Document:
    """Find a place for a pod whose lower is lost, among the lowers that the upper cluster may send it to."""
    wanted, meta = pod_of(pod), metadata(pod)
    told: Document = {"namespace": meta["namespace"], "name": meta["name"], "lower": "", "node": "", "why": ""}
    above, refusals = examine(wanted, upper), []
    for name, snapshot in grounds.items():
        node = picture.world.lowers[name].node
        if node not in above.fitting:
            refusals.append(f"{name}: {above.refused.get(node, 'there is no node of its')}")
            continue
        copy = pod_of(picture.below(pod, name))
        found = put(copy, snapshot)
        if found:
            upper.add(wanted, node)
            return told | {"lower": name, "node": found}
        refusals.append(f"{name}: {examine(copy, snapshot).message}")
    return told | {"why": "; ".join(refusals) or "no other lower cluster is left"}


def _row(name: str, picture: Picture, case: Case) -> Document:
    """Begin what is said of one lower."""
    sight = picture.lowers[name]
    row: Document = {"name": name, "lost": name in case.lost, "trouble": sight.trouble, "unread": sorted(sight.unread)}
    return row | {"fits": 0, "more": False, "why": "", "nodes": []}


def _filled(found: Share) -> Document:
    nodes = [{"name": name, "fits": count} for name, count in sorted(found.counts.items())]
    return {"fits": sum(found.counts.values()), "more": found.more, "why": found.why, "nodes": nodes}
