"""What tells of an engine that runs: its Nodes, and the leases that it renews."""

from datetime import datetime

from tensile.doctor.facts import NODES, Side
from tensile.names import Owner, owner_of
from tensile.objects import Manifest, metadata
from tensile.reconcile.observed import is_ours
from tensile.status.inquiry import holds, renewed_at
from tensile.topology import Topology


def lease_of(node: str) -> str:
    """Name the question for a node's lease."""
    return f"lease of {node}"


def port_of(node: str) -> str:
    """Name the question whether a node's kubelet port is reached."""
    return f"kubelet port of {node}"


def node_named(upper: Side, name: str) -> Manifest | None:
    """Give a Node of the upper cluster as it was listed, None where there is none."""
    return next((node for node in upper.items(NODES) if node["metadata"]["name"] == name), None)


def owner(upper: Side, topology: Topology) -> Owner:
    """Say whose the objects of a topology are in that upper cluster."""
    return owner_of(upper.identity, topology.name)


def strays(upper: Side, topology: Topology) -> list[str]:
    """Name the Nodes that are this topology's by their marks, and behind which it has no lower."""
    known = {lower.node.name for lower in topology.lowers}
    whose = owner(upper, topology)
    nodes = (node for node in upper.items(NODES) if metadata(node)["name"] not in known)
    return [metadata(node)["name"] for node in nodes if is_ours(node, whose)]


def is_renewed(upper: Side, node: str, now: datetime) -> bool:
    """Say whether somebody renews a node's lease."""
    return holds(renewed_at(upper.value(lease_of(node)) or {}), now)


def endpoint_of(node: Manifest) -> tuple[str, int]:
    """Give the IP address and port at which a Node's kubelet API is called; "" and 0 where it says none."""
    status = node.get("status") or {}
    addresses = (one["address"] for one in status.get("addresses") or () if one["type"] == "InternalIP")
    port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port") or 0
    return next(addresses, ""), int(port)
