"""The search for a node remembers what it has seen, and finds the same as one that looks at every node."""

from random import Random
from typing import Any

from extenderkit import Play, ground
from hypothesis import given
from hypothesis import strategies as st
from placekit import asking, claim, kind, node, pod, stock, using
from properties import examples

from tensile.policy.extender.node_cache import NodeFinder
from tensile.policy.placement.placement import examine
from tensile.policy.placement.snapshot import Node, Snapshot, node_of, pod_of

HOST = "kubernetes.io/hostname"


def kinds(chance: Random) -> list[dict[str, Any]]:
    """Make pods of a few kinds."""
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "x"}}}
    apart = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    return [
        pod("s", asking(cpu="1"), labels={"app": "x"}),
        pod("m", asking(cpu="2")),
        pod("l", asking(cpu=chance.choice(("3", "4")))),
        pod("n", asking(cpu="1") | {"nodeSelector": {HOST: chance.choice("abc")}}),
        pod("c", asking(cpu="1") | apart, labels={"app": "x"}),
    ]


@examples(200)
@given(st.integers(0, 2**32))
def test_it_finds_what_looking_at_every_node_finds(seed: int) -> None:
    """Through changes of all sorts, with one memory for all of them."""
    chance = Random(seed)
    play = Play(chance)
    seeker = NodeFinder(play.ground)
    wanted = kinds(chance)
    for _ in range(30):
        play.step()
        one = pod_of(chance.choice(wanted))
        node_name, why = seeker.find(one)
        found = examine(one, play.ground.snapshot)
        assert bool(node_name) == found.fits
        assert not node_name or node_name in found.fitting
        assert why == ("" if node_name else found.message)


def test_room_for_what_was_refused_is_told_once() -> None:
    """Of each kind, and only where somebody was refused before the room came."""
    here = ground(node("a"))
    seeker = NodeFinder(here)
    large, huge = (pod_of(pod(name, asking(cpu=cpu))) for name, cpu in (("large", "5"), ("huge", "50")))
    assert not seeker.relieved()
    assert [seeker.find(one)[0] for one in (large, huge)] == ["", ""]
    assert not seeker.relieved()
    here.put_node(node_of(node("b", cpu="4")))
    assert not seeker.relieved()
    here.put_node(node_of(node("c", cpu="8")))
    assert seeker.relieved()
    here.put_node(node_of(node("d", cpu="8")))
    assert not seeker.relieved()
    here.put_node(node_of(node("e", cpu="64")))
    assert seeker.relieved()


def test_every_kind_has_its_turn() -> None:
    """Also where something happens between any two looks, and more kinds wait than are looked at at a time."""
    here = ground(node("a"))
    seeker = NodeFinder(here)
    for number in range(20):
        seeker.find(pod_of(pod(f"p{number}", asking(cpu="1") | {"nodeSelector": {"n": str(number)}})))
    for number in (0, 10, 19):
        here.put_node(node_of(node(f"for-{number}", labels={"n": str(number)})))
        looks = []
        for turn in range(3):
            looks.append(seeker.relieved())
            here.put_node(node_of(node("a", cpu=str(turn + 1))))
        assert looks.count(True) == 1


class Watched(dict[str, int]):
    """A node's resources that count how often they are looked at."""

    looks = 0

    def get(self, key: str, default: Any = None) -> Any:
        """Count, and look."""
        Watched.looks += 1
        return super().get(key, default)


def watched(made: Node) -> Node:
    """Count the reads of what a node has."""
    made.allocatable = Watched(made.allocatable)
    return made


def test_a_full_node_is_not_looked_at_again() -> None:
    """Not for pods of the same kind, while nothing has made room."""
    here = ground()
    for number in range(50):
        here.put_node(watched(node_of(node(f"n{number}", cpu="1" if number < 49 else "4"))))
    seeker = NodeFinder(here)
    assert seeker.find(pod_of(pod("one", asking(cpu="2")))) == ("n49", "")
    Watched.looks = 0
    assert seeker.find(pod_of(pod("two", asking(cpu="2")))) == ("n49", "")
    assert Watched.looks < 10
    here.put_pod(pod_of(pod("three", asking(cpu="1"), on="n49"), settled=True))
    assert seeker.find(pod_of(pod("four", asking(cpu="4"))))[0] == ""
    Watched.looks = 0
    assert seeker.find(pod_of(pod("five", asking(cpu="4")))) == ("", "0/50 nodes are available: 50 Insufficient cpu.")
    assert Watched.looks == 0


def test_room_that_was_made_is_found() -> None:
    """A node that was full is looked at again."""
    here = ground(node("a"))
    here.put_pod(pod_of(pod("there", asking(cpu="4"), on="a"), settled=True))
    seeker = NodeFinder(here)
    assert seeker.find(pod_of(pod(spec=asking(cpu="1")))) == ("", "0/1 nodes are available: 1 Insufficient cpu.")
    here.remove_pod(("default", "there"))
    assert seeker.find(pod_of(pod(spec=asking(cpu="1")))) == ("a", "")


def test_a_pod_that_keeps_apart_sees_who_came() -> None:
    """Where nodes depend on each other, nothing is remembered beyond a change."""
    here = ground(node("a"), node("b"))
    seeker = NodeFinder(here)
    one = kinds(Random(1))[4]
    names = []
    for number in range(3):
        found, _ = seeker.find(pod_of(one | {"metadata": one["metadata"] | {"name": f"c{number}"}}))
        names.append(found)
        if found:
            here.assume(pod_of(one | {"metadata": one["metadata"] | {"name": f"c{number}"}}), found, 0.0)
    assert sorted(names) == ["", "a", "b"]


def test_a_reason_that_is_no_nodes() -> None:
    """It is told, and forgotten when something is another way."""
    here = ground(node("a"))
    seeker = NodeFinder(here)
    wanted = pod_of(pod(spec=using("data")))
    assert seeker.find(wanted) == ("", '0/1 nodes are available: persistentvolumeclaim "data" not found.')
    here.snapshot.storage = stock(claims=[claim(storageClassName="later")], classes=[kind()])
    here.put_spaces({})
    assert seeker.find(wanted) == ("a", "")


def test_only_so_many_kinds_are_remembered() -> None:
    """Memory does not grow with what passes by."""
    seeker = NodeFinder(ground(node("a")))
    for number in range(600):
        seeker.find(pod_of(pod(spec=asking(cpu="1") | {"nodeSelector": {"n": str(number)}})))
    assert len(seeker._known) == 256
    assert isinstance(seeker.ground.snapshot, Snapshot)
