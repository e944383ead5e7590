"""Tests of Services and rights: deletions while no engine runs, later changes, and names of other owners."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from enginekit import A, Edit, Ground, standing, with_fields
from provisionkit import CLASSES, VOLUMES
from sitekit import Manifest, is_ready
from storekit import claims, placeholders, scheduled, shipped, using

from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

RBAC, DISCOVERY = "apis/rbac.authorization.k8s.io/v1", "apis/discovery.k8s.io/v1"
GROUP = "rbac.authorization.k8s.io"
READS = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]
EVERYTHING: Edit = with_fields(controllers=["PV", "Service", "RBAC", "ServiceAccount"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ground(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    """Start an engine with all controllers, and two pods with accounts that run in lower-a."""
    async with standing(sandbox, tmp_path_factory.mktemp("unwatched"), EVERYTHING) as made:
        for name in ("robot", "helper"):
            await made.upper.create(made.path("serviceaccounts"), {"metadata": {"name": name}})
            await made.run_pod(name, {"serviceAccountName": name}, labels={"app": "web"})
        yield made


def subject(ground: Ground, name: str) -> Manifest:
    """Return an account of the namespace as the subject of a binding."""
    return {"kind": "ServiceAccount", "namespace": ground.namespace, "name": name}


async def granted(ground: Ground, name: str, account: str) -> tuple[str, str]:
    """Create an upper Role bound to an account, and return the paths of role and binding."""
    role, binding = (ground.path(plural, name, api=RBAC) for plural in ("roles", "rolebindings"))
    await ground.upper.create(ground.path("roles", api=RBAC), {"metadata": {"name": name}, "rules": READS})
    ref = {"apiGroup": GROUP, "kind": "Role", "name": name}
    body = {"metadata": {"name": name}, "roleRef": ref, "subjects": [subject(ground, account)]}
    await ground.upper.create(ground.path("rolebindings", api=RBAC), body)
    return role, binding


async def published(ground: Ground, name: str) -> str:
    """Create an upper Service, wait for its lower EndpointSlices, and return its path."""
    spec = {"selector": {"app": "web"}, "ports": [{"port": 80}]}
    await ground.upper.create(ground.path("services"), {"metadata": {"name": name}, "spec": spec})
    await ground.sites[A].until_all(slices(ground, name), bool)
    return ground.path("services", name)


def slices(ground: Ground, name: str) -> str:
    """Return the query for the slices of a Service."""
    return f"{ground.path('endpointslices', api=DISCOVERY)}?labelSelector=kubernetes.io/service-name={name}"


async def test_a_subject_that_is_added_to_a_binding_is_added_to_its_copy(ground: Ground) -> None:
    """The copy of the role stays unchanged."""
    role, binding = await granted(ground, "changing", "robot")
    site = ground.sites[A]
    await site.until(binding, lambda one: one["subjects"] == [subject(ground, "robot")])
    both = [subject(ground, "helper"), subject(ground, "robot")]
    await ground.upper.patch(binding, {"subjects": both})
    await site.until(binding, lambda one: sorted(each["name"] for each in one["subjects"]) == ["helper", "robot"])
    assert (await site.read(role))["rules"] == READS


async def test_a_deleted_copy_of_a_binding_is_recreated(ground: Ground) -> None:
    """Otherwise its pods would be refused from then on; the engine sees the deletion at once."""
    role, binding = await granted(ground, "held", "robot")
    site = ground.sites[A]
    before = await site.until(binding, bool)
    await site.delete(binding)
    after = await site.until(binding, lambda one: one["metadata"]["uid"] != before["metadata"]["uid"])
    assert after["subjects"] == before["subjects"]
    await ground.upper.delete(binding)
    await ground.upper.delete(role)
    await site.gone(role, binding)


async def test_a_binding_is_mirrored_once_its_lower_cluster_role_exists(ground: Ground) -> None:
    """The lower cluster's administrator creates ClusterRoles; until then, an Event of the pod names the missing one."""
    name, site = f"late-{ground.mark}", ground.sites[A]
    path, cluster_role = ground.path("rolebindings", name, api=RBAC), f"/{RBAC}/clusterroles"
    ref = {"apiGroup": GROUP, "kind": "ClusterRole", "name": name}
    body = {"metadata": {"name": name}, "roleRef": ref, "subjects": [subject(ground, "helper")]}
    await ground.upper.create(path.rpartition("/")[0], body)
    try:
        assert name in await ground.told(await ground.upper.read(ground.pod_path("helper")), "ClusterRoleNotFound")
        await site.create(cluster_role, {"metadata": {"name": name}, "rules": READS})
        assert (await site.until(path, bool))["roleRef"] == ref
    finally:
        await ground.upper.delete(path)
        await site.gone(path)
        await site.delete(f"{cluster_role}/{name}")


