"""What must not have been at any moment: each oracle tells what is broken, and nothing else."""

from typing import Any

from faultkit import A, B, above, below

from bench.kit.faultproxy.asked import Asked
from bench.kit.faultproxy.faults import Passed
from bench.kit.faultproxy.journal import Write
from bench.kit.histories import STATEFUL, Sight, counted, lived_twice, made_twice, reverted, unfenced, written_too_often


def write(verb: str, kind: str = "pods", name: str = "web", status: int = 200, **fence: str) -> Write:
    """Make a write that was answered."""
    resource, _, subresource = kind.partition("/")
    return Write(Asked(A, verb, resource, subresource, "shop", name, **fence), Passed(), 0.0, status)


def named(uid: str, upper: str, **words: Any) -> dict[str, Any]:
    """Make a lower pod of a StatefulSet's first identity."""
    pod = below(uid, upper, **words)
    pod["metadata"]["labels"] = {STATEFUL: "db-0"}
    return pod


def test_one_life_after_the_other_is_no_fault() -> None:
    """A pod that ended or is gone makes room for another."""
    for end in (Sight(A, "DELETED", below("l1")), Sight(A, "MODIFIED", below("l1", phase="Failed"))):
        assert lived_twice([Sight(A, "ADDED", below("l1")), end, Sight(B, "ADDED", below("l2"))]) == []
    assert lived_twice([Sight(A, "ADDED", below("l1")), Sight(A, "ADDED", below("l2", "u2"))]) == []


def test_two_lives_at_one_moment_are_a_fault() -> None:
    """Also for that moment alone, also in two clusters; it is told once."""
    sights = [
        Sight(A, "ADDED", below("l1")),
        Sight(B, "ADDED", below("l2")),
        Sight(B, "MODIFIED", below("l2")),
        Sight(A, "DELETED", below("l1")),
    ]
    assert lived_twice(sights) == ["two lower pods lived for the upper pod u1"]


def test_a_pod_that_is_being_deleted_still_lives() -> None:
    """Its processes may run for as long as its grace lasts."""
    ending = Sight(A, "MODIFIED", below("l1", ending=True))
    assert lived_twice([ending, Sight(A, "ADDED", below("l2"))]) == ["two lower pods lived for the upper pod u1"]


def test_two_lives_of_one_identity_are_a_fault() -> None:
    """Though they are for two upper pods: what is written by such a name exists once."""
    sights = [Sight(A, "ADDED", named("l1", "u1")), Sight(B, "ADDED", named("l2", "u2"))]
    assert lived_twice(sights) == ["two lower pods lived for the StatefulSet's pod default/db-0"]


def test_no_pod_comes_back_from_its_end() -> None:
    """Neither to another end nor to life; going is none of it."""
    ended, gone = above(phase="Succeeded"), Sight("upper", "DELETED", above())
    assert reverted([Sight("upper", "MODIFIED", ended), Sight("upper", "MODIFIED", ended), gone]) == []
    for phase in ("Running", "Failed"):
        found = reverted([Sight("upper", "MODIFIED", ended), Sight("upper", "MODIFIED", above(phase=phase))])
        assert found == [f"default/pod-u1 was Succeeded and then {phase}"]


def test_writes_have_to_be_fenced() -> None:
    """By a UID or a resourceVersion; a create needs none; a collection must not be deleted whatever it says."""
    kept = [write("delete", uid="u"), write("patch", "pods/status", version="5"), write("create")]
    assert unfenced(kept) == []
    assert unfenced([write("delete"), write("patch", "pods/status"), write("update")]) == [
        "lower-a: delete pods shop/web: neither UID nor resourceVersion",
        "lower-a: patch pods/status shop/web: neither UID nor resourceVersion",
        "lower-a: update pods shop/web: neither UID nor resourceVersion",
    ]
    assert unfenced([write("deletecollection", name="", uid="u")]) == [
        "lower-a: deletecollection pods shop: a whole collection"
    ]


def test_what_is_made_twice_is_told() -> None:
    """A create that was refused made nothing."""
    assert made_twice([write("create"), write("create", status=409), write("create", name="other")]) == []
    assert made_twice([write("create"), write("create")]) == ["lower-a: create pods web: 2 times"]


def test_much_more_writing_than_without_a_fault_is_told() -> None:
    """Once more is what a lost answer costs; a status may be some times more; what was refused does not count."""
    reference = counted([write("patch", uid="u")])
    assert written_too_often(reference, [write("patch"), write("patch"), write("patch", status=409)]) == []
    assert written_too_often(reference, [write("patch")] * 3) == ["lower-a: patch pods web: 3 times, at most 2"]
    assert written_too_often({}, [write("patch", "pods/status")] * 6) == []
    assert written_too_often({}, [write("patch", "pods/status")] * 7) == [
        "lower-a: patch pods/status web: 7 times, at most 6"
    ]
