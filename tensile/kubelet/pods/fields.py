"""What happens to each field of a pod on its way to the lower cluster, and of its status on its way back.

It is a table and not code, so that it can be read beside the API's reference. A test compares it with the schema, and
fails for a field without a verdict. Fields that no schema knows yet are copied to the lower pod; an older apiserver
prunes them. They are not copied to the upper status, since they may be immutable or concern only the lower cluster.

Notes on the lower pod record what we last wrote to it. Three parties write there: the upper pod through us, other
clients, and lower admission, which changes our values, for example to an image of the lower's own registry.
managedFields says whose a field is now, but neither whether it was ours before nor which value we sent. So label and
annotation keys are noted by name, and images by a few digits of their hash.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from hashlib import sha256
from types import MappingProxyType
from typing import Any

import orjson

from tensile.names import OWNER, OWNER_NAME, TRIPPED_LABELS, UPPER_UID, VIRTUAL_POD, WRITTEN_IMAGES, WRITTEN_KEYS
from tensile.objects import Manifest, annotations, metadata
from tensile.reconcile.ownership import noted_keys, our_keys

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
        "priorityClassName": FieldVerdict.MAP,
        "readinessGates": FieldVerdict.DROP,
        "resourceClaims": FieldVerdict.KEEP,
        "resources": FieldVerdict.KEEP,
        "restartPolicy": FieldVerdict.KEEP,
        "runtimeClassName": FieldVerdict.MAP,
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


def digits(image: str) -> str:
    """Return the digits that stand for an image in a note."""
    return sha256(image.encode()).hexdigest()[:_DIGITS]


def note_of_images(upper_pod: Manifest) -> str:
    """Return the note of the images in an upper pod's spec, by container."""
    return _json({one["name"]: digits(one.get("image", "")) for one in _containers(upper_pod["spec"])})


def noted_images(lower_pod: Manifest) -> Mapping[str, Any] | None:
    """Return the digits of the images that we sent, by container, None where that is not noted."""
    return _read(annotations(lower_pod).get(WRITTEN_IMAGES))


def note_of_keys(labels: Iterable[str], notes: Iterable[str]) -> str:
    """Return the note of label and annotation keys that we write, without our marks, which are always ours."""
    return _json({"annotations": sorted(set(notes) - _MARKS), "labels": sorted(set(labels) - _MARKS)})


def ours_to_write(wanted: dict[str, str], lower_pod: Manifest, section: str) -> dict[str, str]:
    """Return the wanted "labels" or "annotations" without keys that another client had set before us.

    A key that we wrote and another client changed since is included: it is reverted.
    """
    noted = noted_keys(lower_pod, section)
    if noted is None:
        return wanted
    seen: Mapping[str, str] = metadata(lower_pod).get(section) or {}
    ours = _MARKS | our_keys(lower_pod, section) | noted
    return {key: value for key, value in wanted.items() if key not in seen or key in ours}


def _containers(spec: Manifest) -> Iterator[Manifest]:
    """Yield the containers whose images may change."""
    for field in LISTS:
        yield from spec.get(field) or ()


def _json(value: Any) -> str:
    """Return a note as text."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _read(text: str | None) -> Mapping[str, Any] | None:
    """Return the content of a note, None for an invalid one."""
    try:
        found = orjson.loads(text or "")
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None
