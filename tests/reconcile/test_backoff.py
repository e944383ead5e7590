"""What keys wait for, and how refused steps rest."""

import pytest
from msgspec.structs import replace

from tensile.errors import ClusterError, Throttled, Unauthorized, Unreachable
from tensile.kube.cluster import Patch
from tensile.objects import CONFIG_MAP, EVENT, POD, Ref
from tensile.reconcile.backoff import (
    LASTING_REST,
    LONGEST_REST,
    OF_AN_OBJECT,
    REST_OF_DENIED,
    RETOLD,
    REWORDED,
    SHORTEST_LOOK,
    SPREAD_OF_DENIED,
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
    """Make a change of a running pod."""
    operations = tuple({"op": "replace", "path": f"/spec/{field}", "value": value} for field, value in spec.items())
    patch = Patch("strategic-merge-patch", {"spec": spec})
    return Step("patch", CREATE.ref, "because", patch=patch, operations=operations, independent=True)


IMAGE, SIZE = apart(image="a:2"), apart(size="2")


def test_a_key_waits_until_it_says_otherwise() -> None:
    """Only what is newly awaited is given back, so that two keys do not wake each other for ever."""
    waits = DependencyIndex()
    assert waits.note(ONE, [TWO]) == {TWO}
    assert waits.note(ONE, [TWO, THREE]) == {THREE}
    assert list(waits.waiting_for(TWO)) == [ONE]
    waits.note(ONE, [THREE])
    assert list(waits.waiting_for(TWO)) == []
    assert list(waits.waiting_for(THREE)) == [ONE]


def test_a_lower_that_leaves_is_forgotten() -> None:
    """No key of it waits any more; another lower's still do."""
    waits, other = DependencyIndex(), ONE._replace(lower="b")
    waits.note(ONE, [TWO])
    waits.note(other, [TWO])
    waits.forget("a")
    assert list(waits.waiting_for(TWO)) == [other]


def test_a_refused_step_rests_and_what_comes_before_it_does_not() -> None:
    """A pod whose creation is denied can still be reported on."""
    refusals = FailureBackoff()
    rest = refusals.note(ONE, CREATE, now=10.0, jitter=0.0)
    assert refusals.rested(ONE, (PATCH, CREATE), now=10.0) == (PATCH,)
    assert refusals.rested(ONE, (PATCH, CREATE), now=10.0 + rest) == (PATCH, CREATE)
    assert refusals.rested(TWO, (CREATE,), now=10.0) == (CREATE,)


def test_what_is_left_of_a_rest_is_never_nothing() -> None:
    """Who looks a moment too early has to come back, and not in the same moment again."""
    refusals = FailureBackoff()
    rest = refusals.note(ONE, CREATE, now=10.0, jitter=0.0)
    assert refusals.left(ONE, now=10.0) == pytest.approx(rest)
    assert refusals.left(ONE, now=10.0 + rest - 0.0001) == SHORTEST_LOOK


def test_rests_double_up_to_a_limit() -> None:
    """The limit keeps a denial that is lifted from lasting."""
    refusals = FailureBackoff()
    rests = [refusals.note(ONE, CREATE, now=0.0, jitter=0.999) for _ in range(20)]
    assert rests == sorted(rests)
    assert rests[1] > 1.9 * rests[0]
    assert LONGEST_REST * 0.9 < rests[-1] <= LONGEST_REST


def test_success_forgives() -> None:
    """After it came through, the next refusal rests briefly again."""
    refusals = FailureBackoff()
    refusals.note(ONE, CREATE, now=0.0, jitter=0.0)
    assert not refusals.forgive(ONE, PATCH)
    assert refusals.forgive(ONE, CREATE)
    assert ONE not in refusals


def test_a_step_that_is_not_wanted_any_more_is_forgotten() -> None:
    """A refusal does not outlive its reason."""
    refusals = FailureBackoff()
    refusals.note(ONE, CREATE, now=0.0, jitter=0.0)
    refusals.settle(ONE, (PATCH, CREATE))
    assert ONE in refusals
    refusals.settle(ONE, (Step("create", Ref("a", CONFIG_MAP, "default", "one"), "because"),))
    assert ONE not in refusals


def test_a_lower_that_leaves_takes_its_refusals_along() -> None:
    """Nothing is remembered of a cluster that is gone."""
    refusals = FailureBackoff()
    refusals.note(ONE, CREATE, now=0.0, jitter=0.0)
    refusals.forget("a")
    assert ONE not in refusals


def test_what_would_rest_briefly_can_be_tried_now() -> None:
    """What was to rest for longer still does."""
    refusals = FailureBackoff()
    rest = refusals.note(ONE, CREATE, now=10.0, jitter=0.0)
    refusals.note(TWO, CREATE, now=10.0, jitter=0.0, at_least=30.0)
    refusals.expedite(10.0, within=rest / 2)
    assert refusals.rested(ONE, (CREATE,), now=10.0) == ()
    refusals.expedite(10.0, within=1.0)
    assert refusals.rested(ONE, (CREATE,), now=10.0) == (CREATE,)
    assert refusals.rested(TWO, (CREATE,), now=39.9) == ()


def test_a_cluster_that_asks_for_a_rest_gets_it() -> None:
    """On top of our own."""
    refusals = FailureBackoff()
    assert refusals.note(ONE, CREATE, now=0.0, jitter=0.0, at_least=30.0) > 30.0


def test_only_those_who_wait_in_hope_count() -> None:
    """A key that waits for one with a problem waits in vain for now."""
    waits = DependencyIndex()
    waits.note(ONE, [TWO])
    waits.note(TWO, [THREE])
    assert waits.hopeful(()) == 2
    assert waits.hopeful({THREE}) == 1
    waits.note(ONE, [TWO, THREE])
    assert waits.hopeful({THREE}) == 0


def test_a_step_that_is_apart_holds_up_nothing() -> None:
    """What comes after it may be tried while it rests, and each rests for itself."""
    refusals = FailureBackoff()
    rest = refusals.note(ONE, IMAGE, now=0.0, jitter=0.0)
    assert refusals.rested(ONE, (IMAGE, SIZE, CREATE), now=0.0) == (SIZE, CREATE)
    refusals.note(ONE, SIZE, now=rest / 2, jitter=0.0)
    assert refusals.rested(ONE, (IMAGE, SIZE, CREATE), now=rest) == (IMAGE, CREATE)
    assert refusals.left(ONE, now=0.0) == pytest.approx(rest)


def test_another_content_of_a_step_that_is_apart_need_not_rest() -> None:
    """Who corrects what was refused does not wait for the rest of the mistake."""
    refusals = FailureBackoff()
    refusals.note(ONE, IMAGE, now=0.0, jitter=0.0, problem=NO)
    assert refusals.rested(ONE, (apart(image="a:3"),), now=0.0) == (apart(image="a:3"),)


@pytest.mark.parametrize(("problem", "longest"), [(NO, LASTING_REST), (None, LONGEST_REST)])
def test_a_change_that_is_forbidden_rests_for_long(problem: Problem | None, longest: float) -> None:
    """One that only found the cluster away does not: it is tried as soon as others are."""
    refusals = FailureBackoff()
    rests = [refusals.note(ONE, IMAGE, now=0.0, jitter=0.999, problem=problem) for _ in range(20)]
    assert longest * 0.9 < rests[-1] <= longest
    assert sum(rest < 60 for rest in rests) >= 9, "the first minute has tries enough"


@pytest.mark.parametrize("jitter", [0.0, 0.999])
def test_a_denied_step_is_tried_twelve_times_a_minute_at_most(jitter: float) -> None:
    """Whatever chance says, in the first minute as in any; and the last rest is not longer than the first ones."""
    refusals, moments = FailureBackoff(), [0.0]
    for _ in range(40):
        rest = refusals.note(ONE, CREATE, now=moments[-1], jitter=jitter, problem=NO, denied=True)
        assert rest <= REST_OF_DENIED + SPREAD_OF_DENIED
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
def test_an_answer_that_puts_off_is_told_from_none(error: ClusterError, *, answered: bool, lasting: bool) -> None:
    """A webhook that fails is worth a word at once; a busy moment is not."""
    assert (is_answer(error), is_lasting(error)) == (answered, lasting)


def test_what_was_refused_is_known_until_it_came_through() -> None:
    """By step: another of the same key was not."""
    refusals = FailureBackoff()
    assert not refusals.is_refused(ONE, CREATE)
    refusals.note(ONE, CREATE, now=0.0, jitter=0.0)
    assert refusals.is_refused(ONE, CREATE)
    assert not refusals.is_refused(ONE, PATCH)
    refusals.forgive(ONE, CREATE)
    assert not refusals.is_refused(ONE, CREATE)


def test_what_was_said_of_each_refused_step_is_told_together() -> None:
    """Once each, in the order in which it came up, for as long as the step is refused."""
    refusals = FailureBackoff()
    assert refusals.problem(ONE) is None
    refusals.note(ONE, IMAGE, now=0.0, jitter=0.0, problem=NO)
    refusals.note(ONE, SIZE, now=0.0, jitter=0.0, problem=Problem("Invalid", "too large"))
    assert refusals.problem(ONE) == Problem("Forbidden", "no; too large")
    refusals.note(ONE, IMAGE, now=9.0, jitter=0.0)
    assert refusals.problem(ONE) == Problem("Forbidden", "no; too large")
    assert refusals.forgive(ONE, IMAGE)
    assert refusals.problem(ONE) == Problem("Invalid", "too large")
    refusals.settle(ONE, ())
    assert (refusals.problem(ONE), ONE in refusals) == (None, False)


def told(name: str) -> Step:
    """Make the step that tells of something."""
    return Step("create", Ref("", EVENT, "default", name), "because")


def test_what_was_told_is_not_told_again() -> None:
    """Other steps are left alone, however often they come through."""
    telling = EventDeduplicator()
    steps = (told("one"), CREATE, told("two"))
    assert telling.fresh(steps, 5.0) == steps
    for step in (told("one"), CREATE):
        telling.note(step, 5.0)
    assert telling.fresh(steps, 5.0) == (CREATE, told("two"))


def test_what_is_said_for_long_is_told_again() -> None:
    """The cluster has dropped the Event by then; one that is there still is not told of again either."""
    telling, steps = EventDeduplicator(), (told("one"),)
    telling.note(steps[0], 5.0)
    assert telling.fresh(steps, 4.0 + RETOLD) == ()
    assert telling.fresh(steps, 5.0 + RETOLD) == steps
    telling.note(steps[0], 5.0 + RETOLD)
    assert telling.fresh(steps, 6.0 + RETOLD) == ()


def test_the_oldest_words_are_forgotten() -> None:
    """They may be said again, and the cluster then knows whether they were."""
    telling = EventDeduplicator(limit=2)
    for name in ("one", "two", "one", "three"):
        telling.note(told(name), 0.0)
    assert telling.fresh((told("one"), told("two"), told("three")), 1.0) == (told("two"),)


def said(number: int, reason: str = "Forbidden") -> Step:
    """Make the step that tells the same object something, in the words of that number."""
    return replace(told(f"words-{number}"), body={"involvedObject": {"uid": "u"}, "reason": reason})


def test_one_object_is_told_of_so_often_and_no_more() -> None:
    """Words that differ each time, as of an annotation that somebody rewrites all day, do not fill a store."""
    telling = EventDeduplicator()
    burst, seconds = OF_AN_OBJECT
    for number in range(1000):
        for step in telling.fresh((said(number), CREATE), 5.0):
            telling.note(step, 5.0)
    assert telling.fresh((said(1001), CREATE), 5.0) == (CREATE,)
    another = replace(told("another"), body={"involvedObject": {"uid": "other"}, "reason": "Forbidden"})
    assert telling.fresh((another,), 5.0) == (another,)
    fresh = [number for number in range(2000, 2010) if telling.fresh((said(number),), 5.0 + seconds)]
    assert len(fresh) == 10
    telling.note(said(2000), 5.0 + seconds)
    assert telling.fresh((said(2001),), 5.0 + seconds) == ()
    assert sum(1 for ref in telling._told if ref.name.startswith("words-")) == burst + 1


def test_what_is_refused_in_other_words_is_told_after_a_while() -> None:
    """Another reason is news at once; and so is everything of what is not refused."""
    telling = EventDeduplicator()
    telling.note(said(1), 5.0)
    later = 4.0 + REWORDED
    assert telling.fresh((said(2), said(2, "Invalid"), CREATE), later, refused=True) == (said(2, "Invalid"), CREATE)
    assert telling.fresh((said(2),), later) == (said(2),)
    assert telling.fresh((said(2),), 5.0 + REWORDED, refused=True) == (said(2),)