@pytest.mark.parametrize(("plural", "account"), [("roles", "robot"), ("rolebindings", "helper")])
async def test_a_lower_role_or_binding_of_another_owner_is_reported_and_not_touched(
    ground: Ground, plural: str, account: str
) -> None:
    """The pod with the account gets the Event, and the copy is created once the name is free."""
    name, site = f"taken-{plural}", ground.sites[A]
    ref = {"apiGroup": GROUP, "kind": "ClusterRole", "name": "view"}
    body: Manifest = {"rules": []} if plural == "roles" else {"roleRef": ref}
    theirs = await site.create(ground.path(plural, api=RBAC), {"metadata": {"name": name}, **body})
    role, binding = await granted(ground, name, account)
    assert name in await ground.told(await ground.upper.read(ground.pod_path(account)), "NameConflict")
    path = ground.path(plural, name, api=RBAC)
    assert (await site.read(path))["metadata"]["resourceVersion"] == theirs["metadata"]["resourceVersion"]
    await site.delete(path)
    await site.until(path, lambda one: one["metadata"]["uid"] != theirs["metadata"]["uid"])
    await ground.upper.delete(binding)
    await ground.upper.delete(role)
    await site.gone(role, binding)


async def test_a_lower_slice_of_another_owner_is_reported_and_not_touched(ground: Ground) -> None:
    """The copy is created once the name is free."""
    site, path = ground.sites[A], ground.path("endpointslices", "fixed", api=DISCOVERY)
    body = {"addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.1"]}], "ports": [{"port": 80}]}
    theirs = await site.create(path.rpartition("/")[0], {"metadata": {"name": "fixed"}, **body})
    await ground.upper.create(
        ground.path("services"), {"metadata": {"name": "fixed"}, "spec": {"ports": [{"port": 80}]}}
    )
    labels = {"kubernetes.io/service-name": "fixed"}
    await ground.upper.create(path.rpartition("/")[0], {"metadata": {"name": "fixed", "labels": labels}, **body})
    events = f"{ground.path('events')}?fieldSelector=reason=NameConflict"
    await ground.upper.until_all(events, lambda found: any("EndpointSlice" in one["message"] for one in found.values()))
    assert (await site.read(path))["metadata"]["resourceVersion"] == theirs["metadata"]["resourceVersion"]
    await site.delete(path)
    await site.until(path, lambda one: one["metadata"]["uid"] != theirs["metadata"]["uid"])
    await ground.upper.delete(ground.path("services", "fixed"))
    await ground.upper.delete(path)
    await site.gone(path)


async def test_copies_of_objects_that_were_deleted_while_no_engine_ran_are_deleted(ground: Ground) -> None:
    """A restarted engine deletes the copies of a deleted binding, role and Service.

    If a role alone was deleted, the copy of its binding is deleted too, because any client could create a role of that
    name with other rights.
    """
    role, binding = await granted(ground, "revoked", "robot")
    hollow, empty = await granted(ground, "hollow", "robot")
    service, site = await published(ground, "gone"), ground.sites[A]
    for path in (role, binding, hollow, empty, service):
        await site.until(path, bool)
    await ground.stop()
    for path in (binding, role, hollow, service):
        await ground.upper.delete(path)
    await ground.upper.until_all(slices(ground, "gone"), lambda found: not found)
    await ground.start(EVERYTHING)
    await site.gone(role, binding, hollow, empty, service)
    assert await ground.upper.read(empty)
    await site.until_all(slices(ground, "gone"), lambda found: not found)
    assert is_ready(await ground.upper.read(ground.pod_path("robot")))


async def test_the_copy_of_a_claim_that_was_deleted_while_no_engine_ran_is_deleted(ground: Ground) -> None:
    """The claim never had a volume, because no lower provisioner exists, and its placeholder is deleted too."""
    name, site = f"nowhere-{ground.mark}", ground.sites[A]
    await site.create(CLASSES, {"metadata": {"name": name}, "provisioner": "example.com/nobody"})
    await ground.upper.create(CLASSES, shipped(name))
    resources = {"requests": {"storage": "1Gi"}}
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": name, "resources": resources}
    claim = claims(ground, "data")
    try:
        await ground.upper.create(claims(ground).rstrip("/"), {"metadata": {"name": "data"}, "spec": spec})
        await scheduled(ground, "asks", using("data"), A)
        await site.until(claim, bool)
        await ground.stop()
        await ground.upper.delete(ground.pod_path("asks"), 0)
        await ground.upper.delete(claim)
        await ground.upper.gone(claim)
        for volume in await placeholders(ground):
            await ground.upper.delete(f"{VOLUMES}/{volume['metadata']['name']}")
            await ground.upper.gone(f"{VOLUMES}/{volume['metadata']['name']}")
        await ground.start(EVERYTHING)
        await site.gone(claim)
    finally:
        for one in (site, ground.upper):
            await one.delete(f"{CLASSES}/{name}")
