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
    fill_clusters,
    put,
    replica_name,
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


def simulated(fleet: FleetSnapshot, template: Template | None, case: Case, before: Sequence[Template] = ()) -> Document:
    """Return the result: the total `fits`, a row for each lower, and where the pods of lost lowers go.

    The replicas of the templates `before` take their room first: at most MOST of each, and one if it does not say.
    Raises TensileError for a lower or a node that does not exist.
    """
    _check(fleet, case)
    pod = admitted(template.pod, fleet.topology) if template else None
    refused = excluded(pod, fleet.topology.exclude_namespaces) if pod else None
    displaced = _displaced(fleet, case.lost)
    earlier = [replica for one in before for replica in _replicas(one, fleet.topology)]
    pods_to_place = [*displaced, *earlier, *([pod] if pod else [])]
    lower_snapshots = {
        name: fleet.snapshot(name, pods_to_place)
        for name, cluster in fleet.lowers.items()
        if name not in case.lost and not cluster.trouble
    }
    upper = _upper(
        fleet, {name: _add_nodes(snapshot, case.added, name) for name, snapshot in lower_snapshots.items()}, case.lost
    )
    moved = [_place_pod(one, fleet, upper, lower_snapshots) for one in displaced]
    for one in earlier:
        _place_pod(one, fleet, upper, lower_snapshots)
    wanted = case.replicas if case.replicas is not None or template is None else template.replicas
    rows = [_row(name, fleet, case) for name in fleet.lowers]
    if refused:
        rows = [row | {"why": refused.message} for row in rows]
    elif pod:
        places = {
            name: ClusterSpace(fleet.world.lowers[name].node, pod_of(fleet.projected_pod(pod, name)), snapshot)
            for name, snapshot in lower_snapshots.items()
        }
        found = fill_clusters(pod_of(pod), upper, places, max(MOST, wanted or 0))
        rows = [row | (_share_fields(found[row["name"]]) if row["name"] in found else {}) for row in rows]
    fits = sum(row["fits"] for row in rows) if pod else None
    pod_name = {"namespace": pod["metadata"]["namespace"], "name": pod["metadata"]["name"]} if pod else None
    return {"formatVersion": FORMAT, "pod": pod_name, "asked": wanted, "fits": fits, "lowers": rows, "moved": moved}


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


def _check(fleet: FleetSnapshot, case: Case) -> None:
    """Raise TensileError for a lower or a node that does not exist."""
    known = ", ".join(fleet.lowers) or "none"
    for name in (*case.lost, *(one.lower for one in case.added)):
        if name not in fleet.lowers:
            raise TensileError(f"{name}: no lower cluster of the topology; there are: {known}")
    for one in case.added:
        names = [metadata(node)["name"] for node in fleet.lowers[one.lower].all(NODE)]
        if (one.like and one.like not in names) or not names:
            raise TensileError(
                f"{one.lower}: no node {one.like or 'to take as a model'}; there are: {', '.join(names) or 'none'}"
            )


def _add_nodes(snapshot: Snapshot, added: Iterable[Addition], name: str) -> list[Node]:
    """Add new nodes to the snapshot of a lower, empty copies of one of its nodes, and return them."""
    found: list[Node] = []
    for one in added:
        if one.lower == name:
            model = snapshot.nodes[one.like] if one.like else _first(snapshot)
            for _ in range(one.nodes):
                names = (f"{model.name}-new-{number}" for number in itertools.count(1))
                new_name = next(one for one in names if one not in snapshot.nodes)
                labels = {**model.labels, HOSTNAME: new_name}
                found.append(replace(model, name=new_name, labels=labels, unschedulable=False, used={}, pods={}))
                snapshot.nodes[new_name] = found[-1]
    return found


def _first(snapshot: Snapshot) -> Node:
    """Return the first node that accepts any pod, else the first node."""
    nodes = list(snapshot.nodes.values())
    return next((node for node in nodes if not node.unschedulable and not node.taints), nodes[0])


def _upper(fleet: FleetSnapshot, added: Mapping[str, list[Node]], lost: Collection[str]) -> Snapshot:
    """Return a snapshot of the upper cluster without the nodes of lost lowers.

    The nodes `added` to a lower are added to what its virtual node advertises, which `capacity.limit` bounds.
    """
    upper = fleet.upper.snapshot()
    for name in lost:
        upper.forget(fleet.world.lowers[name].node)
    for name, nodes in added.items():
        lower = fleet.world.lowers[name]
        if node := upper.nodes.get(lower.node):
            total = reduce(add, (new.allocatable for new in nodes), node.allocatable)
            node.allocatable = clamp(total, parse_all(lower.spec.capacity.limit)) if nodes else node.allocatable
    return upper


