"""Tolerations: those that a pod bound to a virtual node needs above, and those that go down with it.

An engine that is down lets its node leases lapse, and Kubernetes then evicts after 300 s what does not tolerate it for
longer. Whether a pod leaves an unreachable cluster is for the topology to say, so pods on virtual nodes tolerate a
node that is not ready or unreachable without a limit. Below, real nodes fail, and the usual limits are wanted.

Requirements on nodes, as Kubernetes reads them, and which of them are about the upper cluster.

A pod above asks for two things in one list: for a lower cluster (by a label or the name of its virtual node) and for
nodes inside it. Who takes such lists apart, before the pod is scheduled and after, has to draw the line in one place.

Which pods asked for a virtual node, and what a virtual node asks of them.

The label `virtual-pod` is the author's word. It counts in the same namespaces for everybody: for the webhook, and for
the engine where no webhook was.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from tensile.objects import Manifest, tolerates
from tensile.topology import Lower, Topology

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
_NO_EXECUTE = "NoExecute"
_LAPSES = tuple({"key": key, "effect": _NO_EXECUTE} for key in (NOT_READY, UNREACHABLE))


def tolerations_for_upper(upper_pod: Manifest, taints: Iterable[Mapping[str, Any]] = ()) -> list[Manifest] | None:
    """Return the tolerations that an upper pod should have, None when it has them; `taints` are to be tolerated too.

    Kubernetes allows a bound pod's tolerations to lose or change their seconds and to gain company, never to go. The
    first one that matches a taint decides how long it is tolerated, so where that one is limited and meant for more
    taints than these two, an unlimited one is put before it.
    """
    present: list[Manifest] = upper_pod["spec"].get("tolerations") or []
    freed = [_freed(toleration) for toleration in present]
    before = [_unlimited(taint) for taint in _LAPSES if _is_limited(_first(freed, taint))]
    after = [_unlimited(taint) for taint in _LAPSES if _first(freed, taint) is None]
    wanted = before + freed + after + lacking_for(freed, taints)
    return None if wanted == present else wanted


def tolerations_on_admission(present: list[Manifest], taints: Iterable[Mapping[str, Any]]) -> list[Manifest]:
    """Return the tolerations that a pod is to be created with, which has no node yet.

    Those of a node that is not ready or unreachable become unlimited, and are there for all to see, also where another
    one covers them; then come those of the virtual nodes' `taints` that the pod does not tolerate yet.
    """
    freed = [_unlimited(one) if _is_of_lapse(one) else one for one in present]
    lacking = [taint for taint in _LAPSES if not any(_names(one, taint) for one in freed)]
    before = [_unlimited(taint) for taint in lacking if _is_limited(_first(freed, taint))]
    after = [_unlimited(taint) for taint in lacking if not _is_limited(_first(freed, taint))]
    return before + freed + after + lacking_for(freed, taints)


def lacking_for(present: Iterable[Manifest], taints: Iterable[Mapping[str, Any]]) -> list[Manifest]:
    """Return the tolerations of taints that are not tolerated by what is present."""
    found = tuple(present)
    lacking = [taint for taint in taints if not any(tolerates(one, taint) for one in found)]
    return [toleration_of(taint) for taint in lacking]


def toleration_of(taint: Mapping[str, Any]) -> Manifest:
    """Return the toleration of just that taint."""
    if taint.get("value"):
        return {"key": taint["key"], "operator": "Equal", "value": taint["value"], "effect": taint["effect"]}
    return {"key": taint["key"], "operator": "Exists", "effect": taint["effect"]}


def for_lower(tolerations: Iterable[Manifest], taints: Iterable[Mapping[str, Any]]) -> list[Manifest]:
    """Return the tolerations that mean something below.

    Those of the virtual nodes' own taints do not, nor do the unlimited ones of a lapsed node: admission below adds its
    own limits where these are missing.
    """
    above = tuple(taints)
    return [kept for kept in tolerations if not _is_for_upper(kept, above)]


def subject(toleration: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what tells tolerations apart: all but the seconds, which Kubernetes lets change."""
    return tuple(toleration.get(field) or "" for field in ("key", "operator", "value", "effect"))


def _is_for_upper(toleration: Manifest, taints: tuple[Mapping[str, Any], ...]) -> bool:
    """Report whether a toleration means something above only."""
    key = toleration.get("key")
    if not key:
        return False
    if key in (NOT_READY, UNREACHABLE):
        return "tolerationSeconds" not in toleration and tolerates(toleration, {"key": key, "effect": _NO_EXECUTE})
    return any(tolerates(toleration, taint) for taint in taints)


def _is_of_lapse(toleration: Manifest) -> bool:
    """Report whether a toleration is for evictions from a lapsed node alone, and ends after some seconds."""
    return any(_names(toleration, taint) for taint in _LAPSES) and _is_limited(toleration)


def _names(toleration: Manifest, taint: Mapping[str, str]) -> bool:
    """Report whether a toleration is for that taint by its key."""
    return toleration.get("key") == taint["key"] and toleration.get("effect") in (_NO_EXECUTE, "", None)


def _freed(toleration: Manifest) -> Manifest:
    """Take the limit off a toleration that is for a lapsed node alone."""
    if toleration.get("key") in (NOT_READY, UNREACHABLE) and _is_limited(toleration):
        return {field: value for field, value in toleration.items() if field != "tolerationSeconds"}
    return toleration


