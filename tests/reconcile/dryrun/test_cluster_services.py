"""Tests of the engine's writes of Services and slices, with the same results in memory and on a real apiserver."""

import orjson
import pytest
from dryrunkit import ClusterUnderTest, decoded
from servicekit import PORTS, endpoint, endpoint_slice, service
from worldkit import OWNER_HERE

from tensile.objects import ENDPOINT_SLICE, SERVICE, Manifest
from tensile.reconcile.apply import _is_gone
from tensile.reconcile.diff import changes
from tensile.reconcile.ownership import transform_copy
from tensile.reconcile.rules.endpoint_slices import lower_slice, marked_slice, shared, upper_slice
from tensile.reconcile.rules.services import lower_service as service_below
from tensile.reconcile.rules.services import sections


async def put(cluster_under_test: ClusterUnderTest, upper: Manifest) -> Manifest:
    """Create the lower Service for an upper one, as the engine does."""
    body = service_below(upper, OWNER_HERE, cluster_under_test.namespace, ())
    return decoded(await cluster_under_test.cluster.create(cluster_under_test.ref("web", SERVICE), body))


async def put_slice(cluster_under_test: ClusterUnderTest, upper: Manifest, held: Manifest) -> Manifest:
    """Create the lower slice for an upper one, as the engine does."""
    holder = {"apiVersion": "v1", "kind": "Service", "name": "web", "uid": held["metadata"]["uid"]}
    body = marked_slice(shared(upper), "above", OWNER_HERE, cluster_under_test.namespace, holder)
    return decoded(await cluster_under_test.cluster.create(cluster_under_test.ref("web-1", ENDPOINT_SLICE), body))


@pytest.mark.parametrize(
    "upper",
    [
        service(),
        service(clusterIP="None", ipFamilyPolicy="RequireDualStack", ipFamilies=["IPv6", "IPv4"]),
        service(clusterIP="None", ports=None),
        service(type="ExternalName", externalName="a.example", clusterIP=None, ports=None),
        service(type="LoadBalancer", externalTrafficPolicy="Local", ports=[{**PORTS[0], "nodePort": 30_000}]),
        service(sessionAffinity="ClientIP", sessionAffinityConfig={"clientIP": {"timeoutSeconds": 60}}),
        service(ipFamilyPolicy="PreferDualStack", publishNotReadyAddresses=True),
    ],
    ids=["plain", "headless", "headless without ports", "by name", "load balancer", "affinity", "both families"],
)
async def test_a_created_service_needs_no_change(cluster_under_test: ClusterUnderTest, upper: Manifest) -> None:
    """The engine would not patch the server's defaults, and the marks are ours."""
    stored = await put(cluster_under_test, upper)
    wanted = service_below(upper, OWNER_HERE, cluster_under_test.namespace, ())
    assert changes(wanted, stored, sections(wanted)) == []
    facts = transform_copy(await cluster_under_test.cluster.read(cluster_under_test.ref("web", SERVICE))).facts
    assert (facts.owner, facts.upper_uid) == (OWNER_HERE.mark, "Service-web")


async def test_a_patched_service_needs_no_further_change(cluster_under_test: ClusterUnderTest) -> None:
    """The patch has the UID as precondition."""
    stored = await put(cluster_under_test, service())
    ports = [{"name": "other", "port": 81, "protocol": "TCP", "targetPort": "named", "appProtocol": "http"}]
    wanted = service_below(service(ports=ports, sessionAffinity="None"), OWNER_HERE, cluster_under_test.namespace, ())
    operations = changes(wanted, stored, sections(wanted))
    after = await cluster_under_test.json_patch(stored, cluster_under_test.ref("web", SERVICE), *operations)
    assert after["spec"]["ports"] == ports
    assert changes(wanted, after, sections(wanted)) == []


async def test_a_deleted_service_is_gone_at_once(cluster_under_test: ClusterUnderTest) -> None:
    """The form of the response does not matter."""
    stored = await put(cluster_under_test, service())
    ref = cluster_under_test.ref("web", SERVICE)
    assert _is_gone(await cluster_under_test.delete(stored, ref), None)
    assert await cluster_under_test.is_deleted(ref)


async def test_a_created_or_patched_slice_has_the_digest_of_the_upper_one(cluster_under_test: ClusterUnderTest) -> None:
    """So no slice is compared again, not even an empty one."""
    held, ref = await put(cluster_under_test, service()), cluster_under_test.ref("web-1", ENDPOINT_SLICE)
    stored = await put_slice(cluster_under_test, endpoint_slice(), held)
    assert (
        upper_slice(await cluster_under_test.cluster.read(ref)).facts.print
        == upper_slice(orjson.dumps(endpoint_slice())).facts.print
    )
    for upper_object in (
        endpoint_slice("web-1", endpoint("10.1.0.1", ready=False, hostname="a")),
        {**endpoint_slice(), "endpoints": None},
    ):
        found = upper_slice(orjson.dumps(upper_object)).facts
        content = shared(upper_object)
        operations = changes(content, stored, ("endpoints", "ports"))
        stored = await cluster_under_test.json_patch(stored, ref, *operations)
        facts = lower_slice(await cluster_under_test.cluster.read(ref)).facts
        assert (facts.print, facts.holder, facts.upper_uid) == (found.print, held["metadata"]["uid"], "above")
    assert _is_gone(await cluster_under_test.delete(stored, ref), None)
