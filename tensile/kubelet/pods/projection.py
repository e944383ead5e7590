"""Project an upper pod to the lower pod: what happens to each field on its way there, and to those of its status.

Raw JSON in, raw JSON out, by tables of verdicts, so that they can be read beside the API's reference. A test compares
them with the schema, and fails for a field without a verdict. Fields that no schema knows yet are copied to the lower
pod; an older apiserver prunes them. They are not copied to the upper status, since they may be immutable or concern
only the lower cluster.

Each rule here answers something that a real apiserver refused or a real controller destroyed. A lower pod is controlled
by its own Namespace. Otherwise a lower ReplicaSet with a matching selector would adopt and delete it, and an upper
owner reference would have it garbage-collected. For generic ephemeral volumes the lower cluster makes its own claim for
the lower pod and deletes it with the pod. A copy of the upper claim would not be owned by that pod, which Kubernetes
refuses. Only the storage class is mapped to its lower name.

Notes on the lower pod record what we last wrote to it. Three parties write there: the upper pod through us, other
clients, and lower admission, which changes our values, for example to an image of the lower's own registry.
managedFields says whose a field is now, but neither whether it was ours before nor which value we sent. So label and
annotation keys are noted by name, and images by a few digits of their hash.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from hashlib import sha256
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

from tensile.kubelet.pods.lower_context import DEFAULT_SCHEDULER, LowerContext, scheduling_fields
from tensile.kubelet.pods.service_account import account_fields
from tensile.names import (
    CLUSTER_SELECTOR,
    KEPT_OFF,
    OWNER,
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
from tensile.objects import Manifest, annotations, controller_of, labels, metadata, uid
from tensile.reconcile.ownership import noted_keys, our_keys
from tensile.reconcile.pods.scheduling import cluster_selector_flaw

LISTS = ("containers", "initContainers")
"""The lists of a pod's spec whose images may change while it runs."""
_DIGITS = 8
_MARKS = frozenset({VIRTUAL_POD, OWNER, OWNER_NAME, TRIPPED_LABELS, UPPER_UID, WRITTEN_KEYS, WRITTEN_IMAGES})


class FieldVerdict(Enum):
    """What happens to a field."""

    KEEP = "kept as it is"
    DROP = "left out"
    MAP = "rewritten by a rule"
    LATER = "not at creation, afterwards through a subresource"


METADATA: Mapping[str, FieldVerdict] = MappingProxyType(
    {
        "name": FieldVerdict.KEEP,
        "namespace": FieldVerdict.MAP,
        "labels": FieldVerdict.MAP,
        "annotations": FieldVerdict.MAP,
        "ownerReferences": FieldVerdict.MAP,
        "creationTimestamp": FieldVerdict.DROP,
        "deletionGracePeriodSeconds": FieldVerdict.DROP,
        "deletionTimestamp": FieldVerdict.DROP,
        "finalizers": FieldVerdict.DROP,
        "generateName": FieldVerdict.DROP,
        "generation": FieldVerdict.DROP,
        "managedFields": FieldVerdict.DROP,
        "resourceVersion": FieldVerdict.DROP,
        "selfLink": FieldVerdict.DROP,
        "uid": FieldVerdict.DROP,
    }
)
"""ObjectMeta. A create with a resourceVersion fails, and no lower controller would remove the finalizers."""

