"""The replacement of a pod without a controller, and the Secret that holds it while the pod moves.

The replacement is the same pod, free to run on another node. What the apiserver and its admission plugins added to the
old pod is left out, because much of it is refused at creation. The rest stays as its author wrote it, with marks for
the pod that it replaces and the nodes that it must avoid.

The backup is written before the pod is evicted and deleted once the replacement exists, so that after any crash the
next engine finds all it needs. It is a Secret because only those who may read pods may see a pod's content. It is in
the pod's namespace so that it is deleted with that namespace.
"""

from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable
from datetime import datetime
from typing import NamedTuple

import orjson
from msgspec.structs import replace

from tensile.kube.store import Entry, Transformed, decoded
from tensile.kubelet.pods.lower_context import without_merged
from tensile.kubelet.pods.service_account import without_token
from tensile.names import (
    DESCHEDULE_COUNT,
    DESCHEDULED,
    DO_NOT_DISRUPT,
    HOSTNAME,
    KEPT_OFF,
    KEPT_POD,
    NAMESPACE_EXCLUDED,
    REPLACES,
    SAFE_TO_EVICT,
    UNSCHEDULABLE_NODE,
    WITHDRAWN,
    Owner,
    ProblemReason,
)
from tensile.objects import SECRET, UPPER, Manifest, Ref, annotations, labels, metadata, moment_of, uid
from tensile.policy.webhook.admission import with_requirements
from tensile.reconcile.desired import Present
from tensile.reconcile.ownership import is_ours, upper_uid_of
from tensile.reconcile.pods.pod_schema import is_pod
from tensile.reconcile.pods.scheduling import NOT_READY, REQUIRED, UNREACHABLE, has_requirements, required_of
from tensile.reconcile.world import Problem, World

BACKUP = "tensile-pod-"
"""The prefix of a backup's name, before the UID of its pod."""
EVICTION_FORBIDDEN: ProblemReason = "EvictionForbidden"
"""The pod stays where it is, because an annotation of it forbids its eviction. Remedy: remove the annotation, or delete
the pod."""
USES_CLAIMS: ProblemReason = "UsesPersistentVolumeClaims"
"""The descheduler does not move the pod, since its volumes are in its lower cluster. Remedy: make room in that
cluster, or delete the pod and its claims."""
STATIC_POD: ProblemReason = "StaticPod"
"""The descheduler does not move a static pod. Remedy: remove its file from the node."""
NO_CONTROLLER: ProblemReason = "NoController"
"""The descheduler does not move the pod, since no controller would create it again. Remedy: set
`descheduler.recreateBarePods`, or delete the pod yourself."""
BACKUP_PENDING: ProblemReason = "BackupPending"
"""The pod is not moved yet, since a Secret still holds the pod that it replaces. Remedy: wait; if it stays, see the
Events of the Secret."""
CLAIMS_PROBLEM = Problem(USES_CLAIMS, "not moved: its claims are bound to volumes of its lower cluster")
_EXCLUDED_PROBLEM = Problem(NAMESPACE_EXCLUDED, "not moved: pods of its namespace are not mirrored; delete it yourself")
_STATIC_POD_PROBLEM = Problem(
    STATIC_POD, "not moved: static pod, cannot be recreated elsewhere; remove its file from the node"
)
_NOT_ENABLED_PROBLEM = Problem(
    NO_CONTROLLER,
    "not moved: it has no controller; with descheduler.recreateBarePods it moves if another lower cluster has room",
)
_CONTENT = "pod.json"
_MIRROR = "kubernetes.io/config.mirror"
_COPIED_METADATA = ("name", "namespace", "finalizers", "ownerReferences")
_ADMISSION_FIELDS = frozenset({"nodeName", "priority", "preemptionPolicy", "overhead", "ephemeralContainers"})
"""Fields of a spec that are set at creation, at binding or later, and are refused in a new pod."""
_DOMAINS = frozenset({"topology.kubernetes.io/zone", "topology.kubernetes.io/region"})
"""Labels that a pod gets with its node."""
_DEFAULT_TOLERATION_SECONDS = 300
_MAX_DIGITS = 9
"""The most digits of a count that is believed."""
_TERMS = ("podAffinity", "podAntiAffinity")
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_POD_TERM = "podAffinityTerm"


def transform(raw: bytes) -> Transformed:
    """Return the UID of the pod that a re-created pod replaces, "" if it does not say, for the cache.

    The pod's bytes are kept as well while it replaces a pod and waits for a node.
    """
    pod = decoded(raw)
    replaces = annotations(pod).get(REPLACES, "")
    is_waiting = replaces and not pod["spec"].get("nodeName") and "deletionTimestamp" not in metadata(pod)
    return Transformed(raw if is_waiting else b"", replaces)


