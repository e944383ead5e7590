"""Each way in which a hostile apiserver answers, before the fleet with all that is followed of a lower cluster."""

import asyncio

import pytest
from hostilekit import GROWN_AT_MOST, LOGGED_AT_MOST, NAME, TIME, meeting

from bench.faults.hostile.ways import WAYS

FOLLOWED = [way.name for way in WAYS.values() if way.sort in ("list", "watch", "identity")]
TOO_LARGE = {
    "list-endless-body": "a response of more than 16 MiB",
    "list-endless-declared": "a response of more than 16 MiB",
    "list-endless-untold": "a response of more than 16 MiB",
    "list-endless-headers": "outside of its body",
    "list-endless-header": "outside of its body",
    "list-endless-reason": "outside of its body",
    "list-endless-informational": "outside of its body",
    "list-endless-extension": "outside of its body",
    "list-endless-trailers": "outside of its body",
    "list-endless-trailer": "outside of its body",
    "list-tiny-chunks": "outside of its body",
    "list-endless-pages": "an endless list of pages",
    "list-same-page": "an endless list of pages",
    "watch-endless-line": "a watch event of more than 8 MiB",
    "watch-endless-informational": "outside of its body",
    "watch-endless-extension": "outside of its body",
    "watch-empty-lines": "outside of its body",
    "identity-endless": "a response of more than 1 MiB",
}
"""What is sent too much of, in which words; who does so is left alone for a while."""
LEFT_OUT = (
    "list-object-version",
    "list-unnamed",
    "list-long-name",
    "list-long-uid",
    "list-scalars",
    "list-misshapen",
    "list-misshapen-within",
    "list-other-kind",
    "watch-unnamed",
    "watch-misshapen",
    "watch-misshapen-within",
    "watch-scalar",
    "watch-long-version",
    "watch-no-version",
    "watch-other-kind",
    "watch-unasked",
)
"""Ways in which one object of three is none, or was not asked for."""


@pytest.mark.parametrize("way", FOLLOWED)
async def test_others_go_on_and_nothing_grows_without_end(way: str) -> None:
    """Another cluster is followed all the same; memory and log stay small, and no task fails."""
    async with meeting(way) as met:
        await met.until(lambda: met.front.met > 0)
        await met.others_go_on()
        await asyncio.sleep(TIME)
        assert met.grown() < GROWN_AT_MOST
        assert met.told("error") == []
        assert len(met.told("warning")) < LOGGED_AT_MOST
        assert not met.fleet["lower-y"].health.error


@pytest.mark.parametrize(("way", "words"), TOO_LARGE.items(), ids=list(TOO_LARGE))
async def test_who_sends_too_much_is_left_alone(way: str, words: str) -> None:
    """Its trouble is said in words, once; what was under way has ended, and nothing is asked while the pause lasts."""
    async with meeting(way) as met:
        await met.until(lambda: met.fleet[NAME].health.excessive)
        await met.until(lambda: met.cluster._account.held == 0)
        assert words in met.fleet[NAME].credential_error
        told = [one for one in met.told("warning") if "requests paused" in one["event"]]
        assert len(told) == 1
        await met.wait_idle()
        assert met.fleet[NAME].silent > 0


@pytest.mark.parametrize("way", LEFT_OUT)
async def test_one_bad_object_costs_the_others_nothing(way: str) -> None:
    """The valid ones before and behind it are known, and it is counted."""
    async with meeting(way) as met:
        await met.until(lambda: met.fleet.skipped()[NAME, "Pod"] > 0)
        await met.until(lambda: len(met.lower.pods) == 2)
        assert sorted(entry.name for entry in met.lower.pods) == ["invented-1", "invented-3"]
        assert met.lower.pods.synced
        assert met.told("error") == []
