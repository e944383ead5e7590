"""Tests of dependencies between keys, back-off of refused steps, and deduplication of Events."""

import pytest
from msgspec.structs import replace

from tensile.errors import ClusterError, Throttled, Unauthorized, Unreachable
from tensile.kube.cluster import Patch
from tensile.objects import CONFIG_MAP, EVENT, POD, Ref
from tensile.reconcile.backoff import (
    DELAY_AFTER_DENIAL,
    EVENT_INTERVAL,
    EVENTS_PER_OBJECT,
    MAX_DELAY,
    MAX_DELAY_OF_DENIED_CHANGE,
    REWORDED_INTERVAL,
    SHORTEST_DELAY,
    SPREAD_AFTER_DENIAL,
    DependencyIndex,
    EventDeduplicator,
    FailureBackoff,
    is_answer,
    is_lasting,
)
from tensile.reconcile.plan import Step
from tensile.reconcile.world import Key, Problem

ONE, TWO, THREE = (Key("pod", "a", "default", name) for name in ("one", "two", "three"))
CREATE = Step("create", Ref("a", POD, "default", "one"), "because")
PATCH = Step("patch", Ref("", POD, "default", "one"), "because", subresource="status")
NO = Problem("Forbidden", "no")


def apart(**spec: str) -> Step:
    """Return an independent patch of a running pod."""
    operations = tuple({"op": "replace", "path": f"/spec/{field}", "value": value} for field, value in spec.items())
    patch = Patch("strategic-merge-patch", {"spec": spec})
    return Step("patch", CREATE.ref, "because", patch=patch, operations=operations, independent=True)


IMAGE, SIZE = apart(image="a:2"), apart(size="2")


def test_a_key_keeps_its_dependencies_until_they_are_replaced() -> None:
    """Only new dependencies are returned, so that two keys do not enqueue each other indefinitely."""
    waits = DependencyIndex()
    assert waits.note(ONE, [TWO]) == {TWO}
    assert waits.note(ONE, [TWO, THREE]) == {THREE}
    assert list(waits.dependents(TWO)) == [ONE]
    waits.note(ONE, [THREE])
    assert list(waits.dependents(TWO)) == []
    assert list(waits.dependents(THREE)) == [ONE]


def test_the_dependencies_of_a_lower_that_leaves_are_removed() -> None:
    """The keys of another lower keep their dependencies."""
    waits, other = DependencyIndex(), ONE._replace(lower="b")
    waits.note(ONE, [TWO])
    waits.note(other, [TWO])
    waits.forget("a")
    assert list(waits.dependents(TWO)) == [other]


def test_a_refused_step_in_back_off_blocks_only_later_steps_of_its_key() -> None:
    """A pod whose creation is denied still gets status updates."""
    refusals = FailureBackoff()
    rest = refusals.note(ONE, CREATE, now=10.0, jitter=0.0)
    assert refusals.retryable_steps(ONE, (PATCH, CREATE), now=10.0) == (PATCH,)
    assert refusals.retryable_steps(ONE, (PATCH, CREATE), now=10.0 + rest) == (PATCH, CREATE)
    assert refusals.retryable_steps(TWO, (CREATE,), now=10.0) == (CREATE,)


def test_the_remaining_back_off_has_a_minimum() -> None:
    """A timer that fires slightly early must fire again, and not immediately."""
    refusals = FailureBackoff()
    rest = refusals.note(ONE, CREATE, now=10.0, jitter=0.0)
    assert refusals.left(ONE, now=10.0) == pytest.approx(rest)
    assert refusals.left(ONE, now=10.0 + rest - 0.0001) == SHORTEST_DELAY


def test_back_off_doubles_up_to_a_limit() -> None:
    """The limit ensures that a step is retried soon after a denial is lifted."""
    refusals = FailureBackoff()
    rests = [refusals.note(ONE, CREATE, now=0.0, jitter=0.999) for _ in range(20)]
    assert rests == sorted(rests)
    assert rests[1] > 1.9 * rests[0]
    assert MAX_DELAY * 0.9 < rests[-1] <= MAX_DELAY


def test_a_success_resets_the_back_off_of_its_step() -> None:
    """The next refusal starts with a short back-off again, and the success of another step resets nothing."""
    refusals = FailureBackoff()
    refusals.note(ONE, CREATE, now=0.0, jitter=0.0)
    assert not refusals.clear(ONE, PATCH)
    assert refusals.clear(ONE, CREATE)
    assert ONE not in refusals


def test_the_refusal_of_a_step_that_is_not_wanted_any_more_is_removed() -> None:
    """It stays as long as the steps of the key contain the refused step."""
    refusals = FailureBackoff()
    refusals.note(ONE, CREATE, now=0.0, jitter=0.0)
    refusals.retain(ONE, (PATCH, CREATE))
    assert ONE in refusals
    refusals.retain(ONE, (Step("create", Ref("a", CONFIG_MAP, "default", "one"), "because"),))
    assert ONE not in refusals


