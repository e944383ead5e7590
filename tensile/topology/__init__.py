"""The topology file: text in, a valid and complete topology out, or every error with its place.

Pure: nothing is opened, no clock is read. Whether a path exists or a cluster answers is for those who use it.
"""

from tensile.topology.cautions import cautions
from tensile.topology.fields import Controller
from tensile.topology.models import (
    Capacity,
    Descheduler,
    Extender,
    Guard,
    Kubelet,
    Namespaces,
    ServiceAccounts,
    ServiceRef,
    Services,
    Taint,
    Telemetry,
    TopologyFile,
    Unreachable,
    Upper,
    Webhook,
)
from tensile.topology.parsing import decode, parse
from tensile.topology.problems import Problem, TopologyErrors
from tensile.topology.resolved import WAY, Lower, SecretRef, Topology, VirtualNode
from tensile.topology.salvage import salvaged
from tensile.topology.schema import schema

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
    "Problem",
    "SecretRef",
    "ServiceAccounts",
    "ServiceRef",
    "Services",
    "Taint",
    "Telemetry",
    "Topology",
    "TopologyErrors",
    "TopologyFile",
    "Unreachable",
    "Upper",
    "VirtualNode",
    "Webhook",
    "cautions",
    "decode",
    "parse",
    "salvaged",
    "schema",
]
