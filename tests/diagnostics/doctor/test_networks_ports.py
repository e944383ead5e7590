"""Ports that are open to more than those who call them."""

from typing import Any

import pytest
from doctorkit import contact, facts, only, side, topology, way

from tensile.diagnostics.doctor.facts import Facts, Finding, Level
from tensile.diagnostics.doctor.networks import bound
from tensile.objects import UPPER

NARROW = {"kubelet": {"bind": "127.0.0.1"}}


def known(host: str = "192.0.2.1", *, in_map: bool = False, **fields: Any) -> Facts:
    """Make facts of an upper apiserver at a host, and a topology with these sections."""
    upper = side(UPPER, contact=contact(way=way(host)))
    return facts(upper, topology=topology(**fields), in_map=in_map)


def looked(host: str = "192.0.2.1", **given: Any) -> list[Finding]:
    """Look at the ports."""
    here = known(host, **given)
    return list(bound(here.upper, here))


def test_the_defaults_are_well_beside_a_cluster_elsewhere() -> None:
    """Its apiserver has to reach the kubelet port, and may come from anywhere."""
    assert only(looked()).level == Level.OK


@pytest.mark.parametrize("bind", ["0.0.0.0", "::"])
def test_telemetry_for_everybody_is_told(bind: str) -> None:
    """It asks nobody who they are; one address is somebody's choice."""
    finding = only(looked(telemetry={"bind": bind}))
    assert (finding.level, finding.check) == (Level.WARN, "ports")
    assert "names, health and capacity of all lower clusters" in finding.what
    assert finding.advice.startswith("set telemetry.bind: 127.0.0.1, or ")
    assert only(looked(telemetry={"bind": "192.0.2.9"})).level == Level.OK


URL = {"url": "https://127.0.0.1:8443/mutate"}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_ports_for_callers_on_this_machine_are_told(host: str) -> None:
    """Each that is enabled and open to other machines too."""
    found = looked(host, webhook={"enabled": True, **URL}, extender={"enabled": True})
    assert [one.what.partition(" ")[0] for one in found] == ["kubelet.bind", "webhook.bind", "extender.bind"]
    assert all(one.level == Level.WARN for one in found)
    local = {"bind": "127.0.0.1", "enabled": True}
    assert only(looked(host, **NARROW, webhook={**local, **URL}, extender=local)).level == Level.OK
    assert only(looked(host, **NARROW)).level == Level.OK, "what is off is open to nobody"


def test_callers_elsewhere_need_the_port() -> None:
    """Where they call from is not known."""
    assert only(looked("upper.example.com", webhook={"enabled": True, **URL}, extender={"enabled": True})).level == (
        Level.OK
    )


def test_in_a_pod_there_is_no_narrower_address() -> None:
    """Nor is anything said in the name of a lower."""
    assert looked("127.0.0.1", in_map=True, telemetry={"bind": "0.0.0.0"}) == []
    here = known()
    assert list(bound(next(iter(here.lowers.values())), here)) == []