def test_the_refusals_of_a_lower_that_leaves_are_removed() -> None:
    """No state is kept for a cluster that is not connected any more."""
    refusals = FailureBackoff()
    refusals.note(ONE, CREATE, now=0.0, jitter=0.0)
    refusals.forget("a")
    assert ONE not in refusals


def test_expediting_makes_steps_with_short_back_off_available() -> None:
    """A step with a longer remaining back-off is still delayed."""
    refusals = FailureBackoff()
    rest = refusals.note(ONE, CREATE, now=10.0, jitter=0.0)
    refusals.note(TWO, CREATE, now=10.0, jitter=0.0, at_least=30.0)
    refusals.expedite(10.0, within=rest / 2)
    assert refusals.retryable_steps(ONE, (CREATE,), now=10.0) == ()
    refusals.expedite(10.0, within=1.0)
    assert refusals.retryable_steps(ONE, (CREATE,), now=10.0) == (CREATE,)
    assert refusals.retryable_steps(TWO, (CREATE,), now=39.9) == ()


def test_the_wait_that_a_cluster_asks_for_is_added_to_the_back_off() -> None:
    """A step that was throttled for 30 seconds is not retried earlier."""
    refusals = FailureBackoff()
    assert refusals.note(ONE, CREATE, now=0.0, jitter=0.0, at_least=30.0) > 30.0


def test_keys_that_wait_for_a_key_with_a_problem_do_not_count_as_hopeful() -> None:
    """Their dependency is blocked for now."""
    waits = DependencyIndex()
    waits.note(ONE, [TWO])
    waits.note(TWO, [THREE])
    assert waits.count_unblocked(()) == 2
    assert waits.count_unblocked({THREE}) == 1
    waits.note(ONE, [TWO, THREE])
    assert waits.count_unblocked({THREE}) == 0


def test_an_independent_step_in_back_off_does_not_block_later_steps() -> None:
    """Each independent step has its own back-off."""
    refusals = FailureBackoff()
    rest = refusals.note(ONE, IMAGE, now=0.0, jitter=0.0)
    assert refusals.retryable_steps(ONE, (IMAGE, SIZE, CREATE), now=0.0) == (SIZE, CREATE)
    refusals.note(ONE, SIZE, now=rest / 2, jitter=0.0)
    assert refusals.retryable_steps(ONE, (IMAGE, SIZE, CREATE), now=rest) == (IMAGE, CREATE)
    assert refusals.left(ONE, now=0.0) == pytest.approx(rest)


def test_an_independent_step_with_other_content_is_not_in_back_off() -> None:
    """A user who corrects a refused change does not wait for the back-off of the mistake."""
    refusals = FailureBackoff()
    refusals.note(ONE, IMAGE, now=0.0, jitter=0.0, problem=NO)
    assert refusals.retryable_steps(ONE, (apart(image="a:3"),), now=0.0) == (apart(image="a:3"),)


@pytest.mark.parametrize(("problem", "longest"), [(NO, MAX_DELAY_OF_DENIED_CHANGE), (None, MAX_DELAY)])
def test_a_denied_independent_step_has_a_longer_back_off_limit(problem: Problem | None, longest: float) -> None:
    """A step without a problem from the cluster keeps the usual limit, and is retried as soon as others."""
    refusals = FailureBackoff()
    rests = [refusals.note(ONE, IMAGE, now=0.0, jitter=0.999, problem=problem) for _ in range(20)]
    assert longest * 0.9 < rests[-1] <= longest
    assert sum(rest < 60 for rest in rests) >= 9, "the first minute has tries enough"


@pytest.mark.parametrize("jitter", [0.0, 0.999])
def test_a_denied_step_is_tried_at_most_twelve_times_a_minute(jitter: float) -> None:
    """This holds for any jitter and any minute, and the back-off has a fixed maximum."""
    refusals, moments = FailureBackoff(), [0.0]
    for _ in range(40):
        rest = refusals.note(ONE, CREATE, now=moments[-1], jitter=jitter, problem=NO, denied=True)
        assert rest <= DELAY_AFTER_DENIAL + SPREAD_AFTER_DENIAL
        moments.append(moments[-1] + rest)
    assert moments[1] <= 1.0
    for one in moments:
        assert sum(one <= later < one + 60.0 for later in moments) <= 12


@pytest.mark.parametrize(
    ("error", "answered", "lasting"),
    [
        (Throttled("x"), True, False),
        (Throttled("x", retry_after=30.0), True, True),
        (Unreachable("x", status=503), True, False),
        (Unreachable("x", status=500, reason="InternalError"), True, True),
        (Unreachable("x"), False, False),
        (Unauthorized("x", status=401), False, False),
    ],
)
def test_a_transient_response_differs_from_no_response(error: ClusterError, *, answered: bool, lasting: bool) -> None:
    """A failing webhook is reported at its first occurrence, but a short throttling is not."""
    assert (is_answer(error), is_lasting(error)) == (answered, lasting)


