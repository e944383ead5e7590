"""The replacement of a pod without a controller: the same pod, free to run on another node.

What the apiserver and its admission plugins added to the old pod is left out, because much of it is refused at
creation. The rest stays as its author wrote it, with marks for the pod that it replaces and the nodes that it must
avoid.
"""

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta

from tensile.kube.store import Transformed, decoded
from tensile.kubelet.pods.scheduling import without_merged
from tensile.kubelet.pods.service_account import without_token
from tensile.names import DESCHEDULE_COUNT, DESCHEDULED, KEPT_OFF, REPLACES, UNSCHEDULABLE_NODE
from tensile.objects import Manifest, annotations, labels, metadata, moment_of, uid
from tensile.policy.webhook.admission import pinned
from tensile.reconcile.pods.scheduling import HOSTNAME, NOT_READY, REQUIRED, UNREACHABLE, has_requirements, required_of

_KEPT_METADATA = ("name", "namespace", "finalizers", "ownerReferences")
_ADMITTED = frozenset({"nodeName", "priority", "preemptionPolicy", "overhead", "ephemeralContainers"})
"""Fields of a spec that are set at creation, at binding or later, and are refused in a new pod."""
_DOMAINS = frozenset({"topology.kubernetes.io/zone", "topology.kubernetes.io/region"})
"""Labels that a pod gets with its node."""
_ADMITTED_SECONDS = 300
_DIGITS = 9
_TERMS = ("podAffinity", "podAntiAffinity")
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_POD_TERM = "podAffinityTerm"


def digest(raw: bytes) -> Transformed:
    """Return the UID of the pod that a re-created pod replaces, "" if it does not say, for the cache.

    The pod's bytes are kept as well while it replaces a pod and waits for a node.
    """
    pod = decoded(raw)
    replaces = annotations(pod).get(REPLACES, "")
    is_waiting = replaces and not pod["spec"].get("nodeName") and "deletionTimestamp" not in metadata(pod)
    return Transformed(raw if is_waiting else b"", replaces)


def successor_of(pod: Manifest, off: Collection[str] = ()) -> Manifest:
    """Return the pod to create in place of a stored one; it avoids the virtual nodes `off`."""
    nodes = sorted({*off, *nodes_off(pod)})
    freed = freed_from(pod, nodes_off(pod))
    meta = {field: value for field in _KEPT_METADATA if (value := metadata(pod).get(field))}
    carried = {key: value for key, value in labels(pod).items() if key not in _DOMAINS}
    meta["labels"] = {**carried, DESCHEDULED: "true"}
    meta["annotations"] = {**annotations(freed), **_marks(pod, nodes)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": _spec(freed["spec"], nodes)}


def is_alike(one: Manifest, other: Manifest) -> bool:
    """Report whether two replacements are equal, except for what the engine adds to a mirrored pod."""
    return _unlapsed(one) == _unlapsed(other)


def _unlapsed(pod: Manifest) -> Manifest:
    """Return a pod without its tolerations of not-ready and unreachable nodes."""
    left = [one for one in pod["spec"].get("tolerations") or () if one.get("key") not in (NOT_READY, UNREACHABLE)]
    return {**pod, "spec": {**pod["spec"], "tolerations": left}}


def nodes_off(pod: Manifest) -> list[str]:
    """Return the virtual nodes that a pod avoids because of an earlier move."""
    noted = annotations(pod).get(KEPT_OFF, "")
    return noted.split(",") if noted else []


def freed_in_time(pod: Manifest, now: datetime, cooldown: timedelta) -> Manifest:
    """Return a pod without the nodes it avoids once the cooldown is over: they may have room by now."""
    made = metadata(pod).get("creationTimestamp")
    is_due = nodes_off(pod) and made and now - moment_of(made) >= cooldown
    return freed_from(pod, nodes_off(pod)) if is_due else pod


def freed_from(pod: Manifest, nodes: Collection[str]) -> Manifest:
    """Return a pod that no longer avoids these nodes; the same object if it did not avoid them because of us."""
    required = required_of(pod["spec"])
    if not nodes or required is None:
        return pod
    spec, affinity = pod["spec"], pod["spec"]["affinity"]
    ours = _requirement(nodes)
    terms = [_without(term, ours) for term in required.get("nodeSelectorTerms") or ()]
    node = {field: value for field, value in affinity["nodeAffinity"].items() if field != REQUIRED}
    if all(map(has_requirements, terms)):
        node[REQUIRED] = {**required, "nodeSelectorTerms": terms}
    left = {**affinity, "nodeAffinity": node}
    notes = {key: value for key, value in annotations(pod).items() if key != KEPT_OFF}
    return {
        **pod,
        "metadata": {**metadata(pod), "annotations": notes},
        "spec": {**spec, "affinity": {field: value for field, value in left.items() if value}},
    }


def _requirement(nodes: Iterable[str]) -> Manifest:
    return {"key": HOSTNAME, "operator": "NotIn", "values": sorted(nodes)}


def _without(term: Manifest, requirement: Manifest) -> Manifest:
    left = [one for one in term.get("matchExpressions") or () if one != requirement]
    rest = {field: value for field, value in term.items() if field != "matchExpressions"}
    return {**rest, **({"matchExpressions": left} if left else {})}


def _marks(pod: Manifest, nodes: list[str]) -> dict[str, str]:
    """Return the annotations added to the new pod: tensile-kube's, and ours."""
    marks = {REPLACES: uid(pod), DESCHEDULE_COUNT: str(_count(annotations(pod).get(DESCHEDULE_COUNT, "")) + 1)}
    if not nodes:
        return marks
    return {**marks, UNSCHEDULABLE_NODE: pod["spec"].get("nodeName", ""), KEPT_OFF: ",".join(nodes)}


def _count(noted: str) -> int:
    """Return how often a pod was moved; 0 for text that is not such a number, or too long."""
    return int(noted) if noted.isdecimal() and len(noted) <= _DIGITS else 0


def _spec(spec: Manifest, nodes: list[str]) -> Manifest:
    """Return the spec as its author wrote it, with nodes to avoid."""
    fields = {**spec, **without_token(spec)}
    affinity = _unmerged(spec.get("affinity") or {})
    fields |= {
        "affinity": pinned(affinity, [_requirement(nodes)]) if nodes else affinity,
        "tolerations": [one for one in spec.get("tolerations") or () if not _is_admitted(one)],
        "topologySpreadConstraints": [without_merged(one) for one in spec.get("topologySpreadConstraints") or ()],
    }
    return {field: value for field, value in fields.items() if field not in _ADMITTED and value not in ({}, [], None)}


def _is_admitted(toleration: Manifest) -> bool:
    """Report whether a toleration is the default one that admission adds for 300 seconds."""
    is_default = toleration.get("operator") == "Exists" and toleration.get("effect") == "NoExecute"
    of_lapse = toleration.get("key") in (NOT_READY, UNREACHABLE)
    return of_lapse and is_default and toleration.get("tolerationSeconds") == _ADMITTED_SECONDS


def _unmerged(affinity: Manifest) -> Manifest:
    """Return an affinity without what the apiserver added for its matchLabelKeys."""
    return {kind: _unmerged_terms(terms) if kind in _TERMS else terms for kind, terms in affinity.items()}


def _unmerged_terms(terms: Manifest) -> Manifest:
    found = dict(terms)
    if required := terms.get(REQUIRED):
        found[REQUIRED] = [without_merged(term) for term in required]
    if preferred := terms.get(_PREFERRED):
        found[_PREFERRED] = [{**one, _POD_TERM: without_merged(one[_POD_TERM])} for one in preferred]
    return found