SPEC: Mapping[str, FieldVerdict] = MappingProxyType(
    {
        "activeDeadlineSeconds": FieldVerdict.KEEP,
        "affinity": FieldVerdict.MAP,
        "automountServiceAccountToken": FieldVerdict.MAP,
        "containers": FieldVerdict.MAP,
        "dnsConfig": FieldVerdict.KEEP,
        "dnsPolicy": FieldVerdict.KEEP,
        "enableServiceLinks": FieldVerdict.KEEP,
        "ephemeralContainers": FieldVerdict.LATER,
        "hostAliases": FieldVerdict.KEEP,
        "hostIPC": FieldVerdict.KEEP,
        "hostNetwork": FieldVerdict.KEEP,
        "hostPID": FieldVerdict.KEEP,
        "hostUsers": FieldVerdict.KEEP,
        "hostname": FieldVerdict.KEEP,
        "hostnameOverride": FieldVerdict.KEEP,
        "imagePullSecrets": FieldVerdict.KEEP,
        "initContainers": FieldVerdict.MAP,
        "nodeName": FieldVerdict.DROP,
        "nodeSelector": FieldVerdict.MAP,
        "os": FieldVerdict.KEEP,
        "overhead": FieldVerdict.DROP,
        "preemptionPolicy": FieldVerdict.DROP,
        "priority": FieldVerdict.DROP,
        "priorityClassName": FieldVerdict.DROP,
        "readinessGates": FieldVerdict.DROP,
        "resourceClaims": FieldVerdict.KEEP,
        "resources": FieldVerdict.KEEP,
        "restartPolicy": FieldVerdict.KEEP,
        "runtimeClassName": FieldVerdict.KEEP,
        "schedulerName": FieldVerdict.MAP,
        "schedulingGates": FieldVerdict.DROP,
        "schedulingGroup": FieldVerdict.DROP,
        "securityContext": FieldVerdict.KEEP,
        "serviceAccount": FieldVerdict.MAP,
        "serviceAccountName": FieldVerdict.MAP,
        "setHostnameAsFQDN": FieldVerdict.KEEP,
        "shareProcessNamespace": FieldVerdict.KEEP,
        "subdomain": FieldVerdict.KEEP,
        "terminationGracePeriodSeconds": FieldVerdict.KEEP,
        "tolerations": FieldVerdict.MAP,
        "topologySpreadConstraints": FieldVerdict.MAP,
        "volumes": FieldVerdict.MAP,
        "workloadRef": FieldVerdict.DROP,
    }
)
"""PodSpec. Lower admission computes priority, preemptionPolicy and overhead, and refuses values that differ."""

STATUS: Mapping[str, FieldVerdict] = MappingProxyType(
    {
        "allocatedResources": FieldVerdict.KEEP,
        "conditions": FieldVerdict.MAP,
        "containerStatuses": FieldVerdict.MAP,
        "ephemeralContainerStatuses": FieldVerdict.MAP,
        "extendedResourceClaimStatus": FieldVerdict.DROP,
        "hostIP": FieldVerdict.KEEP,
        "hostIPs": FieldVerdict.KEEP,
        "initContainerStatuses": FieldVerdict.MAP,
        "message": FieldVerdict.KEEP,
        "nodeAllocatableResourceClaimStatuses": FieldVerdict.DROP,
        "nominatedNodeName": FieldVerdict.DROP,
        "observedGeneration": FieldVerdict.MAP,
        "phase": FieldVerdict.MAP,
        "podIP": FieldVerdict.MAP,
        "podIPs": FieldVerdict.MAP,
        "qosClass": FieldVerdict.DROP,
        "reason": FieldVerdict.KEEP,
        "resize": FieldVerdict.DROP,
        "resourceClaimStatuses": FieldVerdict.DROP,
        "resources": FieldVerdict.KEEP,
        "startTime": FieldVerdict.KEEP,
    }
)
"""PodStatus. qosClass is immutable, and differs if a lower LimitRange adds limits; claims are the lower's own."""


def with_verdict(table: Mapping[str, FieldVerdict], *verdicts: FieldVerdict) -> frozenset[str]:
    """Return the fields of a table that have one of the verdicts."""
    return frozenset(field for field, verdict in table.items() if verdict in verdicts)


def image_digest(image: str) -> str:
    """Return the digits that stand for an image in a note."""
    return sha256(image.encode()).hexdigest()[:_DIGITS]


