"""Selectors pick what Kubernetes' own pick; the cases are those of its label, field and node selector packages."""

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
    """Make a requirement."""
    return {"key": key, "operator": operator} | ({"values": list(values)} if values else {})


def term(*expressions: dict[str, Any], fields: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    """Make a node selector term."""
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
def test_a_requirement(requirement: dict[str, Any], labels: dict[str, str], *, holds: bool) -> None:
    """Each operator, also of a label that is missing or no number, and an operator that there is not."""
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
def test_a_label_selector(selector: dict[str, Any] | None, labels: dict[str, str], *, holds: bool) -> None:
    """None selects nothing, an empty one everything, and all that one says has to hold."""
    assert label_test(selector)(labels) == holds


def test_an_empty_selector_is_told_from_none() -> None:
    """The scheduler counts nothing for one that is there and empty."""
    assert is_empty({})
    assert is_empty({"matchLabels": {}, "matchExpressions": []})
    assert not is_empty(None)
    assert not is_empty({"matchLabels": {"a": "1"}})


def test_keys_of_the_pod_become_expressions() -> None:
    """Of matchLabelKeys the own value is asked for, of mismatchLabelKeys another; a key that it lacks says nothing."""
    own = {"version": "2", "team": "red"}
    test = label_test(with_keys({"matchLabels": {"app": "web"}}, own, ("version", "absent"), ("team",)))
    assert test({"app": "web", "version": "2"})
    assert not test({"app": "web", "version": "1"})
    assert not test({"app": "web", "version": "2", "team": "red"})
    assert not test({"version": "2"})


def test_keys_do_not_make_a_selector_of_none() -> None:
    """What selects nothing goes on to."""
    assert with_keys(None, {"version": "2"}, ("version",)) is None


def test_one_term_is_enough() -> None:
    """Terms are alternatives, and what stands in one has to hold together."""
    test = node_test([term(need("a", "Exists"), need("b", "Exists")), term(need("c", "Exists"))])
    assert test("n", {"a": "", "b": ""})
    assert test("n", {"c": ""})
    assert not test("n", {"a": ""})


def test_an_empty_term_selects_nothing() -> None:
    """As in Kubernetes, where an empty list of terms selects nothing either."""
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
def test_a_field(field: dict[str, Any], name: str, *, holds: bool) -> None:
    """Nodes by name, one name in a requirement; where a volume asks, a node has no name and fields say nothing."""
    assert node_test([term(fields=(field,))])(name, {}) == holds


def test_fields_and_labels_of_a_term_hold_together() -> None:
    """The named node has to have the label too."""
    test = node_test([term(need("a", "Exists"), fields=(need(NAME, "In", "n1"),))])
    assert test("n1", {"a": ""})
    assert not test("n1", {})
    assert not test("n2", {"a": ""})


def affine(*terms: dict[str, Any], **selector: str) -> dict[str, Any]:
    """Make a spec with a required node affinity and a nodeSelector."""
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"nodeSelector": selector, "affinity": {"nodeAffinity": required}}


def test_selector_and_affinity_hold_together() -> None:
    """A pod with both needs a node that meets both."""
    test = required_test(affine(term(need("a", "Exists")), disk="ssd"))
    assert test is not None
    assert test("n", {"a": "", "disk": "ssd"})
    assert not test("n", {"a": ""})
    assert not test("n", {"disk": "ssd"})


@pytest.mark.parametrize("spec", [{}, {"nodeSelector": {}}, {"affinity": {"nodeAffinity": {}}}, {"affinity": None}])
def test_a_pod_that_selects_no_nodes(spec: dict[str, Any]) -> None:
    """There is nothing to judge by."""
    assert required_test(spec) is None


def test_a_selector_alone() -> None:
    """Labels and no affinity."""
    test = required_test({"nodeSelector": {"disk": "ssd"}})
    assert test is not None
    assert test("n", {"disk": "ssd"})
    assert not test("n", {"disk": "hdd"})


def test_only_named_nodes() -> None:
    """Where each term names nodes, no others come into question; one that names none lets all in."""
    one, other = term(fields=(need(NAME, "In", "n1"),)), term(fields=(need(NAME, "In", "n2"),))
    assert only_nodes([one, other]) == {"n1", "n2"}
    assert only_nodes([one, term(need("a", "Exists"))]) is None
    assert only_nodes([term(fields=(need(NAME, "NotIn", "n1"),))]) is None
    assert only_nodes([]) is None
    assert only_nodes(None) is None


def test_names_that_exclude_each_other() -> None:
    """Two names asked for at once are those of no node."""
    both = term(fields=(need(NAME, "In", "n1"), need(NAME, "In", "n2")))
    assert only_nodes([both]) == frozenset()
