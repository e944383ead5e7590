"""Tests of the node address in a program that serves no nodes: `apply` must not change an engine's address."""

from typing import Any

import pytest
from worldkit import A, put, raised, thing, world

from tensile.engine.clusters import address_in_use
from tensile.reconcile.world import World


def told(node: dict[str, Any], *addresses: tuple[str, str]) -> dict[str, Any]:
    """Return a Node whose status has these addresses."""
    return {**node, "status": {"addresses": [{"type": kind, "address": address} for kind, address in addresses]}}


@pytest.fixture
def here() -> World:
    """Return a world whose node has the address of an engine, and that was opened from another machine."""
    made = world()
    node = raised(made).manifest()
    put(made.upper.nodes, told(node, ("Hostname", A), ("InternalIP", "192.0.2.7")))
    made.node_address = "198.51.100.1"
    return made


def test_the_address_that_the_engine_published_is_kept(here: World) -> None:
    """Otherwise logs and exec would be sent to the program that wrote the address last."""
    assert address_in_use(here) == "192.0.2.7"


def test_the_node_address_of_the_topology_takes_precedence(here: World) -> None:
    """It is the same on every machine."""
    kubelet = here.topology.kubelet.model_copy(update={"node_address": "203.0.113.5"})
    here.topology = here.topology.model_copy(update={"kubelet": kubelet})
    assert address_in_use(here) == "203.0.113.5"


def test_the_address_of_a_foreign_node_is_ignored() -> None:
    """It is the address of another machine, so the address that this program found is used."""
    here = world()
    here.node_address = "198.51.100.1"
    assert address_in_use(here) == "198.51.100.1"
    stranger = told(thing("Node", A, ""), ("InternalIP", "192.0.2.9"))
    put(here.upper.nodes, stranger)
    assert address_in_use(here) == "198.51.100.1"


def test_the_found_address_is_used_if_the_node_has_no_internal_ip(here: World) -> None:
    """A node that was just created has none."""
    (entry,) = here.upper.nodes
    put(here.upper.nodes, told(entry.manifest(), ("Hostname", A)))
    assert address_in_use(here) == "198.51.100.1"
