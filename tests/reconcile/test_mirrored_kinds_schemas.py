"""Tests of the types of the fields that are read from objects of a lower cluster."""

import copy
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensile.errors import Malformed
from tensile.kube.store import Cache, Transformed, keep_all
from tensile.names import FIELD_MANAGER
from tensile.objects import CONFIG_MAP, NAMESPACE, POD, SECRET, SERVICE, Kind
from tensile.reconcile.mirrored_kinds import SHAPES, checked
from tensile.reconcile.pods.index import transform_lower_pod

TIME = "2026-01-01T00:00:00Z"
META = {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "5", "labels": {"a": "b"}}
BOOKS = [{"manager": FIELD_MANAGER, "fieldsV1": {"f:metadata": {"f:labels": {"f:a": {}}}, "f:spec": {}}}]
STATUS = {
    "phase": "Running",
    "conditions": [{"type": "Ready", "status": "True", "lastProbeTime": None, "lastTransitionTime": TIME}],
    "containerStatuses": [{"name": "c", "ready": True, "restartCount": 0, "state": {"running": {"startedAt": TIME}}}],
    "podIPs": [{"ip": "10.0.0.1"}],
    "podIP": "10.0.0.1",
}
SPEC = {
    "containers": [{"name": "c", "env": [{"name": "A", "value": "b"}], "resources": {"requests": {"cpu": "1"}}}],
    "volumes": [{"name": "v", "emptyDir": {}}],
    "tolerations": [{"operator": "Exists"}],
    "nodeName": "n1",
}
WHOLE = {
    "metadata": {
        **META,
        "managedFields": BOOKS,
        "annotations": {"a": "b"},
        "finalizers": ["f"],
        "ownerReferences": [{"kind": "Namespace", "name": "n", "uid": "u", "controller": True}],
        "deletionTimestamp": TIME,
        "deletionGracePeriodSeconds": 30,
        "generation": 1,
    },
    "spec": SPEC,
    "status": STATUS,
}
WRONG: list[Any] = [5, "x", ["x"], {"x": 5}, [5], [None], True]


def at(manifest: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a copy with a value at a path."""
    made = copy.deepcopy(manifest)
    inner = made
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return made


def is_kept(kind: Kind, manifest: Any) -> bool:
    """Report whether a cache accepts an object."""
    cache = Cache(checked(kind, transform_lower_pod if kind == POD else keep_all))
    try:
        cache.put(orjson.dumps(manifest))
    except Malformed:
        return False
    return len(cache) == 1


def test_a_complete_pod_of_an_apiserver_is_cached() -> None:
    """The pod has every field that decisions read."""
    assert is_kept(POD, WHOLE)


@pytest.mark.parametrize(
    "path",
    [
        ("spec",),
        ("status",),
        ("metadata", "labels"),
        ("metadata", "annotations"),
        ("metadata", "finalizers"),
        ("metadata", "ownerReferences"),
        ("metadata", "managedFields"),
        ("metadata", "managedFields", 0, "fieldsV1", "f:metadata"),
        ("metadata", "managedFields", 0, "fieldsV1", "f:metadata", "f:labels"),
        ("metadata", "deletionTimestamp"),
        ("metadata", "deletionGracePeriodSeconds"),
        ("spec", "containers"),
        ("spec", "containers", 0, "name"),
        ("spec", "containers", 0, "env"),
        ("spec", "containers", 0, "resources", "requests"),
        ("spec", "volumes"),
        ("spec", "tolerations"),
        ("spec", "nodeName"),
        ("status", "phase"),
        ("status", "conditions"),
        ("status", "conditions", 0, "type"),
        ("status", "conditions", 0, "status"),
        ("status", "containerStatuses"),
        ("status", "containerStatuses", 0, "name"),
        ("status", "containerStatuses", 0, "ready"),
        ("status", "containerStatuses", 0, "state"),
        ("status", "podIPs"),
        ("status", "podIP"),
    ],
    ids=lambda path: "/".join(map(str, path)),
)
def test_a_field_of_a_wrong_type_is_malformed(path: tuple[Any, ...]) -> None:
    """Decisions can rely on the type of each field that they read."""
    inner: Any = WHOLE
    for step in path:
        inner = inner[step]
    others = [value for value in WRONG if not _is_alike(value, inner)]
    assert others
    assert [value for value in others if is_kept(POD, at(WHOLE, path, value))] == []


def _is_alike(value: Any, usual: Any) -> bool:
    """Report whether a value is valid in place of another, such as any string for a string."""
    if isinstance(usual, str | dict):
        return isinstance(value, type(usual))
    if usual == ["f"]:
        return bool(value == ["x"])
    return isinstance(usual, int) and isinstance(value, int)


@pytest.mark.parametrize("kind", [*SHAPES, NAMESPACE], ids=lambda kind: kind.name)
def test_the_metadata_of_every_kind_is_checked(kind: Kind) -> None:
    """This includes kinds of which no other field is read."""
    rest = {"spec": {"containers": []}} if kind == POD else {"spec": {}}
    assert is_kept(kind, {"metadata": META, **rest})
    assert not is_kept(kind, {"metadata": {**META, "annotations": [1]}, **rest})


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (SECRET, {"data": {"a": 5}}),
        (CONFIG_MAP, {"data": ["a"]}),
        (SERVICE, {"spec": {"ports": {"a": 1}}}),
        (SERVICE, {"spec": {"selector": {"a": {}}}}),
    ],
)
def test_fields_of_secrets_config_maps_and_services_are_checked(kind: Kind, more: dict[str, Any]) -> None:
    """A number in place of a string, or an object or list in place of the other, is malformed."""
    assert not is_kept(kind, {"metadata": META, **more})


def test_an_object_whose_content_is_not_cached_is_not_checked() -> None:
    """Of a pod of another owner only facts are cached, and the code that extracts them checks their types."""
    strict = checked(POD, lambda raw: Transformed(b"", len(raw)))
    assert strict(b'{"metadata":5}').facts == 14


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
_PATHS = st.sampled_from(
    [("spec", name) for name in SPEC]
    + [("status", name) for name in STATUS]
    + [("metadata", name) for name in WHOLE["metadata"] if name not in ("name", "resourceVersion")]
)


@given(_PATHS, _JSON)
def test_any_value_of_a_field_is_either_cached_or_malformed(path: tuple[str, str], value: Any) -> None:
    """No other error is raised, whatever value the object contains."""
    assert is_kept(POD, at(WHOLE, path, value)) in (True, False)


def test_every_shape_is_a_msgspec_struct() -> None:
    """Objects can then be decoded into it."""
    assert all(issubclass(shape, msgspec.Struct) for shape in SHAPES.values())
