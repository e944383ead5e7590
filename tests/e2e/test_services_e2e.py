"""Tests of Services on real clusters: copies have the upper cluster's endpoints, and no other object is touched."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from enginekit import UPPER, A, B, Ground, standing, with_fields
from sitekit import Manifest, is_ready

from tensile.names import OWNER
from tensile.reconcile.rules.endpoint_slices import KEPT_ENDPOINT
from tensile.reconcile.rules.services import SPEC, alias_service
from tensile.reconcile.world import UpperServer
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

SLICES = "apis/discovery.k8s.io/v1"
GATE = "example.com/open"
ADVERTISED = {"kubeconfig": "upper.kubeconfig", "advertiseURL": "https://10.200.0.1:6443"}
READY_IN = 30.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ground(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    """Start an engine with an advertised URL of the upper cluster, and a pod in each lower."""
    async with standing(sandbox, tmp_path_factory.mktemp("ground"), with_fields(upper=ADVERTISED)) as made:
        for name, lower in (("first", A), ("second", B)):
            await made.bind(name, {"readinessGates": [{"conditionType": GATE}]}, lower, labels={"app": "web"})
            await made.upper.until(made.pod_path(name), lambda one: bool(one.get("status", {}).get("podIP")))
            await opened(made, name)
        yield made


async def opened(ground: Ground, pod: str, status: str = "True") -> Manifest:
    """Set the pod's readiness gate, and wait until the pod is ready, or not ready any more."""
    body = {"status": {"conditions": [{"type": GATE, "status": status}]}}
    await ground.upper.patch(ground.pod_path(pod) + "/status", body, "strategic")
    return await ground.upper.until(ground.pod_path(pod), lambda one: is_ready(one) == (status == "True"))


async def made(ground: Ground, name: str, cluster: str = UPPER, namespace: str = "", **spec: Any) -> Manifest:
    """Create a Service of the app's pods; fields that are None are left out."""
    basis = {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}
    fields = {key: value for key, value in {**basis, **spec}.items() if value is not None}
    body = {"metadata": {"name": name, "labels": {"team": "blue"}, "annotations": {"note": "above"}}, "spec": fields}
    return await ground.sites[cluster].create(ground.path("services", namespace=namespace), body)


def slices_path(ground: Ground, service: str) -> str:
    """Return the path of a Service's EndpointSlices."""
    return ground.path("endpointslices", api=SLICES) + f"?labelSelector=kubernetes.io/service-name={service}"


def endpoints(found: dict[str, Manifest]) -> list[tuple[str, bool]]:
    """Return the endpoints of slices: address and readiness."""
    every = [one for each in found.values() for one in each.get("endpoints") or ()]
    return sorted((address, one["conditions"]["ready"]) for one in every for address in one["addresses"])


async def in_step(ground: Ground, service: str, lower: str, count: int, limit: float = 20.0) -> dict[str, Manifest]:
    """Wait until the lower slices have the same endpoints as the upper ones, and return the lower slices."""
    above = await ground.upper.until_all(slices_path(ground, service), lambda one: len(endpoints(one)) == count)
    told = endpoints(above)
    return await ground.sites[lower].until_all(
        slices_path(ground, service), lambda one: endpoints(one) == told and set(one) == set(above), limit
    )


async def test_every_field_of_a_service_is_classified(ground: Ground) -> None:
    """A field of Kubernetes that is missing in the table has to be added; endpoints keep all fields but known ones."""
    core = (await ground.upper.call("GET", "/openapi/v3/api/v1"))["components"]["schemas"]
    assert set(core["io.k8s.api.core.v1.ServiceSpec"]["properties"]) == set(SPEC)
    slices = (await ground.upper.call("GET", "/openapi/v3/apis/discovery.k8s.io/v1"))["components"]["schemas"]
    left_above = {"deprecatedTopology", "hints", "nodeName", "targetRef", "zone"}
    assert set(slices["io.k8s.api.discovery.v1.Endpoint"]["properties"]) - left_above == set(KEPT_ENDPOINT)


