"""Compute how much a lower cluster offers as one node.

The amounts are always recomputed from the current state, never by adding and subtracting. A number that depends on
history drifts, and a node that advertises a wrong amount is only noticed when its pods stay Pending in the lower
cluster.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple, TypeVar

import msgspec

from tensile.kube.store import Entry, Transformed
from tensile.reconcile.pods.demand import Amounts, PodDemand, Quantities
from tensile.resources import add, clamp, parse_all, render_all

_THOUSAND = 1000

Basis = Literal["free", "allocatable"]
Amount = TypeVar("Amount")

_ALWAYS_LISTED = ("cpu", "memory", "pods")
_LISTED_FIRST = (*_ALWAYS_LISTED, "ephemeral-storage")
MAX_RESOURCES = 100
"""Upper limit of resources that a virtual node lists; each appears on it four times, managedFields included.

No real node has as many, but a cluster could invent them, and the upper cluster would have to store them. From about a
megabyte on, an apiserver no longer records who wrote which field of a Node, and then the engine does not know which
fields are its own.
"""
_MAX_FEATURES = 500
_LONGEST_FIELD = 256
"""Maximum characters of each field that describes a node's machine."""


class _Condition(msgspec.Struct, gc=False):
    """The fields of a condition that are needed."""

    type: str = ""
    status: str = ""


class _NodeInfo(msgspec.Struct, gc=False):
    """The fields that describe a node's machine."""

    kubeletVersion: str = ""  # noqa: N815 - the API's spelling, here and below
    operatingSystem: str = ""  # noqa: N815
    architecture: str = ""
    kernelVersion: str = ""  # noqa: N815
    osImage: str = ""  # noqa: N815
    containerRuntimeVersion: str = ""  # noqa: N815


class _Address(msgspec.Struct, gc=False):
    """The fields of an address that are needed."""

    type: str = ""
    address: str = ""


class _Status(msgspec.Struct, gc=False):
    """The fields of a status that are needed."""

    allocatable: Quantities | None = None
    conditions: list[_Condition] | None = None
    addresses: list[_Address] | None = None
    nodeInfo: _NodeInfo = msgspec.field(default_factory=_NodeInfo)  # noqa: N815
    declaredFeatures: list[str] | None = None  # noqa: N815


class _Spec(msgspec.Struct, gc=False):
    """The fields of a spec that are needed."""

    unschedulable: bool | None = None
    podCIDRs: list[str] | None = None  # noqa: N815


class _Metadata(msgspec.Struct, gc=False):
    """The metadata fields that are needed."""

    name: str
    labels: dict[str, str] | None = None
    deletionTimestamp: str | None = None  # noqa: N815


