"""What patches make of an object: by example, and by laws that hold for any."""

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
    """Lay a strategic merge patch over an object."""
    return patched(seen, Patch("strategic-merge-patch", body))


def typed(types: list[str], **more: Any) -> list[dict[str, Any]]:
    """Make conditions."""
    return [{"type": one, **more} for one in types]


@given(OBJECTS, OBJECTS)
def test_a_merge_of_what_is_wanted_makes_it_so(seen: dict[str, Any], body: dict[str, Any]) -> None:
    """Every plain value of the body is in the result, what it does not name is as before, and twice is as once."""
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
def test_null_takes_away_what_is_named(seen: dict[str, Any], other: dict[str, Any]) -> None:
    """And nothing else, whether it was there or not."""
    for media in ("merge-patch", "strategic-merge-patch"):
        left = patched(seen, Patch(media, dict.fromkeys(other)))
        assert left == {name: value for name, value in seen.items() if name not in other}


@given(OBJECTS, OBJECTS)
def test_the_operations_between_two_objects_turn_one_into_the_other(
    seen: dict[str, Any], wanted: dict[str, Any]
) -> None:
    """Those that are worked out for a plan come to what was wanted, and leave what they were worked out from."""
    before = deepcopy(seen)
    assert patched(seen, Patch("json-patch", jsonpatch.make_patch(seen, wanted).patch)) == wanted
    assert seen == before


@given(TYPES, TYPES)
def test_lists_with_a_key_merge(seen: list[str], changed: list[str]) -> None:
    """Everything is there once, what was changed is changed, and each list's order among its own is kept."""
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
def test_what_stood_before_a_changed_element_still_does(seen: str, changed: str, expected: str) -> None:
    """A new element comes before those that the patch does not name, as Kubernetes orders them."""
    body = {"conditions": typed(list(changed))}
    found = strategic({"conditions": typed(list(seen))}, body)["conditions"]
    assert "".join(one["type"] for one in found) == expected


@pytest.mark.parametrize("absent", [{}, {"podIPs": None}, {"podIPs": []}])
def test_a_list_that_is_not_there_is_what_the_patch_says(absent: dict[str, Any]) -> None:
    """Without the directives in it."""
    assert strategic(absent, {"podIPs": [{"$patch": "replace"}, {"ip": "1"}]}) == {"podIPs": [{"ip": "1"}]}
    assert strategic(absent, {"podIPs": [{"ip": "1"}, {"ip": "2", "$patch": "delete"}]}) == {"podIPs": [{"ip": "1"}]}


def test_an_element_loses_what_is_null_in_its_patch() -> None:
    """As a condition loses its reason."""
    seen = {"conditions": typed(["A"], reason="r", status="True")}
    assert strategic(seen, {"conditions": typed(["A"], reason=None)}) == {"conditions": typed(["A"], status="True")}


def test_lists_without_a_key_are_replaced() -> None:
    """Taints, tolerations, container statuses: what is not in the patch is gone."""
    for field in ("taints", "tolerations", "containerStatuses"):
        assert strategic({field: [{"name": "a"}, {"name": "b"}]}, {field: [{"name": "b"}]}) == {field: [{"name": "b"}]}


def test_a_map_may_be_replaced() -> None:
    """Nested ones in it merge with nothing, and the directive is not stored."""
    seen = {"status": {"resources": {"requests": {"cpu": "1", "memory": "1"}, "limits": {"cpu": "1"}}}}
    body = {"status": {"resources": {"requests": {"cpu": "2"}, "$patch": "replace"}}}
    assert strategic(seen, body) == {"status": {"resources": {"requests": {"cpu": "2"}}}}


def test_a_map_in_the_place_of_something_else_replaces_it() -> None:
    """Types need not agree."""
    for media in ("merge-patch", "strategic-merge-patch"):
        assert patched({"a": [1]}, Patch(media, {"a": {"b": 1, "c": None}})) == {"a": {"b": 1}}
        assert patched({"a": {"b": 1}}, Patch(media, {"a": "x"})) == {"a": "x"}


def test_what_is_not_in_a_list_cannot_be_replaced() -> None:
    """Unlike a key of a map; what else is denied is tried on a real cluster, too (test_cluster_contract.py)."""
    with pytest.raises(Denied) as error:
        patched({"l": [1]}, Patch("json-patch", [{"op": "replace", "path": "/l/3", "value": 1}]))
    assert error.value.status == 422


def test_operations_see_what_came_before_them() -> None:
    """A key that was just added can be changed and removed, and escapes are read."""
    operations = [
        {"op": "add", "path": "/labels", "value": {}},
        {"op": "add", "path": "/labels/x~1y", "value": "1"},
        {"op": "replace", "path": "/labels/x~1y", "value": "2"},
        {"op": "replace", "path": "/labels/new", "value": "3"},
        {"op": "remove", "path": "/labels/new"},
    ]
    assert patched({}, Patch("json-patch", operations)) == {"labels": {"x/y": "2"}}
