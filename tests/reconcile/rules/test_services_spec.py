"""Tests of which fields of a Service and of an EndpointSlice are copied to another cluster."""

from typing import Any

import orjson
import pytest
from servicekit import PORTS, endpoint, endpoint_slice, service
from worldkit import OWNER_HERE, with_managed_fields, with_owner_marks

from tensile.objects import Manifest
from tensile.reconcile.ownership import Marks, transform_copy
from tensile.reconcile.rules.endpoint_slices import SliceFacts, alias_slice, lower_slice, print_of, upper_slice
from tensile.reconcile.rules.services import (
    SPEC,
    alias_service,
    cannot_become,
    form,
    sections,
    server_of,
    upper_service,
)
from tensile.reconcile.rules.services import lower_service as service_below
from tensile.reconcile.world import UpperServer


def spec_below(families: tuple[str, ...] = (), **spec: Any) -> Manifest:
    """Return the lower spec for an upper one."""
    found: Manifest = service_below(service(**spec), OWNER_HERE, "default", families)["spec"]
    return found


@pytest.mark.parametrize(
    "field",
    [field for field, verdict in SPEC.items() if verdict == "drop"],
)
def test_dropped_fields_are_not_copied(field: str) -> None:
    """Their value does not matter."""
    assert field not in spec_below(**{field: "anything"})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("publishNotReadyAddresses", True),
        ("sessionAffinity", "ClientIP"),
        ("sessionAffinityConfig", {"clientIP": {"timeoutSeconds": 5}}),
    ],
)
def test_kept_fields_are_copied(field: str, value: object) -> None:
    """Their value stays the same."""
    assert SPEC[field] == "keep"
    assert spec_below(**{field: value})[field] == value


@pytest.mark.parametrize("kind", ["ClusterIP", "NodePort", "LoadBalancer"])
def test_a_service_of_any_type_becomes_a_cluster_ip_without_node_ports(kind: str) -> None:
    """The lower cluster allocates neither node ports nor load balancers for it."""
    ports = [{**PORTS[0], "nodePort": 30_000, "appProtocol": "http"}]
    found = spec_below(type=kind, ports=ports, internalTrafficPolicy="Local")
    assert (found["type"], found["internalTrafficPolicy"]) == ("ClusterIP", "Cluster")
    assert found["ports"] == [{**PORTS[0], "appProtocol": "http"}]


def test_an_external_name_service_stays_one() -> None:
    """It has neither an address nor IP families."""
    found = spec_below(type="ExternalName", externalName="a.example", ports=None, clusterIP=None)
    assert found == {"type": "ExternalName", "externalName": "a.example", "sessionAffinity": "None"}


