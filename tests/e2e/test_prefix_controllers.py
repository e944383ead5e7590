"""Tests of all controllers with prefixed namespaces: their objects are planned, created, updated and deleted."""

from base64 import b64decode
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from enginekit import UPPER, A, B, EngineHarness, running_engine, without_lower
from plankit import plan_json, planned_changes, written_changes
from provisionkit import CLASSES, VOLUMES, serving
from sitekit import Manifest, is_ready
from storekit import class_name, is_bound, shipped_class

from tensile.names import LOWER, OWNER
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

RBAC, SLICES = "apis/rbac.authorization.k8s.io/v1", "apis/discovery.k8s.io/v1"
READS = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
PORT = {"name": "http", "port": 80, "protocol": "TCP"}
MADE_FOR_BOTH = ("ServiceAccount", "Service", "EndpointSlice", "Namespace", "Pod")
MADE = {
    ("api/v1", "configmaps", "settings"),
    ("api/v1", "secrets", "password"),
    ("api/v1", "serviceaccounts", "robot"),
    ("api/v1", "services", "web"),
    ("api/v1", "services", "kubernetes-upper"),
    (SLICES, "endpointslices", "web-1"),
    (SLICES, "endpointslices", "kubernetes-upper"),
    (RBAC, "roles", "reads"),
    (RBAC, "rolebindings", "reads"),
}
"""What has to exist in lower-a for the pod there, except its claim."""


def everything(file: Manifest) -> None:
    """Enable all controllers and a prefix; pods of lower-b have tokens of the upper cluster."""
    word = file["name"].removeprefix("e2e-")
    file["controllers"] = ["PV", "Service", "RBAC", "ServiceAccount"]
    file["lowerDefaults"] = {"namespaces": {"mapping": "prefix"}, "storageClasses": {f"goes-{word}": f"disk-{word}"}}
    file["upper"]["advertiseURL"] = "https://10.200.0.1:6443"
    for lower in file["lowers"]:
        if lower["name"] == B:
            lower["serviceAccounts"] = {"identity": "upper"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EngineHarness]:
    """Start an engine with everything enabled, with an upper class whose volumes are provisioned in lower-a."""
    async with running_engine(sandbox, tmp_path_factory.mktemp("ground"), everything) as harness:
        await harness.upper.create(CLASSES, shipped_class(class_name(harness, "goes")))
        async with serving(harness.sites[A], class_name(harness, "disk")):
            yield harness
            await harness.reload(everything)
            await harness.upper.delete(f"/api/v1/namespaces/{space_of(harness)}")
            await harness.upper.until_all(
                f"{VOLUMES}?labelSelector={OWNER}={harness.owner.mark}", lambda found: not found
            )
        await harness.upper.delete(f"{CLASSES}/{class_name(harness, 'goes')}")


def space_of(harness: EngineHarness) -> str:
    """Return the name of the upper namespace of the workload."""
    return f"{harness.namespace}-all"


def upper_path(harness: EngineHarness, plural: str, name: str = "", api: str = "api/v1") -> str:
    """Return a path in that namespace."""
    return harness.path(plural, name, api, space_of(harness))


def lower_path(harness: EngineHarness, plural: str, name: str = "", api: str = "api/v1") -> str:
    """Return a path in its lower namespace."""
    return harness.path(plural, name, api, f"{harness.namespace}-{space_of(harness)}")


