"""Tests of node requirements: evaluated as the scheduler does, and split between upper and lower cluster."""

from typing import Any

import pytest

from tensile.reconcile.pods.scheduling import (
    REQUIRED,
    UPPER_ONLY_KEYS,
    Split,
    matches,
    meets,
    split_requirement,
    split_term,
)

Manifest = dict[str, Any]

LABELS = {"disk": "ssd", "cores": "8", "zone": "a"}
NODES = frozenset({"vk-a", "vk-b"})


def make_requirement(key: str, operator: str, *values: str) -> Manifest:
    """Return a requirement."""
    return {"key": key, "operator": operator, "values": list(values)}


@pytest.mark.parametrize(
    ("requirement", "holds"),
    [
        (make_requirement("disk", "In", "hdd", "ssd"), True),
        (make_requirement("disk", "In", "hdd"), False),
        (make_requirement("gpu", "In", "ssd"), False),
        (make_requirement("disk", "NotIn", "hdd"), True),
        (make_requirement("disk", "NotIn", "ssd"), False),
        (make_requirement("gpu", "NotIn", "a"), True),
        (make_requirement("disk", "Exists"), True),
        (make_requirement("gpu", "Exists"), False),
        (make_requirement("gpu", "DoesNotExist"), True),
        (make_requirement("disk", "DoesNotExist"), False),
        (make_requirement("cores", "Gt", "4"), True),
        (make_requirement("cores", "Gt", "8"), False),
        (make_requirement("cores", "Lt", "16"), True),
        (make_requirement("cores", "Lt", "8"), False),
        (make_requirement("gpu", "Gt", "0"), False),
        (make_requirement("disk", "Gt", "0"), False),
        (make_requirement("cores", "Gt", "4", "5"), False),
        (make_requirement("disk", "Resembles", "ssd"), False),
    ],
)
def test_operators_match_as_in_the_scheduler(requirement: Manifest, *, holds: bool) -> None:
    """Each operator is tested with a label that matches, one that does not, and one that is absent."""
    assert matches({"matchExpressions": [requirement]}, "n1", LABELS) is holds


def test_all_requirements_of_a_term_must_match_and_the_field_is_the_node_name() -> None:
    """A term without expressions and fields matches no node."""
    disk, name = make_requirement("disk", "Exists"), make_requirement("metadata.name", "In", "n1")
    both = {"matchExpressions": [disk], "matchFields": [name]}
    assert matches(both, "n1", LABELS)
    assert not matches(both, "n2", LABELS)
    assert not matches(both, "n1", {})
    assert not matches({}, "n1", LABELS)


def test_a_spec_requires_its_node_selector_and_one_of_its_terms() -> None:
    """A spec without requirements matches every node, and an empty list of terms matches none."""
    terms = [
        {"matchExpressions": [make_requirement("gpu", "Exists")]},
        {"matchExpressions": [make_requirement("zone", "In", "a")]},
    ]
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}
    assert meets({}, "n1", {})
    assert meets({"affinity": affinity, "nodeSelector": {"disk": "ssd"}}, "n1", LABELS)
    assert not meets({"affinity": affinity}, "n1", {"disk": "ssd"})
    assert not meets({"nodeSelector": {"disk": "hdd"}}, "n1", LABELS)
    assert not meets({"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": []}}}}, "n1", LABELS)


@pytest.mark.parametrize(
    "requirement",
    [
        make_requirement("type", "Exists"),
        make_requirement("clusterID", "NotIn", "x"),
        make_requirement("kubernetes.io/hostname", "In", "vk-a"),
        make_requirement("metadata.name", "In", "vk-b", "n1"),
        make_requirement("kubernetes.io/hostname", "NotIn", "vk-a", "vk-b"),
    ],
)
def test_requirements_on_virtual_nodes_are_for_the_upper_cluster_only(requirement: Manifest) -> None:
    """Their keys are only labels of virtual nodes, or their values are names of virtual nodes."""
    keys = UPPER_ONLY_KEYS | {"clusterID"}
    assert split_requirement(requirement, keys, NODES) == Split(requirement, None)


@pytest.mark.parametrize(
    "requirement", [make_requirement("disk", "In", "vk-a"), make_requirement("kubernetes.io/hostname", "In", "n1")]
)
def test_other_requirements_are_for_the_lower_cluster(requirement: Manifest) -> None:
    """A label value that equals the name of a virtual node has no meaning."""
    assert split_requirement(requirement, UPPER_ONLY_KEYS, NODES) == Split(None, requirement)


def test_a_not_in_list_of_node_names_is_split_between_both_clusters() -> None:
    """No other requirement has parts for both clusters."""
    found = split_requirement(make_requirement("metadata.name", "NotIn", "n1", "vk-a"), UPPER_ONLY_KEYS, NODES)
    assert found == Split(
        make_requirement("metadata.name", "NotIn", "vk-a"), make_requirement("metadata.name", "NotIn", "n1")
    )


def test_a_term_is_split_and_unknown_fields_are_in_both_parts() -> None:
    """Fields of later versions are kept, and an empty list is removed."""
    disk, upper_object = make_requirement("disk", "Exists"), make_requirement("metadata.name", "In", "vk-a")
    found = split_term({"matchExpressions": [disk], "matchFields": [upper_object], "newer": 1}, UPPER_ONLY_KEYS, NODES)
    assert found == Split({"matchFields": [upper_object], "newer": 1}, {"matchExpressions": [disk], "newer": 1})


@pytest.mark.parametrize("term", [{}, {"matchExpressions": []}])
def test_a_term_that_matches_no_node_is_kept_for_the_lower_cluster(term: Manifest) -> None:
    """Without it, every node would match."""
    assert split_term(term, UPPER_ONLY_KEYS, NODES) == Split(None, term)