async def test_a_service_is_copied_to_every_lower_with_pods_of_its_namespace(ground: Ground) -> None:
    """It has an address of that cluster, no selector, node port or annotation, and endpoints of all clusters."""
    above = await made(ground, "web", type="NodePort", sessionAffinity="ClientIP")
    for lower in (A, B):
        found = await ground.sites[lower].until(ground.path("services", "web"), bool)
        assert found["spec"]["type"] == "ClusterIP"
        assert found["spec"]["clusterIP"].startswith("10.")
        assert "selector" not in found["spec"]
        assert found["spec"]["ports"] == [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}]
        assert found["spec"]["sessionAffinityConfig"] == above["spec"]["sessionAffinityConfig"]
        assert found["metadata"]["labels"] == {"team": "blue", OWNER: ground.owner.mark}
        assert "note" not in found["metadata"]["annotations"]
        slices = await in_step(ground, "web", lower, 2)
        (one,) = slices.values()
        assert one["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] == "tensile-kube.io"
        assert one["metadata"]["ownerReferences"][0]["uid"] == found["metadata"]["uid"]
        assert all(set(each) == {"addresses", "conditions"} for each in one["endpoints"])
        assert one["ports"] == [{"name": "http", "port": 8080, "protocol": "TCP"}]


async def test_the_readiness_of_endpoints_is_mirrored_to_every_lower(ground: Ground) -> None:
    """This includes a pod that runs in another lower, because the upper cluster's readiness is used."""
    for status, ready in (("False", 1), ("True", 2)):
        await opened(ground, "second", status)
        await ground.upper.until_all(
            slices_path(ground, "web"), lambda one, n=ready: sum(dict(endpoints(one)).values()) == n
        )
        for lower in (A, B):
            found = await in_step(ground, "web", lower, 2, READY_IN)
            assert sum(ready for _, ready in endpoints(found)) == ready


async def test_headless_external_name_dual_stack_and_selectorless_services_are_copied(ground: Ground) -> None:
    """Addresses of pods that are not ready and slices that a user writes are copied too."""
    await made(ground, "headless", clusterIP="None", publishNotReadyAddresses=True)
    await made(ground, "both", clusterIP="None", selector=None, ipFamilyPolicy="RequireDualStack")
    await made(ground, "elsewhere", type="ExternalName", externalName="example.com", selector=None, ports=None)
    await made(ground, "dual", ipFamilyPolicy="PreferDualStack")
    port = {"port": 5432, "appProtocol": "example.com/db"}
    await made(ground, "by-hand", selector=None, ports=[port])
    body = {
        "metadata": {"name": "by-hand-1", "labels": {"kubernetes.io/service-name": "by-hand"}},
        "addressType": "IPv6",
        "endpoints": [{"addresses": ["fd00::7"], "hostname": "db-0", "conditions": {"ready": True}}],
        "ports": [port],
    }
    await ground.upper.create(ground.path("endpointslices", api=SLICES), body)
    site = ground.sites[A]
    found = {name: await site.until(ground.path("services", name), bool) for name in ("headless", "both", "elsewhere")}
    assert found["headless"]["spec"]["clusterIP"] == "None"
    assert found["headless"]["spec"]["publishNotReadyAddresses"] is True
    assert found["both"]["spec"]["ipFamilies"] == ["IPv4", "IPv6"]
    assert (found["elsewhere"]["spec"]["type"], found["elsewhere"]["spec"]["externalName"]) == (
        "ExternalName",
        "example.com",
    )
    dual = await site.until(ground.path("services", "dual"), bool)
    assert dual["spec"]["ipFamilyPolicy"] == "PreferDualStack"
    slices = await in_step(ground, "by-hand", A, 1)
    assert slices["by-hand-1"]["endpoints"][0]["hostname"] == "db-0"
    assert slices["by-hand-1"]["ports"][0]["appProtocol"] == "example.com/db"
    (headless,) = (await in_step(ground, "headless", A, 2)).values()
    assert "service.kubernetes.io/headless" in headless["metadata"]["labels"]


async def test_changes_of_a_service_are_carried_down(ground: Ground) -> None:
    """Ports and type follow; the lower address stays unless the type requires its removal."""
    site, path = ground.sites[A], ground.path("services", "dual")
    before = await site.read(path)
    await ground.upper.patch(path, {"spec": {"ports": [{"name": "other", "port": 81}]}})
    found = await site.until(path, lambda one: one["spec"]["ports"][0]["port"] == 81)
    assert found["spec"]["clusterIP"] == before["spec"]["clusterIP"]
    named = {"type": "ExternalName", "externalName": "a.example", "clusterIP": None, "clusterIPs": None}
    await ground.upper.patch(path, {"spec": named})
    found = await site.until(path, lambda one: one["spec"]["type"] == "ExternalName")
    assert (found["metadata"]["uid"], found["spec"].get("clusterIP")) == (before["metadata"]["uid"], None)
    await ground.upper.patch(path, {"spec": {"type": "ClusterIP", "externalName": None, "clusterIP": "None"}})
    found = await site.until(path, lambda one: one["spec"]["type"] == "ClusterIP")
    assert found["spec"]["clusterIP"] == "None"


async def test_a_name_that_another_owners_service_has_is_reported_and_not_touched(ground: Ground) -> None:
    """The Service gets no endpoints of the engine, and is replaced by the copy once it is deleted."""
    taken = await made(ground, "taken", A, selector={"app": "other"})
    above = await made(ground, "taken")
    assert "has another owner" in await ground.told(above, "NameConflict")
    await in_step(ground, "taken", B, 2)
    assert (await ground.sites[A].read(ground.path("services", "taken"))) == taken
    found = await ground.sites[A].until_all(slices_path(ground, "taken"), bool)
    assert not any(OWNER in one["metadata"]["labels"] for one in found.values())
    await ground.sites[A].delete(ground.path("services", "taken"))
    await in_step(ground, "taken", A, 2)


async def test_lower_changes_of_a_service_and_its_slices_are_reverted(ground: Ground) -> None:
    """Type, labels, endpoints and deleted slices are restored.

    A copy that got a selector is created again, because Kubernetes writes slices for it.
    """
    site, path = ground.sites[A], ground.path("services", "web")
    before = await site.read(path)
    await site.patch(
        path, {"spec": {"externalIPs": ["1.2.3.4"], "type": "NodePort"}, "metadata": {"labels": {"team": "red"}}}
    )
    await site.until(path, lambda one: one["spec"]["type"] == "ClusterIP" and "externalIPs" not in one["spec"])
    found = await site.until(path, lambda one: one["metadata"]["labels"]["team"] == "blue")
    assert found["metadata"]["uid"] == before["metadata"]["uid"]
    (name,) = await in_step(ground, "web", A, 2)
    await site.patch(ground.path("endpointslices", name, api=SLICES), {"endpoints": []})
    await in_step(ground, "web", A, 2)
    await site.delete(ground.path("endpointslices", name, api=SLICES))
    await in_step(ground, "web", A, 2)
    await site.patch(path, {"spec": {"selector": {"app": "web"}}})
    found = await site.until(path, lambda one: one and one["metadata"]["uid"] != before["metadata"]["uid"])
    assert "selector" not in found["spec"]
    slices = await in_step(ground, "web", A, 2)
    assert slices[name]["metadata"]["ownerReferences"][0]["uid"] == found["metadata"]["uid"]


async def test_slices_that_kubernetes_creates_from_lower_endpoints_are_not_touched(ground: Ground) -> None:
    """A user's Endpoints object for a copy gets a slice of Kubernetes, which stays beside those of the engine."""
    site = ground.sites[A]
    body = {
        "metadata": {"name": "web"},
        "subsets": [{"addresses": [{"ip": "10.9.9.9"}], "ports": [{"name": "http", "port": 8080}]}],
    }
    await site.create(ground.path("endpoints"), body)
    foreign = await site.until_all(slices_path(ground, "web"), lambda one: len(one) == 2)
    await opened(ground, "first", "False")
    await opened(ground, "first")
    await ground.calm()
    after = await site.until_all(slices_path(ground, "web"), bool)
    theirs = [name for name, one in foreign.items() if OWNER not in one["metadata"]["labels"]]
    assert theirs
    assert [after[name]["metadata"] for name in theirs] == [foreign[name]["metadata"] for name in theirs]
    await site.delete(ground.path("endpoints", "web"))
    await in_step(ground, "web", A, 2)


async def test_the_alias_service_has_the_advertised_address_of_the_upper_cluster(ground: Ground) -> None:
    """It exists in each namespace with pods."""
    for lower in (A, B):
        found = await ground.sites[lower].until(ground.path("services", "kubernetes-upper"), bool)
        assert [(one["port"], one["targetPort"]) for one in found["spec"]["ports"]] == [(443, 6443)]
        slices = await ground.sites[lower].until_all(slices_path(ground, "kubernetes-upper"), bool)
        assert endpoints(slices) == [("10.200.0.1", True)]
        assert slices["kubernetes-upper"]["ports"] == [{"name": "https", "port": 6443, "protocol": "TCP"}]


async def test_an_alias_for_a_host_name_is_an_external_name_service(ground: Ground) -> None:
    """A host name cannot be an endpoint, and Kubernetes accepts this Service."""
    body = alias_service(UpperServer("api.example.com", 6443), "by-name", ground.owner, ground.namespace)
    assert body
    found = await ground.sites[A].create(ground.path("services") + "?dryRun=All", body)
    assert found["spec"]["externalName"] == "api.example.com"


async def test_services_of_kube_system_are_copied_only_if_enabled(ground: Ground) -> None:
    """They are deleted again when `services.kubeSystem` is disabled."""
    name, site = f"s-{ground.mark}", ground.sites[A]
    path = ground.path("services", name, namespace="kube-system")
    await made(ground, name, namespace="kube-system")
    await ground.calm()
    assert not await site.read(path)
    await ground.reload(with_fields(upper=ADVERTISED, services={"kubeSystem": True}))
    await site.until(path, bool)
    await ground.reload(with_fields(upper=ADVERTISED))
    await site.gone(path)
    await ground.upper.delete(path)


async def test_a_service_that_is_deleted_is_deleted_in_every_lower(ground: Ground) -> None:
    """Its slices are deleted with it."""
    await ground.upper.delete(ground.path("services", "web"))
    for lower in (A, B):
        await ground.sites[lower].gone(ground.path("services", "web"))
        await ground.sites[lower].until_all(slices_path(ground, "web"), lambda one: not one)


async def test_copies_of_services_are_deleted_with_the_last_pod_after_the_controller_is_disabled(
    ground: Ground,
) -> None:
    """The other lower, which still has a pod, keeps its copies and follows the endpoints."""
    ours = [ground.path(plural, api=api) for plural, api in (("services", "api/v1"), ("endpointslices", SLICES))]
    await ground.reload(with_fields(upper=ADVERTISED, controllers=[]))
    await ground.calm()
    await in_step(ground, "headless", B, 2)
    await ground.upper.delete(ground.pod_path("second"), 0)
    for path in ours:
        await ground.sites[B].until_all(f"{path}?labelSelector={OWNER}={ground.owner.mark}", lambda one: not one)
    await in_step(ground, "headless", A, 1)
