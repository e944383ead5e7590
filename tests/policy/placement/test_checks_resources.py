"""Tests of the checks of a node's capacity: resources as the scheduler counts them, pod slots and host ports."""

from typing import Any

import pytest
from placekit import checks, examine_placement, node, pod, reasons, spec_requesting

from tensile.policy.placement.checks import PORTS_TAKEN, TOO_MANY

GPU = "example.com/gpu"


def test_a_pod_may_request_exactly_the_free_resources() -> None:
    """One thousandth of a cpu or one KiB more does not fit."""
    there = [pod("r", spec_requesting(cpu="1500m", memory="1Gi"), on="a")]
    assert examine_placement(pod(spec=spec_requesting(cpu="2500m", memory="7Gi")), [node("a")], there).fits
    assert reasons(examine_placement(pod(spec=spec_requesting(cpu="2501m")), [node("a")], there)) == {
        "a": ("Insufficient cpu",)
    }
    assert reasons(examine_placement(pod(spec=spec_requesting(memory="7340033Ki")), [node("a")], there)) == {
        "a": ("Insufficient memory",)
    }


def test_every_insufficient_resource_is_reported() -> None:
    """The scheduler's message lists all of them too."""
    found = examine_placement(pod(spec=spec_requesting(cpu="5", memory="9Gi", **{GPU: "1"})), [node("a")])
    assert reasons(found) == {"a": ("Insufficient cpu", "Insufficient memory", f"Insufficient {GPU}")}
    assert checks(found) == {"a": "resources"}


@pytest.mark.parametrize(
    ("used", "wanted", "detail"),
    [
        (
            {"cpu": "3", "memory": "6Gi"},
            {"cpu": "2", "memory": "4Gi"},
            "cpu: requested 2, free 1 of 4; memory: requested 4Gi, free 2Gi of 8Gi",
        ),
        ({"cpu": "8"}, {"cpu": "1"}, "cpu: requested 1, free 0 of 4"),
    ],
    ids=["some is free", "more is used than allocatable"],
)
def test_the_refusal_has_the_requested_and_free_amounts(
    used: dict[str, str], wanted: dict[str, str], detail: str
) -> None:
    """They are in the unit of the resource; if more is used than allocatable, nothing is free."""
    found = examine_placement(
        pod(spec=spec_requesting(**wanted)), [node("a")], [pod("r", spec_requesting(**used), on="a")]
    )
    assert found.refused["a"].detail == detail


def test_an_overused_resource_does_not_matter_if_it_is_not_requested() -> None:
    """The pod requests only memory, and the node has too little cpu."""
    there = [pod("r", spec_requesting(cpu="8"), on="a")]
    assert examine_placement(pod(spec=spec_requesting(memory="1Gi")), [node("a")], there).fits


def test_the_number_of_pods_is_limited() -> None:
    """The limit applies regardless of their requests, and is reported next to insufficient resources."""
    there = [pod(f"r{number}", on="a") for number in range(2)]
    found = examine_placement(pod(), [node("a", pods="2")], there)
    assert reasons(found) == {"a": (TOO_MANY,)}
    assert found.refused["a"].detail == "at most 2 pods"
    assert examine_placement(pod(), [node("a", pods="3")], there).fits
    both = examine_placement(pod(spec=spec_requesting(cpu="9")), [node("a", pods="2")], there)
    assert reasons(both) == {"a": (TOO_MANY, "Insufficient cpu")}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_terminated_pods_use_nothing(phase: str) -> None:
    """They use neither resources nor a pod slot."""
    ended = pod("r", spec_requesting(cpu="4"), on="a") | {"status": {"phase": phase}}
    assert examine_placement(pod(spec=spec_requesting(cpu="4")), [node("a", pods="1")], [ended]).fits


def test_terminating_pods_still_use_their_resources() -> None:
    """They do so until they are removed."""
    ending = pod("r", spec_requesting(cpu="4"), on="a", deletionTimestamp="2026-01-01T00:00:00Z")
    assert not examine_placement(pod(spec=spec_requesting(cpu="1")), [node("a")], [ending]).fits


def test_extended_resources_are_needed_only_if_requested() -> None:
    """A node without the resource has none of it; a request of zero is no request."""
    nodes = [node("a", **{GPU: "2"}), node("b")]
    there = [pod("r", spec_requesting(**{GPU: "1"}), on="a")]
    assert examine_placement(pod(spec=spec_requesting(**{GPU: "1"})), nodes, there).fitting == ("a",)
    assert examine_placement(pod(spec=spec_requesting(**{GPU: "2"})), nodes, there).fitting == ()
    assert examine_placement(pod(spec=spec_requesting(**{GPU: "0"})), nodes, there).fitting == ("a", "b")


