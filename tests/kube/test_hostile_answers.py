"""Tests of a fleet with all informers of a lower cluster, against each kind of hostile response of an apiserver."""

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
"""What exceeds a limit, and the error for it; requests to such a server are paused."""
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
"""Ways in which one object of three is invalid or was not requested."""


@pytest.mark.parametrize("way", FOLLOWED)
async def test_a_hostile_cluster_affects_no_other_cluster_and_memory_stays_bounded(way: str) -> None:
    """Another cluster is still watched, few warnings are logged, and no task fails."""
    async with meeting(way) as met:
        await met.until(lambda: met.front.met > 0)
        await met.others_go_on()
        await asyncio.sleep(TIME)
        assert met.grown() < GROWN_AT_MOST
        assert met.told("error") == []
        assert len(met.told("warning")) < LOGGED_AT_MOST
        assert not met.fleet["lower-y"].health.error


@pytest.mark.parametrize(("way", "words"), TOO_LARGE.items(), ids=list(TOO_LARGE))
async def test_requests_to_a_cluster_that_sends_too_much_are_paused(way: str, words: str) -> None:
    """The credential error gives the reason, the pause is logged once, and the received bytes are released."""
    async with meeting(way) as met:
        await met.until(lambda: met.fleet[NAME].health.excessive)
        await met.until(lambda: met.cluster._budget.held == 0)
        assert words in met.fleet[NAME].credential_error
        told = [one for one in met.told("warning") if "requests paused" in one["event"]]
        assert len(told) == 1
        await met.wait_idle()
        assert met.fleet[NAME].silent > 0


@pytest.mark.parametrize("way", LEFT_OUT)
async def test_an_invalid_object_is_skipped_and_counted(way: str) -> None:
    """The valid objects before and after it are cached."""
    async with meeting(way) as met:
        await met.until(lambda: met.fleet.skipped()[NAME, "Pod"] > 0)
        await met.until(lambda: len(met.lower.pods) == 2)
        assert sorted(entry.name for entry in met.lower.pods) == ["invented-1", "invented-3"]
        assert met.lower.pods.synced
        assert met.told("error") == []
