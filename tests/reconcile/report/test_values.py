"""Several steps for one object become the one change that they come to."""

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
    merge,
    node,
    of_kind,
    only,
    operate,
    pod,
    previewed,
    secret,
    seen_as,
)
from properties import examples

from tensile.kube.cluster import Patch
from tensile.names import WRITTEN_IMAGES, WRITTEN_KEYS
from tensile.objects import CONFIG_MAP, LEASE, NAMESPACE, NODE, POD, SECRET, SERVICE_ACCOUNT, UPPER
from tensile.reconcile.plan import Step
from tensile.reconcile.report.values import Difference, differences
from tensile.reconcile.world import Key, Problem

OLD = seen_as({"data": {"level": "info", "gone": "1"}})
NEW = {"data": {"level": "debug", "fresh": "2"}}
TEXTS = st.dictionaries(st.text(max_size=4), st.text(max_size=3), max_size=4)


MADE, GONE = create(config(), OLD, "made"), delete(config(), "gone")
RELEASED = operate(config(), {"op": "remove", "path": "/metadata/finalizers"}, reason="released")
BECOMES: dict[str, tuple[list[Step], tuple[str, str, Any] | None]] = {
    "made, then changed": ([MADE, change(config(), OLD, NEW)], ("create", "made", {**OLD, **NEW})),
    "made, then deleted": ([MADE, GONE], None),
    "made and deleted twice": ([MADE, GONE, MADE, GONE], None),
    "made twice": ([MADE, GONE, create(config(), NEW, "again")], ("create", "again", NEW)),
    "deleted, then made": ([GONE, create(config(), NEW)], ("replace", "gone", NEW)),
    "released, then made": ([RELEASED, create(config(), NEW, "wanted")], ("replace", "wanted", NEW)),
    "changed, then deleted": (
        [change(config(), OLD, NEW), GONE, delete(config(), "shorter")],
        ("delete", "gone", None),
    ),
    "replaced, then deleted": ([GONE, create(config()), delete(config(), "again")], ("delete", "gone", None)),
    "changed back": ([change(config(), OLD, NEW), change(config(), {**OLD, **NEW}, OLD)], None),
}
"""Steps for one object that exists unless they make it, and the change that they come to: action, reason, content."""


@pytest.mark.parametrize(("steps", "expected"), BECOMES.values(), ids=BECOMES)
def test_only_the_first_and_the_last_state_count(steps: list[Step], expected: tuple[str, str, Any] | None) -> None:
    """The reason is that of the step by which the first one ended, or the last one was made."""
    is_made = steps[0].verb == "create"
    found = previewed(*steps, seen={} if is_made else {config(): OLD}).changes
    assert [(one.action, one.reason, one.manifest) for one in found] == ([expected] if expected else [])
    roots = {"create": "add", "replace": "replace", "delete": "remove"}
    for one in found:
        (operation,) = one.operations
        assert (operation["op"], operation["path"]) == (roots[one.action], "")
        assert operation.get("value") == one.manifest


def test_what_is_replaced_without_being_known_before_is_replaced_all_the_same() -> None:
    """There is only nothing to compare with."""
    found = only(delete(config()), create(config(), NEW))
    assert (found.action, found.differences) == ("replace", ())


def test_preconditions_are_no_part_of_a_change() -> None:
    """UID and resourceVersion say which object is meant: they appear neither as operations nor in what is made."""
    fences = tuple({"op": "replace", "path": f"/metadata/{name}", "value": "7"} for name in ("uid", "resourceVersion"))
    kept = {"op": "add", "path": "/data/a", "value": "1"}
    found = only(operate(config(), *fences, kept), seen={config(): OLD})
    assert (found.operations, [one.field for one in found.differences]) == ((kept,), ["data.a"])
    for step in (operate(config(), kept), merge(config(), "merge-patch", data={"a": "1"})):
        made = only(create(config(), {"data": {}}), step).manifest or {}
        assert made["data"] == {"a": "1"}
        assert not made.get("metadata")


