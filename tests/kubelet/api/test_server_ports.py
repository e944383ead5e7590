"""Who gets which port when lowers leave, come and change places: by plain words, and for every way there is."""

from hypothesis import given
from hypothesis import strategies as st

from tensile.kubelet.api.server import Address, assign_ports

A, B, C, D = "a", "b", "c", "d"


def at(**ports: int) -> dict[str, Address]:
    """Return addresses of nodes."""
    return {node: ("0.0.0.0", port) for node, port in ports.items()}


def test_what_is_free_is_given() -> None:
    """A new node gets its port, and so does one that moves to a port that nobody has."""
    assert assign_ports(at(a=1), at(a=1, b=2, c=3)) == at(a=1, b=2, c=3)
    assert assign_ports(at(a=1), at(a=2)) == at(a=2)


def test_two_change_places() -> None:
    """Each is on the other's port afterwards; likewise three in a ring."""
    assert assign_ports(at(a=1, b=2), at(a=2, b=1)) == at(a=2, b=1)
    assert assign_ports(at(a=1, b=2, c=3), at(a=2, b=3, c=1)) == at(a=2, b=3, c=1)


def test_a_row_moves_up_when_its_first_has_gone() -> None:
    """The rest of a topology whose first lower was taken out, at once."""
    assert assign_ports(at(b=2, c=3), at(b=1, c=2)) == at(b=1, c=2)


def test_a_row_stays_while_its_first_has_not_gone() -> None:
    """All behind it stay where they are and can be reached; one that comes new has to wait for its port."""
    assert assign_ports(at(a=1, b=2, c=3), at(b=1, c=2, d=3, a=1)) == at(a=1, b=2, c=3)
    assert assign_ports(at(a=1), at(b=1, a=1)) == at(a=1)


def test_a_port_of_another_program_holds_up_nobody() -> None:
    """Who cannot have it stays where it is, unless another one is to be there, which goes before."""
    assert assign_ports(at(a=1), at(a=9), barred={A}) == at(a=1)
    assert assign_ports(at(a=1, b=2), at(a=9, b=1, c=2), barred={A}) == at(b=1, c=2)
    assert assign_ports(at(b=2), at(a=9, b=2), barred={A}) == at(b=2)


def test_who_is_kept_from_moving_keeps_its_port_from_the_next() -> None:
    """Else it would have none while it waits."""
    assert assign_ports(at(a=1, b=2, c=3), at(a=1, b=1, c=2)) == at(a=1, b=2, c=3)


def test_of_two_that_want_the_same_the_one_that_has_it_keeps_it() -> None:
    """Else the first of them gets it."""
    assert assign_ports(at(b=1), at(a=1, b=1)) == at(b=1)
    assert assign_ports({}, at(a=1, b=1)) == at(a=1)
    assert assign_ports(at(c=1), at(a=1, b=1, c=2)) == at(a=1, c=2)


PORTS = st.integers(1, 5)
NODES = st.sampled_from("abcde")


@st.composite
def scenes(draw: st.DrawFn) -> tuple[dict[str, Address], dict[str, Address], set[str]]:
    """Draw where nodes are, where they want to be, and which of the addresses that nobody has cannot be had."""
    wanted = at(**draw(st.dictionaries(NODES, PORTS)))
    places = draw(st.permutations(range(1, 6)))
    held = {node: ("0.0.0.0", port) for node, port in zip(wanted, places, strict=False) if draw(st.booleans())}
    free = set(wanted.values()) - set(held.values())
    foreign = {address for address in sorted(free) if draw(st.booleans())}
    return held, wanted, {node for node, address in wanted.items() if address in foreign}


@given(scenes())
def test_nobody_loses_by_it_but_who_wants_what_cannot_be_had(
    scene: tuple[dict[str, Address], dict[str, Address], set[str]],
) -> None:
    """Each port has one node, nobody has what nobody gave, and a wish fails only for a reason that can be told."""
    held, wanted, barred = scene
    now = assign_ports(held, wanted, barred)
    assert len(set(now.values())) == len(now)
    for node, address in wanted.items():
        if node in barred:
            assert now.get(node) in {None, held.get(node)}
        elif now.get(node) != address:
            assert address in now.values()
            assert now.get(node) == held.get(node)


@given(scenes())
def test_asking_again_changes_nothing(scene: tuple[dict[str, Address], dict[str, Address], set[str]]) -> None:
    """What could be had was had the first time: the regular look moves nobody to and fro."""
    held, wanted, barred = scene
    now = assign_ports(held, wanted, barred)
    assert assign_ports(now, wanted, barred) == now
