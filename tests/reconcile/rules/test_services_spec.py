"""What of a Service holds in another cluster, and what of a slice: field by field."""

from typing import Any

import orjson
import pytest
from servicekit import PORTS, endpoint, service, sliced
from worldkit import OWNER_HERE, marked, written

from tensile.objects import Manifest
from tensile.reconcile.ownership import Marks, digest_marks
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
    """Return the spec below for one above."""
    found: Manifest = service_below(service(**spec), OWNER_HERE, "default", families)["spec"]
    return found


@pytest.mark.parametrize(
    "field",
    [field for field, verdict in SPEC.items() if verdict == "drop"],
)
def test_what_is_dropped_is_dropped(field: str) -> None:
    """Whatever it says."""
    assert field not in spec_below(**{field: "anything"})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("publishNotReadyAddresses", True),
        ("sessionAffinity", "ClientIP"),
        ("sessionAffinityConfig", {"clientIP": {"timeoutSeconds": 5}}),
    ],
)
def test_what_is_kept_is_kept(field: str, value: object) -> None:
    """As it is."""
    assert SPEC[field] == "keep"
    assert spec_below(**{field: value})[field] == value


@pytest.mark.parametrize("kind", ["ClusterIP", "NodePort", "LoadBalancer"])
def test_however_the_upper_cluster_is_entered_the_lower_is_not(kind: str) -> None:
    """No port of a node and no load balancer is taken below."""
    ports = [{**PORTS[0], "nodePort": 30_000, "appProtocol": "http"}]
    found = spec_below(type=kind, ports=ports, internalTrafficPolicy="Local")
    assert (found["type"], found["internalTrafficPolicy"]) == ("ClusterIP", "Cluster")
    assert found["ports"] == [{**PORTS[0], "appProtocol": "http"}]


def test_one_that_is_another_name_stays_so() -> None:
    """It has neither address nor families."""
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
def test_families_are_asked_for_where_the_lower_cluster_has_them(
    families: tuple[str, ...], policy: str, wanted: list[str], found: Manifest
) -> None:
    """Else it would refuse the Service; it gets what there is."""
    below = spec_below(families, ipFamilyPolicy=policy, ipFamilies=wanted)
    assert {key: value for key, value in below.items() if key.startswith("ipFamil")} == found


def test_a_headless_one_keeps_its_families() -> None:
    """Every cluster takes them, as it returns no address of them out."""
    found = spec_below(clusterIP="None", ipFamilyPolicy="RequireDualStack", ipFamilies=["IPv6", "IPv4"])
    assert (found["clusterIP"], found["ipFamilyPolicy"], found["ipFamilies"]) == (
        "None",
        "RequireDualStack",
        ["IPv6", "IPv4"],
    )


def test_what_each_cluster_gives_out_is_not_compared() -> None:
    """But that a Service has no address is."""
    plain = sections(service())
    assert not {"spec.clusterIP", "spec.clusterIPs", "spec.ipFamilies"} & set(plain)
    assert {"spec.ports", "spec.selector", "spec.externalIPs", "metadata.labels"} <= set(plain)
    assert set(sections(service(clusterIP="None"))) - set(plain) == {"spec.clusterIP"}


@pytest.mark.parametrize(
    ("seen", "wanted", "words"),
    [
        ({"selector": None}, {}, ""),
        ({}, {}, "selector"),
        ({"selector": {}}, {}, ""),
        ({"selector": None}, {"clusterIP": "None"}, "headless"),
        ({"selector": None, "type": "ExternalName"}, {"clusterIP": "None"}, ""),
        ({"selector": None, "clusterIP": "None"}, {"type": "ExternalName"}, ""),
    ],
)
def test_it_is_said_why_one_has_to_be_made_anew(seen: Manifest, wanted: Manifest, words: str) -> None:
    """Where it does not have to be, nothing is said."""
    found = cannot_become(service(**seen), service(**wanted))
    assert (words in found) if words else (found == "")


# What is kept of them.


