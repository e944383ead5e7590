"""Tests of edits that change names, nodes or credentials of lowers while pods run: a node belongs to one lower."""

import asyncio
from typing import Any

import pytest
from enginekit import QUIET, A, B, Edit, EngineHarness, edit_lower, wait_until, without_lower
from sitekit import Manifest, condition_of, is_true

from tensile.cli import plan
from tensile.names import CLUSTER_ID

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

IN_FORCE = 30.0
LATER = "later.kubeconfig"


def called(name: str, **fields: Any) -> Edit:
    """Return an edit that renames the first lower and keeps its node."""
    return lambda file: file["lowers"][0].update({"name": name, **fields})


def lowers(harness: EngineHarness) -> dict[str, str]:
    """Return the node of each joined lower."""
    return {name: joined.lower.node for name, joined in harness.engine.clusters.joined.items()}


def fields(harness: EngineHarness, *names: str) -> list[object]:
    """Return fields of the first lower as it is joined, each None while it is being joined again."""
    joined = harness.engine.clusters.joined.get(A)
    return [getattr(joined.lower.spec, name) if joined else None for name in names]


def pending(harness: EngineHarness) -> list[str]:
    """Return the pending changes, without what they wait for."""
    return [message.rpartition(": ")[0] for message in harness.engine.pending]


async def node(harness: EngineHarness, holds: Any = bool, limit: float = 30.0) -> Manifest:
    """Wait until a condition holds for the first lower's node, and return it."""
    return await harness.upper.until(f"/api/v1/nodes/{harness.nodes[A]}", holds, limit)


async def running(harness: EngineHarness, name: str = "web", lower: str = A) -> str:
    """Run a pod on a lower's node, and return the UID of its lower pod."""
    await harness.run_pod(name, lower=lower)
    return await lower_uid(harness, name, lower)


async def lower_uid(harness: EngineHarness, name: str = "web", lower: str = A) -> str:
    """Return the UID of a pod in a lower cluster."""
    found = await harness.sites[lower].read(harness.pod_path(name))
    return str(found["metadata"]["uid"])


async def restored(harness: EngineHarness) -> None:
    """Load the original topology again, and wait until both nodes accept pods."""
    await harness.reload()
    await wait_until(lambda: lowers(harness) == harness.nodes)
    for name in harness.nodes.values():
        await harness.wait_for_node(name)
        await harness.upper.until(f"/api/v1/nodes/{name}", lambda one: not one["spec"].get("unschedulable"))


async def at_rest(harness: EngineHarness) -> None:
    """Assert that the engine repeats no write once it is idle."""
    await harness.wait_idle()
    await harness.mark_audit_logs()
    await harness.engine.check()
    await harness.wait_idle()
    assert await harness.unexpected_attempts(without=QUIET) == []


async def test_a_renamed_lower_keeps_its_node_and_pods(harness: EngineHarness) -> None:
    """The node is the same before and after, its pods run on, and new ones are created."""
    pod, before = await running(harness), await node(harness)
    await harness.reload(called("lower-z"))
    assert lowers(harness) == {"lower-z": harness.nodes[A], B: harness.nodes[B]}
    after = await node(harness, lambda one: one["metadata"]["labels"][CLUSTER_ID] == "lower-z", IN_FORCE)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    await running(harness, "second")
    assert await lower_uid(harness) == pod
    assert (await harness.kubectl("exec", "web", "--", "echo", "here")).out == "here\n"
    await at_rest(harness)
    assert is_true(await node(harness), "InTopology")
    await restored(harness)
    assert await lower_uid(harness) == pod
    await harness.end_pods("web", "second")


async def test_a_node_with_pods_is_not_assigned_to_another_cluster(harness: EngineHarness) -> None:
    """The removed lower keeps its node until its last pod is deleted; then the new lower is connected automatically."""
    pod = await running(harness)
    (harness.directory / LATER).write_bytes((harness.directory / f"{A}.kubeconfig").read_bytes())
    await harness.reload(called("lower-z", kubeconfig=LATER))
    assert lowers(harness) == harness.nodes
    await node(harness, lambda one: condition_of(one, "InTopology")["status"] == "False", IN_FORCE)
    assert pending(harness) == [
        f"lowers[lower-z]: not connected: node {harness.nodes[A]} belongs to lower {A} until that one is empty"
    ]
    assert await lower_uid(harness) == pod
    await at_rest(harness)
    await harness.end_pods("web")
    await wait_until(lambda: lowers(harness) == {"lower-z": harness.nodes[A], B: harness.nodes[B]})
    await harness.wait_for_node(harness.nodes[A])
    await running(harness)
    assert harness.engine.pending == ()
    await harness.end_pods("web")
    await restored(harness)
    (harness.directory / LATER).unlink()


async def test_a_lower_that_is_put_back_gets_its_node_again(harness: EngineHarness) -> None:
    """An engine that started without the lower keeps a separate entry for its node, and removes it afterwards."""
    pod = await running(harness)
    await harness.stop()
    await harness.start(without_lower(A))
    await wait_until(lambda: f"({harness.nodes[A]})" in lowers(harness))
    await node(harness, lambda one: condition_of(one, "InTopology")["status"] == "False")
    await harness.reload()
    assert lowers(harness) == {B: harness.nodes[B], A: harness.nodes[A]}
    await node(harness, lambda one: is_true(one, "InTopology") and not one["spec"].get("unschedulable"))
    await running(harness, "second")
    assert await lower_uid(harness) == pod
    await at_rest(harness)
    assert list(lowers(harness)) == [B, A]
    await harness.end_pods("web", "second")


