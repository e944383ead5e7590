"""Tests of Services on real clusters: copies have the upper cluster's endpoints, and no other object is touched."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from enginekit import UPPER, A, B, EngineHarness, running_engine, with_fields
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
async def harness(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EngineHarness]:
    """Start an engine with an advertised URL of the upper cluster, and a pod in each lower."""
    async with running_engine(sandbox, tmp_path_factory.mktemp("ground"), with_fields(upper=ADVERTISED)) as harness:
        for name, lower in (("first", A), ("second", B)):
            await harness.bind(name, {"readinessGates": [{"conditionType": GATE}]}, lower, labels={"app": "web"})
            await harness.upper.until(harness.pod_path(name), lambda one: bool(one.get("status", {}).get("podIP")))
            await opened(harness, name)
        yield harness


async def opened(harness: EngineHarness, pod: str, status: str = "True") -> Manifest:
    """Set the pod's readiness gate, and wait until the pod is ready, or not ready any more."""
    body = {"status": {"conditions": [{"type": GATE, "status": status}]}}
    await harness.upper.patch(harness.pod_path(pod) + "/status", body, "strategic")
    return await harness.upper.until(harness.pod_path(pod), lambda one: is_ready(one) == (status == "True"))


async def made(harness: EngineHarness, name: str, cluster: str = UPPER, namespace: str = "", **spec: Any) -> Manifest:
    """Create a Service of the app's pods; fields that are None are left out."""
    basis = {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}
    fields = {key: value for key, value in {**basis, **spec}.items() if value is not None}
    body = {"metadata": {"name": name, "labels": {"team": "blue"}, "annotations": {"note": "above"}}, "spec": fields}
    return await harness.sites[cluster].create(harness.path("services", namespace=namespace), body)


def slices_path(harness: EngineHarness, service: str) -> str:
    """Return the path of a Service's EndpointSlices."""
    return harness.path("endpointslices", api=SLICES) + f"?labelSelector=kubernetes.io/service-name={service}"


def endpoints(found: dict[str, Manifest]) -> list[tuple[str, bool]]:
    """Return the endpoints of slices: address and readiness."""
    every = [one for each in found.values() for one in each.get("endpoints") or ()]
    return sorted((address, one["conditions"]["ready"]) for one in every for address in one["addresses"])


async def in_step(
    harness: EngineHarness, service: str, lower: str, count: int, limit: float = 20.0
) -> dict[str, Manifest]:
    """Wait until the lower slices have the same endpoints as the upper ones, and return the lower slices."""
    upper_object = await harness.upper.until_all(
        slices_path(harness, service), lambda one: len(endpoints(one)) == count
    )
    upper_endpoints = endpoints(upper_object)
    return await harness.sites[lower].until_all(
        slices_path(harness, service),
        lambda one: endpoints(one) == upper_endpoints and set(one) == set(upper_object),
        limit,
    )


async def test_every_field_of_a_service_is_classified(harness: EngineHarness) -> None:
    """A field of Kubernetes that is missing in the table has to be added; endpoints keep all fields but known ones."""
    core = (await harness.upper.call("GET", "/openapi/v3/api/v1"))["components"]["schemas"]
    assert set(core["io.k8s.api.core.v1.ServiceSpec"]["properties"]) == set(SPEC)
    slices = (await harness.upper.call("GET", "/openapi/v3/apis/discovery.k8s.io/v1"))["components"]["schemas"]
    left_above = {"deprecatedTopology", "hints", "nodeName", "targetRef", "zone"}
    assert set(slices["io.k8s.api.discovery.v1.Endpoint"]["properties"]) - left_above == set(KEPT_ENDPOINT)


