"""Tests of the virtual node: resources of cordoned lower nodes are removed from it, and edits of it are reverted."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from enginekit import A, EngineHarness
from sitekit import NODE_LEASES, Manifest, is_ready

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

SOON = 30.0
"""Seconds in which a removed label is restored: fewer than until a node counts as lost."""
BEATS = 20.0
"""Seconds in which a lease is renewed twice."""
GPU = "e2e.example/gpu"


@pytest_asyncio.fixture(loop_scope="module")
async def large(harness: EngineHarness) -> AsyncIterator[str]:
    """Add a node with GPUs, which no other node of the first lower has, and return its name."""
    site = harness.sites[A]
    name = await site.add_node(f"large-{harness.mark}", **{GPU: "8"})
    yield name
    await site.delete(f"/api/v1/nodes/{name}")


def offers(*amounts: str | None) -> Any:
    """Return the predicate that a node has these GPUs as capacity and as allocatable."""
    return lambda node: [node["status"][field].get(GPU) for field in ("capacity", "allocatable")] == list(amounts)


async def node_writes(harness: EngineHarness) -> list[str]:
    """Return the engine's attempts to write nodes since `mark_audit_logs`, once the engine is idle."""
    await harness.wait_idle()
    return [f"{one.verb} {one.subresource}" for one, _ in await harness.attempts() if one.resource == "nodes"]


async def test_a_resource_of_a_cordoned_lower_node_is_removed_from_the_virtual_node(
    harness: EngineHarness, large: str
) -> None:
    """The upper scheduler then binds no more pods that need it, and the engine does not write the Node again."""
    site, path = harness.sites[A], f"/api/v1/nodes/{harness.nodes[A]}"
    await harness.upper.until(path, offers("8", "8"))
    assert (await harness.kubectl("cordon", large, cluster=A)).code == 0
    await harness.upper.until(path, offers(None, None))
    await harness.wait_idle()
    before = (await harness.upper.read(path))["metadata"]["resourceVersion"]
    await harness.mark_audit_logs()
    for number in ("1", "2"):
        await site.patch(f"/api/v1/nodes/{large}", {"metadata": {"annotations": {"looked": number}}})
        assert await node_writes(harness) == []
    assert (await harness.upper.read(path))["metadata"]["resourceVersion"] == before
    assert (await harness.kubectl("uncordon", large, cluster=A)).code == 0
    await harness.upper.until(path, offers("8", "8"))


def is_typed(node: Manifest) -> bool:
    """Report whether a node has the label that marks virtual nodes."""
    return bool(node["metadata"]["labels"].get("type") == "virtual-kubelet")


async def test_a_removed_or_changed_type_label_of_a_virtual_node_is_restored(harness: EngineHarness) -> None:
    """It is the same Node after `kubectl label node NODE type-`, and its pods run on and are mirrored."""
    path = f"/api/v1/nodes/{harness.nodes[A]}"
    upper_object = await harness.run_pod("kept")
    lower_object = await harness.sites[A].read(harness.pod_path("kept"))
    before = await harness.upper.read(path)
    assert (await harness.kubectl("label", "node", harness.nodes[A], "type-")).code == 0
    after = await harness.upper.until(path, is_typed, limit=SOON)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    for site, pod in ((harness.upper, upper_object), (harness.sites[A], lower_object)):
        found = await site.read(harness.pod_path("kept"))
        assert (found["metadata"]["uid"], is_ready(found)) == (pod["metadata"]["uid"], True)
    await harness.run_pod("fresh")
    await harness.wait_idle()
    await harness.mark_audit_logs()
    assert (await harness.kubectl("label", "node", harness.nodes[A], "type=other", "--overwrite")).code == 0
    await harness.upper.until(path, is_typed, limit=SOON)
    assert "patch " in await node_writes(harness)


async def test_the_lease_of_a_virtual_node_is_renewed_and_recreated(harness: EngineHarness) -> None:
    """A restarted engine renews the existing lease, and a deleted lease is created again."""
    path = f"{NODE_LEASES}/{harness.nodes[A]}"
    made = await harness.upper.until(path, lambda one: one["spec"]["renewTime"], limit=BEATS)
    await harness.stop()
    await harness.start()
    renewed = made["spec"]["renewTime"]
    found = await harness.upper.until(path, lambda one: one["spec"]["renewTime"] > renewed, limit=BEATS)
    assert found["metadata"]["uid"] == made["metadata"]["uid"]
    await harness.upper.delete(path)
    await harness.upper.until(path, lambda one: one["metadata"]["uid"] != made["metadata"]["uid"], limit=BEATS)
