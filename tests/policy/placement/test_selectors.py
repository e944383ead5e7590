"""Tests that selectors match as in Kubernetes; the cases are those of its label, field and node selector packages."""

from typing import Any

import pytest

from tensile.policy.placement.selectors import (
    is_empty,
    label_test,
    node_test,
    only_nodes,
    required_test,
    requirement_test,
    with_keys,
)

NAME = "metadata.name"


def need(key: str, operator: str, *values: str) -> dict[str, Any]:
    """Return a requirement."""
    return {"key": key, "operator": operator} | ({"values": list(values)} if values else {})


def term(*expressions: dict[str, Any], fields: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    """Return a node selector term."""
    return {"matchExpressions": list(expressions), "matchFields": list(fields)}


@pytest.mark.parametrize(
    ("requirement", "labels", "holds"),
    [
        (need("a", "In", "1", "2"), {"a": "2"}, True),
        (need("a", "In", "1", "2"), {"a": "3"}, False),
        (need("a", "In", "1"), {}, False),
        (need("a", "NotIn", "1"), {"a": "1"}, False),
        (need("a", "NotIn", "1"), {"a": "2"}, True),
        (need("a", "NotIn", "1"), {}, True),
        (need("a", "Exists"), {"a": ""}, True),
        (need("a", "Exists"), {}, False),
        (need("a", "DoesNotExist"), {}, True),
        (need("a", "DoesNotExist"), {"a": "1"}, False),
        (need("a", "Gt", "9"), {"a": "10"}, True),
        (need("a", "Gt", "9"), {"a": "9"}, False),
        (need("a", "Lt", "9"), {"a": "8"}, True),
        (need("a", "Lt", "9"), {"a": "-8"}, True),
        (need("a", "Lt", "9"), {"a": "eight"}, False),
        (need("a", "Lt", "9"), {}, False),
        (need("a", "Lt", "nine"), {"a": "8"}, False),
        (need("a", "Lt", "9"), {"a": str(-(2**63) - 1)}, False),
        (need("a", "Gt", "1_0"), {"a": "20"}, False),
        (need("a", "Gt", "1", "2"), {"a": "3"}, False),
        (need("a", "Near", "1"), {"a": "1"}, False),
    ],
)
def test_requirement_test_implements_every_operator(
    requirement: dict[str, Any], labels: dict[str, str], *, holds: bool
) -> None:
    """The label may be missing or no number, and an unknown operator never matches."""
    assert requirement_test(requirement)(labels) == holds


@pytest.mark.parametrize(
    ("selector", "labels", "holds"),
    [
        (None, {"a": "1"}, False),
        ({}, {}, True),
        ({"matchLabels": {"a": "1"}}, {"a": "1", "b": "2"}, True),
        ({"matchLabels": {"a": "1"}}, {"b": "2"}, False),
        ({"matchLabels": {"a": "1"}, "matchExpressions": [need("b", "Exists")]}, {"a": "1"}, False),
        ({"matchLabels": {"a": "1"}, "matchExpressions": [need("b", "Exists")]}, {"a": "1", "b": ""}, True),
    ],
)
def test_label_test_needs_all_parts_of_a_selector(
    selector: dict[str, Any] | None, labels: dict[str, str], *, holds: bool
) -> None:
    """No selector matches nothing, and an empty one matches everything."""
    assert label_test(selector)(labels) == holds


def test_is_empty_distinguishes_an_empty_selector_from_none() -> None:
    """The scheduler counts no pods for an empty selector."""
    assert is_empty({})
    assert is_empty({"matchLabels": {}, "matchExpressions": []})
    assert not is_empty(None)
    assert not is_empty({"matchLabels": {"a": "1"}})


def test_with_keys_adds_expressions_for_the_pods_own_labels() -> None:
    """MatchLabelKeys need the same value and mismatchLabelKeys another one; a key that the pod lacks is ignored."""
    own = {"version": "2", "team": "red"}
    test = label_test(with_keys({"matchLabels": {"app": "web"}}, own, ("version", "absent"), ("team",)))
    assert test({"app": "web", "version": "2"})
    assert not test({"app": "web", "version": "1"})
    assert not test({"app": "web", "version": "2", "team": "red"})
    assert not test({"version": "2"})


def test_with_keys_of_no_selector_is_no_selector() -> None:
    """It still matches nothing."""
    assert with_keys(None, {"version": "2"}, ("version",)) is None


def test_one_matching_node_selector_term_is_sufficient() -> None:
    """Terms are alternatives, and all expressions of one term must hold."""
    test = node_test([term(need("a", "Exists"), need("b", "Exists")), term(need("c", "Exists"))])
    assert test("n", {"a": "", "b": ""})
    assert test("n", {"c": ""})
    assert not test("n", {"a": ""})


def test_an_empty_term_matches_nothing() -> None:
    """An empty list of terms matches nothing either, as in Kubernetes."""
    assert not node_test([{}, term()])("n", {"a": ""})
    assert not node_test([])("n", {})


@pytest.mark.parametrize(
    ("field", "name", "holds"),
    [
        (need(NAME, "In", "n1"), "n1", True),
        (need(NAME, "In", "n1"), "n2", False),
        (need(NAME, "NotIn", "n1"), "n2", True),
        (need(NAME, "NotIn", "n1"), "n1", False),
        (need(NAME, "In", "n1", "n2"), "n1", False),
        (need(NAME, "Exists"), "n1", False),
        (need("spec.other", "In", "n1"), "n1", False),
        (need(NAME, "In", "n1"), "", True),
    ],
)
def test_match_fields_select_a_node_by_one_name(field: dict[str, Any], name: str, *, holds: bool) -> None:
    """Each requirement has one name; for volumes a node has no name, and fields are ignored."""
    assert node_test([term(fields=(field,))])(name, {}) == holds


def test_fields_and_labels_of_a_term_must_both_hold() -> None:
    """The named node needs the label too."""
    test = node_test([term(need("a", "Exists"), fields=(need(NAME, "In", "n1"),))])
    assert test("n1", {"a": ""})
    assert not test("n1", {})
    assert not test("n2", {"a": ""})


def affine(*terms: dict[str, Any], **selector: str) -> dict[str, Any]:
    """Return a spec with a required node affinity and a nodeSelector."""
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"nodeSelector": selector, "affinity": {"nodeAffinity": required}}


