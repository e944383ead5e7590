"""Tests of the node address in a program that serves no nodes: `apply` must not change an engine's address."""

from typing import Any

import pytest
from worldkit import A, add_virtual_node, make_object, make_world, put

from tensile.engine.clusters import published_node_address
from tensile.reconcile.world import World


def node_with_addresses(node: dict[str, Any], *addresses: tuple[str, str]) -> dict[str, Any]:
    """Return a Node whose status has these addresses."""
    return {**node, "status": {"addresses": [{"type": kind, "address": address} for kind, address in addresses]}}


@pytest.fixture
def world() -> World:
    """Return a world whose node has the address of an engine, and that was opened from another machine."""
    made = make_world()
    node = add_virtual_node(made).manifest()
    put(made.upper.nodes, node_with_addresses(node, ("Hostname", A), ("InternalIP", "192.0.2.7")))
    made.node_address = "198.51.100.1"
    return made


def test_the_address_that_the_engine_published_is_kept(world: World) -> None:
    """Otherwise logs and exec would be sent to the program that wrote the address last."""
    assert published_node_address(world) == "192.0.2.7"


def test_the_node_address_of_the_topology_takes_precedence(world: World) -> None:
    """It is the same on every machine."""
    kubelet = world.topology.kubelet.model_copy(update={"node_address": "203.0.113.5"})
    world.topology = world.topology.model_copy(update={"kubelet": kubelet})
    assert published_node_address(world) == "203.0.113.5"


def test_the_address_of_a_foreign_node_is_ignored() -> None:
    """It is the address of another machine, so the address that this program found is used."""
    world = make_world()
    world.node_address = "198.51.100.1"
    assert published_node_address(world) == "198.51.100.1"
    stranger = node_with_addresses(make_object("Node", A, ""), ("InternalIP", "192.0.2.9"))
    put(world.upper.nodes, stranger)
    assert published_node_address(world) == "198.51.100.1"


def test_the_found_address_is_used_if_the_node_has_no_internal_ip(world: World) -> None:
    """A node that was just created has none."""
    (entry,) = world.upper.nodes
    put(world.upper.nodes, node_with_addresses(entry.manifest(), ("Hostname", A)))
    assert published_node_address(world) == "198.51.100.1"
