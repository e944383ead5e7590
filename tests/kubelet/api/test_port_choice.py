"""Tests of the choice of a node's kubelet port: the configured, the current, or the first free one by position."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensile.engine.kubelet_server import PortClaim, choose_ports

A, B, C, LEFT = "virtual-a", "virtual-b", "virtual-c", "virtual-left"
USUAL = range(100, 110)


def new(place: int) -> PortClaim:
    """Return the claim of a node without a configured or current port."""
    return PortClaim(place)


def kept(place: int, port: int) -> PortClaim:
    """Return the claim of a node with a current but no configured port."""
    return PortClaim(place, kept=port)


def fixed(place: int, port: int, had: int = 0) -> PortClaim:
    """Return the claim of a node with a configured port."""
    return PortClaim(place, port, had)


@pytest.mark.parametrize(
    ("claims", "servers", "ports"),
    [
        ({}, (), {}),
        ({A: new(0), B: new(1), C: new(2)}, (), {A: 100, B: 101, C: 102}),
        ({B: kept(0, 101), C: kept(1, 102)}, (), {B: 101, C: 102}),
        ({C: new(0), A: kept(1, 100), B: kept(2, 101)}, (), {C: 102, A: 100, B: 101}),
        ({A: kept(0, 7)}, (), {A: 7}),
        ({A: fixed(0, 7), B: new(1)}, (), {A: 7, B: 101}),
        ({A: fixed(0, 7, had=100)}, (), {A: 7}),
        ({A: new(0), B: fixed(1, 100)}, (), {A: 101, B: 100}),
        ({A: kept(0, 100), B: fixed(1, 100)}, (), {A: 101, B: 100}),
        ({A: kept(0, 101), B: kept(1, 101)}, (), {A: 101, B: 102}),
        ({B: kept(0, 101), A: kept(0, 101)}, (), {A: 101, B: 100}),
        ({A: new(0), LEFT: kept(1, 100)}, (), {A: 101, LEFT: 100}),
        ({A: kept(0, 100), LEFT: kept(1, 100)}, (), {A: 100, LEFT: 101}),
        ({A: new(0), B: kept(1, 101)}, (100,), {A: 102, B: 101}),
        ({A: kept(0, 100), B: kept(1, 101)}, (100,), {A: 102, B: 101}),
        ({A: fixed(0, 9095, had=100)}, (9095,), {A: 100}),
        ({A: new(9), B: fixed(0, 109)}, (), {A: 100, B: 109}),
        ({A: new(0)}, USUAL, {A: 1024}),
    ],
    ids=[
        "nothing to choose",
        "by position",
        "an earlier lower is removed",
        "an earlier lower is added",
        "the current port, even out of range",
        "a configured port, whose position still counts",
        "the configured port before the current one",
        "another node has the port of the position configured",
        "another node has the current port configured",
        "two with the same current port: the first in the file",
        "two in the same position: by name",
        "a removed node keeps its port before a new node",
        "a node in the file before a removed node",
        "a server of the engine uses the port of a new node",
        "a server of the engine uses a current port: only that node moves",
        "a server of the engine uses the configured port until a restart",
        "wraparound at the end of the range",
        "no port left in the range",
    ],
)
def test_ports_are_chosen_from_claims_and_server_ports(
    claims: dict[str, PortClaim], servers: tuple[int, ...], ports: dict[str, int]
) -> None:
    """The choice depends on the file, each node's current port, and its lower's position."""
    assert choose_ports(claims, USUAL, servers) == ports


NODES = st.sampled_from([A, B, C, LEFT])
PORTS = st.integers(100, 112)
CLAIMS = st.dictionaries(NODES, st.builds(PortClaim, st.integers(0, 4), st.none() | PORTS, st.just(0) | PORTS))


@given(CLAIMS, st.sets(PORTS, max_size=3))
def test_every_node_gets_a_unique_port_and_keeps_it(claims: dict[str, PortClaim], servers: set[int]) -> None:
    """No node gets a server's port, and a second choice in another order changes no port."""
    found = choose_ports(claims, USUAL, servers)
    assert found.keys() == claims.keys()
    assert len(set(found.values()) - servers) == len(claims)
    later = {node: claim._replace(kept=found[node]) for node, claim in reversed(claims.items())}
    assert choose_ports(later, USUAL, servers) == found


@given(CLAIMS, NODES)
def test_removing_a_node_does_not_change_current_ports_of_other_nodes(claims: dict[str, PortClaim], gone: str) -> None:
    """The positions of the other nodes, which change with the removal, do not matter."""
    found = choose_ports(claims, USUAL, ())
    rest = {node: PortClaim(place, kept=found[node]) for place, node in enumerate(sorted(found)) if node != gone}
    assert choose_ports(rest, USUAL, ()) == {node: found[node] for node in rest}
