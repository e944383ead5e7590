"""Generic ephemeral volumes: claims that a pod brings with it, which each cluster makes for itself.

The lower cluster makes its own claim for the lower pod and takes it away with it; a copy of the upper one would not
belong to that pod, and Kubernetes refuses such. What has to change is the storage class, by the name that it has below.
"""

from typing import Any

from tensile.kubelet.place import Placement
from tensile.objects import Manifest


def with_lower_classes(spec: Manifest, place: Placement) -> Manifest:
    """Give a pod's spec with the lower names of storage classes; itself where that changes nothing."""
    volumes: list[Manifest] = spec.get("volumes") or []
    found = [_volume(volume, place) for volume in volumes]
    return spec if found == volumes else {**spec, "volumes": found}


def _volume(volume: Manifest, place: Placement) -> Manifest:
    template: dict[str, Any] = (volume.get("ephemeral") or {}).get("volumeClaimTemplate") or {}
    name = (template.get("spec") or {}).get("storageClassName")
    if name is None or name not in place.storage_classes:
        return volume
    claim = {**template["spec"], "storageClassName": place.storage_classes[name]}
    return {**volume, "ephemeral": {**volume["ephemeral"], "volumeClaimTemplate": {**template, "spec": claim}}}
