"""Scheduling constraints of pods: tolerations, node requirements, which belong to which cluster, and their annotation.

If an engine is down, its node leases expire, and Kubernetes evicts after 300 s what does not tolerate that for longer.
The topology decides whether pods leave an unreachable cluster. So pods on virtual nodes tolerate a node that is not
ready or unreachable indefinitely. In the lower cluster real nodes fail, and the usual limits apply.

An upper pod's requirements select a lower cluster (by a label or the name of its virtual node), and nodes inside it.
All code that splits them, before and after scheduling, uses the same split. The label `virtual-pod` requests a virtual
node. It counts in the same namespaces for the webhook and for the engine without a webhook.

The webhook keeps a pod's constraints on lower nodes in an annotation. Its format is tensile-kube's: JSON with
nodeSelector, affinity and tolerations as in a pod's spec. Anyone who may create a pod can write it, so its size and
types are checked before it is used. A text of another form counts as missing and is reported. It is decoded once, and
the checked value is used: two decoders do not agree on every text.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Annotated, Any, NamedTuple

import msgspec
import orjson

from tensile.names import CLUSTER_SELECTOR, ENGINE_LABELS, HOSTNAME
from tensile.objects import Manifest, annotations, tolerates
from tensile.topology import Lower, Topology

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
NAME_FIELD = "metadata.name"
NAMING_NODES = frozenset({HOSTNAME, NAME_FIELD})
"""Keys by which a requirement names nodes."""
UPPER_ONLY_KEYS = frozenset(ENGINE_LABELS)
"""Label keys of virtual nodes, whatever the topology says."""
LISTS = ("matchExpressions", "matchFields")
"""The two lists of requirements in a node selector term."""
SYSTEM_NAMESPACE = "kube-system"
_NO_EXECUTE = "NoExecute"
_OUTAGE_TAINTS = tuple({"key": key, "effect": _NO_EXECUTE} for key in (NOT_READY, UNREACHABLE))
LONGEST = 32 * 1024
"""The most characters of the annotation: hundreds of requirements. Kubernetes allows eight times as many."""
MOST = 1_000
"""The most items of a list: terms, requirements and tolerations. Each is evaluated for every decision about a pod."""
_DEEPEST = 32
"""The most levels of nesting: a pod's affinity has eleven, and the encoder allows 254."""
_MANY = msgspec.Meta(max_length=MOST)
_SECONDS = msgspec.Meta(ge=-(2**63), le=2**63 - 1)


class Split(NamedTuple):
    """The two parts of a requirement or a term: for the upper scheduler and for the lower one, None for none."""

    upper: Manifest | None
    lower: Manifest | None


def tolerations_for_upper(upper_pod: Manifest, taints: Iterable[Mapping[str, Any]] = ()) -> list[Manifest] | None:
    """Return the tolerations that an upper pod should have, None if it has them. `taints` must be tolerated too.

    For a bound pod, Kubernetes allows additional tolerations and changes of tolerationSeconds, but no removal. The
    first toleration that matches a taint determines the seconds. If it is limited and covers further taints than these
    two, an unlimited one is inserted before it.
    """
    present: list[Manifest] = upper_pod["spec"].get("tolerations") or []
    freed = [_without_limit(toleration) for toleration in present]
    before = [_unlimited(taint) for taint in _OUTAGE_TAINTS if _is_limited(_first(freed, taint))]
    after = [_unlimited(taint) for taint in _OUTAGE_TAINTS if _first(freed, taint) is None]
    wanted = before + freed + after + lacking_for(freed, taints)
    return None if wanted == present else wanted


def tolerations_on_admission(present: list[Manifest], taints: Iterable[Mapping[str, Any]]) -> list[Manifest]:
    """Return the tolerations for the creation of a pod, which has no node yet.

    Those for a node that is not ready or unreachable become unlimited, and are added explicitly even if another one
    covers them. Those for the virtual nodes' `taints` that the pod does not tolerate yet follow.
    """
    freed = [_unlimited(one) if _is_limited_for_outages(one) else one for one in present]
    lacking = [taint for taint in _OUTAGE_TAINTS if not any(_names(one, taint) for one in freed)]
    before = [_unlimited(taint) for taint in lacking if _is_limited(_first(freed, taint))]
    after = [_unlimited(taint) for taint in lacking if not _is_limited(_first(freed, taint))]
    return before + freed + after + lacking_for(freed, taints)