def test_what_is_taken_away_and_made_anew_is_replaced() -> None:
    """The reason is why the old one had to go; what differs is told without the API's book-keeping."""
    made = {"metadata": {"annotations": {"for": "two"}}, **NEW}
    old = seen_as({"metadata": {"annotations": {"for": "one"}}, "status": {"phase": "x"}, **OLD})
    found = only(delete(config(), "its original is gone"), create(config(), made), seen={config(): old})
    assert (found.action, found.reason, found.manifest) == ("replace", "its original is gone", made)
    assert found.operations == ({"op": "replace", "path": "", "value": made},)
    assert {one.field for one in found.differences} == {
        "data.level",
        "data.gone",
        "data.fresh",
        "metadata.annotations.for",
    }


def test_changes_of_one_object_are_joined() -> None:
    """The operations follow each other; reasons are told once each."""
    further = {"data": {"level": "warn", "fresh": "2"}}
    steps = [
        change(config(), OLD, NEW),
        change(config(), NEW, further),
        operate(config(), {"op": "add", "path": "/immutable", "value": True}, reason="frozen"),
    ]
    found = only(*steps, seen={config(): OLD})
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
def test_operations_lead_from_what_was_seen_to_what_is_told(old: dict[str, str], new: dict[str, str]) -> None:
    """For JSON patches, whatever the keys are called, and the same as the differences say."""
    before, after = seen_as({"data": old}), seen_as({"data": new})
    changes = previewed(change(config(), before, after), seen={config(): before}).changes if old != new else ()
    assert bool(changes) == (old != new)
    for found in changes:
        assert jsonpatch.apply_patch(before, list(found.operations)).get("data", {}) == new
        told = {one.path[1]: (one.old, one.new) for one in found.differences}
        assert told == {k: (old.get(k), new.get(k)) for k in {**old, **new} if old.get(k) != new.get(k)}


@pytest.mark.parametrize("media", ["merge-patch", "strategic-merge-patch"])
def test_a_patch_that_merges_is_told_by_what_it_does(media: str) -> None:
    """Its operations can be carried out as they stand, without the preconditions."""
    seen = seen_as({"spec": {"a/b": "1", "same": "2", "gone": "3", "kept": "4"}})
    step = merge(node(), media, spec={"a/b": "9", "same": "2", "gone": None, "new": "5"}, status={"phase": "up"})
    found = only(step, seen={node(): seen})
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


def test_of_a_list_that_grows_only_what_is_new_is_told() -> None:
    """A reader of `plan -o json` sees the toleration that is added, not all that were there."""
    old = {"key": "a", "operator": "Exists"}
    new = {"key": "b", "operator": "Exists"}
    found = only(merge(node(), "merge-patch", spec={"t": [old, new]}), seen={node(): seen_as({"spec": {"t": [old]}})})
    assert found.operations == ({"op": "add", "path": "/spec/t/1", "value": new},)


def test_conditions_of_others_are_not_told_as_gone() -> None:
    """A list that merges keeps what the patch does not name; when a condition was looked at last is no news."""
    old = {"type": "Ready", "status": "False", "lastHeartbeatTime": "1", "lastTransitionTime": "1"}
    seen = seen_as({"status": {"conditions": [{"type": "Other", "status": "True"}, old]}})
    patch = merge(
        node(),
        "strategic-merge-patch",
        status={
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2", "lastTransitionTime": "2"}]
        },
    )
    found = only(patch, seen={node(): seen})
    assert found.differences == (Difference(("status", "conditions", "[Ready]", "status"), "False", "True"),)
    assert found.differences[0].field == "status.conditions[Ready].status"


def test_a_change_of_what_was_never_seen_is_told_by_its_operations() -> None:
    """What it was before is left open rather than guessed."""
    operations = [
        {"op": "replace", "path": "/metadata/labels/a~1b", "value": "x"},
        {"op": "remove", "path": "/data/gone"},
    ]
    found = only(operate(config(), *operations))
    assert found.operations == tuple(operations)
    assert found.differences == (
        Difference(("metadata", "labels", "a/b"), None, "x"),
        Difference(("data", "gone"), None, None),
    )


