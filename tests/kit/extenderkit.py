"""Node caches for the scheduler extender: made of given nodes, or changed at random."""

from random import Random
from typing import Any

from placekit import make_snapshot, node, pod, spec_requesting

from tensile.policy.extender.extender import LowerCandidate, SchedulerExtender
from tensile.policy.extender.node_cache import NodeCache, NodeFinder
from tensile.policy.placement.snapshot import Snapshot, node_of, pod_of

NAMES = ("a", "b", "c")
HOST = "kubernetes.io/hostname"


def node_cache(*nodes: dict[str, Any]) -> NodeCache:
    """Make a node cache of nodes."""
    made = NodeCache()
    for one in nodes:
        made.put_node(node_of(one))
    return made


def anti_affinity_spec() -> dict[str, Any]:
    """Make the spec of a pod with required anti-affinity against other pods on its node."""
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "x"}}}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


class RandomNodeCache:
    """A sequence of random changes to a node cache, with a record of what the cache should contain."""

    def __init__(self, chance: Random) -> None:
        self.random = chance
        self.node_cache = NodeCache()
        self.nodes: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, dict[str, Any]] = {}
        self.promised: dict[str, dict[str, Any]] = {}

    def step(self) -> None:
        """Make one random change."""
        about_nodes = (self._put_node, self._remove_node)
        self.random.choice((*about_nodes, self._put_pod, self._remove_pod, self._promise, self._break))()

    def expected(self) -> Snapshot:
        """Return the expected snapshot, computed from scratch."""
        return make_snapshot(list(self.nodes.values()), [*self.pods.values(), *self.promised.values()])

    def _put_node(self) -> None:
        name = self.random.choice(NAMES)
        self.nodes[name] = node(name, cpu=str(self.random.randint(1, 4)))
        self.node_cache.put_node(node_of(self.nodes[name]))

    def _remove_node(self) -> None:
        name = self.random.choice(NAMES)
        self.nodes.pop(name, None)
        self.node_cache.remove_node(name)

    def _pod(self) -> tuple[str, dict[str, Any]]:
        name = self.random.choice("pqrs")
        spec = spec_requesting(cpu=self.random.choice(("1", "2"))) | (
            anti_affinity_spec() if self.random.random() < 0.3 else {}
        )
        return name, pod(name, spec, on=self.random.choice(NAMES), uid=str(self.random.random()))

    def _put_pod(self) -> None:
        name, made = self._pod()
        self.pods[name] = made
        promised = self.promised.pop(name, None)
        self.node_cache.put_pod(pod_of(made, settled=True))
        if promised is not None:
            self._trade(promised, made["spec"]["nodeName"])

    def _trade(self, promised: dict[str, Any], came_to: str) -> None:
        """Move the promise of an equal pod from the node where a pod was created to the node where it was expected."""
        expected = promised["spec"]["nodeName"]
        alike = [
            name
            for name, other in self.promised.items()
            if other["spec"] == {**promised["spec"], "nodeName": came_to} and came_to != expected
        ]
        moved = [name for name in alike if self.node_cache.reservations["default", name].node == expected]
        assert len(moved) == bool(alike)
        for name in moved:
            self.promised[name] = {**self.promised[name], "spec": promised["spec"]}

    def _remove_pod(self) -> None:
        name = self.random.choice("pqrs")
        self.pods.pop(name, None)
        self.node_cache.remove_pod(("default", name))

    def _promise(self) -> None:
        name, made = self._pod()
        if name not in self.pods:
            self.promised[name] = made
        self.node_cache.assume(pod_of(made), made["spec"]["nodeName"], 0.0)

    def _break(self) -> None:
        name = self.random.choice("pqrs")
        self.promised.pop(name, None)
        self.node_cache.forget(("default", name))


def make_candidate(cache: NodeCache, *, known: bool = True, ours: bool = True) -> LowerCandidate:
    """Make a candidate lower whose lower pods equal their upper pods."""
    return LowerCandidate(lambda manifest: manifest if ours else None, cache, NodeFinder(cache), lambda: known)


def extender(strategy: Any = "spread", **grounds: NodeCache) -> SchedulerExtender:
    """Make an extender for lowers by the names of their virtual nodes."""
    return SchedulerExtender({name: make_candidate(cache) for name, cache in grounds.items()}, strategy)
