"""Lower clusters whose nodes and pods the scheduler extender tracks."""

from typing import TYPE_CHECKING, Any

from worldkit import (
    A,
    B,
    add_namespace,
    add_virtual_node,
    change_as_other_client,
    make_lower_node,
    make_object,
    make_upper_pod,
    make_world,
    put,
    stored_bytes,
    with_owner_marks,
)

from tensile.kube.store import Cache
from tensile.objects import Manifest
from tensile.policy.extender.extender import SchedulerExtender
from tensile.policy.extender.preemption_controller import PreemptResponder
from tensile.policy.extender.tracker import ClusterTracker, PodProjector
from tensile.policy.extender.victim_selection import VirtualNodeView

if TYPE_CHECKING:
    from tensile.reconcile.world import LowerWorld, World

TOLERANT = [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}]
ON = "extender: {enabled: true}\n"


def upper_pod_requesting(
    name: str = "web", cpu: str = "3", node: str = "", spec: Manifest | None = None, **meta: Any
) -> Manifest:
    """Make an upper pod that requests this much cpu; `node` is its virtual node, "" if it is unbound."""
    container = {"name": "main", "image": "app:1", "resources": {"requests": {"cpu": cpu}}}
    whole = {"containers": [container], "tolerations": TOLERANT, **(spec or {})}
    made = make_upper_pod(name, whole, **meta)
    made["spec"].pop("nodeName", None)
    return {**made, "spec": made["spec"] | ({"nodeName": node} if node else {})}


def foreign_lower_pod(name: str, node: str, cpu: str, phase: str = "Running") -> Manifest:
    """Make a lower pod that tensile does not own."""
    container = {"name": "main", "resources": {"requests": {"cpu": cpu}}}
    return {
        **make_object("Pod", name),
        "spec": {"nodeName": node, "containers": [container]},
        "status": {"phase": phase},
    }


def remove_digest(cache: Cache, manifest: Manifest) -> None:
    """Remove an object from a cache that keeps only a digest of it."""
    cache.remove(stored_bytes(manifest, cache.version + 1))


def being_deleted(pod: Manifest) -> Manifest:
    """Return a pod as it is while it is deleted."""
    return {**pod, "metadata": {**pod["metadata"], "deletionTimestamp": "2026-03-01T12:00:00Z"}}


class RecordingProjector(PodProjector):
    """A projector that records which bound pods were projected."""

    projected: list[str]

    def __init__(self, world: "World", lower: "LowerWorld") -> None:
        super().__init__(world, lower)
        self.projected = []

    def project(self, upper_pod: Manifest) -> Manifest | None:
        """Record the name of a bound pod, and project the pod."""
        if "nodeName" in upper_pod["spec"]:
            self.projected.append(upper_pod["metadata"]["name"])
        return super().project(upper_pod)


class TrackedLowers:
    """Two tracked lowers, with nodes of so many cpus each, and an extender for both."""

    def __init__(self, *cpus: tuple[str, ...], **given: Any) -> None:
        self.world: World = make_world(more=ON, **given)
        for lower, sizes in zip(self.world.lowers, cpus or (("4",), ("4",)), strict=True):
            add_namespace(self.world, lower)
            add_virtual_node(self.world, lower)
            self.nodes(lower, *(make_lower_node(f"n{place}", cpu) for place, cpu in enumerate(sizes, 1)))
        self.prospects = {name: RecordingProjector(self.world, lower) for name, lower in self.world.lowers.items()}
        self.surveys = {
            name: ClusterTracker(self.world, lower, self.prospects[name], self.release_reservations)
            for name, lower in self.world.lowers.items()
        }
        self.extender = SchedulerExtender({survey.lower.node: survey.site for survey in self.surveys.values()})

    def release_reservations(self, survey: ClusterTracker, pod: Any) -> None:
        """Release what other lowers have reserved."""
        for other in self.surveys.values():
            if other is not survey:
                other.release(pod)

    def nodes(self, lower: str, *nodes: Manifest) -> None:
        """Put nodes into the caches of a lower."""
        put(self.world.lowers[lower].nodes, *nodes)
        put(self.world.lowers[lower].place_nodes, *nodes)

    def feasible_nodes(self, pod: Manifest, now: float = 0.0) -> list[str]:
        """Return the virtual nodes that the extender's filter allows for a pod."""
        names: list[str] = self.extender.filter({"Pod": pod, "NodeNames": [A, B]}, now)["NodeNames"]
        return names

    def bind(self, pod: Manifest, lower: str) -> Manifest:
        """Put a pod that was bound to a virtual node into its cache."""
        bound: Manifest = {**pod, "spec": {**pod["spec"], "nodeName": lower}}
        put(self.world.lowers[lower].upper_pods, bound)
        return bound

    def add_lower_pod(self, pod: Manifest, lower: str, node: str, phase: str = "Pending") -> None:
        """Put the lower pod, bound to a node, into its cache."""
        lower_object = PodProjector(self.world, self.world.lowers[lower]).project(pod)
        assert lower_object is not None
        copy = with_owner_marks({**lower_object, "status": {"phase": phase}}, pod["metadata"]["uid"])
        meta = {**copy["metadata"], "uid": f"below-{pod['metadata']['uid']}"}
        put(self.world.lowers[lower].pods, {**copy, "metadata": meta, "spec": {**copy["spec"], "nodeName": node}})

    def used_cpus(self, lower: str, node: str = "n1") -> float:
        """Return how many cpus of a node are used or promised."""
        return self.surveys[lower].cache.snapshot.nodes[node].used.get("cpu", 0) / 1000


class AllocatableLowers(TrackedLowers):
    """Lowers whose virtual nodes have an allocatable."""

    def __init__(self, *cpus: tuple[str, ...], **given: Any) -> None:
        super().__init__(*cpus, **given)
        for lower in (A, B):
            change_as_other_client(self.world.upper.nodes, lower, self.set_allocatable, "")

    @staticmethod
    def set_allocatable(node: Manifest) -> None:
        """Set the allocatable of a virtual node."""
        node["status"] = {"allocatable": {"cpu": "8", "memory": "8Gi", "pods": "20"}}

    @property
    def view(self) -> VirtualNodeView:
        """The view of the first lower's virtual node."""
        found = self.surveys[A].site.virtual_node()
        assert found is not None
        return found

    def add_running_pod(self, name: str, cpu: str, node: str, priority: int = 0) -> Manifest:
        """Run a mirrored pod on a node of the first lower."""
        pod = self.bind(upper_pod_requesting(name, cpu, spec={"priority": priority}), A)
        self.add_lower_pod(pod, A, node)
        return pod

    def victims(self, wanted: Manifest) -> list[str]:
        """Return the extender's victims on the first virtual node, for which the scheduler offers one victim."""
        offered = {"Pod": wanted, "NodeNameToMetaVictims": {A: {"Pods": [{"UID": "any"}]}}}
        *_, answer = PreemptResponder(self.extender).answer(offered, (), 0.0)
        found = answer["NodeNameToMetaVictims"].get(A)
        return [one["UID"] for one in found["Pods"]] if found else []