def test_node_selector_and_node_affinity_must_both_hold() -> None:
    """A node that satisfies only one of them does not match."""
    test = required_test(affine(term(need("a", "Exists")), disk="ssd"))
    assert test is not None
    assert test("n", {"a": "", "disk": "ssd"})
    assert not test("n", {"a": ""})
    assert not test("n", {"disk": "ssd"})


@pytest.mark.parametrize("spec", [{}, {"nodeSelector": {}}, {"affinity": {"nodeAffinity": {}}}, {"affinity": None}])
def test_required_test_of_a_pod_without_constraints_is_none(spec: dict[str, Any]) -> None:
    """Such a pod matches every node without a test."""
    assert required_test(spec) is None


def test_a_node_selector_without_affinity_is_a_test_of_labels() -> None:
    """A node with another value does not match."""
    test = required_test({"nodeSelector": {"disk": "ssd"}})
    assert test is not None
    assert test("n", {"disk": "ssd"})
    assert not test("n", {"disk": "hdd"})


def test_only_nodes_returns_names_if_every_term_names_nodes() -> None:
    """A term without names allows all nodes."""
    one, other = term(fields=(need(NAME, "In", "n1"),)), term(fields=(need(NAME, "In", "n2"),))
    assert only_nodes([one, other]) == {"n1", "n2"}
    assert only_nodes([one, term(need("a", "Exists"))]) is None
    assert only_nodes([term(fields=(need(NAME, "NotIn", "n1"),))]) is None
    assert only_nodes([]) is None
    assert only_nodes(None) is None


def test_a_term_with_two_different_names_matches_no_node() -> None:
    """No node can have both names."""
    both = term(fields=(need(NAME, "In", "n1"), need(NAME, "In", "n2")))
    assert only_nodes([both]) == frozenset()
