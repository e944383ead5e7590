"""Shared parts of the preemption tests: a virtual node with pods on the real nodes behind it, and a preemptor."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from placekit import node, pod, spec_requesting

from tensile.policy.extender.extender import LowerCandidate, SchedulerExtender, unbound_pod
from tensile.policy.extender.node_cache import NodeCache, NodeFinder, Nominee
from tensile.policy.extender.victim_selection import (
    Budget,
    NodeVictims,
    Preemptor,
    Residents,
    VirtualNodeView,
    budget_of,
    choices,
)
from tensile.policy.placement.snapshot import node_of, pod_of

Manifest = dict[str, Any]
HOST = "kubernetes.io/hostname"
PORT = {"ports": [{"containerPort": 80, "hostPort": 80}]}
APART = {
    "affinity": {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "lone"}}}
            ]
        }
    }
}


def pending_pod(name: str = "comer", cpu: str = "2", priority: int = 100, **more: Any) -> Manifest:
    """Make an upper pod with this cpu and priority; `more` is added to its spec, `ports` to its container."""
    ports = {"ports": more.pop("ports")} if "ports" in more else {}
    spec = {"containers": [{**spec_requesting(cpu=cpu)["containers"][0], **ports}], "priority": priority, **more}
    return pod(name, spec, uid=f"uid-{name}")


class ExistingPod(NamedTuple):
    """A pod that exists: its real node, and its properties; one with `is_mirrored` false is a foreign lower pod."""

    name: str
    node: str
    cpu: str = "1"
    priority: int = 0
    app: str = ""
    is_mirrored: bool = True
    started: str = "2030-01-01T00:00:00Z"
    is_terminating: bool = False
    has_host_port: bool = False

    def upper_pod(self, virtual: str) -> Manifest:
        """Make the upper pod."""
        made = pending_pod(self.name, self.cpu, self.priority, **(PORT if self.has_host_port else {}))
        made["spec"]["nodeName"] = virtual
        made["status"] = {"startTime": self.started}
        made["metadata"] |= {"labels": {"app": self.app}} if self.app else {}
        made["metadata"] |= {"deletionTimestamp": self.started} if self.is_terminating else {}
        return made

    def lower_pod(self) -> Manifest:
        """Make the lower pod."""
        made = self.upper_pod(self.node)
        return {**made, "metadata": {**made["metadata"], "uid": f"copy-{self.name}"}}


class VirtualNodeFixture:
    """A virtual node of 100 cpu, unless `allocatable_cpu` is less, with real nodes of these cpus and pods on them."""

    def __init__(
        self, node_cpus: Mapping[str, str], *pods: ExistingPod, name: str = "v", allocatable_cpu: str = "100"
    ) -> None:
        self.name = name
        self.node_cache, self.residents = NodeCache(), Residents()
        self.virtual = node_of(node(name, cpu=allocatable_cpu, pods="100"))
        for each, cpu in node_cpus.items():
            self.node_cache.put_node(node_of(node(each, cpu=cpu)))
        self.lower_uids: dict[tuple[str, str], str] = {}
        for one in pods:
            self.add_pod(one)
        self.candidate = LowerCandidate(
            lambda manifest: manifest,
            self.node_cache,
            NodeFinder(self.node_cache),
            lambda: True,
            residents=self.residents,
            virtual_node=self.view,
        )

    def add_pod(self, one: ExistingPod) -> None:
        """Add one more pod; one without a lower node is unscheduled."""
        if one.node:
            self.node_cache.put_pod(pod_of(one.lower_pod(), settled=True))
        if one.is_mirrored:
            self.residents.put(("default", one.name), one.upper_pod(self.name))
            self.lower_uids["default", one.name] = f"copy-{one.name}"

    def view(self) -> VirtualNodeView:
        """Return the view of the virtual node."""
        here, copies = self.residents, self.lower_uids
        return VirtualNodeView(
            self.virtual, here.pods, here.used, lambda name: copies.get(name, ""), lambda _: True, lambda _: {}
        )

    def preemptor(self, wanted: Manifest) -> Preemptor:
        """Return the preemptor of a pod."""
        return Preemptor(unbound_pod(wanted), unbound_pod(wanted), wanted["spec"]["priority"])

    def choices(self, wanted: Manifest, *budgets: Budget) -> list[NodeVictims]:
        """Return the possible nodes, each with its victims."""
        found: Iterator[NodeVictims | None] = choices(self.preemptor(wanted), self.node_cache, self.view(), budgets)
        return [one for one in found if one is not None]

    def best_node(self, wanted: Manifest, *budgets: Budget) -> tuple[str, list[str]]:
        """Return the best node and its victims; "" and none if no choice is possible."""
        before = self.pods_by_node()
        found = min(self.choices(wanted, *budgets), key=lambda one: one.cost, default=None)
        assert self.pods_by_node() == before
        return (found.node, [one.pod.name for one in found.victims]) if found else ("", [])

    def nominate(self, name: str, on: str, cpu: str, priority: int, *victims: str) -> None:
        """Reserve capacity for a nominee."""
        wanted = pending_pod(name, cpu, priority)
        nominee = Nominee(f"uid-{name}", priority, frozenset(("default", victim) for victim in victims))
        self.node_cache.assume(unbound_pod(wanted), on, 0.0, nominee)

    def pods_by_node(self) -> dict[str, list[str]]:
        """Return the pods by real node."""
        return {each.name: sorted(name for _, name in each.pods) for each in self.node_cache.snapshot.nodes.values()}


def extender(*sites: VirtualNodeFixture) -> SchedulerExtender:
    """Make an extender for some virtual nodes."""
    return SchedulerExtender({one.name: one.candidate for one in sites})


def budget(app: str, allowed: int, **status: Any) -> Budget:
    """Make a disruption budget that allows so many disruptions."""
    spec = {"selector": {"matchLabels": {"app": app}}}
    meta = {"name": app, "namespace": "default"}
    return budget_of({"metadata": meta, "spec": spec, "status": {"disruptionsAllowed": allowed, **status}})
