"""Tests of the node cache: updates lead to the same state as a complete read, and reservations are settled."""

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
    """Return the comparable content of a snapshot."""
    return (
        {
            name: (sorted(one.pods), {key: amount for key, amount in one.used.items() if amount}, one.allocatable)
            for name, one in snapshot.nodes.items()
        },
        {
            name: sorted((alike, sorted(one.nodes.items())) for alike, one in guards.items())
            for name, guards in snapshot.repelling.items()
        },
        snapshot.population,
    )


@examples(300)
@given(st.integers(0, 2**32))
def test_incremental_updates_equal_a_complete_read(seed: int) -> None:
    """Nodes may appear after their pods, pods may change nodes, and reservations may be used or not."""
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


def test_a_reservation_uses_room_until_it_is_released() -> None:
    """A pod that needs the reserved room fits only after the release."""
    here = ground(node("a"))
    here.assume(pod_of(pod(spec=asking(cpu="3"))), "a", 0.0)
    assert not fits(here, "2")
    here.forget(("default", "web"))
    assert fits(here, "2")


def test_a_reservation_expires_unless_it_is_confirmed() -> None:
    """A confirmation of an unknown pod is ignored."""
    here = ground(node("a"))
    here.assume(pod_of(pod("one", asking(cpu="1"))), "a", 10.0)
    here.assume(pod_of(pod("two", asking(cpu="1"))), "a", 20.0)
    here.confirm(("default", "two"))
    here.expire(15.0)
    assert list(here.reservations) == [("default", "two")]
    here.expire(1e9)
    assert list(here.reservations) == [("default", "two")]
    here.confirm(("default", "nobody"))


def test_a_pod_on_a_node_ends_its_reservation() -> None:
    """That holds for any node, and the pod's room is counted once."""
    here = ground(node("a"), node("b"))
    here.assume(pod_of(pod(spec=asking(cpu="3"))), "a", 0.0)
    here.put_pod(pod_of(pod(spec=asking(cpu="3"), on="b"), settled=True))
    assert here.reservations == {}
    assert here.snapshot.nodes["a"].pods == {}
    here.assume(pod_of(pod(spec=asking(cpu="3"))), "a", 1.0)
    assert here.reservations == {}


def test_a_pod_that_uses_its_reservation_does_not_count_as_new_room() -> None:
    """The remembered results for full nodes stay valid."""
    here = ground(node("a"))
    here.assume(pod_of(pod(spec=asking(cpu="3"))), "a", 0.0)
    grown = here.grown
    here.put_pod(pod_of(pod(spec=asking(cpu="3"), on="a"), settled=True))
    assert here.grown == grown
    here.put_pod(pod_of(pod(spec=asking(cpu="3"), on="a"), settled=True))
    assert here.grown == grown


def test_every_change_that_frees_room_is_counted() -> None:
    """That includes removed pods, new and removed nodes, released reservations, and changed namespaces."""
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


def test_equal_pods_swap_their_reservations() -> None:
    """A pod on an equal pod's reserved node leaves its own reservation to that pod, and frees no room."""
    here = ground(node("a"), node("b"))
    for name, place in (("one", "a"), ("two", "b")):
        here.assume(pod_of(pod(name, asking(cpu="3"))), place, 0.0)
    here.confirm(("default", "two"))
    grown = here.grown
    here.put_pod(pod_of(pod("one", asking(cpu="3"), on="b"), settled=True))
    (left,) = here.reservations.values()
    assert (left.pod.name, left.node, left.since) == ("two", "a", float("inf"))
    assert (here.grown, here.used["cpu"]) == (grown, 6000)
    assert not any(map(here.is_crowded, "ab"))
    here.put_pod(pod_of(pod("two", asking(cpu="3"), on="a"), settled=True))
    assert (here.reservations, here.grown, here.used["cpu"]) == ({}, grown, 6000)


def test_different_pods_do_not_swap_their_reservations() -> None:
    """The node is overcommitted in that case, and the pods with reservations on it are known."""
    here = ground(node("a"), node("b"))
    here.assume(pod_of(pod("one", asking(cpu="2"))), "a", 0.0)
    here.assume(pod_of(pod("two", asking(cpu="3"))), "b", 0.0)
    here.put_pod(pod_of(pod("one", asking(cpu="2"), on="b"), settled=True))
    assert here.is_crowded("b")
    assert here.assumed("b") == [("default", "two")]
    assert here.assumed("a") == []
    assert fits(here, "4")


def test_a_node_with_more_pods_than_allowed_is_crowded() -> None:
    """An unknown node is crowded too, because it has no capacity."""
    here = ground(node("a", pods="1"))
    here.assume(pod_of(pod("one")), "a", 0.0)
    assert not here.is_crowded("a")
    here.put_pod(pod_of(pod("two", on="a"), settled=True))
    assert here.is_crowded("a")
    assert here.is_crowded("nowhere")


def test_reservations_on_a_removed_node_are_remembered_and_swapped() -> None:
    """They count again if the node returns."""
    here = ground(node("a"), node("b"))
    here.assume(pod_of(pod("one", asking(cpu="3"))), "a", 0.0)
    here.assume(pod_of(pod("two", asking(cpu="3"))), "b", 0.0)
    here.remove_node("a")
    assert here.assumed("a") == [("default", "one")]
    here.put_pod(pod_of(pod("one", asking(cpu="3"), on="b"), settled=True))
    assert here.assumed("a") == [("default", "two")]
    here.put_node(node_of(node("a")))
    assert (here.assumed("a"), here.used["cpu"], here.has(("default", "one"))) == ([("default", "two")], 6000, True)


def test_removed_nodes_without_pods_are_forgotten() -> None:
    """An autoscaler creates nodes with new names each time."""
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
    assert here._pods_on_unknown_nodes == {}
    for name in ("one", "two"):
        here.assume(pod_of(pod(name, asking(cpu="3"))), f"{name}s", 0.0)
    here.put_pod(pod_of(pod("one", asking(cpu="3"), on="twos"), settled=True))
    assert set(here._pods_on_unknown_nodes) == {"ones", "twos"}
    here.put_pod(pod_of(pod("two", asking(cpu="3"), on="twos"), settled=True))
    assert set(here._pods_on_unknown_nodes) == {"twos"}