def test_a_whole_object_put_in_anothers_place_is_no_field() -> None:
    """Only the operation can say it, where nobody knows what was there."""
    whole = {"op": "replace", "path": "", "value": {"data": {}}}
    for ref in (config(), secret()):
        found = only(operate(ref, whole))
        assert (found.operations, found.differences) == ((whole,), ())


def test_a_patch_that_cannot_be_followed_is_told_by_its_operations() -> None:
    """No plan fails on a sort of patch that is not rehearsed, or on one that does not fit."""
    unknown = Step("patch", config(), "because", patch=Patch("apply-patch", {"data": {}}), operations=({"path": "/x"},))
    misfit = operate(config(), {"op": "add", "path": "/no/such/place", "value": "1"})
    for step in (unknown, misfit):
        assert only(step, seen={config(): OLD}).operations == step.operations
    assert only(create(config(), OLD), misfit).manifest == OLD


def test_elements_of_lists_are_told_by_name() -> None:
    """One put in front of the others is one line; an order that changed is told as one."""

    def taint(key: str, **more: str) -> dict[str, str]:
        return {"key": key, "effect": "NoSchedule", **more}

    def told(old: Any, new: Any) -> list[tuple[str, Any, Any]]:
        seen = seen_as({"spec": {"taints": old}})
        step = operate(node(), {"op": "replace", "path": "/spec/taints", "value": new})
        return [(one.field, one.old, one.new) for one in only(step, seen={node(): seen}).differences]

    one, two = taint("one"), taint("two")
    assert told([one], [two, one]) == [("spec.taints[two:NoSchedule]", None, two)]
    assert told([one], [taint("one", value="x")]) == [("spec.taints[one:NoSchedule].value", None, "x")]
    assert told([one, two], [two, one]) == [
        ("spec.taints", ["[one:NoSchedule]", "[two:NoSchedule]"], ["[two:NoSchedule]", "[one:NoSchedule]"])
    ]
    assert told([one, one], [one]) == [("spec.taints", [one, one], [one])]
    assert told(["a"], ["b"]) == [("spec.taints", ["a"], ["b"])]
    assert told([{"port": 1}], [{"port": 2}]) == [("spec.taints", [{"port": 1}], [{"port": 2}])]


def test_a_section_that_is_new_is_told_key_by_key() -> None:
    """Labels on an object that had none are labels that were set, not a map."""
    seen = seen_as({})
    step = operate(config(), {"op": "add", "path": "/metadata/labels", "value": {"a": "1"}})
    assert only(step, seen={config(): seen}).differences == (Difference(("metadata", "labels", "a"), None, "1"),)


def test_clusters_come_as_the_file_has_them_and_objects_as_a_person_reads() -> None:
    """The upper first, one that left the file last; namespaces, configuration, pods, nodes; web-2 before web-10."""
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


def test_problems_come_in_the_order_of_the_clusters() -> None:
    """Then by rule and name, whatever order they came up in."""
    keys = [
        Key("pod", B, "shop", "web"),
        Key("pod", A, "shop", "web-10"),
        Key("pod", A, "shop", "web-9"),
        Key("node", A, "", A),
        Key("pod", "gone", "shop", "web"),
    ]
    found = previewed(problems={key: Problem("Denied", "no") for key in keys})
    assert [key for key, _ in found.problems] == [keys[3], keys[2], keys[1], keys[0], keys[4]]


def test_notes_about_what_was_written_are_no_news() -> None:
    """They follow from the field that is told."""
    before = {"metadata": {"labels": {"a": "1"}, "annotations": {WRITTEN_KEYS: "old", WRITTEN_IMAGES: "old"}}}
    after = {"metadata": {"labels": {"a": "2"}, "annotations": {WRITTEN_KEYS: "new", WRITTEN_IMAGES: "new"}}}
    assert [one.field for one in differences(before, after)] == ["metadata.labels.a"]
