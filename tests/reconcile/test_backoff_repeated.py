"""Tests that a change that another client keeps reverting is repeated at once at first, and later with delays."""

from typing import Any

import pytest
from loopkit import ONE, LoopUnderTest, sleep_until
from msgspec.structs import replace
from virtualtime import clock, in_virtual_time
from worldkit import A

from tensile.kube.cluster import Patch
from tensile.objects import CONFIG_MAP, LEASE, POD, UPPER, Ref
from tensile.reconcile.backoff import FREE_REPETITIONS, MAX_DELAY, REPETITION_SECONDS, WriteThrottle
from tensile.reconcile.desired import Decision, Patched
from tensile.reconcile.plan import Step
from tensile.reconcile.world import World

ABOVE = Ref(UPPER, POD, "default", "web")
LEASED = Ref(UPPER, LEASE, "default", "web")
"""An object of a kind without a cache."""
COPY = Ref(A, CONFIG_MAP, "default", "one")
MINUTE = 60.0


def status(ready: str, moment: str = "2026-03-01T12:00:00Z", version: str = "7") -> Patch:
    """Return the patch of a status."""
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": moment}
    meta = {"uid": "u", "resourceVersion": version}
    return Patch("strategic-merge-patch", {"metadata": meta, "status": {"conditions": [condition]}})


def step(ready: str = "True", **more: Any) -> Step:
    """Return the step that patches the status."""
    return Step("patch", ABOVE, "because", patch=status(ready, **more), subresource="status")


def made(times: int, *steps: Step, every: float = 0.1) -> tuple[WriteThrottle, float]:
    """Record that each step succeeded so many times, and return the throttle and the time of the last success."""
    found, now = WriteThrottle(), 0.0
    for _ in range(times):
        for one in steps:
            now += every
            found.note(one, now)
    return found, now


def test_a_repeated_change_is_not_delayed_at_first() -> None:
    """A container that alternates between ready and not ready is news each time."""
    found, now = made(FREE_REPETITIONS - 1, step("True"), step("False"))
    assert found.left(step("True"), now) <= 0.0
    assert found.left(step("Unknown"), now) <= 0.0


def test_a_repeated_confirm_is_delayed_per_uid() -> None:
    """A lower cluster may respond such that the same read is needed again."""
    confirm = Step("confirm", COPY, "because", uid="one")
    found, now = made(FREE_REPETITIONS, confirm)
    assert 0.0 < found.left(confirm, now) < 1.0
    assert found.left(replace(confirm, uid="another"), now) <= 0.0


def test_a_change_that_is_reverted_each_time_is_delayed_longer_and_longer() -> None:
    """The delay grows to seconds.

    Another change of the object is not delayed, nor is the same change after a while.
    """
    found, now = made(FREE_REPETITIONS, step())
    first = found.left(step(), now)
    assert 0.0 < first < 1.0
    assert found.left(step(), now + first) <= 0.0
    for _ in range(20):
        now += first
        found.note(step(), now)
    assert found.left(step(), now) == MAX_DELAY
    assert found.left(step("False"), now) <= 0.0
    assert found.left(step(), now + REPETITION_SECONDS) <= 0.0


@pytest.mark.parametrize(
    "other",
    [{"moment": "2026-03-01T12:00:09.123456Z"}, {"version": "812"}],
    ids=["another moment", "another version"],
)
def test_a_change_counts_as_repeated_if_only_its_time_or_version_differs(other: dict[str, str]) -> None:
    """Times and resourceVersions differ in each write of the same status."""
    found, now = made(FREE_REPETITIONS, step())
    assert found.left(step(**other), now) > 0.0