async def has_all(harness: EngineHarness) -> None:
    """Create the upper workload: a pod for each lower, and all that they need."""
    space = space_of(harness)
    subjects = [{"kind": "ServiceAccount", "namespace": space, "name": "robot"}]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reads"}
    labels = {"kubernetes.io/service-name": "web"}
    claim_spec = {"storageClassName": class_name(harness, "goes"), "accessModes": ["ReadWriteOnce"]}
    claim_spec["resources"] = {"requests": {"storage": "1Gi"}}
    made: list[tuple[str, str, str, Manifest]] = [
        ("api/v1", "configmaps", "settings", {"data": {"key": "one"}}),
        ("api/v1", "secrets", "password", {"data": {"key": "b25l"}}),
        ("api/v1", "serviceaccounts", "robot", {}),
        (RBAC, "roles", "reads", {"rules": READS}),
        (RBAC, "rolebindings", "reads", {"roleRef": role, "subjects": subjects}),
        ("api/v1", "services", "web", {"spec": {"ports": [PORT]}}),
        ("api/v1", "persistentvolumeclaims", "data", {"spec": claim_spec}),
    ]
    for api, plural, name, body in made:
        await harness.upper.create(upper_path(harness, plural, api=api), {"metadata": {"name": name}, **body})
    endpoints = {"addressType": "IPv4", "endpoints": [{"addresses": ["10.9.0.1"]}], "ports": [PORT]}
    slices = upper_path(harness, "endpointslices", api=SLICES)
    await harness.upper.create(slices, {"metadata": {"name": "web-1", "labels": labels}, **endpoints})
    volumes: list[Manifest] = [
        {"name": "settings", "configMap": {"name": "settings"}},
        {"name": "password", "secret": {"secretName": "password"}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
    ]
    spec = {"serviceAccountName": "robot", "volumes": volumes}
    await harness.upper.create(upper_path(harness, "pods"), harness.pod("home", spec))
    await harness.upper.create(upper_path(harness, "pods"), harness.pod("away", {"serviceAccountName": "robot"}, B))


async def test_the_engine_makes_exactly_the_planned_changes_of_all_controllers(harness: EngineHarness) -> None:
    """Only the placeholder volume is not planned, because it depends on how the lower cluster provisions the claim."""
    await harness.make_namespace(UPPER, space_of(harness))
    await harness.upper.until(upper_path(harness, "configmaps", "kube-root-ca.crt"), bool)
    await harness.stop()
    await has_all(harness)
    document = await plan_json(harness, everything)
    expected = planned_changes(document)
    assert document["problems"] == []
    assert {one.kind for one in expected if one.cluster == A} >= {*MADE_FOR_BOTH, "Role", "RoleBinding"}
    assert {one.kind for one in expected if one.cluster == B} >= {*MADE_FOR_BOTH, "Secret"} - {"ServiceAccount"}
    await harness.mark_audit_logs()
    await harness.start(everything)
    for name in ("home", "away"):
        await harness.upper.until(upper_path(harness, "pods", name), is_ready)
    await harness.upper.until(upper_path(harness, "persistentvolumeclaims", "data"), is_bound)
    await harness.wait_idle()
    done = written_changes([one for one in await harness.writes() if one.subresource != "token"])
    assert expected <= done
    assert {(one.cluster, one.action, one.kind) for one in done - expected} <= {
        (UPPER, "create", "PersistentVolume"),
        (UPPER, "update", "PersistentVolume"),
        (UPPER, "update", "PersistentVolumeClaim"),
    }


async def test_names_in_copies_refer_to_the_prefixed_namespace_and_names_in_upper_objects_do_not(
    harness: EngineHarness,
) -> None:
    """Checked are subjects, slices, the volume's claim and a token's namespace; no unprefixed namespace is created."""
    site, there = harness.sites[A], f"{harness.namespace}-{space_of(harness)}"
    for api, plural, name in MADE:
        found = await site.until(lower_path(harness, plural, name, api), bool)
        assert found["metadata"]["labels"][OWNER] == harness.owner.mark
    binding = await site.read(lower_path(harness, "rolebindings", "reads", RBAC))
    assert binding["subjects"] == [{"kind": "ServiceAccount", "namespace": there, "name": "robot"}]
    one = await site.read(lower_path(harness, "endpointslices", "web-1", SLICES))
    assert one["metadata"]["labels"]["kubernetes.io/service-name"] == "web"
    assert [each["addresses"] for each in one["endpoints"]] == [["10.9.0.1"]]
    claim = await harness.upper.read(upper_path(harness, "persistentvolumeclaims", "data"))
    volume = await harness.upper.read(f"{VOLUMES}/{claim['spec']['volumeName']}")
    assert volume["spec"]["claimRef"]["namespace"] == space_of(harness)
    assert volume["metadata"]["annotations"][LOWER] == A
    assert is_bound(await site.read(lower_path(harness, "persistentvolumeclaims", "data")))
    pod = await harness.upper.read(upper_path(harness, "pods", "away"))
    secret = await harness.sites[B].read(lower_path(harness, "secrets", f"upper-token-{pod['metadata']['uid']}"))
    assert b64decode(secret["data"]["namespace"]).decode() == space_of(harness)
    for lower in (A, B):
        assert await harness.sites[lower].read(f"/api/v1/namespaces/{space_of(harness)}") == {}


async def test_upper_changes_of_each_kind_are_carried_down_and_leave_an_empty_plan(harness: EngineHarness) -> None:
    """ConfigMap, Service, EndpointSlice, Role, account and claim are changed."""
    changes: list[tuple[str, str, str, Manifest, Any]] = [
        ("api/v1", "configmaps", "settings", {"data": {"key": "two"}}, lambda one: one["data"] == {"key": "two"}),
        ("api/v1", "services", "web", {"spec": {"ports": [{**PORT, "port": 81}]}}, _has_port(81)),
        (SLICES, "endpointslices", "web-1", {"ports": [{**PORT, "port": 81}]}, _leads_to(81)),
        (RBAC, "roles", "reads", {"rules": []}, lambda one: not one.get("rules")),
        ("api/v1", "serviceaccounts", "robot", {"metadata": {"labels": {"team": "blue"}}}, _is_blue),
        ("api/v1", "persistentvolumeclaims", "data", {"metadata": {"labels": {"team": "blue"}}}, _is_blue),
    ]
    for api, plural, name, body, holds in changes:
        await harness.upper.patch(upper_path(harness, plural, name, api), body)
        await harness.sites[A].until(lower_path(harness, plural, name, api), holds)
    await harness.wait_idle()
    document = await plan_json(harness, everything)
    assert (document["changes"], document["problems"]) == ([], [])


def _has_port(port: int) -> Any:
    return lambda one: one["spec"]["ports"][0]["port"] == port


def _leads_to(port: int) -> Any:
    return lambda one: one["ports"][0]["port"] == port


def _is_blue(found: Manifest) -> bool:
    return bool(found["metadata"]["labels"].get("team") == "blue")


async def test_a_removed_lower_loses_all_copies_but_claims(harness: EngineHarness) -> None:
    """Accounts, rights, Services and other copies are deleted after its pods, and the claim keeps its data."""
    site = harness.sites[A]
    await harness.reload(everything, without_lower(A))
    await harness.upper.delete(upper_path(harness, "pods", "home"))
    await harness.upper.gone(upper_path(harness, "pods", "home"), f"/api/v1/nodes/{harness.nodes[A]}")
    await site.gone(*(lower_path(harness, plural, name, api) for api, plural, name in MADE))
    assert is_bound(await site.read(lower_path(harness, "persistentvolumeclaims", "data")))
    await harness.reload(everything)
    await harness.wait_for_node(harness.nodes[A])


async def test_a_lower_namespace_is_kept_if_another_client_has_a_service_in_it(harness: EngineHarness) -> None:
    """The upper namespace is deleted; the lower one is deleted in lower-a, where it is empty, and kept in lower-b."""
    space = f"/api/v1/namespaces/{harness.namespace}-{space_of(harness)}"
    theirs = lower_path(harness, "services", "theirs")
    await harness.sites[B].create(
        lower_path(harness, "services"), {"metadata": {"name": "theirs"}, "spec": {"ports": [PORT]}}
    )
    before = await harness.sites[B].read(theirs)
    await harness.upper.delete(f"/api/v1/namespaces/{space_of(harness)}")
    await harness.sites[A].until(space, lambda one: not one or "deletionTimestamp" in one["metadata"])
    await harness.sites[B].gone(lower_path(harness, "serviceaccounts", "robot"), lower_path(harness, "services", "web"))
    await harness.wait_idle()
    assert "deletionTimestamp" not in (await harness.sites[B].read(space))["metadata"]
    assert await harness.sites[B].read(theirs) == before
    await harness.sites[B].delete(theirs)
