"""Tests that several steps for one object are combined into one change."""

from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st
from previewkit import (
    A,
    B,
    change,
    config,
    create,
    delete,
    json_patch,
    merge,
    node,
    observed_object,
    of_kind,
    only_change,
    pod,
    previewed,
    secret,
)
from properties import examples

from tensile.kube.cluster import Patch
from tensile.names import WRITTEN_IMAGES, WRITTEN_KEYS
from tensile.objects import CONFIG_MAP, LEASE, NAMESPACE, NODE, POD, SECRET, SERVICE_ACCOUNT, UPPER
from tensile.reconcile.diff import Difference
from tensile.reconcile.plan import Step
from tensile.reconcile.report.values import differences
from tensile.reconcile.world import Key, Problem

OLD = observed_object({"data": {"level": "info", "gone": "1"}})
NEW = {"data": {"level": "debug", "fresh": "2"}}
TEXTS = st.dictionaries(st.text(max_size=4), st.text(max_size=3), max_size=4)


MADE, GONE = create(config(), OLD, "made"), delete(config(), "gone")
RELEASED = json_patch(config(), {"op": "remove", "path": "/metadata/finalizers"}, reason="released")
BECOMES: dict[str, tuple[list[Step], tuple[str, str, Any] | None]] = {
    "created, then changed": ([MADE, change(config(), OLD, NEW)], ("create", "made", {**OLD, **NEW})),
    "created, then deleted": ([MADE, GONE], None),
    "created and deleted twice": ([MADE, GONE, MADE, GONE], None),
    "created twice": ([MADE, GONE, create(config(), NEW, "again")], ("create", "again", NEW)),
    "deleted, then created": ([GONE, create(config(), NEW)], ("replace", "gone", NEW)),
    "released, then created": ([RELEASED, create(config(), NEW, "wanted")], ("replace", "wanted", NEW)),
    "changed, then deleted": (
        [change(config(), OLD, NEW), GONE, delete(config(), "shorter")],
        ("delete", "gone", None),
    ),
    "replaced, then deleted": ([GONE, create(config()), delete(config(), "again")], ("delete", "gone", None)),
    "changed back": ([change(config(), OLD, NEW), change(config(), {**OLD, **NEW}, OLD)], None),
}
"""Steps for one object, which exists unless they create it, and the resulting change: action, reason, content."""


@pytest.mark.parametrize(("steps", "expected"), BECOMES.values(), ids=BECOMES)
def test_only_the_first_and_last_state_count(steps: list[Step], expected: tuple[str, str, Any] | None) -> None:
    """The reason is that of the step that removed the first state or created the last one."""
    is_made = steps[0].verb == "create"
    found = previewed(*steps, seen={} if is_made else {config(): OLD}).changes
    assert [(one.action, one.reason, one.manifest) for one in found] == ([expected] if expected else [])
    roots = {"create": "add", "replace": "replace", "delete": "remove"}
    for one in found:
        (operation,) = one.operations
        assert (operation["op"], operation["path"]) == (roots[one.action], "")
        assert operation.get("value") == one.manifest


def test_an_unknown_object_is_replaced_without_differences() -> None:
    """There is no earlier state to compare with."""
    found = only_change(delete(config()), create(config(), NEW))
    assert (found.action, found.differences) == ("replace", ())


def test_preconditions_are_no_part_of_a_change() -> None:
    """UID and resourceVersion only identify the object, so neither the operations nor a created manifest have them."""
    fences = tuple({"op": "replace", "path": f"/metadata/{name}", "value": "7"} for name in ("uid", "resourceVersion"))
    kept = {"op": "add", "path": "/data/a", "value": "1"}
    found = only_change(json_patch(config(), *fences, kept), seen={config(): OLD})
    assert (found.operations, [one.field for one in found.differences]) == ((kept,), ["data.a"])
    for step in (json_patch(config(), kept), merge(config(), "merge-patch", data={"a": "1"})):
        made = only_change(create(config(), {"data": {}}), step).manifest or {}
        assert made["data"] == {"a": "1"}
        assert not made.get("metadata")


def test_an_object_that_is_deleted_and_created_again_is_replaced() -> None:
    """The reason is that of the deletion, and differences leave out the API's own metadata and the status."""
    made = {"metadata": {"annotations": {"for": "two"}}, **NEW}
    old = observed_object({"metadata": {"annotations": {"for": "one"}}, "status": {"phase": "x"}, **OLD})
    found = only_change(delete(config(), "its original is gone"), create(config(), made), seen={config(): old})
    assert (found.action, found.reason, found.manifest) == ("replace", "its original is gone", made)
    assert found.operations == ({"op": "replace", "path": "", "value": made},)
    assert {one.field for one in found.differences} == {
        "data.level",
        "data.gone",
        "data.fresh",
        "metadata.annotations.for",
    }


