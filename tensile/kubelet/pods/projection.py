"""Project an upper pod to the lower pod: what it looks like in the cluster where it runs.

Raw JSON in, raw JSON out, by the table of verdicts; unknown fields are copied unchanged. Each rule here answers
something that a real apiserver refused or a real controller destroyed. A lower pod is controlled by its own Namespace.
Otherwise a lower ReplicaSet with a matching selector would adopt and delete it, and an upper owner reference would have
it garbage-collected.

For generic ephemeral volumes the lower cluster makes its own claim for the lower pod and deletes it with the pod. A
copy of the upper claim would not be owned by that pod, which Kubernetes refuses. Only the storage class is mapped to
its lower name.
"""

from typing import Any, NamedTuple

import orjson

from tensile.kubelet.pods.fields import SPEC, FieldVerdict, note_of_images, note_of_keys, ours_to_write, with_verdict
from tensile.kubelet.pods.scheduling import DEFAULT_SCHEDULER, LowerContext, scheduling_fields
from tensile.kubelet.pods.service_account import account_fields
from tensile.names import (
    CLUSTER_SELECTOR,
    KEPT_OFF,
    OWNER_NAME,
    REPLACES,
    SAFE_TO_EVICT,
    TRIPPED_LABELS,
    UPPER_UID,
    VIRTUAL_POD,
    WRITTEN_IMAGES,
    WRITTEN_KEYS,
    EventReason,
)
from tensile.objects import Manifest, annotations, controller_of, labels, uid
from tensile.reconcile.pods.scheduling import cluster_selector_flaw

_LEFT_OUT = with_verdict(SPEC, FieldVerdict.DROP, FieldVerdict.LATER)
_SCHEDULING = frozenset({"nodeSelector", "affinity", "tolerations", "topologySpreadConstraints"})
_ELSEWHERE = _LEFT_OUT | _SCHEDULING | {"priorityClassName", "schedulerName", "runtimeClassName"}
_TOPOLOGY_LABELS = "topology.kubernetes.io/"
_UPPER_ANNOTATIONS = frozenset(
    {
        "kubectl.kubernetes.io/last-applied-configuration",
        "kubernetes.io/limit-ranger",
        CLUSTER_SELECTOR,
        TRIPPED_LABELS,
        OWNER_NAME,
        UPPER_UID,
        KEPT_OFF,
        REPLACES,
        WRITTEN_IMAGES,
        WRITTEN_KEYS,
    }
)
_CONFIG_SOURCES = "kubernetes.io/config."
PRIORITY_DROPPED: EventReason = "PriorityClassDropped"
"""On a pod: the lower cluster does not have its priority class, so it runs there with the default priority. Remedy:
create the PriorityClass there."""
INVALID_SELECTOR: EventReason = "InvalidClusterSelector"
"""On a pod: annotation `clusterSelector` is not what the webhook writes, so the pod's own selectors are used.
Remedy: remove the annotation, and have the webhook write it."""
RESOURCE_CLAIMS: EventReason = "ResourceClaimsNotMirrored"
"""On a pod: it uses ResourceClaims, which are not mirrored. Remedy: create them in the lower cluster."""
_PRIORITY_DROPPED = (
    "the lower cluster has no PriorityClass {name!r}, so the pod runs with the default priority: create the class there"
)
_SELECTOR_INVALID = (
    "annotation clusterSelector is invalid ({flaw}), so the pod's own node selector, affinity and tolerations are "
    "used: remove the annotation"
)
_CLAIMS_NOT_MIRRORED = "ResourceClaims and ResourceClaimTemplates are not mirrored: create them in the lower cluster"


class PodNote(NamedTuple):
    """Something that the pod's author should be told once: a reason in CamelCase and a sentence."""

    reason: str
    message: str


def lower_pod(upper_pod: Manifest, place: LowerContext) -> Manifest:
    """Return the lower pod to create. It shares unchanged parts with the upper pod, which is never modified."""
    name = upper_pod["metadata"]["name"]
    identified = {"name": name, "namespace": place.namespace, "ownerReferences": [_namespace_owner(place)]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": identified | mutable_metadata(upper_pod, place),
        "spec": lower_spec(upper_pod, place),
    }


def lower_spec(upper_pod: Manifest, place: LowerContext) -> Manifest:
    """Return the spec of the lower pod."""
    spec = with_lower_classes(upper_pod["spec"], place)
    mapped = {**upper_pod, "spec": spec}
    kept = {field: value for field, value in spec.items() if field not in _ELSEWHERE}
    return kept | scheduling_fields(mapped, place) | _class_fields(spec, place) | account_fields(mapped, place)


def with_lower_classes(spec: Manifest, place: LowerContext) -> Manifest:
    """Return a pod's spec with the lower names of storage classes; the same object without changes."""
    volumes: list[Manifest] = spec.get("volumes") or []
    found = [_volume(volume, place) for volume in volumes]
    return spec if found == volumes else {**spec, "volumes": found}