def test_requests_include_init_containers_sidecars_overhead_and_pod_level() -> None:
    """The highest sum at any time counts, and pod-level requests replace the sum."""
    init = [{"name": "i", "resources": {"requests": {"cpu": "3"}}}]
    sidecar = [{"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "2"}}}]
    spec = spec_requesting(cpu="1")
    assert examine_placement(pod(spec=spec | {"initContainers": init}), [node("a", cpu="3")]).fits
    assert not examine_placement(pod(spec=spec | {"initContainers": init}), [node("a", cpu="2")]).fits
    assert not examine_placement(pod(spec=spec | {"initContainers": sidecar}), [node("a", cpu="2")]).fits
    assert not examine_placement(pod(spec=spec | {"overhead": {"cpu": "2"}}), [node("a", cpu="2")]).fits
    assert not examine_placement(pod(spec=spec | {"resources": {"requests": {"cpu": "3"}}}), [node("a", cpu="2")]).fits


def test_fractions_of_a_byte_are_rounded_up() -> None:
    """The scheduler rounds up for each pod."""
    there = [pod("r", spec_requesting(memory="500m"), on="a")]
    assert examine_placement(pod(spec=spec_requesting(memory="1")), [node("a", memory="2")], there).fits
    assert not examine_placement(pod(spec=spec_requesting(memory="1500m")), [node("a", memory="2")], there).fits


def taking(port: int, address: str = "", protocol: str = "TCP") -> dict[str, Any]:
    """Return the spec of a pod that uses a host port."""
    entry = {"containerPort": 80, "hostPort": port, "protocol": protocol} | ({"hostIP": address} if address else {})
    return {"containers": [{"name": "main", "ports": [entry]}]}


@pytest.mark.parametrize(
    ("there", "wanted", "fits"),
    [
        (taking(80), taking(80), False),
        (taking(80), taking(81), True),
        (taking(80), taking(80, protocol="UDP"), True),
        (taking(80, "10.0.0.1"), taking(80, "10.0.0.2"), True),
        (taking(80, "10.0.0.1"), taking(80, "10.0.0.1"), False),
        (taking(80, "10.0.0.1"), taking(80), False),
        (taking(80, "0.0.0.0"), taking(80, "10.0.0.1"), False),
        ({}, taking(80), True),
        (taking(80), {}, True),
    ],
)
def test_a_host_port_is_available_to_one_pod(there: dict[str, Any], wanted: dict[str, Any], *, fits: bool) -> None:
    """A conflict needs the same protocol and the same address, or all addresses."""
    found = examine_placement(pod(spec=wanted), [node("a")], [pod("r", there, on="a")])
    assert found.fits == fits
    assert reasons(found) == ({} if fits else {"a": (PORTS_TAKEN,)})


def test_the_refusal_names_the_pod_that_uses_the_port() -> None:
    """The detail has its namespace and name."""
    found = examine_placement(pod(spec=taking(80)), [node("a")], [pod("other", on="a"), pod("r", taking(80), on="a")])
    assert found.refused["a"].detail == "used by default/r"
    assert checks(found) == {"a": "ports"}


def test_host_ports_of_sidecars_count_and_those_of_init_containers_do_not() -> None:
    """Init containers have ended when the other containers run."""
    sidecar = {"initContainers": [taking(80)["containers"][0] | {"name": "s", "restartPolicy": "Always"}]}
    init = {"initContainers": [taking(80)["containers"][0] | {"name": "i"}]}
    assert not examine_placement(pod(spec=taking(80)), [node("a")], [pod("r", sidecar, on="a")]).fits
    assert examine_placement(pod(spec=taking(80)), [node("a")], [pod("r", init, on="a")]).fits


def test_pods_on_other_nodes_use_nothing() -> None:
    """They may be on an unknown node, on no node or on another node."""
    there = [
        pod("r", spec_requesting(cpu="4"), on="b"),
        pod("s", spec_requesting(cpu="4"), on="gone"),
        pod("t", spec_requesting(cpu="4")),
    ]
    assert examine_placement(pod(spec=spec_requesting(cpu="4")), [node("a"), node("b")], there).fitting == ("a",)
