"""Tests of a Node of another owner with a virtual node's name: it may be a real machine, and is not touched."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from enginekit import A, B, Ground, polled, unstarted
from sitekit import Manifest, is_ready

from tensile.names import OWNER, OWNER_NAME, UPPER_UID, owner_of
from tensile.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.real


def plain(_ground: Ground) -> Manifest:
    """Return the metadata of a Node without marks."""
    return {}


def forged(ground: Ground) -> Manifest:
    """Return the owner label of this topology alone."""
    return {"labels": {OWNER: ground.owner.mark, "type": "virtual-kubelet"}}


def second_topology(ground: Ground) -> Manifest:
    """Return the marks of another topology."""
    other = owner_of(ground.owner.upper, "second")
    return {"labels": {OWNER: other.mark}, "annotations": {OWNER_NAME: other.name, UPPER_UID: other.upper}}


@pytest.fixture
async def field(sandbox: Sandbox, tmp_path: Path) -> AsyncIterator[Ground]:
    """Return a ground whose engine has not been started."""
    async with unstarted(Ground(sandbox, tmp_path)) as ground:
        yield ground


@pytest.mark.parametrize("marks", [plain, forged, second_topology])
async def test_a_node_of_another_owner_and_its_pods_are_not_touched(
    field: Ground, marks: Callable[[Ground], Manifest]
) -> None:
    """The engine reports the conflict, and the other lower works.

    Once the Node is deleted, the engine creates its virtual node and runs the pods.
    """
    node = field.nodes[A]
    await field.upper.create("/api/v1/nodes", {"metadata": {"name": node, **marks(field)}})
    made = await field.bind("settled")
    await field.upper.delete(field.pod_path((await field.bind("leaving"))["metadata"]["name"]))
    await field.note()
    await field.start(await_nodes=False)
    await field.usable(field.nodes[B])
    await polled(lambda: any(key.name == node for key, _ in field.heard.problems))
    await field.run_pod("elsewhere", lower=B)
    await field.engine.loop.wait_idle()
    touched = {one.name for one, code in await field.attempts() if code < 300}
    assert touched & {node, "settled", "leaving"} == set()
    (problem,) = {problem for key, problem in field.heard.problems if key.name == node}
    assert problem.reason == "NameConflict"
    other = "belongs to topology second: " if marks is second_topology else "exists in the upper cluster and has an"
    assert problem.message.startswith(f"Node {node} {other}")
    assert (await field.upper.read(field.pod_path("settled")))["metadata"]["uid"] == made["metadata"]["uid"]
    assert (await field.sites[A].read(field.path("pods")))["items"] == []
    await field.upper.delete(f"/api/v1/nodes/{node}")
    await field.usable(node)
    await field.upper.until(field.pod_path("settled"), is_ready)
    await field.upper.gone(field.pod_path("leaving"))
