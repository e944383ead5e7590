"""Label selectors and node selectors as functions, with the semantics of Kubernetes.

They are built once for a pod and applied to thousands of nodes and pods. A selector that Kubernetes cannot parse
matches nothing, here as there.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

Labels = Mapping[str, str]
Test = Callable[[Labels], bool]
NodeTest = Callable[[str, Labels], bool]
"""Whether a node with this name and these labels is selected."""

_INTEGER = re.compile(r"[+-]?[0-9]+")
_MAX_INTEGER = 2**63
_MAX_SCANNED = 8
"""Up to this number of values a scan is as fast as a lookup."""
_NAME = "metadata.name"


def select_none(_labels: Labels) -> bool:
    """Return False: select nothing."""
    return False


def label_test(selector: Mapping[str, Any] | None) -> Test:
    """Return the function of a LabelSelector: None selects nothing, an empty one everything."""
    if selector is None:
        return select_none
    wanted = dict(selector.get("matchLabels") or {})
    tests = [requirement_test(one) for one in selector.get("matchExpressions") or ()]
    return lambda labels: (
        all(labels.get(key) == text for key, text in wanted.items()) and all(test(labels) for test in tests)
    )


def comparisons(selector: Mapping[str, Any] | None) -> int:
    """Return how many comparisons a LabelSelector takes."""
    return len(selector.get("matchLabels") or ()) + len(selector.get("matchExpressions") or ()) if selector else 0


def is_empty(selector: Mapping[str, Any] | None) -> bool:
    """Report whether a LabelSelector is present and without requirements."""
    return selector is not None and not selector.get("matchLabels") and not selector.get("matchExpressions")


def with_keys(
    selector: Mapping[str, Any] | None, labels: Labels, same: Sequence[str], other: Sequence[str] = ()
) -> Mapping[str, Any] | None:
    """Return a LabelSelector with matchLabelKeys and mismatchLabelKeys of a pod with these labels added.

    The apiserver adds them when a pod is created; adding them twice changes nothing.
    """
    if selector is None:
        return None
    added = [{"key": key, "operator": "In", "values": [labels[key]]} for key in same if key in labels]
    added += [{"key": key, "operator": "NotIn", "values": [labels[key]]} for key in other if key in labels]
    return {**selector, "matchExpressions": [*(selector.get("matchExpressions") or ()), *added]} if added else selector


def requirement_test(requirement: Mapping[str, Any]) -> Test:
    """Return the function of one label requirement."""
    key: str = requirement["key"]
    values: Collection[str] = requirement.get("values") or []
    if len(values) > _MAX_SCANNED:
        values = frozenset(values)
    match requirement.get("operator"):
        case "In":
            return lambda labels: labels.get(key) in values
        case "NotIn":
            return lambda labels: labels.get(key) not in values
        case "Exists":
            return lambda labels: key in labels
        case "DoesNotExist":
            return lambda labels: key not in labels
        case "Gt" | "Lt" as operator if len(values) == 1:
            return _comparison(key, operator, *values)
    return select_none


def node_test(terms: Sequence[Mapping[str, Any]]) -> NodeTest:
    """Return the function of node selector terms: one must hold, and an empty one never does."""
    tests = [_term_test(term) for term in terms if term.get("matchExpressions") or term.get("matchFields")]
    return lambda name, labels: any(test(name, labels) for test in tests)


def required_test(spec: Mapping[str, Any]) -> NodeTest | None:
    """Return the function of a pod's nodeSelector and required node affinity; None if it has neither."""
    wanted = dict(spec.get("nodeSelector") or {})
    required = required_terms(spec)
    if required is None:
        return (lambda _name, labels: _has_all(labels, wanted)) if wanted else None
    affinity_test = node_test(required)
    return lambda name, labels: _has_all(labels, wanted) and affinity_test(name, labels)


def required_terms(spec: Mapping[str, Any]) -> Sequence[Mapping[str, Any]] | None:
    """Return the terms of a pod's required node affinity, None if it has none."""
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    return None if required is None else required.get("nodeSelectorTerms") or ()


def only_nodes(terms: Sequence[Mapping[str, Any]] | None) -> frozenset[str] | None:
    """Return the only nodes that terms can select if every term names some; None otherwise."""
    named = [_named(term) for term in terms or ()]
    if not named or any(one is None for one in named):
        return None
    return frozenset[str]().union(*(one for one in named if one is not None))


def _named(term: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the nodes that a term names, None if it names none."""
    fields = [one for one in term.get("matchFields") or () if one["key"] == _NAME and one.get("operator") == "In"]
    sets = [frozenset(one.get("values") or ()) for one in fields]
    return frozenset.intersection(*sets) if sets else None


def _term_test(term: Mapping[str, Any]) -> NodeTest:
    """Return the function of one term: all its requirements must hold."""
    tests = [requirement_test(one) for one in term.get("matchExpressions") or ()]
    fields = [_field_test(one) for one in term.get("matchFields") or ()]
    return lambda name, labels: all(test(labels) for test in tests) and all(test(name) for test in fields)


def _field_test(requirement: Mapping[str, Any]) -> Callable[[str], bool]:
    """Return the function of a requirement on node fields; a node without a name (for volumes) satisfies all."""
    values: list[str] = requirement.get("values") or []
    operator = requirement.get("operator")
    if len(values) != 1 or operator not in ("In", "NotIn"):
        return lambda _name: False
    is_name = requirement["key"] == _NAME
    return lambda name: not name or ((name if is_name else "") == values[0]) == (operator == "In")


def _comparison(key: str, operator: str, limit: str) -> Test:
    """Return the function of a numeric comparison; a label that is not a number is neither greater nor less."""
    bound = _number(limit)
    if bound is None:
        return select_none

    def holds(labels: Labels) -> bool:
        """Compare one label."""
        number = _number(labels.get(key, ""))
        return number is not None and (number > bound if operator == "Gt" else number < bound)

    return holds


def _number(text: str) -> int | None:
    """Return a 64-bit integer, None for other text."""
    if not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if -_MAX_INTEGER <= number < _MAX_INTEGER else None


def _has_all(labels: Labels, wanted: Labels) -> bool:
    """Report whether labels include others."""
    return all(labels.get(key) == text for key, text in wanted.items())
