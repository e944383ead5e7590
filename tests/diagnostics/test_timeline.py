"""Tests of `tensile explain pod --timeline`: the output for an upper pod, its lower pod and their events."""

from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import orjson
import pytest

from tensile.diagnostics.timeline import Traced, timeline, timeline_text
from tensile.names import FIELD_MANAGER, LOWER, LOWER_SCHEDULED

Manifest = dict[str, Any]
NOW = datetime(2026, 3, 1, 12, 1, 0, tzinfo=UTC)
SLOW = "lower pod bound to a node -> containers started"


def at(second: int) -> str:
    """Return a time of the API: so many seconds after noon."""
    return f"2026-03-01T12:{second // 60:02d}:{second % 60:02d}Z"


def condition(kind: str, second: int, status: str = "True", **more: str) -> Manifest:
    """Make a condition that has its status since a second."""
    return {"type": kind, "status": status, "lastTransitionTime": at(second), **more}


def event(second: int, reason: str, message: str, **more: Any) -> Manifest:
    """Make an event of the kubelet."""
    found = {"metadata": {"name": reason}, "type": "Normal", "reason": reason, "message": message}
    return (
        found | {"firstTimestamp": at(second), "lastTimestamp": at(second), "source": {"component": "kubelet"}} | more
    )


def running(second: int, restarts: int = 0, **more: Any) -> Manifest:
    """Make the status of a container that runs since a second."""
    return {"name": "main", "restartCount": restarts, "state": {"running": {"startedAt": at(second)}}, **more}


def upper_pod(*conditions: Manifest, written: int | None = None, node: str = "lower-a", **meta: Any) -> Manifest:
    """Make an upper pod, created at noon, whose status the engine changed last at second `written`."""
    book = {"manager": FIELD_MANAGER, "subresource": "status", "time": at(written or 0)}
    other = {"manager": "kube-scheduler", "subresource": "status", "time": at(50)}
    fields = {"name": "web", "namespace": "shop", "uid": "u1", "creationTimestamp": at(0), **meta}
    books = [other] if written is None else [other, book]
    spec = {"nodeName": node} if node else {}
    status = {"phase": "Running", "conditions": list(conditions)}
    return {"metadata": fields | {"managedFields": books}, "spec": spec, "status": status}


def lower_pod(*conditions: Manifest, created: int = 2, **status: Any) -> Manifest:
    """Make its lower pod."""
    meta = {"name": "web", "namespace": "shop", "uid": "l1", "creationTimestamp": at(created)}
    return {"metadata": meta, "spec": {"nodeName": "n1"}, "status": {"conditions": list(conditions), **status}}


def started() -> Traced:
    """Make a pod that became Ready after a slow image pull."""
    upper_object = upper_pod(condition("PodScheduled", 1), condition("Ready", 15), written=16)
    lower_object = lower_pod(
        condition("PodScheduled", 3), condition("Ready", 15), containerStatuses=[running(14)], startTime=at(3)
    )
    pulled = event(13, "Pulled", "pulled in 9 s")
    copied = pulled | {"metadata": {"name": "copy", "annotations": {LOWER: "lower-a"}}}
    bound = event(0, "Scheduled", "to lower-a", eventTime="2026-03-01T12:00:00.700000Z", source={"component": "s"})
    return Traced(upper_object, [copied, bound], "lower-a", lower_object, [pulled])


def steps(document: Manifest) -> list[tuple[str, str | None, float]]:
    """Return the steps of a document."""
    return [(one["from"], one["to"], one["seconds"]) for one in document["steps"]]


def whats(document: Manifest) -> list[str]:
    """Return the descriptions of what happened, in order."""
    return [one["what"] for one in document["moments"]]


def test_the_timeline_of_a_started_pod_has_each_moment_and_names_the_longest_step() -> None:
    """Each moment appears once, with its time, its cluster and the field that records it."""
    head = ["Pod shop/web on virtual node lower-a, pod shop/web in lower-a: the longest step took 11s: " + SLOW + "."]
    assert timeline_text(timeline(started(), NOW)).splitlines() == [
        *head,
        "",
        "OFFSET    TIME                       CLUSTER   WHAT                                  RECORDED IN",
        "+0s       2026-03-01T12:00:00Z       upper     created                               metadata.creationTimestamp",  # noqa: E501
        "+0.7s     2026-03-01T12:00:00.700Z   upper     Normal Scheduled: to lower-a          event of s",
        "+1s       2026-03-01T12:00:01Z       upper     bound to its virtual node (lower-a)   condition PodScheduled",
        "+2s       2026-03-01T12:00:02Z       lower-a   lower pod created                     metadata.creationTimestamp",  # noqa: E501
        "+3s       2026-03-01T12:00:03Z       lower-a   lower pod bound to a node (n1)        condition PodScheduled",
        "+3s       2026-03-01T12:00:03Z       lower-a   accepted by the kubelet               status.startTime",
        "+13s      2026-03-01T12:00:13Z       lower-a   Normal Pulled: pulled in 9 s          event of kubelet",
        "+14s      2026-03-01T12:00:14Z       lower-a   containers started                    containerStatuses",
        "+14s      2026-03-01T12:00:14Z       lower-a   container main started                state.startedAt",
        "+15s      2026-03-01T12:00:15Z       lower-a   lower pod Ready                       condition Ready",
        "<= +16s   2026-03-01T12:00:16Z       upper     upper pod Ready                       managedFields, last status of tensile-kube",  # noqa: E501
        "",
        "TOOK         STEP",
        "1s           created -> bound to its virtual node",
        "1s           bound to its virtual node -> lower pod created",
        "1s           lower pod created -> lower pod bound to a node",
        "11s          lower pod bound to a node -> containers started",
        "1s           containers started -> lower pod Ready",
        "at most 1s   lower pod Ready -> upper pod Ready",
        "",
        "Times have a resolution of 1 second, except those of some events, and each cluster has its own clock.",
        "upper pod Ready: at that time or earlier. The API does not record it; later statuses move it.",
    ]  # fmt: skip


