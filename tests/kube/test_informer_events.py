"""Tests of watches that only receive new events, against a scripted apiserver.

They receive no old event and no event twice, and do not stay silent after a restore.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from scripted import (
    ChangeSignal,
    ScriptedApiserver,
    WatchStream,
    access_to,
    bookmark,
    event,
    listing,
    make_pod,
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
        self, server: ScriptedApiserver, pace: InformerTimings, clock: Callable[[], float], rests: list[float]
    ) -> None:
        self.news = ChangeSignal()
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
        self.news.notify()

    async def types(self, *types: str) -> None:
        """Wait until exactly the events of these types were received."""
        await self.news.wait_until(lambda: [one.type for one in self.events] == list(types))


@asynccontextmanager
async def tailing(
    server: ScriptedApiserver,
    pace: InformerTimings = QUICK,
    clock: Callable[[], float] = lambda: 0.0,
    rests: list[float] | None = None,
) -> AsyncIterator[RunningWatch]:
    """Run an event watch against a scripted apiserver."""
    running_watch = RunningWatch(server, pace, clock, [] if rests is None else rests)
    try:
        async with background(running_watch.tail.run()):
            yield running_watch
    finally:
        await running_watch.cluster.close()


async def test_an_event_watch_starts_at_the_current_resource_version(apiserver: ScriptedApiserver) -> None:
    """An empty list returns that version, so that existing objects cause no events."""
    stream = WatchStream()
    apiserver.queue("check", listing(20))
    apiserver.queue("watch", stream)
    async with tailing(apiserver) as running_watch:
        request = await apiserver.wait_for_request("watch")
        assert apiserver.requests_of("check")[0].query["fieldSelector"] == "metadata.name=-"
        assert (request.query["resourceVersion"], request.query["fieldSelector"]) == ("20", "x=y")
        assert running_watch.tail.listening.is_set()
        stream.send(event("ADDED", make_pod("a", 21)), event("MODIFIED", make_pod("a", 22)))
        await running_watch.types("ADDED", "MODIFIED")


async def test_an_event_watch_is_resumed_from_the_last_resource_version(apiserver: ScriptedApiserver) -> None:
    """This applies after an end and after a break, and bookmarks count too."""
    apiserver.queue("check", listing(20), listing(40), listing(50))
    ended, broken = WatchStream().send(bookmark(30)).end(), WatchStream().send(event("ADDED", make_pod("a", 41))).drop()
    apiserver.queue("watch", ended, broken)
    async with tailing(apiserver):
        versions = [(await apiserver.wait_for_request("watch", n)).query["resourceVersion"] for n in (1, 2, 3)]
        assert versions == ["20", "30", "41"]


@pytest.mark.parametrize("lost", ["expired", "rewound"])
async def test_an_event_watch_starts_at_the_current_version_again_if_it_cannot_resume(
    apiserver: ScriptedApiserver, lost: str
) -> None:
    """The old version has expired, or is in the future of a restored etcd, where a watch would receive nothing."""
    first = WatchStream().send(event("ADDED", make_pod("a", 30)))
    if lost == "expired":
        first.send(event("ERROR", status_body(410, "Expired")))
    apiserver.queue("check", listing(20), listing(35) if lost == "expired" else listing(25))
    apiserver.queue("watch", first.end())
    async with tailing(apiserver):
        again = await apiserver.wait_for_request("watch", 2)
        assert again.query["resourceVersion"] == ("35" if lost == "expired" else "25")


@pytest.mark.parametrize(("play", "listens"), [(refusal(403, "Forbidden"), True), (refusal(500, "Oops"), False)])
async def test_an_event_watch_is_retried_with_a_back_off_after_errors(
    apiserver: ScriptedApiserver, play: object, *, listens: bool
) -> None:
    """A caller that waits for it to listen does not wait if the cluster denies the watch."""
    apiserver.queue("check", play, play, listing(20))  # type: ignore[arg-type]
    rests: list[float] = []
    async with tailing(apiserver, rests=rests) as running_watch:
        await apiserver.wait_for_request("check", 2)
        assert running_watch.tail.listening.is_set() is listens
        await apiserver.wait_for_request("watch")
        assert running_watch.tail.listening.is_set()
    assert rests == [0.005, 0.01]


async def test_event_watches_that_end_at_once_are_backed_off(apiserver: ScriptedApiserver) -> None:
    """Each immediate end is followed by a wait, like an error."""
    apiserver.queue("watch", WatchStream().end(), WatchStream().end(), WatchStream().end())
    rests: list[float] = []
    async with tailing(apiserver, QUICK._replace(settled=1.0), rests=rests):
        await apiserver.wait_for_request("watch", 4)
    assert rests[:3] == [0.005, 0.01, 0.01]
