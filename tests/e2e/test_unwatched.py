"""Tests of Services and rights: deletions while no engine runs, later changes, and names of other owners."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from enginekit import A, Edit, EngineHarness, running_engine, with_fields
from provisionkit import CLASSES, VOLUMES
from sitekit import Manifest, is_ready
from storekit import claims, create_scheduled_pod, placeholders, shipped_class, spec_with_claims

from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

RBAC, DISCOVERY = "apis/rbac.authorization.k8s.io/v1", "apis/discovery.k8s.io/v1"
GROUP = "rbac.authorization.k8s.io"
READS = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]
EVERYTHING: Edit = with_fields(controllers=["PV", "Service", "RBAC", "ServiceAccount"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EngineHarness]:
    """Start an engine with all controllers, and two pods with accounts that run in lower-a."""
    async with running_engine(sandbox, tmp_path_factory.mktemp("unwatched"), EVERYTHING) as harness:
        for name in ("robot", "helper"):
            await harness.upper.create(harness.path("serviceaccounts"), {"metadata": {"name": name}})
            await harness.run_pod(name, {"serviceAccountName": name}, labels={"app": "web"})
        yield harness


def subject(harness: EngineHarness, name: str) -> Manifest:
    """Return an account of the namespace as the subject of a binding."""
    return {"kind": "ServiceAccount", "namespace": harness.namespace, "name": name}


async def granted(harness: EngineHarness, name: str, account: str) -> tuple[str, str]:
    """Create an upper Role bound to an account, and return the paths of role and binding."""
    role, binding = (harness.path(plural, name, api=RBAC) for plural in ("roles", "rolebindings"))
    await harness.upper.create(harness.path("roles", api=RBAC), {"metadata": {"name": name}, "rules": READS})
    ref = {"apiGroup": GROUP, "kind": "Role", "name": name}
    body = {"metadata": {"name": name}, "roleRef": ref, "subjects": [subject(harness, account)]}
    await harness.upper.create(harness.path("rolebindings", api=RBAC), body)
    return role, binding


async def published(harness: EngineHarness, name: str) -> str:
    """Create an upper Service, wait for its lower EndpointSlices, and return its path."""
    spec = {"selector": {"app": "web"}, "ports": [{"port": 80}]}
    await harness.upper.create(harness.path("services"), {"metadata": {"name": name}, "spec": spec})
    await harness.sites[A].until_all(slices(harness, name), bool)
    return harness.path("services", name)


def slices(harness: EngineHarness, name: str) -> str:
    """Return the query for the slices of a Service."""
    return f"{harness.path('endpointslices', api=DISCOVERY)}?labelSelector=kubernetes.io/service-name={name}"


async def test_a_subject_that_is_added_to_a_binding_is_added_to_its_copy(harness: EngineHarness) -> None:
    """The copy of the role stays unchanged."""
    role, binding = await granted(harness, "changing", "robot")
    site = harness.sites[A]
    await site.until(binding, lambda one: one["subjects"] == [subject(harness, "robot")])
    both = [subject(harness, "helper"), subject(harness, "robot")]
    await harness.upper.patch(binding, {"subjects": both})
    await site.until(binding, lambda one: sorted(each["name"] for each in one["subjects"]) == ["helper", "robot"])
    assert (await site.read(role))["rules"] == READS


async def test_a_deleted_copy_of_a_binding_is_recreated(harness: EngineHarness) -> None:
    """Otherwise its pods would be refused from then on; the engine sees the deletion at once."""
    role, binding = await granted(harness, "held", "robot")
    site = harness.sites[A]
    before = await site.until(binding, bool)
    await site.delete(binding)
    after = await site.until(binding, lambda one: one["metadata"]["uid"] != before["metadata"]["uid"])
    assert after["subjects"] == before["subjects"]
    await harness.upper.delete(binding)
    await harness.upper.delete(role)
    await site.gone(role, binding)


async def test_a_binding_is_mirrored_once_its_lower_cluster_role_exists(harness: EngineHarness) -> None:
    """The lower cluster's administrator creates ClusterRoles; until then, an Event of the pod names the missing one."""
    name, site = f"late-{harness.mark}", harness.sites[A]
    path, cluster_role = harness.path("rolebindings", name, api=RBAC), f"/{RBAC}/clusterroles"
    ref = {"apiGroup": GROUP, "kind": "ClusterRole", "name": name}
    body = {"metadata": {"name": name}, "roleRef": ref, "subjects": [subject(harness, "helper")]}
    await harness.upper.create(path.rpartition("/")[0], body)
    try:
        assert name in await harness.wait_for_event(
            await harness.upper.read(harness.pod_path("helper")), "ClusterRoleNotFound"
        )
        await site.create(cluster_role, {"metadata": {"name": name}, "rules": READS})
        assert (await site.until(path, bool))["roleRef"] == ref
    finally:
        await harness.upper.delete(path)
        await site.gone(path)
        await site.delete(f"{cluster_role}/{name}")