def lacking_for(present: Iterable[Manifest], taints: Iterable[Mapping[str, Any]]) -> list[Manifest]:
    """Return tolerations for the taints that are not tolerated yet."""
    found = tuple(present)
    lacking = [taint for taint in taints if not any(tolerates(one, taint) for one in found)]
    return [toleration_of(taint) for taint in lacking]


def toleration_of(taint: Mapping[str, Any]) -> Manifest:
    """Return the toleration of exactly that taint."""
    if taint.get("value"):
        return {"key": taint["key"], "operator": "Equal", "value": taint["value"], "effect": taint["effect"]}
    return {"key": taint["key"], "operator": "Exists", "effect": taint["effect"]}


def for_lower(tolerations: Iterable[Manifest], taints: Iterable[Mapping[str, Any]]) -> list[Manifest]:
    """Return the tolerations that are relevant in the lower cluster.

    Those of the virtual nodes' own taints are not, nor are the unlimited ones for a node that is not ready or
    unreachable. Admission in the lower cluster adds its own limits.
    """
    upper_taints = tuple(taints)
    return [kept for kept in tolerations if not _is_for_upper(kept, upper_taints)]


def subject(toleration: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what identifies a toleration: all but the seconds, which Kubernetes allows to change."""
    return tuple(toleration.get(field) or "" for field in ("key", "operator", "value", "effect"))


def _is_for_upper(toleration: Manifest, taints: tuple[Mapping[str, Any], ...]) -> bool:
    """Report whether a toleration is only relevant in the upper cluster."""
    key = toleration.get("key")
    if not key:
        return False
    if key in (NOT_READY, UNREACHABLE):
        return "tolerationSeconds" not in toleration and tolerates(toleration, {"key": key, "effect": _NO_EXECUTE})
    return any(tolerates(toleration, taint) for taint in taints)


def _is_limited_for_outages(toleration: Manifest) -> bool:
    """Report whether a toleration is for nodes that are not ready or unreachable alone, and limited."""
    return any(_names(toleration, taint) for taint in _OUTAGE_TAINTS) and _is_limited(toleration)


def _names(toleration: Manifest, taint: Mapping[str, str]) -> bool:
    """Report whether a toleration names that taint by its key."""
    return toleration.get("key") == taint["key"] and toleration.get("effect") in (_NO_EXECUTE, "", None)


def _without_limit(toleration: Manifest) -> Manifest:
    """Remove the limit of a toleration for nodes that are not ready or unreachable alone."""
    if toleration.get("key") in (NOT_READY, UNREACHABLE) and _is_limited(toleration):
        return {field: value for field, value in toleration.items() if field != "tolerationSeconds"}
    return toleration


def _is_limited(toleration: Manifest | None) -> bool:
    """Report whether a toleration has tolerationSeconds."""
    return toleration is not None and toleration.get("tolerationSeconds") is not None


def _first(tolerations: list[Manifest], taint: Mapping[str, str]) -> Manifest | None:
    """Return the toleration that applies to a taint: the first that matches, as in Kubernetes."""
    return next((toleration for toleration in tolerations if tolerates(toleration, taint)), None)


def _unlimited(taint: Mapping[str, Any]) -> Manifest:
    """Return the toleration that tolerates a taint indefinitely."""
    return {"key": taint["key"], "operator": "Exists", "effect": _NO_EXECUTE}


def is_upper_only(key: str, values: Collection[str], keys: Collection[str], nodes: Collection[str]) -> bool:
    """Report whether a requirement is for the upper cluster: by its key, or because it names a virtual node."""
    return key in keys or (key in NAMING_NODES and any(value in nodes for value in values))


def split_requirement(requirement: Manifest, keys: Collection[str], nodes: Collection[str]) -> Split:
    """Split one requirement.

    `keys` only exist in the upper cluster, `nodes` are the virtual nodes. A NotIn list may name nodes of both clusters.
    Any other list that names a virtual node is for the upper cluster.
    """
    values = requirement.get("values") or []
    if not is_upper_only(requirement["key"], values, keys, nodes):
        return Split(None, requirement)
    rest = [value for value in values if value not in nodes]
    if requirement["key"] in keys or requirement.get("operator") != "NotIn" or not rest:
        return Split(requirement, None)
    virtual = [value for value in values if value in nodes]
    return Split({**requirement, "values": virtual}, {**requirement, "values": rest})


def split_term(term: Manifest, keys: Collection[str], nodes: Collection[str]) -> Split:
    """Split one term, whose requirements all have to match. Unknown fields are in both parts.

    A term without requirements matches no node, and is left to the lower scheduler.
    """
    if not has_requirements(term):
        return Split(None, term)
    upper, lower = {}, {}
    for field in LISTS:
        parts = [split_requirement(one, keys, nodes) for one in term.get(field) or ()]
        upper[field] = [part.upper for part in parts if part.upper is not None]
        lower[field] = [part.lower for part in parts if part.lower is not None]
    rest = {field: value for field, value in term.items() if field not in LISTS}
    return Split(_term(upper, rest), _term(lower, rest))


def has_requirements(term: Manifest) -> bool:
    """Report whether a term has requirements. A term without any matches no node."""
    return any(term.get(field) for field in LISTS)


def matches(term: Manifest, node: str, labels: Mapping[str, str]) -> bool:
    """Report whether a node with that name and these labels matches a term, as in the scheduler."""
    requirements = [(one, labels) for one in term.get("matchExpressions") or ()]
    requirements += [(one, {NAME_FIELD: node}) for one in term.get("matchFields") or ()]
    return bool(requirements) and all(_holds(requirement, present) for requirement, present in requirements)


def meets(spec: Manifest, node: str, labels: Mapping[str, str]) -> bool:
    """Report whether a node matches a pod's spec: its nodeSelector, and one term of its node affinity."""
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    required = required_of(spec)
    return required is None or any(matches(term, node, labels) for term in required.get("nodeSelectorTerms") or ())


def required_of(spec: Manifest) -> Manifest | None:
    """Return the required node affinity of a spec, None for none."""
    found: Manifest | None = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED)
    return found


