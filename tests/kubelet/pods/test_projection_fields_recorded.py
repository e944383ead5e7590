"""The notes of what was written: what is in them, and what follows from them for keys of others."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from podkit import place, pod

from tensile.kubelet.pods.projection import (
    digits,
    mutable_metadata,
    note_of_images,
    note_of_keys,
    noted_images,
    ours_to_write,
)
from tensile.names import FIELD_MANAGER, OWNER, UPPER_UID, WRITTEN_IMAGES, WRITTEN_KEYS


def lower(labels: dict[str, str], ours: tuple[str, ...] = (), **notes: str) -> dict[str, Any]:
    """Make a lower pod with labels of which some are booked as ours, and a note of keys where one is given."""
    fields = {"f:metadata": {"f:labels": {f"f:{key}": {} for key in ours}}}
    books = [{"manager": FIELD_MANAGER, "operation": "Update", "fieldsV1": fields}]
    noted = {WRITTEN_KEYS: notes["keys"]} if "keys" in notes else {}
    return {"metadata": {"labels": labels, "annotations": noted, "managedFields": books}}


def noting(*labels: str) -> str:
    """Note label keys."""
    return note_of_keys(labels, ())


def test_images_are_noted_by_container_and_not_by_place() -> None:
    """Init containers too; an image is a few digits, so that a note is short."""
    spec = {"containers": [{"name": "b", "image": "b:1"}, {"name": "a", "image": "a:1"}]}
    spec["initContainers"] = [{"name": "i", "image": "i:1"}]
    upper = pod(spec)
    noted = noted_images({"metadata": {"annotations": {WRITTEN_IMAGES: note_of_images(upper)}}})
    assert noted == {"a": digits("a:1"), "b": digits("b:1"), "i": digits("i:1")}
    assert len(digits("registry/long/name:1")) == 8


def test_another_image_has_other_digits() -> None:
    """Else its change would not be seen."""
    assert digits("a:1") != digits("a:2")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7"])
def test_a_note_that_somebody_spoilt_is_none(text: str) -> None:
    """It is written by us, but anybody can edit it."""
    assert noted_images({"metadata": {"annotations": {WRITTEN_IMAGES: text}}}) is None
    assert ours_to_write({"a": "1"}, lower({"a": "2"}, keys=text), "labels") == {"a": "1"}


def test_our_marks_are_not_noted() -> None:
    """They are ours in any case."""
    assert note_of_keys({OWNER: "x", "app": "web"}, {UPPER_UID: "x", "note": "y"}) == (
        '{"annotations":["note"],"labels":["app"]}'
    )


@pytest.mark.parametrize(
    ("seen", "ours", "noted", "written"),
    [
        ({}, (), (), True),
        ({"team": "below"}, (), (), False),
        ({"team": "above"}, (), (), False),
        ({"team": "below"}, (), ("team",), True),
        ({"team": "below"}, ("team",), (), True),
    ],
    ids=["absent", "others' first", "others' and equal", "ours, edited", "ours"],
)
def test_whose_a_key_is(seen: dict[str, str], ours: tuple[str, ...], noted: tuple[str, ...], *, written: bool) -> None:
    """A key that somebody had set below before us stays his; one of ours that somebody edited is put back."""
    found = ours_to_write({"team": "above"}, lower(seen, ours, keys=noting(*noted)), "labels")
    assert ("team" in found) is written


def test_without_a_note_every_key_is_ours_to_write() -> None:
    """A lower pod that was made before there were notes is kept in step all the same."""
    assert ours_to_write({"team": "above"}, lower({"team": "below"}), "labels") == {"team": "above"}


def test_a_mark_is_ours_whoever_wrote_it() -> None:
    """A forged mark is overwritten."""
    assert ours_to_write({OWNER: "us"}, lower({OWNER: "them"}, keys=noting()), "labels") == {OWNER: "us"}


def test_what_is_left_to_others_is_not_noted_as_ours() -> None:
    """Or it would be taken from them at the next look."""
    upper = pod(labels={"team": "above", "app": "web"})
    seen = lower({"team": "below"}, keys=noting())
    assert mutable_metadata(upper, place(), seen)["annotations"][WRITTEN_KEYS] == noting("app")


KEYS = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(["1", "2"]))


@given(KEYS, KEYS, st.sets(st.sampled_from("abcdef")))
def test_nothing_is_wanted_of_a_key_that_was_never_ours(
    above: dict[str, str], below: dict[str, str], noted: set[str]
) -> None:
    """Whatever stands where: a key that is there below, not noted and not booked as ours, is left alone."""
    found = ours_to_write(above, lower(below, keys=noting(*noted)), "labels")
    assert found == {key: value for key, value in above.items() if key not in below or key in noted}
