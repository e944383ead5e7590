"""Tests of counters computed from rates: a client derives the rate again, and never more than was used."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensile.kubelet.stats.usage import Counter, CPUCounters, advance, new_counter

CPU = 1_000_000_000
"""One CPU, in nanoseconds per second."""
START = 1_700_000_000_000


def rate(before: Counter, after: Counter) -> float:
    """Compute the rate of two counters, as metrics-server does."""
    return (after.used - before.used) * 1000 / (after.time - before.time)


def test_a_counter_grows_by_rate_and_time() -> None:
    """Half a CPU over fifteen seconds is seven and a half CPU seconds."""
    counter = advance(Counter(START, 100), CPU // 2, START + 15_000)
    assert counter == Counter(START + 15_000, 100 + 15 * CPU // 2)


def test_time_between_samples_counts_at_the_later_rate() -> None:
    """A client that reads every minute gets the rate, though each sample covers fifteen seconds."""
    first = new_counter(CPU, START, 15_000)
    assert rate(first, advance(first, CPU // 4, START + 60_000)) == CPU // 4


@pytest.mark.parametrize("later", [0, -1, -60_000])
def test_a_sample_that_is_not_newer_changes_nothing(later: int) -> None:
    """A client that reads twice in between gets the same time, and recognizes that."""
    counter = Counter(START, 5000)
    assert advance(counter, CPU, START + later) == counter


def test_a_counter_begins_with_the_window_of_its_first_sample() -> None:
    """For a container that has run for long, earlier usage is not known."""
    assert new_counter(CPU, START, 15_000) == Counter(START, 15 * CPU)
    assert new_counter(CPU, START, 15_000, START - 60_001) == Counter(START, 15 * CPU)


@pytest.mark.parametrize("age", [1000, 12_000, 60_000])
def test_the_counter_of_a_young_container_begins_at_its_start(age: int) -> None:
    """Clients divide the counter of a new container by its age."""
    counter = new_counter(CPU // 5, START, 15_000, START - age)
    assert counter.used * 1000 / age == CPU // 5


def test_a_start_in_the_future_counts_the_window() -> None:
    """The clocks of clusters may differ."""
    assert new_counter(CPU, START, 15_000, START + 1).used == 15 * CPU


@pytest.mark.parametrize("used", [0, 1])
def test_a_counter_is_never_zero(used: int) -> None:
    """Clients treat 0 as a missing value and drop the whole pod."""
    assert float(new_counter(used, START, 15_000).used) * 1e-9 * 1e9 >= 1


@given(st.lists(st.tuples(st.integers(0, 64 * CPU), st.integers(-30_000, 120_000)), max_size=30))
def test_counters_never_decrease(samples: list[tuple[int, int]]) -> None:
    """For any samples time and usage only grow, and each step matches its rate to a nanosecond."""
    counters = [new_counter(CPU, START, 15_000)]
    for used, later in samples:
        counters.append(advance(counters[-1], used, counters[-1].time + later))
    for (before, after), (used, later) in zip(pairwise(counters), samples, strict=True):
        assert after.time >= before.time
        assert after.used >= before.used
        if later > 0:
            assert abs(rate(before, after) - used) * later <= 1000


@given(st.integers(0, 8 * CPU), st.integers(0, 8 * CPU), st.integers(15_000, 300_000))
def test_a_restarted_counter_never_causes_a_peak(former: int, now: int, gap: int) -> None:
    """After an engine's restart a client computes a lower or negative rate once, but no higher one."""
    last = new_counter(former, START, 15_000)
    restarted = new_counter(now, START + gap, 15_000, START - 3_600_000)
    assert rate(last, restarted) <= max(now, 1)


def test_a_ledger_has_one_counter_per_name() -> None:
    """Each name is counted separately."""
    ledger = CPUCounters()
    assert ledger.count("a", CPU, START, 1000) == Counter(START, CPU)
    assert ledger.count("b", CPU, START, 2000) == Counter(START, 2 * CPU)
    assert ledger.count("a", CPU, START + 1000, 1000) == Counter(START + 1000, 2 * CPU)


def test_a_ledger_forgets_absent_names() -> None:
    """A name that appears again starts with a new counter."""
    ledger = CPUCounters()
    for name in "abc":
        ledger.count(name, CPU, START, 1000)
    ledger.forget_all_but({"b"})
    assert len(ledger) == 1
    assert ledger.count("b", CPU, START + 1000, 1000).used == 2 * CPU
    assert ledger.count("a", CPU, START + 1000, 1000).used == CPU
