"""Events of lower pods, seen by kubectl above."""

from typing import Any

import pytest
from enginekit import A, Ground
from sitekit import Manifest, is_ready

from tensile.names import LOWER

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

MOMENT = "2026-03-01T12:00:00Z"


def about(pod: Manifest, reason: str, **fields: Any) -> Manifest:
    """Make an event of a lower pod as its kubelet does."""
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


async def above(ground: Ground, pod: Manifest, reason: str, holds: Any = bool) -> Manifest:
    """Wait until there is one event of a reason about an upper pod for which something holds, and give it."""
    fields = f"involvedObject.uid={pod['metadata']['uid']},reason={reason}"
    found = await ground.upper.until_all(
        f"{ground.path('events')}?fieldSelector={fields}", lambda all_: len(all_) == 1 and holds(*all_.values())
    )
    (event,) = found.values()
    return event


async def listening(ground: Ground) -> None:
    """Start the engine, and wait until it misses no event any more."""
    await ground.start()
    await ground.calm()
    await ground.engine.clusters.fleet.synced()


async def test_what_happens_below_is_told_above(ground: Ground) -> None:
    """The lower scheduler's own event, and one of a kubelet: about the upper pod, from whom they were."""
    pod = await ground.bind("told")
    scheduled = await above(ground, pod, "Scheduled")
    assert "assigned" in scheduled["message"]
    assert "default-scheduler" in (scheduled["reportingComponent"], scheduled["source"].get("component"))
    below = await ground.sites[A].until(ground.pod_path("told"), is_ready)
    await ground.sites[A].create(ground.path("events"), about(below, "BackOff"))
    event = await above(ground, pod, "BackOff")
    assert event["source"] == {"component": "kubelet", "host": "node-7"}
    assert event["metadata"]["annotations"] == {LOWER: A}
    assert event["involvedObject"]["fieldPath"] == "spec.containers{main}"
    described = await ground.kubectl("describe", "pod", "told")
    assert "BackOff of image app:1" in described.out
    assert "Successfully assigned" in described.out


async def test_a_repeat_counts_and_makes_no_second_event(ground: Ground) -> None:
    """Also after a restart of the engine, which finds its copy by the name."""
    pod = await ground.bind("repeated")
    below = await ground.sites[A].until(ground.pod_path("repeated"), is_ready)
    path = ground.path(
        "events", (await ground.sites[A].create(ground.path("events"), about(below, "BackOff")))["metadata"]["name"]
    )
    first = await above(ground, pod, "BackOff")
    await ground.sites[A].patch(path, {"count": 2, "lastTimestamp": "2026-03-01T12:01:00Z"})
    await above(ground, pod, "BackOff", lambda one: one["count"] == 2)
    await ground.stop()
    await listening(ground)
    await ground.sites[A].patch(path, {"count": 3, "message": "still"})
    last = await above(ground, pod, "BackOff", lambda one: one["count"] == 3)
    assert (last["metadata"]["uid"], last["message"]) == (first["metadata"]["uid"], "still")


async def test_old_events_do_not_come_again_after_a_restart(ground: Ground) -> None:
    """What happened while nobody looked is over; nothing is written of it."""
    pod = await ground.bind("before")
    await above(ground, pod, "Scheduled")
    await ground.calm()
    await ground.stop()
    below = await ground.sites[A].read(ground.pod_path("before"))
    await ground.sites[A].create(ground.path("events"), about(below, "WhileNobodyLooked"))
    await ground.note()
    await listening(ground)
    await ground.sites[A].create(ground.path("events"), about(below, "Fresh"))
    await above(ground, pod, "Fresh")
    written = [one for one, _ in await ground.attempts(without=("leases",)) if one.resource == "events"]
    assert [(one.cluster, one.verb) for one in written] == [("upper", "create")]
