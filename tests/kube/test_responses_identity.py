"""Tests of the check that an object in a response is one that was requested."""

from typing import Any

import orjson
import pytest

from tensile.errors import Malformed
from tensile.kube.cluster import Selection
from tensile.kube.responses import ObjectFilter, refuse_object
from tensile.kube.store import version_in
from tensile.objects import NODE, POD, SECRET, SERVICE_ACCOUNT

META = {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "5", "labels": {"owner": "me", "app": "web"}}


def raw(kind: str = "Pod", **meta: Any) -> bytes:
    """Make an object; None removes a field of its metadata."""
    fields = {name: value for name, value in {**META, **meta}.items() if value is not None}
    return orjson.dumps({"kind": kind, "apiVersion": "v1", "metadata": fields, "spec": {}})


@pytest.mark.parametrize(
    ("kind", "selection", "found"),
    [
        (POD, Selection(), raw()),
        (POD, Selection(), orjson.dumps({"metadata": META})),
        (POD, Selection("n"), raw()),
        (POD, Selection(labels="owner=me"), raw()),
        (POD, Selection(labels="owner=me,app=web"), raw()),
        (POD, Selection(labels="owner!=me"), raw()),
        (POD, Selection(labels="owner in (me,you),app"), raw(labels={})),
        (POD, Selection(fields="spec.nodeName=x"), raw()),
        (SERVICE_ACCOUNT, Selection(fields="metadata.name=a"), raw("ServiceAccount")),
        (NODE, Selection(), raw("Node", namespace=None)),
        (POD, Selection(labels="owner!=me"), raw(labels=None)),
    ],
)
def test_an_object_that_was_requested_is_accepted(kind: Any, selection: Selection, found: bytes) -> None:
    """Its metadata are returned; selector terms that are no equalities are not checked."""
    meta = ObjectFilter(kind, selection).meta(found)
    assert (meta.name, meta.uid, version_in(meta)) == ("a", "u", 5)


@pytest.mark.parametrize(
    ("kind", "selection", "found", "message"),
    [
        (POD, Selection(), raw("Secret"), "a Secret instead of a Pod"),
        (POD, Selection("m"), raw(), "namespace"),
        (POD, Selection(), raw(namespace=None), "namespace"),
        (NODE, Selection(), raw("Node"), "namespace"),
        (SECRET, Selection(labels="owner=me"), raw("Secret", labels={"app": "web"}), "labels"),
        (SECRET, Selection(labels="owner=me"), raw("Secret", labels=None), "labels"),
        (SECRET, Selection(labels="app=web,owner=you"), raw("Secret"), "labels"),
        (SERVICE_ACCOUNT, Selection(fields="metadata.name=default"), raw("ServiceAccount"), "name"),
        (POD, Selection(), raw(name=None), "name"),
        (POD, Selection(), raw(name=""), "length"),
        (POD, Selection(), raw(name="n" * 2_000), "length"),
        (POD, Selection(), raw(uid="u" * 200), "length"),
        (POD, Selection(), raw(resourceVersion="7" * 5_000), "length"),
        (POD, Selection(), raw(resourceVersion=7), "Expected"),
        (POD, Selection(labels="owner=me"), raw(labels=["owner"]), "Expected"),
        (POD, Selection(), b"5", "Expected"),
        (POD, Selection(), b"{", "truncated"),
        (POD, Selection(), b'{"metadata":' + b"[" * 100_000, "Expected"),
    ],
)
def test_an_object_that_was_not_requested_or_is_invalid_is_malformed(
    kind: Any, selection: Selection, found: bytes, message: str
) -> None:
    """The message is short and names the problem."""
    with pytest.raises(Malformed, match=message) as error:
        ObjectFilter(kind, selection).meta(found)
    assert len(error.value.message) < 400


def test_a_deleted_object_may_lack_the_selected_labels() -> None:
    """A watch reports an object that is no longer selected as deleted."""
    screen = ObjectFilter(POD, Selection(labels="owner=me"))
    assert screen.meta(raw(labels={}), is_leaving=True).name == "a"


def test_a_resource_version_that_is_no_number_is_malformed() -> None:
    """Versions are compared, so they must be numbers."""
    meta = ObjectFilter(POD, Selection()).meta(raw(resourceVersion="new"))
    with pytest.raises(Malformed, match="'new' is not a number"):
        version_in(meta)


def test_any_object_in_a_list_that_must_be_empty_is_malformed() -> None:
    """Such a list selects a name that no object has."""
    with pytest.raises(Malformed):
        refuse_object(raw())
