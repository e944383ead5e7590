"""Tests of which events of a lower cluster are copied, and of the form of the copies."""

from typing import Any

import orjson
import pytest
from eventkit import lower_event, lower_of, mirrored_world
from worldkit import OWNER_HERE, STRANGER, A, make_object, put, with_owner_marks

from tensile.kubelet.pods.events import (
    OF_CLAIMS,
    OF_PODS,
    EventSubject,
    content,
    copy_of,
    event_header,
    is_copy,
    is_up_to_date,
    ref_of,
    repeat_of,
    subject_of,
    uid_of_copy,
)
from tensile.names import COMPONENT, LOWER, OWNER
from tensile.objects import CLAIM, EVENT, UPPER, Manifest, Ref
from tensile.reconcile.world import NamespaceNaming, World


def subject(raw: bytes, world: World | None = None) -> EventSubject | None:
    """Return the upper pod that an event refers to."""
    seen = event_header(raw)
    of = world or mirrored_world()
    return subject_of(seen, lower_of(of), of) if seen else None


def copied(raw: bytes) -> tuple[Ref, Manifest]:
    """Return the reference of an event's copy, and the copy."""
    seen, upper = event_header(raw), subject(raw)
    assert seen is not None
    assert upper is not None
    ref = ref_of(seen, upper)
    return ref, copy_of(content(raw), ref, upper, A, OWNER_HERE)


def test_only_events_of_pods_and_claims_are_watched() -> None:
    """The involved object's kind is the field selector."""
    assert OF_PODS.fields == "involvedObject.kind=Pod"
    assert OF_CLAIMS.fields == "involvedObject.kind=PersistentVolumeClaim"


def test_an_event_of_a_mirrored_pod_refers_to_its_upper_pod() -> None:
    """The pod is found by its name and verified by both UIDs."""
    found = subject(lower_event())
    assert found is not None
    assert (found.namespace, found.name, found.uid) == ("default", "web", "Pod-web")


@pytest.mark.parametrize(
    "fields",
    [
        {"involvedObject": {"name": "stranger"}},
        {"involvedObject": {"uid": "another"}},
        {"involvedObject": {"kind": "Node"}},
        {"source": {"component": COMPONENT}},
        {"source": None, "reportingComponent": COMPONENT},
        {"metadata": {"labels": {OWNER: OWNER_HERE.mark}}},
    ],
    ids=["another owner's", "another UID", "no pod", "written by tensile", "reported by tensile", "copied by tensile"],
)
def test_other_events_refer_to_no_upper_pod(fields: dict[str, Any]) -> None:
    """Other pods, earlier pods of the name, and events of this program are ignored."""
    assert subject(lower_event(**fields)) is None


def test_an_event_copied_by_another_topology_is_copied() -> None:
    """The lower cluster may be another topology's upper cluster, whose lower events are relevant here."""
    assert subject(lower_event(metadata={"labels": {OWNER: STRANGER.mark}})) is not None


def test_an_event_of_a_pod_without_an_upper_pod_is_not_copied() -> None:
    """There is no object that the copy could refer to."""
    world = mirrored_world()
    upper = lower_of(world).upper_pods.get("default", "web")
    assert upper is not None
    lower_of(world).upper_pods.remove(upper.raw)
    assert subject(lower_event(), world) is None


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"metadata":{"uid":1}}', lower_event(message="x" * (1 << 16))])
def test_an_invalid_or_oversized_event_is_skipped(raw: bytes) -> None:
    """A line that cannot be parsed must not end the watch."""
    assert event_header(raw) is None


def test_a_copy_refers_to_the_upper_pod_and_keeps_its_source() -> None:
    """It has all fields by which kubectl finds events and which it prints."""
    ref, copy = copied(lower_event())
    upper = subject(lower_event())
    assert upper is not None
    assert copy["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "default",
        "name": "web",
        "uid": "Pod-web",
        "resourceVersion": upper.version,
        "fieldPath": "spec.containers{main}",
    }
    assert copy["metadata"] == {
        "name": ref.name,
        "namespace": "default",
        "labels": {OWNER: OWNER_HERE.mark},
        "annotations": {LOWER: A},
    }
    assert copy["source"] == {"component": "kubelet", "host": "n1"}
    kept = ("reason", "message", "type", "count", "firstTimestamp", "lastTimestamp", "reportingComponent")
    event = orjson.loads(lower_event())
    assert {field: copy[field] for field in kept} == {field: event[field] for field in kept}
    assert "eventTime" not in copy, "null is left out"


