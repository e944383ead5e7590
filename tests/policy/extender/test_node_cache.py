"""Tests of the node cache: updates lead to the same state as a complete read, and reservations are settled."""

from random import Random
from typing import Any

from extenderkit import RandomNodeCache, node_cache
from hypothesis import given
from hypothesis import strategies as st
from placekit import make_namespace, node, pod, spec_requesting
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
    random_cache = RandomNodeCache(Random(seed))
    for _ in range(40):
        random_cache.step()
        assert shape(random_cache.node_cache.snapshot) == shape(random_cache.expected())
    used = sum(one.used.get("cpu", 0) for one in random_cache.node_cache.snapshot.nodes.values())
    offered = sum(one.allocatable["cpu"] for one in random_cache.node_cache.snapshot.nodes.values())
    assert (random_cache.node_cache.used["cpu"], random_cache.node_cache.offered["cpu"]) == (used, offered)


def fits(cache: NodeCache, cpu: str) -> bool:
    """Report whether another pod fits."""
    return examine(pod_of(pod("other", spec_requesting(cpu=cpu))), cache.snapshot).fits


def test_a_reservation_uses_room_until_it_is_released() -> None:
    """A pod that needs the reserved room fits only after the release."""
    cache = node_cache(node("a"))
    cache.assume(pod_of(pod(spec=spec_requesting(cpu="3"))), "a", 0.0)
    assert not fits(cache, "2")
    cache.forget(("default", "web"))
    assert fits(cache, "2")


def test_a_reservation_expires_unless_it_is_confirmed() -> None:
    """A confirmation of an unknown pod is ignored."""
    cache = node_cache(node("a"))
    cache.assume(pod_of(pod("one", spec_requesting(cpu="1"))), "a", 10.0)
    cache.assume(pod_of(pod("two", spec_requesting(cpu="1"))), "a", 20.0)
    cache.confirm(("default", "two"))
    cache.expire(15.0)
    assert list(cache.reservations) == [("default", "two")]
    cache.expire(1e9)
    assert list(cache.reservations) == [("default", "two")]
    cache.confirm(("default", "nobody"))


def test_a_pod_on_a_node_ends_its_reservation() -> None:
    """That holds for any node, and the pod's room is counted once."""
    cache = node_cache(node("a"), node("b"))
    cache.assume(pod_of(pod(spec=spec_requesting(cpu="3"))), "a", 0.0)
    cache.put_pod(pod_of(pod(spec=spec_requesting(cpu="3"), on="b"), settled=True))
    assert cache.reservations == {}
    assert cache.snapshot.nodes["a"].pods == {}
    cache.assume(pod_of(pod(spec=spec_requesting(cpu="3"))), "a", 1.0)
    assert cache.reservations == {}


def test_a_pod_that_uses_its_reservation_does_not_count_as_new_room() -> None:
    """The remembered results for full nodes stay valid."""
    cache = node_cache(node("a"))
    cache.assume(pod_of(pod(spec=spec_requesting(cpu="3"))), "a", 0.0)
    grown = cache.grown
    cache.put_pod(pod_of(pod(spec=spec_requesting(cpu="3"), on="a"), settled=True))
    assert cache.grown == grown
    cache.put_pod(pod_of(pod(spec=spec_requesting(cpu="3"), on="a"), settled=True))
    assert cache.grown == grown


def test_every_change_that_frees_room_is_counted() -> None:
    """That includes removed pods, new and removed nodes, released reservations, and changed namespaces."""
    cache = node_cache(node("a"))
    cache.put_pod(pod_of(pod(spec=spec_requesting(cpu="3"), on="a"), settled=True))
    cache.assume(pod_of(pod("late", spec_requesting(cpu="1"))), "a", 0.0)
    for change in (
        lambda: cache.remove_pod(("default", "web")),
        lambda: cache.put_node(node_of(node("b"))),
        lambda: cache.remove_node("b"),
        lambda: cache.forget(("default", "late")),
        lambda: cache.put_spaces({"default": make_namespace("default")["metadata"]["labels"]}),
    ):
        before = cache.grown
        change()
        assert cache.grown > before
    before = cache.grown
    cache.remove_pod(("default", "nobody"))
    cache.remove_node("nobody")
    assert cache.grown == before


