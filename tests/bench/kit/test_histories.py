"""Tests of the oracles over histories: each one lists violations that occurred at any moment, and nothing else."""

from typing import Any

from faultkit import A, B, above, below

from bench.kit.faultproxy.faults import Passed
from bench.kit.faultproxy.journal import Write
from bench.kit.faultproxy.requests import ProxiedRequest
from bench.kit.histories import (
    STATEFUL,
    PodEvent,
    counted,
    lived_twice,
    made_twice,
    reverted,
    unfenced,
    written_too_often,
)


def write(verb: str, kind: str = "pods", name: str = "web", status: int = 200, **fence: str) -> Write:
    """Return a write that was answered."""
    resource, _, subresource = kind.partition("/")
    return Write(ProxiedRequest(A, verb, resource, subresource, "shop", name, **fence), Passed(), 0.0, status)


def named(uid: str, upper: str, **words: Any) -> dict[str, Any]:
    """Return a lower pod of a StatefulSet's first identity."""
    pod = below(uid, upper, **words)
    pod["metadata"]["labels"] = {STATEFUL: "db-0"}
    return pod


def test_a_lower_pod_after_the_end_of_another_is_no_violation() -> None:
    """A pod that ended or was deleted may be followed by another one."""
    for end in (PodEvent(A, "DELETED", below("l1")), PodEvent(A, "MODIFIED", below("l1", phase="Failed"))):
        assert lived_twice([PodEvent(A, "ADDED", below("l1")), end, PodEvent(B, "ADDED", below("l2"))]) == []
    assert lived_twice([PodEvent(A, "ADDED", below("l1")), PodEvent(A, "ADDED", below("l2", "u2"))]) == []


def test_two_lower_pods_at_the_same_time_are_a_violation() -> None:
    """This holds for a single moment and for two clusters, and is listed once."""
    sights = [
        PodEvent(A, "ADDED", below("l1")),
        PodEvent(B, "ADDED", below("l2")),
        PodEvent(B, "MODIFIED", below("l2")),
        PodEvent(A, "DELETED", below("l1")),
    ]
    assert lived_twice(sights) == ["two lower pods lived for the upper pod u1"]


def test_a_terminating_pod_still_counts_as_living() -> None:
    """Its processes may run during its grace period."""
    ending = PodEvent(A, "MODIFIED", below("l1", ending=True))
    assert lived_twice([ending, PodEvent(A, "ADDED", below("l2"))]) == ["two lower pods lived for the upper pod u1"]


def test_two_lower_pods_of_one_stateful_set_identity_are_a_violation() -> None:
    """They belong to two upper pods, but an identity must exist only once."""
    sights = [PodEvent(A, "ADDED", named("l1", "u1")), PodEvent(B, "ADDED", named("l2", "u2"))]
    assert lived_twice(sights) == ["two lower pods lived for the StatefulSet's pod default/db-0"]


def test_a_change_from_a_terminal_phase_is_a_violation() -> None:
    """This holds for a change to Running or to another terminal phase, but not for a deletion."""
    ended, gone = above(phase="Succeeded"), PodEvent("upper", "DELETED", above())
    assert reverted([PodEvent("upper", "MODIFIED", ended), PodEvent("upper", "MODIFIED", ended), gone]) == []
    for phase in ("Running", "Failed"):
        found = reverted([PodEvent("upper", "MODIFIED", ended), PodEvent("upper", "MODIFIED", above(phase=phase))])
        assert found == [f"default/pod-u1 was Succeeded and then {phase}"]


def test_a_write_without_a_precondition_is_a_violation() -> None:
    """A UID or a resourceVersion is required, except for creates; a deletion of a collection is never allowed."""
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


def test_two_successful_creates_of_an_object_are_a_violation() -> None:
    """A create that was refused does not count."""
    assert made_twice([write("create"), write("create", status=409), write("create", name="other")]) == []
    assert made_twice([write("create"), write("create")]) == ["lower-a: create pods web: 2 times"]


def test_many_more_writes_than_without_a_fault_are_a_violation() -> None:
    """One more is allowed after a lost response, a few more for a status; refused writes do not count."""
    reference = counted([write("patch", uid="u")])
    assert written_too_often(reference, [write("patch"), write("patch"), write("patch", status=409)]) == []
    assert written_too_often(reference, [write("patch")] * 3) == ["lower-a: patch pods web: 3 times, at most 2"]
    assert written_too_often({}, [write("patch", "pods/status")] * 6) == []
    assert written_too_often({}, [write("patch", "pods/status")] * 7) == [
        "lower-a: patch pods/status web: 7 times, at most 6"
    ]
