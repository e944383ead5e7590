"""Tests of the difference between a desired and an observed object, as RFC 6902 operations."""

from typing import Any

import jsonpatch
import pytest

from tensile.names import FIELD_MANAGER
from tensile.reconcile.diff import changes, fields

DATA = ("data",)
LABELS = ("metadata.labels",)


def labelled(labels: dict[str, str], *ours: str) -> dict[str, Any]:
    """Return an object with labels, of which this engine wrote the keys in `ours`."""
    book = {
        "manager": FIELD_MANAGER,
        "fieldsV1": {"f:metadata": {"f:labels": {".": {}} | {f"f:{k}": {} for k in ours}}},
    }
    return {"metadata": {"labels": labels, "managedFields": [book]}}


def test_equal_sections_need_no_operations() -> None:
    """An absent section and an empty one count as equal."""
    assert changes({"data": {"a": "1"}}, {"data": {"a": "1"}, "other": 2}, DATA) == []
    assert changes({}, {"data": {}}, DATA) == []


@pytest.mark.parametrize(
    ("wanted", "seen"),
    [
        ({"data": {"a": "1"}}, {}),
        ({}, {"data": {"a": "1"}}),
        ({"data": {"a": "1", "b": "2"}}, {"data": {"a": "0", "c": "3"}}),
        ({"data": {"new/name~x": "same"}}, {"data": {"old": "same"}}),
        ({"data": [1, 2]}, {"data": [2]}),
        ({"data": {"ports": [{"n": 2}, {"n": 1}]}}, {"data": {"ports": [{"n": 1}, {"n": 2}]}}),
        ({"data": {"left": [], "right": ["x"]}}, {"data": {"left": ["x"], "right": []}}),
    ],
)
def test_operations_turn_the_observed_into_the_desired_object(wanted: dict[str, Any], seen: dict[str, Any]) -> None:
    """Applying the operations to the observed object results in the desired one."""
    assert jsonpatch.apply_patch(seen, changes(wanted, seen, DATA)) == wanted


@pytest.mark.parametrize(("want", "see"), [(False, None), (None, False), (True, False)])
def test_a_boolean_differs_from_an_absent_field(want: bool | None, see: bool | None) -> None:  # noqa: FBT001 - a value
    """An absent field may default to true, so false counts as a difference."""
    wanted, seen = ({} if one is None else {"mounts": one} for one in (want, see))
    assert jsonpatch.apply_patch(seen, changes(wanted, seen, ("mounts",))) == wanted
    assert changes(wanted, seen, ("mounts",)) != []


def test_a_renamed_key_becomes_a_removal_and_an_addition() -> None:
    """A move operation would be hard to read."""
    found = changes({"data": {"new": "same"}}, {"data": {"old": "same"}}, DATA)
    assert {operation["op"] for operation in found} == {"add", "remove"}


def test_labels_of_other_clients_stay() -> None:
    """A label that another client set in the lower cluster is no difference."""
    assert changes(labelled({"app": "x"}), labelled({"app": "x", "theirs": "1"}, "app"), LABELS) == []


def test_a_label_of_this_engine_that_is_not_desired_any_more_is_removed() -> None:
    """A label that is removed from the upper object is removed from the lower one if this engine wrote it."""
    found = changes(labelled({"app": "x"}), labelled({"app": "x", "old": "1"}, "app", "old"), LABELS)
    assert found == [{"op": "remove", "path": "/metadata/labels/old"}]


def test_changed_fields_are_listed_once_and_unescaped() -> None:
    """A field has the same name as in a manifest."""
    operation = {"op": "replace", "path": "/metadata/labels/a~1b", "value": ""}
    assert fields([operation, operation]) == ["metadata.labels.a/b"]
