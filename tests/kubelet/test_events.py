"""Which events of a lower cluster come up, and what they look like there."""

from typing import Any

import orjson
import pytest
from eventkit import lower_event, lower_of, mirrored
from worldkit import OWNER_HERE, STRANGER, A

from tensile.cache import Entry
from tensile.kubelet.events import (
    OF_PODS,
    copy_of,
    glimpse,
    is_copy,
    ref_of,
    repeat_of,
    says_the_same,
    uid_of_copy,
    upper_pod_of,
)
from tensile.names import COMPONENT, LOWER, OWNER
from tensile.objects import EVENT, UPPER, Manifest, Ref
from tensile.world import World


def subject(raw: bytes, here: World | None = None) -> Entry | None:
    """Give the upper pod that an event is about."""
    seen = glimpse(raw)
    return upper_pod_of(seen, lower_of(here or mirrored()), OWNER_HERE) if seen else None


def copied(raw: bytes) -> tuple[Ref, Manifest]:
    """Give the copy of an event, and where it stands."""
    seen, upper = glimpse(raw), subject(raw)
    assert seen is not None
    assert upper is not None
    ref = ref_of(seen, upper)
    return ref, copy_of(raw, ref, upper, A, OWNER_HERE)


def test_only_events_of_pods_are_asked_for() -> None:
    """By the one field that the API can select by and that says so."""
    assert OF_PODS.fields == "involvedObject.kind=Pod"


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
    assert glimpse(raw) is None


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
        "resourceVersion": str(upper.version),
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


def test_the_name_follows_from_the_lower_events_uid() -> None:
    """Another content has the same name, another event another one; it is never too long."""
    first, again, other = (copied(lower_event(**one))[0] for one in ({}, {"count": 9}, {"uid": "e-2"}))
    assert first == again != other
    assert (first.cluster, first.kind, first.namespace) == (UPPER, EVENT, "default")
    assert first.name.startswith("web.")
    seen, upper = glimpse(lower_event()), subject(lower_event())
    assert seen is not None
    assert upper is not None
    long = Entry("default", "x" * 253, "u", 1, b"", None)
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