def note_of_images(upper_pod: Manifest) -> str:
    """Return the note of the images in an upper pod's spec, by container."""
    return _encode_note({one["name"]: image_digest(one.get("image", "")) for one in _containers(upper_pod["spec"])})


def noted_images(lower_pod: Manifest) -> Mapping[str, Any] | None:
    """Return the digits of the images that we sent, by container, None where that is not noted."""
    return _decode_note(annotations(lower_pod).get(WRITTEN_IMAGES))


def note_of_keys(labels: Iterable[str], notes: Iterable[str]) -> str:
    """Return the note of label and annotation keys that we write, without our marks, which are always ours."""
    return _encode_note({"annotations": sorted(set(notes) - _MARKS), "labels": sorted(set(labels) - _MARKS)})


def ours_to_write(wanted: dict[str, str], lower_pod: Manifest, section: str) -> dict[str, str]:
    """Return the wanted "labels" or "annotations" without keys that another client had set before us.

    A key that we wrote and another client changed since is included: it is reverted.
    """
    noted = noted_keys(lower_pod, section)
    if noted is None:
        return wanted
    present: Mapping[str, str] = metadata(lower_pod).get(section) or {}
    ours = _MARKS | our_keys(lower_pod, section) | noted
    return {key: value for key, value in wanted.items() if key not in present or key in ours}


def _containers(spec: Manifest) -> Iterator[Manifest]:
    """Yield the containers whose images may change."""
    for field in LISTS:
        yield from spec.get(field) or ()


def _encode_note(value: Any) -> str:
    """Return a note as text."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _decode_note(text: str | None) -> Mapping[str, Any] | None:
    """Return the content of a note, None for an invalid one."""
    try:
        found = orjson.loads(text or "")
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


_OMITTED = with_verdict(SPEC, FieldVerdict.DROP, FieldVerdict.LATER)
_SCHEDULING = frozenset({"nodeSelector", "affinity", "tolerations", "topologySpreadConstraints"})
_MAPPED_SEPARATELY = _OMITTED | _SCHEDULING | {"schedulerName"}
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
"""On a pod: its priority class applies in the upper cluster only, so it runs in the lower cluster with the default
priority. Remedy: nothing; remove the class from pods that need no priority in the upper cluster."""
INVALID_SELECTOR: EventReason = "InvalidClusterSelector"
"""On a pod: annotation `clusterSelector` is not what the webhook writes, so the pod's own selectors are used.
Remedy: remove the annotation, and have the webhook write it."""
RESOURCE_CLAIMS: EventReason = "ResourceClaimsNotMirrored"
"""On a pod: it uses ResourceClaims, which are not mirrored. Remedy: create them in the lower cluster."""
_PRIORITY_DROPPED = (
    "PriorityClass {name!r} applies in the upper cluster only: in its lower cluster the pod has the default priority"
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


def to_lower_pod(upper_pod: Manifest, context: LowerContext) -> Manifest:
    """Return the lower pod to create. It shares unchanged parts with the upper pod, which is never modified."""
    name = upper_pod["metadata"]["name"]
    identity = {"name": name, "namespace": context.namespace, "ownerReferences": [_namespace_owner(context)]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": identity | mutable_metadata(upper_pod, context),
        "spec": lower_spec(upper_pod, context),
    }


def lower_spec(upper_pod: Manifest, context: LowerContext) -> Manifest:
    """Return the spec of the lower pod."""
    spec = with_lower_classes(upper_pod["spec"], context)
    upper_with_lower_classes = {**upper_pod, "spec": spec}
    copied = {field: value for field, value in spec.items() if field not in _MAPPED_SEPARATELY}
    scheduling = scheduling_fields(upper_with_lower_classes, context) | {"schedulerName": DEFAULT_SCHEDULER}
    return copied | scheduling | account_fields(upper_with_lower_classes, context)


def with_lower_classes(spec: Manifest, context: LowerContext) -> Manifest:
    """Return a pod's spec with the lower names of storage classes; the same object without changes."""
    volumes: list[Manifest] = spec.get("volumes") or []
    found = [_volume(volume, context) for volume in volumes]
    return spec if found == volumes else {**spec, "volumes": found}


