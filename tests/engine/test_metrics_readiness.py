"""Tests of the readiness of an engine, and of the reason that it reports while it is not ready."""

from types import SimpleNamespace

import pytest
from worldkit import A, B, make_world

from tensile.engine.metrics import missing
from tensile.kube.store import Cache
from tensile.objects import ROLE, UPPER
from tensile.reconcile.world import World


def missing_for_readiness(world: World, *, denied: str = "", waits: str = "", is_running: bool = True) -> str:
    """Return what is missing for the readiness of an engine with this world."""
    joined = {name: SimpleNamespace(lower=lower) for name, lower in world.lowers.items()}
    fleet = {UPPER: SimpleNamespace(denied=denied)}
    engine = SimpleNamespace(
        is_running=is_running,
        clusters=SimpleNamespace(world=world, joined=joined, fleet=fleet),
        webhook=SimpleNamespace(server=SimpleNamespace(waits=lambda: waits)),
    )
    return missing(engine)  # type: ignore[arg-type]


def test_an_engine_is_ready_if_the_required_lists_are_complete() -> None:
    """Its webhook must be trusted too, and the upper cluster must have responded."""
    assert missing_for_readiness(make_world()) == ""
    assert (
        missing_for_readiness(make_world(), waits="its certificate is not trusted yet")
        == "its certificate is not trusted yet"
    )
    assert missing_for_readiness(make_world(), is_running=False) == "the upper cluster has not responded yet"


@pytest.mark.parametrize("name", ["nodes", "namespaces", "config_maps", "secrets", "waiting", "remade"])
def test_an_engine_is_not_ready_if_a_list_that_every_lower_needs_is_missing(name: str) -> None:
    """The reason includes the permission that the upper cluster denies."""
    world = make_world()
    setattr(world.upper, name, Cache())
    message = "not all objects of the upper cluster are listed yet"
    assert missing_for_readiness(world) == message
    assert (
        missing_for_readiness(world, denied="upper: list Node: denied: no")
        == f"{message}: upper: list Node: denied: no"
    )


def test_an_engine_is_not_ready_until_the_pods_of_every_virtual_node_are_listed() -> None:
    """A single virtual node without a list of its pods is enough to make the engine unready."""
    for name in (A, B):
        world = make_world()
        world.lowers[name].upper_pods = Cache()
        assert missing_for_readiness(world) != ""


def test_a_missing_list_of_a_controller_does_not_make_an_engine_unready() -> None:
    """A missing permission of a controller would make all replicas unready at once, and their webhook with them."""
    world = make_world(more="controllers: [RBAC]\n")
    world.upper.more[ROLE] = Cache()
    assert missing_for_readiness(world, denied="upper: list Role: denied: no") == ""
