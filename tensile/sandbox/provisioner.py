"""Decides what a provisioner of volumes has to do: create, expand and delete them, as a storage driver's would.

A volume is a folder of the sandbox that only the chosen node can use. Simulated nodes mount nothing and leave it empty;
a real node creates it when the first pod mounts it.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tensile.objects import Manifest, annotations, metadata, uid
from tensile.sandbox.apiserver import LOWER_PROVISIONER, STORAGE_CLASS

CLAIMS, VOLUMES = "/api/v1/persistentvolumeclaims", "/api/v1/persistentvolumes"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
STORAGE_PROVISIONER = "volume.kubernetes.io/storage-provisioner"


class VolumeRequest(NamedTuple):
    """A request to the apiserver; `body` is a merge patch for PATCH, None for DELETE."""

    method: str
    path: str
    body: Manifest | None = None


def requests(claims: Iterable[Manifest], volumes: Iterable[Manifest], folder: str) -> Iterator[VolumeRequest]:
    """Yield what claims and volumes need; nothing when all is done.

    Args:
        claims: all PersistentVolumeClaims of a cluster.
        volumes: all its PersistentVolumes.
        folder: the absolute path of the folder for the contents of volumes.
    """
    ours = {metadata(one)["name"]: one for one in volumes if annotations(one).get(PROVISIONED_BY) == LOWER_PROVISIONER}
    for claim in claims:
        name = claim["spec"].get("volumeName", "")
        if not name and is_waiting(claim) and volume_name(claim) not in ours:
            yield VolumeRequest("POST", VOLUMES, volume(claim, folder))
        elif name in ours and claim.get("status", {}).get("phase") == "Bound":
            yield from _expansion(claim, ours[name])
    for name, one in ours.items():
        if _is_released(one):
            yield VolumeRequest("DELETE", f"{VOLUMES}/{name}")


def is_waiting(claim: Manifest) -> bool:
    """Report whether Kubernetes asks this provisioner for a volume, and the scheduler has chosen a node."""
    notes = annotations(claim)
    deleted = "deletionTimestamp" in metadata(claim)
    return notes.get(STORAGE_PROVISIONER) == LOWER_PROVISIONER and SELECTED_NODE in notes and not deleted


def volume_name(claim: Manifest) -> str:
    """Return the name of a claim's volume, which differs from that of a deleted claim of the same name."""
    return f"pvc-{uid(claim)}"


def volume(claim: Manifest, folder: str) -> Manifest:
    """Return the volume for a claim, which only the node that the scheduler chose can use."""
    meta, spec = metadata(claim), claim["spec"]
    name = volume_name(claim)
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [annotations(claim)[SELECTED_NODE]]}
    holder = {field: meta[field] for field in ("namespace", "name", "uid")}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": {PROVISIONED_BY: LOWER_PROVISIONER}},
        "spec": {
            "capacity": {"storage": _size(spec)},
            "accessModes": spec["accessModes"],
            "volumeMode": spec.get("volumeMode", "Filesystem"),
            "storageClassName": spec.get("storageClassName", STORAGE_CLASS),
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **holder},
            "hostPath": {"path": f"{folder}/{name}", "type": "DirectoryOrCreate"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        },
    }


def _expansion(claim: Manifest, found: Manifest) -> Iterator[VolumeRequest]:
    """Yield what makes a volume as large as its claim requests; Kubernetes refuses requests for less."""
    wanted = {"storage": _size(claim["spec"])}
    if found["spec"]["capacity"] != wanted:
        yield VolumeRequest("PATCH", f"{VOLUMES}/{metadata(found)['name']}", {"spec": {"capacity": wanted}})
    if claim["status"].get("capacity") != wanted:
        meta = metadata(claim)
        path = f"/api/v1/namespaces/{meta['namespace']}/persistentvolumeclaims/{meta['name']}/status"
        yield VolumeRequest("PATCH", path, {"status": {"capacity": wanted}})


def _is_released(one: Manifest) -> bool:
    """Report whether a volume has to be deleted, and is not yet."""
    policy = one["spec"].get("persistentVolumeReclaimPolicy")
    is_deleted = "deletionTimestamp" in metadata(one)
    return one.get("status", {}).get("phase") == "Released" and policy == "Delete" and not is_deleted


def _size(spec: Mapping[str, Manifest]) -> str:
    """Return the requested size."""
    return str(spec["resources"]["requests"]["storage"])
