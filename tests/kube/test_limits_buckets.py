"""Tests of token buckets by key: what is allowed at once, what later, and how many keys are stored."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensile.kube.limits import KeyedTokenBuckets


def allowances(limit: int = 100) -> KeyedTokenBuckets[str]:
    """Make buckets of three tokens, which are refilled by one token every ten seconds."""
    return KeyedTokenBuckets(3, 10.0, limit)


def test_after_a_burst_one_token_is_available_per_interval() -> None:
    """`left` returns the time until the next one."""
    found = allowances()
    assert [found.take("a", 5.0) for _ in range(4)] == [True, True, True, False]
    assert found.left("a", 5.0) == 10.0
    assert not found.take("a", 14.9)
    assert found.take("a", 15.0)
    assert not found.take("a", 15.0)


@pytest.mark.parametrize("seconds", [0.1, 0.3, 1 / 3])
def test_a_burst_is_complete_at_any_rate(seconds: float) -> None:
    """Rounding errors of fractions of a second take away no token."""
    found: KeyedTokenBuckets[str] = KeyedTokenBuckets(100, seconds, 10)
    assert [found.take("a", 1234.567) for _ in range(110)].count(True) == 100


def test_keys_have_separate_buckets() -> None:
    """A key without tokens does not affect another key."""
    found = allowances()
    while found.take("a", 0.0):
        pass
    assert found.left("b", 0.0) == 0.0
    assert found.take("b", 0.0)


def test_the_number_of_stored_keys_is_limited() -> None:
    """A flood of keys needs limited memory; the key that was used least recently is removed."""
    found = allowances(limit=10)
    for number in range(1000):
        found.take(str(number), 0.0)
    assert len(found) == 10
    assert found.left("0", 0.0) == 0.0


@given(st.lists(st.floats(0, 100), max_size=60))
def test_no_time_span_has_more_than_burst_and_rate_allow(times: list[float]) -> None:
    """At any times, three are allowed and one more per ten seconds of the span."""
    found = allowances()
    passed = [now for now in sorted(times) if found.take("a", now)]
    for first in range(len(passed)):
        for last in range(first, len(passed)):
            assert last - first + 1 <= 3 + (passed[last] - passed[first]) / 10.0 + 1e-6
