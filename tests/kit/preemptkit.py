"""Shared parts of the preemption tests: a virtual node with pods on the real nodes behind it, and a preemptor."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from placekit import asking, node, pod

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


def wants(name: str = "comer", cpu: str = "2", priority: int = 100, **more: Any) -> Manifest:
    """Make an upper pod with this cpu and priority; `more` is added to its spec, `ports` to its container."""
    ports = {"ports": more.pop("ports")} if "ports" in more else {}
    spec = {"containers": [{**asking(cpu=cpu)["containers"][0], **ports}], "priority": priority, **more}
    return pod(name, spec, uid=f"uid-{name}")


class There(NamedTuple):
    """A pod that exists: its real node, and its properties; one with `ours` false is a foreign lower pod."""

    name: str
    node: str
    cpu: str = "1"
    priority: int = 0
    app: str = ""
    ours: bool = True
    started: str = "2030-01-01T00:00:00Z"
    ending: bool = False
    port: bool = False

    def above(self, virtual: str) -> Manifest:
        """Make the upper pod."""
        made = wants(self.name, self.cpu, self.priority, **(PORT if self.port else {}))
        made["spec"]["nodeName"] = virtual
        made["status"] = {"startTime": self.started}
        made["metadata"] |= {"labels": {"app": self.app}} if self.app else {}
        made["metadata"] |= {"deletionTimestamp": self.started} if self.ending else {}
        return made

    def below(self) -> Manifest:
        """Make the lower pod."""
        made = self.above(self.node)
        return {**made, "metadata": {**made["metadata"], "uid": f"copy-{self.name}"}}


class Behind:
    """A virtual node of 100 cpu, unless `offered` is less, with real nodes of these cpus and pods on them."""

    def __init__(self, sizes: Mapping[str, str], *pods: There, name: str = "v", offered: str = "100") -> None:
        self.name = name
        self.ground, self.residents = NodeCache(), Residents()
        self.virtual = node_of(node(name, cpu=offered, pods="100"))
        for each, cpu in sizes.items():
            self.ground.put_node(node_of(node(each, cpu=cpu)))
        self.copies: dict[tuple[str, str], str] = {}
        for one in pods:
            self.put(one)
        self.site = LowerCandidate(
            lambda manifest: manifest,
            self.ground,
            NodeFinder(self.ground),
            lambda: True,
            residents=self.residents,
            virtual_node=self.above,
        )

    def put(self, one: There) -> None:
        """Add one more pod; one without a lower node is unscheduled."""
        if one.node:
            self.ground.put_pod(pod_of(one.below(), settled=True))
        if one.ours:
            self.residents.put(("default", one.name), one.above(self.name))
            self.copies["default", one.name] = f"copy-{one.name}"

    def above(self) -> VirtualNodeView:
        """Return the view of the virtual node."""
        here, copies = self.residents, self.copies
        return VirtualNodeView(
            self.virtual, here.pods, here.used, lambda name: copies.get(name, ""), lambda _: True, lambda _: {}
        )

    def wish(self, wanted: Manifest) -> Preemptor:
        """Return the preemptor of a pod."""
        return Preemptor(unbound_pod(wanted), unbound_pod(wanted), wanted["spec"]["priority"])

    def choices(self, wanted: Manifest, *budgets: Budget) -> list[NodeVictims]:
        """Return the possible nodes, each with its victims."""
        found: Iterator[NodeVictims | None] = choices(self.wish(wanted), self.ground, self.above(), budgets)
        return [one for one in found if one is not None]

    def chosen(self, wanted: Manifest, *budgets: Budget) -> tuple[str, list[str]]:
        """Return the best node and its victims; "" and none if no choice is possible."""
        before = self.seats()
        found = min(self.choices(wanted, *budgets), key=lambda one: one.cost, default=None)
        assert self.seats() == before
        return (found.node, [one.pod.name for one in found.victims]) if found else ("", [])

    def nominate(self, name: str, on: str, cpu: str, priority: int, *victims: str) -> None:
        """Reserve capacity for a nominee."""
        wanted = wants(name, cpu, priority)
        nominee = Nominee(f"uid-{name}", priority, frozenset(("default", victim) for victim in victims))
        self.ground.assume(unbound_pod(wanted), on, 0.0, nominee)

    def seats(self) -> dict[str, list[str]]:
        """Return the pods by real node."""
        return {each.name: sorted(name for _, name in each.pods) for each in self.ground.snapshot.nodes.values()}


def extender(*sites: Behind) -> SchedulerExtender:
    """Make an extender for some virtual nodes."""
    return SchedulerExtender({one.name: one.site for one in sites})


def budget(app: str, allowed: int, **status: Any) -> Budget:
    """Make a disruption budget that allows so many disruptions."""
    spec = {"selector": {"matchLabels": {"app": app}}}
    meta = {"name": app, "namespace": "default"}
    return budget_of({"metadata": meta, "spec": spec, "status": {"disruptionsAllowed": allowed, **status}})
