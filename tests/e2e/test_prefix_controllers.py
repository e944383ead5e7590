"""Tests of all controllers with prefixed namespaces: their objects are planned, created, updated and deleted."""

from base64 import b64decode
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from enginekit import UPPER, A, B, Ground, standing, without_lower
from plankit import done_by, planned, said
from provisionkit import CLASSES, VOLUMES, serving
from sitekit import Manifest, is_ready
from storekit import is_bound, mark, shipped

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
async def ground(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    """Start an engine with everything enabled, with an upper class whose volumes are provisioned in lower-a."""
    async with standing(sandbox, tmp_path_factory.mktemp("ground"), everything) as made:
        await made.upper.create(CLASSES, shipped(mark(made, "goes")))
        async with serving(made.sites[A], mark(made, "disk")):
            yield made
            await made.reload(everything)
            await made.upper.delete(f"/api/v1/namespaces/{space_of(made)}")
            await made.upper.until_all(f"{VOLUMES}?labelSelector={OWNER}={made.owner.mark}", lambda found: not found)
        await made.upper.delete(f"{CLASSES}/{mark(made, 'goes')}")


def space_of(ground: Ground) -> str:
    """Return the name of the upper namespace of the workload."""
    return f"{ground.namespace}-all"


def above(ground: Ground, plural: str, name: str = "", api: str = "api/v1") -> str:
    """Return a path in that namespace."""
    return ground.path(plural, name, api, space_of(ground))


def below(ground: Ground, plural: str, name: str = "", api: str = "api/v1") -> str:
    """Return a path in its lower namespace."""
    return ground.path(plural, name, api, f"{ground.namespace}-{space_of(ground)}")


async def has_all(ground: Ground) -> None:
    """Create the upper workload: a pod for each lower, and all that they need."""
    space = space_of(ground)
    subjects = [{"kind": "ServiceAccount", "namespace": space, "name": "robot"}]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reads"}
    labels = {"kubernetes.io/service-name": "web"}
    asked = {"storageClassName": mark(ground, "goes"), "accessModes": ["ReadWriteOnce"]}
    asked["resources"] = {"requests": {"storage": "1Gi"}}
    made: list[tuple[str, str, str, Manifest]] = [
        ("api/v1", "configmaps", "settings", {"data": {"key": "one"}}),
        ("api/v1", "secrets", "password", {"data": {"key": "b25l"}}),
        ("api/v1", "serviceaccounts", "robot", {}),
        (RBAC, "roles", "reads", {"rules": READS}),
        (RBAC, "rolebindings", "reads", {"roleRef": role, "subjects": subjects}),
        ("api/v1", "services", "web", {"spec": {"ports": [PORT]}}),
        ("api/v1", "persistentvolumeclaims", "data", {"spec": asked}),
    ]
    for api, plural, name, body in made:
        await ground.upper.create(above(ground, plural, api=api), {"metadata": {"name": name}, **body})
    endpoints = {"addressType": "IPv4", "endpoints": [{"addresses": ["10.9.0.1"]}], "ports": [PORT]}
    slices = above(ground, "endpointslices", api=SLICES)
    await ground.upper.create(slices, {"metadata": {"name": "web-1", "labels": labels}, **endpoints})
    volumes: list[Manifest] = [
        {"name": "settings", "configMap": {"name": "settings"}},
        {"name": "password", "secret": {"secretName": "password"}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
    ]
    spec = {"serviceAccountName": "robot", "volumes": volumes}
    await ground.upper.create(above(ground, "pods"), ground.pod("home", spec))
    await ground.upper.create(above(ground, "pods"), ground.pod("away", {"serviceAccountName": "robot"}, B))


async def test_the_engine_makes_exactly_the_planned_changes_of_all_controllers(ground: Ground) -> None:
    """Only the placeholder volume is not planned, because it depends on how the lower cluster provisions the claim."""
    await ground.make_namespace(UPPER, space_of(ground))
    await ground.upper.until(above(ground, "configmaps", "kube-root-ca.crt"), bool)
    await ground.stop()
    await has_all(ground)
    document = await planned(ground, everything)
    expected = said(document)
    assert document["problems"] == []
    assert {one.kind for one in expected if one.cluster == A} >= {*MADE_FOR_BOTH, "Role", "RoleBinding"}
    assert {one.kind for one in expected if one.cluster == B} >= {*MADE_FOR_BOTH, "Secret"} - {"ServiceAccount"}
    await ground.note()
    await ground.start(everything)
    for name in ("home", "away"):
        await ground.upper.until(above(ground, "pods", name), is_ready)
    await ground.upper.until(above(ground, "persistentvolumeclaims", "data"), is_bound)
    await ground.calm()
    done = done_by([one for one in await ground.writes() if one.subresource != "token"])
    assert expected <= done
    assert {(one.cluster, one.action, one.kind) for one in done - expected} <= {
        (UPPER, "create", "PersistentVolume"),
        (UPPER, "update", "PersistentVolume"),
        (UPPER, "update", "PersistentVolumeClaim"),
    }


async def test_names_in_copies_refer_to_the_prefixed_namespace_and_names_in_upper_objects_do_not(
    ground: Ground,
) -> None:
    """Checked are subjects, slices, the volume's claim and a token's namespace; no unprefixed namespace is created."""
    site, there = ground.sites[A], f"{ground.namespace}-{space_of(ground)}"
    for api, plural, name in MADE:
        found = await site.until(below(ground, plural, name, api), bool)
        assert found["metadata"]["labels"][OWNER] == ground.owner.mark
    binding = await site.read(below(ground, "rolebindings", "reads", RBAC))
    assert binding["subjects"] == [{"kind": "ServiceAccount", "namespace": there, "name": "robot"}]
    one = await site.read(below(ground, "endpointslices", "web-1", SLICES))
    assert one["metadata"]["labels"]["kubernetes.io/service-name"] == "web"
    assert [each["addresses"] for each in one["endpoints"]] == [["10.9.0.1"]]
    claim = await ground.upper.read(above(ground, "persistentvolumeclaims", "data"))
    volume = await ground.upper.read(f"{VOLUMES}/{claim['spec']['volumeName']}")
    assert volume["spec"]["claimRef"]["namespace"] == space_of(ground)
    assert volume["metadata"]["annotations"][LOWER] == A
    assert is_bound(await site.read(below(ground, "persistentvolumeclaims", "data")))
    pod = await ground.upper.read(above(ground, "pods", "away"))
    secret = await ground.sites[B].read(below(ground, "secrets", f"upper-token-{pod['metadata']['uid']}"))
    assert b64decode(secret["data"]["namespace"]).decode() == space_of(ground)
    for lower in (A, B):
        assert await ground.sites[lower].read(f"/api/v1/namespaces/{space_of(ground)}") == {}


async def test_upper_changes_of_each_kind_are_carried_down_and_leave_an_empty_plan(ground: Ground) -> None:
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
        await ground.upper.patch(above(ground, plural, name, api), body)
        await ground.sites[A].until(below(ground, plural, name, api), holds)
    await ground.calm()
    document = await planned(ground, everything)
    assert (document["changes"], document["problems"]) == ([], [])


def _has_port(port: int) -> Any:
    return lambda one: one["spec"]["ports"][0]["port"] == port


def _leads_to(port: int) -> Any:
    return lambda one: one["ports"][0]["port"] == port


def _is_blue(found: Manifest) -> bool:
    return bool(found["metadata"]["labels"].get("team") == "blue")


async def test_a_removed_lower_loses_all_copies_but_claims(ground: Ground) -> None:
    """Accounts, rights, Services and other copies are deleted after its pods, and the claim keeps its data."""
    site = ground.sites[A]
    await ground.reload(everything, without_lower(A))
    await ground.upper.delete(above(ground, "pods", "home"))
    await ground.upper.gone(above(ground, "pods", "home"), f"/api/v1/nodes/{ground.nodes[A]}")
    await site.gone(*(below(ground, plural, name, api) for api, plural, name in MADE))
    assert is_bound(await site.read(below(ground, "persistentvolumeclaims", "data")))
    await ground.reload(everything)
    await ground.usable(ground.nodes[A])


async def test_a_lower_namespace_is_kept_if_another_client_has_a_service_in_it(ground: Ground) -> None:
    """The upper namespace is deleted; the lower one is deleted in lower-a, where it is empty, and kept in lower-b."""
    space = f"/api/v1/namespaces/{ground.namespace}-{space_of(ground)}"
    theirs = below(ground, "services", "theirs")
    await ground.sites[B].create(below(ground, "services"), {"metadata": {"name": "theirs"}, "spec": {"ports": [PORT]}})
    before = await ground.sites[B].read(theirs)
    await ground.upper.delete(f"/api/v1/namespaces/{space_of(ground)}")
    await ground.sites[A].until(space, lambda one: not one or "deletionTimestamp" in one["metadata"])
    await ground.sites[B].gone(below(ground, "serviceaccounts", "robot"), below(ground, "services", "web"))
    await ground.calm()
    assert "deletionTimestamp" not in (await ground.sites[B].read(space))["metadata"]
    assert await ground.sites[B].read(theirs) == before
    await ground.sites[B].delete(theirs)