def test_equal_pods_swap_their_reservations() -> None:
    """A pod on an equal pod's reserved node leaves its own reservation to that pod, and frees no room."""
    cache = node_cache(node("a"), node("b"))
    for name, place in (("one", "a"), ("two", "b")):
        cache.assume(pod_of(pod(name, spec_requesting(cpu="3"))), place, 0.0)
    cache.confirm(("default", "two"))
    grown = cache.grown
    cache.put_pod(pod_of(pod("one", spec_requesting(cpu="3"), on="b"), settled=True))
    (left,) = cache.reservations.values()
    assert (left.pod.name, left.node, left.since) == ("two", "a", float("inf"))
    assert (cache.grown, cache.used["cpu"]) == (grown, 6000)
    assert not any(map(cache.is_crowded, "ab"))
    cache.put_pod(pod_of(pod("two", spec_requesting(cpu="3"), on="a"), settled=True))
    assert (cache.reservations, cache.grown, cache.used["cpu"]) == ({}, grown, 6000)


def test_different_pods_do_not_swap_their_reservations() -> None:
    """The node is overcommitted in that case, and the pods with reservations on it are known."""
    cache = node_cache(node("a"), node("b"))
    cache.assume(pod_of(pod("one", spec_requesting(cpu="2"))), "a", 0.0)
    cache.assume(pod_of(pod("two", spec_requesting(cpu="3"))), "b", 0.0)
    cache.put_pod(pod_of(pod("one", spec_requesting(cpu="2"), on="b"), settled=True))
    assert cache.is_crowded("b")
    assert cache.assumed("b") == [("default", "two")]
    assert cache.assumed("a") == []
    assert fits(cache, "4")


def test_a_node_with_more_pods_than_allowed_is_crowded() -> None:
    """An unknown node is crowded too, because it has no capacity."""
    cache = node_cache(node("a", pods="1"))
    cache.assume(pod_of(pod("one")), "a", 0.0)
    assert not cache.is_crowded("a")
    cache.put_pod(pod_of(pod("two", on="a"), settled=True))
    assert cache.is_crowded("a")
    assert cache.is_crowded("nowhere")


def test_reservations_on_a_removed_node_are_remembered_and_swapped() -> None:
    """They count again if the node returns."""
    cache = node_cache(node("a"), node("b"))
    cache.assume(pod_of(pod("one", spec_requesting(cpu="3"))), "a", 0.0)
    cache.assume(pod_of(pod("two", spec_requesting(cpu="3"))), "b", 0.0)
    cache.remove_node("a")
    assert cache.assumed("a") == [("default", "one")]
    cache.put_pod(pod_of(pod("one", spec_requesting(cpu="3"), on="b"), settled=True))
    assert cache.assumed("a") == [("default", "two")]
    cache.put_node(node_of(node("a")))
    assert (cache.assumed("a"), cache.used["cpu"], cache.has(("default", "one"))) == ([("default", "two")], 6000, True)


def test_removed_nodes_without_pods_are_forgotten() -> None:
    """An autoscaler creates nodes with new names each time."""
    cache = node_cache(node("stays"))
    for number in range(50):
        name = f"n{number}"
        cache.put_node(node_of(node(name)))
        cache.put_pod(pod_of(pod(f"p{number}", on=name), settled=True))
        cache.assume(pod_of(pod(f"q{number}")), name, 0.0)
        if number % 2:
            cache.remove_node(name)
        cache.remove_pod(("default", f"p{number}"))
        cache.forget(("default", f"q{number}"))
        cache.remove_node(name)
    assert cache._pods_on_unknown_nodes == {}
    for name in ("one", "two"):
        cache.assume(pod_of(pod(name, spec_requesting(cpu="3"))), f"{name}s", 0.0)
    cache.put_pod(pod_of(pod("one", spec_requesting(cpu="3"), on="twos"), settled=True))
    assert set(cache._pods_on_unknown_nodes) == {"ones", "twos"}
    cache.put_pod(pod_of(pod("two", spec_requesting(cpu="3"), on="twos"), settled=True))
    assert set(cache._pods_on_unknown_nodes) == {"twos"}
