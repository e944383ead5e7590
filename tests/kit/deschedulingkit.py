"""Shared parts of the descheduler tests: lowers with nodes, waiting lower pods, and foreign pods that use capacity."""

from datetime import timedelta
from typing import Any

from worldkit import NOW, A, B, home, lower_node, put, raised, thing, twin, upper_pod, world

from tensile.kube.cluster import Patch
from tensile.names import TRIED
from tensile.objects import Manifest, annotations, timestamp
from tensile.policy.descheduler.limits import EvictionRecord, encode_records, eviction_records
from tensile.reconcile.world import World

ON = "descheduler: {enabled: true, cooldown: 10m, recreateBarePods: true}\n"
DRAIN_ONLY = "descheduler: {recreateBarePods: true}\n"
TOLERANT = [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}]


def owned_by(owner: str) -> list[Manifest]:
    """Make an owner reference to a ReplicaSet with this UID."""
    return [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": owner, "controller": True}]


def refused(seconds: float = 180.0, reason: str = "Unschedulable") -> Manifest:
    """Make the status of a pod that the scheduler found no node for, so many seconds ago."""
    since = timestamp(NOW - timedelta(seconds=seconds))
    return {"conditions": [{"type": "PodScheduled", "status": "False", "reason": reason, "lastTransitionTime": since}]}


def seeker(name: str = "web", node: str = A, cpu: str = "3", spec: Manifest | None = None, **meta: Any) -> Manifest:
    """Make an upper pod that requests this much cpu, of a ReplicaSet with the pod's name."""
    container = {"name": "main", "image": "app:1", "resources": {"requests": {"cpu": cpu}}}
    whole = {"nodeName": node, "containers": [container], "tolerations": TOLERANT, **(spec or {})}
    return upper_pod(name, whole, **{"ownerReferences": owned_by(name), **meta})


def stranger(name: str, node: str, cpu: str) -> Manifest:
    """Make a lower pod that tensile does not own, on a node."""
    container = {"name": "main", "resources": {"requests": {"cpu": cpu}}}
    return {**thing("Pod", name), "spec": {"nodeName": node, "containers": [container]}, "status": {}}


def crowd(here: World, lower: str, *pods: Manifest) -> None:
    """Put foreign pods into the caches of a lower."""
    put(here.lowers[lower].foreign_pods, *pods)
    put(here.lowers[lower].place_pods, *pods)


def wait(here: World, *pods: Manifest, status: Manifest | None = None) -> None:
    """Put pods and their lower pods into the lower of their node, unscheduled for three minutes."""
    for pod in pods:
        lower = here.lowers[pod["spec"]["nodeName"]]
        put(lower.upper_pods, pod)
        put(lower.pods, twin(pod, status or refused(), node=lower.node))


def ground(
    *lowers: str, more: str = ON, cpus: tuple[tuple[str, ...], ...] = (("2", "2"), ("4",)), now: Any = NOW
) -> World:
    """Make a world whose lowers have nodes with these cpus; by default a pod of 3 cpus fits lower-b only."""
    here = world(*lowers, more=more, now=now)
    for lower, sizes in zip(here.lowers, cpus, strict=True):
        nodes = [lower_node(f"{lower}-n{place}", cpu) for place, cpu in enumerate(sizes, 1)]
        put(here.lowers[lower].nodes, *nodes)
        put(here.lowers[lower].place_nodes, *nodes)
        home(here, lower)
        raised(here, lower)
    return here


def noted(here: World, *notes: EvictionRecord, lower: str = A) -> None:
    """Store eviction records on the virtual node of a lower."""
    entry = here.upper.nodes.get("", here.lowers[lower].node)
    assert entry is not None
    node = entry.manifest()
    marks = {**annotations(node), TRIED: encode_records(notes)}
    put(here.upper.nodes, {**node, "metadata": {**node["metadata"], "annotations": marks}})


def left(pod: str = "Pod-web", owner: str = "web", ago: float = 0.0, nodes: tuple[str, ...] = (A,)) -> EvictionRecord:
    """Make the record of a pod that was evicted so many seconds ago."""
    return EvictionRecord(owner, pod, NOW - timedelta(seconds=ago), nodes)


def notes_in(patch: Patch | None) -> list[EvictionRecord]:
    """Parse the eviction records that a patch writes."""
    assert patch is not None
    return eviction_records(patch.body)


__all__ = ["NOW", "A", "B"]
