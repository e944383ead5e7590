"""Tests of the node search: it remembers earlier results, and finds the same as an examination of every node."""

from random import Random
from typing import Any

from extenderkit import RandomNodeCache, node_cache
from hypothesis import given
from hypothesis import strategies as st
from placekit import claim, make_storage, make_storage_class, node, pod, spec_requesting, spec_with_claims
from properties import examples

from tensile.policy.extender.node_cache import NodeFinder
from tensile.policy.placement.placement import examine
from tensile.policy.placement.snapshot import Node, Snapshot, node_of, pod_of

HOST = "kubernetes.io/hostname"


def kinds(chance: Random) -> list[dict[str, Any]]:
    """Create pods of a few kinds."""
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "x"}}}
    apart = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    return [
        pod("s", spec_requesting(cpu="1"), labels={"app": "x"}),
        pod("m", spec_requesting(cpu="2")),
        pod("l", spec_requesting(cpu=chance.choice(("3", "4")))),
        pod("n", spec_requesting(cpu="1") | {"nodeSelector": {HOST: chance.choice("abc")}}),
        pod("c", spec_requesting(cpu="1") | apart, labels={"app": "x"}),
    ]


@examples(200)
@given(st.integers(0, 2**32))
def test_a_search_finds_the_same_as_an_examination_of_every_node(seed: int) -> None:
    """One finder is used through random changes of all kinds."""
    chance = Random(seed)
    random_cache = RandomNodeCache(chance)
    seeker = NodeFinder(random_cache.node_cache)
    wanted = kinds(chance)
    for _ in range(30):
        random_cache.step()
        one = pod_of(chance.choice(wanted))
        node_name, why = seeker.find(one)
        found = examine(one, random_cache.node_cache.snapshot)
        assert bool(node_name) == found.fits
        assert not node_name or node_name in found.fitting
        assert why == ("" if node_name else found.message)


def test_new_room_for_a_refused_kind_of_pods_is_reported_once() -> None:
    """It is reported only if a pod of that kind was refused before the room appeared."""
    cache = node_cache(node("a"))
    seeker = NodeFinder(cache)
    large, huge = (pod_of(pod(name, spec_requesting(cpu=cpu))) for name, cpu in (("large", "5"), ("huge", "50")))
    assert not seeker.relieved()
    assert [seeker.find(one)[0] for one in (large, huge)] == ["", ""]
    assert not seeker.relieved()
    cache.put_node(node_of(node("b", cpu="4")))
    assert not seeker.relieved()
    cache.put_node(node_of(node("c", cpu="8")))
    assert seeker.relieved()
    cache.put_node(node_of(node("d", cpu="8")))
    assert not seeker.relieved()
    cache.put_node(node_of(node("e", cpu="64")))
    assert seeker.relieved()


def test_every_refused_kind_is_examined_in_turn() -> None:
    """That holds if a change happens between any two examinations and more kinds wait than are examined at once."""
    cache = node_cache(node("a"))
    seeker = NodeFinder(cache)
    for number in range(20):
        seeker.find(pod_of(pod(f"p{number}", spec_requesting(cpu="1") | {"nodeSelector": {"n": str(number)}})))
    for number in (0, 10, 19):
        cache.put_node(node_of(node(f"for-{number}", labels={"n": str(number)})))
        looks = []
        for turn in range(3):
            looks.append(seeker.relieved())
            cache.put_node(node_of(node("a", cpu=str(turn + 1))))
        assert looks.count(True) == 1


class ReadCountingResources(dict[str, int]):
    """A node's resources, which count their reads."""

    looks = 0

    def get(self, key: str, default: Any = None) -> Any:
        """Count the read, and return the value."""
        ReadCountingResources.looks += 1
        return super().get(key, default)


def watched(made: Node) -> Node:
    """Count the reads of a node's allocatable resources."""
    made.allocatable = ReadCountingResources(made.allocatable)
    return made


def test_a_full_node_is_not_examined_again_for_the_same_kind() -> None:
    """The result is reused until room is freed."""
    cache = node_cache()
    for number in range(50):
        cache.put_node(watched(node_of(node(f"n{number}", cpu="1" if number < 49 else "4"))))
    seeker = NodeFinder(cache)
    assert seeker.find(pod_of(pod("one", spec_requesting(cpu="2")))) == ("n49", "")
    ReadCountingResources.looks = 0
    assert seeker.find(pod_of(pod("two", spec_requesting(cpu="2")))) == ("n49", "")
    assert ReadCountingResources.looks < 10
    cache.put_pod(pod_of(pod("three", spec_requesting(cpu="1"), on="n49"), settled=True))
    assert seeker.find(pod_of(pod("four", spec_requesting(cpu="4"))))[0] == ""
    ReadCountingResources.looks = 0
    assert seeker.find(pod_of(pod("five", spec_requesting(cpu="4")))) == (
        "",
        "0/50 nodes are available: 50 Insufficient cpu.",
    )
    assert ReadCountingResources.looks == 0


def test_a_full_node_is_examined_again_after_a_pod_is_removed() -> None:
    """The next pod fits on it."""
    cache = node_cache(node("a"))
    cache.put_pod(pod_of(pod("there", spec_requesting(cpu="4"), on="a"), settled=True))
    seeker = NodeFinder(cache)
    assert seeker.find(pod_of(pod(spec=spec_requesting(cpu="1")))) == (
        "",
        "0/1 nodes are available: 1 Insufficient cpu.",
    )
    cache.remove_pod(("default", "there"))
    assert seeker.find(pod_of(pod(spec=spec_requesting(cpu="1")))) == ("a", "")


def test_a_search_with_anti_affinity_considers_every_new_pod() -> None:
    """If nodes depend on each other, no result is reused after a change."""
    cache = node_cache(node("a"), node("b"))
    seeker = NodeFinder(cache)
    one = kinds(Random(1))[4]
    names = []
    for number in range(3):
        found, _ = seeker.find(pod_of(one | {"metadata": one["metadata"] | {"name": f"c{number}"}}))
        names.append(found)
        if found:
            cache.assume(pod_of(one | {"metadata": one["metadata"] | {"name": f"c{number}"}}), found, 0.0)
    assert sorted(names) == ["", "a", "b"]


def test_a_reason_that_applies_to_no_single_node_is_returned_until_a_change() -> None:
    """A missing claim is such a reason; the search is repeated after a change."""
    cache = node_cache(node("a"))
    seeker = NodeFinder(cache)
    wanted = pod_of(pod(spec=spec_with_claims("data")))
    assert seeker.find(wanted) == ("", '0/1 nodes are available: persistentvolumeclaim "data" not found.')
    cache.snapshot.storage = make_storage(claims=[claim(storageClassName="later")], classes=[make_storage_class()])
    cache.put_spaces({})
    assert seeker.find(wanted) == ("a", "")


def test_at_most_256_kinds_of_pods_are_remembered() -> None:
    """Otherwise memory would grow with the number of kinds."""
    seeker = NodeFinder(node_cache(node("a")))
    for number in range(600):
        seeker.find(pod_of(pod(spec=spec_requesting(cpu="1") | {"nodeSelector": {"n": str(number)}})))
    assert len(seeker._searches) == 256
    assert isinstance(seeker.cache.snapshot, Snapshot)
