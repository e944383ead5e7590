"""Tests of edits that change names, nodes or credentials of lowers while pods run: a node belongs to one lower."""

import asyncio
from typing import Any

import pytest
from enginekit import QUIET, A, B, Edit, Ground, edit_lower, polled, without_lower
from sitekit import Manifest, condition_of, is_true

from tensile.cli import plan
from tensile.names import CLUSTER_ID

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

IN_FORCE = 30.0
LATER = "later.kubeconfig"


def called(name: str, **fields: Any) -> Edit:
    """Return an edit that renames the first lower and keeps its node."""
    return lambda file: file["lowers"][0].update({"name": name, **fields})


def lowers(ground: Ground) -> dict[str, str]:
    """Return the node of each joined lower."""
    return {name: joined.lower.node for name, joined in ground.engine.clusters.joined.items()}


def fields(ground: Ground, *names: str) -> list[object]:
    """Return fields of the first lower as it is joined, each None while it is being joined again."""
    joined = ground.engine.clusters.joined.get(A)
    return [getattr(joined.lower.spec, name) if joined else None for name in names]


def pending(ground: Ground) -> list[str]:
    """Return the pending changes, without what they wait for."""
    return [words.rpartition(": ")[0] for words in ground.engine.pending]


async def node(ground: Ground, holds: Any = bool, limit: float = 30.0) -> Manifest:
    """Wait until a condition holds for the first lower's node, and return it."""
    return await ground.upper.until(f"/api/v1/nodes/{ground.nodes[A]}", holds, limit)


async def running(ground: Ground, name: str = "web", lower: str = A) -> str:
    """Run a pod on a lower's node, and return the UID of its lower pod."""
    await ground.run_pod(name, lower=lower)
    return await below(ground, name, lower)


async def below(ground: Ground, name: str = "web", lower: str = A) -> str:
    """Return the UID of a pod in a lower cluster."""
    found = await ground.sites[lower].read(ground.pod_path(name))
    return str(found["metadata"]["uid"])


async def restored(ground: Ground) -> None:
    """Load the original topology again, and wait until both nodes accept pods."""
    await ground.reload()
    await polled(lambda: lowers(ground) == ground.nodes)
    for name in ground.nodes.values():
        await ground.usable(name)
        await ground.upper.until(f"/api/v1/nodes/{name}", lambda one: not one["spec"].get("unschedulable"))


async def at_rest(ground: Ground) -> None:
    """Assert that the engine repeats no write once it is idle."""
    await ground.calm()
    await ground.note()
    await ground.engine.check()
    await ground.calm()
    assert await ground.repeated(without=QUIET) == []


async def test_a_renamed_lower_keeps_its_node_and_pods(ground: Ground) -> None:
    """The node is the same before and after, its pods run on, and new ones are created."""
    pod, before = await running(ground), await node(ground)
    await ground.reload(called("lower-z"))
    assert lowers(ground) == {"lower-z": ground.nodes[A], B: ground.nodes[B]}
    after = await node(ground, lambda one: one["metadata"]["labels"][CLUSTER_ID] == "lower-z", IN_FORCE)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    await running(ground, "second")
    assert await below(ground) == pod
    assert (await ground.kubectl("exec", "web", "--", "echo", "here")).out == "here\n"
    await at_rest(ground)
    assert is_true(await node(ground), "InTopology")
    await restored(ground)
    assert await below(ground) == pod
    await ground.end_pods("web", "second")


async def test_a_node_with_pods_is_not_assigned_to_another_cluster(ground: Ground) -> None:
    """The removed lower keeps its node until its last pod is deleted; then the new lower is connected automatically."""
    pod = await running(ground)
    (ground.directory / LATER).write_bytes((ground.directory / f"{A}.kubeconfig").read_bytes())
    await ground.reload(called("lower-z", kubeconfig=LATER))
    assert lowers(ground) == ground.nodes
    await node(ground, lambda one: condition_of(one, "InTopology")["status"] == "False", IN_FORCE)
    assert pending(ground) == [
        f"lowers[lower-z]: not connected: node {ground.nodes[A]} belongs to lower {A} until that one is empty"
    ]
    assert await below(ground) == pod
    await at_rest(ground)
    await ground.end_pods("web")
    await polled(lambda: lowers(ground) == {"lower-z": ground.nodes[A], B: ground.nodes[B]})
    await ground.usable(ground.nodes[A])
    await running(ground)
    assert ground.engine.pending == ()
    await ground.end_pods("web")
    await restored(ground)
    (ground.directory / LATER).unlink()


async def test_a_lower_that_is_put_back_gets_its_node_again(ground: Ground) -> None:
    """An engine that started without the lower keeps a separate entry for its node, and removes it afterwards."""
    pod = await running(ground)
    await ground.stop()
    await ground.start(without_lower(A))
    await polled(lambda: f"({ground.nodes[A]})" in lowers(ground))
    await node(ground, lambda one: condition_of(one, "InTopology")["status"] == "False")
    await ground.reload()
    assert lowers(ground) == {B: ground.nodes[B], A: ground.nodes[A]}
    await node(ground, lambda one: is_true(one, "InTopology") and not one["spec"].get("unschedulable"))
    await running(ground, "second")
    assert await below(ground) == pod
    await at_rest(ground)
    assert list(lowers(ground)) == [B, A]
    await ground.end_pods("web", "second")


