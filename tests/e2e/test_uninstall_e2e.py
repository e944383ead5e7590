"""Tests of `tensile uninstall`: no object of the topology is left in any cluster, and no other object is touched."""

import sys

import orjson
import pytest
from enginekit import LOWERS, UPPER, A, Done, Ground, policies_of, ran
from sitekit import NODE_LEASES, Manifest, is_ready

from tensile.names import LEASE_NAMESPACE, OWNER

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]


async def uninstalled(ground: Ground, *arguments: str) -> Done:
    """Run `tensile uninstall`, with the engine's own permissions."""
    command = [sys.executable, "-m", "tensile", "uninstall", *arguments, "-f", str(ground.save())]
    return await ran(command)


async def expire(ground: Ground) -> None:
    """Set the renew times of the nodes' leases as if the engine had stopped long ago."""
    for node in ground.nodes.values():
        path = f"/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases/{node}"
        await ground.upper.patch(path, {"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}})


async def owned(ground: Ground, cluster: str, plural: str) -> list[str]:
    """Return the names of the objects with the owner's mark, without terminating ones."""
    found = await ground.sites[cluster].read(f"/api/v1/{plural}?labelSelector={OWNER}={ground.owner.mark}")
    return sorted(_name(one) for one in found["items"] if "deletionTimestamp" not in one["metadata"])


def _name(found: Manifest) -> str:
    return str(found["metadata"]["name"])


def other_of(ground: Ground) -> str:
    """Return the namespace that contains an object of another owner in the first lower."""
    return f"{ground.namespace}-other"


def theirs_of(ground: Ground) -> str:
    """Return the path of that object."""
    return ground.path("configmaps", "theirs", namespace=other_of(ground))


async def test_uninstall_is_refused_while_pods_are_bound_and_the_engine_runs(ground: Ground) -> None:
    """Both obstacles are printed, and nothing is deleted."""
    other = other_of(ground)
    await ground.make_namespace(UPPER, other)
    await ground.upper.create(ground.path("configmaps"), {"metadata": {"name": "settings"}, "data": {"key": "value"}})
    await ground.bind("web", {"volumes": [{"name": "settings", "configMap": {"name": "settings"}}]})
    await ground.upper.create(ground.path("pods", namespace=other), ground.pod("guest"))
    for path in (ground.pod_path("web"), ground.path("pods", "guest", namespace=other)):
        await ground.upper.until(path, is_ready)
    await ground.sites[A].create(ground.path("configmaps", namespace=other), {"metadata": {"name": "theirs"}})
    lease = f"{NODE_LEASES}/{ground.nodes[A]}"
    await ground.upper.until(lease, lambda found: "renewTime" in found.get("spec", {}))
    early = await uninstalled(ground, "--yes")
    assert early.code == 1
    assert f"2 pods are bound to node {ground.nodes[A]} " in early.err
    assert "an engine renews the lease of node" in early.err
    assert await owned(ground, UPPER, "nodes") == sorted(ground.nodes.values())


async def test_the_plan_of_an_uninstall_contains_only_deletions(ground: Ground) -> None:
    """Nodes and empty namespaces are deleted; a namespace with an object of another owner is kept."""
    other = other_of(ground)
    await ground.end_pods("web")
    await ground.upper.delete(ground.path("pods", "guest", namespace=other))
    await ground.upper.gone(ground.path("pods", "guest", namespace=other))
    await ground.calm()
    await ground.stop()
    ground.is_started = False
    await expire(ground)
    planned = await uninstalled(ground, "--plan", "-o", "json")
    document = orjson.loads(planned.out)
    assert (planned.code, document["obstacles"]) == (2, []), planned.err
    changes = {(one["cluster"], one["kind"], one["name"], one["action"]) for one in document["changes"]}
    nodes = {("upper", "Node", node, "delete") for node in ground.nodes.values()}
    assert nodes | {(A, "Namespace", ground.namespace, "delete")} <= changes
    assert {action for *_, action in changes} == {"delete"}
    assert (A, "Namespace", other, "delete") not in changes
    assert [one["name"] for one in document["stays"]] == [other]


async def test_uninstall_deletes_all_objects_of_the_topology_and_no_others(ground: Ground) -> None:
    """This holds for every cluster, and the object of another owner is not even written to."""
    other, theirs = other_of(ground), await ground.sites[A].read(theirs_of(ground))
    done = await uninstalled(ground, "--yes")
    assert done.code == 0, done.err
    assert done.out.splitlines()[-1].startswith("Uninstalled: 0 to add, 0 to change, ")
    for cluster in LOWERS:
        for plural in ("pods", "configmaps", "secrets", "services", "namespaces"):
            kept = [other] if (cluster, plural) == (A, "namespaces") else []
            assert await owned(ground, cluster, plural) == kept
    assert await owned(ground, UPPER, "nodes") == []
    for path in policies_of(ground.namespace):
        assert not await ground.upper.read(path)
    assert await ground.sites[A].read(theirs_of(ground)) == theirs


async def test_a_second_uninstall_deletes_nothing_until_the_object_of_another_owner_is_deleted(ground: Ground) -> None:
    """After that, its namespace is deleted too."""
    again = await uninstalled(ground, "--yes")
    assert again.code == 0, again.err
    assert again.out.startswith(f"Nothing of topology {ground.namespace} can be deleted.\n")
    assert again.out.endswith("Plan: 0 to add, 0 to change, 0 to delete (no changes)\n")
    await ground.sites[A].delete(theirs_of(ground))
    last = await uninstalled(ground, "--yes")
    assert last.code == 0, last.err
    assert await owned(ground, A, "namespaces") == []