def _volume(volume: Manifest, context: LowerContext) -> Manifest:
    template: dict[str, Any] = (volume.get("ephemeral") or {}).get("volumeClaimTemplate") or {}
    name = (template.get("spec") or {}).get("storageClassName")
    if name is None or name not in context.storage_classes:
        return volume
    claim = {**template["spec"], "storageClassName": context.storage_classes[name]}
    return {**volume, "ephemeral": {**volume["ephemeral"], "volumeClaimTemplate": {**template, "spec": claim}}}


def mutable_metadata(upper_pod: Manifest, context: LowerContext, lower_pod: Manifest | None = None) -> Manifest:
    """Return the labels and annotations that the lower pod carries for us: {"labels": ..., "annotations": ...}.

    Keys that others set in `lower_pod` are left out, and are not ours to change or remove.
    """
    present = labels(upper_pod)
    ignored_labels = {key: value for key, value in present.items() if key in context.ignore_labels}
    kept = {
        "labels": _lower_labels(present, context),
        "annotations": _lower_annotations(upper_pod, ignored_labels, context),
    }
    if lower_pod is not None:
        kept = {section: ours_to_write(wanted, lower_pod, section) for section, wanted in kept.items()}
    kept["annotations"] |= {
        WRITTEN_KEYS: note_of_keys(kept["labels"], kept["annotations"]),
        WRITTEN_IMAGES: note_of_images(upper_pod),
    }
    return kept


def notes(upper_pod: Manifest) -> list[PodNote]:
    """Return what of the pod was not mirrored, where its author could have relied on it."""
    spec = upper_pod["spec"]
    found = []
    name = spec.get("priorityClassName")
    if name:
        found.append(PodNote(PRIORITY_DROPPED, _PRIORITY_DROPPED.format(name=name)))
    if flaw := cluster_selector_flaw(upper_pod):
        found.append(PodNote(INVALID_SELECTOR, _SELECTOR_INVALID.format(flaw=flaw)))
    if spec.get("resourceClaims"):
        found.append(PodNote(RESOURCE_CLAIMS, _CLAIMS_NOT_MIRRORED))
    return found


def _namespace_owner(context: LowerContext) -> Manifest:
    """Return the owner reference by which the lower Namespace controls the pod."""
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "name": context.namespace,
        "uid": context.namespace_uid,
        "controller": True,
    }


def _lower_labels(present: dict[str, str], context: LowerContext) -> dict[str, str]:
    """Return the labels of the lower pod, with our marks."""
    kept = {
        key: value
        for key, value in present.items()
        if key not in context.ignore_labels and not key.startswith(_TOPOLOGY_LABELS)
    }
    return kept | {VIRTUAL_POD: "true"} | context.owner.label


def _lower_annotations(upper_pod: Manifest, ignored_labels: dict[str, str], context: LowerContext) -> dict[str, str]:
    """Return the annotations of the lower pod: mirrored ones, our marks, the ignored labels, and `safe-to-evict`."""
    kept = {
        key: value
        for key, value in annotations(upper_pod).items()
        if key not in _UPPER_ANNOTATIONS and not key.startswith(_CONFIG_SOURCES)
    }
    ignored = {TRIPPED_LABELS: orjson.dumps(ignored_labels, option=orjson.OPT_SORT_KEYS).decode()}
    safe_to_evict = (
        {SAFE_TO_EVICT: "true"} if _is_recreated(upper_pod) and not _has_local_storage(upper_pod["spec"]) else {}
    )
    return safe_to_evict | kept | ignored | context.owner.signed(uid(upper_pod))


def _is_recreated(upper_pod: Manifest) -> bool:
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
