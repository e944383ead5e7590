"""The virtual node as it stands above: what is lost below is lost there, and what somebody takes off it comes back."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from enginekit import A, Ground
from sitekit import NODE_LEASES, Manifest, is_ready

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

SOON = 30.0
"""Seconds in which what was taken off is back: less than it takes to call a node lost."""
BEATS = 20.0
"""Seconds in which a lease is renewed twice."""
GPU = "e2e.example/gpu"


@pytest_asyncio.fixture(loop_scope="module")
async def large(ground: Ground) -> AsyncIterator[str]:
    """Return the first lower a node with GPUs, which none of its others has, and give its name."""
    site = ground.sites[A]
    name = await site.add_node(f"large-{ground.mark}", **{GPU: "8"})
    yield name
    await site.delete(f"/api/v1/nodes/{name}")


def offers(*amounts: str | None) -> Any:
    """Return what says whether a node has so many GPUs, and as many of them for pods."""
    return lambda node: [node["status"][field].get(GPU) for field in ("capacity", "allocatable")] == list(amounts)


async def node_writes(ground: Ground) -> list[str]:
    """Return the engine's writes of nodes since `note`, however they ended, once it has nothing more to do."""
    await ground.calm()
    return [f"{one.verb} {one.subresource}" for one, _ in await ground.attempts() if one.resource == "nodes"]


async def test_a_resource_that_goes_below_goes_above(ground: Ground, large: str) -> None:
    """Its only node is cordoned: the upper scheduler sends no more pods for it, and the Node rests from then on."""
    site, path = ground.sites[A], f"/api/v1/nodes/{ground.nodes[A]}"
    await ground.upper.until(path, offers("8", "8"))
    assert (await ground.kubectl("cordon", large, cluster=A)).code == 0
    await ground.upper.until(path, offers(None, None))
    await ground.calm()
    before = (await ground.upper.read(path))["metadata"]["resourceVersion"]
    await ground.note()
    for number in ("1", "2"):
        await site.patch(f"/api/v1/nodes/{large}", {"metadata": {"annotations": {"looked": number}}})
        assert await node_writes(ground) == []
    assert (await ground.upper.read(path))["metadata"]["resourceVersion"] == before
    assert (await ground.kubectl("uncordon", large, cluster=A)).code == 0
    await ground.upper.until(path, offers("8", "8"))


def is_typed(node: Manifest) -> bool:
    """Report whether a node has the label by which virtual ones are told."""
    return bool(node["metadata"]["labels"].get("type") == "virtual-kubelet")


async def test_the_label_by_which_a_node_is_watched_comes_back(ground: Ground) -> None:
    """It is the same Node, and its pods run on and are followed: `kubectl label node NODE type-` is soon undone."""
    path = f"/api/v1/nodes/{ground.nodes[A]}"
    above = await ground.run_pod("kept")
    below = await ground.sites[A].read(ground.pod_path("kept"))
    before = await ground.upper.read(path)
    assert (await ground.kubectl("label", "node", ground.nodes[A], "type-")).code == 0
    after = await ground.upper.until(path, is_typed, limit=SOON)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    for site, pod in ((ground.upper, above), (ground.sites[A], below)):
        found = await site.read(ground.pod_path("kept"))
        assert (found["metadata"]["uid"], is_ready(found)) == (pod["metadata"]["uid"], True)
    await ground.run_pod("fresh")
    await ground.calm()
    await ground.note()
    assert (await ground.kubectl("label", "node", ground.nodes[A], "type=other", "--overwrite")).code == 0
    await ground.upper.until(path, is_typed, limit=SOON)
    assert "patch " in await node_writes(ground)


async def test_a_node_shows_that_its_engine_runs(ground: Ground) -> None:
    """Its lease is made, found again by an engine that begins, and made anew where somebody deletes it."""
    path = f"{NODE_LEASES}/{ground.nodes[A]}"
    made = await ground.upper.until(path, lambda one: one["spec"]["renewTime"], limit=BEATS)
    await ground.stop()
    await ground.start()
    renewed = made["spec"]["renewTime"]
    found = await ground.upper.until(path, lambda one: one["spec"]["renewTime"] > renewed, limit=BEATS)
    assert found["metadata"]["uid"] == made["metadata"]["uid"]
    await ground.upper.delete(path)
    await ground.upper.until(path, lambda one: one["metadata"]["uid"] != made["metadata"]["uid"], limit=BEATS)