def _is_limited(toleration: Manifest | None) -> bool:
    """Report whether a toleration ends after some seconds."""
    return toleration is not None and toleration.get("tolerationSeconds") is not None


def _first(tolerations: list[Manifest], taint: Mapping[str, str]) -> Manifest | None:
    """Return the toleration that decides about a taint: the first that matches, as in Kubernetes."""
    return next((toleration for toleration in tolerations if tolerates(toleration, taint)), None)


def _unlimited(taint: Mapping[str, Any]) -> Manifest:
    """Make the toleration that holds a taint off for ever."""
    return {"key": taint["key"], "operator": "Exists", "effect": _NO_EXECUTE}


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
HOSTNAME = "kubernetes.io/hostname"
NAME_FIELD = "metadata.name"
NAMING_NODES = frozenset({HOSTNAME, NAME_FIELD})
"""Keys by which a requirement names nodes."""
UPPER_ONLY_KEYS = frozenset({"type", "kubernetes.io/role"})
"""Label keys by which virtual nodes are known, whatever the topology says."""
LISTS = ("matchExpressions", "matchFields")
"""The two lists of requirements in a node selector term."""


class Split(NamedTuple):
    """One requirement, or one term, in its two parts: for the upper scheduler and for the lower; None for none."""

    above: Manifest | None
    below: Manifest | None


def is_upper_only(key: str, values: Collection[str], keys: Collection[str], nodes: Collection[str]) -> bool:
    """Report whether a requirement is about the upper cluster: by its key, or by naming a virtual node."""
    return key in keys or (key in NAMING_NODES and any(value in nodes for value in values))


def split_requirement(requirement: Manifest, keys: Collection[str], nodes: Collection[str]) -> Split:
    """Take one requirement apart.

    `keys` are those that exist above only, `nodes` the virtual nodes. A list of nodes to avoid may name some of either
    cluster; a list of nodes to use that names a virtual one is met above.
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
    """Take one term apart, whose requirements all have to hold; fields that are not known go with both parts.

    One without requirements matches no node, and is left to the lower scheduler.
    """
    if not has_requirements(term):
        return Split(None, term)
    above, below = {}, {}
    for field in LISTS:
        parts = [split_requirement(one, keys, nodes) for one in term.get(field) or ()]
        above[field] = [part.above for part in parts if part.above is not None]
        below[field] = [part.below for part in parts if part.below is not None]
    rest = {field: value for field, value in term.items() if field not in LISTS}
    return Split(_term(above, rest), _term(below, rest))


def has_requirements(term: Manifest) -> bool:
    """Report whether a term asks for anything; one that does not matches no node at all."""
    return any(term.get(field) for field in LISTS)


def matches(term: Manifest, node: str, labels: Mapping[str, str]) -> bool:
    """Report whether a node of that name with these labels meets a term, as the scheduler does."""
    asked = [(one, labels) for one in term.get("matchExpressions") or ()]
    asked += [(one, {NAME_FIELD: node}) for one in term.get("matchFields") or ()]
    return bool(asked) and all(_holds(requirement, carried) for requirement, carried in asked)


def meets(spec: Manifest, node: str, labels: Mapping[str, str]) -> bool:
    """Report whether a node has what a pod's spec requires: its nodeSelector, and one term of its node affinity."""
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    required = required_of(spec)
    return required is None or any(matches(term, node, labels) for term in required.get("nodeSelectorTerms") or ())


def required_of(spec: Manifest) -> Manifest | None:
    """Return what a spec requires of nodes by affinity, None where it requires nothing."""
    found: Manifest | None = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED)
    return found


def _term(lists: Mapping[str, list[Manifest]], rest: Manifest) -> Manifest | None:
    """Put a term together; None where it would ask for nothing."""
    kept = {field: requirements for field, requirements in lists.items() if requirements}
    return {**rest, **kept} if kept else None


def _holds(requirement: Manifest, carried: Mapping[str, str]) -> bool:
    """Report whether one requirement holds; an operator that is not known never does."""
    test = _OPERATORS.get(requirement.get("operator") or "")
    return test is not None and test(carried.get(requirement["key"]), requirement.get("values") or [])


def _compared(found: str | None, values: list[str], fits: Callable[[int, int], bool]) -> bool:
    """Compare two integers; what is none is never greater or less."""
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


SYSTEM_NAMESPACE = "kube-system"


def left_alone(topology: Topology, own_namespace: str = "") -> frozenset[str]:
    """Return the namespaces whose pods are never prepared for virtual nodes.

    Those whose pods are not mirrored, and where the webhook runs (`own_namespace`, "" for in none, and where its
    Service is): it must not stand in its own way.
    """
    service = topology.webhook.service
    own = {own_namespace, service.namespace if service else ""} - {""}
    return frozenset({SYSTEM_NAMESPACE, *topology.exclude_namespaces, *own})


def taints_of(lowers: Iterable[Lower]) -> tuple[Manifest, ...]:
    """Return the taints of the lowers' virtual nodes that the topology gives them, each once."""
    found: dict[tuple[str, str, str], Manifest] = {}
    for lower in lowers:
        for one in lower.node.taints:
            found[one.key, one.value, one.effect] = {"key": one.key, "value": one.value, "effect": one.effect}
    return tuple(found.values())
