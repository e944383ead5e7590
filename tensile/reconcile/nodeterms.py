"""Requirements on nodes, as Kubernetes reads them, and which of them are about the upper cluster.

A pod above asks for two things in one list: for a lower cluster (by a label or the name of its virtual node) and for
nodes inside it. Who takes such lists apart, before the pod is scheduled and after, has to draw the line in one place.
"""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from tensile.objects import Manifest

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
    """Say whether a requirement is about the upper cluster: by its key, or by naming a virtual node."""
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
    """Say whether a term asks for anything; one that does not matches no node at all."""
    return any(term.get(field) for field in LISTS)


def matches(term: Manifest, node: str, labels: Mapping[str, str]) -> bool:
    """Say whether a node of that name with these labels meets a term, as the scheduler does."""
    asked = [(one, labels) for one in term.get("matchExpressions") or ()]
    asked += [(one, {NAME_FIELD: node}) for one in term.get("matchFields") or ()]
    return bool(asked) and all(_holds(requirement, carried) for requirement, carried in asked)


def meets(spec: Manifest, node: str, labels: Mapping[str, str]) -> bool:
    """Say whether a node has what a pod's spec requires: its nodeSelector, and one term of its node affinity."""
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    required = required_of(spec)
    return required is None or any(matches(term, node, labels) for term in required.get("nodeSelectorTerms") or ())


def required_of(spec: Manifest) -> Manifest | None:
    """Give what a spec requires of nodes by affinity, None where it requires nothing."""
    found: Manifest | None = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED)
    return found


def _term(lists: Mapping[str, list[Manifest]], rest: Manifest) -> Manifest | None:
    """Put a term together; None where it would ask for nothing."""
    kept = {field: requirements for field, requirements in lists.items() if requirements}
    return {**rest, **kept} if kept else None


def _holds(requirement: Manifest, carried: Mapping[str, str]) -> bool:
    """Say whether one requirement holds; an operator that is not known never does."""
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
