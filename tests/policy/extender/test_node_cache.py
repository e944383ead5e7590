"""A lower cluster kept up to date by changes is the same as one read at once; promises are kept, and given back."""

from random import Random
from typing import Any

from extenderkit import Play, ground
from hypothesis import given
from hypothesis import strategies as st
from placekit import asking, node, pod, space
from properties import examples

from tensile.policy.extender.node_cache import NodeCache
from tensile.policy.placement.placement import examine
from tensile.policy.placement.snapshot import Snapshot, node_of, pod_of


def shape(snapshot: Snapshot) -> Any:
    """Return what two snapshots of the same cluster have in common."""
    return (
        {
            name: (sorted(one.pods), {key: amount for key, amount in one.used.items() if amount}, one.allocatable)
            for name, one in snapshot.nodes.items()
        },
        {
            name: sorted((alike, sorted(one.nodes.items())) for alike, one in guards.items())
            for name, guards in snapshot.guarded.items()
        },
        snapshot.population,
    )


@examples(300)
@given(st.integers(0, 2**32))
def test_step_by_step_is_the_same_as_at_once(seed: int) -> None:
    """Whatever comes in whichever order: nodes after their pods, pods that move, promises that are kept or not."""
    play = Play(Random(seed))
    for _ in range(40):
        play.step()
        assert shape(play.ground.snapshot) == shape(play.expected())
    used = sum(one.used.get("cpu", 0) for one in play.ground.snapshot.nodes.values())
    offered = sum(one.allocatable["cpu"] for one in play.ground.snapshot.nodes.values())
    assert (play.ground.used["cpu"], play.ground.offered["cpu"]) == (used, offered)


def fits(here: NodeCache, cpu: str) -> bool:
    """Report whether another pod fits."""
    return examine(pod_of(pod("other", asking(cpu=cpu))), here.snapshot).fits


def test_a_promise_is_room_that_is_taken() -> None:
    """Until it is given back."""
    here = ground(node("a"))
    here.assume(pod_of(pod(spec=asking(cpu="3"))), "a", 0.0)
    assert not fits(here, "2")
    here.forget(("default", "web"))
    assert fits(here, "2")


def test_a_promise_that_nobody_comes_for_lapses() -> None:
    """Unless the pod is known to be on its way."""
    here = ground(node("a"))
    here.assume(pod_of(pod("one", asking(cpu="1"))), "a", 10.0)
    here.assume(pod_of(pod("two", asking(cpu="1"))), "a", 20.0)
    here.confirm(("default", "two"))
    here.expire(15.0)
    assert list(here.promises) == [("default", "two")]
    here.expire(1e9)
    assert list(here.promises) == [("default", "two")]
    here.confirm(("default", "nobody"))


def test_a_pod_that_has_come_needs_no_promise() -> None:
    """Wherever it went: it takes what it takes, once."""
    here = ground(node("a"), node("b"))
    here.assume(pod_of(pod(spec=asking(cpu="3"))), "a", 0.0)
    here.put_pod(pod_of(pod(spec=asking(cpu="3"), on="b"), settled=True))
    assert here.promises == {}
    assert here.snapshot.nodes["a"].pods == {}
    here.assume(pod_of(pod(spec=asking(cpu="3"))), "a", 1.0)
    assert here.promises == {}


def test_a_pod_that_comes_where_it_was_promised_makes_no_room() -> None:
    """What is known of full nodes stays known."""
    here = ground(node("a"))
    here.assume(pod_of(pod(spec=asking(cpu="3"))), "a", 0.0)
    grown = here.grown
    here.put_pod(pod_of(pod(spec=asking(cpu="3"), on="a"), settled=True))
    assert here.grown == grown
    here.put_pod(pod_of(pod(spec=asking(cpu="3"), on="a"), settled=True))
    assert here.grown == grown


