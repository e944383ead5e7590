"""What the bench of lowers out of reach draws, and what it counts as broken."""

import pytest
from faultkit import A, B, above, below, status

from bench.faults.away import CONVERGED_IN, WAYS, Return, draw, left
from bench.kit.trial import Snapshot

LOWERS = [A, B]


def snapshot(*upper: dict, **lowers: list) -> Snapshot:  # type: ignore[type-arg]
    """Make the pods of all clusters."""
    return Snapshot(list(upper), {A: lowers.get("a", []), B: lowers.get("b", [])})


def lost(uid: str = "u1", reason: str = "LowerPodLost") -> dict:  # type: ignore[type-arg]
    """Make an upper pod that failed."""
    return {**above(uid), "status": {**status("Failed", ready=False), "reason": reason}}


def test_twenty_absences_are_of_every_way_and_length() -> None:
    """Each lower in each way; the same for the same seed."""
    drawn = draw(7, 20, LOWERS)
    assert drawn == draw(7, 20, LOWERS)
    assert {(one.victim, one.way) for one in drawn} == {(lower, way) for lower in LOWERS for way in WAYS}
    assert sum(one.seconds > 40 for one in drawn) == 2
    assert sum(one.seconds > 10 for one in drawn) == 4


def test_what_is_settled_leaves_nothing_to_do() -> None:
    """A pod that is not ready on either side is its kubelet's."""
    assert left(snapshot(above(), a=[below()])) == {}
    assert left(snapshot(above(ready=False), a=[below(ready=False)])) == {}


@pytest.mark.parametrize(
    "found",
    [
        snapshot(above()),
        snapshot(a=[below()]),
        snapshot(above(ending=True), a=[below()]),
        snapshot(above(ready=False), a=[below()]),
        snapshot(above(), a=[below()], b=[below("l2")]),
    ],
    ids=["missing below", "left below", "not gone", "another status", "in two clusters"],
)
def test_whatever_else_differs_is_left_to_do(found: Snapshot) -> None:
    """And is counted until it is done."""
    assert left(found)
    seen = Return(100.0, frozenset())
    seen.look(101.0, found)
    seen.look(101.0 + CONVERGED_IN, found)
    assert not any("s after the return" in words for words in seen.verdict())
    seen.look(102.0 + CONVERGED_IN, found)
    assert any("s after the return" in words for words in seen.verdict())


def test_a_pod_that_fails_breaks_it_unless_it_was_ended_below() -> None:
    """And then it has to say so, by its reason."""
    seen = Return(0.0, frozenset({"u1"}))
    assert seen.verdict() == ["u1 was ended below and does not say LowerPodLost"]
    seen.look(1.0, snapshot(lost()))
    assert seen.verdict() == []
    for pod in (lost("u2"), lost("u1", "Evicted")):
        other = Return(0.0, frozenset({"u1"}))
        other.look(1.0, snapshot(pod))
        assert any("Failed" in words for words in other.verdict())


def test_two_lower_pods_for_one_break_it_at_any_moment() -> None:
    """Also when one of them is gone at the next look."""
    seen = Return(0.0, frozenset())
    seen.look(1.0, snapshot(above(), a=[below()], b=[below("l2")]))
    seen.look(1.1, snapshot(above(), a=[below()]))
    assert any("2 lower pods live" in words for words in seen.verdict())
