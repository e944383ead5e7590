"""Tests of `tensile uninstall`: no object of the topology is left in any cluster, and no other object is touched."""

import sys

import orjson
import pytest
from enginekit import LOWERS, UPPER, A, CommandResult, EngineHarness, policies_of, run_command
from sitekit import NODE_LEASES, Manifest, is_ready

from tensile.names import LEASE_NAMESPACE, OWNER

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]


async def uninstalled(harness: EngineHarness, *arguments: str) -> CommandResult:
    """Run `tensile uninstall`, with the engine's own permissions."""
    command = [sys.executable, "-m", "tensile", "uninstall", *arguments, "-f", str(harness.save())]
    return await run_command(command)


async def expire(harness: EngineHarness) -> None:
    """Set the renew times of the nodes' leases as if the engine had stopped long ago."""
    for node in harness.nodes.values():
        path = f"/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases/{node}"
        await harness.upper.patch(path, {"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}})


async def owned(harness: EngineHarness, cluster: str, plural: str) -> list[str]:
    """Return the names of the objects with the owner's mark, without terminating ones."""
    found = await harness.sites[cluster].read(f"/api/v1/{plural}?labelSelector={OWNER}={harness.owner.mark}")
    return sorted(_name(one) for one in found["items"] if "deletionTimestamp" not in one["metadata"])


def _name(found: Manifest) -> str:
    return str(found["metadata"]["name"])


def other_of(harness: EngineHarness) -> str:
    """Return the namespace that contains an object of another owner in the first lower."""
    return f"{harness.namespace}-other"


def theirs_of(harness: EngineHarness) -> str:
    """Return the path of that object."""
    return harness.path("configmaps", "theirs", namespace=other_of(harness))


async def test_uninstall_is_refused_while_pods_are_bound_and_the_engine_runs(harness: EngineHarness) -> None:
    """Both obstacles are printed, and nothing is deleted."""
    other = other_of(harness)
    await harness.make_namespace(UPPER, other)
    await harness.upper.create(harness.path("configmaps"), {"metadata": {"name": "settings"}, "data": {"key": "value"}})
    await harness.bind("web", {"volumes": [{"name": "settings", "configMap": {"name": "settings"}}]})
    await harness.upper.create(harness.path("pods", namespace=other), harness.pod("guest"))
    for path in (harness.pod_path("web"), harness.path("pods", "guest", namespace=other)):
        await harness.upper.until(path, is_ready)
    await harness.sites[A].create(harness.path("configmaps", namespace=other), {"metadata": {"name": "theirs"}})
    lease = f"{NODE_LEASES}/{harness.nodes[A]}"
    await harness.upper.until(lease, lambda found: "renewTime" in found.get("spec", {}))
    early = await uninstalled(harness, "--yes")
    assert early.code == 1
    assert f"2 pods are bound to node {harness.nodes[A]} " in early.err
    assert "an engine renews the lease of node" in early.err
    assert await owned(harness, UPPER, "nodes") == sorted(harness.nodes.values())


async def test_the_plan_of_an_uninstall_contains_only_deletions(harness: EngineHarness) -> None:
    """Nodes and empty namespaces are deleted; a namespace with an object of another owner is kept."""
    other = other_of(harness)
    await harness.end_pods("web")
    await harness.upper.delete(harness.path("pods", "guest", namespace=other))
    await harness.upper.gone(harness.path("pods", "guest", namespace=other))
    await harness.wait_idle()
    await harness.stop()
    harness.is_started = False
    await expire(harness)
    planned = await uninstalled(harness, "--plan", "-o", "json")
    document = orjson.loads(planned.out)
    assert (planned.code, document["obstacles"]) == (2, []), planned.err
    changes = {(one["cluster"], one["kind"], one["name"], one["action"]) for one in document["changes"]}
    nodes = {("upper", "Node", node, "delete") for node in harness.nodes.values()}
    assert nodes | {(A, "Namespace", harness.namespace, "delete")} <= changes
    assert {action for *_, action in changes} == {"delete"}
    assert (A, "Namespace", other, "delete") not in changes
    assert [one["name"] for one in document["stays"]] == [other]


async def test_uninstall_deletes_all_objects_of_the_topology_and_no_others(harness: EngineHarness) -> None:
    """This holds for every cluster, and the object of another owner is not even written to."""
    other, theirs = other_of(harness), await harness.sites[A].read(theirs_of(harness))
    done = await uninstalled(harness, "--yes")
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1].startswith("Uninstalled: 0 to add, 0 to change, ")
    for cluster in LOWERS:
        for plural in ("pods", "configmaps", "secrets", "services", "namespaces"):
            kept = [other] if (cluster, plural) == (A, "namespaces") else []
            assert await owned(harness, cluster, plural) == kept
    assert await owned(harness, UPPER, "nodes") == []
    for path in policies_of(harness.namespace):
        assert not await harness.upper.read(path)
    assert await harness.sites[A].read(theirs_of(harness)) == theirs


async def test_a_second_uninstall_deletes_nothing_until_the_object_of_another_owner_is_deleted(
    harness: EngineHarness,
) -> None:
    """After that, its namespace is deleted too."""
    again = await uninstalled(harness, "--yes")
    assert again.code == 0, again.err
    assert again.out.startswith(f"Nothing of topology {harness.namespace} can be deleted.\n")
    assert again.out.endswith("Plan: 0 to add, 0 to change, 0 to delete (no changes)\n")
    await harness.sites[A].delete(theirs_of(harness))
    last = await uninstalled(harness, "--yes")
    assert last.code == 0, last.err
    assert await owned(harness, A, "namespaces") == []
