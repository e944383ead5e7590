"""`tensile simulate`: how many pods of a template would run, and where, if lowers were lost or had more nodes.

It runs placement on a snapshot and contacts no cluster. When a lower is lost, the pods on its node are placed first;
those that fit nowhere are reported.

The pod that is placed is the one that would be created, not the one in the file. The webhook mutates pods with the
label `virtual-pod`; without a webhook the engine adds the tolerations that such a pod lacks.
"""

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple

from tensile.diagnostics.cluster_snapshot import FleetSnapshot
from tensile.diagnostics.explain import has_ended
from tensile.diagnostics.podfile import Template
from tensile.errors import TensileError
from tensile.kubelet.pods.rule import excluded
from tensile.names import HOSTNAME
from tensile.objects import NODE, POD, Manifest, metadata
from tensile.policy.placement.placement import (
    MOST,
    ClusterShare,
    ClusterSpace,
    examine,
    put,
    replica_name,
    spread_out,
)
from tensile.policy.placement.snapshot import Node, Snapshot, pod_of
from tensile.policy.webhook.admission import CannotMutate, is_prepared_for, prepared, terms_of
from tensile.reconcile.pods.scheduling import lacking_for, tolerations_for_upper
from tensile.resources import add, clamp, parse_all
from tensile.text import aligned, joined, listed
from tensile.topology import Topology

FORMAT = 1
_HEAD = ("LOWER", "FITS", "NODES", "WHY NOT MORE")
_LISTED = 10

Row = dict[str, Any]
Document = dict[str, Any]


class Addition(NamedTuple):
    """More nodes in a lower, like one of its nodes ("" for the first one that accepts pods)."""

    lower: str
    nodes: int
    like: str = ""


class Case(NamedTuple):
    """What to simulate: the number of replicas (None: as many as fit), the lost lowers, and the added nodes."""

    replicas: int | None = None
    lost: frozenset[str] = frozenset()
    added: tuple[Addition, ...] = ()


def simulated(
    picture: FleetSnapshot, template: Template | None, case: Case, before: Sequence[Template] = ()
) -> Document:
    """Return the result: the total `fits`, a row for each lower, and where the pods of lost lowers go.

    The replicas of the templates `before` take their room first: at most MOST of each, and one if it does not say.
    Raises TensileError for a lower or a node that does not exist.
    """
    _check(picture, case)
    pod = admitted(template.pod, picture.topology) if template else None
    refused = excluded(pod, picture.topology.exclude_namespaces) if pod else None
    displaced = _displaced(picture, case.lost)
    earlier = [replica for one in before for replica in _replicas(one, picture.topology)]
    seekers = [*displaced, *earlier, *([pod] if pod else [])]
    grounds = {
        name: picture.snapshot(name, seekers)
        for name, sight in picture.lowers.items()
        if name not in case.lost and not sight.trouble
    }
    upper = _upper(picture, {name: _grow(ground, case.added, name) for name, ground in grounds.items()}, case.lost)
    moved = [_move(one, picture, upper, grounds) for one in displaced]
    for one in earlier:
        _move(one, picture, upper, grounds)
    wanted = case.replicas if case.replicas is not None or template is None else template.replicas
    rows = [_row(name, picture, case) for name in picture.lowers]
    if refused:
        rows = [row | {"why": refused.message} for row in rows]
    elif pod:
        places = {
            name: ClusterSpace(picture.world.lowers[name].node, pod_of(picture.below(pod, name)), ground)
            for name, ground in grounds.items()
        }
        found = spread_out(pod_of(pod), upper, places, max(MOST, wanted or 0))
        rows = [row | (_filled(found[row["name"]]) if row["name"] in found else {}) for row in rows]
    fits = sum(row["fits"] for row in rows) if pod else None
    shown = {"namespace": pod["metadata"]["namespace"], "name": pod["metadata"]["name"]} if pod else None
    return {"formatVersion": FORMAT, "pod": shown, "asked": wanted, "fits": fits, "lowers": rows, "moved": moved}


def _replicas(template: Template, topology: Topology) -> list[Manifest]:
    """Return the pods of a template, each with a name of its own; none if they would not be mirrored."""
    pod = admitted(template.pod, topology)
    if excluded(pod, topology.exclude_namespaces):
        return []
    count = 1 if template.replicas is None else min(template.replicas, MOST)
    return [
        {**pod, "metadata": {**pod["metadata"], "name": replica_name(pod["metadata"]["name"], number)}}
        for number in range(count)
    ]


def _check(picture: FleetSnapshot, case: Case) -> None:
    """Raise TensileError for a lower or a node that does not exist."""
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


def _grow(snapshot: Snapshot, added: Iterable[Addition], name: str) -> list[Node]:
    """Add new nodes to the snapshot of a lower, empty copies of one of its nodes, and return them."""
    found: list[Node] = []
    for one in added:
        if one.lower == name:
            model = snapshot.nodes[one.like] if one.like else _first(snapshot)
            for _ in range(one.nodes):
                names = (f"{model.name}-new-{number}" for number in itertools.count(1))
                own = next(one for one in names if one not in snapshot.nodes)
                labels = {**model.labels, HOSTNAME: own}
                found.append(replace(model, name=own, labels=labels, unschedulable=False, used={}, pods={}))
                snapshot.nodes[own] = found[-1]
    return found


