"""Which events of a lower cluster come up, and what they look like there."""

from typing import Any

import orjson
import pytest
from eventkit import lower_event, lower_of, mirrored
from worldkit import OWNER_HERE, STRANGER, A, marked, put, thing

from tensile.kubelet.pods.events import (
    OF_CLAIMS,
    OF_PODS,
    EventSubject,
    content,
    copy_of,
    event_header,
    is_copy,
    ref_of,
    repeat_of,
    says_the_same,
    subject_of,
    uid_of_copy,
)
from tensile.names import COMPONENT, LOWER, OWNER
from tensile.objects import CLAIM, EVENT, UPPER, Manifest, Ref
from tensile.reconcile.world import NamespaceNaming, World


def subject(raw: bytes, here: World | None = None) -> EventSubject | None:
    """Return the upper pod that an event is about."""
    seen = event_header(raw)
    of = here or mirrored()
    return subject_of(seen, lower_of(of), of) if seen else None


def copied(raw: bytes) -> tuple[Ref, Manifest]:
    """Return the copy of an event, and where it stands."""
    seen, upper = event_header(raw), subject(raw)
    assert seen is not None
    assert upper is not None
    ref = ref_of(seen, upper)
    return ref, copy_of(content(raw), ref, upper, A, OWNER_HERE)


def test_only_events_of_pods_are_asked_for() -> None:
    """And of claims, each by the one field that the API can select by and that says so."""
    assert OF_PODS.fields == "involvedObject.kind=Pod"
    assert OF_CLAIMS.fields == "involvedObject.kind=PersistentVolumeClaim"


def test_an_event_of_our_lower_pod_is_about_its_upper_pod() -> None:
    """Found by name, and certain by both UIDs."""
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
    ids=["a stranger's", "another UID", "no pod", "written by us", "reported by us", "copied by us"],
)
def test_other_events_are_about_nothing_of_ours(fields: dict[str, Any]) -> None:
    """Strangers' pods, pods that were there before, and what this program said itself."""
    assert subject(lower_event(**fields)) is None


def test_an_event_that_another_topology_copied_comes_up() -> None:
    """The lower cluster can be another's upper: what comes from below it is news here."""
    assert subject(lower_event(metadata={"labels": {OWNER: STRANGER.mark}})) is not None


def test_an_event_of_a_pod_that_is_gone_above_is_about_nothing() -> None:
    """There is nobody left to tell."""
    here = mirrored()
    upper = lower_of(here).upper_pods.get("default", "web")
    assert upper is not None
    lower_of(here).upper_pods.remove(upper.raw)
    assert subject(lower_event(), here) is None


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"metadata":{"uid":1}}', lower_event(message="x" * (1 << 16))])
def test_what_is_no_event_of_a_sane_size_is_passed_over(raw: bytes) -> None:
    """A line that cannot be read must not end the hearing of the next."""
    assert event_header(raw) is None


def test_the_copy_is_about_the_upper_pod_and_from_whom_it_was() -> None:
    """Everything that kubectl finds it by and prints."""
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


def test_an_event_of_the_newer_kind_keeps_what_the_api_asks_of_it() -> None:
    """Schedulers write these: no source, but a reporter, an action and a time."""
    newer = {"source": {}, "eventTime": "2026-03-01T12:00:00.000000Z", "action": "Binding", "count": None}
    series = {"count": 3, "lastObservedTime": "2026-03-01T12:05:00.000000Z"}
    _, copy = copied(lower_event(**newer, series=series, reportingComponent="default-scheduler"))
    assert (copy["eventTime"], copy["action"], copy["series"]) == (newer["eventTime"], "Binding", series)
    assert copy["reportingComponent"] == "default-scheduler"
    assert "count" not in copy


def of_claim(**fields: Any) -> bytes:
    """Make the bytes of an event of a lower claim."""
    involved = {"kind": "PersistentVolumeClaim", "name": "data", "uid": "below-claim-data", "fieldPath": ""}
    return lower_event(reason="ProvisioningFailed", involvedObject=involved | fields.pop("involved", {}), **fields)


def claimed(**marks: Any) -> World:
    """Make a world with a claim of ours in lower-a, and the one that it was made for."""
    here = mirrored()
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    put(here.upper.more[CLAIM], {**thing("PersistentVolumeClaim", "data", uid="claim-data"), "spec": spec})
    made = {**thing("PersistentVolumeClaim", "data", uid="below-claim-data"), "spec": spec}
    put(lower_of(here).more[CLAIM], marked(made, "claim-data", **marks))
    return here


def test_a_warning_of_our_lower_claim_is_about_the_upper_claim() -> None:
    """It says why no volume is made, and stands with the claim above under its name and UID."""
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
    ids=["no warning", "another UID", "another name", "written by us", "a stranger's"],
)
def test_other_events_of_claims_stay_below(fields: dict[str, Any], marks: dict[str, Any]) -> None:
    """That a claim waits for a pod is said every few seconds, and is as it should be."""
    assert subject(of_claim(**fields), claimed(**marks)) is None


def test_an_event_of_a_claim_in_an_unknown_namespace_stays_below() -> None:
    """There is no telling which claim it is about."""
    here = claimed()
    lower_of(here).naming = NamespaceNaming("demo", OWNER_HERE.mark)
    assert subject(of_claim(), here) is None


def test_the_name_follows_from_the_lower_events_uid() -> None:
    """Another content has the same name, another event another one; it is never too long."""
    first, again, other = (copied(lower_event(**one))[0] for one in ({}, {"count": 9}, {"uid": "e-2"}))
    assert first == again != other
    assert (first.cluster, first.kind, first.namespace) == (UPPER, EVENT, "default")
    assert first.name.startswith("web.")
    seen, upper = event_header(lower_event()), subject(lower_event())
    assert seen is not None
    assert upper is not None
    long = EventSubject("Pod", "default", "x" * 253, "u")
    assert len(ref_of(seen, long).name) <= 253


def test_a_repeat_changes_what_repeats_and_is_fenced() -> None:
    """By the copy's UID; what never changes is not sent."""
    _, copy = copied(lower_event(count=4, lastTimestamp="2026-03-01T13:00:00Z"))
    patch = repeat_of(copy, "copy-1")
    assert patch.media == "merge-patch"
    assert patch.body == {
        "metadata": {"uid": "copy-1"},
        "count": 4,
        "lastTimestamp": "2026-03-01T13:00:00Z",
        "message": "Back-off pulling image",
    }


def test_a_copy_is_known_by_its_marks_and_its_pod() -> None:
    """What somebody else put under the name is not ours to change."""
    _, copy = copied(lower_event())
    stored = {**copy, "metadata": {**copy["metadata"], "uid": "copy-1"}}
    assert is_copy(stored, copy)
    assert uid_of_copy(stored) == "copy-1"
    assert not is_copy({**stored, "metadata": {"uid": "copy-1"}}, copy)
    assert not is_copy({**stored, "involvedObject": {"uid": "another"}}, copy)


def test_a_copy_that_says_the_same_needs_no_write() -> None:
    """A repeat is heard of again after each break of the watch."""
    _, copy = copied(lower_event())
    assert says_the_same(copy, copy)
    assert not says_the_same({**copy, "count": 2}, copy)
