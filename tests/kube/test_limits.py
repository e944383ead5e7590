"""Tests of the arithmetic of rate limits and back-offs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensile.kube.limits import Backoff, InformerTimings, TokenBucket


def test_requests_after_a_burst_wait_for_the_rate() -> None:
    """A long pause does not save up more than one burst."""
    bucket = TokenBucket(10, 3, 0.0)
    assert [bucket.take(0.0) for _ in range(6)] == pytest.approx([0, 0, 0, 0.1, 0.2, 0.3])
    assert [bucket.take(100.0) for _ in range(4)] == pytest.approx([0, 0, 0, 0.1])


def test_a_rate_of_zero_is_no_limit() -> None:
    """No request waits, however many there are."""
    bucket = TokenBucket(0, 1, 0.0)
    assert {bucket.take(0.0) for _ in range(1000)} == {0.0}


def test_changed_limits_apply_to_later_requests() -> None:
    """Tokens used in advance remain used, and no more than the new burst is saved up."""
    bucket = TokenBucket(10, 3, 0.0)
    for _ in range(4):
        bucket.take(0.0)
    bucket.change(100, 50, 0.0)
    assert bucket.take(0.0) == pytest.approx(0.02)
    bucket.change(10, 2, 100.0)
    assert [bucket.take(100.0) for _ in range(3)] == pytest.approx([0, 0, 0.1])


def test_a_limit_that_replaces_no_limit_starts_with_a_full_burst() -> None:
    """Without a limit again, no request waits."""
    bucket = TokenBucket(0, 5, 0.0)
    bucket.take(0.0, 1000)
    bucket.change(10, 2, 0.0)
    assert [bucket.take(0.0) for _ in range(3)] == pytest.approx([0, 0, 0.1])
    bucket.change(0, 2, 0.0)
    assert bucket.take(0.0, 1000) == 0.0


def test_a_burst_of_zero_still_allows_one_request() -> None:
    """A bucket that never had a token would stop the engine."""
    assert TokenBucket(10, 0, 0.0).take(0.0) == 0.0


@given(st.integers(1, 500), st.integers(1, 50), st.lists(st.floats(0, 0.5), min_size=1, max_size=60))
def test_the_rate_is_never_exceeded(qps: int, burst: int, gaps: list[float]) -> None:
    """At any time, at most burst + rate x time requests have been allowed, in the order in which they arrived."""
    bucket, now, uses = TokenBucket(qps, burst, 0.0), 0.0, []
    for gap in gaps:
        now += gap
        uses.append(now + bucket.take(now))
    for count, used in enumerate(uses, 1):
        assert count <= burst + qps * used + 1e-6
    assert uses == sorted(uses)


def test_back_off_doubles_up_to_the_cap_and_is_reset_by_a_success() -> None:
    """This holds for any number of failures in a long outage; the random number is the highest here."""
    backoff = Backoff(InformerTimings(first=0.1, cap=30.0))
    waits = [backoff.after_failure(1.0) for _ in range(10_000)]
    assert waits[:10] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30])
    assert waits[-1] == 30.0
    backoff.reset()
    assert backoff.after_failure(1.0) == pytest.approx(0.1)


def test_the_back_off_has_a_lower_cap_if_the_cluster_responds() -> None:
    """A cluster that responds with an error is retried sooner than one that does not respond."""
    backoff = Backoff(InformerTimings(first=1.0, cap=30.0, near=5.0))
    waits = [backoff.after_failure(1.0, reachable=True) for _ in range(5)]
    assert waits == [1, 2, 4, 5, 5]


@pytest.mark.parametrize(
    ("die", "at_least", "wait"), [(0.0, 0.0, 0.0), (0.5, 0.0, 1.0), (0.0, 7.0, 7.0), (1.0, 7.0, 9.0)]
)
def test_the_back_off_has_full_jitter_on_top_of_retry_after(die: float, at_least: float, wait: float) -> None:
    """Otherwise all clients would retry at the same moment."""
    assert Backoff(InformerTimings(first=2.0)).after_failure(die, at_least=at_least) == wait
