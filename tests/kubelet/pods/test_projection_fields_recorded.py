"""Tests of the annotations that record what the engine wrote, and of their effect on keys of other writers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from podkit import lower_context, pod

from tensile.kubelet.pods.projection import (
    image_digest,
    mutable_metadata,
    note_of_images,
    note_of_keys,
    noted_images,
    ours_to_write,
)
from tensile.names import FIELD_MANAGER, OWNER, UPPER_UID, WRITTEN_IMAGES, WRITTEN_KEYS


def lower(labels: dict[str, str], ours: tuple[str, ...] = (), **notes: str) -> dict[str, Any]:
    """Return a lower pod with labels, of which some are managed by the engine, and with recorded keys if given."""
    fields = {"f:metadata": {"f:labels": {f"f:{key}": {} for key in ours}}}
    books = [{"manager": FIELD_MANAGER, "operation": "Update", "fieldsV1": fields}]
    noted = {WRITTEN_KEYS: notes["keys"]} if "keys" in notes else {}
    return {"metadata": {"labels": labels, "annotations": noted, "managedFields": books}}


def noting(*labels: str) -> str:
    """Return the record of label keys."""
    return note_of_keys(labels, ())


def test_images_are_recorded_by_container_name() -> None:
    """Init containers are included, and an image is recorded as a few digits to keep the record short."""
    spec = {"containers": [{"name": "b", "image": "b:1"}, {"name": "a", "image": "a:1"}]}
    spec["initContainers"] = [{"name": "i", "image": "i:1"}]
    upper = pod(spec)
    noted = noted_images({"metadata": {"annotations": {WRITTEN_IMAGES: note_of_images(upper)}}})
    assert noted == {"a": image_digest("a:1"), "b": image_digest("b:1"), "i": image_digest("i:1")}
    assert len(image_digest("registry/long/name:1")) == 8


def test_different_images_have_different_digits() -> None:
    """Otherwise a change of the image would not be detected."""
    assert image_digest("a:1") != image_digest("a:2")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7"])
def test_an_invalid_record_is_ignored(text: str) -> None:
    """The engine writes the record, but any client can edit it."""
    assert noted_images({"metadata": {"annotations": {WRITTEN_IMAGES: text}}}) is None
    assert ours_to_write({"a": "1"}, lower({"a": "2"}, keys=text), "labels") == {"a": "1"}


def test_marks_of_the_engine_are_not_recorded() -> None:
    """They belong to the engine in any case."""
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
    ids=["absent", "another writer's", "another writer's and equal", "the engine's, edited", "the engine's"],
)
def test_a_key_is_written_only_if_it_is_absent_or_the_engines(
    seen: dict[str, str], ours: tuple[str, ...], noted: tuple[str, ...], *, written: bool
) -> None:
    """A key that another writer set first is kept, and an edited key of the engine is restored."""
    found = ours_to_write({"team": "above"}, lower(seen, ours, keys=noting(*noted)), "labels")
    assert ("team" in found) is written


def test_every_key_is_written_without_a_record() -> None:
    """Lower pods from before there were records are updated too."""
    assert ours_to_write({"team": "above"}, lower({"team": "below"}), "labels") == {"team": "above"}


def test_a_mark_is_always_written() -> None:
    """A forged mark is overwritten."""
    assert ours_to_write({OWNER: "us"}, lower({OWNER: "them"}, keys=noting()), "labels") == {OWNER: "us"}


def test_a_key_of_another_writer_is_not_recorded_as_the_engines() -> None:
    """Otherwise the next sync would overwrite it."""
    upper = pod(labels={"team": "above", "app": "web"})
    seen = lower({"team": "below"}, keys=noting())
    assert mutable_metadata(upper, lower_context(), seen)["annotations"][WRITTEN_KEYS] == noting("app")


KEYS = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(["1", "2"]))


@given(KEYS, KEYS, st.sets(st.sampled_from("abcdef")))
def test_a_key_that_was_never_the_engines_is_not_changed(
    above: dict[str, str], below: dict[str, str], noted: set[str]
) -> None:
    """Existing keys of the lower pod are written only if they are recorded or managed by the engine."""
    found = ours_to_write(above, lower(below, keys=noting(*noted)), "labels")
    assert found == {key: value for key, value in above.items() if key not in below or key in noted}
