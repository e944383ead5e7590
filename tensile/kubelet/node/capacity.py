"""How much a lower cluster offers as one node.

Always worked out from what is there now, never by adding and subtracting as things come and go: a number that depends
on history drifts, and a node that advertises a wrong one is only noticed when its pods stay Pending below.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, TypeVar

import msgspec

from tensile.kube.store import Kept
from tensile.reconcile.pods.demand import Amounts, PodDemand, Quantities
from tensile.resources import add, clamp, parse_all, render_all

_THOUSAND = 1000

Basis = Literal["free", "allocatable"]
Amount = TypeVar("Amount")

_ALWAYS = ("cpu", "memory", "pods")
_FIRST = (*_ALWAYS, "ephemeral-storage")
MOST_RESOURCES = 100
"""Resources that a virtual node shows, each of which stands on it four times, managedFields included.

No node has as many. A cluster may make them up, and the upper one would have to keep them: from about a megabyte on an
apiserver no longer tells who wrote which field of a Node, and then the engine does not know its own.
"""
_MOST_FEATURES = 500
_LONGEST = 256
"""Characters of what a node says of its machine."""


class _Condition(msgspec.Struct, gc=False):
    """What counts of a condition."""

    type: str = ""
    status: str = ""


class _NodeInfo(msgspec.Struct, gc=False):
    """What a node says of its machine."""

    kubeletVersion: str = ""  # noqa: N815 - the API's spelling, here and below
    operatingSystem: str = ""  # noqa: N815
    architecture: str = ""
    kernelVersion: str = ""  # noqa: N815
    osImage: str = ""  # noqa: N815
    containerRuntimeVersion: str = ""  # noqa: N815


class _Address(msgspec.Struct, gc=False):
    """What counts of an address."""

    type: str = ""
    address: str = ""


class _Status(msgspec.Struct, gc=False):
    """What counts of a status."""

    allocatable: Quantities | None = None
    conditions: list[_Condition] | None = None
    addresses: list[_Address] | None = None
    nodeInfo: _NodeInfo = msgspec.field(default_factory=_NodeInfo)  # noqa: N815
    declaredFeatures: list[str] | None = None  # noqa: N815


class _Spec(msgspec.Struct, gc=False):
    """What counts of a spec."""

    unschedulable: bool | None = None
    podCIDRs: list[str] | None = None  # noqa: N815


class _Metadata(msgspec.Struct, gc=False):
    """What counts of metadata."""

    name: str
    labels: dict[str, str] | None = None
    deletionTimestamp: str | None = None  # noqa: N815


class _Node(msgspec.Struct, gc=False):
    """What counts of a node: everything else is passed over undecoded."""

    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class NodeOffer(msgspec.Struct, frozen=True, gc=False):
    """What one lower node offers: milli-units by resource, and what the virtual node says of its kind.

    `schedulable` is False for a cordoned node and for one that is being deleted.
    """

    name: str
    allocatable: Mapping[str, int]
    ready: bool
    schedulable: bool
    kubelet_version: str = ""
    operating_system: str = ""
    architecture: str = ""
    kernel_version: str = ""
    os_image: str = ""
    container_runtime: str = ""
    declared_features: frozenset[str] = frozenset()
    label_keys: frozenset[str] = frozenset()
    families: frozenset[str] = frozenset()

    @property
    def counts(self) -> bool:
        """Whether the lower scheduler may place pods there now."""
        return self.ready and self.schedulable


_NODES = msgspec.json.Decoder(_Node)


def node_offer(raw: bytes) -> Kept:
    """Digest a lower node: a `NodeOffer`, and no bytes."""
    node = _NODES.decode(raw)
    info = node.status.nodeInfo
    offer = NodeOffer(
        node.metadata.name,
        parse_all(_fewest(node.status.allocatable or {})),
        ready=any(one.type == "Ready" and one.status == "True" for one in node.status.conditions or ()),
        schedulable=not node.spec.unschedulable and node.metadata.deletionTimestamp is None,
        kubelet_version=info.kubeletVersion[:_LONGEST],
        operating_system=info.operatingSystem[:_LONGEST],
        architecture=info.architecture[:_LONGEST],
        kernel_version=info.kernelVersion[:_LONGEST],
        os_image=info.osImage[:_LONGEST],
        container_runtime=info.containerRuntimeVersion[:_LONGEST],
        declared_features=frozenset(sorted(node.status.declaredFeatures or ())[:_MOST_FEATURES]),
        label_keys=frozenset(node.metadata.labels or ()),
        families=_families(node),
    )
    return Kept(b"", offer)


def _families(node: _Node) -> frozenset[str]:
    """Return the address families of a node's pods: "IPv4", "IPv6"; where they have no range, of the node itself."""
    internal = [one.address for one in node.status.addresses or () if one.type == "InternalIP"]
    return frozenset("IPv6" if ":" in one else "IPv4" for one in node.spec.podCIDRs or internal)


def capacity(
    nodes: Iterable[NodeOffer],
    foreign_pods: Iterable[PodDemand],
    basis: Basis,
    reserve: Mapping[str, str],
    limit: Mapping[str, str],
) -> dict[str, str]:
    """Return what to advertise, as canonical quantities; cpu, memory and pods are always in it.

    "allocatable" sums over nodes that are Ready and schedulable; "free" takes off what pods that are not ours request
    on each of them. Then `reserve` is held back and `limit` is the most. Nothing is negative (the API refuses it), and
    all but cpu is whole (the API refuses half a GPU).
    """
    offers = [node for node in nodes if node.counts]
    taken = _taken(foreign_pods) if basis == "free" else {}
    total: Amounts = dict.fromkeys(_ALWAYS, 0)
    for node in offers:
        total = add(total, _left(node.allocatable, taken.get(node.name, {})))
    kept = clamp(_left(total, parse_all(reserve)), parse_all(limit))
    return render_all({name: _whole(name, amount) for name, amount in _fewest(kept).items()})


def declared_features(nodes: Iterable[NodeOffer]) -> frozenset[str]:
    """Return the features that every Ready and schedulable node declares: only those hold wherever a pod lands."""
    declared = [node.declared_features for node in nodes if node.counts]
    return frozenset.intersection(*declared) if declared else frozenset()


def _taken(pods: Iterable[PodDemand]) -> dict[str, Amounts]:
    """Sum requests by node (those of pods without one under ""); pods that ended take nothing."""
    taken: dict[str, Amounts] = {}
    for pod in pods:
        if not pod.ended:
            sums = taken.setdefault(pod.node, {})
            for name, amount in pod.requests.items():
                sums[name] = sums.get(name, 0) + amount
    return taken


def _left(offered: Mapping[str, int], taken: Mapping[str, int]) -> Amounts:
    """Subtract without going below zero; what is taken of a resource that is not offered does not count."""
    return {name: max(0, amount - taken.get(name, 0)) for name, amount in offered.items()}


def _fewest(amounts: Mapping[str, Amount]) -> dict[str, Amount]:
    """Return the first MOST_RESOURCES: what every node has, then the others by their names."""
    if len(amounts) <= MOST_RESOURCES:
        return dict(amounts)
    names = sorted(amounts, key=lambda name: (name not in _FIRST, name))
    return {name: amounts[name] for name in names[:MOST_RESOURCES]}


def _whole(name: str, amount: int) -> int:
    """Round down to whole units; cpu alone is given in thousandths."""
    return amount if name == "cpu" else amount - amount % _THOUSAND