@pytest.mark.parametrize(("plural", "account"), [("roles", "robot"), ("rolebindings", "helper")])
async def test_a_lower_role_or_binding_of_another_owner_is_reported_and_not_touched(
    harness: EngineHarness, plural: str, account: str
) -> None:
    """The pod with the account gets the Event, and the copy is created once the name is free."""
    name, site = f"taken-{plural}", harness.sites[A]
    ref = {"apiGroup": GROUP, "kind": "ClusterRole", "name": "view"}
    body: Manifest = {"rules": []} if plural == "roles" else {"roleRef": ref}
    theirs = await site.create(harness.path(plural, api=RBAC), {"metadata": {"name": name}, **body})
    role, binding = await granted(harness, name, account)
    assert name in await harness.wait_for_event(await harness.upper.read(harness.pod_path(account)), "NameConflict")
    path = harness.path(plural, name, api=RBAC)
    assert (await site.read(path))["metadata"]["resourceVersion"] == theirs["metadata"]["resourceVersion"]
    await site.delete(path)
    await site.until(path, lambda one: one["metadata"]["uid"] != theirs["metadata"]["uid"])
    await harness.upper.delete(binding)
    await harness.upper.delete(role)
    await site.gone(role, binding)


async def test_a_lower_slice_of_another_owner_is_reported_and_not_touched(harness: EngineHarness) -> None:
    """The copy is created once the name is free."""
    site, path = harness.sites[A], harness.path("endpointslices", "fixed", api=DISCOVERY)
    body = {"addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.1"]}], "ports": [{"port": 80}]}
    theirs = await site.create(path.rpartition("/")[0], {"metadata": {"name": "fixed"}, **body})
    await harness.upper.create(
        harness.path("services"), {"metadata": {"name": "fixed"}, "spec": {"ports": [{"port": 80}]}}
    )
    labels = {"kubernetes.io/service-name": "fixed"}
    await harness.upper.create(path.rpartition("/")[0], {"metadata": {"name": "fixed", "labels": labels}, **body})
    events = f"{harness.path('events')}?fieldSelector=reason=NameConflict"
    await harness.upper.until_all(
        events, lambda found: any("EndpointSlice" in one["message"] for one in found.values())
    )
    assert (await site.read(path))["metadata"]["resourceVersion"] == theirs["metadata"]["resourceVersion"]
    await site.delete(path)
    await site.until(path, lambda one: one["metadata"]["uid"] != theirs["metadata"]["uid"])
    await harness.upper.delete(harness.path("services", "fixed"))
    await harness.upper.delete(path)
    await site.gone(path)


async def test_copies_of_objects_that_were_deleted_while_no_engine_ran_are_deleted(harness: EngineHarness) -> None:
    """A restarted engine deletes the copies of a deleted binding, role and Service.

    If a role alone was deleted, the copy of its binding is deleted too, because any client could create a role of that
    name with other rights.
    """
    role, binding = await granted(harness, "revoked", "robot")
    hollow, empty = await granted(harness, "hollow", "robot")
    service, site = await published(harness, "gone"), harness.sites[A]
    for path in (role, binding, hollow, empty, service):
        await site.until(path, bool)
    await harness.stop()
    for path in (binding, role, hollow, service):
        await harness.upper.delete(path)
    await harness.upper.until_all(slices(harness, "gone"), lambda found: not found)
    await harness.start(EVERYTHING)
    await site.gone(role, binding, hollow, empty, service)
    assert await harness.upper.read(empty)
    await site.until_all(slices(harness, "gone"), lambda found: not found)
    assert is_ready(await harness.upper.read(harness.pod_path("robot")))


async def test_the_copy_of_a_claim_that_was_deleted_while_no_engine_ran_is_deleted(harness: EngineHarness) -> None:
    """The claim never had a volume, because no lower provisioner exists, and its placeholder is deleted too."""
    name, site = f"nowhere-{harness.mark}", harness.sites[A]
    await site.create(CLASSES, {"metadata": {"name": name}, "provisioner": "example.com/nobody"})
    await harness.upper.create(CLASSES, shipped_class(name))
    resources = {"requests": {"storage": "1Gi"}}
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": name, "resources": resources}
    claim = claims(harness, "data")
    try:
        await harness.upper.create(claims(harness).rstrip("/"), {"metadata": {"name": "data"}, "spec": spec})
        await create_scheduled_pod(harness, "asks", spec_with_claims("data"), A)
        await site.until(claim, bool)
        await harness.stop()
        await harness.upper.delete(harness.pod_path("asks"), 0)
        await harness.upper.delete(claim)
        await harness.upper.gone(claim)
        for volume in await placeholders(harness):
            await harness.upper.delete(f"{VOLUMES}/{volume['metadata']['name']}")
            await harness.upper.gone(f"{VOLUMES}/{volume['metadata']['name']}")
        await harness.start(EVERYTHING)
        await site.gone(claim)
    finally:
        for one in (site, harness.upper):
            await one.delete(f"{CLASSES}/{name}")
