"""Requirements on nodes: read as the scheduler reads them, and taken apart where two clusters are meant."""

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
    """Make a requirement."""
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
def test_operators_are_the_schedulers(requirement: Manifest, *, holds: bool) -> None:
    """Each operator on a label that fits, one that does not, and one that is not there."""
    assert matches({"matchExpressions": [requirement]}, "n1", LABELS) is holds


def test_every_requirement_of_a_term_has_to_hold_and_a_field_is_the_nodes_name() -> None:
    """Expressions and fields together; a term without either matches nothing."""
    disk, name = asked("disk", "Exists"), asked("metadata.name", "In", "n1")
    both = {"matchExpressions": [disk], "matchFields": [name]}
    assert matches(both, "n1", LABELS)
    assert not matches(both, "n2", LABELS)
    assert not matches(both, "n1", {})
    assert not matches({}, "n1", LABELS)


def test_a_spec_asks_by_its_selector_and_by_one_of_its_terms() -> None:
    """No requirement is met by every node; of several terms one will do."""
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
def test_what_is_about_the_upper_cluster_stays_there(requirement: Manifest) -> None:
    """Keys that only virtual nodes have, and their names."""
    keys = UPPER_ONLY_KEYS | {"clusterID"}
    assert split_requirement(requirement, keys, NODES) == Split(requirement, None)


@pytest.mark.parametrize("requirement", [asked("disk", "In", "vk-a"), asked("kubernetes.io/hostname", "In", "n1")])
def test_the_rest_is_about_lower_nodes(requirement: Manifest) -> None:
    """A label's value that happens to be a virtual node's name means nothing."""
    assert split_requirement(requirement, UPPER_ONLY_KEYS, NODES) == Split(None, requirement)


def test_nodes_to_avoid_are_avoided_in_their_own_cluster() -> None:
    """The one requirement that is about both."""
    found = split_requirement(asked("metadata.name", "NotIn", "n1", "vk-a"), UPPER_ONLY_KEYS, NODES)
    assert found == Split(asked("metadata.name", "NotIn", "vk-a"), asked("metadata.name", "NotIn", "n1"))


def test_a_term_is_taken_apart_with_what_is_not_known_of_it() -> None:
    """Fields of later versions go with both halves; a list that is left empty goes."""
    disk, above = asked("disk", "Exists"), asked("metadata.name", "In", "vk-a")
    found = split_term({"matchExpressions": [disk], "matchFields": [above], "newer": 1}, UPPER_ONLY_KEYS, NODES)
    assert found == Split({"matchFields": [above], "newer": 1}, {"matchExpressions": [disk], "newer": 1})


@pytest.mark.parametrize("term", [{}, {"matchExpressions": []}])
def test_a_term_that_matches_nothing_goes_on_doing_so(term: Manifest) -> None:
    """Left out, it would mean that every node will do."""
    assert split_term(term, UPPER_ONLY_KEYS, NODES) == Split(None, term)