def _displaced(fleet: FleetSnapshot, lost: Collection[str]) -> list[Manifest]:
    """Return the pods that lose their lower, largest first, since large pods are the hardest to place."""
    nodes = {fleet.world.lowers[name].node for name in lost}
    excluded_namespaces = fleet.topology.exclude_namespaces
    found = [
        one
        for one in fleet.upper.all(POD)
        if one["spec"].get("nodeName") in nodes and not has_ended(one) and not excluded(one, excluded_namespaces)
    ]
    return sorted(found, key=lambda one: sum(pod_of(one).requests.values()), reverse=True)


def _place_pod(
    pod: Manifest, fleet: FleetSnapshot, upper: Snapshot, lower_snapshots: Mapping[str, Snapshot]
) -> Document:
    """Return where a pod of a lost lower goes, among the lowers whose virtual node the upper scheduler may choose."""
    wanted, meta = pod_of(pod), metadata(pod)
    result: Document = {"namespace": meta["namespace"], "name": meta["name"], "lower": "", "node": "", "why": ""}
    upper_placement, refusals = examine(wanted, upper), []
    for name, snapshot in lower_snapshots.items():
        node = fleet.world.lowers[name].node
        if node not in upper_placement.fitting:
            refusals.append(f"{name}: {upper_placement.refused.get(node, 'there is no node of its')}")
            continue
        copy = pod_of(fleet.projected_pod(pod, name))
        found = put(copy, snapshot)
        if found:
            upper.add(wanted, node)
            return result | {"lower": name, "node": found}
        refusals.append(f"{name}: {examine(copy, snapshot).message}")
    return result | {"why": "; ".join(refusals) or "no other lower cluster is left"}


def _row(name: str, fleet: FleetSnapshot, case: Case) -> Document:
    """Return the row of one lower, without the number of pods that fit."""
    snapshot = fleet.lowers[name]
    row: Document = {
        "name": name,
        "lost": name in case.lost,
        "trouble": snapshot.trouble,
        "unread": sorted(snapshot.unread),
    }
    return row | {"fits": 0, "more": False, "why": "", "nodes": []}


def _share_fields(found: ClusterShare) -> Document:
    nodes = [{"name": name, "fits": count} for name, count in sorted(found.counts.items())]
    return {"fits": sum(found.counts.values()), "more": found.more, "why": found.refusal, "nodes": nodes}


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
        lines += [*aligned([_HEAD, *map(_lower_cells, document["lowers"])]), ""]
    lines += [f"{one['name']}: cannot be read: {what}" for one in document["lowers"] for what in one["unread"]]
    lines += _moved(document["moved"], [one["name"] for one in document["lowers"] if one["lost"]]) if is_first else ()
    return joined([*lines, _summary(document)] if document["pod"] else lines or ["No pods to place."]).rstrip("\n")


def _lower_cells(row: Row) -> tuple[str, ...]:
    if row["lost"] or row["trouble"]:
        return row["name"], "0", "-", "lost" if row["lost"] else row["trouble"]
    names = [f"{one['name']} {one['fits']}" for one in row["nodes"]]
    fits = f"{row['fits']} or more" if row["more"] else str(row["fits"])
    return row["name"], fits, listed(names) or "-", row["why"]


def _moved(moved: list[Row], lost: list[str]) -> Iterator[str]:
    """Yield where the pods of lost lowers go."""
    if not lost:
        return
    unplaced = [one for one in moved if not one["lower"]]
    if moved:
        yield f"{len(moved) - len(unplaced)} of {len(moved)} pods of the lost clusters fit elsewhere."
    else:
        yield f"No pods run in {', '.join(lost)}."
    yield from (f"  {one['namespace']}/{one['name']} fits nowhere: {one['why']}" for one in unplaced[:_LISTED])
    if len(unplaced) > _LISTED:
        yield f"  and {len(unplaced) - _LISTED} more fit nowhere."
    yield ""


def _summary(document: Row) -> str:
    name = f"{document['pod']['namespace']}/{document['pod']['name']}"
    at_least = " or more" if any(one["more"] for one in document["lowers"]) else ""
    if document["asked"] is None:
        return f"{document['fits']}{at_least} pods of {name} fit."
    is_enough = document["fits"] >= document["asked"]
    count = f"All {document['asked']}" if is_enough else f"{document['fits']} of {document['asked']}"
    return f"{count} pods of {name} fit."