def test_the_precondition_of_a_json_patch_is_not_part_of_the_change() -> None:
    """Patches that differ only in the resourceVersion of their precondition count as the same change."""

    def fenced(version: str, value: str = "a") -> Step:
        """Return a JSON patch with a resourceVersion as precondition."""
        fence = {"op": "replace", "path": "/metadata/resourceVersion", "value": version}
        change = {"op": "replace", "path": "/data/key", "value": value}
        return Step("patch", COPY, "because", patch=Patch("json-patch", [fence, change]))

    found, now = made(1, *(fenced(str(number)) for number in range(FREE_REPETITIONS)))
    assert found.left(fenced("99"), now) > 0.0
    assert found.left(fenced("99", "b"), now) <= 0.0


def test_a_change_that_is_repeated_rarely_is_never_delayed() -> None:
    """The total number of repetitions does not matter."""
    found, now = made(100, step(), every=REPETITION_SECONDS + 1.0)
    assert found.left(step(), now) <= 0.0


def test_repetitions_are_counted_per_object_and_not_for_pod_creation() -> None:
    """Pods of one name may be created and deleted as fast as users like."""
    create = Step("create", ABOVE, "because", body={})
    found, now = made(30, create, step())
    assert found.left(create, now) <= 0.0
    assert found.left(replace(step(), ref=ABOVE._replace(name="other")), now) <= 0.0
    assert found.left(replace(step(), subresource=""), now) <= 0.0


def test_only_a_limited_number_of_objects_is_tracked() -> None:
    """Beyond the limit, the oldest object is dropped."""
    found = WriteThrottle(limit=2)
    others = [Step("patch", ABOVE._replace(name=f"p{number}"), "", patch=status("True")) for number in range(3)]
    for one in others:
        for _ in range(FREE_REPETITIONS):
            found.note(one, 1.0)
    assert [found.left(one, 1.0) > 0.0 for one in others] == [False, True, True]


def fighting() -> tuple[LoopUnderTest, list[float]]:
    """Return a loop whose rule returns two patches at each decision, and the times of its decisions.

    One patch is always the same, as if it were reverted, and the other one differs each time.
    """
    bench, moments = LoopUnderTest(), list[float]()

    def wanted(_world: World) -> Decision:
        """Return both patches."""
        moments.append(clock())
        other = Patch("merge-patch", {"metadata": {"uid": "u"}, "spec": {"n": len(moments)}})
        return Decision((Patched(LEASED, status("True"), "because", "status"), Patched(LEASED, other, "because")))

    bench.rule.decisions[ONE] = wanted
    bench.loop.open(A)
    return bench, moments


def test_the_creation_of_a_copy_that_is_deleted_each_time_is_delayed() -> None:
    """Another engine that does not know the pod that needs the copy may delete it."""
    create = Step("create", COPY, "because", body={})
    found, now = made(FREE_REPETITIONS, create)
    assert found.left(create, now) > 0.0
    assert found.left(replace(create, ref=COPY._replace(name="other")), now) <= 0.0


@in_virtual_time
async def test_a_loop_repeats_a_reverted_change_every_few_seconds() -> None:
    """Other changes of the object are made at once."""
    bench, moments = fighting()
    for number in range(int(10 * MINUTE)):
        await sleep_until(number / 10)
        bench.loop.add(ONE)
    await bench.loop.wait_idle()
    written = [one.subresource for one in bench.observer.steps]
    assert FREE_REPETITIONS < written.count("status") <= FREE_REPETITIONS + 8 + MINUTE / MAX_DELAY
    assert written.count("") == len(moments) >= 10 * MINUTE
    assert bench.observer.defects == []
    await bench.close()


@in_virtual_time
async def test_a_delayed_repetition_is_made_without_a_further_event() -> None:
    """The loop enqueues the key again when the delay is over."""
    bench, _ = fighting()
    for _ in range(FREE_REPETITIONS + 3):
        bench.loop.add(ONE)
        await bench.loop.wait_idle()
    before = [one.subresource for one in bench.observer.steps].count("status")
    assert before == FREE_REPETITIONS
    await sleep_until(1.0)
    assert [one.subresource for one in bench.observer.steps].count("status") == before + 1
    await bench.close()
