"""Token buckets by key: what passes at once, what passes later, and how much is remembered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensile.kube.limits import KeyedTokenBuckets


def allowances(limit: int = 100) -> KeyedTokenBuckets[str]:
    """Make buckets of three tokens, one of which comes back every ten seconds."""
    return KeyedTokenBuckets(3, 10.0, limit)


def test_a_burst_passes_and_the_rest_comes_at_the_rate() -> None:
    """Three at once; after that one every ten seconds, and the time left is told."""
    found = allowances()
    assert [found.take("a", 5.0) for _ in range(4)] == [True, True, True, False]
    assert found.left("a", 5.0) == 10.0
    assert not found.take("a", 14.9)
    assert found.take("a", 15.0)
    assert not found.take("a", 15.0)


@pytest.mark.parametrize("seconds", [0.1, 0.3, 1 / 3])
def test_a_burst_is_whole_at_any_rate(seconds: float) -> None:
    """However its parts of a second add up."""
    found: KeyedTokenBuckets[str] = KeyedTokenBuckets(100, seconds, 10)
    assert [found.take("a", 1234.567) for _ in range(110)].count(True) == 100


def test_keys_do_not_share() -> None:
    """What one has used up is not missing to another."""
    found = allowances()
    while found.take("a", 0.0):
        pass
    assert found.left("b", 0.0) == 0.0
    assert found.take("b", 0.0)


def test_no_more_keys_are_remembered_than_there_is_room_for() -> None:
    """A flood of keys that all owe costs bounded memory; the one used least lately goes."""
    found = allowances(limit=10)
    for number in range(1000):
        found.take(str(number), 0.0)
    assert len(found) == 10
    assert found.left("0", 0.0) == 0.0


@given(st.lists(st.floats(0, 100), max_size=60))
def test_no_more_pass_in_any_span_than_burst_and_rate_allow(times: list[float]) -> None:
    """Whatever the moments: three, and one for each ten seconds of the span."""
    found = allowances()
    passed = [now for now in sorted(times) if found.take("a", now)]
    for first in range(len(passed)):
        for last in range(first, len(passed)):
            assert last - first + 1 <= 3 + (passed[last] - passed[first]) / 10.0 + 1e-6
