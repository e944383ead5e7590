"""Tests of a Node of another owner with a virtual node's name: it may be a real machine, and is not touched."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from enginekit import A, B, EngineHarness, unstarted_engine, wait_until
from sitekit import Manifest, is_ready

from tensile.names import OWNER, OWNER_NAME, UPPER_UID, owner_of
from tensile.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.real


def plain(_ground: EngineHarness) -> Manifest:
    """Return the metadata of a Node without marks."""
    return {}


def forged(harness: EngineHarness) -> Manifest:
    """Return the owner label of this topology alone."""
    return {"labels": {OWNER: harness.owner.mark, "type": "virtual-kubelet"}}


def second_topology(harness: EngineHarness) -> Manifest:
    """Return the marks of another topology."""
    other = owner_of(harness.owner.upper, "second")
    return {"labels": {OWNER: other.mark}, "annotations": {OWNER_NAME: other.name, UPPER_UID: other.upper}}


@pytest.fixture
async def other_harness(sandbox: Sandbox, tmp_path: Path) -> AsyncIterator[EngineHarness]:
    """Return a harness whose engine has not been started."""
    async with unstarted_engine(EngineHarness(sandbox, tmp_path)) as harness:
        yield harness


@pytest.mark.parametrize("marks", [plain, forged, second_topology])
async def test_a_node_of_another_owner_and_its_pods_are_not_touched(
    other_harness: EngineHarness, marks: Callable[[EngineHarness], Manifest]
) -> None:
    """The engine reports the conflict, and the other lower works.

    Once the Node is deleted, the engine creates its virtual node and runs the pods.
    """
    node = other_harness.nodes[A]
    await other_harness.upper.create("/api/v1/nodes", {"metadata": {"name": node, **marks(other_harness)}})
    made = await other_harness.bind("settled")
    await other_harness.upper.delete(other_harness.pod_path((await other_harness.bind("leaving"))["metadata"]["name"]))
    await other_harness.mark_audit_logs()
    await other_harness.start(await_nodes=False)
    await other_harness.wait_for_node(other_harness.nodes[B])
    await wait_until(lambda: any(key.name == node for key, _ in other_harness.loop_recorder.problems))
    await other_harness.run_pod("elsewhere", lower=B)
    await other_harness.engine.loop.wait_idle()
    touched = {one.name for one, code in await other_harness.attempts() if code < 300}
    assert touched & {node, "settled", "leaving"} == set()
    (problem,) = {problem for key, problem in other_harness.loop_recorder.problems if key.name == node}
    assert problem.reason == "NameConflict"
    other = "belongs to topology second: " if marks is second_topology else "exists in the upper cluster and has an"
    assert problem.message.startswith(f"Node {node} {other}")
    assert (await other_harness.upper.read(other_harness.pod_path("settled")))["metadata"]["uid"] == made["metadata"][
        "uid"
    ]
    assert (await other_harness.sites[A].read(other_harness.path("pods")))["items"] == []
    await other_harness.upper.delete(f"/api/v1/nodes/{node}")
    await other_harness.wait_for_node(node)
    await other_harness.upper.until(other_harness.pod_path("settled"), is_ready)
    await other_harness.upper.gone(other_harness.pod_path("leaving"))
