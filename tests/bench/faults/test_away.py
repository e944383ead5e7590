"""Tests of the bench of unreachable lowers: which absences it draws, and what it counts as broken."""

import pytest
from faultkit import A, B, above, below, status

from bench.faults.unreachable import CONVERGED_IN, WAYS, ReturnChecks, draw, left
from bench.kit.trial import Snapshot

LOWERS = [A, B]


def snapshot(*upper: dict, **lowers: list) -> Snapshot:  # type: ignore[type-arg]
    """Return the pods of all clusters."""
    return Snapshot(list(upper), {A: lowers.get("a", []), B: lowers.get("b", [])})


def lost(uid: str = "u1", reason: str = "LowerPodLost") -> dict:  # type: ignore[type-arg]
    """Return an upper pod that failed."""
    return {**above(uid), "status": {**status("Failed", ready=False), "reason": reason}}


def test_twenty_drawn_absences_cover_every_lower_way_and_length() -> None:
    """They are the same for the same seed."""
    drawn = draw(7, 20, LOWERS)
    assert drawn == draw(7, 20, LOWERS)
    assert {(one.victim, one.way) for one in drawn} == {(lower, way) for lower in LOWERS for way in WAYS}
    assert sum(one.seconds > 40 for one in drawn) == 2
    assert sum(one.seconds > 10 for one in drawn) == 4


def test_a_settled_snapshot_has_no_remaining_work() -> None:
    """A pod that is not ready on either side is the responsibility of its kubelet."""
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
    ids=["missing in lower", "left in lower", "not deleted", "another status", "in two clusters"],
)
def test_every_other_difference_is_remaining_work(found: Snapshot) -> None:
    """It is reported if it lasts longer than the limit after the return."""
    assert left(found)
    seen = ReturnChecks(100.0, frozenset())
    seen.update(101.0, found)
    seen.update(101.0 + CONVERGED_IN, found)
    assert not any("s after the return" in words for words in seen.verdict())
    seen.update(102.0 + CONVERGED_IN, found)
    assert any("s after the return" in words for words in seen.verdict())


def test_a_failed_pod_breaks_the_result_unless_its_lower_pod_was_deleted() -> None:
    """Such a pod has to have the reason LowerPodLost."""
    seen = ReturnChecks(0.0, frozenset({"u1"}))
    assert seen.verdict() == ["u1 was ended below and does not say LowerPodLost"]
    seen.update(1.0, snapshot(lost()))
    assert seen.verdict() == []
    for pod in (lost("u2"), lost("u1", "Evicted")):
        other = ReturnChecks(0.0, frozenset({"u1"}))
        other.update(1.0, snapshot(pod))
        assert any("Failed" in words for words in other.verdict())


def test_two_lower_pods_for_one_upper_pod_break_the_result_at_any_time() -> None:
    """This holds even if one of them is deleted at the next look."""
    seen = ReturnChecks(0.0, frozenset())
    seen.update(1.0, snapshot(above(), a=[below()], b=[below("l2")]))
    seen.update(1.1, snapshot(above(), a=[below()]))
    assert any("2 lower pods live" in words for words in seen.verdict())
