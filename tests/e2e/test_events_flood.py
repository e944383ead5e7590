"""Tests of a flood of events in one lower namespace: how many are mirrored, and how other tenants are affected."""

import asyncio

import pytest
from enginekit import UPPER, A, Ground, polled
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


async def other_namespace(ground: Ground) -> str:
    """Create an upper namespace of another tenant, with a pod that runs in the lower cluster."""
    name = f"{ground.namespace}-quiet"
    await ground.make_namespace(UPPER, name)
    await ground.upper.create(ground.path("pods", namespace=name), ground.pod("honest"))
    await ground.sites[A].until(ground.path("pods", "honest", namespace=name), is_ready)
    return name


async def loud(ground: Ground) -> list[Manifest]:
    """Return the events of the flood that are mirrored."""
    listed = await ground.upper.read(f"{ground.path('events')}?fieldSelector=reason=Flood")
    found: list[Manifest] = listed["items"]
    return found


async def test_a_flood_of_events_is_limited_and_does_not_delay_other_tenants(ground: Ground) -> None:
    """Of 600 events of 60 KB about fifty are mirrored, truncated and without control characters.

    An event of another tenant that is created after them is mirrored nevertheless.
    """
    quiet = await other_namespace(ground)
    try:
        await ground.bind("flooded")
        site = ground.sites[A]
        flooded = await site.until(ground.pod_path("flooded"), is_ready)
        honest = await site.read(ground.path("pods", "honest", namespace=quiet))
        mirror = ground.engine.clusters.joined[A].events
        assert mirror is not None
        for first in range(0, FLOOD, 50):
            made = [about(flooded, f"flood.{number}", TEXT) for number in range(first, first + 50)]
            await asyncio.gather(*(site.create(ground.path("events"), one) for one in made))
        await site.create(ground.path("events", namespace=quiet), about(honest, "honest.1", "all is well"))
        fields = "fieldSelector=reason=Honest"
        told = await ground.upper.until_all(f"{ground.path('events', namespace=quiet)}?{fields}", bool)
        assert [one["message"] for one in told.values()] == ["all is well"]
        burst, seconds = OBJECT_RATE
        assert len(await loud(ground)) <= burst + 60 / seconds
        await polled(lambda: not len(mirror))
        found = await loud(ground)
        assert 1 <= len(found) <= burst + 60 / seconds
        assert mirror.counts["dropped"] >= FLOOD - len(found)
        assert max(len(one["message"].encode()) for one in found) <= LONGEST_MESSAGE
        assert "\x1b" not in "".join(one["message"] for one in found)
    finally:
        await ground.upper.delete(ground.path("pods", namespace=quiet), 0)
        await ground.upper.until_all(ground.path("pods", namespace=quiet), lambda left: not left)
        await ground.upper.delete(f"/api/v1/namespaces/{quiet}")
