"""Shared parts of the placement tests: small nodes and pods as the API returns them, and views of the results."""

from typing import Any

from tensile.policy.placement.placement import FitResult, examine
from tensile.policy.placement.snapshot import Snapshot, Storage, pod_of, snapshot_of, storage_of

Manifest = dict[str, Any]
ROOM = {"cpu": "4", "memory": "8Gi", "pods": "10"}
ZONE = "topology.kubernetes.io/zone"


def node(name: str, *, labels: dict[str, str] | None = None, spec: Manifest | None = None, **room: str) -> Manifest:
    """Make a node whose hostname label is its name; `room` adds to its allocatable."""
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": spec or {},
        "status": {"allocatable": ROOM | room, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def pod(name: str = "web", spec: Manifest | None = None, *, on: str = "", **meta: Any) -> Manifest:
    """Make a pod of namespace default with one container that requests nothing; `on` is its node."""
    base: Manifest = {"containers": [{"name": "main", "image": "app"}]} | ({"nodeName": on} if on else {})
    return {"metadata": {"name": name, "namespace": "default", **meta}, "spec": base | (spec or {})}


def spec_requesting(**requests: str) -> Manifest:
    """Make the spec of a pod with these requests."""
    return {"containers": [{"name": "main", "resources": {"requests": requests}}]}


def examine_placement(
    wanted: Manifest,
    nodes: list[Manifest],
    pods: list[Manifest] | None = None,
    spaces: list[Manifest] | None = None,
    storage: Storage | None = None,
) -> FitResult:
    """Return where a pod fits among these nodes."""
    return examine(pod_of(wanted), make_snapshot(nodes, pods, spaces, storage))


def make_snapshot(
    nodes: list[Manifest],
    pods: list[Manifest] | None = None,
    spaces: list[Manifest] | None = None,
    storage: Storage | None = None,
) -> Snapshot:
    """Make a snapshot; namespace default exists unless others are given."""
    return snapshot_of(nodes, pods or [], spaces or [make_namespace("default")], storage)


def make_namespace(name: str, **labels: str) -> Manifest:
    """Make a namespace."""
    return {"metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name, **labels}}}


def reasons(found: FitResult) -> dict[str, tuple[str, ...]]:
    """Return the reasons by node."""
    return {name: refusal.reasons for name, refusal in found.refused.items()}


def checks(found: FitResult) -> dict[str, str]:
    """Return the check that fails by node."""
    return {name: refusal.check for name, refusal in found.refused.items()}


def claim(name: str = "data", **spec: Any) -> Manifest:
    """Make a claim of a gibibyte; with a volumeName it is bound."""
    notes = {"pv.kubernetes.io/bind-completed": "yes"} if "volumeName" in spec else {}
    base = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": name, "namespace": "default", "annotations": notes}, "spec": base | spec}


def volume(name: str = "pv", phase: str = "Available", labels: dict[str, str] | None = None, **spec: Any) -> Manifest:
    """Make a volume of a gibibyte."""
    base = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": base | spec, "status": {"phase": phase}}


def make_storage_class(name: str = "later", provisioner: str = "csi.example.com", **fields: Any) -> Manifest:
    """Make a storage class that waits for the first consumer."""
    made = {"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}
    return made | fields


def on_hosts(*names: str) -> Manifest:
    """Make the node affinity of a volume that is on these hosts."""
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(names)}
    return {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}


def spec_with_claims(*names: str) -> Manifest:
    """Make the spec of a pod that uses these claims."""
    mounted = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names]
    return {"volumes": mounted}


def make_storage(**lists: list[Manifest]) -> Storage:
    """Make the storage of a cluster."""
    return storage_of(**lists)
