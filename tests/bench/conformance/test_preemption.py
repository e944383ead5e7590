"""Tests of how the bench of preemption classifies scenes, needless victims and failures."""

from collections import Counter
from random import Random

import pytest

from bench.conformance.preemption.__main__ import Outcome, judged, manifest, summed
from bench.conformance.preemption.scenes import (
    SITUATIONS,
    Member,
    Scene,
    SceneNode,
    fits,
    is_same,
    needless,
    scene,
    situation,
)

LOWERS = ("a", "b")
HERE, BESIDE = SceneNode("n", "a", 4000), SceneNode("m", "a", 4000)
COMER = Member("comer", "", 2000, "high")


def staged(*members: Member, comer: Member = COMER, places: tuple[SceneNode, ...] = (HERE, BESIDE)) -> Scene:
    """Return a scene."""
    return Scene(places, members, {}, comer)


def there(name: str, node: str = "n", cpu: int = 3000, kind: str = "low", **more: bool) -> Member:
    """Return a pod that exists."""
    return Member(name, node, cpu, kind, **more)


@pytest.mark.parametrize(
    ("made", "like"),
    [
        (staged(), "room"),
        (staged(there("x"), there("y", "m")), "fragments"),
        (staged(there("x", kind="top"), there("y", "m", kind="top")), "fragments in vain"),
        (staged(there("x", cpu=4000), there("y", "m", 3500)), "full"),
        (staged(there("x", cpu=4000), there("y", "m", 4000), comer=Member("c", "", 2000, "never")), "full in vain"),
        (staged(places=(SceneNode("n", "a", 4000, cordoned=True),)), "full in vain"),
    ],
)
def test_a_scene_is_classified_by_its_free_and_preemptable_resources(made: Scene, like: str) -> None:
    """The classes are room, fragments and full, the latter two also without a possible preemption."""
    assert situation(made) == like


def test_scenes_are_the_same_for_a_seed_and_cover_all_classes() -> None:
    """In each lower cluster, at most one pod has the host port."""
    made = [scene(Random(f"1/{number}"), number, LOWERS) for number in range(200)]
    assert made == [scene(Random(f"1/{number}"), number, LOWERS) for number in range(200)]
    assert Counter(map(situation, made)).keys() == SITUATIONS.keys()
    for one in made:
        for lower in LOWERS:
            names = {place.name for place in one.places if place.lower == lower}
            assert sum(member.port for member in one.members if member.node in names) <= 1


def test_a_victim_without_which_the_pod_would_still_fit_is_needless() -> None:
    """All victims are needless if the pod gets no node."""
    made = staged(there("x"), there("y", cpu=1000), there("z", "m"))
    assert needless(made, "n", frozenset({"x"}), virtual=True) == []
    assert needless(made, "n", frozenset({"x", "y"}), virtual=True) == ["y"]
    assert needless(made, "", frozenset({"x"}), virtual=True) == ["x"]


def test_a_virtual_node_counts_as_one_host_for_host_ports() -> None:
    """A pod with the port on another real node is a necessary victim there, but a needless one in a single cluster."""
    made = staged(there("x", "m", port=True), comer=Member("comer", "", 2000, "high", port=True))
    assert fits(made, "n", frozenset(), virtual=False)
    assert not fits(made, "n", frozenset(), virtual=True)
    assert not is_same(made)
    assert is_same(staged(there("x", port=True), comer=made.comer, places=(HERE,)))
    assert needless(made, "n", frozenset({"x"}), virtual=True) == []
    assert needless(made, "n", frozenset({"x"}), virtual=False) == ["x"]


def test_a_result_is_broken_if_too_many_scenes_differ_or_any_victim_is_needless() -> None:
    """A victim is also needless if its priority is not lower."""
    made = staged(there("x"), there("y", "m", kind="top"))
    good = judged(made, Outcome("n", frozenset({"x"}), 1.0), Outcome("n", frozenset({"x"}), 1.0))
    rows = [{**good, "plight": "fragments", "by_engine": 1}] * 98
    other = {**judged(made, Outcome("", frozenset(), 1.0), Outcome("n", frozenset({"x"}), 1.0)), **rows[0]}
    assert summed(rows)["broken"] == []
    odd = {**other, "agreed": False}
    assert summed([*rows, odd, odd])["broken"] == []
    assert summed([*rows, odd, odd, odd])["broken"] == ["98 of 101 scenes end alike"]
    for outcome in (Outcome("", frozenset({"x"}), 1.0), Outcome("m", frozenset({"y"}), 1.0)):
        vain = {**rows[0], **judged(made, outcome, outcome)}
        assert summed([*rows, vain])["broken"] == ["1 pods went in vain"]


def test_a_pod_is_bound_to_its_virtual_or_real_node() -> None:
    """The upper pod selects the real node by an annotation; the pod that preempts has no node."""
    above, real = (manifest(there("x"), HERE, above=side) for side in (True, False))
    assert (above["spec"]["nodeName"], real["spec"]["nodeName"]) == ("a", "n")
    assert above["metadata"]["annotations"] == {"clusterSelector": '{"nodeSelector":{"kubernetes.io/hostname":"n"}}'}
    assert "nodeName" not in manifest(COMER, None, above=True)["spec"]