def test_the_json_of_a_timeline_has_seconds_as_numbers_and_the_longest_step() -> None:
    """Programs need no parser for durations."""
    found = orjson.loads(orjson.dumps(timeline(started(), NOW)))
    trace = sha256(b"u1").hexdigest()[:32]
    assert found["pod"] == {"namespace": "shop", "name": "web", "uid": "u1", "traceId": trace, "node": "lower-a"}
    assert found["lower"] == {"name": "lower-a", "namespace": "shop", "pod": "web"}
    assert found["longest"] == {"from": "lowerBound", "to": "started", "seconds": 11, "atMost": False}
    assert found["moments"][-1] == {
        "time": at(16),
        "offsetSeconds": 16,
        "cluster": "upper",
        "what": "upper pod Ready",
        "step": "ready",
        "atMost": True,
        "recordedIn": "managedFields, last status of tensile-kube",
    }


def test_a_pod_without_a_lower_pod_waits_since_it_was_bound() -> None:
    """The incomplete step lasts until now; a note has the reason why there is no lower pod."""
    found = timeline(
        Traced(upper_pod(condition("PodScheduled", 1)), [], "lower-a", lower_error="lower-a: no answer in 20 s"), NOW
    )
    assert steps(found) == [("created", "bound", 1), ("bound", None, 59)]
    assert "it waits since 59s, after: bound to its virtual node." in timeline_text(found)
    assert "Without the lower pod: lower-a: no answer in 20 s" in found["notes"]


def test_an_unschedulable_pod_waits_since_its_creation() -> None:
    """The timeline contains the message of the scheduler and since when it holds."""
    unschedulable = condition("PodScheduled", 2, "False", reason="Unschedulable", message="0/2 nodes are available")
    found = timeline(Traced(upper_pod(unschedulable, node=""), []), NOW)
    assert whats(found) == ["created", "no node yet: 0/2 nodes are available"]
    assert steps(found) == [("created", None, 60)]
    assert found["lower"] is None


def test_the_timeline_of_an_unreadable_lower_pod_is_made_from_the_upper_pod() -> None:
    """The engine copied the times of the lower cluster into the upper pod's status."""
    upper_object = upper_pod(
        condition("PodScheduled", 1), condition(LOWER_SCHEDULED, 4), condition("Ready", 9), written=9
    )
    upper_object["status"]["containerStatuses"] = [running(8)]
    found = timeline(Traced(upper_object, [], "lower-a", lower_error="lower-a: denied"), NOW)
    assert steps(found) == [
        ("created", "bound", 1), ("bound", "lowerBound", 3), ("lowerBound", "started", 4),
        ("started", "lowerReady", 1), ("lowerReady", "ready", 0),
    ]  # fmt: skip


def test_the_events_of_an_unreadable_lower_are_the_mirrored_ones() -> None:
    """They are shown under the name of the lower."""
    copied = event(13, "Pulled", "pulled", count=3, lastTimestamp=at(20))
    copied["metadata"]["annotations"] = {LOWER: "lower-a"}
    found = timeline(Traced(upper_pod(condition("PodScheduled", 1)), [copied], "lower-a", lower_error="away"), NOW)
    row = found["moments"][-1]
    assert (row["cluster"], row["what"]) == ("lower-a", f"Normal Pulled: pulled (3 times, last at {at(20)})")


def test_different_clocks_of_the_clusters_are_reported() -> None:
    """A lower pod that seems older than its upper pod shows that the clock of its cluster is behind."""
    lower_object = lower_pod(created=0)
    lower_object["metadata"]["creationTimestamp"] = "2026-03-01T11:59:50Z"
    found = timeline(Traced(upper_pod(condition("PodScheduled", 1)), [], "lower-a", lower_object), NOW)
    assert steps(found)[1] == ("bound", "lowerCreated", -11)
    assert any("clocks of the clusters differ" in note for note in found["notes"])
    assert "-10s" in timeline_text(found)