async def test_a_connection_is_kept_until_the_new_kubeconfig_can_be_read(ground: Ground) -> None:
    """The node reports a missing kubeconfig, and the rest of the edit is in force."""
    pod, lower = await running(ground), ground.engine.clusters.joined[A].lower
    await ground.reload(edit_lower(A, kubeconfig=LATER, qps=100, node={"labels": {"tier": "gold"}}))
    found = await node(ground, says_kept, IN_FORCE)
    assert LATER in condition_of(found, "LowerReachable")["message"]
    await node(ground, lambda one: one["metadata"]["labels"].get("tier") == "gold", IN_FORCE)
    assert pending(ground)[0].startswith(f"lowers[{A}].kubeconfig: ")
    assert lower.spec.qps == 100
    assert ground.engine.clusters.joined[A].lower is lower
    await running(ground, "second")
    (ground.directory / LATER).write_text(ground.kubeconfig(A, f"{ground.user}-next"))
    await polled(lambda: fields(ground, "kubeconfig") == [LATER])
    assert ground.engine.pending == ()
    await node(ground, lambda one: is_true(one, "LowerReachable") and not says_kept(one))
    await running(ground, "third")
    assert await below(ground) == pod
    await ground.end_pods("web", "second", "third")
    await restored(ground)
    (ground.directory / LATER).unlink()


def says_kept(found: Manifest) -> bool:
    """Report whether a reachable node reports that its last good connection is kept."""
    message = condition_of(found, "LowerReachable").get("message", "")
    return is_true(found, "LowerReachable") and message.endswith("; the last good connection is kept")


def renamed(ground: Ground) -> Edit:
    """Return an edit that renames the first lower and its node."""

    def edit(file: Manifest) -> None:
        """Change both names."""
        file["lowers"][0]["name"] = "lower-x"
        file["lowers"][0]["node"]["name"] = f"{ground.nodes[A]}-x"

    return edit


def way_out(ground: Ground) -> str:
    """Return the advice that keeps the pods."""
    return f"to keep them, write node: {{name: {ground.nodes[A]}}} for lower lower-x"


async def refused(ground: Ground) -> None:
    """Wait until the node of the new name reports why it accepts no pods, and the advice."""

    def says(one: Manifest) -> bool:
        """Report whether the node has the advice."""
        return bool(one) and way_out(ground) in condition_of(one, "LowerReachable").get("message", "")

    found = await ground.upper.until(f"/api/v1/nodes/{ground.nodes[A]}-x", says)
    assert condition_of(found, "LowerReachable")["reason"] == "DuplicateCluster"


async def test_a_renamed_lower_with_a_new_node_waits_while_the_old_node_has_pods(ground: Ground) -> None:
    """The node and a plan contain the advice to keep the old node name, and later edits leave no extra node behind."""
    pod = await running(ground)
    await ground.reload(renamed(ground))
    await refused(ground)
    planned = await asyncio.to_thread(plan.plan, ground.topology(renamed(ground)), ground.ways, "text", colour=False)
    assert planned.unreached == "not planned: lower-x: the plan says why"
    assert "! lower-x: https://" in planned.text
    assert way_out(ground) in planned.text
    assert f"Node {ground.nodes[A]}-x" not in planned.text
    await ground.reload()
    await ground.upper.gone(f"/api/v1/nodes/{ground.nodes[A]}-x")
    await polled(lambda: lowers(ground) == ground.nodes)
    await ground.reload(renamed(ground))
    await refused(ground)
    await ground.reload(called("lower-x"))
    await polled(lambda: lowers(ground) == {"lower-x": ground.nodes[A], B: ground.nodes[B]})
    await ground.upper.gone(f"/api/v1/nodes/{ground.nodes[A]}-x")
    await running(ground, "second")
    assert await below(ground) == pod
    await restored(ground)
    await ground.end_pods("web", "second")


async def test_an_engine_that_starts_with_a_renamed_lower_and_node_gives_the_same_advice(ground: Ground) -> None:
    """It knows the old node only by its annotations; without pods there, the new node is created at once."""
    pod, new = await running(ground), f"{ground.nodes[A]}-x"
    await ground.stop()
    await ground.start(renamed(ground), await_nodes=False)
    await refused(ground)
    assert await below(ground) == pod
    await ground.reload(called("lower-x"))
    await ground.upper.gone(f"/api/v1/nodes/{new}")
    await ground.usable(ground.nodes[A])
    await ground.end_pods("web")
    await ground.reload(renamed(ground))
    await ground.usable(new)
    await ground.upper.gone(f"/api/v1/nodes/{ground.nodes[A]}")
    await restored(ground)
