"""Tests of the events of lower pods that kubectl shows in the upper cluster."""

from typing import Any

import pytest
from enginekit import A, EngineHarness
from sitekit import Manifest, is_ready

from tensile.names import LOWER

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

MOMENT = "2026-03-01T12:00:00Z"


def about(pod: Manifest, reason: str, **fields: Any) -> Manifest:
    """Return an event of a lower pod as its kubelet creates it."""
    meta = pod["metadata"]
    involved = {"apiVersion": "v1", "kind": "Pod", "namespace": meta["namespace"], "name": meta["name"]}
    involved |= {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"], "fieldPath": "spec.containers{main}"}
    return {
        "metadata": {"name": f"{meta['name']}.{reason.lower()}", "namespace": meta["namespace"]},
        "involvedObject": involved,
        "reason": reason,
        "message": f"{reason} of image app:1",
        "type": "Warning",
        "source": {"component": "kubelet", "host": "node-7"},
        "firstTimestamp": MOMENT,
        "lastTimestamp": MOMENT,
        "count": 1,
        **fields,
    }


async def wait_for_upper_event(harness: EngineHarness, pod: Manifest, reason: str, holds: Any = bool) -> Manifest:
    """Wait until a condition holds for the only event of a reason about an upper pod, and return it."""
    fields = f"involvedObject.uid={pod['metadata']['uid']},reason={reason}"
    found = await harness.upper.until_all(
        f"{harness.path('events')}?fieldSelector={fields}", lambda all_: len(all_) == 1 and holds(*all_.values())
    )
    (event,) = found.values()
    return event


async def listening(harness: EngineHarness) -> None:
    """Start the engine, and wait until its caches are synced, so that it misses no event."""
    await harness.start()
    await harness.wait_idle()
    await harness.engine.clusters.fleet.synced()


async def test_events_of_a_lower_pod_are_mirrored_to_its_upper_pod(harness: EngineHarness) -> None:
    """Events of the lower scheduler and of a kubelet refer to the upper pod and keep their source."""
    pod = await harness.bind("told")
    scheduled = await wait_for_upper_event(harness, pod, "Scheduled")
    assert "assigned" in scheduled["message"]
    assert "default-scheduler" in (scheduled["reportingComponent"], scheduled["source"].get("component"))
    lower_object = await harness.sites[A].until(harness.pod_path("told"), is_ready)
    await harness.sites[A].create(harness.path("events"), about(lower_object, "BackOff"))
    event = await wait_for_upper_event(harness, pod, "BackOff")
    assert event["source"] == {"component": "kubelet", "host": "node-7"}
    assert event["metadata"]["annotations"] == {LOWER: A}
    assert event["involvedObject"]["fieldPath"] == "spec.containers{main}"
    described = await harness.kubectl("describe", "pod", "told")
    assert "BackOff of image app:1" in described.out
    assert "Successfully assigned" in described.out


async def test_a_repeated_event_increases_the_count_of_its_copy(harness: EngineHarness) -> None:
    """No second event is created, not even by a restarted engine, which finds its copy by the name."""
    pod = await harness.bind("repeated")
    lower_object = await harness.sites[A].until(harness.pod_path("repeated"), is_ready)
    path = harness.path(
        "events",
        (await harness.sites[A].create(harness.path("events"), about(lower_object, "BackOff")))["metadata"]["name"],
    )
    first = await wait_for_upper_event(harness, pod, "BackOff")
    await harness.sites[A].patch(path, {"count": 2, "lastTimestamp": "2026-03-01T12:01:00Z"})
    await wait_for_upper_event(harness, pod, "BackOff", lambda one: one["count"] == 2)
    await harness.stop()
    await listening(harness)
    await harness.sites[A].patch(path, {"count": 3, "message": "still"})
    last = await wait_for_upper_event(harness, pod, "BackOff", lambda one: one["count"] == 3)
    assert (last["metadata"]["uid"], last["message"]) == (first["metadata"]["uid"], "still")


async def test_events_from_before_a_start_are_not_mirrored(harness: EngineHarness) -> None:
    """Events that occurred while no engine was running are over, and nothing is written for them."""
    pod = await harness.bind("before")
    await wait_for_upper_event(harness, pod, "Scheduled")
    await harness.wait_idle()
    await harness.stop()
    lower_object = await harness.sites[A].read(harness.pod_path("before"))
    await harness.sites[A].create(harness.path("events"), about(lower_object, "WhileNobodyLooked"))
    await harness.mark_audit_logs()
    await listening(harness)
    await harness.sites[A].create(harness.path("events"), about(lower_object, "Fresh"))
    await wait_for_upper_event(harness, pod, "Fresh")
    written = [one for one, _ in await harness.attempts(without=("leases",)) if one.resource == "events"]
    assert [(one.cluster, one.verb) for one in written] == [("upper", "create")]