def _term(lists: Mapping[str, list[Manifest]], rest: Manifest) -> Manifest | None:
    """Build a term, None if it would have no requirements."""
    kept = {field: requirements for field, requirements in lists.items() if requirements}
    return {**rest, **kept} if kept else None


def _holds(requirement: Manifest, present: Mapping[str, str]) -> bool:
    """Report whether one requirement matches. An unknown operator never does."""
    test = _OPERATORS.get(requirement.get("operator") or "")
    return test is not None and test(present.get(requirement["key"]), requirement.get("values") or [])


def _compared(found: str | None, values: list[str], fits: Callable[[int, int], bool]) -> bool:
    """Compare two integers. Other values are never greater or less."""
    try:
        return found is not None and len(values) == 1 and fits(int(found), int(values[0]))
    except ValueError:
        return False


_OPERATORS: Mapping[str, Callable[[str | None, list[str]], bool]] = {
    "In": lambda found, values: found is not None and found in values,
    "NotIn": lambda found, values: found not in values,
    "Exists": lambda found, _values: found is not None,
    "DoesNotExist": lambda found, _values: found is None,
    "Gt": lambda found, values: _compared(found, values, lambda one, other: one > other),
    "Lt": lambda found, values: _compared(found, values, lambda one, other: one < other),
}


def left_alone(topology: Topology, own_namespace: str = "") -> frozenset[str]:
    """Return the namespaces whose pods are never prepared for virtual nodes.

    These are the ones whose pods are not mirrored, and those of the webhook, which must not block itself:
    `own_namespace` ("" for none), and that of its Service.
    """
    service = topology.webhook.service
    own = {own_namespace, service.namespace if service else ""} - {""}
    return frozenset({SYSTEM_NAMESPACE, *topology.exclude_namespaces, *own})


def taints_of(lowers: Iterable[Lower]) -> tuple[Manifest, ...]:
    """Return the taints of the lowers' virtual nodes in the topology, each once."""
    found: dict[tuple[str, str, str], Manifest] = {}
    for lower in lowers:
        for one in lower.node.taints:
            found[one.key, one.value, one.effect] = {"key": one.key, "value": one.value, "effect": one.effect}
    return tuple(found.values())


class _Requirement(msgspec.Struct, gc=False):
    """One expression on nodes or labels."""

    key: str
    operator: str = ""
    values: list[str] | None = None


_Requirements = Annotated[list[_Requirement], _MANY]


class _NodeTerm(msgspec.Struct):
    """The requirements of one node selector term."""

    matchExpressions: _Requirements | None = None  # noqa: N815 - the API's spelling, here and below
    matchFields: _Requirements | None = None  # noqa: N815


