"""When an engine is ready, and what it says while it is not."""

from types import SimpleNamespace

import pytest
from worldkit import A, B, world

from tensile.engine.metrics import missing
from tensile.kube.store import Cache
from tensile.objects import ROLE, UPPER
from tensile.reconcile.world import World


def said(here: World, *, denied: str = "", waits: str = "", is_running: bool = True) -> str:
    """Ask what an engine misses that knows this world."""
    joined = {name: SimpleNamespace(lower=lower) for name, lower in here.lowers.items()}
    fleet = {UPPER: SimpleNamespace(denied=denied)}
    engine = SimpleNamespace(
        is_running=is_running,
        clusters=SimpleNamespace(world=here, joined=joined, fleet=fleet),
        hook=SimpleNamespace(server=SimpleNamespace(waits=lambda: waits)),
    )
    return missing(engine)  # type: ignore[arg-type]


def test_it_is_ready_when_what_every_lower_needs_is_listed() -> None:
    """And the webhook is trusted; before the upper cluster answers it is not."""
    assert said(world()) == ""
    assert said(world(), waits="its certificate is not trusted yet") == "its certificate is not trusted yet"
    assert said(world(), is_running=False) == "the upper cluster has not responded yet"


@pytest.mark.parametrize("name", ["nodes", "namespaces", "config_maps", "secrets", "waiting", "remade"])
def test_a_list_that_every_lower_needs_is_waited_for(name: str) -> None:
    """What the cluster does not allow is told with it."""
    here = world()
    setattr(here.upper, name, Cache())
    words = "not all objects of the upper cluster are listed yet"
    assert said(here) == words
    assert said(here, denied="upper: list Node: denied: no") == f"{words}: upper: list Node: denied: no"


def test_the_pods_of_every_node_are_waited_for() -> None:
    """Of each of them."""
    for name in (A, B):
        here = world()
        here.lowers[name].upper_pods = Cache()
        assert said(here) != ""


def test_what_a_controller_follows_is_not_waited_for() -> None:
    """A right that is missing for it would call all replicas unready at once, and take the webhook with them."""
    here = world(more="controllers: [RBAC]\n")
    here.upper.more[ROLE] = Cache()
    assert said(here, denied="upper: list Role: denied: no") == ""
