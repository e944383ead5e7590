"""Tests of the limits per cluster: responses in progress, cached objects, pauses, and the share of time."""

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


def test_responses_in_progress_may_not_exceed_the_budget() -> None:
    """This is no breach by the cluster: with fewer responses in progress, the next try succeeds."""
    account = ResponseBudget(10)
    account.take(6)
    with pytest.raises(Unreachable) as error:
        account.take(6)
    assert not isinstance(error.value, TooLarge)
    account.give_back(12)
    account.take(10)
    assert account.held == 10


def test_pauses_double_with_each_breach_up_to_a_cap() -> None:
    """A breach during a pause does not extend it, and after a long time without a breach pauses start short again."""
    restraint = OversizeBackoff(first=10.0, cap=40.0, forgiven=100.0)
    now, pauses = 1000.0, []
    for _ in range(5):
        pauses.append(restraint.note(now, "words"))
        assert restraint.note(now + 1, "other words") == pauses[-1] - 1
        now = restraint.until
        assert restraint.left(now) == 0.0
    assert pauses == [10.0, 20.0, 40.0, 40.0, 40.0]
    assert restraint.message == "words"
    assert restraint.note(now + 101, "words") == 10.0


def test_a_cluster_counts_as_healthy_some_time_after_its_pause() -> None:
    """Between the pause and that time it gets requests, to find out whether it keeps the limits now."""
    restraint = OversizeBackoff(first=10.0)
    restraint.note(0.0, "words")
    assert (restraint.until, restraint.trusted_from) == (10.0, 20.0)


def test_all_caches_of_a_cluster_share_one_total() -> None:
    """Creations, changes and deletions of objects in each cache change the total."""
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


def test_the_size_of_facts_counts_for_the_total() -> None:
    """A cache that drops the bytes of an object still keeps the facts that were extracted from it."""
    light, heavy = Cache(lambda _raw: keep_all(b"")), Cache(lambda raw: keep_all(b"")._replace(facts=raw.decode()))
    for cache in (light, heavy):
        cache.tally = CacheTotals()
        cache.put(b'{"metadata":{"name":"a","resourceVersion":"1"},"x":"%s"}' % (b"x" * 10_000))
    assert light.tally is not None
    assert heavy.tally is not None
    assert heavy.tally.content > light.tally.content + 10_000


def test_the_cache_limit_is_higher_while_a_list_is_read() -> None:
    """The old objects stay cached until the list is complete, even if they are at the limit."""
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


def test_the_limits_are_consistent_with_each_other() -> None:
    """The largest objects fit into a page, the pages of all lists into the budget for responses, and so on."""
    assert limits.PAGES[-1] * limits.OBJECT <= limits.PAGE
    assert 2 * limits.LISTINGS * limits.PAGE <= limits.IN_FLIGHT
    assert limits.WHOLE <= limits.IN_FLIGHT
    assert list(limits.PAGES) == sorted(limits.PAGES, reverse=True)
    assert limits.IN_FLIGHT + limits.CONTENT * (1 + 1 / limits.FRESH) < 700 << 20


@given(st.integers(0, 1 << 40))
def test_sizes_are_formatted_in_mib_or_kib(size: int) -> None:
    """Sizes below one MiB are formatted in KiB."""
    assert mebibytes(size).endswith((" MiB", " KiB"))


def took(share: TimeShare, seconds: float) -> None:
    """Change what a share measures as if it had begun that many seconds earlier."""
    share._began -= seconds
    share._began_by_wall -= seconds


async def test_a_cluster_that_exceeds_its_share_of_time_waits() -> None:
    """The clock does not advance in this test, so that the waits add up."""
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


async def test_time_lost_to_other_processes_uses_only_a_part_of_the_burst() -> None:
    """Beyond that part, the share is measured in thread time, which hardly advances here."""
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


async def test_streams_of_one_cluster_that_use_their_share_take_turns() -> None:
    """A stream that has used its part ends the turn of all streams of its cluster, but not of other work."""
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


async def test_a_share_without_a_limit_never_waits() -> None:
    """The objects of the upper cluster are read as they arrive."""
    share = TimeShare(0.0, 1, lambda: 0.0, asyncio.sleep)
    await share.begin()
    took(share, 100.0)
    assert not share.is_long
    await asyncio.wait_for(share.rest(), 1)
    await asyncio.wait_for(share.begin(), 1)
