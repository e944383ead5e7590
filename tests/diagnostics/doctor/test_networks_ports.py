"""Tests of the check of ports that are open to more clients than need them."""

from typing import Any

import pytest
from doctorkit import cluster_facts, contact, facts, only_finding, server_endpoint, topology

from tensile.diagnostics.doctor.facts import Facts, Finding, Level
from tensile.diagnostics.doctor.networks import check_ports
from tensile.objects import UPPER

NARROW = {"kubelet": {"bind": "127.0.0.1"}}


def known(host: str = "192.0.2.1", *, in_configmap: bool = False, **fields: Any) -> Facts:
    """Return facts with an upper apiserver at a host, and a topology with these sections."""
    upper = cluster_facts(UPPER, contact=contact(endpoint=server_endpoint(host)))
    return facts(upper, topology=topology(**fields), in_configmap=in_configmap)


def looked(host: str = "192.0.2.1", **given: Any) -> list[Finding]:
    """Return the findings on the ports."""
    known_facts = known(host, **given)
    return list(check_ports(known_facts.upper, known_facts))


def test_default_ports_are_ok_with_a_remote_upper_apiserver() -> None:
    """A remote apiserver has to reach the kubelet port, possibly from any address."""
    assert only_finding(looked()).level == Level.OK


@pytest.mark.parametrize("bind", ["0.0.0.0", "::"])
def test_telemetry_on_all_addresses_is_a_warning(bind: str) -> None:
    """The telemetry port has no authentication; a single address is a deliberate choice."""
    finding = only_finding(looked(telemetry={"bind": bind}))
    assert (finding.level, finding.check) == (Level.WARN, "ports")
    assert "names, health and capacity of all lower clusters" in finding.what
    assert finding.advice.startswith("set telemetry.bind: 127.0.0.1, or ")
    assert only_finding(looked(telemetry={"bind": "192.0.2.9"})).level == Level.OK


URL = {"url": "https://127.0.0.1:8443/mutate"}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_open_ports_are_warnings_if_the_apiserver_is_local(host: str) -> None:
    """Each enabled port on all addresses has a warning, because only local clients need it."""
    found = looked(host, webhook={"enabled": True, **URL}, extender={"enabled": True})
    assert [one.what.partition(" ")[0] for one in found] == ["kubelet.bind", "webhook.bind", "extender.bind"]
    assert all(one.level == Level.WARN for one in found)
    local = {"bind": "127.0.0.1", "enabled": True}
    assert only_finding(looked(host, **NARROW, webhook={**local, **URL}, extender=local)).level == Level.OK
    assert only_finding(looked(host, **NARROW)).level == Level.OK, "the server is disabled"


def test_ports_for_a_remote_apiserver_are_no_warning() -> None:
    """The address from which it calls is unknown."""
    assert only_finding(
        looked("upper.example.com", webhook={"enabled": True, **URL}, extender={"enabled": True})
    ).level == (Level.OK)


def test_ports_have_no_finding_if_the_engine_runs_in_a_pod() -> None:
    """A pod has no narrower address to bind; lower clusters have no such finding either."""
    assert looked("127.0.0.1", in_configmap=True, telemetry={"bind": "0.0.0.0"}) == []
    known_facts = known()
    assert list(check_ports(next(iter(known_facts.lowers.values())), known_facts)) == []
