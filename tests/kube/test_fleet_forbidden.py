"""Tests of lists that a cluster denies beside others that it allows: which callers wait, and what is logged."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from scripted import (
    ChangeSignal,
    HttpResponse,
    RecordedRequest,
    ScriptedApiserver,
    ServerAction,
    WatchStream,
    access_to,
    event,
    make_pod,
    refusal,
    running,
    wait_for_cache,
)
from structlog.testing import capture_logs

from tensile.errors import Denied
from tensile.kube.cluster import Selection
from tensile.kube.fleet import Fleet, InformerSpec
from tensile.kube.health import ADVICE
from tensile.kube.limits import InformerTimings
from tensile.kube.store import Cache
from tensile.objects import POD, ROLE, SECRET, UPPER, Kind

FORBIDDEN = refusal(403, "Forbidden")
QUICK = InformerTimings(first=0.001, cap=0.002, near=0.002, shortest=60, longest=60, settled=0.0, outage=0.0)
"""Each try after a failure begins with a list."""


class DenyingListsApiserver(ScriptedApiserver):
    """An apiserver that denies lists and watches of the kinds in `closed`, by their plurals."""

    def __init__(self, *closed: str) -> None:
        super().__init__()
        self.closed = set(closed)

    def _ordinary(self, request: RecordedRequest) -> ServerAction:
        if request.path.rpartition("/")[2] in self.closed:
            return FORBIDDEN
        return super()._ordinary(request)

    def tries(self, kind: Kind) -> int:
        """Return the number of requests for a kind so far."""
        return sum(request.path.endswith(f"/{kind.plural}") for request in self.requests)


class UpperFleet:
    """A fleet with a strict apiserver as the upper cluster, two informers of Roles and one of Secrets."""

    def __init__(self, *closed: str) -> None:
        self.server = DenyingListsApiserver(*closed)
        self.news = ChangeSignal()
        self.roles, self.others, self.secrets = Cache(), Cache(), Cache()
        self.fleet = Fleet(chance=self.news.fixed_random, pace=QUICK)

    def open(self) -> None:
        """Open the upper cluster."""
        feeds = [(ROLE, self.roles), (ROLE, self.others), (SECRET, self.secrets)]
        self.fleet.open(
            UPPER, access_to(self.server.port), [InformerSpec(UPPER, *one, Selection(), to) for *one, to in feeds]
        )

    async def tried(self, kind: Kind, more: int = 6) -> None:
        """Wait until a kind was requested that many more times."""
        enough = self.server.tries(kind) + more
        await self.news.wait_until(lambda: self.server.tries(kind) >= enough)


@asynccontextmanager
async def ground(*closed: str) -> AsyncIterator[UpperFleet]:
    """Open such a fleet; it retries at once, and each retry notifies waiting tests."""
    made = UpperFleet(*closed)
    async with running(made.server):
        made.open()
        try:
            yield made
        finally:
            await made.fleet.close_all()


async def test_waiting_for_an_allowed_list_does_not_wait_for_a_denied_one() -> None:
    """Only a caller that waits for all lists continues to wait."""
    async with ground("roles") as upper_fleet:
        await upper_fleet.fleet[UPPER].listed(upper_fleet.secrets)
        everything = asyncio.create_task(upper_fleet.fleet.synced(UPPER))
        await upper_fleet.tried(ROLE)
        assert (upper_fleet.secrets.synced, upper_fleet.roles.synced, everything.done()) == (True, False, False)
        everything.cancel()


async def test_waiting_for_a_denied_list_raises_denied_until_it_is_allowed() -> None:
    """The error has the cluster, the resource and advice."""
    async with ground("secrets") as upper_fleet:
        for _ in range(3):
            with pytest.raises(Denied) as error:
                await upper_fleet.fleet[UPPER].listed(upper_fleet.secrets)
            assert str(error.value) == f"upper: list Secret: denied: words about Forbidden: {ADVICE}"
        upper_fleet.server.closed.clear()
        await synced(upper_fleet.secrets)
        await upper_fleet.fleet[UPPER].listed(upper_fleet.secrets)


async def test_a_denial_is_logged_once_and_again_when_it_ends() -> None:
    """Two informers of one kind need the same permission, and each retries indefinitely."""
    async with ground("roles") as upper_fleet:
        with capture_logs() as logs:
            await upper_fleet.tried(ROLE, 20)
        message = "upper: list Role: denied: words about Forbidden"
        assert told_of(logs) == [
            {
                "event": "permission denied",
                "log_level": "warning",
                "cluster": "upper",
                "kind": "Role",
                "error": message,
                "advice": ADVICE,
            }
        ]
        assert upper_fleet.fleet[UPPER].denied == message
        upper_fleet.server.closed.clear()
        upper_fleet.server.queue("watch", *[WatchStream().send(event("ADDED", make_pod("a", 30))) for _ in range(3)])
        with capture_logs() as logs:
            await wait_for_cache(upper_fleet.roles, lambda: len(upper_fleet.roles))
            await wait_for_cache(upper_fleet.others, lambda: len(upper_fleet.others))
        assert [(one["event"], one["kind"]) for one in told_of(logs)] == [("permission granted again", "Role")]
        assert upper_fleet.fleet[UPPER].denied == ""


async def test_a_denial_ends_when_the_watch_is_accepted() -> None:
    """The first event of the watch, a bookmark, may be sent only a minute later."""
    async with ground("roles") as upper_fleet:
        await upper_fleet.tried(ROLE)
        upper_fleet.server.queue("watch", *[WatchStream() for _ in range(3)])
        upper_fleet.server.closed.clear()
        async with asyncio.timeout(20):
            while upper_fleet.fleet[UPPER].denied:  # noqa: ASYNC110 - nothing reports it
                await asyncio.sleep(0.001)


async def test_a_denied_watch_is_logged_once_although_the_list_is_allowed() -> None:
    """A list alone is not enough, so the denial does not end with each successful list."""
    async with ground() as upper_fleet:
        upper_fleet.server.queue("watch", *[FORBIDDEN] * 1000)
        with capture_logs() as logs:
            await upper_fleet.news.wait_until(lambda: len(upper_fleet.server.requests_of("watch")) >= 40)
        assert sorted(one["error"] for one in told_of(logs)) == [
            "upper: watch Role: denied: words about Forbidden",
            "upper: watch Secret: denied: words about Forbidden",
        ]


async def test_the_denial_of_a_periodic_list_ends_with_the_next_successful_list() -> None:
    """An informer that lists periodically has no watch whose acceptance would end the denial."""
    cache = Cache()
    async with ground("pods") as upper_fleet:
        upper_fleet.fleet.follow(InformerSpec(UPPER, POD, Selection(), cache, every=0.001))
        await upper_fleet.news.wait_until(lambda: upper_fleet.fleet[UPPER].denied)
        upper_fleet.server.closed.clear()
        await synced(cache)
        await upper_fleet.news.wait_until(lambda: not upper_fleet.fleet[UPPER].denied)


async def test_a_left_cache_has_no_denial() -> None:
    """It is no longer requested, and callers that wait for its list continue."""
    async with ground("roles", "secrets") as upper_fleet:
        await upper_fleet.tried(SECRET)
        await upper_fleet.fleet.leave(UPPER, upper_fleet.secrets)
        assert "Secret" not in upper_fleet.fleet[UPPER].denied
        assert "Role" in upper_fleet.fleet[UPPER].denied
        await upper_fleet.fleet[UPPER].listed(upper_fleet.secrets)


async def test_a_server_error_is_not_a_denial() -> None:
    """A failing cluster reports nothing about permissions, so callers that wait for a list continue to wait."""
    async with ground() as upper_fleet:
        upper_fleet.server.queue("list", *[HttpResponse(500)] * 30)
        waiting = asyncio.create_task(upper_fleet.fleet[UPPER].listed(upper_fleet.secrets))
        await upper_fleet.news.wait_until(lambda: len(upper_fleet.server.requests_of("list")) >= 10)
        assert (upper_fleet.fleet[UPPER].denied, waiting.done()) == ("", False)
        await waiting


async def synced(cache: Cache) -> None:
    """Wait until a cache has had its first list, even an empty one."""
    news = ChangeSignal()
    cache.on_sync(news.notify)
    await news.wait_until(lambda: cache.synced)


def told_of(logs: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return the log lines about permissions."""
    return [one for one in logs if str(one["event"]).endswith(("permission denied", "permission granted again"))]
