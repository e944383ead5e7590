"""A lower that comes to lead to another cluster while the engine was away, or by an edit of the topology."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from enginekit import A, B, Ground, edit_lower, standing, without_lower
from sitekit import Manifest, condition_of, is_ready

from tensile.names import LOWER_UID
from tensile.objects import annotations
from tensile.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.real


@asynccontextmanager
async def swapped(ground: Ground) -> AsyncIterator[None]:
    """Put the second lower's kubeconfig in place of the first one's for a while, each time with the engine stopped."""
    path = ground.directory / f"{A}.kubeconfig"
    own = path.read_text()
    await ground.stop()
    path.write_text((ground.directory / f"{B}.kubeconfig").read_text())
    await ground.note()
    await ground.start(await_nodes=False)
    yield
    path.write_text(own)


def is_wrong(node: Manifest) -> bool:
    """Report whether a node tells of another cluster in its lower's place."""
    told = condition_of(node, "LowerReachable")
    return told.get("reason") == "WrongCluster" and told["status"] == "False"


def is_shared(node: Manifest) -> bool:
    """Report whether a node tells that its lower's cluster is another lower's."""
    return condition_of(node, "LowerReachable").get("reason") == "DuplicateCluster"


async def node(ground: Ground, holds: object = bool) -> Manifest:
    """Wait until something holds for the first lower's node, and give it."""
    return await ground.upper.until(f"/api/v1/nodes/{ground.nodes[A]}", holds)  # type: ignore[arg-type]


async def identity(ground: Ground, name: str) -> str:
    """Return the UID of a cluster's kube-system."""
    found = await ground.sites[name].read("/api/v1/namespaces/kube-system")
    return str(found["metadata"]["uid"])


async def below(ground: Ground) -> list[tuple[str, str]]:
    """Return cluster and UID of every pod of the namespace below."""
    found = []
    for name in (A, B):
        listed = await ground.sites[name].read(ground.path("pods"))
        found += [(name, one["metadata"]["uid"]) for one in listed["items"]]
    return found


async def test_a_cluster_that_was_swapped_while_the_engine_was_away_is_refused(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """While a pod is bound nothing is written below, the node says what to do, and the right cluster is taken back."""
    async with standing(sandbox, tmp_path) as ground:
        before = await ground.run_pod("web")
        pods = await below(ground)
        async with swapped(ground):
            told = condition_of(await node(ground, is_wrong), "LowerReachable")
            assert "use the kubeconfig of another cluster than" in told["message"]
            assert await identity(ground, A) == annotations(await node(ground))[LOWER_UID]
            assert {one.cluster for one in await ground.writes()} <= {"upper"}
            assert await below(ground) == pods
        await node(ground, lambda found: not is_wrong(found))
        after = await ground.upper.until(ground.pod_path("web"), is_ready)
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert await below(ground) == pods


async def test_an_edit_of_the_topology_does_not_lead_pods_to_another_cluster(sandbox: Sandbox, tmp_path: Path) -> None:
    """A lower that is given the kubeconfig of another one is refused, and goes on when the edit is taken back."""
    async with standing(sandbox, tmp_path) as ground:
        await ground.run_pod("web")
        pods = await below(ground)
        await ground.calm()
        await ground.note()
        await ground.reload(edit_lower(A, kubeconfig=f"{B}.kubeconfig"))
        await node(ground, is_wrong)
        assert {one.cluster for one in await ground.writes()} <= {"upper"}
        assert await below(ground) == pods
        await ground.reload()
        await node(ground, lambda found: condition_of(found, "LowerReachable").get("status") == "True")
        await ground.upper.until(ground.pod_path("web"), is_ready)
        assert await below(ground) == pods


async def test_another_cluster_may_take_the_place_of_an_empty_one(sandbox: Sandbox, tmp_path: Path) -> None:
    """With no pod bound to its node a lower can be exchanged; the node then tells of the new one.

    Not for a cluster that is a lower already: two nodes would run the same pods.
    """
    async with standing(sandbox, tmp_path) as ground:
        first, second = await identity(ground, A), await identity(ground, B)
        await node(ground, lambda found: annotations(found).get(LOWER_UID) == first)
        async with swapped(ground):
            told = condition_of(await node(ground, is_shared), "LowerReachable")
            assert f"the same cluster as lower {B}" in told["message"]
            assert {one.cluster for one in await ground.writes()} <= {"upper"}
            assert annotations(await node(ground))[LOWER_UID] == first
            await ground.reload(without_lower(B))
            await node(ground, lambda found: annotations(found).get(LOWER_UID) == second)
            await ground.stop()
        await ground.start()
        await node(ground, lambda found: annotations(found).get(LOWER_UID) == first)