def test_a_copy_of_a_newer_event_keeps_the_fields_required_by_the_api() -> None:
    """Schedulers write events with a reporter, an action and a time instead of a source."""
    newer = {"source": {}, "eventTime": "2026-03-01T12:00:00.000000Z", "action": "Binding", "count": None}
    series = {"count": 3, "lastObservedTime": "2026-03-01T12:05:00.000000Z"}
    _, copy = copied(lower_event(**newer, series=series, reportingComponent="default-scheduler"))
    assert (copy["eventTime"], copy["action"], copy["series"]) == (newer["eventTime"], "Binding", series)
    assert copy["reportingComponent"] == "default-scheduler"
    assert "count" not in copy


def of_claim(**fields: Any) -> bytes:
    """Return the bytes of an event of a lower claim."""
    involved = {"kind": "PersistentVolumeClaim", "name": "data", "uid": "below-claim-data", "fieldPath": ""}
    return lower_event(reason="ProvisioningFailed", involvedObject=involved | fields.pop("involved", {}), **fields)


def claimed(**marks: Any) -> World:
    """Return a world with a mirrored claim in lower-a and its upper claim."""
    world = mirrored_world()
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    put(world.upper.more[CLAIM], {**make_object("PersistentVolumeClaim", "data", uid="claim-data"), "spec": spec})
    made = {**make_object("PersistentVolumeClaim", "data", uid="below-claim-data"), "spec": spec}
    put(lower_of(world).more[CLAIM], with_owner_marks(made, "claim-data", **marks))
    return world


def test_a_warning_of_a_mirrored_claim_refers_to_the_upper_claim() -> None:
    """It explains why no volume is provisioned, and has the upper claim's name and UID."""
    found = subject(of_claim(), claimed())
    assert found == EventSubject("PersistentVolumeClaim", "default", "data", "claim-data")
    seen = event_header(of_claim())
    assert seen is not None
    assert found is not None
    made = copy_of(content(of_claim()), ref_of(seen, found), found, A, OWNER_HERE)
    about = {"apiVersion": "v1", "kind": found.kind, "namespace": "default", "name": "data", "uid": "claim-data"}
    assert (made["involvedObject"], made["reason"]) == (about, "ProvisioningFailed")


@pytest.mark.parametrize(
    ("fields", "marks"),
    [
        ({"type": "Normal"}, {}),
        ({"involved": {"uid": "another"}}, {}),
        ({"involved": {"name": "other"}}, {}),
        ({"source": {"component": COMPONENT}}, {}),
        ({}, {"owner": STRANGER}),
    ],
    ids=["no warning", "another UID", "another name", "written by tensile", "another owner's"],
)
def test_other_events_of_claims_are_not_copied(fields: dict[str, Any], marks: dict[str, Any]) -> None:
    """An event that a claim waits for a pod is repeated every few seconds and reports no problem."""
    assert subject(of_claim(**fields), claimed(**marks)) is None


def test_an_event_of_a_claim_in_an_unmapped_namespace_is_not_copied() -> None:
    """The upper claim cannot be determined."""
    world = claimed()
    lower_of(world).naming = NamespaceNaming("demo", OWNER_HERE.mark)
    assert subject(of_claim(), world) is None


def test_the_name_of_a_copy_follows_from_the_lower_events_uid() -> None:
    """The content does not change it, another event has another name, and it is never too long."""
    first, again, other = (copied(lower_event(**one))[0] for one in ({}, {"count": 9}, {"uid": "e-2"}))
    assert first == again != other
    assert (first.cluster, first.kind, first.namespace) == (UPPER, EVENT, "default")
    assert first.name.startswith("web.")
    seen, upper = event_header(lower_event()), subject(lower_event())
    assert seen is not None
    assert upper is not None
    long = EventSubject("Pod", "default", "x" * 253, "u")
    assert len(ref_of(seen, long).name) <= 253


def test_a_repetition_patches_only_changed_fields_of_the_copy() -> None:
    """The patch has the copy's UID as its precondition."""
    _, copy = copied(lower_event(count=4, lastTimestamp="2026-03-01T13:00:00Z"))
    patch = repeat_of(copy, "copy-1")
    assert patch.media == "merge-patch"
    assert patch.body == {
        "metadata": {"uid": "copy-1"},
        "count": 4,
        "lastTimestamp": "2026-03-01T13:00:00Z",
        "message": "Back-off pulling image",
    }


def test_a_copy_is_recognized_by_its_marks_and_its_pod() -> None:
    """An object of another writer under the name must not be changed."""
    _, copy = copied(lower_event())
    stored = {**copy, "metadata": {**copy["metadata"], "uid": "copy-1"}}
    assert is_copy(stored, copy)
    assert uid_of_copy(stored) == "copy-1"
    assert not is_copy({**stored, "metadata": {"uid": "copy-1"}}, copy)
    assert not is_copy({**stored, "involvedObject": {"uid": "another"}}, copy)


def test_an_equal_copy_needs_no_write() -> None:
    """A repetition is received again after each restart of the watch."""
    _, copy = copied(lower_event())
    assert is_up_to_date(copy, copy)
    assert not is_up_to_date({**copy, "count": 2}, copy)