def test_a_step_counts_as_refused_until_it_succeeds() -> None:
    """Refusals are recorded per step, so another step of the key is not affected."""
    refusals = FailureBackoff()
    assert not refusals.is_refused(ONE, CREATE)
    refusals.note(ONE, CREATE, now=0.0, jitter=0.0)
    assert refusals.is_refused(ONE, CREATE)
    assert not refusals.is_refused(ONE, PATCH)
    refusals.clear(ONE, CREATE)
    assert not refusals.is_refused(ONE, CREATE)


def test_the_messages_of_all_refused_steps_of_a_key_are_combined() -> None:
    """Each message appears once, in the order of the refusals, while its step is refused."""
    refusals = FailureBackoff()
    assert refusals.problem(ONE) is None
    refusals.note(ONE, IMAGE, now=0.0, jitter=0.0, problem=NO)
    refusals.note(ONE, SIZE, now=0.0, jitter=0.0, problem=Problem("Invalid", "too large"))
    assert refusals.problem(ONE) == Problem("Forbidden", "no; too large")
    refusals.note(ONE, IMAGE, now=9.0, jitter=0.0)
    assert refusals.problem(ONE) == Problem("Forbidden", "no; too large")
    assert refusals.clear(ONE, IMAGE)
    assert refusals.problem(ONE) == Problem("Invalid", "too large")
    refusals.retain(ONE, ())
    assert (refusals.problem(ONE), ONE in refusals) == (None, False)


def event_step(name: str) -> Step:
    """Return the step that creates an Event."""
    return Step("create", Ref("", EVENT, "default", name), "because")


def test_an_event_that_was_recorded_is_not_created_again() -> None:
    """Other steps are not filtered, however often they succeed."""
    telling = EventDeduplicator()
    steps = (event_step("one"), CREATE, event_step("two"))
    assert telling.fresh(steps, 5.0) == steps
    for step in (event_step("one"), CREATE):
        telling.note(step, 5.0)
    assert telling.fresh(steps, 5.0) == (CREATE, event_step("two"))


def test_an_event_is_recorded_again_after_a_while() -> None:
    """The apiserver has deleted it by then, and Events that it still has are not recorded again either."""
    telling, steps = EventDeduplicator(), (event_step("one"),)
    telling.note(steps[0], 5.0)
    assert telling.fresh(steps, 4.0 + EVENT_INTERVAL) == ()
    assert telling.fresh(steps, 5.0 + EVENT_INTERVAL) == steps
    telling.note(steps[0], 5.0 + EVENT_INTERVAL)
    assert telling.fresh(steps, 6.0 + EVENT_INTERVAL) == ()


def test_the_oldest_recorded_events_are_dropped_beyond_the_limit() -> None:
    """They may be created again, and the cluster then responds that they exist."""
    telling = EventDeduplicator(limit=2)
    for name in ("one", "two", "one", "three"):
        telling.note(event_step(name), 0.0)
    assert telling.fresh((event_step("one"), event_step("two"), event_step("three")), 1.0) == (event_step("two"),)


def numbered_event_step(number: int, reason: str = "Forbidden") -> Step:
    """Return the step that creates an Event about the same object, with a name of that number."""
    return replace(event_step(f"words-{number}"), body={"involvedObject": {"uid": "u"}, "reason": reason})


def test_events_about_one_object_are_rate_limited() -> None:
    """A message that always differs, as of an annotation that a client keeps changing, does not fill the store."""
    telling = EventDeduplicator()
    burst, seconds = EVENTS_PER_OBJECT
    for number in range(1000):
        for step in telling.fresh((numbered_event_step(number), CREATE), 5.0):
            telling.note(step, 5.0)
    assert telling.fresh((numbered_event_step(1001), CREATE), 5.0) == (CREATE,)
    another = replace(event_step("another"), body={"involvedObject": {"uid": "other"}, "reason": "Forbidden"})
    assert telling.fresh((another,), 5.0) == (another,)
    fresh = [number for number in range(2000, 2010) if telling.fresh((numbered_event_step(number),), 5.0 + seconds)]
    assert len(fresh) == 10
    telling.note(numbered_event_step(2000), 5.0 + seconds)
    assert telling.fresh((numbered_event_step(2001),), 5.0 + seconds) == ()
    assert sum(1 for ref in telling._last_recorded if ref.name.startswith("words-")) == burst + 1


def test_an_event_with_another_message_for_a_refusal_is_delayed() -> None:
    """An Event with another reason, or of a key without a refusal, is recorded at once."""
    telling = EventDeduplicator()
    telling.note(numbered_event_step(1), 5.0)
    later = 4.0 + REWORDED_INTERVAL
    assert telling.fresh((numbered_event_step(2), numbered_event_step(2, "Invalid"), CREATE), later, refused=True) == (
        numbered_event_step(2, "Invalid"),
        CREATE,
    )
    assert telling.fresh((numbered_event_step(2),), later) == (numbered_event_step(2),)
    assert telling.fresh((numbered_event_step(2),), 5.0 + REWORDED_INTERVAL, refused=True) == (numbered_event_step(2),)