def test_changes_of_one_object_are_combined() -> None:
    """The operations are concatenated, and each reason appears once."""
    further = {"data": {"level": "warn", "fresh": "2"}}
    steps = [
        change(config(), OLD, NEW),
        change(config(), NEW, further),
        json_patch(config(), {"op": "add", "path": "/immutable", "value": True}, reason="frozen"),
    ]
    found = only_change(*steps, seen={config(): OLD})
    assert jsonpatch.apply_patch(OLD, list(found.operations)) == {**OLD, **further, "immutable": True}
    assert found.reason == "because; frozen"
    assert found.differences == (
        Difference(("data", "fresh"), None, "2"),
        Difference(("data", "gone"), "1", None),
        Difference(("data", "level"), "info", "warn"),
        Difference(("immutable",), None, True),
    )


@examples(100, derandomize=True)
@given(TEXTS, TEXTS)
def test_the_operations_of_a_json_patch_match_its_differences(old: dict[str, str], new: dict[str, str]) -> None:
    """For any keys, they turn the observed object into the new one."""
    before, after = observed_object({"data": old}), observed_object({"data": new})
    changes = previewed(change(config(), before, after), seen={config(): before}).changes if old != new else ()
    assert bool(changes) == (old != new)
    for found in changes:
        assert jsonpatch.apply_patch(before, list(found.operations)).get("data", {}) == new
        values_by_key = {one.path[1]: (one.old, one.new) for one in found.differences}
        assert values_by_key == {k: (old.get(k), new.get(k)) for k in {**old, **new} if old.get(k) != new.get(k)}


@pytest.mark.parametrize("media", ["merge-patch", "strategic-merge-patch"])
def test_a_merge_patch_is_shown_by_its_effect(media: str) -> None:
    """Its operations can be applied as they are, and have no preconditions."""
    seen = observed_object({"spec": {"a/b": "1", "same": "2", "gone": "3", "kept": "4"}})
    step = merge(node(), media, spec={"a/b": "9", "same": "2", "gone": None, "new": "5"}, status={"phase": "up"})
    found = only_change(step, seen={node(): seen})
    assert found.operations == (
        {"op": "add", "path": "/status", "value": {"phase": "up"}},
        {"op": "remove", "path": "/spec/gone"},
        {"op": "add", "path": "/spec/new", "value": "5"},
        {"op": "replace", "path": "/spec/a~1b", "value": "9"},
    )
    assert jsonpatch.apply_patch(seen, list(found.operations))["spec"] == {
        "a/b": "9",
        "same": "2",
        "kept": "4",
        "new": "5",
    }


def test_only_the_new_element_of_a_growing_list_is_an_operation() -> None:
    """A user of `plan -o json` sees the added toleration, and not all existing ones."""
    old = {"key": "a", "operator": "Exists"}
    new = {"key": "b", "operator": "Exists"}
    found = only_change(
        merge(node(), "merge-patch", spec={"t": [old, new]}), seen={node(): observed_object({"spec": {"t": [old]}})}
    )
    assert found.operations == ({"op": "add", "path": "/spec/t/1", "value": new},)


def test_conditions_that_a_strategic_merge_patch_does_not_name_are_not_removed() -> None:
    """A list that merges keeps them, and changed heartbeat and transition times are no difference."""
    old = {"type": "Ready", "status": "False", "lastHeartbeatTime": "1", "lastTransitionTime": "1"}
    seen = observed_object({"status": {"conditions": [{"type": "Other", "status": "True"}, old]}})
    patch = merge(
        node(),
        "strategic-merge-patch",
        status={
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2", "lastTransitionTime": "2"}]
        },
    )
    found = only_change(patch, seen={node(): seen})
    assert found.differences == (Difference(("status", "conditions", "[Ready]", "status"), "False", "True"),)
    assert found.differences[0].field == "status.conditions[Ready].status"


def test_a_change_of_an_unknown_object_is_shown_by_its_operations() -> None:
    """The earlier value is left out because it is unknown."""
    operations = [
        {"op": "replace", "path": "/metadata/labels/a~1b", "value": "x"},
        {"op": "remove", "path": "/data/gone"},
    ]
    found = only_change(json_patch(config(), *operations))
    assert found.operations == tuple(operations)
    assert found.differences == (
        Difference(("metadata", "labels", "a/b"), None, "x"),
        Difference(("data", "gone"), None, None),
    )


