"""Rates and waits, as arithmetic."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensile.kube.limits import Backoff, InformerTimings, TokenBucket


def test_a_burst_is_free_and_then_requests_are_spread() -> None:
    """Each request waits for its turn at the rate; a long pause does not save up more than one burst."""
    bucket = TokenBucket(10, 3, 0.0)
    assert [bucket.take(0.0) for _ in range(6)] == pytest.approx([0, 0, 0, 0.1, 0.2, 0.3])
    assert [bucket.take(100.0) for _ in range(4)] == pytest.approx([0, 0, 0, 0.1])


def test_no_rate_is_no_limit() -> None:
    """With 0 nothing waits, however much is asked for."""
    bucket = TokenBucket(0, 1, 0.0)
    assert {bucket.take(0.0) for _ in range(1000)} == {0.0}


def test_other_limits_hold_from_then_on() -> None:
    """What was taken in advance stays taken, and no more is saved up than the new burst."""
    bucket = TokenBucket(10, 3, 0.0)
    for _ in range(4):
        bucket.take(0.0)
    bucket.change(100, 50, 0.0)
    assert bucket.take(0.0) == pytest.approx(0.02)
    bucket.change(10, 2, 100.0)
    assert [bucket.take(100.0) for _ in range(3)] == pytest.approx([0, 0, 0.1])


def test_a_limit_after_none_begins_with_a_whole_burst() -> None:
    """And none after a limit lets everything through."""
    bucket = TokenBucket(0, 5, 0.0)
    bucket.take(0.0, 1000)
    bucket.change(10, 2, 0.0)
    assert [bucket.take(0.0) for _ in range(3)] == pytest.approx([0, 0, 0.1])
    bucket.change(0, 2, 0.0)
    assert bucket.take(0.0, 1000) == 0.0


def test_a_burst_of_none_still_lets_one_through() -> None:
    """A bucket that never gave anything would stop the engine."""
    assert TokenBucket(10, 0, 0.0).take(0.0) == 0.0


@given(st.integers(1, 500), st.integers(1, 50), st.lists(st.floats(0, 0.5), min_size=1, max_size=60))
def test_the_rate_holds_over_any_stretch(qps: int, burst: int, gaps: list[float]) -> None:
    """From the first request on, no more than burst + rate x time are let through, whenever they are asked for."""
    bucket, now, uses = TokenBucket(qps, burst, 0.0), 0.0, []
    for gap in gaps:
        now += gap
        uses.append(now + bucket.take(now))
    for count, used in enumerate(uses, 1):
        assert count <= burst + qps * used + 1e-6
    assert uses == sorted(uses)


def test_waits_double_up_to_the_cap_and_begin_anew_after_a_success() -> None:
    """However many failures there are in an outage of days; the die falls on the highest each time."""
    backoff = Backoff(InformerTimings(first=0.1, cap=30.0))
    waits = [backoff.after_failure(1.0) for _ in range(10_000)]
    assert waits[:10] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30])
    assert waits[-1] == 30.0
    backoff.reset()
    assert backoff.after_failure(1.0) == pytest.approx(0.1)


def test_a_cluster_that_answers_is_tried_again_sooner() -> None:
    """While the cluster itself says no, the cap is lower."""
    backoff = Backoff(InformerTimings(first=1.0, cap=30.0, near=5.0))
    waits = [backoff.after_failure(1.0, answered=True) for _ in range(5)]
    assert waits == [1, 2, 4, 5, 5]


@pytest.mark.parametrize(
    ("die", "at_least", "wait"), [(0.0, 0.0, 0.0), (0.5, 0.0, 1.0), (0.0, 7.0, 7.0), (1.0, 7.0, 9.0)]
)
def test_the_die_spreads_over_the_whole_wait(die: float, at_least: float, wait: float) -> None:
    """Full jitter, on top of what Retry-After asks for, so that not everybody comes back at the same moment."""
    assert Backoff(InformerTimings(first=2.0)).after_failure(die, at_least=at_least) == wait
