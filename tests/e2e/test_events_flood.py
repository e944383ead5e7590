"""A tenant of one lower namespace floods it with events: what comes up of them, and what others notice."""

import asyncio

import pytest
from enginekit import UPPER, A, Ground, polled
from sitekit import Manifest, is_ready

from tensile.kubelet.pods.event_mirror import OF_AN_OBJECT
from tensile.kubelet.pods.events import LONGEST_MESSAGE

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

FLOOD = 600
TEXT = "\x1b[2J" + "x" * 60_000
"""60 KB, with a sequence that clears a terminal."""


def about(pod: Manifest, name: str, message: str) -> Manifest:
    """Make an event of a lower pod, as anybody who may create events beside it can."""
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
    """Make a namespace of another tenant above, with a pod that runs below."""
    name = f"{ground.namespace}-quiet"
    await ground.make_namespace(UPPER, name)
    await ground.upper.create(ground.path("pods", namespace=name), ground.pod("honest"))
    await ground.sites[A].until(ground.path("pods", "honest", namespace=name), is_ready)
    return name


async def loud(ground: Ground) -> list[Manifest]:
    """Return the events of the flood that are above."""
    listed = await ground.upper.read(f"{ground.path('events')}?fieldSelector=reason=Flood")
    found: list[Manifest] = listed["items"]
    return found


async def test_the_flood_of_one_tenant_is_bounded_above_and_delays_no_other(ground: Ground) -> None:
    """Of 600 events of 60 KB fifty come up, cut and harmless; another tenant's, told behind them all, come at once."""
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
        burst, seconds = OF_AN_OBJECT
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
