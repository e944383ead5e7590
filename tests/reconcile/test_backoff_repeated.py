"""A change that somebody else undoes each time: made as soon as it is wanted at first, and then every few seconds."""

from typing import Any

import pytest
from loopkit import ONE, LoopUnderTest, until
from msgspec.structs import replace
from virtualtime import clock, in_virtual_time
from worldkit import A

from tensile.kube.cluster import Patch
from tensile.objects import CONFIG_MAP, LEASE, POD, UPPER, Ref
from tensile.reconcile.backoff import LONGEST_REST, REPEATED, REPEATED_WITHIN, WriteThrottle
from tensile.reconcile.desired import Decision, Patched
from tensile.reconcile.plan import Step
from tensile.reconcile.world import World

ABOVE = Ref(UPPER, POD, "default", "web")
LEASED = Ref(UPPER, LEASE, "default", "web")
"""Of a kind of which nothing is kept."""
COPY = Ref(A, CONFIG_MAP, "default", "one")
MINUTE = 60.0


def status(ready: str, moment: str = "2026-03-01T12:00:00Z", version: str = "7") -> Patch:
    """Make the write of a status."""
    said = {"type": "Ready", "status": ready, "lastTransitionTime": moment}
    meta = {"uid": "u", "resourceVersion": version}
    return Patch("strategic-merge-patch", {"metadata": meta, "status": {"conditions": [said]}})


def step(ready: str = "True", **more: Any) -> Step:
    """Make the step of such a write."""
    return Step("patch", ABOVE, "because", patch=status(ready, **more), subresource="status")


def made(times: int, *steps: Step, every: float = 0.1) -> tuple[WriteThrottle, float]:
    """Note that steps came through, one after the other so many times, and return the time after the last too."""
    found, now = WriteThrottle(), 0.0
    for _ in range(times):
        for one in steps:
            now += every
            found.note(one, now)
    return found, now


def test_what_is_done_once_more_and_again_does_not_rest_at_first() -> None:
    """A container that is ready, and not, and ready: that is news each time."""
    found, now = made(REPEATED - 1, step("True"), step("False"))
    assert found.left(step("True"), now) <= 0.0
    assert found.left(step("Unknown"), now) <= 0.0


def test_a_read_that_decides_nothing_rests_too() -> None:
    """A lower cluster may answer so that the same is asked again; what is read for another UID does not rest."""
    asked = Step("confirm", COPY, "because", uid="one")
    found, now = made(REPEATED, asked)
    assert 0.0 < found.left(asked, now) < 1.0
    assert found.left(replace(asked, uid="another"), now) <= 0.0


def test_what_somebody_undoes_each_time_rests_longer_and_longer() -> None:
    """Up to seconds; something else about that object does not rest, nor the same after a while."""
    found, now = made(REPEATED, step())
    first = found.left(step(), now)
    assert 0.0 < first < 1.0
    assert found.left(step(), now + first) <= 0.0
    for _ in range(20):
        now += first
        found.note(step(), now)
    assert found.left(step(), now) == LONGEST_REST
    assert found.left(step("False"), now) <= 0.0
    assert found.left(step(), now + REPEATED_WITHIN) <= 0.0


@pytest.mark.parametrize(
    "other",
    [{"moment": "2026-03-01T12:00:09.123456Z"}, {"version": "812"}],
    ids=["another moment", "another version"],
)
def test_the_same_is_the_same_whenever_it_is_said(other: dict[str, str]) -> None:
    """Moments and versions in it differ each time."""
    found, now = made(REPEATED, step())
    assert found.left(step(**other), now) > 0.0


def test_a_fence_is_not_what_is_changed() -> None:
    """As JSON patches have it."""

    def fenced(version: str, value: str = "a") -> Step:
        """Make a change with a version in its fence."""
        fence = {"op": "replace", "path": "/metadata/resourceVersion", "value": version}
        change = {"op": "replace", "path": "/data/key", "value": value}
        return Step("patch", COPY, "because", patch=Patch("json-patch", [fence, change]))

    found, now = made(1, *(fenced(str(number)) for number in range(REPEATED)))
    assert found.left(fenced("99"), now) > 0.0
    assert found.left(fenced("99", "b"), now) <= 0.0


def test_what_is_said_now_and_then_never_rests() -> None:
    """However often in all."""
    found, now = made(100, step(), every=REPEATED_WITHIN + 1.0)
    assert found.left(step(), now) <= 0.0


def test_only_changes_are_counted_each_object_for_itself() -> None:
    """A pod of one name may be made and deleted as fast as somebody likes; another object is another."""
    create = Step("create", ABOVE, "because", body={})
    found, now = made(30, create, step())
    assert found.left(create, now) <= 0.0
    assert found.left(replace(step(), ref=ABOVE._replace(name="other")), now) <= 0.0
    assert found.left(replace(step(), subresource=""), now) <= 0.0


def test_only_so_many_objects_are_remembered() -> None:
    """The oldest go."""
    found = WriteThrottle(limit=2)
    others = [Step("patch", ABOVE._replace(name=f"p{number}"), "", patch=status("True")) for number in range(3)]
    for one in others:
        for _ in range(REPEATED):
            found.note(one, 1.0)
    assert [found.left(one, 1.0) > 0.0 for one in others] == [False, True, True]


def fighting() -> tuple[LoopUnderTest, list[float]]:
    """Make a loop whose rule wants another change each time, none of which lasts; return when it was asked."""
    bench, moments = LoopUnderTest(), list[float]()

    def wanted(_world: World) -> Decision:
        """Want both."""
        moments.append(clock())
        other = Patch("merge-patch", {"metadata": {"uid": "u"}, "spec": {"n": len(moments)}})
        return Decision((Patched(LEASED, status("True"), "because", "status"), Patched(LEASED, other, "because")))

    bench.rule.says[ONE] = wanted
    bench.loop.open(A)
    return bench, moments


def test_a_copy_that_somebody_removes_each_time_rests_too() -> None:
    """As another engine does that does not know of the pod which needs it."""
    create = Step("create", COPY, "because", body={})
    found, now = made(REPEATED, create)
    assert found.left(create, now) > 0.0
    assert found.left(replace(create, ref=COPY._replace(name="other")), now) <= 0.0


@in_virtual_time
async def test_two_that_undo_each_others_changes_do_so_every_few_seconds() -> None:
    """And what else there is to be done about that object is done at once."""
    bench, moments = fighting()
    for number in range(int(10 * MINUTE)):
        await until(number / 10)
        bench.loop.add(ONE)
    await bench.loop.wait_idle()
    written = [one.subresource for one in bench.noted.steps]
    assert REPEATED < written.count("status") <= REPEATED + 8 + MINUTE / LONGEST_REST
    assert written.count("") == len(moments) >= 10 * MINUTE
    assert bench.noted.defects == []
    await bench.close()


@in_virtual_time
async def test_a_change_that_rests_comes_back_by_itself() -> None:
    """Nothing else has to happen for it to be made."""
    bench, _ = fighting()
    for _ in range(REPEATED + 3):
        bench.loop.add(ONE)
        await bench.loop.wait_idle()
    before = [one.subresource for one in bench.noted.steps].count("status")
    assert before == REPEATED
    await until(1.0)
    assert [one.subresource for one in bench.noted.steps].count("status") == before + 1
    await bench.close()
