"""Tests of object ownership: an object is ours if it has both marks, and if we wrote the second one."""

import orjson
import pytest
from worldkit import OWNER_HERE, STRANGER, config_map, with_owner_marks

from tensile.kube.store import Transformed
from tensile.names import FIELD_MANAGER, OWNER, UPPER_UID
from tensile.objects import Manifest, metadata
from tensile.reconcile.ownership import Marks, is_of, is_ours, others_wrote, transform_copy, upper_uid_of

OURS = with_owner_marks(config_map(), "one")


def rewritten(**meta: object) -> Manifest:
    """Return the object with other metadata."""
    return {**OURS, "metadata": {**metadata(OURS), **meta}}


def test_an_object_with_both_marks_written_by_this_engine_is_ours() -> None:
    """The marks also identify the upper object that it was made for."""
    assert is_ours(OURS, OWNER_HERE)
    assert upper_uid_of(OURS) == "one"
    assert is_of(OURS, OWNER_HERE, "one")
    assert not is_of(OURS, OWNER_HERE, "two")


def test_an_object_of_another_owner_is_not_ours() -> None:
    """The owner label has another value, while the other mark is the same."""
    assert not is_ours(OURS, STRANGER)


@pytest.mark.parametrize(
    "books",
    [[], [{**metadata(OURS)["managedFields"][0], "manager": "kubectl-create"}]],
    ids=["no manager", "kubectl"],
)
def test_marks_written_by_another_client_do_not_count(books: list[Manifest]) -> None:
    """An object that a client copied or a backup restored is not ours, whatever its marks."""
    copy = rewritten(managedFields=books)
    assert not is_ours(copy, OWNER_HERE)
    assert upper_uid_of(copy) == ""


@pytest.mark.parametrize(
    ("manifest", "marks"),
    [
        (OURS, Marks(OWNER_HERE.mark, "one")),
        (rewritten(managedFields=[]), Marks()),
        (rewritten(labels={}), Marks("", "one")),
        (config_map(), Marks()),
    ],
    ids=["ours", "by another client", "without the label", "of another owner"],
)
def test_the_marks_are_extracted_when_an_object_is_cached(manifest: Manifest, marks: Marks) -> None:
    """They lead to the same result as `is_of` without decoding the object, which stays complete."""
    raw = orjson.dumps(manifest)
    assert transform_copy(raw) == Transformed(raw, marks)
    assert is_of(manifest, OWNER_HERE, "one") == ((marks.owner, marks.upper_uid) == (OWNER_HERE.mark, "one"))


@pytest.mark.parametrize("gone", ["labels", "annotations"])
def test_one_mark_alone_does_not_count(gone: str) -> None:
    """An object without the label or without the annotation is not ours."""
    assert not is_ours(rewritten(**{gone: {}}), OWNER_HERE)
    assert OWNER in metadata(OURS)["labels"]
    assert UPPER_UID in metadata(OURS)["annotations"]


@pytest.mark.parametrize(
    ("manager", "path", "others"),
    [
        ("kubectl", ("f:data", "f:a"), True),
        ("kubectl", ("f:data", "f:b"), False),
        ("kubectl", ("f:data", "f:a", "f:deeper"), False),
        (FIELD_MANAGER, ("f:data", "f:a"), False),
    ],
)
def test_managed_fields_show_which_fields_others_wrote(manager: str, path: tuple[str, ...], *, others: bool) -> None:
    """Each field is judged separately, and not by fields inside it."""
    books = [{"manager": manager, "fieldsV1": {"f:data": {"f:a": {}}}}, {"manager": "strange"}]
    assert others_wrote(rewritten(managedFields=books), path) is others


def test_an_object_without_managed_fields_was_written_by_no_other_client() -> None:
    """Old apiservers did not record managedFields."""
    assert not others_wrote({"metadata": {}}, ("f:data",))
