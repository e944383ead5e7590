"""The topology file: from text to a valid, complete topology, or to all its errors with their positions.

This package opens no files and reads no clock. Whether a path exists or a cluster responds is checked by its users.
"""

from tensile.topology.fields import Controller
from tensile.topology.messages import TopologyErrors, TopologyProblem
from tensile.topology.models import (
    WAY,
    Capacity,
    Descheduler,
    Extender,
    Guard,
    Kubelet,
    Lower,
    Namespaces,
    SecretRef,
    ServiceAccounts,
    ServiceRef,
    Services,
    Taint,
    Telemetry,
    Topology,
    TopologyFile,
    UnreachableLower,
    Upper,
    VirtualNode,
    Webhook,
    schema,
)
from tensile.topology.parse import decode, parse, salvaged, salvaged_upper
from tensile.topology.validation import cautions

__all__ = [
    "WAY",
    "Capacity",
    "Controller",
    "Descheduler",
    "Extender",
    "Guard",
    "Kubelet",
    "Lower",
    "Namespaces",
    "SecretRef",
    "ServiceAccounts",
    "ServiceRef",
    "Services",
    "Taint",
    "Telemetry",
    "Topology",
    "TopologyErrors",
    "TopologyFile",
    "TopologyProblem",
    "UnreachableLower",
    "Upper",
    "VirtualNode",
    "Webhook",
    "cautions",
    "decode",
    "parse",
    "salvaged",
    "salvaged_upper",
    "schema",
]