class _NodeSelector(msgspec.Struct):
    """Node selector terms, of which one has to match."""

    nodeSelectorTerms: Annotated[list[_NodeTerm], _MANY] | None = None  # noqa: N815


class _Preference(msgspec.Struct):
    """A preferred node selector term."""

    preference: _NodeTerm | None = None
    weight: int = 0


class _NodeAffinity(msgspec.Struct):
    """Node affinity."""

    requiredDuringSchedulingIgnoredDuringExecution: _NodeSelector | None = None  # noqa: N815
    preferredDuringSchedulingIgnoredDuringExecution: Annotated[list[_Preference], _MANY] | None = None  # noqa: N815


class _LabelSelector(msgspec.Struct):
    """A label selector."""

    matchLabels: dict[str, str] | None = None  # noqa: N815
    matchExpressions: _Requirements | None = None  # noqa: N815


class _PodTerm(msgspec.Struct):
    """A pod affinity term: which pods, and in which topology domain."""

    topologyKey: str = ""  # noqa: N815
    labelSelector: _LabelSelector | None = None  # noqa: N815
    namespaceSelector: _LabelSelector | None = None  # noqa: N815
    namespaces: list[str] | None = None
    matchLabelKeys: list[str] | None = None  # noqa: N815
    mismatchLabelKeys: list[str] | None = None  # noqa: N815


class _WeightedPodTerm(msgspec.Struct):
    """A preferred pod affinity term."""

    podAffinityTerm: _PodTerm  # noqa: N815
    weight: int = 0


class _PodAffinity(msgspec.Struct):
    """Pod affinity or anti-affinity."""

    requiredDuringSchedulingIgnoredDuringExecution: Annotated[list[_PodTerm], _MANY] | None = None  # noqa: N815
    preferredDuringSchedulingIgnoredDuringExecution: Annotated[list[_WeightedPodTerm], _MANY] | None = None  # noqa: N815


class _Affinity(msgspec.Struct):
    """The three kinds of affinity."""

    nodeAffinity: _NodeAffinity | None = None  # noqa: N815
    podAffinity: _PodAffinity | None = None  # noqa: N815
    podAntiAffinity: _PodAffinity | None = None  # noqa: N815


class _Toleration(msgspec.Struct, gc=False):
    """One toleration."""

    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None
    tolerationSeconds: Annotated[int, _SECONDS] | None = None  # noqa: N815


class _ClusterSelector(msgspec.Struct):
    """The annotation as a whole."""

    nodeSelector: dict[str, str] | None = None  # noqa: N815
    affinity: _Affinity | None = None
    tolerations: Annotated[list[_Toleration], _MANY] | None = None


def cluster_selector(upper_pod: Manifest) -> Manifest | None:
    """Return the constraints in the pod's annotation, None if it is missing or invalid."""
    text = annotations(upper_pod).get(CLUSTER_SELECTOR)
    return _read(text)[0] if text else None


def cluster_selector_flaw(upper_pod: Manifest) -> str:
    """Return what is wrong with the pod's annotation, "" for nothing."""
    text = annotations(upper_pod).get(CLUSTER_SELECTOR)
    return _read(text)[1] if text else ""


def selector_flaw(selector: Any) -> str:
    """Return what is wrong with decoded constraints, by type or size, "" for nothing."""
    try:
        msgspec.convert(selector, _ClusterSelector)
    except msgspec.ValidationError as error:
        return str(error)
    return "" if _is_flat(selector) else f"objects and lists are nested more than {_DEEPEST} levels deep"


def _read(text: str) -> tuple[Manifest | None, str]:
    """Decode the annotation. Return its content and "", or None and what is wrong with it."""
    if len(text) > LONGEST:
        return None, f"it has {len(text):,} characters; the limit is {LONGEST:,}"
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        return None, str(error)
    flaw = selector_flaw(found)
    return (None, flaw) if flaw else (found, "")


def _is_flat(found: Any) -> bool:
    """Report whether a decoded value is within the limit of nesting, so that it can be walked and encoded again."""
    level: Iterable[Any] = (found,)
    for _ in range(_DEEPEST):
        level = [inner for one in level for inner in _inner(one) if isinstance(inner, dict | list)]
        if not level:
            return True
    return False


def _inner(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value