def test_replacing_a_whole_unknown_object_has_no_differences() -> None:
    """Only the operation can show it if the earlier state is unknown."""
    whole = {"op": "replace", "path": "", "value": {"data": {}}}
    for ref in (config(), secret()):
        found = only_change(json_patch(ref, whole))
        assert (found.operations, found.differences) == ((whole,), ())


def test_a_patch_that_cannot_be_simulated_is_shown_by_its_operations() -> None:
    """A plan does not fail because of an unsupported type of patch, or because of one that does not apply."""
    unknown = Step("patch", config(), "because", patch=Patch("apply-patch", {"data": {}}), operations=({"path": "/x"},))
    misfit = json_patch(config(), {"op": "add", "path": "/no/such/place", "value": "1"})
    for step in (unknown, misfit):
        assert only_change(step, seen={config(): OLD}).operations == step.operations
    assert only_change(create(config(), OLD), misfit).manifest == OLD


def test_list_elements_are_shown_by_name() -> None:
    """An element that is inserted first is one line, and so is a changed order."""

    def taint(key: str, **more: str) -> dict[str, str]:
        return {"key": key, "effect": "NoSchedule", **more}

    def told(old: Any, new: Any) -> list[tuple[str, Any, Any]]:
        seen = observed_object({"spec": {"taints": old}})
        step = json_patch(node(), {"op": "replace", "path": "/spec/taints", "value": new})
        return [(one.field, one.old, one.new) for one in only_change(step, seen={node(): seen}).differences]

    one, two = taint("one"), taint("two")
    assert told([one], [two, one]) == [("spec.taints[two:NoSchedule]", None, two)]
    assert told([one], [taint("one", value="x")]) == [("spec.taints[one:NoSchedule].value", None, "x")]
    assert told([one, two], [two, one]) == [
        ("spec.taints", ["[one:NoSchedule]", "[two:NoSchedule]"], ["[two:NoSchedule]", "[one:NoSchedule]"])
    ]
    assert told([one, one], [one]) == [("spec.taints", [one, one], [one])]
    assert told(["a"], ["b"]) == [("spec.taints", ["a"], ["b"])]
    assert told([{"port": 1}], [{"port": 2}]) == [("spec.taints", [{"port": 1}], [{"port": 2}])]


def test_a_new_section_is_shown_key_by_key() -> None:
    """Labels of an object that had none are shown as single labels, not as a map."""
    seen = observed_object({})
    step = json_patch(config(), {"op": "add", "path": "/metadata/labels", "value": {"a": "1"}})
    assert only_change(step, seen={config(): seen}).differences == (Difference(("metadata", "labels", "a"), None, "1"),)


def test_clusters_and_objects_are_sorted_for_readers() -> None:
    """The upper cluster is first, and one that left the topology last.

    Objects are sorted by kind and then by name, with web-2 before web-10.
    """
    kinds = [NODE, POD, SERVICE_ACCOUNT, LEASE, SECRET, CONFIG_MAP, NAMESPACE]
    steps = [create(of_kind(kind)) for kind in kinds]
    steps += [create(pod(name)) for name in ("web-10", "web-2", "web")]
    steps += [create(config(cluster=cluster)) for cluster in ("zone", "gone", B, UPPER)]
    found = previewed(*steps)
    assert list(found.clusters) == [UPPER, A, B, "gone", "zone"]
    assert [f"{change.ref.kind.name} {change.ref.name}" for change in found.clusters[A]] == [
        "Namespace one",
        "ConfigMap one",
        "Secret one",
        "Lease one",
        "ServiceAccount one",
        "Pod one",
        "Pod web",
        "Pod web-2",
        "Pod web-10",
        "Node one",
    ]
    assert found.changes[0].ref.cluster == UPPER


def test_problems_are_sorted_by_cluster() -> None:
    """Problems of a cluster are sorted by rule and name, whatever their original order."""
    keys = [
        Key("pod", B, "shop", "web"),
        Key("pod", A, "shop", "web-10"),
        Key("pod", A, "shop", "web-9"),
        Key("node", A, "", A),
        Key("pod", "gone", "shop", "web"),
    ]
    found = previewed(problems={key: Problem("Denied", "no") for key in keys})
    assert [key for key, _ in found.problems] == [keys[3], keys[2], keys[1], keys[0], keys[4]]


def test_annotations_about_written_keys_and_images_are_no_difference() -> None:
    """They follow from the fields that are shown."""
    before = {"metadata": {"labels": {"a": "1"}, "annotations": {WRITTEN_KEYS: "old", WRITTEN_IMAGES: "old"}}}
    after = {"metadata": {"labels": {"a": "2"}, "annotations": {WRITTEN_KEYS: "new", WRITTEN_IMAGES: "new"}}}
    assert [one.field for one in differences(before, after)] == ["metadata.labels.a"]
