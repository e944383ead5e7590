"""A topology as the engine uses it: what lowers inherit is filled in, so that nobody asks twice what null means.

A lower's field is its own, else that of lowerDefaults, else the topology's or the default. It is decided once, here,
and nothing is checked again: the parts were checked in the file, where they have a line.
"""

from collections.abc import Mapping
from typing import Any

from tensile.names import CLUSTER_ID
from tensile.topology import fields
from tensile.topology.models import (
    LowerEntry,
    NodeEntry,
    SecretEntry,
    Section,
    ServiceAccounts,
    TopologyFile,
)

_NO_IDENTITY = ServiceAccounts.model_construct(identity="none")


class SecretRef(SecretEntry):
    """Where in the upper cluster a kubeconfig is kept: namespace and name are given."""

    namespace: fields.LabelName
    """Namespace of the Secret."""
    name: fields.ObjectName
    """Name of the Secret."""


class VirtualNode(NodeEntry):
    """The virtual node with its name, its clusterID label, and its port."""

    name: fields.NodeName
    """Name of the node."""
    kubelet_port: fields.Port
    """Port of its kubelet API."""


WAY = ("kubeconfig", "context", "kubeconfig_secret")
"""The fields of a lower that say how its cluster is reached."""


class Lower(LowerEntry):
    """A lower cluster with everything that it inherits."""

    kubeconfig_secret: SecretRef | None = None
    """The Secret that holds the kubeconfig; None when `kubeconfig` has its path."""
    node: VirtualNode
    """The virtual node that stands for it."""
    controllers: fields.Controllers
    """What is mirrored beside pods."""
    ignore_labels: fields.LabelKeys
    """Keys of labels that the copy of a pod does not get."""
    on_conflict: fields.OnConflict
    """What to do with an object of that name that is not ours."""
    service_accounts: ServiceAccounts
    """Whose API a pod's token is for; none without the ServiceAccount controller."""

    @property
    def way(self) -> tuple[object, ...]:
        """How its cluster is reached: lowers that are reached in one way are one cluster."""
        return tuple(getattr(self, field) for field in WAY)


class Topology(TopologyFile):
    """A valid topology; its lowers have everything that they inherit."""

    lowers: tuple[Lower, ...]
    """The lower clusters, in the order of the file."""

    @property
    def enabled(self) -> frozenset[fields.Controller]:
        """The controllers that any lower has."""
        return frozenset(controller for lower in self.lowers for controller in lower.controllers)

    @property
    def places(self) -> bool:
        """Whether anything asks where in a lower cluster a pod fits, so that its nodes have to be known one by one."""
        return self.evicts or self.extender.enabled

    @property
    def evicts(self) -> bool:
        """Whether pods may have to leave the virtual nodes that they are on."""
        return self.descheduler.enabled or any(lower.maintenance == "drain" for lower in self.lowers)


def _merge(own: Any, default: Any) -> Any:
    """Give what holds when both are written: sections and mappings merge, anything else is the lower's own."""
    if isinstance(own, Section) and isinstance(default, Section):
        return type(own).model_construct(**_merged(own, default))
    if isinstance(own, Mapping) and isinstance(default, Mapping):
        return {**default, **own}
    return own


def _merged(own: Section, default: Section) -> dict[str, Any]:
    """Give the fields of a section with those of its defaults that it does not write itself."""
    values = {name: getattr(own, name) for name in type(own).model_fields}
    for name in default.model_fields_set:
        inherited = getattr(default, name)
        values[name] = _merge(values[name], inherited) if name in own.model_fields_set else inherited
    return values


def _node(node: NodeEntry, lower: str, port: int) -> VirtualNode:
    """Fill in a node's name, its clusterID label and its port."""
    values = {name: getattr(node, name) for name in NodeEntry.model_fields}
    values["name"] = node.name or lower
    values["labels"] = {CLUSTER_ID: lower, **node.labels}
    values["kubelet_port"] = node.kubelet_port or port
    return VirtualNode.model_construct(**values)


def _secret(entry: LowerEntry, merged: SecretEntry | None) -> SecretRef | None:
    """Give the Secret of a lower; a path of its own stands against a Secret of lowerDefaults."""
    if merged is None or entry.kubeconfig is not None:
        return None
    return SecretRef.model_construct(namespace=merged.namespace, name=merged.name, key=merged.key)


def _lower(file: TopologyFile, place: int) -> Lower:
    """Fill in what the lower at a place of the file inherits."""
    entry = file.lowers[place]
    values = _merged(entry, file.lower_defaults)
    for name in ("controllers", "ignore_labels", "on_conflict", "service_accounts"):
        values[name] = getattr(file, name) if values[name] is None else values[name]
    if "ServiceAccount" not in values["controllers"]:
        values["service_accounts"] = _NO_IDENTITY
    values["node"] = _node(values["node"], entry.name, file.kubelet.port + place)
    values["kubeconfig_secret"] = _secret(entry, values["kubeconfig_secret"])
    return Lower.model_construct(**values)


def resolve(file: TopologyFile) -> Topology:
    """Make the topology of a file that was found right."""
    values = {name: getattr(file, name) for name in TopologyFile.model_fields}
    values["lowers"] = tuple(_lower(file, place) for place in range(len(file.lowers)))
    return Topology.model_construct(**values)
