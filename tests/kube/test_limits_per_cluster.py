"""How much of one cluster is taken, as arithmetic: what is under way, what is kept, and how long a pause is."""

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensile.errors import Unreachable
from tensile.kube import limits
from tensile.kube.limits import CacheLimit, OversizeBackoff, ResponseBudget, TooLarge, mebibytes
from tensile.kube.requests import TimeShare
from tensile.kube.store import Cache, CacheTotals, keep_all


def test_what_is_under_way_may_not_be_more_than_the_account_holds() -> None:
    """It is no breach: with fewer answers under way the next try comes through."""
    account = ResponseBudget(10)
    account.take(6)
    with pytest.raises(Unreachable) as error:
        account.take(6)
    assert not isinstance(error.value, TooLarge)
    account.give_back(12)
    account.take(10)
    assert account.held == 10


def test_a_pause_doubles_with_each_breach_up_to_a_cap() -> None:
    """A breach within a pause is part of the last, and who keeps to the bounds for long begins again."""
    restraint = OversizeBackoff(first=10.0, cap=40.0, forgiven=100.0)
    now, pauses = 1000.0, []
    for _ in range(5):
        pauses.append(restraint.note(now, "words"))
        assert restraint.note(now + 1, "other words") == pauses[-1] - 1
        now = restraint.until
        assert restraint.left(now) == 0.0
    assert pauses == [10.0, 20.0, 40.0, 40.0, 40.0]
    assert restraint.words == "words"
    assert restraint.note(now + 101, "words") == 10.0


def test_a_cluster_is_trusted_a_while_after_its_pause() -> None:
    """In between it may be asked, so that it can show whether it is better."""
    restraint = OversizeBackoff(first=10.0)
    restraint.note(0.0, "words")
    assert (restraint.until, restraint.trusted_from) == (10.0, 20.0)


def test_the_caches_of_one_cluster_are_counted_together() -> None:
    """Objects that come, change and go, in each of them."""
    tally, caches = CacheTotals(), [Cache(), Cache()]
    for cache in caches:
        cache.tally = tally
    thing = b'{"metadata":{"name":"%s","uid":"u","resourceVersion":"%d"%s}}'
    caches[0].put(thing % (b"a", 1, b""))
    caches[1].put(thing % (b"a", 1, b""))
    first = tally.content
    assert (tally.objects, first > 0) == (2, True)
    caches[1].put(thing % (b"a", 2, b',"labels":{"a":"%s"}' % (b"x" * 1_000)))
    assert tally.objects == 2
    assert tally.content > first + 1_000
    caches[1].take_over([], 3)
    caches[0].remove(thing % (b"a", 4, b""))
    assert (tally.objects, tally.content) == (0, 0)


def test_what_facts_take_counts_too() -> None:
    """A cache that keeps no bytes of an object still holds what was read out of it."""
    light, heavy = Cache(lambda _raw: keep_all(b"")), Cache(lambda raw: keep_all(b"")._replace(facts=raw.decode()))
    for cache in (light, heavy):
        cache.tally = CacheTotals()
        cache.put(b'{"metadata":{"name":"a","resourceVersion":"1"},"x":"%s"}' % (b"x" * 10_000))
    assert light.tally is not None
    assert heavy.tally is not None
    assert heavy.tally.content > light.tally.content + 10_000


def test_there_may_be_more_while_a_list_comes_in() -> None:
    """What it replaces stays until it is whole, also where that is at the bound already."""
    allowance, tally = CacheLimit(objects=100, content=1 << 20), CacheTotals()
    tally.add(110, 0)
    allowance.check(tally, listing=True)
    with pytest.raises(TooLarge, match="more than 100 objects"):
        allowance.check(tally)
    tally.add(20, 0)
    with pytest.raises(TooLarge):
        allowance.check(tally, listing=True)
    tally.add(-100, 3 << 19)
    with pytest.raises(TooLarge, match="of more than 1 MiB"):
        allowance.check(tally)


def test_the_bounds_fit_together() -> None:
    """Two of the largest objects fit into a page, the pages of all lists into what may be under way, and so on."""
    assert limits.PAGES[-1] * limits.OBJECT <= limits.PAGE
    assert 2 * limits.LISTINGS * limits.PAGE <= limits.IN_FLIGHT
    assert limits.WHOLE <= limits.IN_FLIGHT
    assert list(limits.PAGES) == sorted(limits.PAGES, reverse=True)
    assert limits.IN_FLIGHT + limits.CONTENT * (1 + 1 / limits.FRESH) < 700 << 20


@given(st.integers(0, 1 << 40))
def test_sizes_are_written_for_people(size: int) -> None:
    """In MiB, or below one in KiB."""
    assert mebibytes(size).endswith((" MiB", " KiB"))


def took(share: TimeShare, seconds: float) -> None:
    """Let what a share measures have begun so many seconds earlier."""
    share._began -= seconds
    share._began_by_wall -= seconds


async def test_a_cluster_gets_its_part_of_the_time_and_no_more() -> None:
    """What it takes beyond has to be waited for: here the clock stands still."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    share = TimeShare(0.25, 1, lambda: 0.0, sleep)
    for _ in range(3):
        await share.begin()
        took(share, 1.0)
        assert share.is_long
        await share.rest()
    assert [round(wait) for wait in waits] == [0, 4, 8] or [round(wait) for wait in waits] == [4, 8]


async def test_time_lost_to_other_processes_costs_no_more_than_a_part_of_the_burst() -> None:
    """Beyond that, what a cluster took is measured by the time of the thread, which here is next to none."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    share = TimeShare(0.25, 10, lambda: 0.0, sleep)
    for _ in range(20):
        await share.begin()
        share._began_by_wall -= 1.0
        if share._stopwatch is time.perf_counter:
            share._began -= 1.0
        await share.rest()
    assert share._stopwatch is time.thread_time
    assert not waits


async def test_the_streams_of_one_cluster_take_turns() -> None:
    """One that has taken its part of a turn of the loop ends it for all of that cluster, and for no other's work."""
    share, order = TimeShare(0.25, 1_000, lambda: 0.0, asyncio.sleep), []

    async def read(name: str) -> None:
        for _ in range(3):
            await share.begin()
            order.append(name)
            took(share, 1.0)
            await share.rest()

    async def other() -> None:
        for _ in range(6):
            order.append("other")
            await asyncio.sleep(0)

    await asyncio.gather(read("a"), read("b"), other())
    together = "".join(name[0] for name in order)
    assert "ab" not in together
    assert "ba" not in together


async def test_without_a_bound_nothing_is_waited_for() -> None:
    """The upper cluster's objects are read as they come."""
    share = TimeShare(0.0, 1, lambda: 0.0, asyncio.sleep)
    await share.begin()
    took(share, 100.0)
    assert not share.is_long
    await asyncio.wait_for(share.rest(), 1)
    await asyncio.wait_for(share.begin(), 1)
