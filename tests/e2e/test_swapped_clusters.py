"""Tests of a kubeconfig that leads to another cluster, by a change of the file or by an edit of the topology."""

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
    """Replace the first lower's kubeconfig with the second one's, restart the engine, and restore the file."""
    path = ground.directory / f"{A}.kubeconfig"
    own = path.read_text()
    await ground.stop()
    path.write_text((ground.directory / f"{B}.kubeconfig").read_text())
    await ground.note()
    await ground.start(await_nodes=False)
    yield
    path.write_text(own)


def is_wrong(node: Manifest) -> bool:
    """Report whether a node reports another cluster in place of its lower."""
    told = condition_of(node, "LowerReachable")
    return told.get("reason") == "WrongCluster" and told["status"] == "False"


def is_shared(node: Manifest) -> bool:
    """Report whether a node reports that its lower's cluster is that of another lower."""
    return condition_of(node, "LowerReachable").get("reason") == "DuplicateCluster"


async def node(ground: Ground, holds: object = bool) -> Manifest:
    """Wait until a condition holds for the first lower's node, and return it."""
    return await ground.upper.until(f"/api/v1/nodes/{ground.nodes[A]}", holds)  # type: ignore[arg-type]


async def identity(ground: Ground, name: str) -> str:
    """Return the UID of a cluster's kube-system namespace."""
    found = await ground.sites[name].read("/api/v1/namespaces/kube-system")
    return str(found["metadata"]["uid"])


async def below(ground: Ground) -> list[tuple[str, str]]:
    """Return the cluster and the UID of every lower pod of the namespace."""
    found = []
    for name in (A, B):
        listed = await ground.sites[name].read(ground.path("pods"))
        found += [(name, one["metadata"]["uid"]) for one in listed["items"]]
    return found


async def test_a_cluster_that_was_swapped_while_no_engine_ran_is_refused(sandbox: Sandbox, tmp_path: Path) -> None:
    """Nothing is written to a lower cluster, the node has advice, and the right cluster is used again."""
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


async def test_a_lower_with_pods_is_not_connected_to_another_cluster_by_an_edit(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """The node reports the wrong cluster, no lower is written to, and reverting the edit restores the lower."""
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


async def test_an_empty_lower_may_be_replaced_with_a_cluster_that_is_no_other_lower(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """The node then records the new cluster.

    A cluster that is a lower already is refused, because two nodes would run the same pods.
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
