"""Tests of a flood of events in one lower namespace: how many are mirrored, and how other tenants are affected."""

import asyncio

import pytest
from enginekit import UPPER, A, EngineHarness, wait_until
from sitekit import Manifest, is_ready

from tensile.kubelet.pods.event_mirror import OBJECT_RATE
from tensile.kubelet.pods.events import LONGEST_MESSAGE

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

FLOOD = 600
TEXT = "\x1b[2J" + "x" * 60_000
"""60 KB, with a sequence that clears a terminal."""


def about(pod: Manifest, name: str, message: str) -> Manifest:
    """Return an event of a lower pod that any client with the right to create events there can create."""
    meta = pod["metadata"]
    involved = {"apiVersion": "v1", "kind": "Pod", "namespace": meta["namespace"], "name": meta["name"]}
    return {
        "metadata": {"name": name, "namespace": meta["namespace"]},
        "involvedObject": involved | {"uid": meta["uid"]},
        "reason": name.partition(".")[0].title(),
        "message": message,
        "type": "Warning",
        "source": {"component": "tenant"},
        "count": 1,
    }


async def other_namespace(harness: EngineHarness) -> str:
    """Create an upper namespace of another tenant, with a pod that runs in the lower cluster."""
    name = f"{harness.namespace}-quiet"
    await harness.make_namespace(UPPER, name)
    await harness.upper.create(harness.path("pods", namespace=name), harness.pod("honest"))
    await harness.sites[A].until(harness.path("pods", "honest", namespace=name), is_ready)
    return name


async def loud(harness: EngineHarness) -> list[Manifest]:
    """Return the events of the flood that are mirrored."""
    listed = await harness.upper.read(f"{harness.path('events')}?fieldSelector=reason=Flood")
    found: list[Manifest] = listed["items"]
    return found


async def test_a_flood_of_events_is_limited_and_does_not_delay_other_tenants(harness: EngineHarness) -> None:
    """Of 600 events of 60 KB about fifty are mirrored, truncated and without control characters.

    An event of another tenant that is created after them is mirrored nevertheless.
    """
    quiet = await other_namespace(harness)
    try:
        await harness.bind("flooded")
        site = harness.sites[A]
        flooded = await site.until(harness.pod_path("flooded"), is_ready)
        honest = await site.read(harness.path("pods", "honest", namespace=quiet))
        mirror = harness.engine.clusters.joined[A].events
        assert mirror is not None
        for first in range(0, FLOOD, 50):
            made = [about(flooded, f"flood.{number}", TEXT) for number in range(first, first + 50)]
            await asyncio.gather(*(site.create(harness.path("events"), one) for one in made))
        await site.create(harness.path("events", namespace=quiet), about(honest, "honest.1", "all is well"))
        fields = "fieldSelector=reason=Honest"
        events = await harness.upper.until_all(f"{harness.path('events', namespace=quiet)}?{fields}", bool)
        assert [one["message"] for one in events.values()] == ["all is well"]
        burst, seconds = OBJECT_RATE
        assert len(await loud(harness)) <= burst + 60 / seconds
        await wait_until(lambda: not len(mirror))
        found = await loud(harness)
        assert 1 <= len(found) <= burst + 60 / seconds
        assert mirror.counts["dropped"] >= FLOOD - len(found)
        assert max(len(one["message"].encode()) for one in found) <= LONGEST_MESSAGE
        assert "\x1b" not in "".join(one["message"] for one in found)
    finally:
        await harness.upper.delete(harness.path("pods", namespace=quiet), 0)
        await harness.upper.until_all(harness.path("pods", namespace=quiet), lambda left: not left)
        await harness.upper.delete(f"/api/v1/namespaces/{quiet}")
