"""Tests of the oracle that finds misdeeds of an engine on real control planes from its recorded history."""

from collections.abc import Collection
from typing import Any

from faultkit import A, above, below

from bench.kit.faultproxy.faults import Dropped, Passed
from bench.kit.faultproxy.journal import Write
from bench.kit.faultproxy.requests import ProxiedRequest
from bench.kit.histories import PodEvent
from bench.model.sequences.history_checks import NamespaceHistory, violations
from tensile.sandbox.state import UPPER


def seen(cluster: str, pod: dict[str, Any], sort: str = "MODIFIED") -> PodEvent:
    """Return an observed event."""
    return PodEvent(cluster, sort, pod)


def deletion(cluster: str, uid: str, *, kind: str = "pods", status: int = 200) -> Write:
    """Return a deletion by the engine; one with status 0 never arrived."""
    resource, _, subresource = kind.partition("/")
    asked = ProxiedRequest(cluster, "delete", resource, subresource, "shop", "p0", uid=uid)
    return Write(asked, Passed() if status else Dropped(), 0.0, status)


def said(sights: list[PodEvent], *writes: Write, deleted: Collection[str] = (), **more: Any) -> list[str]:
    """Return the misdeeds; kubelets reported that pod u1 runs."""
    known: dict[str, Any] = {"killed": (), "strangers": (), "phases": {"u1": {"Running"}}, **more}
    return violations(NamespaceHistory(sights, list(writes), deleted, **known))


LIFE = [seen(UPPER, above()), seen(A, below())]


def test_a_normal_life_of_a_pod_has_no_misdeed() -> None:
    """It is created, runs, is deleted by a user, and then by the engine in both clusters."""
    end = [seen(UPPER, above(ending=True)), seen(A, below(), "DELETED"), seen(UPPER, above(), "DELETED")]
    assert said([*LIFE, *end], deletion(A, "l1"), deletion(UPPER, "u1"), deleted={"u1"}) == []


def test_a_deletion_of_an_upper_pod_that_no_user_deleted_is_a_misdeed() -> None:
    """Deletions that failed, and those of other kinds or subresources, are none."""
    gone = [*LIFE, seen(UPPER, above(), "DELETED")]
    assert said(gone, deletion(UPPER, "u1")) == ["upper: delete pods shop/p0: no user deleted it"]
    assert said(gone, deletion(UPPER, "u1", status=0), deletion(UPPER, "u1", status=409)) == []
    assert said(gone, deletion(UPPER, "c1", kind="configmaps"), deletion(UPPER, "u1", kind="pods/status")) == []


def test_a_deletion_of_a_lower_pod_whose_upper_pod_lives_is_a_misdeed() -> None:
    """It is none once the upper pod has ended or is deleted."""
    assert said(LIFE, deletion(A, "l1")) == ["lower-a: delete pods shop/p0: its upper pod lives"]
    assert said(LIFE, deletion(A, "another")) == []
    ended = {"phases": {"u1": {"Running", "Succeeded"}}}
    assert said([*LIFE, seen(UPPER, above(phase="Succeeded"))], deletion(A, "l1"), **ended) == []
    assert said([*LIFE, seen(UPPER, above(), "DELETED")], deletion(A, "l1")) == []


def test_a_phase_that_no_kubelet_reported_is_a_misdeed() -> None:
    """Failed is allowed for a pod that was killed or deleted, but a terminal phase may never change."""
    failed = [*LIFE, seen(UPPER, above(phase="Failed"))]
    words = "pod-u1 is Failed, which no kubelet said"
    assert [one.rpartition("/")[2] for one in said(failed)] == [words]
    assert said(failed, deleted={"u1"}) == said(failed, killed={"u1"}) == []
    assert said([seen(UPPER, above("u2", phase="Pending"))]) == []
    back = said([*failed, seen(UPPER, above())], killed={"u1"})
    assert [one.rpartition("/")[2] for one in back] == ["pod-u1 was Failed and then Running"]


def test_a_write_to_another_owners_object_or_without_a_precondition_is_a_misdeed() -> None:
    """The kind and the name of the object do not matter."""
    patch = Write(ProxiedRequest(A, "patch", "secrets", "", "shop", "s0", uid="theirs"), Passed(), 0.0, 200)
    bare = Write(ProxiedRequest(A, "patch", "secrets", "", "shop", "s0"), Passed(), 0.0, 200)
    assert said(LIFE, patch) == []
    assert said(LIFE, patch, strangers={"theirs"}) == ["lower-a: patch secrets shop/s0: a stranger's"]
    assert said(LIFE, bare) == ["lower-a: patch secrets shop/s0: neither UID nor resourceVersion"]


def test_two_lower_pods_of_one_upper_pod_are_a_misdeed() -> None:
    """This holds even if both are deleted by now."""
    twice = [*LIFE, seen(A, below("l2")), seen(A, below("l2"), "DELETED"), seen(A, below(), "DELETED")]
    assert said(twice) == ["two lower pods lived for the upper pod u1"]
