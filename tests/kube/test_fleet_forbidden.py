"""Lists that a cluster does not let us have, beside others that it does: who waits for which, and what is told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from scripted import Answer, Apiserver, Asked, News, Play, Stream, access_to, event, pod, refusal, running, told
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
"""Every try after a failure begins with a list."""


class Strict(Apiserver):
    """An apiserver that lists and watches nothing of the kinds in `closed`, by their plurals."""

    def __init__(self, *closed: str) -> None:
        super().__init__()
        self.closed = set(closed)

    def _ordinary(self, asked: Asked) -> Play:
        if asked.path.rpartition("/")[2] in self.closed:
            return FORBIDDEN
        return super()._ordinary(asked)

    def tries(self, kind: Kind) -> int:
        """Count the requests for a kind so far."""
        return sum(asked.path.endswith(f"/{kind.plural}") for asked in self.asked)


class UpperFleet:
    """Such an apiserver as the upper cluster of a fleet that follows Roles and Secrets, the Roles twice."""

    def __init__(self, *closed: str) -> None:
        self.server = Strict(*closed)
        self.news = News()
        self.roles, self.others, self.secrets = Cache(), Cache(), Cache()
        self.fleet = Fleet(chance=self.news.roll, pace=QUICK)

    def open(self) -> None:
        """Open it."""
        feeds = [(ROLE, self.roles), (ROLE, self.others), (SECRET, self.secrets)]
        self.fleet.open(
            UPPER, access_to(self.server.port), [InformerSpec(UPPER, *one, Selection(), to) for *one, to in feeds]
        )

    async def tried(self, kind: Kind, more: int = 6) -> None:
        """Wait until a kind was asked for so many times more."""
        enough = self.server.tries(kind) + more
        await self.news.until(lambda: self.server.tries(kind) >= enough)


@asynccontextmanager
async def ground(*closed: str) -> AsyncIterator[UpperFleet]:
    """Open such a ground; it is tried again and again at once, and every try is news."""
    made = UpperFleet(*closed)
    async with running(made.server):
        made.open()
        try:
            yield made
        finally:
            await made.fleet.close_all()


async def test_who_waits_for_one_list_gets_it_whatever_else_is_denied() -> None:
    """Only who waits for all of them waits on."""
    async with ground("roles") as here:
        await here.fleet[UPPER].listed(here.secrets)
        everything = asyncio.create_task(here.fleet.synced(UPPER))
        await here.tried(ROLE)
        assert (here.secrets.synced, here.roles.synced, everything.done()) == (True, False, False)
        everything.cancel()


async def test_who_waits_for_a_list_that_is_denied_is_told_so() -> None:
    """With the cluster, the resource and what to do; again and again, until it is granted."""
    async with ground("secrets") as here:
        for _ in range(3):
            with pytest.raises(Denied) as error:
                await here.fleet[UPPER].listed(here.secrets)
            assert str(error.value) == f"upper: list Secret: denied: words about Forbidden: {ADVICE}"
        here.server.closed.clear()
        await synced(here.secrets)
        await here.fleet[UPPER].listed(here.secrets)


async def test_a_denial_is_told_once_and_when_it_is_over() -> None:
    """Two lists of one kind lack one right, and each is tried again for ever."""
    async with ground("roles") as here:
        with capture_logs() as logs:
            await here.tried(ROLE, 20)
        words = "upper: list Role: denied: words about Forbidden"
        assert told_of(logs) == [
            {
                "event": "permission denied",
                "log_level": "warning",
                "cluster": "upper",
                "kind": "Role",
                "error": words,
                "advice": ADVICE,
            }
        ]
        assert here.fleet[UPPER].denied == words
        here.server.closed.clear()
        here.server.play("watch", *[Stream().send(event("ADDED", pod("a", 30))) for _ in range(3)])
        with capture_logs() as logs:
            await told(here.roles, lambda: len(here.roles))
            await told(here.others, lambda: len(here.others))
        assert [(one["event"], one["kind"]) for one in told_of(logs)] == [("permission granted again", "Role")]
        assert here.fleet[UPPER].denied == ""


async def test_a_denial_is_over_when_the_watch_is_accepted() -> None:
    """Its first event, a bookmark, comes a minute later."""
    async with ground("roles") as here:
        await here.tried(ROLE)
        here.server.play("watch", *[Stream() for _ in range(3)])
        here.server.closed.clear()
        async with asyncio.timeout(20):
            while here.fleet[UPPER].denied:  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.001)


async def test_a_watch_that_is_denied_is_no_end_of_it() -> None:
    """The list alone is no way to follow: it is told once that the watch is denied, however often that is tried."""
    async with ground() as here:
        here.server.play("watch", *[FORBIDDEN] * 1000)
        with capture_logs() as logs:
            await here.news.until(lambda: len(here.server.of("watch")) >= 40)
        assert sorted(one["error"] for one in told_of(logs)) == [
            "upper: watch Role: denied: words about Forbidden",
            "upper: watch Secret: denied: words about Forbidden",
        ]


async def test_a_list_by_the_clock_is_allowed_again_with_the_next_one() -> None:
    """There is no watch that could tell."""
    cache = Cache()
    async with ground("pods") as here:
        here.fleet.follow(InformerSpec(UPPER, POD, Selection(), cache, every=0.001))
        await here.news.until(lambda: here.fleet[UPPER].denied)
        here.server.closed.clear()
        await synced(cache)
        await here.news.until(lambda: not here.fleet[UPPER].denied)


async def test_what_is_left_is_not_denied_any_more() -> None:
    """Nobody asks for it; who waits for it is let go."""
    async with ground("roles", "secrets") as here:
        await here.tried(SECRET)
        await here.fleet.leave(UPPER, here.secrets)
        assert "Secret" not in here.fleet[UPPER].denied
        assert "Role" in here.fleet[UPPER].denied
        await here.fleet[UPPER].listed(here.secrets)


async def test_other_failures_are_not_taken_for_denials() -> None:
    """A cluster that is not well says nothing of rights, and who waits goes on waiting."""
    async with ground() as here:
        here.server.play("list", *[Answer(500)] * 30)
        waiting = asyncio.create_task(here.fleet[UPPER].listed(here.secrets))
        await here.news.until(lambda: len(here.server.of("list")) >= 10)
        assert (here.fleet[UPPER].denied, waiting.done()) == ("", False)
        await waiting


async def synced(cache: Cache) -> None:
    """Wait until a cache holds a list, be it an empty one."""
    news = News()
    cache.on_sync(news.tell)
    await news.until(lambda: cache.synced)


def told_of(logs: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return what was told of rights."""
    return [one for one in logs if str(one["event"]).endswith(("permission denied", "permission granted again"))]
