"""Whose an object is: both marks, and the second one from our own hand."""

import orjson
import pytest
from worldkit import OWNER_HERE, STRANGER, config_map, marked

from tensile.kube.store import Transformed
from tensile.names import FIELD_MANAGER, OWNER, UPPER_UID
from tensile.objects import Manifest, metadata
from tensile.reconcile.ownership import Marks, digest_marks, is_of, is_ours, others_wrote, upper_uid_of

OURS = marked(config_map(), "one")


def rewritten(**meta: object) -> Manifest:
    """Return the object with other metadata."""
    return {**OURS, "metadata": {**metadata(OURS), **meta}}


def test_an_object_that_we_made_is_ours() -> None:
    """Label and annotation, both written by us, make it ours, and tell for which upper object it was made."""
    assert is_ours(OURS, OWNER_HERE)
    assert upper_uid_of(OURS) == "one"
    assert is_of(OURS, OWNER_HERE, "one")
    assert not is_of(OURS, OWNER_HERE, "two")


def test_an_object_of_another_owner_is_not() -> None:
    """The same marks with another owner's label are another's."""
    assert not is_ours(OURS, STRANGER)


@pytest.mark.parametrize(
    "books",
    [[], [{**metadata(OURS)["managedFields"][0], "manager": "kubectl-create"}]],
    ids=["nobody", "kubectl"],
)
def test_marks_that_came_with_a_copy_do_not_count(books: list[Manifest]) -> None:
    """What somebody else wrote, or a backup brought back, is not ours however it is marked."""
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
    ids=["ours", "by another hand", "without the label", "a stranger's"],
)
def test_the_marks_are_taken_out_when_an_object_comes(manifest: Manifest, marks: Marks) -> None:
    """They tell without decoding what `is_of` would; the object stays whole."""
    raw = orjson.dumps(manifest)
    assert digest_marks(raw) == Transformed(raw, marks)
    assert is_of(manifest, OWNER_HERE, "one") == ((marks.owner, marks.upper_uid) == (OWNER_HERE.mark, "one"))


@pytest.mark.parametrize("gone", ["labels", "annotations"])
def test_one_mark_alone_does_not_count(gone: str) -> None:
    """Without the label, or without the annotation, an object is not ours."""
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
def test_a_field_is_others_once_they_have_written_it(manager: str, path: tuple[str, ...], *, others: bool) -> None:
    """By the API's own book-keeping, field by field."""
    books = [{"manager": manager, "fieldsV1": {"f:data": {"f:a": {}}}}, {"manager": "strange"}]
    assert others_wrote(rewritten(managedFields=books), path) is others


def test_an_object_without_books_is_nobodys() -> None:
    """Old apiservers kept none."""
    assert not others_wrote({"metadata": {}}, ("f:data",))
