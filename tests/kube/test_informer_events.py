"""Tests of watches that only receive new events, against a scripted apiserver.

They receive no old event and no event twice, and do not stay silent after a restore.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from scripted import (
    Apiserver,
    News,
    Stream,
    access_to,
    bookmark,
    event,
    listing,
    pod,
    refusal,
    status_body,
)
from tasks import background

from tensile.kube.client import HttpCluster
from tensile.kube.cluster import Selection, WatchEvent
from tensile.kube.informer import EventTail
from tensile.kube.limits import InformerTimings
from tensile.objects import POD

QUICK = InformerTimings(first=0.01, cap=0.02, near=0.02, shortest=60, longest=60, settled=0.0)


class RunningWatch:
    """A running event watch and its events."""

    def __init__(
        self, server: Apiserver, pace: InformerTimings, clock: Callable[[], float], rests: list[float]
    ) -> None:
        self.news = News()
        self.events: list[WatchEvent] = []
        self.cluster = HttpCluster("a", access_to(server.port), margin=0.2, timeout=5.0)

        async def rest(seconds: float) -> None:
            """Record a wait without waiting."""
            rests.append(seconds)
            await asyncio.sleep(0)

        self.tail = EventTail(
            self.cluster,
            POD,
            Selection(fields="x=y"),
            self.hear,
            chance=lambda: 0.5,
            pace=pace,
            clock=clock,
            sleep=rest,
        )

    def hear(self, one: WatchEvent) -> None:
        """Record an event."""
        self.events.append(one)
        self.news.tell()

    async def types(self, *types: str) -> None:
        """Wait until exactly the events of these types were received."""
        await self.news.until(lambda: [one.type for one in self.events] == list(types))


@asynccontextmanager
async def tailing(
    server: Apiserver,
    pace: InformerTimings = QUICK,
    clock: Callable[[], float] = lambda: 0.0,
    rests: list[float] | None = None,
) -> AsyncIterator[RunningWatch]:
    """Run an event watch against a scripted apiserver."""
    heard = RunningWatch(server, pace, clock, [] if rests is None else rests)
    try:
        async with background(heard.tail.run()):
            yield heard
    finally:
        await heard.cluster.close()


async def test_an_event_watch_starts_at_the_current_resource_version(apiserver: Apiserver) -> None:
    """An empty list returns that version, so that existing objects cause no events."""
    stream = Stream()
    apiserver.play("check", listing(20))
    apiserver.play("watch", stream)
    async with tailing(apiserver) as heard:
        asked = await apiserver.until("watch")
        assert apiserver.of("check")[0].query["fieldSelector"] == "metadata.name=-"
        assert (asked.query["resourceVersion"], asked.query["fieldSelector"]) == ("20", "x=y")
        assert heard.tail.listening.is_set()
        stream.send(event("ADDED", pod("a", 21)), event("MODIFIED", pod("a", 22)))
        await heard.types("ADDED", "MODIFIED")


async def test_an_event_watch_is_resumed_from_the_last_resource_version(apiserver: Apiserver) -> None:
    """This applies after an end and after a break, and bookmarks count too."""
    apiserver.play("check", listing(20), listing(40), listing(50))
    ended, broken = Stream().send(bookmark(30)).end(), Stream().send(event("ADDED", pod("a", 41))).drop()
    apiserver.play("watch", ended, broken)
    async with tailing(apiserver):
        versions = [(await apiserver.until("watch", n)).query["resourceVersion"] for n in (1, 2, 3)]
        assert versions == ["20", "30", "41"]


@pytest.mark.parametrize("lost", ["expired", "rewound"])
async def test_an_event_watch_starts_at_the_current_version_again_if_it_cannot_resume(
    apiserver: Apiserver, lost: str
) -> None:
    """The old version has expired, or is in the future of a restored etcd, where a watch would receive nothing."""
    first = Stream().send(event("ADDED", pod("a", 30)))
    if lost == "expired":
        first.send(event("ERROR", status_body(410, "Expired")))
    apiserver.play("check", listing(20), listing(35) if lost == "expired" else listing(25))
    apiserver.play("watch", first.end())
    async with tailing(apiserver):
        again = await apiserver.until("watch", 2)
        assert again.query["resourceVersion"] == ("35" if lost == "expired" else "25")


@pytest.mark.parametrize(("play", "listens"), [(refusal(403, "Forbidden"), True), (refusal(500, "Oops"), False)])
async def test_an_event_watch_is_retried_with_a_back_off_after_errors(
    apiserver: Apiserver, play: object, *, listens: bool
) -> None:
    """A caller that waits for it to listen does not wait if the cluster denies the watch."""
    apiserver.play("check", play, play, listing(20))  # type: ignore[arg-type]
    rests: list[float] = []
    async with tailing(apiserver, rests=rests) as heard:
        await apiserver.until("check", 2)
        assert heard.tail.listening.is_set() is listens
        await apiserver.until("watch")
        assert heard.tail.listening.is_set()
    assert rests == [0.005, 0.01]


async def test_event_watches_that_end_at_once_are_backed_off(apiserver: Apiserver) -> None:
    """Each immediate end is followed by a wait, like an error."""
    apiserver.play("watch", Stream().end(), Stream().end(), Stream().end())
    rests: list[float] = []
    async with tailing(apiserver, QUICK._replace(settled=1.0), rests=rests):
        await apiserver.until("watch", 4)
    assert rests[:3] == [0.005, 0.01, 0.01]
