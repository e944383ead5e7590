"""Shared parts of the descheduler tests: lowers with nodes, waiting lower pods, and foreign pods that use capacity."""

from datetime import timedelta
from typing import Any

from worldkit import (
    NOW,
    A,
    B,
    add_namespace,
    add_virtual_node,
    make_lower_node,
    make_lower_pod,
    make_object,
    make_upper_pod,
    make_world,
    put,
)

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


def unschedulable_status(seconds: float = 180.0, reason: str = "Unschedulable") -> Manifest:
    """Make the status of a pod that the scheduler found no node for, so many seconds ago."""
    since = timestamp(NOW - timedelta(seconds=seconds))
    return {"conditions": [{"type": "PodScheduled", "status": "False", "reason": reason, "lastTransitionTime": since}]}


def requesting_pod(
    name: str = "web", node: str = A, cpu: str = "3", spec: Manifest | None = None, **meta: Any
) -> Manifest:
    """Make an upper pod that requests this much cpu, of a ReplicaSet with the pod's name."""
    container = {"name": "main", "image": "app:1", "resources": {"requests": {"cpu": cpu}}}
    whole = {"nodeName": node, "containers": [container], "tolerations": TOLERANT, **(spec or {})}
    return make_upper_pod(name, whole, **{"ownerReferences": owned_by(name), **meta})


def foreign_pod(name: str, node: str, cpu: str) -> Manifest:
    """Make a lower pod that tensile does not own, on a node."""
    container = {"name": "main", "resources": {"requests": {"cpu": cpu}}}
    return {**make_object("Pod", name), "spec": {"nodeName": node, "containers": [container]}, "status": {}}


def put_foreign_pods(world: World, lower: str, *pods: Manifest) -> None:
    """Put foreign pods into the caches of a lower."""
    put(world.lowers[lower].foreign_pods, *pods)
    put(world.lowers[lower].place_pods, *pods)


def put_waiting_pods(world: World, *pods: Manifest, status: Manifest | None = None) -> None:
    """Put pods and their lower pods into the lower of their node, unscheduled for three minutes."""
    for pod in pods:
        lower = world.lowers[pod["spec"]["nodeName"]]
        put(lower.upper_pods, pod)
        put(lower.pods, make_lower_pod(pod, status or unschedulable_status(), node=lower.node))


def descheduling_world(
    *lowers: str, more: str = ON, cpus: tuple[tuple[str, ...], ...] = (("2", "2"), ("4",)), now: Any = NOW
) -> World:
    """Make a world whose lowers have nodes with these cpus; by default a pod of 3 cpus fits lower-b only."""
    world = make_world(*lowers, more=more, now=now)
    for lower, sizes in zip(world.lowers, cpus, strict=True):
        nodes = [make_lower_node(f"{lower}-n{place}", cpu) for place, cpu in enumerate(sizes, 1)]
        put(world.lowers[lower].nodes, *nodes)
        put(world.lowers[lower].place_nodes, *nodes)
        add_namespace(world, lower)
        add_virtual_node(world, lower)
    return world


def put_eviction_records(world: World, *notes: EvictionRecord, lower: str = A) -> None:
    """Store eviction records on the virtual node of a lower."""
    entry = world.upper.nodes.get("", world.lowers[lower].node)
    assert entry is not None
    node = entry.manifest()
    marks = {**annotations(node), TRIED: encode_records(notes)}
    put(world.upper.nodes, {**node, "metadata": {**node["metadata"], "annotations": marks}})


def eviction_record(
    pod: str = "Pod-web", owner: str = "web", ago: float = 0.0, nodes: tuple[str, ...] = (A,)
) -> EvictionRecord:
    """Make the record of a pod that was evicted so many seconds ago."""
    return EvictionRecord(owner, pod, NOW - timedelta(seconds=ago), nodes)


def eviction_records_in(patch: Patch | None) -> list[EvictionRecord]:
    """Parse the eviction records that a patch writes."""
    assert patch is not None
    return eviction_records(patch.body)


__all__ = ["NOW", "A", "B"]