def test_the_timeline_of_a_restarted_container_has_its_last_two_runs() -> None:
    """The first start is known after one restart, but not after two; Ready is that after the last restart."""
    ended = {"terminated": {"startedAt": at(5), "finishedAt": at(20), "reason": "Error", "exitCode": 3}}
    once = lower_pod(condition("Ready", 31), containerStatuses=[running(30, 1, lastState=ended)])
    upper_object = upper_pod(condition("PodScheduled", 1), condition("Ready", 31), written=31)
    found = timeline(Traced(upper_object, [], "lower-a", once), NOW)
    assert [one for one in whats(found) if "container" in one] == [
        "containers started",
        "container main started",
        "container main ended: Error, exit code 3",
        "container main started (restart 1)",
    ]
    assert any("have restarted" in note for note in found["notes"])
    twice = lower_pod(containerStatuses=[running(30, 2, lastState=ended)])
    assert "containers started" not in whats(timeline(Traced(upper_object, [], "lower-a", twice), NOW))


def test_init_containers_are_a_step_if_the_pod_has_some() -> None:
    """The condition Initialized exists on every pod."""
    done = {"name": "prepare", "state": {"terminated": {"startedAt": at(3), "finishedAt": at(8), "exitCode": 0}}}
    lower_object = lower_pod(condition("Initialized", 9), initContainerStatuses=[done], containerStatuses=[running(10)])
    found = timeline(Traced(upper_pod(condition("PodScheduled", 1)), [], "lower-a", lower_object), NOW)
    assert ("lowerCreated", "initialized", 7) in steps(found)
    assert "init container prepare ended: ended, exit code 0" in whats(found)
    without = lower_pod(condition("Initialized", 9), containerStatuses=[running(10)])
    assert "init containers done" not in whats(timeline(Traced(upper_pod(), [], "lower-a", without), NOW))


def test_the_timeline_of_a_terminating_pod_has_the_deletion_and_no_waiting_step() -> None:
    """The deletion was requested at the beginning of the grace period, in both clusters."""
    marks = {"deletionTimestamp": at(50), "deletionGracePeriodSeconds": 30}
    lower_object = lower_pod()
    lower_object["metadata"] |= marks | {"deletionTimestamp": at(51)}
    found = timeline(Traced(upper_pod(condition("PodScheduled", 1), **marks), [], "lower-a", lower_object), NOW)
    deletions = [(one["offsetSeconds"], one["cluster"]) for one in found["moments"] if "deletion" in one["what"]]
    assert deletions == [(20, "upper"), (21, "lower-a")]
    assert [one for one in steps(found) if one[1] is None] == []


def test_steps_of_one_second_are_not_the_longest_step() -> None:
    """The resolution is one second, so such a step may have needed no time."""
    upper_object = upper_pod(condition("PodScheduled", 0), condition("Ready", 1), written=1)
    lower_object = lower_pod(condition("PodScheduled", 1), condition("Ready", 1), created=0)
    found = timeline(Traced(upper_object, [], "lower-a", lower_object), NOW)
    assert found["longest"] is None
    assert "no step took longer than 1 second." in timeline_text(found)


def test_the_timeline_of_a_pod_on_a_real_node_has_a_note() -> None:
    """No lower cluster can be read for such a pod."""
    found = timeline(Traced(upper_pod(condition("PodScheduled", 1), node="worker-1"), []), NOW)
    assert found["notes"][0] == "Node worker-1 is not a virtual node of this topology."


@pytest.mark.parametrize("wrong", [7, "soon", "2026-03-01T12:00:00", None])
def test_invalid_times_of_a_lower_pod_are_left_out(wrong: Any) -> None:
    """A lower cluster may return any value."""
    lower_object = lower_pod(startTime=wrong, containerStatuses=[running(3)])
    lower_object["status"]["containerStatuses"][0]["state"]["running"]["startedAt"] = wrong
    found = timeline(Traced(upper_pod(condition("PodScheduled", 1)), [], "lower-a", lower_object), NOW)
    assert whats(found)[-1] == "lower pod created"


def test_control_characters_and_credentials_in_events_are_not_printed() -> None:
    """An event must not create a line, control the terminal, or show a bearer token."""
    forged = event(3, "Forged", "\x1b[2J\nBearer abcdefgh12345")
    text = timeline_text(timeline(Traced(upper_pod(), [], "lower-a", lower_pod(), [forged]), NOW))
    assert "\x1b" not in text
    assert "abcdefgh" not in text
    assert next(line for line in text.splitlines() if "Forged" in line).endswith("event of kubelet")


@pytest.mark.parametrize(("second", "length"), [(59, "+59s"), (150, "+2m30s"), (3661, "+61m"), (90000, "+25h")])
def test_offsets_have_at_most_two_units(second: int, length: str) -> None:
    """Long offsets are shown in minutes or in hours only."""
    moment = datetime.fromtimestamp(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp() + second, UTC)
    late = event(0, "Late", "x", firstTimestamp=moment.strftime("%Y-%m-%dT%H:%M:%SZ"))
    text = timeline_text(timeline(Traced(upper_pod(), [late]), NOW))
    assert [line.split()[0] for line in text.splitlines() if "Late" in line] == [length]