def _first(snapshot: Snapshot) -> Node:
    """Return the first node that accepts any pod, else the first node."""
    nodes = list(snapshot.nodes.values())
    return next((node for node in nodes if not node.unschedulable and not node.taints), nodes[0])


def _upper(picture: FleetSnapshot, added: Mapping[str, list[Node]], lost: Collection[str]) -> Snapshot:
    """Return a snapshot of the upper cluster without the nodes of lost lowers.

    The nodes `added` to a lower are added to what its virtual node advertises, which `capacity.limit` bounds.
    """
    upper = picture.upper.snapshot()
    for name in lost:
        upper.forget(picture.world.lowers[name].node)
    for name, nodes in added.items():
        lower = picture.world.lowers[name]
        if node := upper.nodes.get(lower.node):
            whole = reduce(add, (new.allocatable for new in nodes), node.allocatable)
            node.allocatable = clamp(whole, parse_all(lower.spec.capacity.limit)) if nodes else node.allocatable
    return upper


def _displaced(picture: FleetSnapshot, lost: Collection[str]) -> list[Manifest]:
    """Return the pods that lose their lower, largest first, since large pods are the hardest to place."""
    nodes = {picture.world.lowers[name].node for name in lost}
    spaces = picture.topology.exclude_namespaces
    found = [
        one
        for one in picture.upper.all(POD)
        if one["spec"].get("nodeName") in nodes and not has_ended(one) and not excluded(one, spaces)
    ]
    return sorted(found, key=lambda one: sum(pod_of(one).requests.values()), reverse=True)


def _move(pod: Manifest, picture: FleetSnapshot, upper: Snapshot, grounds: Mapping[str, Snapshot]) -> Document:
    """Return where a pod of a lost lower goes, among the lowers whose virtual node the upper scheduler may choose."""
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


def _row(name: str, picture: FleetSnapshot, case: Case) -> Document:
    """Return the row of one lower, without the number of pods that fit."""
    sight = picture.lowers[name]
    row: Document = {"name": name, "lost": name in case.lost, "trouble": sight.trouble, "unread": sorted(sight.unread)}
    return row | {"fits": 0, "more": False, "why": "", "nodes": []}


def _filled(found: ClusterShare) -> Document:
    nodes = [{"name": name, "fits": count} for name, count in sorted(found.counts.items())]
    return {"fits": sum(found.counts.values()), "more": found.more, "why": found.why, "nodes": nodes}


def admitted(pod: Manifest, topology: Topology) -> Manifest:
    """Return a pod as it waits for a node; the same object if neither webhook nor engine would change it."""
    terms = terms_of(topology)
    if not is_prepared_for(pod, metadata(pod).get("namespace") or "default", terms):
        return pod
    if topology.webhook.enabled and topology.webhook.is_reachable:
        try:
            return prepared(pod, terms)
        except CannotMutate:
            pass  # it is created unchanged, as if there were no webhook
    spec = pod["spec"]
    if not lacking_for(spec.get("tolerations") or (), terms.taints):
        return pod
    return {**pod, "spec": {**spec, "tolerations": tolerations_for_upper(pod, terms.taints)}}


def simulation_text(document: Row, *, is_first: bool = True) -> str:
    """Return a simulation as text, without a trailing newline: a table of lowers, the lost pods, and a summary.

    Of several simulations of one case, only the first tells the lost pods.
    """
    lines = []
    if document["pod"]:
        lines += [*aligned([_HEAD, *map(_cells, document["lowers"])]), ""]
    lines += [f"{one['name']}: cannot be read: {what}" for one in document["lowers"] for what in one["unread"]]
    lines += _moved(document["moved"], [one["name"] for one in document["lowers"] if one["lost"]]) if is_first else ()
    return joined([*lines, _sum(document)] if document["pod"] else lines or ["No pods to place."]).rstrip("\n")


def _cells(row: Row) -> tuple[str, ...]:
    if row["lost"] or row["trouble"]:
        return row["name"], "0", "-", "lost" if row["lost"] else row["trouble"]
    names = [f"{one['name']} {one['fits']}" for one in row["nodes"]]
    fits = f"{row['fits']} or more" if row["more"] else str(row["fits"])
    return row["name"], fits, listed(names) or "-", row["why"]


def _moved(moved: list[Row], lost: list[str]) -> Iterator[str]:
    """Yield where the pods of lost lowers go."""
    if not lost:
        return
    left = [one for one in moved if not one["lower"]]
    if moved:
        yield f"{len(moved) - len(left)} of {len(moved)} pods of the lost clusters fit elsewhere."
    else:
        yield f"No pods run in {', '.join(lost)}."
    yield from (f"  {one['namespace']}/{one['name']} fits nowhere: {one['why']}" for one in left[:_LISTED])
    if len(left) > _LISTED:
        yield f"  and {len(left) - _LISTED} more fit nowhere."
    yield ""


def _sum(document: Row) -> str:
    name = f"{document['pod']['namespace']}/{document['pod']['name']}"
    more = " or more" if any(one["more"] for one in document["lowers"]) else ""
    if document["asked"] is None:
        return f"{document['fits']}{more} pods of {name} fit."
    whole = document["fits"] >= document["asked"]
    count = f"All {document['asked']}" if whole else f"{document['fits']} of {document['asked']}"
    return f"{count} pods of {name} fit."
