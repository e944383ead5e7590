"""A cluster at one moment, as far as placement needs it: nodes, the pods on them, and storage; and the type of a check.

These are plain values. Simulations and reservations add pods to a copy of a snapshot to see what would follow. A check
has the shape of a kube-scheduler plugin (prepare, then filter), so that each can be compared with its original.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

from tensile.objects import Manifest
from tensile.policy.placement.selectors import Labels, Test
from tensile.reconcile.pods.demand import Amounts

_WHOLE = 1000


class NodeTaint(NamedTuple):
    """A taint that repels pods from a node."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


class HostPort(NamedTuple):
    """A host port of a container, on one address of the node or on all ("0.0.0.0")."""

    address: str
    protocol: str
    port: int


@dataclass(frozen=True, slots=True)
class AffinityTerm:
    """A required term of pod affinity or anti-affinity, within the domain of node label `key`."""

    key: str
    namespaces: frozenset[str]
    spaces: Test
    """Whether it selects, beside `namespaces`, the namespaces with these labels."""
    pods: Test
    weight: int = 1
    """How many comparisons it takes to match a pod."""
    everywhere: bool = False
    """Whether it may match pods of any namespace."""

    def matches(self, pod: "Pod", space_labels: Labels | None) -> bool:
        """Report whether it matches a pod, in a namespace with these labels (None: unknown)."""
        chosen = pod.namespace in self.namespaces or (space_labels is not None and self.spaces(space_labels))
        return chosen and self.pods(pod.labels)


@dataclass(frozen=True, slots=True, eq=False)
class Pod:
    """What placement needs of a pod, on a node or looking for one.

    `requests` are milli-units as the scheduler counts them, without the pod's slot. `claims` are the names of claims
    that its volumes use; those of `own_claims` are created for the pod from a template. `spec` is {} for a pod on a
    node.
    """

    namespace: str
    name: str
    uid: str
    node: str
    labels: Labels
    requests: Amounts
    ports: tuple[HostPort, ...] = ()
    near: tuple[AffinityTerm, ...] = ()
    apart: tuple[AffinityTerm, ...] = ()
    claims: tuple[str, ...] = ()
    own_claims: Mapping[str, Manifest] = field(default_factory=dict)
    disks: tuple[Manifest, ...] = ()
    ending: bool = False
    spec: Manifest = field(default_factory=dict)
    guard: bytes = b""


class RepellingPods(NamedTuple):
    """The anti-affinity terms of pods that are alike, and how many of these pods each node has."""

    terms: tuple[AffinityTerm, ...]
    nodes: Counter[str]


@dataclass(slots=True, eq=False)
class Node:
    """One node and the pods on it. `allocatable` and `used` are milli-units by resource."""

    name: str
    labels: Labels
    taints: tuple[NodeTaint, ...]
    unschedulable: bool
    allocatable: Amounts
    ready: bool = True
    used: Amounts = field(default_factory=dict)
    pods: dict[tuple[str, str], Pod] = field(default_factory=dict)

    @property
    def room(self) -> int:
        """The maximum of pods on it."""
        return self.allocatable.get("pods", 0) // _WHOLE

    def copy(self) -> Self:
        """Return a copy that may be changed."""
        return replace(self, used=dict(self.used), pods=dict(self.pods))


@dataclass(frozen=True, slots=True)
class Storage:
    """The storage of a cluster: objects by name (claims by namespace and name), and the data of CSI nodes.

    `limits` are the attach limits of each driver by node, `attached` each node's attached volumes ("DRIVER/HANDLE" to
    driver). `tracked` are the drivers whose free capacity counts, and `capacities` their CSIStorageCapacity objects.
    """

    claims: Mapping[tuple[str, str], Manifest] = field(default_factory=dict)
    volumes: Mapping[str, Manifest] = field(default_factory=dict)
    classes: Mapping[str, Manifest] = field(default_factory=dict)
    limits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    attached: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    tracked: frozenset[str] = frozenset()
    capacities: tuple[Manifest, ...] = ()