async def test_a_connection_is_kept_until_the_new_kubeconfig_can_be_read(harness: EngineHarness) -> None:
    """The node reports a missing kubeconfig, and the rest of the edit is in force."""
    pod, lower = await running(harness), harness.engine.clusters.joined[A].lower
    await harness.reload(edit_lower(A, kubeconfig=LATER, qps=100, node={"labels": {"tier": "gold"}}))
    found = await node(harness, says_kept, IN_FORCE)
    assert LATER in condition_of(found, "LowerReachable")["message"]
    await node(harness, lambda one: one["metadata"]["labels"].get("tier") == "gold", IN_FORCE)
    assert pending(harness)[0].startswith(f"lowers[{A}].kubeconfig: ")
    assert lower.spec.qps == 100
    assert harness.engine.clusters.joined[A].lower is lower
    await running(harness, "second")
    (harness.directory / LATER).write_text(harness.kubeconfig(A, f"{harness.user}-next"))
    await wait_until(lambda: fields(harness, "kubeconfig") == [LATER])
    assert harness.engine.pending == ()
    await node(harness, lambda one: is_true(one, "LowerReachable") and not says_kept(one))
    await running(harness, "third")
    assert await lower_uid(harness) == pod
    await harness.end_pods("web", "second", "third")
    await restored(harness)
    (harness.directory / LATER).unlink()


def says_kept(found: Manifest) -> bool:
    """Report whether a reachable node reports that its last good connection is kept."""
    message = condition_of(found, "LowerReachable").get("message", "")
    return is_true(found, "LowerReachable") and message.endswith("; the last good connection is kept")


def renamed(harness: EngineHarness) -> Edit:
    """Return an edit that renames the first lower and its node."""

    def edit(file: Manifest) -> None:
        """Change both names."""
        file["lowers"][0]["name"] = "lower-x"
        file["lowers"][0]["node"]["name"] = f"{harness.nodes[A]}-x"

    return edit


def way_out(harness: EngineHarness) -> str:
    """Return the advice that keeps the pods."""
    return f"to keep them, write node: {{name: {harness.nodes[A]}}} for lower lower-x"


async def refused(harness: EngineHarness) -> None:
    """Wait until the node of the new name reports why it accepts no pods, and the advice."""

    def says(one: Manifest) -> bool:
        """Report whether the node has the advice."""
        return bool(one) and way_out(harness) in condition_of(one, "LowerReachable").get("message", "")

    found = await harness.upper.until(f"/api/v1/nodes/{harness.nodes[A]}-x", says)
    assert condition_of(found, "LowerReachable")["reason"] == "DuplicateCluster"


async def test_a_renamed_lower_with_a_new_node_waits_while_the_old_node_has_pods(harness: EngineHarness) -> None:
    """The node and a plan contain the advice to keep the old node name, and later edits leave no extra node behind."""
    pod = await running(harness)
    await harness.reload(renamed(harness))
    await refused(harness)
    planned = await asyncio.to_thread(
        plan.plan, harness.topology(renamed(harness)), harness.cluster_access, "text", colour=False
    )
    assert planned.unreached == "not planned: lower-x: the plan says why"
    assert "! lower-x: https://" in planned.text
    assert way_out(harness) in planned.text
    assert f"Node {harness.nodes[A]}-x" not in planned.text
    await harness.reload()
    await harness.upper.gone(f"/api/v1/nodes/{harness.nodes[A]}-x")
    await wait_until(lambda: lowers(harness) == harness.nodes)
    await harness.reload(renamed(harness))
    await refused(harness)
    await harness.reload(called("lower-x"))
    await wait_until(lambda: lowers(harness) == {"lower-x": harness.nodes[A], B: harness.nodes[B]})
    await harness.upper.gone(f"/api/v1/nodes/{harness.nodes[A]}-x")
    await running(harness, "second")
    assert await lower_uid(harness) == pod
    await restored(harness)
    await harness.end_pods("web", "second")


async def test_an_engine_that_starts_with_a_renamed_lower_and_node_gives_the_same_advice(
    harness: EngineHarness,
) -> None:
    """It knows the old node only by its annotations; without pods there, the new node is created at once."""
    pod, new = await running(harness), f"{harness.nodes[A]}-x"
    await harness.stop()
    await harness.start(renamed(harness), await_nodes=False)
    await refused(harness)
    assert await lower_uid(harness) == pod
    await harness.reload(called("lower-x"))
    await harness.upper.gone(f"/api/v1/nodes/{new}")
    await harness.wait_for_node(harness.nodes[A])
    await harness.end_pods("web")
    await harness.reload(renamed(harness))
    await harness.wait_for_node(new)
    await harness.upper.gone(f"/api/v1/nodes/{harness.nodes[A]}")
    await restored(harness)
