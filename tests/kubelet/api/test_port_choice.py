"""Which kubelet port a virtual node gets: that of the file, the one it has, or the first free one from its place on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensile.engine.kubelet_server import PortClaim, choose_ports

A, B, C, LEFT = "virtual-a", "virtual-b", "virtual-c", "virtual-left"
USUAL = range(100, 110)


def new(place: int) -> PortClaim:
    """A node that the file gives no port, and that has none."""
    return PortClaim(place)


def kept(place: int, port: int) -> PortClaim:
    """A node that the file gives no port, and that has one."""
    return PortClaim(place, kept=port)


def fixed(place: int, port: int, had: int = 0) -> PortClaim:
    """A node that the file gives a port."""
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
        "by place",
        "one was taken out before them",
        "one was put in before them",
        "what it has, wherever that is",
        "the file's, and a place that stays counted",
        "the file's before what it has",
        "another gets what the place would give",
        "another gets what it has",
        "two that have the same: the first in the file",
        "two in the same place: by name",
        "what left keeps its port before who is new",
        "who is in the file before what left",
        "a server of the engine is there: who is new",
        "a server of the engine is there: who had it, and nobody else moves",
        "a server of the engine is at the file's until a restart",
        "beginning again at the end",
        "none left of the usual ones",
    ],
)
def test_a_port_is_chosen(claims: dict[str, PortClaim], servers: tuple[int, ...], ports: dict[str, int]) -> None:
    """By the file, what each node has, and its lower's place."""
    assert choose_ports(claims, USUAL, servers) == ports


NODES = st.sampled_from([A, B, C, LEFT])
PORTS = st.integers(100, 112)
CLAIMS = st.dictionaries(NODES, st.builds(PortClaim, st.integers(0, 4), st.none() | PORTS, st.just(0) | PORTS))


@given(CLAIMS, st.sets(PORTS, max_size=3))
def test_every_node_gets_a_port_of_its_own_and_keeps_it(claims: dict[str, PortClaim], servers: set[int]) -> None:
    """None of another server's; once they have what was chosen nobody moves, in whatever order they are asked for."""
    found = choose_ports(claims, USUAL, servers)
    assert found.keys() == claims.keys()
    assert len(set(found.values()) - servers) == len(claims)
    later = {node: claim._replace(kept=found[node]) for node, claim in reversed(claims.items())}
    assert choose_ports(later, USUAL, servers) == found


@given(CLAIMS, NODES)
def test_a_node_that_is_taken_out_moves_none_that_has_its_port(claims: dict[str, PortClaim], gone: str) -> None:
    """Nor do the places of the others count, which change with it."""
    found = choose_ports(claims, USUAL, ())
    rest = {node: PortClaim(place, kept=found[node]) for place, node in enumerate(sorted(found)) if node != gone}
    assert choose_ports(rest, USUAL, ()) == {node: found[node] for node in rest}
