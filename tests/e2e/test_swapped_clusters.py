"""Tests of a kubeconfig that leads to another cluster, by a change of the file or by an edit of the topology."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from enginekit import A, B, EngineHarness, edit_lower, running_engine, without_lower
from sitekit import Manifest, condition_of, is_ready

from tensile.names import LOWER_UID
from tensile.objects import annotations
from tensile.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.real


@asynccontextmanager
async def swapped(harness: EngineHarness) -> AsyncIterator[None]:
    """Replace the first lower's kubeconfig with the second one's, restart the engine, and restore the file."""
    path = harness.directory / f"{A}.kubeconfig"
    own = path.read_text()
    await harness.stop()
    path.write_text((harness.directory / f"{B}.kubeconfig").read_text())
    await harness.mark_audit_logs()
    await harness.start(await_nodes=False)
    yield
    path.write_text(own)


def is_wrong(node: Manifest) -> bool:
    """Report whether a node reports another cluster in place of its lower."""
    condition = condition_of(node, "LowerReachable")
    return condition.get("reason") == "WrongCluster" and condition["status"] == "False"


def is_shared(node: Manifest) -> bool:
    """Report whether a node reports that its lower's cluster is that of another lower."""
    return condition_of(node, "LowerReachable").get("reason") == "DuplicateCluster"


async def node(harness: EngineHarness, holds: object = bool) -> Manifest:
    """Wait until a condition holds for the first lower's node, and return it."""
    return await harness.upper.until(f"/api/v1/nodes/{harness.nodes[A]}", holds)  # type: ignore[arg-type]


async def identity(harness: EngineHarness, name: str) -> str:
    """Return the UID of a cluster's kube-system namespace."""
    found = await harness.sites[name].read("/api/v1/namespaces/kube-system")
    return str(found["metadata"]["uid"])


async def lower_pods(harness: EngineHarness) -> list[tuple[str, str]]:
    """Return the cluster and the UID of every lower pod of the namespace."""
    found = []
    for name in (A, B):
        listed = await harness.sites[name].read(harness.path("pods"))
        found += [(name, one["metadata"]["uid"]) for one in listed["items"]]
    return found


async def test_a_cluster_that_was_swapped_while_no_engine_ran_is_refused(sandbox: Sandbox, tmp_path: Path) -> None:
    """Nothing is written to a lower cluster, the node has advice, and the right cluster is used again."""
    async with running_engine(sandbox, tmp_path) as harness:
        before = await harness.run_pod("web")
        pods = await lower_pods(harness)
        async with swapped(harness):
            condition = condition_of(await node(harness, is_wrong), "LowerReachable")
            assert "use the kubeconfig of another cluster than" in condition["message"]
            assert await identity(harness, A) == annotations(await node(harness))[LOWER_UID]
            assert {one.cluster for one in await harness.writes()} <= {"upper"}
            assert await lower_pods(harness) == pods
        await node(harness, lambda found: not is_wrong(found))
        after = await harness.upper.until(harness.pod_path("web"), is_ready)
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert await lower_pods(harness) == pods


async def test_a_lower_with_pods_is_not_connected_to_another_cluster_by_an_edit(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """The node reports the wrong cluster, no lower is written to, and reverting the edit restores the lower."""
    async with running_engine(sandbox, tmp_path) as harness:
        await harness.run_pod("web")
        pods = await lower_pods(harness)
        await harness.wait_idle()
        await harness.mark_audit_logs()
        await harness.reload(edit_lower(A, kubeconfig=f"{B}.kubeconfig"))
        await node(harness, is_wrong)
        assert {one.cluster for one in await harness.writes()} <= {"upper"}
        assert await lower_pods(harness) == pods
        await harness.reload()
        await node(harness, lambda found: condition_of(found, "LowerReachable").get("status") == "True")
        await harness.upper.until(harness.pod_path("web"), is_ready)
        assert await lower_pods(harness) == pods


async def test_an_empty_lower_may_be_replaced_with_a_cluster_that_is_no_other_lower(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """The node then records the new cluster.

    A cluster that is a lower already is refused, because two nodes would run the same pods.
    """
    async with running_engine(sandbox, tmp_path) as harness:
        first, second = await identity(harness, A), await identity(harness, B)
        await node(harness, lambda found: annotations(found).get(LOWER_UID) == first)
        async with swapped(harness):
            condition = condition_of(await node(harness, is_shared), "LowerReachable")
            assert f"the same cluster as lower {B}" in condition["message"]
            assert {one.cluster for one in await harness.writes()} <= {"upper"}
            assert annotations(await node(harness))[LOWER_UID] == first
            await harness.reload(without_lower(B))
            await node(harness, lambda found: annotations(found).get(LOWER_UID) == second)
            await harness.stop()
        await harness.start()
        await node(harness, lambda found: annotations(found).get(LOWER_UID) == first)