@pytest.mark.parametrize(
    ("families", "policy", "wanted", "found"),
    [
        (("IPv4",), "SingleStack", ["IPv4"], {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"]}),
        (("IPv4",), "SingleStack", ["IPv6"], {"ipFamilyPolicy": "SingleStack"}),
        ((), "SingleStack", ["IPv4"], {"ipFamilyPolicy": "SingleStack"}),
        (("IPv4",), "RequireDualStack", ["IPv6", "IPv4"], {"ipFamilyPolicy": "PreferDualStack"}),
        (
            ("IPv4", "IPv6"),
            "PreferDualStack",
            ["IPv6", "IPv4"],
            {"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6", "IPv4"]},
        ),
    ],
)
def test_ip_families_are_only_requested_if_the_lower_cluster_has_them(
    families: tuple[str, ...], policy: str, wanted: list[str], found: Manifest
) -> None:
    """Otherwise it would refuse the Service, so it gets the available families."""
    lower_object = spec_below(families, ipFamilyPolicy=policy, ipFamilies=wanted)
    assert {key: value for key, value in lower_object.items() if key.startswith("ipFamil")} == found


def test_a_headless_service_keeps_its_ip_families() -> None:
    """Every cluster accepts them, because it allocates no address for them."""
    found = spec_below(clusterIP="None", ipFamilyPolicy="RequireDualStack", ipFamilies=["IPv6", "IPv4"])
    assert (found["clusterIP"], found["ipFamilyPolicy"], found["ipFamilies"]) == (
        "None",
        "RequireDualStack",
        ["IPv6", "IPv4"],
    )


def test_values_that_each_cluster_assigns_are_not_compared() -> None:
    """The address of a headless Service, which is None, is compared."""
    plain = sections(service())
    assert not {"spec.clusterIP", "spec.clusterIPs", "spec.ipFamilies"} & set(plain)
    assert {"spec.ports", "spec.selector", "spec.externalIPs", "metadata.labels"} <= set(plain)
    assert set(sections(service(clusterIP="None"))) - set(plain) == {"spec.clusterIP"}


@pytest.mark.parametrize(
    ("seen", "wanted", "message"),
    [
        ({"selector": None}, {}, ""),
        ({}, {}, "selector"),
        ({"selector": {}}, {}, ""),
        ({"selector": None}, {"clusterIP": "None"}, "headless"),
        ({"selector": None, "type": "ExternalName"}, {"clusterIP": "None"}, ""),
        ({"selector": None, "clusterIP": "None"}, {"type": "ExternalName"}, ""),
    ],
)
def test_the_reason_why_a_service_must_be_replaced_is_returned(seen: Manifest, wanted: Manifest, message: str) -> None:
    """It is "" if the Service can be patched."""
    found = cannot_become(service(**seen), service(**wanted))
    assert (message in found) if message else (found == "")


# Cached fields.


def test_only_the_copied_fields_of_an_upper_service_are_cached() -> None:
    """Its managedFields and status are not needed."""
    raw = orjson.dumps({**with_managed_fields(service()), "status": {"loadBalancer": {}}})
    kept = upper_service(raw)
    found = orjson.loads(kept.raw)
    assert (set(found), set(found["metadata"])) == ({"metadata", "spec"}, {"name", "namespace", "uid", "labels"})
    assert found["spec"] == service()["spec"]


def test_the_marks_of_a_lower_service_are_extracted() -> None:
    """They only count if this engine wrote them."""
    ours = with_owner_marks(service(), "above")
    assert transform_copy(orjson.dumps(ours)).facts == Marks(OWNER_HERE.mark, "above")
    forged = {**ours, "metadata": {**ours["metadata"], "managedFields": []}}
    assert transform_copy(orjson.dumps(forged)).facts == Marks("", "")


def test_the_digest_of_a_slice_is_the_same_in_both_clusters() -> None:
    """The order of labels, our marks, and the form of empty lists do not matter."""
    above = upper_slice(orjson.dumps(endpoint_slice()))
    lower_object = with_owner_marks(orjson.loads(above.raw), "EndpointSlice-web-1")
    lower_object["metadata"]["labels"] = dict(reversed(lower_object["metadata"]["labels"].items()))
    lower_object["metadata"]["ownerReferences"] = [{"uid": "s"}]
    found = lower_slice(orjson.dumps(lower_object))
    assert found.facts == SliceFacts("web", above.facts.print, OWNER_HERE.mark, "EndpointSlice-web-1", "s")
    empty = {**lower_object, "endpoints": [], "ports": []}
    assert print_of(empty) == print_of({**lower_object, "endpoints": None, "ports": None})


@pytest.mark.parametrize(
    "other",
    [
        endpoint_slice("web-1", endpoint("10.1.0.1"), endpoint("10.1.0.3")),
        endpoint_slice("web-1", endpoint("10.1.0.1"), endpoint("10.1.0.2", ready=False)),
        endpoint_slice("web-1", endpoint("10.1.0.1"), endpoint("10.1.0.2", hostname="db-0")),
        {**endpoint_slice(), "ports": []},
        {**endpoint_slice(), "addressType": "IPv6"},
        endpoint_slice(of="api"),
    ],
    ids=["address", "readiness", "hostname", "ports", "family", "service"],
)
def test_every_copied_field_changes_the_digest_of_a_slice(other: Manifest) -> None:
    """A change without effect on it would not be written."""
    prints = [upper_slice(orjson.dumps(one)).facts.print for one in (endpoint_slice(), other)]
    assert prints[0] != prints[1]


def test_a_slice_with_several_owner_references_has_no_holder() -> None:
    """It is patched to have one owner reference."""
    lower_object = {
        **endpoint_slice(),
        "metadata": endpoint_slice()["metadata"] | {"ownerReferences": [{"uid": "a"}, {"uid": "b"}]},
    }
    assert lower_slice(orjson.dumps(lower_object)).facts.holder == ""


# The alias.


@pytest.mark.parametrize(
    ("host", "kind"),
    [
        ("10.2.0.1", "IPv4"),
        ("fd00::1", "IPv6"),
        ("API.example.com", "name"),
        ("127.0.0.1", ""),
        ("127.9.9.9", ""),
        ("::1", ""),
        ("0.0.0.0", ""),
        ("169.254.1.1", ""),
        ("fe80::1", ""),
        ("224.0.0.1", ""),
        ("localhost", ""),
        ("kind.localhost", ""),
        ("", ""),
    ],
)
def test_an_address_has_an_alias_only_if_it_is_valid_in_other_clusters(host: str, kind: str) -> None:
    """Loopback and link-local addresses are not."""
    server = UpperServer(host, 6443)
    assert form(server) == kind
    assert (alias_service(server, "up", OWNER_HERE, "default") is None) == (kind == "")
    assert (alias_slice(server, "up") is None) == (kind in ("", "name"))


@pytest.mark.parametrize(
    ("advertised", "address", "found"),
    [
        (None, ("10.0.0.1", 6443), UpperServer("10.0.0.1", 6443)),
        ("https://api.example.com:443", ("10.0.0.1", 6443), UpperServer("api.example.com", 443)),
        ("https://[fd00::1]:6443/", None, UpperServer("fd00::1", 6443)),
        (None, None, None),
    ],
)
def test_the_advertised_address_has_precedence_over_the_engines_own(
    advertised: str | None, address: tuple[str, int] | None, found: UpperServer | None
) -> None:
    """Inside the upper cluster the engine may use an address that is not reachable elsewhere."""
    assert server_of(advertised, address) == found


def test_a_host_name_becomes_an_external_name_service() -> None:
    """Its port is that of the apiserver, because such a Service cannot map ports."""
    found = alias_service(UpperServer("API.example.com", 6443), "up", OWNER_HERE, "default")
    assert found is not None
    assert (found["spec"]["type"], found["spec"]["externalName"]) == ("ExternalName", "api.example.com")
    assert [one["port"] for one in found["spec"]["ports"]] == [6443]


def test_an_ip_address_becomes_an_endpoint_of_its_family() -> None:
    """Kubernetes' own controller does not manage its slice."""
    found = alias_slice(UpperServer("fd00::1", 6443), "up")
    assert found is not None
    assert (found["addressType"], found["endpoints"][0]["addresses"]) == ("IPv6", ["fd00::1"])
    assert found["metadata"]["labels"] == {
        "kubernetes.io/service-name": "up",
        "endpointslice.kubernetes.io/managed-by": "tensile-kube.io",
    }