def _volume(volume: Manifest, place: LowerContext) -> Manifest:
    template: dict[str, Any] = (volume.get("ephemeral") or {}).get("volumeClaimTemplate") or {}
    name = (template.get("spec") or {}).get("storageClassName")
    if name is None or name not in place.storage_classes:
        return volume
    claim = {**template["spec"], "storageClassName": place.storage_classes[name]}
    return {**volume, "ephemeral": {**volume["ephemeral"], "volumeClaimTemplate": {**template, "spec": claim}}}


def mutable_metadata(upper_pod: Manifest, place: LowerContext, lower_pod: Manifest | None = None) -> Manifest:
    """Return the labels and annotations that the lower pod carries for us: {"labels": ..., "annotations": ...}.

    Keys that others set in `lower_pod` are left out, and are not ours to change or remove.
    """
    present = labels(upper_pod)
    tripped = {key: value for key, value in present.items() if key in place.ignore_labels}
    kept = {
        "labels": _lower_labels(present, place),
        "annotations": _lower_annotations(upper_pod, tripped, place),
    }
    if lower_pod is not None:
        kept = {section: ours_to_write(wanted, lower_pod, section) for section, wanted in kept.items()}
    kept["annotations"] |= {
        WRITTEN_KEYS: note_of_keys(kept["labels"], kept["annotations"]),
        WRITTEN_IMAGES: note_of_images(upper_pod),
    }
    return kept


def notes(upper_pod: Manifest, place: LowerContext) -> list[PodNote]:
    """Return what of the pod was not mirrored, where its author could have relied on it."""
    spec = upper_pod["spec"]
    found = []
    name = spec.get("priorityClassName")
    if name and name not in place.priority_classes:
        found.append(PodNote(PRIORITY_DROPPED, _PRIORITY_DROPPED.format(name=name)))
    if flaw := cluster_selector_flaw(upper_pod):
        found.append(PodNote(INVALID_SELECTOR, _SELECTOR_INVALID.format(flaw=flaw)))
    if spec.get("resourceClaims"):
        found.append(PodNote(RESOURCE_CLAIMS, _CLAIMS_NOT_MIRRORED))
    return found


def _namespace_owner(place: LowerContext) -> Manifest:
    """Return the owner reference by which the lower Namespace controls the pod."""
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "name": place.namespace,
        "uid": place.namespace_uid,
        "controller": True,
    }


def _lower_labels(present: dict[str, str], place: LowerContext) -> dict[str, str]:
    """Return the labels of the lower pod, with our marks."""
    kept = {
        key: value
        for key, value in present.items()
        if key not in place.ignore_labels and not key.startswith(_TOPOLOGY_LABELS)
    }
    return kept | {VIRTUAL_POD: "true"} | place.owner.label


def _lower_annotations(upper_pod: Manifest, tripped: dict[str, str], place: LowerContext) -> dict[str, str]:
    """Return the annotations of the lower pod: mirrored ones, our marks, the ignored labels, and `safe-to-evict`."""
    kept = {
        key: value
        for key, value in annotations(upper_pod).items()
        if key not in _UPPER_ANNOTATIONS and not key.startswith(_CONFIG_SOURCES)
    }
    said = {TRIPPED_LABELS: orjson.dumps(tripped, option=orjson.OPT_SORT_KEYS).decode()}
    removable = {SAFE_TO_EVICT: "true"} if _is_remade(upper_pod) and not _has_local_storage(upper_pod["spec"]) else {}
    return removable | kept | said | place.owner.signed(uid(upper_pod))


def _is_remade(upper_pod: Manifest) -> bool:
    """Report whether an upper controller recreates the pod when it is deleted.

    In the lower cluster its controller is a Namespace, and the Cluster Autoscaler keeps every node with a pod of an
    unknown controller.
    """
    return bool(controller_of(upper_pod))


def _has_local_storage(spec: Manifest) -> bool:
    """Report whether a pod has data on its node, for which a Cluster Autoscaler keeps the node of any pod."""
    volumes = spec.get("volumes") or ()
    return any(
        "hostPath" in one or ("emptyDir" in one and (one["emptyDir"] or {}).get("medium") != "Memory")
        for one in volumes
    )


def _class_fields(spec: Manifest, place: LowerContext) -> Manifest:
    """Return the names that differ between clusters: priority class, runtime class, scheduler."""
    runtime = spec.get("runtimeClassName")
    scheduler = spec.get("schedulerName")
    fields = {
        "priorityClassName": place.priority_classes.get(spec.get("priorityClassName") or ""),
        "runtimeClassName": place.runtime_classes.get(runtime or "", runtime),
        "schedulerName": scheduler if scheduler in place.scheduler_names else DEFAULT_SCHEDULER,
    }
    return {field: value for field, value in fields.items() if value}
