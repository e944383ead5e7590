"""Where the virtual nodes are, for a program that serves none of them: `apply` beside an engine moves nothing."""

from typing import Any

import pytest
from worldkit import A, put, raised, thing, world

from tensile.engine.clusters import address_in_use
from tensile.reconcile.world import World


def told(node: dict[str, Any], *addresses: tuple[str, str]) -> dict[str, Any]:
    """Write a node's address into its status."""
    return {**node, "status": {"addresses": [{"type": kind, "address": address} for kind, address in addresses]}}


@pytest.fixture
def here() -> World:
    """A world whose node says the address of an engine, found from another machine."""
    made = world()
    node = raised(made).manifest()
    put(made.upper.nodes, told(node, ("Hostname", A), ("InternalIP", "192.0.2.7")))
    made.node_address = "198.51.100.1"
    return made


def test_what_the_engine_has_published_stays(here: World) -> None:
    """Else logs and exec would be sent to whoever converged last."""
    assert address_in_use(here) == "192.0.2.7"


def test_what_the_topology_says_comes_first(here: World) -> None:
    """It is the same wherever it is read."""
    kubelet = here.topology.kubelet.model_copy(update={"node_address": "203.0.113.5"})
    here.topology = here.topology.model_copy(update={"kubelet": kubelet})
    assert address_in_use(here) == "203.0.113.5"


def test_nobody_elses_node_counts() -> None:
    """It is the address of another machine; then what was found has to do, as for a node that says none."""
    here = world()
    here.node_address = "198.51.100.1"
    assert address_in_use(here) == "198.51.100.1"
    stranger = told(thing("Node", A, ""), ("InternalIP", "192.0.2.9"))
    put(here.upper.nodes, stranger)
    assert address_in_use(here) == "198.51.100.1"


def test_a_node_that_says_no_address_tells_nothing(here: World) -> None:
    """As one that was just made."""
    (entry,) = here.upper.nodes
    put(here.upper.nodes, told(entry.manifest(), ("Hostname", A)))
    assert address_in_use(here) == "198.51.100.1"
