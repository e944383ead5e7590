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


def asked(key: str, operator: str, *values: str) -> Manifest:
    """Return a requirement."""
    return {"key": key, "operator": operator, "values": list(values)}


@pytest.mark.parametrize(
    ("requirement", "holds"),
    [
        (asked("disk", "In", "hdd", "ssd"), True),
        (asked("disk", "In", "hdd"), False),
        (asked("gpu", "In", "ssd"), False),
        (asked("disk", "NotIn", "hdd"), True),
        (asked("disk", "NotIn", "ssd"), False),
        (asked("gpu", "NotIn", "a"), True),
        (asked("disk", "Exists"), True),
        (asked("gpu", "Exists"), False),
        (asked("gpu", "DoesNotExist"), True),
        (asked("disk", "DoesNotExist"), False),
        (asked("cores", "Gt", "4"), True),
        (asked("cores", "Gt", "8"), False),
        (asked("cores", "Lt", "16"), True),
        (asked("cores", "Lt", "8"), False),
        (asked("gpu", "Gt", "0"), False),
        (asked("disk", "Gt", "0"), False),
        (asked("cores", "Gt", "4", "5"), False),
        (asked("disk", "Resembles", "ssd"), False),
    ],
)
def test_operators_match_as_in_the_scheduler(requirement: Manifest, *, holds: bool) -> None:
    """Each operator is tested with a label that matches, one that does not, and one that is absent."""
    assert matches({"matchExpressions": [requirement]}, "n1", LABELS) is holds


def test_all_requirements_of_a_term_must_match_and_the_field_is_the_node_name() -> None:
    """A term without expressions and fields matches no node."""
    disk, name = asked("disk", "Exists"), asked("metadata.name", "In", "n1")
    both = {"matchExpressions": [disk], "matchFields": [name]}
    assert matches(both, "n1", LABELS)
    assert not matches(both, "n2", LABELS)
    assert not matches(both, "n1", {})
    assert not matches({}, "n1", LABELS)


def test_a_spec_requires_its_node_selector_and_one_of_its_terms() -> None:
    """A spec without requirements matches every node, and an empty list of terms matches none."""
    terms = [{"matchExpressions": [asked("gpu", "Exists")]}, {"matchExpressions": [asked("zone", "In", "a")]}]
    affinity = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}
    assert meets({}, "n1", {})
    assert meets({"affinity": affinity, "nodeSelector": {"disk": "ssd"}}, "n1", LABELS)
    assert not meets({"affinity": affinity}, "n1", {"disk": "ssd"})
    assert not meets({"nodeSelector": {"disk": "hdd"}}, "n1", LABELS)
    assert not meets({"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": []}}}}, "n1", LABELS)


@pytest.mark.parametrize(
    "requirement",
    [
        asked("type", "Exists"),
        asked("clusterID", "NotIn", "x"),
        asked("kubernetes.io/hostname", "In", "vk-a"),
        asked("metadata.name", "In", "vk-b", "n1"),
        asked("kubernetes.io/hostname", "NotIn", "vk-a", "vk-b"),
    ],
)
def test_requirements_on_virtual_nodes_are_for_the_upper_cluster_only(requirement: Manifest) -> None:
    """Their keys are only labels of virtual nodes, or their values are names of virtual nodes."""
    keys = UPPER_ONLY_KEYS | {"clusterID"}
    assert split_requirement(requirement, keys, NODES) == Split(requirement, None)


@pytest.mark.parametrize("requirement", [asked("disk", "In", "vk-a"), asked("kubernetes.io/hostname", "In", "n1")])
def test_other_requirements_are_for_the_lower_cluster(requirement: Manifest) -> None:
    """A label value that equals the name of a virtual node has no meaning."""
    assert split_requirement(requirement, UPPER_ONLY_KEYS, NODES) == Split(None, requirement)


def test_a_not_in_list_of_node_names_is_split_between_both_clusters() -> None:
    """No other requirement has parts for both clusters."""
    found = split_requirement(asked("metadata.name", "NotIn", "n1", "vk-a"), UPPER_ONLY_KEYS, NODES)
    assert found == Split(asked("metadata.name", "NotIn", "vk-a"), asked("metadata.name", "NotIn", "n1"))


def test_a_term_is_split_and_unknown_fields_are_in_both_parts() -> None:
    """Fields of later versions are kept, and an empty list is removed."""
    disk, above = asked("disk", "Exists"), asked("metadata.name", "In", "vk-a")
    found = split_term({"matchExpressions": [disk], "matchFields": [above], "newer": 1}, UPPER_ONLY_KEYS, NODES)
    assert found == Split({"matchFields": [above], "newer": 1}, {"matchExpressions": [disk], "newer": 1})


@pytest.mark.parametrize("term", [{}, {"matchExpressions": []}])
def test_a_term_that_matches_no_node_is_kept_for_the_lower_cluster(term: Manifest) -> None:
    """Without it, every node would match."""
    assert split_term(term, UPPER_ONLY_KEYS, NODES) == Split(None, term)
