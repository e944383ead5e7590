"""Tests of the results of patches, by examples and by properties that hold for any object."""

from copy import deepcopy
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensile.errors import Denied
from tensile.kube.cluster import Patch
from tensile.reconcile.dryrun.patch import patched

LEAVES = st.one_of(st.integers(0, 3), st.sampled_from(["", "x"]), st.booleans())
NAMES = st.sampled_from(["a", "b", "c/d", "e~f"])
OBJECTS = st.dictionaries(NAMES, st.recursive(LEAVES, lambda inner: st.dictionaries(NAMES, inner), max_leaves=8))
TYPES = st.lists(st.sampled_from("ABCDE"), unique=True)


def strategic(seen: Any, body: Any) -> Any:
    """Apply a strategic merge patch to an object."""
    return patched(seen, Patch("strategic-merge-patch", body))


def typed(types: list[str], **more: Any) -> list[dict[str, Any]]:
    """Return conditions of these types."""
    return [{"type": one, **more} for one in types]


@given(OBJECTS, OBJECTS)
def test_a_merge_patch_sets_its_values_and_keeps_the_rest(seen: dict[str, Any], body: dict[str, Any]) -> None:
    """Applying it twice has the same result as applying it once, and the object before is not changed."""
    for media in ("merge-patch", "strategic-merge-patch"):
        before = deepcopy(seen)
        once = patched(seen, Patch(media, body))
        assert seen == before
        assert patched(once, Patch(media, body)) == once
        assert {name: value for name, value in once.items() if name not in body} == {
            name: value for name, value in seen.items() if name not in body
        }
        assert all(once[name] == value for name, value in body.items() if not isinstance(value, dict))


@given(OBJECTS, OBJECTS)
def test_null_removes_only_the_named_field(seen: dict[str, Any], other: dict[str, Any]) -> None:
    """The field need not exist."""
    for media in ("merge-patch", "strategic-merge-patch"):
        left = patched(seen, Patch(media, dict.fromkeys(other)))
        assert left == {name: value for name, value in seen.items() if name not in other}


@given(OBJECTS, OBJECTS)
def test_the_operations_between_two_objects_turn_one_into_the_other(
    seen: dict[str, Any], wanted: dict[str, Any]
) -> None:
    """They result in the desired object, and do not change the observed one."""
    before = deepcopy(seen)
    assert patched(seen, Patch("json-patch", jsonpatch.make_patch(seen, wanted).patch)) == wanted
    assert seen == before


@given(TYPES, TYPES)
def test_lists_with_a_merge_key_are_merged(seen: list[str], changed: list[str]) -> None:
    """Each element exists once, named elements are patched, and both lists keep the order of their own elements."""
    body = {"conditions": typed(changed, status="False")}
    found = strategic({"conditions": typed(seen, status="True", reason="r")}, body)["conditions"]
    types = [one["type"] for one in found]
    assert sorted(types) == sorted({*seen, *changed})
    assert [one for one in types if one in changed] == changed
    assert [one for one in types if one not in changed] == [one for one in seen if one not in changed]
    for one in found:
        reason = {"reason": "r"} if one["type"] in seen else {}
        assert one == {"type": one["type"], "status": "False" if one["type"] in changed else "True", **reason}


@pytest.mark.parametrize(
    ("seen", "changed", "expected"),
    [
        ("AB", "C", "CAB"),
        ("ABC", "CA", "BCA"),
        ("ABC", "BD", "ABDC"),
        ("ABC", "DB", "DABC"),
        ("", "AB", "AB"),
    ],
)
def test_an_element_before_a_patched_one_stays_before_it(seen: str, changed: str, expected: str) -> None:
    """A new element comes before those that the patch does not name, as in Kubernetes."""
    body = {"conditions": typed(list(changed))}
    found = strategic({"conditions": typed(list(seen))}, body)["conditions"]
    assert "".join(one["type"] for one in found) == expected


@pytest.mark.parametrize("absent", [{}, {"podIPs": None}, {"podIPs": []}])
def test_an_absent_list_becomes_that_of_the_patch(absent: dict[str, Any]) -> None:
    """Directives in the patch are removed."""
    assert strategic(absent, {"podIPs": [{"$patch": "replace"}, {"ip": "1"}]}) == {"podIPs": [{"ip": "1"}]}
    assert strategic(absent, {"podIPs": [{"ip": "1"}, {"ip": "2", "$patch": "delete"}]}) == {"podIPs": [{"ip": "1"}]}


def test_a_null_in_a_list_element_removes_the_field() -> None:
    """A condition can lose its reason in this way."""
    seen = {"conditions": typed(["A"], reason="r", status="True")}
    assert strategic(seen, {"conditions": typed(["A"], reason=None)}) == {"conditions": typed(["A"], status="True")}


def test_lists_without_a_merge_key_are_replaced() -> None:
    """An element of taints, tolerations or container statuses that the patch lacks is removed."""
    for field in ("taints", "tolerations", "containerStatuses"):
        assert strategic({field: [{"name": "a"}, {"name": "b"}]}, {field: [{"name": "b"}]}) == {field: [{"name": "b"}]}


def test_a_map_can_be_replaced_by_a_directive() -> None:
    """Maps inside it are not merged, and the directive is not stored."""
    seen = {"status": {"resources": {"requests": {"cpu": "1", "memory": "1"}, "limits": {"cpu": "1"}}}}
    body = {"status": {"resources": {"requests": {"cpu": "2"}, "$patch": "replace"}}}
    assert strategic(seen, body) == {"status": {"resources": {"requests": {"cpu": "2"}}}}


def test_a_map_and_a_value_of_another_type_replace_each_other() -> None:
    """The types of the old and the new value may differ."""
    for media in ("merge-patch", "strategic-merge-patch"):
        assert patched({"a": [1]}, Patch(media, {"a": {"b": 1, "c": None}})) == {"a": {"b": 1}}
        assert patched({"a": {"b": 1}}, Patch(media, {"a": "x"})) == {"a": "x"}


def test_replacing_a_missing_list_element_is_denied() -> None:
    """A missing key of a map can be replaced.

    Other denials are also tested on a real cluster (test_cluster_contract.py).
    """
    with pytest.raises(Denied) as error:
        patched({"l": [1]}, Patch("json-patch", [{"op": "replace", "path": "/l/3", "value": 1}]))
    assert error.value.status == 422


def test_operations_see_the_results_of_earlier_ones() -> None:
    """A key that was just added can be changed and removed, and escaped paths are decoded."""
    operations = [
        {"op": "add", "path": "/labels", "value": {}},
        {"op": "add", "path": "/labels/x~1y", "value": "1"},
        {"op": "replace", "path": "/labels/x~1y", "value": "2"},
        {"op": "replace", "path": "/labels/new", "value": "3"},
        {"op": "remove", "path": "/labels/new"},
    ]
    assert patched({}, Patch("json-patch", operations)) == {"labels": {"x/y": "2"}}
