"""What an engine on real control planes must not have done, seen from afterwards."""

from collections.abc import Collection
from typing import Any

from faultkit import A, above, below

from bench.kit.faultproxy.asked import Asked
from bench.kit.faultproxy.faults import Dropped, Passed
from bench.kit.faultproxy.journal import Write
from bench.kit.histories import Sight
from bench.model.sequences.hindsight import Past, misdeeds
from tensile.sandbox.state import UPPER


def seen(cluster: str, pod: dict[str, Any], sort: str = "MODIFIED") -> Sight:
    """Make a sight."""
    return Sight(cluster, sort, pod)


def deletion(cluster: str, uid: str, *, kind: str = "pods", status: int = 200) -> Write:
    """Make a deletion by the engine; one without an answer never arrived."""
    resource, _, subresource = kind.partition("/")
    asked = Asked(cluster, "delete", resource, subresource, "shop", "p0", uid=uid)
    return Write(asked, Passed() if status else Dropped(), 0.0, status)


def said(sights: list[Sight], *writes: Write, deleted: Collection[str] = (), **more: Any) -> list[str]:
    """Return what must not have been; kubelets told that pod u1 runs."""
    known: dict[str, Any] = {"killed": (), "strangers": (), "phases": {"u1": {"Running"}}, **more}
    return misdeeds(Past(sights, list(writes), deleted, **known))


LIFE = [seen(UPPER, above()), seen(A, below())]


def test_a_life_as_it_should_be_is_no_misdeed() -> None:
    """It is made, runs, is deleted by a user, and then by the engine below and above."""
    end = [seen(UPPER, above(ending=True)), seen(A, below(), "DELETED"), seen(UPPER, above(), "DELETED")]
    assert said([*LIFE, *end], deletion(A, "l1"), deletion(UPPER, "u1"), deleted={"u1"}) == []


def test_what_nobody_deleted_above_is_not_to_go() -> None:
    """Neither the pod itself; what was asked for in vain does no harm, nor what is no pod."""
    gone = [*LIFE, seen(UPPER, above(), "DELETED")]
    assert said(gone, deletion(UPPER, "u1")) == ["upper: delete pods shop/p0: nobody deleted it"]
    assert said(gone, deletion(UPPER, "u1", status=0), deletion(UPPER, "u1", status=409)) == []
    assert said(gone, deletion(UPPER, "c1", kind="configmaps"), deletion(UPPER, "u1", kind="pods/status")) == []


def test_what_lives_above_is_not_to_go_below() -> None:
    """Not even if it is made anew; where the upper one ended meanwhile, its lower one may go."""
    assert said(LIFE, deletion(A, "l1")) == ["lower-a: delete pods shop/p0: its upper pod lives"]
    assert said(LIFE, deletion(A, "another")) == []
    ended = {"phases": {"u1": {"Running", "Succeeded"}}}
    assert said([*LIFE, seen(UPPER, above(phase="Succeeded"))], deletion(A, "l1"), **ended) == []
    assert said([*LIFE, seen(UPPER, above(), "DELETED")], deletion(A, "l1")) == []


def test_a_phase_is_a_kubelets_word() -> None:
    """But a pod may be called failed that others ended, or that was deleted; and no end is ever taken back."""
    failed = [*LIFE, seen(UPPER, above(phase="Failed"))]
    words = "pod-u1 is Failed, which no kubelet said"
    assert [one.rpartition("/")[2] for one in said(failed)] == [words]
    assert said(failed, deleted={"u1"}) == said(failed, killed={"u1"}) == []
    assert said([seen(UPPER, above("u2", phase="Pending"))]) == []
    back = said([*failed, seen(UPPER, above())], killed={"u1"})
    assert [one.rpartition("/")[2] for one in back] == ["pod-u1 was Failed and then Running"]


def test_a_strangers_object_is_not_written_to() -> None:
    """Whichever kind it is of, and whatever its name; nor is anything written without a fence."""
    patch = Write(Asked(A, "patch", "secrets", "", "shop", "s0", uid="theirs"), Passed(), 0.0, 200)
    bare = Write(Asked(A, "patch", "secrets", "", "shop", "s0"), Passed(), 0.0, 200)
    assert said(LIFE, patch) == []
    assert said(LIFE, patch, strangers={"theirs"}) == ["lower-a: patch secrets shop/s0: a stranger's"]
    assert said(LIFE, bare) == ["lower-a: patch secrets shop/s0: neither UID nor resourceVersion"]


def test_two_that_run_for_one_are_seen() -> None:
    """Also where both have ended long since."""
    twice = [*LIFE, seen(A, below("l2")), seen(A, below("l2"), "DELETED"), seen(A, below(), "DELETED")]
    assert said(twice) == ["two lower pods lived for the upper pod u1"]
