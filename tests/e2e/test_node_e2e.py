"""Tests of the virtual node: resources of cordoned lower nodes are removed from it, and edits of it are reverted."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from enginekit import A, Ground
from sitekit import NODE_LEASES, Manifest, is_ready

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

SOON = 30.0
"""Seconds in which a removed label is restored: fewer than until a node counts as lost."""
BEATS = 20.0
"""Seconds in which a lease is renewed twice."""
GPU = "e2e.example/gpu"


@pytest_asyncio.fixture(loop_scope="module")
async def large(ground: Ground) -> AsyncIterator[str]:
    """Add a node with GPUs, which no other node of the first lower has, and return its name."""
    site = ground.sites[A]
    name = await site.add_node(f"large-{ground.mark}", **{GPU: "8"})
    yield name
    await site.delete(f"/api/v1/nodes/{name}")


def offers(*amounts: str | None) -> Any:
    """Return the predicate that a node has these GPUs as capacity and as allocatable."""
    return lambda node: [node["status"][field].get(GPU) for field in ("capacity", "allocatable")] == list(amounts)


async def node_writes(ground: Ground) -> list[str]:
    """Return the engine's attempts to write nodes since `note`, once the engine is idle."""
    await ground.calm()
    return [f"{one.verb} {one.subresource}" for one, _ in await ground.attempts() if one.resource == "nodes"]


async def test_a_resource_of_a_cordoned_lower_node_is_removed_from_the_virtual_node(ground: Ground, large: str) -> None:
    """The upper scheduler then binds no more pods that need it, and the engine does not write the Node again."""
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
    """Report whether a node has the label that marks virtual nodes."""
    return bool(node["metadata"]["labels"].get("type") == "virtual-kubelet")


async def test_a_removed_or_changed_type_label_of_a_virtual_node_is_restored(ground: Ground) -> None:
    """It is the same Node after `kubectl label node NODE type-`, and its pods run on and are mirrored."""
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


async def test_the_lease_of_a_virtual_node_is_renewed_and_recreated(ground: Ground) -> None:
    """A restarted engine renews the existing lease, and a deleted lease is created again."""
    path = f"{NODE_LEASES}/{ground.nodes[A]}"
    made = await ground.upper.until(path, lambda one: one["spec"]["renewTime"], limit=BEATS)
    await ground.stop()
    await ground.start()
    renewed = made["spec"]["renewTime"]
    found = await ground.upper.until(path, lambda one: one["spec"]["renewTime"] > renewed, limit=BEATS)
    assert found["metadata"]["uid"] == made["metadata"]["uid"]
    await ground.upper.delete(path)
    await ground.upper.until(path, lambda one: one["metadata"]["uid"] != made["metadata"]["uid"], limit=BEATS)
