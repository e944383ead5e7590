"""A lower cluster at one moment, as far as it matters where a pod can run: nodes, the pods on them, and storage.

Plain values that checks compare. A snapshot may be copied and pods added to the copy, which is how a simulation and a
reservation ask what would be.

What a check is: it looks at a pod, and says how a node is judged for it.

The same shape as the plugins of the kube-scheduler have (prepare, then filter), so that each can be held against the
one whose answer it has to give.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

from tensile.objects import Manifest
from tensile.policy.placement.selectors import Labels, Test
from tensile.reconcile.pods.demand import Amounts

_WHOLE = 1000


class Taint(NamedTuple):
    """A taint that keeps pods off a node."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


class HostPort(NamedTuple):
    """A port of the node itself that a container takes, on one address of it or ("0.0.0.0") on all."""

    address: str
    protocol: str
    port: int


@dataclass(frozen=True, slots=True)
class Term:
    """A required rule of a pod about the company of others, within the domain that a node's label `key` names."""

    key: str
    namespaces: frozenset[str]
    spaces: Test
    """Whether it holds for the pods of a namespace with these labels, beside those of `namespaces`."""
    pods: Test
    weight: int = 1
    """How many comparisons it takes to say whether it means a pod."""
    everywhere: bool = False
    """Whether it may mean pods of any namespace."""

    def matches(self, pod: "Pod", space_labels: Labels | None) -> bool:
        """Report whether a pod, in a namespace with these labels (None: nobody knows that one), is one that it means."""
        chosen = pod.namespace in self.namespaces or (space_labels is not None and self.spaces(space_labels))
        return chosen and self.pods(pod.labels)


@dataclass(frozen=True, slots=True, eq=False)
class Pod:
    """What counts of a pod on a node, or of one that looks for a node.

    `requests` are milli-units as the scheduler counts them, without a pod's own place. `claims` are the names of claims
    that its volumes use; those of `own_claims` are made for the pod, by a template. `spec` is its spec, {} for a pod
    that has its node.
    """

    namespace: str
    name: str
    uid: str
    node: str
    labels: Labels
    requests: Amounts
    ports: tuple[HostPort, ...] = ()
    near: tuple[Term, ...] = ()
    apart: tuple[Term, ...] = ()
    claims: tuple[str, ...] = ()
    own_claims: Mapping[str, Manifest] = field(default_factory=dict)
    disks: tuple[Manifest, ...] = ()
    ending: bool = False
    spec: Manifest = field(default_factory=dict)
    guard: bytes = b""


class Guard(NamedTuple):
    """What pods that are alike keep away, and how many of them are on which nodes."""

    terms: tuple[Term, ...]
    nodes: Counter[str]


@dataclass(slots=True, eq=False)
class Node:
    """One node: what it is, and the pods on it. `allocatable` and `used` are milli-units by resource."""

    name: str
    labels: Labels
    taints: tuple[Taint, ...]
    unschedulable: bool
    allocatable: Amounts
    ready: bool = True
    used: Amounts = field(default_factory=dict)
    pods: dict[tuple[str, str], Pod] = field(default_factory=dict)

    @property
    def room(self) -> int:
        """How many pods it may have."""
        return self.allocatable.get("pods", 0) // _WHOLE

    def copy(self) -> Self:
        """Return one that may be changed."""
        return replace(self, used=dict(self.used), pods=dict(self.pods))


@dataclass(frozen=True, slots=True)
class Storage:
    """The storage of a cluster, as objects by name (claims by namespace and name), and what CSI nodes say.

    `limits` are the most volumes of each driver by node, `attached` each node's attached volumes as "DRIVER/HANDLE"
    with their driver, `tracked` the drivers whose free capacity counts, `capacities` what is free of it.
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
    """One cluster. `spaces` are its namespaces' labels, `population` how many pods each has on nodes.

    `guarded` is what keeps other pods away, by the namespace that it is of: the thousand replicas of one application
    are compared once.
    """

    nodes: dict[str, Node]
    spaces: Mapping[str, Labels] = field(default_factory=dict)
    storage: Storage = field(default_factory=Storage)
    guarded: dict[str, dict[bytes, Guard]] = field(default_factory=dict)
    population: Counter[str] = field(default_factory=Counter)

    def add(self, pod: Pod, node: str) -> None:
        """Put a pod on a node, in place of one of its name; nothing where there is no such node."""
        place = self.nodes.get(node)
        if place is None:
            return
        self.remove(pod.namespace, pod.name, node)
        place.pods[pod.namespace, pod.name] = pod
        for name, amount in pod.requests.items():
            place.used[name] = place.used.get(name, 0) + amount
        self._settled(pod, node)

    def remove(self, namespace: str, name: str, node: str) -> None:
        """Take a pod off a node; nothing where it is not there."""
        place = self.nodes.get(node)
        pod = place.pods.pop((namespace, name), None) if place else None
        if place is None or pod is None:
            return
        for resource, amount in pod.requests.items():
            place.used[resource] -= amount
        self._left(pod, node)

    def forget(self, node: str) -> Node | None:
        """Take a node away with the pods on it; give it, None where there is none."""
        place = self.nodes.pop(node, None)
        for pod in place.pods.values() if place else ():
            self._left(pod, node)
        return place

    def copy(self) -> Self:
        """Return one that pods may be added to."""
        return replace(
            self,
            nodes={name: node.copy() for name, node in self.nodes.items()},
            guarded={
                space: {alike: Guard(one.terms, one.nodes.copy()) for alike, one in guards.items()}
                for space, guards in self.guarded.items()
            },
            population=self.population.copy(),
        )

    def _settled(self, pod: Pod, node: str) -> None:
        """Count a pod that is on a node from now on."""
        self.population[pod.namespace] += 1
        if pod.apart:
            guards = self.guarded.setdefault(pod.namespace, {})
            guards.setdefault(pod.guard, Guard(pod.apart, Counter())).nodes[node] += 1

    def _left(self, pod: Pod, node: str) -> None:
        """Count a pod no more."""
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


Judge = Callable[[Node], tuple[str, ...]]
"""Gives the reasons why a node does not do, in the kube-scheduler's words; () where it does."""


def no_detail(_node: Node) -> str:
    """Add nothing."""
    return ""


class Prepared(NamedTuple):
    """How nodes are judged for one pod; `detail` says of a node that does not do what a person would ask next."""

    judge: Judge
    detail: Callable[[Node], str] = no_detail


class Nowhere(NamedTuple):
    """Why no node would do, whatever it is like."""

    reason: str


class Check(NamedTuple):
    """One check by its name. `prepare` gives None where the pod asks for nothing that it guards."""

    name: str
    prepare: Callable[[Pod, Snapshot], Prepared | Nowhere | None]


def failing(reason: str, *nodes: str) -> Prepared:
    """Judge by the name: these nodes do not do."""
    names, said = frozenset(nodes), (reason,)
    return Prepared(lambda node: said if node.name in names else ())