def test_what_makes_room_is_counted() -> None:
    """A pod that goes, a node that comes or changes, a promise that is broken, namespaces."""
    here = ground(node("a"))
    here.put_pod(pod_of(pod(spec=asking(cpu="3"), on="a"), settled=True))
    here.assume(pod_of(pod("late", asking(cpu="1"))), "a", 0.0)
    for change in (
        lambda: here.remove_pod(("default", "web")),
        lambda: here.put_node(node_of(node("b"))),
        lambda: here.remove_node("b"),
        lambda: here.forget(("default", "late")),
        lambda: here.put_spaces({"default": space("default")["metadata"]["labels"]}),
    ):
        before = here.grown
        change()
        assert here.grown > before
    before = here.grown
    here.remove_pod(("default", "nobody"))
    here.remove_node("nobody")
    assert here.grown == before


def test_pods_that_are_alike_trade_places() -> None:
    """One that comes where another like it is expected leaves its own place to that one, and makes no room."""
    here = ground(node("a"), node("b"))
    for name, place in (("one", "a"), ("two", "b")):
        here.assume(pod_of(pod(name, asking(cpu="3"))), place, 0.0)
    here.confirm(("default", "two"))
    grown = here.grown
    here.put_pod(pod_of(pod("one", asking(cpu="3"), on="b"), settled=True))
    (left,) = here.promises.values()
    assert (left.pod.name, left.node, left.since) == ("two", "a", float("inf"))
    assert (here.grown, here.used["cpu"]) == (grown, 6000)
    assert not any(map(here.is_crowded, "ab"))
    here.put_pod(pod_of(pod("two", asking(cpu="3"), on="a"), settled=True))
    assert (here.promises, here.grown, here.used["cpu"]) == ({}, grown, 6000)


def test_pods_that_are_not_alike_do_not_trade() -> None:
    """The node is crowded then, which is told, and who is expected there."""
    here = ground(node("a"), node("b"))
    here.assume(pod_of(pod("one", asking(cpu="2"))), "a", 0.0)
    here.assume(pod_of(pod("two", asking(cpu="3"))), "b", 0.0)
    here.put_pod(pod_of(pod("one", asking(cpu="2"), on="b"), settled=True))
    assert here.is_crowded("b")
    assert here.assumed("b") == [("default", "two")]
    assert here.assumed("a") == []
    assert fits(here, "4")


def test_a_node_is_crowded_by_pods_too() -> None:
    """Where it has fewer places than pods; one that is not there has none."""
    here = ground(node("a", pods="1"))
    here.assume(pod_of(pod("one")), "a", 0.0)
    assert not here.is_crowded("a")
    here.put_pod(pod_of(pod("two", on="a"), settled=True))
    assert here.is_crowded("a")
    assert here.is_crowded("nowhere")


def test_what_is_expected_on_a_node_that_went() -> None:
    """Trading works there as well: both places are kept in mind."""
    here = ground(node("a"), node("b"))
    here.assume(pod_of(pod("one", asking(cpu="3"))), "a", 0.0)
    here.assume(pod_of(pod("two", asking(cpu="3"))), "b", 0.0)
    here.remove_node("a")
    assert here.assumed("a") == [("default", "one")]
    here.put_pod(pod_of(pod("one", asking(cpu="3"), on="b"), settled=True))
    assert here.assumed("a") == [("default", "two")]
    here.put_node(node_of(node("a")))
    assert (here.assumed("a"), here.used["cpu"], here.has(("default", "one"))) == ([("default", "two")], 6000, True)


def test_nothing_is_kept_in_mind_of_nodes_that_left_empty() -> None:
    """An autoscaler's nodes have other names each time."""
    here = ground(node("stays"))
    for number in range(50):
        name = f"n{number}"
        here.put_node(node_of(node(name)))
        here.put_pod(pod_of(pod(f"p{number}", on=name), settled=True))
        here.assume(pod_of(pod(f"q{number}")), name, 0.0)
        if number % 2:
            here.remove_node(name)
        here.remove_pod(("default", f"p{number}"))
        here.forget(("default", f"q{number}"))
        here.remove_node(name)
    assert here._early == {}
    for name in ("one", "two"):
        here.assume(pod_of(pod(name, asking(cpu="3"))), f"{name}s", 0.0)
    here.put_pod(pod_of(pod("one", asking(cpu="3"), on="twos"), settled=True))
    assert set(here._early) == {"ones", "twos"}
    here.put_pod(pod_of(pod("two", asking(cpu="3"), on="twos"), settled=True))
    assert set(here._early) == {"twos"}
