"""What a node has left: resources as the scheduler counts them, places for pods, and its own ports."""

from typing import Any

import pytest
from placekit import asking, checks, node, place, pod, reasons

from tensile.policy.placement.checks import PORTS_TAKEN, TOO_MANY

GPU = "example.com/gpu"


def test_a_pod_fits_to_the_last_thousandth() -> None:
    """What is asked may be all that is left, and no more."""
    there = [pod("r", asking(cpu="1500m", memory="1Gi"), on="a")]
    assert place(pod(spec=asking(cpu="2500m", memory="7Gi")), [node("a")], there).fits
    assert reasons(place(pod(spec=asking(cpu="2501m")), [node("a")], there)) == {"a": ("Insufficient cpu",)}
    assert reasons(place(pod(spec=asking(memory="7340033Ki")), [node("a")], there)) == {"a": ("Insufficient memory",)}


def test_everything_that_is_short_is_said() -> None:
    """Not only the first of it, as in the scheduler's message."""
    found = place(pod(spec=asking(cpu="5", memory="9Gi", **{GPU: "1"})), [node("a")])
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
    ids=["some is left", "the node shrank under its pods"],
)
def test_how_much_is_left_is_told(used: dict[str, str], wanted: dict[str, str], detail: str) -> None:
    """In the units of the resource; more used than offered is nothing left."""
    found = place(pod(spec=asking(**wanted)), [node("a")], [pod("r", asking(**used), on="a")])
    assert found.refused["a"].detail == detail


def test_a_full_node_takes_a_pod_that_asks_for_nothing_more() -> None:
    """What it does not ask for does not matter."""
    there = [pod("r", asking(cpu="8"), on="a")]
    assert place(pod(spec=asking(memory="1Gi")), [node("a")], there).fits


def test_places_for_pods() -> None:
    """Their number is limited too, whatever they ask for."""
    there = [pod(f"r{number}", on="a") for number in range(2)]
    found = place(pod(), [node("a", pods="2")], there)
    assert reasons(found) == {"a": (TOO_MANY,)}
    assert found.refused["a"].detail == "at most 2 pods"
    assert place(pod(), [node("a", pods="3")], there).fits
    both = place(pod(spec=asking(cpu="9")), [node("a", pods="2")], there)
    assert reasons(both) == {"a": (TOO_MANY, "Insufficient cpu")}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_pods_that_ended_take_nothing(phase: str) -> None:
    """Neither resources nor a place."""
    ended = pod("r", asking(cpu="4"), on="a") | {"status": {"phase": phase}}
    assert place(pod(spec=asking(cpu="4")), [node("a", pods="1")], [ended]).fits


def test_pods_that_are_being_deleted_still_take_theirs() -> None:
    """Until they are gone."""
    ending = pod("r", asking(cpu="4"), on="a", deletionTimestamp="2026-01-01T00:00:00Z")
    assert not place(pod(spec=asking(cpu="1")), [node("a")], [ending]).fits


def test_extended_resources() -> None:
    """A node that does not know one has none of it; asking for nothing of it is no request."""
    nodes = [node("a", **{GPU: "2"}), node("b")]
    there = [pod("r", asking(**{GPU: "1"}), on="a")]
    assert place(pod(spec=asking(**{GPU: "1"})), nodes, there).fitting == ("a",)
    assert place(pod(spec=asking(**{GPU: "2"})), nodes, there).fitting == ()
    assert place(pod(spec=asking(**{GPU: "0"})), nodes, there).fitting == ("a", "b")


def test_sidecars_init_containers_overhead_and_pod_level() -> None:
    """Counted at the worst moment, and pod level in place of the sum."""
    init = [{"name": "i", "resources": {"requests": {"cpu": "3"}}}]
    sidecar = [{"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "2"}}}]
    spec = asking(cpu="1")
    assert place(pod(spec=spec | {"initContainers": init}), [node("a", cpu="3")]).fits
    assert not place(pod(spec=spec | {"initContainers": init}), [node("a", cpu="2")]).fits
    assert not place(pod(spec=spec | {"initContainers": sidecar}), [node("a", cpu="2")]).fits
    assert not place(pod(spec=spec | {"overhead": {"cpu": "2"}}), [node("a", cpu="2")]).fits
    assert not place(pod(spec=spec | {"resources": {"requests": {"cpu": "3"}}}), [node("a", cpu="2")]).fits


def test_parts_of_a_byte_are_whole_ones() -> None:
    """The scheduler rounds each pod up."""
    there = [pod("r", asking(memory="500m"), on="a")]
    assert place(pod(spec=asking(memory="1")), [node("a", memory="2")], there).fits
    assert not place(pod(spec=asking(memory="1500m")), [node("a", memory="2")], there).fits


def taking(port: int, address: str = "", protocol: str = "TCP") -> dict[str, Any]:
    """Make the spec of a pod that takes a port of its node."""
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
def test_a_port_of_the_node_is_for_one(there: dict[str, Any], wanted: dict[str, Any], *, fits: bool) -> None:
    """On one address or on all, for each protocol."""
    found = place(pod(spec=wanted), [node("a")], [pod("r", there, on="a")])
    assert found.fits == fits
    assert reasons(found) == ({} if fits else {"a": (PORTS_TAKEN,)})


def test_who_has_the_port_is_told() -> None:
    """By namespace and name."""
    found = place(pod(spec=taking(80)), [node("a")], [pod("other", on="a"), pod("r", taking(80), on="a")])
    assert found.refused["a"].detail == "used by default/r"
    assert checks(found) == {"a": "ports"}


def test_ports_of_sidecars_count_and_those_of_init_containers_do_not() -> None:
    """Those are gone when the others run."""
    sidecar = {"initContainers": [taking(80)["containers"][0] | {"name": "s", "restartPolicy": "Always"}]}
    init = {"initContainers": [taking(80)["containers"][0] | {"name": "i"}]}
    assert not place(pod(spec=taking(80)), [node("a")], [pod("r", sidecar, on="a")]).fits
    assert place(pod(spec=taking(80)), [node("a")], [pod("r", init, on="a")]).fits


def test_pods_elsewhere_take_nothing_here() -> None:
    """Of a node that is not known, of none, or of another."""
    there = [pod("r", asking(cpu="4"), on="b"), pod("s", asking(cpu="4"), on="gone"), pod("t", asking(cpu="4"))]
    assert place(pod(spec=asking(cpu="4")), [node("a"), node("b")], there).fitting == ("a",)