@dataclass(slots=True, eq=False)
class Snapshot:
    """One cluster. `spaces` are the labels of its namespaces, `population` the number of pods on nodes by namespace.

    `guarded` is the anti-affinity by namespace of its pods: a thousand replicas of one application are compared once.
    """

    nodes: dict[str, Node]
    spaces: Mapping[str, Labels] = field(default_factory=dict)
    storage: Storage = field(default_factory=Storage)
    guarded: dict[str, dict[bytes, RepellingPods]] = field(default_factory=dict)
    population: Counter[str] = field(default_factory=Counter)

    def add(self, pod: Pod, node: str) -> None:
        """Put a pod on a node, replacing one of its name; does nothing if the node is unknown."""
        place = self.nodes.get(node)
        if place is None:
            return
        self.remove(pod.namespace, pod.name, node)
        place.pods[pod.namespace, pod.name] = pod
        for name, amount in pod.requests.items():
            place.used[name] = place.used.get(name, 0) + amount
        self._settled(pod, node)

    def remove(self, namespace: str, name: str, node: str) -> None:
        """Take a pod off a node; does nothing if it is not there."""
        place = self.nodes.get(node)
        pod = place.pods.pop((namespace, name), None) if place else None
        if place is None or pod is None:
            return
        for resource, amount in pod.requests.items():
            place.used[resource] -= amount
        self._left(pod, node)

    def forget(self, node: str) -> Node | None:
        """Remove a node with its pods; return it, None if it is unknown."""
        place = self.nodes.pop(node, None)
        for pod in place.pods.values() if place else ():
            self._left(pod, node)
        return place

    def copy(self) -> Self:
        """Return a copy to which pods may be added."""
        return replace(
            self,
            nodes={name: node.copy() for name, node in self.nodes.items()},
            guarded={
                space: {alike: RepellingPods(one.terms, one.nodes.copy()) for alike, one in guards.items()}
                for space, guards in self.guarded.items()
            },
            population=self.population.copy(),
        )

    def _settled(self, pod: Pod, node: str) -> None:
        """Count a pod that was put on a node."""
        self.population[pod.namespace] += 1
        if pod.apart:
            guards = self.guarded.setdefault(pod.namespace, {})
            guards.setdefault(pod.guard, RepellingPods(pod.apart, Counter())).nodes[node] += 1

    def _left(self, pod: Pod, node: str) -> None:
        """Stop counting a pod that was taken off a node."""
        self.population[pod.namespace] -= 1
        if not self.population[pod.namespace]:
            del self.population[pod.namespace]
        if not pod.apart:
            return
        guards = self.guarded[pod.namespace]
        nodes = guards[pod.guard].nodes
        nodes[node] -= 1
        if not nodes[node]:
            del nodes[node]
        if not nodes:
            del guards[pod.guard]
        if not guards:
            del self.guarded[pod.namespace]


NodeFilter = Callable[[Node], tuple[str, ...]]
"""Returns the reasons why a node does not fit, in kube-scheduler's words; () if it fits."""


def no_detail(_node: Node) -> str:
    """Return ""."""
    return ""


class PreparedCheck(NamedTuple):
    """A check prepared for one pod; `detail` returns details for a user about a node that does not fit."""

    judge: NodeFilter
    detail: Callable[[Node], str] = no_detail


class NoNodeFits(NamedTuple):
    """Why no node can fit, whatever its state."""

    reason: str


class Check(NamedTuple):
    """A named check; `prepare` returns None if the pod requires nothing that the check guards."""

    name: str
    prepare: Callable[[Pod, Snapshot], PreparedCheck | NoNodeFits | None]


def failing(reason: str, *nodes: str) -> PreparedCheck:
    """Return a check that fails for the named nodes only."""
    names, said = frozenset(nodes), (reason,)
    return PreparedCheck(lambda node: said if node.name in names else ())