class _Node(msgspec.Struct, gc=False):
    """The fields of a node that are needed; all others are skipped without decoding."""

    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class NodeOffer(msgspec.Struct, frozen=True, gc=False):
    """What one lower node offers: milli-units by resource, and what the virtual node reports about its machine.

    `schedulable` is False for a cordoned node and for a node that is being deleted.
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
        """Whether the lower scheduler may place pods on the node now."""
        return self.ready and self.schedulable


_NODES = msgspec.json.Decoder(_Node)


def _by_label_key(node: Entry) -> Iterator[str]:
    yield from node.facts.label_keys


INDEXES = {"label": _by_label_key}
"""By label key: each new pod needs the keys of all nodes, of which there may be thousands."""


def node_offer(raw: bytes) -> Transformed:
    """Transform a lower node into a `NodeOffer`, and keep no bytes."""
    node = _NODES.decode(raw)
    info = node.status.nodeInfo
    offer = NodeOffer(
        node.metadata.name,
        parse_all(_limited(node.status.allocatable or {})),
        ready=any(one.type == "Ready" and one.status == "True" for one in node.status.conditions or ()),
        schedulable=not node.spec.unschedulable and node.metadata.deletionTimestamp is None,
        kubelet_version=info.kubeletVersion[:_LONGEST_FIELD],
        operating_system=info.operatingSystem[:_LONGEST_FIELD],
        architecture=info.architecture[:_LONGEST_FIELD],
        kernel_version=info.kernelVersion[:_LONGEST_FIELD],
        os_image=info.osImage[:_LONGEST_FIELD],
        container_runtime=info.containerRuntimeVersion[:_LONGEST_FIELD],
        declared_features=frozenset(sorted(node.status.declaredFeatures or ())[:_MAX_FEATURES]),
        label_keys=frozenset(node.metadata.labels or ()),
        families=_families(node),
    )
    return Transformed(b"", offer)


def _families(node: _Node) -> frozenset[str]:
    """Return the address families of a node, "IPv4" or "IPv6": of its pod CIDRs, else of its internal addresses."""
    internal = [one.address for one in node.status.addresses or () if one.type == "InternalIP"]
    return frozenset("IPv6" if ":" in one else "IPv4" for one in node.spec.podCIDRs or internal)


def capacity(
    nodes: Iterable[NodeOffer],
    foreign_pods: Iterable[PodDemand],
    basis: Basis,
    reserve: Mapping[str, str],
    limit: Mapping[str, str],
) -> dict[str, str]:
    """Return what to advertise, as canonical quantities; cpu, memory and pods are always included.

    "allocatable" is the sum over nodes that are Ready and schedulable. "free" subtracts what foreign pods request on
    each of these nodes. Then `reserve` is subtracted, and `limit` is the upper bound. Nothing is negative (the API
    refuses it), and everything but cpu is a whole number (the API refuses half a GPU).
    """
    offers = [node for node in nodes if node.counts]
    taken = _requests_by_node(foreign_pods) if basis == "free" else {}
    total: Amounts = dict.fromkeys(_ALWAYS_LISTED, 0)
    for node in offers:
        total = add(total, _subtract(node.allocatable, taken.get(node.name, {})))
    advertised = clamp(_subtract(total, parse_all(reserve)), parse_all(limit))
    return render_all({name: _rounded_down(name, amount) for name, amount in _limited(advertised).items()})


class ResourceShare(NamedTuple):
    """How one resource of a lower cluster is used, in milli-units.

    `total` is what its Ready and schedulable nodes have, `ours` what our pods request, `others` what other pods request
    on these nodes, and `reserved` what the topology holds back by `reserve` and `limit`.
    """

    total: int = 0
    ours: int = 0
    others: int = 0
    reserved: int = 0

    @property
    def free(self) -> int:
        """What is left, at least zero: more may be requested than the nodes have."""
        return max(0, self.total - self.ours - self.others - self.reserved)


def shares(
    nodes: Iterable[NodeOffer],
    foreign_pods: Iterable[PodDemand],
    our_pods: Iterable[PodDemand],
    basis: Basis,
    bounds: tuple[Mapping[str, str], Mapping[str, str]],
) -> dict[str, ResourceShare]:
    """Return how each resource is used; `bounds` are `reserve` and `limit`. Amounts are those of `capacity`."""
    offers = [node for node in nodes if node.counts]
    taken = _requests_by_node(foreign_pods)
    total: Amounts = dict.fromkeys(_ALWAYS_LISTED, 0)
    free = dict(total)
    for node in offers:
        total = add(total, node.allocatable)
        free = add(free, _subtract(node.allocatable, taken.get(node.name, {})))
    offered = free if basis == "free" else total
    reserve, limit = map(parse_all, bounds)
    advertised = clamp(_subtract(offered, reserve), limit)
    ours: Amounts = {}
    for amounts in _requests_by_node(our_pods).values():
        ours = add(ours, amounts)
    return {
        name: ResourceShare(amount, ours.get(name, 0), amount - free[name], offered[name] - advertised[name])
        for name, amount in total.items()
    }


def declared_features(nodes: Iterable[NodeOffer]) -> frozenset[str]:
    """Return the features that every Ready and schedulable node declares: only these hold wherever a pod is placed."""
    declared = [node.declared_features for node in nodes if node.counts]
    return frozenset.intersection(*declared) if declared else frozenset()


def _requests_by_node(pods: Iterable[PodDemand]) -> dict[str, Amounts]:
    """Return the sums of requests by node ("" for pods without a node); pods that ended request nothing."""
    taken: dict[str, Amounts] = {}
    for pod in pods:
        if not pod.ended:
            sums = taken.setdefault(pod.node, {})
            for name, amount in pod.requests.items():
                sums[name] = sums.get(name, 0) + amount
    return taken


def _subtract(offered: Mapping[str, int], taken: Mapping[str, int]) -> Amounts:
    """Return the difference, at least zero; what is taken of a resource that is not offered does not count."""
    return {name: max(0, amount - taken.get(name, 0)) for name, amount in offered.items()}


def _limited(amounts: Mapping[str, Amount]) -> dict[str, Amount]:
    """Return the first MOST_RESOURCES resources: those that every node has, then the others by name."""
    if len(amounts) <= MAX_RESOURCES:
        return dict(amounts)
    names = sorted(amounts, key=lambda name: (name not in _LISTED_FIRST, name))
    return {name: amounts[name] for name in names[:MAX_RESOURCES]}


def _rounded_down(name: str, amount: int) -> int:
    """Return an amount rounded down to whole units; only cpu keeps thousandths."""
    return amount if name == "cpu" else amount - amount % _THOUSAND
