"""What differs between an object as wanted and as seen, as RFC 6902 operations."""

from typing import Any

import jsonpatch
import pytest

from tensile.names import FIELD_MANAGER
from tensile.reconcile.diff import changes, fields

DATA = ("data",)
LABELS = ("metadata.labels",)


def labelled(labels: dict[str, str], *ours: str) -> dict[str, Any]:
    """Return an object with labels, of which we wrote the ones named."""
    book = {
        "manager": FIELD_MANAGER,
        "fieldsV1": {"f:metadata": {"f:labels": {".": {}} | {f"f:{k}": {} for k in ours}}},
    }
    return {"metadata": {"labels": labels, "managedFields": [book]}}


def test_equal_sections_need_nothing() -> None:
    """No operation where nothing differs, absent and empty being the same."""
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
def test_operations_lead_from_seen_to_wanted(wanted: dict[str, Any], seen: dict[str, Any]) -> None:
    """Applying the operations gives what was wanted."""
    assert jsonpatch.apply_patch(seen, changes(wanted, seen, DATA)) == wanted


@pytest.mark.parametrize(("want", "see"), [(False, None), (None, False), (True, False)])
def test_a_word_that_says_no_is_not_nothing(want: bool | None, see: bool | None) -> None:  # noqa: FBT001 - a value
    """Where a missing word means yes, it makes a difference."""
    wanted, seen = ({} if one is None else {"mounts": one} for one in (want, see))
    assert jsonpatch.apply_patch(seen, changes(wanted, seen, ("mounts",))) == wanted
    assert changes(wanted, seen, ("mounts",)) != []


def test_a_renamed_key_is_said_as_one_gone_and_one_set() -> None:
    """No move operation, which a reader would have to decipher."""
    found = changes({"data": {"new": "same"}}, {"data": {"old": "same"}}, DATA)
    assert {operation["op"] for operation in found} == {"add", "remove"}


def test_labels_of_others_stay() -> None:
    """A label that somebody else set below is no difference."""
    assert changes(labelled({"app": "x"}), labelled({"app": "x", "theirs": "1"}, "app"), LABELS) == []


def test_a_label_of_ours_that_is_not_wanted_any_more_goes() -> None:
    """What vanished above vanishes below, if we wrote it."""
    found = changes(labelled({"app": "x"}), labelled({"app": "x", "old": "1"}, "app", "old"), LABELS)
    assert found == [{"op": "remove", "path": "/metadata/labels/old"}]


def test_fields_are_named_once_and_unescaped() -> None:
    """A field's name reads as it is written in a manifest."""
    operation = {"op": "replace", "path": "/metadata/labels/a~1b", "value": ""}
    assert fields([operation, operation]) == ["metadata.labels.a/b"]
