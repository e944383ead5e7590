"""Snapshots to explain and to simulate: an upper cluster with two virtual nodes, and their lowers."""

from datetime import UTC, datetime
from typing import Any

import orjson
from placekit import make_namespace, node

from tensile.diagnostics.cluster_snapshot import KINDS, ClusterSnapshot, FleetSnapshot, pruned
from tensile.names import OWNER, UPPER_UID, owner_of
from tensile.objects import NAMESPACE, NODE, Kind
from tensile.topology import Topology, parse

Manifest = dict[str, Any]
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
TAINT = {"key": "virtual-kubelet.io/provider", "value": "k8s", "effect": "NoSchedule"}
TOLERANT = {"tolerations": [{"key": TAINT["key"], "operator": "Exists"}]}


def topology(**fields: Any) -> Topology:
    """Make a topology of lower-a and lower-b."""
    lowers = [{"name": name, "kubeconfig": name} for name in ("lower-a", "lower-b")]
    file = {"apiVersion": "tensile-kube.io/v1alpha1", "kind": "Topology", "name": "demo", "lowers": lowers, **fields}
    return parse(orjson.dumps(file).decode(), name="test")


def virtual_node(name: str, cpu: str = "8", **fields: Any) -> Manifest:
    """Make the virtual node of a lower, as it is in the upper cluster."""
    labels = {"type": "virtual-kubelet", "clusterID": name}
    return node(name, labels=labels, spec={"taints": [TAINT]} | fields, cpu=cpu, memory="16Gi", pods="20")


def cluster_snapshot(name: str, *objects: tuple[Kind, Manifest], error: str = "") -> ClusterSnapshot:
    """Make the snapshot of a cluster."""
    found: dict[str, list[Manifest]] = {kind.plural: [] for kind in KINDS}
    for kind, manifest in objects:
        found[kind.plural].append(pruned(kind, manifest))
    return ClusterSnapshot(name, found, error)


def fleet_snapshot(upper: list[tuple[Kind, Manifest]], *lowers: ClusterSnapshot, **fields: Any) -> FleetSnapshot:
    """Make a snapshot of all clusters: each has a namespace default, and virtual nodes exist unless given."""
    given = {one["metadata"]["name"] for kind, one in upper if kind == NODE}
    nodes = [(NODE, virtual_node(name)) for name in ("lower-a", "lower-b") if name not in given]
    above = cluster_snapshot("", *nodes, (NAMESPACE, make_namespace("default")), *upper)
    return FleetSnapshot(topology(**fields), "upper-uid", above, list(lowers), NOW)


def two_nodes(name: str, *more: tuple[Kind, Manifest], cpu: str = "4") -> ClusterSnapshot:
    """Make the snapshot of a lower with two nodes."""
    nodes = [(NODE, node(f"{name}-{number}", cpu=cpu)) for number in (1, 2)]
    return cluster_snapshot(name, *nodes, (NAMESPACE, make_namespace("default")), *more)


def make_upper_pod(
    name: str = "web", spec: Manifest | None = None, status: Manifest | None = None, **meta: Any
) -> Manifest:
    """Make an upper pod that tolerates virtual nodes."""
    base = {"containers": [{"name": "main", "image": "app"}], **TOLERANT}
    fields = {"name": name, "namespace": "default", "uid": f"uid-{name}", **meta}
    return {"metadata": fields, "spec": base | (spec or {}), "status": {"phase": "Pending"} | (status or {})}


def make_lower_pod(upper_pod: Manifest, on: str = "", phase: str = "Running") -> Manifest:
    """Make the lower pod of an upper pod."""
    meta = {"name": upper_pod["metadata"]["name"], "namespace": "default", "uid": "lower-uid"}
    spec = {key: value for key, value in upper_pod["spec"].items() if key != "nodeName"} | (
        {"nodeName": on} if on else {}
    )
    notes = {UPPER_UID: upper_pod["metadata"]["uid"]}
    marks = {"labels": {OWNER: owner_of("upper-uid", topology().name).mark}, "annotations": notes}
    return {"metadata": meta | marks, "spec": spec, "status": {"phase": phase}}