def test_of_a_service_above_only_what_comes_down_is_kept() -> None:
    """Its book-keeping and status are never asked."""
    raw = orjson.dumps({**written(service()), "status": {"loadBalancer": {}}})
    kept = upper_service(raw)
    found = orjson.loads(kept.raw)
    assert (set(found), set(found["metadata"])) == ({"metadata", "spec"}, {"name", "namespace", "uid", "labels"})
    assert found["spec"] == service()["spec"]


def test_a_service_below_says_whose_it_is() -> None:
    """By marks that we wrote ourselves."""
    ours = marked(service(), "above")
    assert digest_marks(orjson.dumps(ours)).facts == Marks(OWNER_HERE.mark, "above")
    forged = {**ours, "metadata": {**ours["metadata"], "managedFields": []}}
    assert digest_marks(orjson.dumps(forged)).facts == Marks("", "")


def test_the_print_is_the_same_on_both_sides() -> None:
    """Whatever the order of labels, our mark, and how nothing is written."""
    above = upper_slice(orjson.dumps(sliced()))
    below = marked(orjson.loads(above.raw), "EndpointSlice-web-1")
    below["metadata"]["labels"] = dict(reversed(below["metadata"]["labels"].items()))
    below["metadata"]["ownerReferences"] = [{"uid": "s"}]
    found = lower_slice(orjson.dumps(below))
    assert found.facts == SliceFacts("web", above.facts.print, OWNER_HERE.mark, "EndpointSlice-web-1", "s")
    empty = {**below, "endpoints": [], "ports": []}
    assert print_of(empty) == print_of({**below, "endpoints": None, "ports": None})


@pytest.mark.parametrize(
    "other",
    [
        sliced("web-1", endpoint("10.1.0.1"), endpoint("10.1.0.3")),
        sliced("web-1", endpoint("10.1.0.1"), endpoint("10.1.0.2", ready=False)),
        sliced("web-1", endpoint("10.1.0.1"), endpoint("10.1.0.2", hostname="db-0")),
        {**sliced(), "ports": []},
        {**sliced(), "addressType": "IPv6"},
        sliced(of="api"),
    ],
    ids=["address", "readiness", "hostname", "ports", "family", "service"],
)
def test_whatever_comes_down_shows_in_the_print(other: Manifest) -> None:
    """A change that does not would never be written."""
    prints = [upper_slice(orjson.dumps(one)).facts.print for one in (sliced(), other)]
    assert prints[0] != prints[1]


def test_a_slice_with_several_holders_is_held_by_none() -> None:
    """It is put back to one."""
    below = {**sliced(), "metadata": sliced()["metadata"] | {"ownerReferences": [{"uid": "a"}, {"uid": "b"}]}}
    assert lower_slice(orjson.dumps(below)).facts.holder == ""


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
def test_an_address_is_told_below_if_it_means_the_same_there(host: str, kind: str) -> None:
    """One that every machine has for itself does not."""
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
def test_what_is_advertised_goes_before_what_we_use_ourselves(
    advertised: str | None, address: tuple[str, int] | None, found: UpperServer | None
) -> None:
    """From inside the upper cluster there is an address that leads nowhere else."""
    assert server_of(advertised, address) == found


def test_a_name_becomes_another_name() -> None:
    """On the port of the apiserver itself, as names have none to map it to."""
    found = alias_service(UpperServer("API.example.com", 6443), "up", OWNER_HERE, "default")
    assert found is not None
    assert (found["spec"]["type"], found["spec"]["externalName"]) == ("ExternalName", "api.example.com")
    assert [one["port"] for one in found["spec"]["ports"]] == [6443]


def test_an_address_becomes_an_endpoint() -> None:
    """Of its family, in a slice that Kubernetes leaves alone."""
    found = alias_slice(UpperServer("fd00::1", 6443), "up")
    assert found is not None
    assert (found["addressType"], found["endpoints"][0]["addresses"]) == ("IPv6", ["fd00::1"])
    assert found["metadata"]["labels"] == {
        "kubernetes.io/service-name": "up",
        "endpointslice.kubernetes.io/managed-by": "tensile-kube.io",
    }
