"""Counters made of rates: what a reader of them finds is the rate again, and never more than was used."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensile.kubelet.stats.usage import Counter, CPUCounters, advanced, begun

CPU = 1_000_000_000
"""One cpu, in nanoseconds a second."""
START = 1_700_000_000_000


def rate(before: Counter, after: Counter) -> float:
    """Do as metrics-server does with two counters it has read."""
    return (after.used - before.used) * 1000 / (after.time - before.time)


def test_a_counter_counts_time_at_the_rate() -> None:
    """Half a cpu over fifteen seconds is seven and a half."""
    counter = advanced(Counter(START, 100), CPU // 2, START + 15_000)
    assert counter == Counter(START + 15_000, 100 + 15 * CPU // 2)


def test_time_between_samples_that_nobody_asked_for_counts() -> None:
    """Whoever reads every minute finds the rate, though samples cover fifteen seconds each."""
    first = begun(CPU, START, 15_000)
    assert rate(first, advanced(first, CPU // 4, START + 60_000)) == CPU // 4


@pytest.mark.parametrize("later", [0, -1, -60_000])
def test_a_sample_that_is_not_newer_changes_nothing(later: int) -> None:
    """A reader that comes twice in between sees the same time, and knows."""
    counter = Counter(START, 5000)
    assert advanced(counter, CPU, START + later) == counter


def test_a_counter_begins_with_its_samples_window() -> None:
    """More is not known of something that has run for long."""
    assert begun(CPU, START, 15_000) == Counter(START, 15 * CPU)
    assert begun(CPU, START, 15_000, START - 60_001) == Counter(START, 15 * CPU)


@pytest.mark.parametrize("age", [1000, 12_000, 60_000])
def test_a_young_container_is_counted_from_its_start(age: int) -> None:
    """Readers divide the counter of a fresh container by its age."""
    counter = begun(CPU // 5, START, 15_000, START - age)
    assert counter.used * 1000 / age == CPU // 5


def test_a_container_from_the_future_is_counted_by_the_window() -> None:
    """Clocks differ."""
    assert begun(CPU, START, 15_000, START + 1).used == 15 * CPU


@pytest.mark.parametrize("used", [0, 1])
def test_a_counter_is_never_nothing(used: int) -> None:
    """Readers take 0 for a figure that is missing, and drop the whole pod."""
    assert float(begun(used, START, 15_000).used) * 1e-9 * 1e9 >= 1


@given(st.lists(st.tuples(st.integers(0, 64 * CPU), st.integers(-30_000, 120_000)), max_size=30))
def test_counters_never_fall(samples: list[tuple[int, int]]) -> None:
    """Whatever comes in whichever order, time and use only grow, and each step is at its rate to a nanosecond."""
    counters = [begun(CPU, START, 15_000)]
    for used, later in samples:
        counters.append(advanced(counters[-1], used, counters[-1].time + later))
    for (before, after), (used, later) in zip(pairwise(counters), samples, strict=True):
        assert after.time >= before.time
        assert after.used >= before.used
        if later > 0:
            assert abs(rate(before, after) - used) * later <= 1000


@given(st.integers(0, 8 * CPU), st.integers(0, 8 * CPU), st.integers(15_000, 300_000))
def test_a_new_beginning_never_looks_like_more(former: int, now: int, gap: int) -> None:
    """An engine that starts again counts from its window: a reader finds less for once, or a fall, but no peak."""
    last = begun(former, START, 15_000)
    anew = begun(now, START + gap, 15_000, START - 3_600_000)
    assert rate(last, anew) <= max(now, 1)


def test_a_ledger_counts_by_name() -> None:
    """Each thing has its own counter."""
    ledger = CPUCounters()
    assert ledger.count("a", CPU, START, 1000) == Counter(START, CPU)
    assert ledger.count("b", CPU, START, 2000) == Counter(START, 2 * CPU)
    assert ledger.count("a", CPU, START + 1000, 1000) == Counter(START + 1000, 2 * CPU)


def test_a_ledger_forgets_what_is_no_more() -> None:
    """And begins it anew when it comes back."""
    ledger = CPUCounters()
    for name in "abc":
        ledger.count(name, CPU, START, 1000)
    ledger.forget_all_but({"b"})
    assert len(ledger) == 1
    assert ledger.count("b", CPU, START + 1000, 1000).used == 2 * CPU
    assert ledger.count("a", CPU, START + 1000, 1000).used == CPU
