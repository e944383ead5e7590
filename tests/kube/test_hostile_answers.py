"""Tests of a fleet with all informers of a lower cluster, against each kind of hostile response of an apiserver."""

import asyncio

import pytest
from hostilekit import MAX_LOG_LINES, MAX_MEMORY_GROWTH, NAME, TIME, hostile_cluster

from bench.faults.hostile.behaviors import BEHAVIORS

FOLLOWED = [way.name for way in BEHAVIORS.values() if way.sort in ("list", "watch", "identity")]
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
    async with hostile_cluster(way) as hostile:
        await hostile.until(lambda: hostile.front.applied_count > 0)
        await hostile.check_honest_cluster()
        await asyncio.sleep(TIME)
        assert hostile.memory_growth() < MAX_MEMORY_GROWTH
        assert hostile.log_lines("error") == []
        assert len(hostile.log_lines("warning")) < MAX_LOG_LINES
        assert not hostile.fleet["lower-y"].health.error


@pytest.mark.parametrize(("way", "message"), TOO_LARGE.items(), ids=list(TOO_LARGE))
async def test_requests_to_a_cluster_that_sends_too_much_are_paused(way: str, message: str) -> None:
    """The credential error gives the reason, the pause is logged once, and the received bytes are released."""
    async with hostile_cluster(way) as hostile:
        await hostile.until(lambda: hostile.fleet[NAME].health.excessive)
        await hostile.until(lambda: hostile.cluster._budget.held == 0)
        assert message in hostile.fleet[NAME].credential_error
        pauses = [one for one in hostile.log_lines("warning") if "requests paused" in one["event"]]
        assert len(pauses) == 1
        await hostile.wait_idle()
        assert hostile.fleet[NAME].unreachable_seconds > 0


@pytest.mark.parametrize("way", LEFT_OUT)
async def test_an_invalid_object_is_skipped_and_counted(way: str) -> None:
    """The valid objects before and after it are cached."""
    async with hostile_cluster(way) as hostile:
        await hostile.until(lambda: hostile.fleet.skipped()[NAME, "Pod"] > 0)
        await hostile.until(lambda: len(hostile.lower.pods) == 2)
        assert sorted(entry.name for entry in hostile.lower.pods) == ["invented-1", "invented-3"]
        assert hostile.lower.pods.synced
        assert hostile.log_lines("error") == []