async def test_a_service_is_copied_to_every_lower_with_pods_of_its_namespace(harness: EngineHarness) -> None:
    """It has an address of that cluster, no selector, node port or annotation, and endpoints of all clusters."""
    upper_object = await made(harness, "web", type="NodePort", sessionAffinity="ClientIP")
    for lower in (A, B):
        found = await harness.sites[lower].until(harness.path("services", "web"), bool)
        assert found["spec"]["type"] == "ClusterIP"
        assert found["spec"]["clusterIP"].startswith("10.")
        assert "selector" not in found["spec"]
        assert found["spec"]["ports"] == [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}]
        assert found["spec"]["sessionAffinityConfig"] == upper_object["spec"]["sessionAffinityConfig"]
        assert found["metadata"]["labels"] == {"team": "blue", OWNER: harness.owner.mark}
        assert "note" not in found["metadata"]["annotations"]
        slices = await in_step(harness, "web", lower, 2)
        (one,) = slices.values()
        assert one["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] == "tensile-kube.io"
        assert one["metadata"]["ownerReferences"][0]["uid"] == found["metadata"]["uid"]
        assert all(set(each) == {"addresses", "conditions"} for each in one["endpoints"])
        assert one["ports"] == [{"name": "http", "port": 8080, "protocol": "TCP"}]


async def test_the_readiness_of_endpoints_is_mirrored_to_every_lower(harness: EngineHarness) -> None:
    """This includes a pod that runs in another lower, because the upper cluster's readiness is used."""
    for status, ready in (("False", 1), ("True", 2)):
        await opened(harness, "second", status)
        await harness.upper.until_all(
            slices_path(harness, "web"), lambda one, n=ready: sum(dict(endpoints(one)).values()) == n
        )
        for lower in (A, B):
            found = await in_step(harness, "web", lower, 2, READY_IN)
            assert sum(ready for _, ready in endpoints(found)) == ready


async def test_headless_external_name_dual_stack_and_selectorless_services_are_copied(harness: EngineHarness) -> None:
    """Addresses of pods that are not ready and slices that a user writes are copied too."""
    await made(harness, "headless", clusterIP="None", publishNotReadyAddresses=True)
    await made(harness, "both", clusterIP="None", selector=None, ipFamilyPolicy="RequireDualStack")
    await made(harness, "elsewhere", type="ExternalName", externalName="example.com", selector=None, ports=None)
    await made(harness, "dual", ipFamilyPolicy="PreferDualStack")
    port = {"port": 5432, "appProtocol": "example.com/db"}
    await made(harness, "by-hand", selector=None, ports=[port])
    body = {
        "metadata": {"name": "by-hand-1", "labels": {"kubernetes.io/service-name": "by-hand"}},
        "addressType": "IPv6",
        "endpoints": [{"addresses": ["fd00::7"], "hostname": "db-0", "conditions": {"ready": True}}],
        "ports": [port],
    }
    await harness.upper.create(harness.path("endpointslices", api=SLICES), body)
    site = harness.sites[A]
    found = {name: await site.until(harness.path("services", name), bool) for name in ("headless", "both", "elsewhere")}
    assert found["headless"]["spec"]["clusterIP"] == "None"
    assert found["headless"]["spec"]["publishNotReadyAddresses"] is True
    assert found["both"]["spec"]["ipFamilies"] == ["IPv4", "IPv6"]
    assert (found["elsewhere"]["spec"]["type"], found["elsewhere"]["spec"]["externalName"]) == (
        "ExternalName",
        "example.com",
    )
    dual = await site.until(harness.path("services", "dual"), bool)
    assert dual["spec"]["ipFamilyPolicy"] == "PreferDualStack"
    slices = await in_step(harness, "by-hand", A, 1)
    assert slices["by-hand-1"]["endpoints"][0]["hostname"] == "db-0"
    assert slices["by-hand-1"]["ports"][0]["appProtocol"] == "example.com/db"
    (headless,) = (await in_step(harness, "headless", A, 2)).values()
    assert "service.kubernetes.io/headless" in headless["metadata"]["labels"]


async def test_changes_of_a_service_are_carried_down(harness: EngineHarness) -> None:
    """Ports and type follow; the lower address stays unless the type requires its removal."""
    site, path = harness.sites[A], harness.path("services", "dual")
    before = await site.read(path)
    await harness.upper.patch(path, {"spec": {"ports": [{"name": "other", "port": 81}]}})
    found = await site.until(path, lambda one: one["spec"]["ports"][0]["port"] == 81)
    assert found["spec"]["clusterIP"] == before["spec"]["clusterIP"]
    named = {"type": "ExternalName", "externalName": "a.example", "clusterIP": None, "clusterIPs": None}
    await harness.upper.patch(path, {"spec": named})
    found = await site.until(path, lambda one: one["spec"]["type"] == "ExternalName")
    assert (found["metadata"]["uid"], found["spec"].get("clusterIP")) == (before["metadata"]["uid"], None)
    await harness.upper.patch(path, {"spec": {"type": "ClusterIP", "externalName": None, "clusterIP": "None"}})
    found = await site.until(path, lambda one: one["spec"]["type"] == "ClusterIP")
    assert found["spec"]["clusterIP"] == "None"


async def test_a_name_that_another_owners_service_has_is_reported_and_not_touched(harness: EngineHarness) -> None:
    """The Service gets no endpoints of the engine, and is replaced by the copy once it is deleted."""
    taken = await made(harness, "taken", A, selector={"app": "other"})
    upper_object = await made(harness, "taken")
    assert "has another owner" in await harness.wait_for_event(upper_object, "NameConflict")
    await in_step(harness, "taken", B, 2)
    assert (await harness.sites[A].read(harness.path("services", "taken"))) == taken
    found = await harness.sites[A].until_all(slices_path(harness, "taken"), bool)
    assert not any(OWNER in one["metadata"]["labels"] for one in found.values())
    await harness.sites[A].delete(harness.path("services", "taken"))
    await in_step(harness, "taken", A, 2)


async def test_lower_changes_of_a_service_and_its_slices_are_reverted(harness: EngineHarness) -> None:
    """Type, labels, endpoints and deleted slices are restored.

    A copy that got a selector is created again, because Kubernetes writes slices for it.
    """
    site, path = harness.sites[A], harness.path("services", "web")
    before = await site.read(path)
    await site.patch(
        path, {"spec": {"externalIPs": ["1.2.3.4"], "type": "NodePort"}, "metadata": {"labels": {"team": "red"}}}
    )
    await site.until(path, lambda one: one["spec"]["type"] == "ClusterIP" and "externalIPs" not in one["spec"])
    found = await site.until(path, lambda one: one["metadata"]["labels"]["team"] == "blue")
    assert found["metadata"]["uid"] == before["metadata"]["uid"]
    (name,) = await in_step(harness, "web", A, 2)
    await site.patch(harness.path("endpointslices", name, api=SLICES), {"endpoints": []})
    await in_step(harness, "web", A, 2)
    await site.delete(harness.path("endpointslices", name, api=SLICES))
    await in_step(harness, "web", A, 2)
    await site.patch(path, {"spec": {"selector": {"app": "web"}}})
    found = await site.until(path, lambda one: one and one["metadata"]["uid"] != before["metadata"]["uid"])
    assert "selector" not in found["spec"]
    slices = await in_step(harness, "web", A, 2)
    assert slices[name]["metadata"]["ownerReferences"][0]["uid"] == found["metadata"]["uid"]


async def test_slices_that_kubernetes_creates_from_lower_endpoints_are_not_touched(harness: EngineHarness) -> None:
    """A user's Endpoints object for a copy gets a slice of Kubernetes, which stays beside those of the engine."""
    site = harness.sites[A]
    body = {
        "metadata": {"name": "web"},
        "subsets": [{"addresses": [{"ip": "10.9.9.9"}], "ports": [{"name": "http", "port": 8080}]}],
    }
    await site.create(harness.path("endpoints"), body)
    foreign = await site.until_all(slices_path(harness, "web"), lambda one: len(one) == 2)
    await opened(harness, "first", "False")
    await opened(harness, "first")
    await harness.wait_idle()
    after = await site.until_all(slices_path(harness, "web"), bool)
    theirs = [name for name, one in foreign.items() if OWNER not in one["metadata"]["labels"]]
    assert theirs
    assert [after[name]["metadata"] for name in theirs] == [foreign[name]["metadata"] for name in theirs]
    await site.delete(harness.path("endpoints", "web"))
    await in_step(harness, "web", A, 2)


async def test_the_alias_service_has_the_advertised_address_of_the_upper_cluster(harness: EngineHarness) -> None:
    """It exists in each namespace with pods."""
    for lower in (A, B):
        found = await harness.sites[lower].until(harness.path("services", "kubernetes-upper"), bool)
        assert [(one["port"], one["targetPort"]) for one in found["spec"]["ports"]] == [(443, 6443)]
        slices = await harness.sites[lower].until_all(slices_path(harness, "kubernetes-upper"), bool)
        assert endpoints(slices) == [("10.200.0.1", True)]
        assert slices["kubernetes-upper"]["ports"] == [{"name": "https", "port": 6443, "protocol": "TCP"}]


async def test_an_alias_for_a_host_name_is_an_external_name_service(harness: EngineHarness) -> None:
    """A host name cannot be an endpoint, and Kubernetes accepts this Service."""
    body = alias_service(UpperServer("api.example.com", 6443), "by-name", harness.owner, harness.namespace)
    assert body
    found = await harness.sites[A].create(harness.path("services") + "?dryRun=All", body)
    assert found["spec"]["externalName"] == "api.example.com"


async def test_services_of_kube_system_are_copied_only_if_enabled(harness: EngineHarness) -> None:
    """They are deleted again when `services.kubeSystem` is disabled."""
    name, site = f"s-{harness.mark}", harness.sites[A]
    path = harness.path("services", name, namespace="kube-system")
    await made(harness, name, namespace="kube-system")
    await harness.wait_idle()
    assert not await site.read(path)
    await harness.reload(with_fields(upper=ADVERTISED, services={"kubeSystem": True}))
    await site.until(path, bool)
    await harness.reload(with_fields(upper=ADVERTISED))
    await site.gone(path)
    await harness.upper.delete(path)


async def test_a_service_that_is_deleted_is_deleted_in_every_lower(harness: EngineHarness) -> None:
    """Its slices are deleted with it."""
    await harness.upper.delete(harness.path("services", "web"))
    for lower in (A, B):
        await harness.sites[lower].gone(harness.path("services", "web"))
        await harness.sites[lower].until_all(slices_path(harness, "web"), lambda one: not one)


async def test_copies_of_services_are_deleted_with_the_last_pod_after_the_controller_is_disabled(
    harness: EngineHarness,
) -> None:
    """The other lower, which still has a pod, keeps its copies and follows the endpoints."""
    ours = [harness.path(plural, api=api) for plural, api in (("services", "api/v1"), ("endpointslices", SLICES))]
    await harness.reload(with_fields(upper=ADVERTISED, controllers=[]))
    await harness.wait_idle()
    await in_step(harness, "headless", B, 2)
    await harness.upper.delete(harness.pod_path("second"), 0)
    for path in ours:
        await harness.sites[B].until_all(f"{path}?labelSelector={OWNER}={harness.owner.mark}", lambda one: not one)
    await in_step(harness, "headless", A, 1)