def successor_of(pod: Manifest, avoided: Collection[str]) -> Manifest:
    """Return the pod to create in place of a stored one; it avoids the virtual nodes `avoided`."""
    nodes, original = sorted({*avoided, *avoided_nodes(pod)}), without_avoided_nodes(pod)
    meta = {field: value for field in _COPIED_METADATA if (value := metadata(pod).get(field))}
    copied_labels = {key: value for key, value in labels(pod).items() if key not in _DOMAINS}
    meta["labels"] = {**copied_labels, DESCHEDULED: "true"}
    meta["annotations"] = {**annotations(original), **_move_annotations(pod, nodes)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": _spec(original["spec"], nodes)}


def avoided_nodes(pod: Manifest) -> list[str]:
    """Return the virtual nodes that a pod avoids because of an earlier move."""
    annotation = annotations(pod).get(KEPT_OFF, "")
    return annotation.split(",") if annotation else []


def without_avoided_nodes(pod: Manifest) -> Manifest:
    """Return a pod that no longer avoids nodes because of an earlier move; the same object if it did not."""
    required = required_of(pod["spec"])
    if not avoided_nodes(pod) or required is None:
        return pod
    spec, affinity = pod["spec"], pod["spec"]["affinity"]
    our_requirement = _requirement(avoided_nodes(pod))
    terms = [_without(term, our_requirement) for term in required.get("nodeSelectorTerms") or ()]
    node = {field: value for field, value in affinity["nodeAffinity"].items() if field != REQUIRED}
    if all(map(has_requirements, terms)):
        node[REQUIRED] = {**required, "nodeSelectorTerms": terms}
    remaining = {**affinity, "nodeAffinity": node}
    copied_annotations = {key: value for key, value in annotations(pod).items() if key != KEPT_OFF}
    return {
        **pod,
        "metadata": {**metadata(pod), "annotations": copied_annotations},
        "spec": {**spec, "affinity": {field: value for field, value in remaining.items() if value}},
    }


def _requirement(nodes: Iterable[str]) -> Manifest:
    return {"key": HOSTNAME, "operator": "NotIn", "values": sorted(nodes)}


def _without(term: Manifest, requirement: Manifest) -> Manifest:
    remaining = [one for one in term.get("matchExpressions") or () if one != requirement]
    rest = {field: value for field, value in term.items() if field != "matchExpressions"}
    return {**rest, **({"matchExpressions": remaining} if remaining else {})}


def _move_annotations(pod: Manifest, nodes: list[str]) -> dict[str, str]:
    """Return the annotations added to the new pod: tensile-kube's, and ours."""
    previous = annotations(pod).get(DESCHEDULE_COUNT, "")
    count = int(previous) if previous.isdecimal() and len(previous) <= _MAX_DIGITS else 0
    return {
        REPLACES: uid(pod),
        DESCHEDULE_COUNT: str(count + 1),
        UNSCHEDULABLE_NODE: pod["spec"].get("nodeName", ""),
        KEPT_OFF: ",".join(nodes),
    }


def _spec(spec: Manifest, nodes: list[str]) -> Manifest:
    """Return the spec as its author wrote it, with nodes to avoid."""
    fields = {**spec, **without_token(spec)}
    affinity = _without_merged_terms(spec.get("affinity") or {})
    fields |= {
        "affinity": with_requirements(affinity, [_requirement(nodes)]),
        "tolerations": [one for one in spec.get("tolerations") or () if not _is_default_toleration(one)],
        "topologySpreadConstraints": [without_merged(one) for one in spec.get("topologySpreadConstraints") or ()],
    }
    return {
        field: value
        for field, value in fields.items()
        if field not in _ADMISSION_FIELDS and value not in ({}, [], None)
    }


def _is_default_toleration(toleration: Manifest) -> bool:
    """Report whether a toleration is the default one that admission adds for 300 seconds."""
    is_no_execute = toleration.get("operator") == "Exists" and toleration.get("effect") == "NoExecute"
    is_for_failed_node = toleration.get("key") in (NOT_READY, UNREACHABLE)
    return is_for_failed_node and is_no_execute and toleration.get("tolerationSeconds") == _DEFAULT_TOLERATION_SECONDS


def _without_merged_terms(affinity: Manifest) -> Manifest:
    """Return an affinity without what the apiserver added for its matchLabelKeys."""
    return {kind: _unmerge_terms(terms) if kind in _TERMS else terms for kind, terms in affinity.items()}


def _unmerge_terms(terms: Manifest) -> Manifest:
    result = dict(terms)
    if required := terms.get(REQUIRED):
        result[REQUIRED] = [without_merged(term) for term in required]
    if preferred := terms.get(_PREFERRED):
        result[_PREFERRED] = [{**one, _POD_TERM: without_merged(one[_POD_TERM])} for one in preferred]
    return result


class PodBackup(NamedTuple):
    """The content of a backup Secret.

    `uid` is the UID of the pod that it backs up, `pod` the pod to create in its place, None if it is not readable.
    `withdrawn` is since when the backup is not needed, None while it is.
    """

    uid: str
    pod: Manifest | None
    withdrawn: datetime | None = None


def backup_ref(namespace: str, pod_uid: str) -> Ref:
    """Return the ref of the Secret that backs up the pod of a UID."""
    return Ref(UPPER, SECRET, namespace, BACKUP + pod_uid)


def backup(successor: Manifest, pod: Entry, owner: Owner, reason: str) -> Present:
    """Return the backup Secret of a pod as desired; if it is refused, later steps still run."""
    ref = backup_ref(pod.namespace, pod.uid)
    marks = {"labels": owner.label, "annotations": owner.signed(pod.uid)}
    manifest = {
        "apiVersion": SECRET.api,
        "kind": SECRET.name,
        "metadata": {"name": ref.name, "namespace": ref.namespace, **marks},
        "type": KEPT_POD,
        "data": {_CONTENT: b64encode(orjson.dumps(successor)).decode()},
    }
    return Present(ref, manifest, reason, ("metadata.labels", "metadata.annotations", "data"), independent=True)


def backup_of(pod: Entry, world: World) -> PodBackup | None:
    """Return the backup of an upper pod, None for none."""
    secret = world.upper.secrets.get(pod.namespace, BACKUP + pod.uid)
    return backup_in(secret, world.owner) if secret is not None else None


def backup_in(entry: Entry, owner: Owner) -> PodBackup | None:
    """Return the content of a backup Secret, None for a Secret that is not ours."""
    secret = entry.manifest()
    pod_uid = upper_uid_of(secret)
    if entry.name != BACKUP + pod_uid or not is_ours(secret, owner):
        return None
    return PodBackup(pod_uid, _pod_in_secret(secret, pod_uid), _parse_time(annotations(secret).get(WITHDRAWN)))


def is_backed_up(pod: Entry, successor: Manifest, world: World) -> bool:
    """Report whether a pod may be evicted: its backup is not withdrawn and holds what would be created now."""
    stored = backup_of(pod, world)
    return stored is not None and stored.withdrawn is None and stored.pod == successor


def _parse_time(text: str | None) -> datetime | None:
    """Return a timestamp, None if it is not valid."""
    try:
        return moment_of(text) if text else None
    except ValueError:
        return None


def _pod_in_secret(secret: Manifest, pod_uid: str) -> Manifest | None:
    """Return the pod of a Secret, None if it is not valid: no pod, or of another namespace or UID than the Secret.

    Anyone who may write Secrets in that namespace can have written it; an unreadable one must not block other pods.
    """
    try:
        pod: Manifest = orjson.loads(b64decode(secret["data"][_CONTENT]))
    except (KeyError, TypeError, ValueError):
        return None
    if not is_pod(pod) or not metadata(pod).get("name"):
        return None
    is_same_namespace = metadata(pod).get("namespace") == metadata(secret)["namespace"]
    return pod if is_same_namespace and annotations(pod).get(REPLACES) == pod_uid else None


def uses_claims(pod: Manifest) -> bool:
    """Report whether a pod has volumes that are bound to its lower cluster."""
    volumes = pod["spec"].get("volumes") or ()
    return any(one.get("persistentVolumeClaim") or one.get("ephemeral") for one in volumes)


def annotation_problem(pod: Entry) -> Problem | None:
    """Return the problem of a pod whose annotations forbid its eviction, None for any other pod."""
    if not pod.facts.pinned:
        return None
    pod_annotations = annotations(pod.manifest())
    name, text = (SAFE_TO_EVICT, "false") if pod_annotations.get(SAFE_TO_EVICT) == "false" else (DO_NOT_DISRUPT, "true")
    message = f'annotation {name}: "{text}" forbids its eviction; remove the annotation, or delete the pod'
    return Problem(EVICTION_FORBIDDEN, message)


def bare_pod_problem(pod: Entry, world: World) -> Problem | None:
    """Return why a bare pod is not moved, regardless of room elsewhere; None if it may be."""
    if pod.facts.pinned:
        return annotation_problem(pod)
    manifest = pod.manifest()
    if pod.namespace in world.topology.exclude_namespaces:
        return _EXCLUDED_PROBLEM
    if _MIRROR in annotations(manifest):
        return _STATIC_POD_PROBLEM
    if uses_claims(manifest):
        return CLAIMS_PROBLEM
    if not world.topology.descheduler.recreate_bare_pods:
        return _NOT_ENABLED_PROBLEM
    replaced_uid = annotations(manifest).get(REPLACES, "")
    if replaced_uid and world.upper.secrets.get(pod.namespace, BACKUP + replaced_uid) is not None:
        return Problem(
            BACKUP_PENDING, f"not moved yet: Secret {BACKUP}{replaced_uid} still contains the pod that it replaces"
        )
    return None


def without_expired_avoidance(pod: Entry, world: World) -> Entry:
    """Return the pod as it may move now: nodes avoided for longer than the cooldown may have room by now."""
    manifest = pod.manifest()
    created = metadata(manifest).get("creationTimestamp")
    is_expired = created is not None and world.now - moment_of(created) >= world.topology.descheduler.cooldown
    return (
        replace(pod, raw=orjson.dumps(without_avoided_nodes(manifest)))
        if is_expired and avoided_nodes(manifest)
        else pod
    )


def successor_now(pod: Entry, world: World, avoided: Collection[str]) -> Manifest:
    """Return the replacement that would be created for a pod now; it avoids the virtual nodes `avoided`."""
    return successor_of(without_expired_avoidance(pod, world).manifest(), avoided)
