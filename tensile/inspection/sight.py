"""What was seen of one cluster at one moment, as far as it says where pods can run; it can be kept in a file.

Of pods only what placement looks at is kept: their environment, commands and annotations are nobody's business here,
and a snapshot is handed around.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from tensile.names import UPPER_UID
from tensile.objects import (
    ATTACHMENT,
    CLAIM,
    CSI_CAPACITY,
    CSI_DRIVER,
    CSI_NODE,
    NAMESPACE,
    NODE,
    POD,
    QUOTA,
    STORAGE_CLASS,
    VOLUME,
    Kind,
    Manifest,
    metadata,
)
from tensile.policy.placing.reading import snapshot_of, storage_of
from tensile.policy.placing.snapshot import Snapshot

KINDS = (
    NODE,
    POD,
    NAMESPACE,
    QUOTA,
    CLAIM,
    VOLUME,
    STORAGE_CLASS,
    CSI_NODE,
    CSI_DRIVER,
    CSI_CAPACITY,
    ATTACHMENT,
)
NEEDED = (NODE, POD)
"""Without these nothing can be said; what cannot be read of the others is told, and taken not to be there."""
_META = (
    "name",
    "namespace",
    "uid",
    "labels",
    "creationTimestamp",
    "deletionTimestamp",
    "ownerReferences",
)
_NOTES = (
    UPPER_UID,
    "pv.kubernetes.io/bind-completed",
    "volume.kubernetes.io/selected-node",
    "volume.beta.kubernetes.io/storage-class",
)
_POD = (
    "nodeName",
    "nodeSelector",
    "affinity",
    "tolerations",
    "topologySpreadConstraints",
    "overhead",
    "resources",
    "schedulerName",
)
_CONTAINER = ("name", "resources", "ports", "restartPolicy")
_VOLUMES = ("persistentVolumeClaim", "ephemeral", "gcePersistentDisk", "awsElasticBlockStore", "iscsi", "rbd")
_POD_STATUS = ("phase", "containerStatuses", "initContainerStatuses", "resources", "allocatedResources", "conditions")
_STATUS_OF_CONTAINER = ("name", "resources", "allocatedResources")
_LISTED = {
    "containerStatuses": _STATUS_OF_CONTAINER,
    "initContainerStatuses": _STATUS_OF_CONTAINER,
    "conditions": ("type", "status", "reason"),
}


class Sight(msgspec.Struct, forbid_unknown_fields=True):
    """One cluster: its objects by the kind's plural, and why nothing is known of it ("" where something is).

    `unread` names what could not be read.
    """

    name: str
    objects: dict[str, list[dict[str, Any]]] = {}
    trouble: str = ""
    unread: list[str] = []

    def all(self, kind: Kind) -> list[Manifest]:
        """Give the objects of a kind."""
        return self.objects.get(kind.plural, [])

    def snapshot(self, without: str = "", more_claims: tuple[Manifest, ...] = ()) -> Snapshot:
        """Give it in the form that placement asks, without the pod of a UID, and with claims that are yet to come."""
        pods = (one for one in self.all(POD) if not without or metadata(one).get("uid") != without)
        return snapshot_of(
            self.all(NODE),
            pods,
            self.all(NAMESPACE),
            storage_of(
                claims=[*more_claims, *self.all(CLAIM)],
                volumes=self.all(VOLUME),
                classes=self.all(STORAGE_CLASS),
                csi_nodes=self.all(CSI_NODE),
                attachments=self.all(ATTACHMENT),
                drivers=self.all(CSI_DRIVER),
                capacities=self.all(CSI_CAPACITY),
            ),
        )


def kept(kind: Kind, manifest: Manifest) -> Manifest:
    """Give what is kept of an object."""
    meta = _some(metadata(manifest), _META)
    notes = _some(metadata(manifest).get("annotations") or {}, _NOTES)
    rest = {name: value for name, value in manifest.items() if name not in ("metadata", "apiVersion", "kind")}
    if kind == POD:
        rest = {"spec": _spec(manifest["spec"]), "status": _status(manifest.get("status") or {})}
    if kind == NODE:
        rest["status"] = _some(manifest.get("status") or {}, ("allocatable", "conditions"))
    return {"metadata": meta | ({"annotations": notes} if notes else {}), **rest}


def _spec(spec: Manifest) -> Manifest:
    lists = {
        "containers": [_some(one, _CONTAINER) for one in spec["containers"]],
        "initContainers": [_some(one, _CONTAINER) for one in spec.get("initContainers") or ()],
        "volumes": [_some(one, ("name", *_VOLUMES)) for one in spec.get("volumes") or () if one.keys() & set(_VOLUMES)],
    }
    return _some(spec, _POD) | {name: value for name, value in lists.items() if value}


def _status(status: Manifest) -> Manifest:
    found = _some(status, _POD_STATUS)
    for name, fields in _LISTED.items():
        if found.get(name):
            found[name] = [_some(one, fields) for one in found[name]]
    return found


def _some(manifest: Mapping[str, Any], names: tuple[str, ...]) -> Manifest:
    return {name: manifest[name] for name in names if name in manifest}
