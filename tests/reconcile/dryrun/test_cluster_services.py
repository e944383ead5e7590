"""Services and slices in memory and before a real apiserver alike: what the engine's writes of them come to."""

import orjson
import pytest
from rehearsal_ground import ClusterUnderTest, decoded
from servicekit import PORTS, endpoint, service, sliced
from worldkit import OWNER_HERE

from tensile.objects import ENDPOINT_SLICE, SERVICE, Manifest
from tensile.reconcile.apply import _is_gone
from tensile.reconcile.diff import changes
from tensile.reconcile.ownership import digest_marks
from tensile.reconcile.rules.endpoint_slices import lower_slice, marked_slice, shared, upper_slice
from tensile.reconcile.rules.services import lower_service as service_below
from tensile.reconcile.rules.services import sections


async def put(ground: ClusterUnderTest, upper: Manifest) -> Manifest:
    """Make the Service below for one above, as the engine does."""
    body = service_below(upper, OWNER_HERE, ground.namespace, ())
    return decoded(await ground.cluster.create(ground.at("web", SERVICE), body))


async def put_slice(ground: ClusterUnderTest, upper: Manifest, held: Manifest) -> Manifest:
    """Make the slice below for one above, as the engine does."""
    holder = {"apiVersion": "v1", "kind": "Service", "name": "web", "uid": held["metadata"]["uid"]}
    body = marked_slice(shared(upper), "above", OWNER_HERE, ground.namespace, holder)
    return decoded(await ground.cluster.create(ground.at("web-1", ENDPOINT_SLICE), body))


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
async def test_a_service_that_was_made_is_in_step(ground: ClusterUnderTest, upper: Manifest) -> None:
    """What the server fills in is nothing that the engine would change again; the marks are ours."""
    stored = await put(ground, upper)
    wanted = service_below(upper, OWNER_HERE, ground.namespace, ())
    assert changes(wanted, stored, sections(wanted)) == []
    facts = digest_marks(await ground.cluster.read(ground.at("web", SERVICE))).facts
    assert (facts.owner, facts.upper_uid) == (OWNER_HERE.mark, "Service-web")


async def test_a_change_of_a_service_comes_through_and_is_in_step(ground: ClusterUnderTest) -> None:
    """With its UID as the fence."""
    stored = await put(ground, service())
    ports = [{"name": "other", "port": 81, "protocol": "TCP", "targetPort": "named", "appProtocol": "http"}]
    wanted = service_below(service(ports=ports, sessionAffinity="None"), OWNER_HERE, ground.namespace, ())
    operations = changes(wanted, stored, sections(wanted))
    after = await ground.operated(stored, ground.at("web", SERVICE), *operations)
    assert after["spec"]["ports"] == ports
    assert changes(wanted, after, sections(wanted)) == []


async def test_a_service_that_is_deleted_is_gone(ground: ClusterUnderTest) -> None:
    """At once, whatever the answer looks like."""
    stored = await put(ground, service())
    ref = ground.at("web", SERVICE)
    assert _is_gone(await ground.deleted(stored, ref), None)
    assert await ground.is_deleted(ref)


async def test_a_slice_that_was_made_has_the_print_of_the_one_above(ground: ClusterUnderTest) -> None:
    """After each change too, so that nothing is compared again; an empty one likewise."""
    held, ref = await put(ground, service()), ground.at("web-1", ENDPOINT_SLICE)
    stored = await put_slice(ground, sliced(), held)
    assert upper_slice(await ground.cluster.read(ref)).facts.print == upper_slice(orjson.dumps(sliced())).facts.print
    for above in (sliced("web-1", endpoint("10.1.0.1", ready=False, hostname="a")), {**sliced(), "endpoints": None}):
        found = upper_slice(orjson.dumps(above)).facts
        content = shared(above)
        operations = changes(content, stored, ("endpoints", "ports"))
        stored = await ground.operated(stored, ref, *operations)
        facts = lower_slice(await ground.cluster.read(ref)).facts
        assert (facts.print, facts.holder, facts.upper_uid) == (found.print, held["metadata"]["uid"], "above")
    assert _is_gone(await ground.deleted(stored, ref), None)
