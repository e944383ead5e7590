"""Tests of list and watch against a scripted apiserver: the cache stays correct however a watch fails."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count, pairwise

import pytest
from scripted import (
    ChangeSignal,
    DropConnection,
    Hang,
    HttpResponse,
    ScriptedApiserver,
    WatchStream,
    access_to,
    bookmark,
    event,
    listing,
    make_pod,
    refusal,
    running,
    status_body,
    wait_for_cache,
)
from tasks import background

from tensile.kube.client import HttpCluster
from tensile.kube.cluster import Selection
from tensile.kube.informer import Informer
from tensile.kube.limits import InformerTimings
from tensile.kube.store import Cache, Delta
from tensile.objects import POD, Ref

QUICK = InformerTimings(first=0.01, cap=0.02, near=0.02, shortest=60, longest=60, settled=0.0)


class RunningInformer:
    """A running informer, its cache and its apiserver."""

    def __init__(
        self,
        server: ScriptedApiserver,
        pace: InformerTimings,
        clock: Callable[[], float],
        cache: Cache,
        every: float = 0.0,
    ) -> None:
        self.server = server
        self.news = ChangeSignal()
        self.cache = cache
        self.cluster = HttpCluster("a", access_to(server.port), margin=0.2, timeout=5.0)
        selection = Selection("", "x=y")
        self.informer = Informer(
            self.cluster, POD, selection, self.cache, chance=self.news.fixed_random, every=every, pace=pace, clock=clock
        )
        self.cluster.followers[POD] = [self.informer]

    def names(self) -> list[str]:
        """Return the cached names, sorted."""
        return sorted(entry.name for entry in self.cache)

    async def has(self, *names: str) -> None:
        """Wait until exactly these names are cached."""
        await wait_for_cache(self.cache, lambda: self.names() == sorted(names))


@asynccontextmanager
async def following(
    server: ScriptedApiserver,
    pace: InformerTimings = QUICK,
    clock: Callable[[], float] = lambda: 0.0,
    cache: Cache | None = None,
    every: float = 0.0,
) -> AsyncIterator[RunningInformer]:
    """Run an informer against a scripted apiserver."""
    followed = RunningInformer(server, pace, clock, cache or Cache(), every)
    try:
        async with background(followed.informer.run()):
            yield followed
    finally:
        await followed.cluster.close()


async def test_a_watch_starts_at_the_resource_version_of_the_list(apiserver: ScriptedApiserver) -> None:
    """The events of the watch are applied to the cache."""
    stream = WatchStream()
    apiserver.queue("list", listing(20, make_pod("a", 5), make_pod("b", 6)))
    apiserver.queue("watch", stream)
    async with following(apiserver) as followed:
        assert not followed.cache.synced
        await followed.has("a", "b")
        assert followed.cache.synced
        assert (await apiserver.wait_for_request("watch")).query["resourceVersion"] == "20"
        stream.send(
            event("ADDED", make_pod("c", 21)), event("MODIFIED", make_pod("a", 22)), event("DELETED", make_pod("b", 23))
        )
        await followed.has("a", "c")
        assert followed.cache.version == 23
        assert followed.cache.tombstone("default", "b") is not None
        assert followed.informer.relists == 1


async def test_a_watch_that_ended_is_resumed_from_the_last_resource_version(apiserver: ScriptedApiserver) -> None:
    """A normal end costs one request; bookmarks and events of unknown types only change the resourceVersion."""
    apiserver.queue("list", listing(20))
    sent = event("ADDED", make_pod("a", 21)), bookmark(30), event("TELEPORTED", make_pod("b", 35))
    apiserver.queue("watch", *(WatchStream().send(one).end() for one in sent))
    async with following(apiserver) as followed:
        versions = [(await apiserver.wait_for_request("watch", n)).query["resourceVersion"] for n in (1, 2, 3, 4)]
        assert versions == ["20", "21", "30", "35"]
        assert [request.sort for request in apiserver.requests] == ["list", "watch", "watch", "watch", "watch"]
        assert (followed.informer.resume_version, followed.names()) == (35, ["a"])


async def test_the_duration_of_a_watch_is_random_between_its_bounds(apiserver: ScriptedApiserver) -> None:
    """Otherwise all watches would end at the same time."""
    pace = QUICK._replace(shortest=240, longest=480)
    async with following(apiserver, pace):
        assert (await apiserver.wait_for_request("watch")).query["timeoutSeconds"] == "360"


async def test_an_informer_with_an_interval_lists_periodically_and_does_not_watch(apiserver: ScriptedApiserver) -> None:
    """Created and deleted objects are detected by the next list, also after a failed list."""
    lists = (listing(20, make_pod("a", 5)), refusal(500, "InternalError"), listing(22, make_pod("b", 21)), listing(30))
    apiserver.queue("list", *lists)
    async with following(apiserver, every=0.01) as followed:
        await followed.has("b")
        await followed.has()
        assert {request.sort for request in apiserver.requests} == {"list"}


@pytest.mark.parametrize(
    "play", [refusal(410, "Gone"), WatchStream().send(event("ERROR", status_body(410, "Expired"))).end()]
)
async def test_an_expired_resource_version_leads_to_a_new_list(
    apiserver: ScriptedApiserver, play: HttpResponse | WatchStream
) -> None:
    """The 410 may be a Status or an event.

    An object that the new list lacks has no tombstone, because its deletion was not seen.
    """
    apiserver.queue(
        "list",
        listing(20, make_pod("a", 5), make_pod("b", 6)),
        listing(40, make_pod("b", 35, uid="new"), make_pod("c", 31)),
    )
    apiserver.queue("watch", play)
    async with following(apiserver) as followed:
        await followed.has("b", "c")
        assert (await apiserver.wait_for_request("watch", 2)).query["resourceVersion"] == "40"
        assert followed.cache.tombstone("default", "a") is None
        recreated = followed.cache.get("default", "b")
        assert recreated is not None
        assert recreated.uid == "new"
        assert followed.informer.rewinds == 0


@pytest.mark.parametrize("ends", [True, False], ids=["breaks", "hangs"])
async def test_a_broken_watch_is_resumed_after_a_check_of_the_resource_version(
    apiserver: ScriptedApiserver, *, ends: bool
) -> None:
    """An empty list shows that the cluster has reached the last resourceVersion, so no full list is needed."""
    watch = WatchStream().send(event("ADDED", make_pod("b", 25)))
    apiserver.queue("list", listing(20, make_pod("a", 5)))
    apiserver.queue("watch", watch.drop() if ends else watch)
    apiserver.queue("check", listing(25))
    async with following(apiserver, QUICK if ends else QUICK._replace(shortest=0, longest=0)) as followed:
        assert (await apiserver.wait_for_request("watch", 2)).query["resourceVersion"] == "25"
        assert [request.sort for request in apiserver.requests][:4] == ["list", "watch", "check", "watch"]
        assert "labelSelector" not in apiserver.requests_of("check")[0].query
        assert followed.informer.relists == 1


async def test_no_watch_is_opened_from_a_future_resource_version(apiserver: ScriptedApiserver) -> None:
    """After a restore of etcd such a watch would return nothing indefinitely, so everything is listed again."""
    apiserver.queue(
        "list", listing(278, make_pod("lost", 270), make_pod("kept", 100)), listing(251, make_pod("kept", 100))
    )
    apiserver.queue("watch", WatchStream().drop())
    apiserver.queue("check", listing(250))
    async with following(apiserver) as followed:
        await followed.has("kept", "lost")
        await followed.has("kept")
        assert (await apiserver.wait_for_request("watch", 2)).query["resourceVersion"] == "251"
        assert followed.informer.rewinds == 1
        assert followed.cache.synced
        assert followed.cache.tombstone("default", "lost") is None
        assert followed.cache.is_lost("default", "lost")


async def test_the_cache_is_stale_between_a_rewind_and_the_next_list(apiserver: ScriptedApiserver) -> None:
    """It can still be read, but no decision may rely on it."""
    apiserver.queue("list", listing(278, make_pod("a", 270)), Hang())
    apiserver.queue("watch", WatchStream().drop())
    apiserver.queue("check", listing(250))
    async with following(apiserver) as followed:
        await apiserver.wait_for_request("list", 2)
        assert not followed.cache.synced
        assert followed.names() == ["a"]


async def test_a_list_with_an_older_resource_version_is_a_rewind(apiserver: ScriptedApiserver) -> None:
    """It means that etcd was restored, also after a 410; the list replaces the cache."""
    apiserver.queue("list", listing(278, make_pod("a", 270)), listing(100, make_pod("b", 90)))
    apiserver.queue("watch", refusal(410, "Expired"))
    async with following(apiserver) as followed:
        await followed.has("b")
        assert followed.informer.rewinds == 1
        assert followed.informer.resume_version == 100


@pytest.mark.parametrize("sort", ["MODIFIED", "DELETED"])
async def test_an_event_with_an_older_resource_version_is_a_rewind_but_proves_no_restore(
    apiserver: ScriptedApiserver, sort: str
) -> None:
    """It is not applied, and everything is listed again; a newer object that the list lacks does not count as lost."""
    apiserver.queue("list", listing(20, make_pod("a", 15)), listing(40, make_pod("b", 35)))
    apiserver.queue("watch", WatchStream().send(event("MODIFIED", make_pod("a", 30)), event(sort, make_pod("a", 12))))
    async with following(apiserver) as followed:
        await followed.has("b")
        assert followed.informer.rewinds == 1
        assert followed.cache.tombstone("default", "a") is None
        assert not followed.cache.is_lost("default", "a")


async def test_a_list_older_than_a_watch_event_proves_a_restore(apiserver: ScriptedApiserver) -> None:
    """It does so even if an older event of the restored etcd was received first."""
    apiserver.queue("list", listing(20), listing(25))
    apiserver.queue(
        "watch", WatchStream().send(event("ADDED", make_pod("a", 30)), event("MODIFIED", make_pod("b", 24)))
    )
    async with following(apiserver) as followed:
        await apiserver.wait_for_request("watch", 2)
        assert followed.cache.is_lost("default", "a")
        assert followed.informer.resume_version == 25


async def test_an_older_list_after_mark_stale_proves_no_restore(apiserver: ScriptedApiserver) -> None:
    """The cache may have held objects of another cluster, so their absence does not count as lost."""
    apiserver.queue("list", listing(278, make_pod("a", 270)), listing(20))
    async with following(apiserver) as followed:
        await followed.has("a")
        await apiserver.wait_for_request("watch")
        followed.informer.mark_stale()
        await followed.has()
        assert not followed.cache.is_lost("default", "a")


async def test_a_repeated_event_is_ignored(apiserver: ScriptedApiserver) -> None:
    """It is neither a rewind nor a change."""
    stream = WatchStream()
    apiserver.queue("list", listing(20))
    apiserver.queue("watch", stream)
    async with following(apiserver) as followed:
        await apiserver.wait_for_request("watch")
        changes: list[object] = []
        followed.cache.subscribe(changes.append)
        same = event("ADDED", make_pod("a", 21))
        stream.send(same, same, event("ADDED", make_pod("b", 22)))
        await followed.has("a", "b")
        assert len(changes) == 2
        assert followed.informer.rewinds == 0


async def test_a_create_with_an_older_resource_version_is_a_rewind(apiserver: ScriptedApiserver) -> None:
    """If etcd is restored under a running apiserver, lists and watches continue, and only a write reveals it."""
    apiserver.queue("list", listing(278, make_pod("a", 270)), Hang())
    apiserver.queue(
        "write", HttpResponse(201, b'{"metadata":{"namespace":"default","name":"b","resourceVersion":"246"}}')
    )
    async with following(apiserver) as followed:
        await apiserver.wait_for_request("watch")
        await followed.cluster.create(Ref("a", POD, "default", "b"), {})
        assert not followed.cache.synced
        assert followed.informer.rewinds == 1
        await apiserver.wait_for_request("list", 2)


async def test_a_create_with_a_newer_resource_version_than_before_is_no_rewind(apiserver: ScriptedApiserver) -> None:
    """It is compared with the version before the create was sent, and not with later events."""
    stream = WatchStream()
    apiserver.queue("list", listing(20))
    apiserver.queue("watch", stream)
    async with following(apiserver) as followed:
        await apiserver.wait_for_request("watch")
        since = followed.informer.resume_version
        stream.send(event("ADDED", make_pod("other", 30)))
        await followed.has("other")
        followed.informer.note_created(25, since)
        followed.informer.note_created(0, since)
        assert followed.informer.rewinds == 0
        assert followed.cache.synced
        followed.informer.note_created(20, since)
        assert followed.informer.rewinds == 1


async def test_a_long_outage_leads_to_a_new_list(apiserver: ScriptedApiserver) -> None:
    """A restore may take as long, and the resourceVersion may have caught up, so comparing it proves nothing."""
    now = [0.0]
    apiserver.queue("list", listing(20), listing(50, make_pod("a", 45)))
    apiserver.queue("watch", WatchStream().drop())
    apiserver.queue("check", *[refusal(500, "InternalError")] * 2, listing(20))
    async with following(apiserver, QUICK._replace(outage=30.0), lambda: now[0]) as followed:
        await apiserver.wait_for_request("check", 2)
        now[0] = 30.0
        await followed.has("a")
        assert (await apiserver.wait_for_request("watch", 2)).query["resourceVersion"] == "50"
        assert len(apiserver.requests_of("check")) == 2


async def test_an_informer_waits_until_a_stopped_apiserver_runs() -> None:
    """It retries refused connections indefinitely."""
    server = ScriptedApiserver()
    server.queue("list", listing(20, make_pod("a", 5)))
    async with running(server):
        pass
    async with following(server) as followed:
        await followed.news.wait_until(lambda: "cannot connect" in followed.cluster.health.error)
        assert not followed.cache.synced
        async with running(server):
            await followed.has("a")


@pytest.mark.parametrize(
    "play", [refusal(403, "Forbidden"), refusal(401, "Unauthorized"), refusal(500, "x"), DropConnection()]
)
async def test_a_list_is_retried_after_every_kind_of_error(
    apiserver: ScriptedApiserver, play: HttpResponse | DropConnection
) -> None:
    """The cache is synced only after a complete list."""
    apiserver.queue("list", *[play] * 4, listing(20, make_pod("a", 5)))
    async with following(apiserver) as followed:
        await followed.has("a")
        assert len(apiserver.requests_of("list")) == 5


async def test_consecutive_errors_increase_the_back_off(apiserver: ScriptedApiserver) -> None:
    """There is no hot loop, and only a success resets the back-off."""
    loop = asyncio.get_running_loop()
    pace = QUICK._replace(first=0.02, near=0.16, cap=0.16)
    apiserver.queue("list", *[refusal(403, "Forbidden")] * 6)
    times: list[float] = []
    async with following(apiserver, pace):
        for count in range(1, 7):
            await apiserver.wait_for_request("list", count)
            times.append(loop.time())
    gaps = [b - a for a, b in pairwise(times)]
    ceilings = [0.01, 0.02, 0.04, 0.08, 0.08]
    assert all(gap >= ceiling * 0.9 for gap, ceiling in zip(gaps, ceilings, strict=True))


async def test_a_watch_that_received_an_event_resets_the_back_off(apiserver: ScriptedApiserver) -> None:
    """If it breaks afterwards, the next wait is the shortest one."""
    pace = QUICK._replace(first=0.02, near=3600.0, cap=3600.0)
    apiserver.queue("list", listing(20))
    apiserver.queue("watch", *(WatchStream().send(event("ADDED", make_pod(f"p{n}", n))).drop() for n in range(21, 36)))
    apiserver.queue("check", *[listing(40)] * 15)
    async with following(apiserver, pace):
        await apiserver.wait_for_request("watch", 16)


async def test_watches_that_end_at_once_are_backed_off(apiserver: ScriptedApiserver) -> None:
    """An immediate end counts as an error, so the resourceVersion is checked before the next watch."""
    apiserver.queue("list", listing(20))
    apiserver.queue("check", listing(20), listing(20))
    apiserver.queue("watch", WatchStream().end(), WatchStream().end())
    async with following(apiserver, QUICK._replace(settled=1.0)):
        await apiserver.wait_for_request("watch", 3)
        assert [request.sort for request in apiserver.requests] == ["list", "watch", "check", "watch", "check", "watch"]


async def test_the_retry_after_of_a_rejected_watch_is_respected(apiserver: ScriptedApiserver) -> None:
    """It is the lower bound of the wait."""
    loop = asyncio.get_running_loop()
    apiserver.queue("list", listing(20))
    apiserver.queue("watch", refusal(429, "TooManyRequests", Retry_After="1"))
    async with following(apiserver):
        await apiserver.wait_for_request("watch")
        began = loop.time()
        await apiserver.wait_for_request("watch", 2)
        assert loop.time() - began >= 0.99


async def test_waking_an_informer_ends_its_back_off(apiserver: ScriptedApiserver) -> None:
    """If the cluster is known to respond again, the informer does not wait for up to half a minute."""
    apiserver.queue("list", refusal(500, "InternalError"), listing(20, make_pod("a", 5)))
    async with following(apiserver, QUICK._replace(first=3600.0, cap=3600.0)) as followed:
        await followed.news.wait_until(lambda: followed.cluster.health.error.startswith("words"))
        followed.informer.wake()
        await followed.has("a")


async def test_mark_stale_ends_the_watch_and_lists_again(apiserver: ScriptedApiserver) -> None:
    """Another cluster may have responded, so the resourceVersion of the list is not compared with the old one."""
    apiserver.queue("list", listing(500, make_pod("a", 400)), listing(20, make_pod("b", 5)))
    async with following(apiserver) as followed:
        await apiserver.wait_for_request("watch")
        followed.informer.mark_stale()
        assert not followed.cache.synced
        await followed.has("b")
        assert followed.cache.synced
        assert followed.informer.rewinds == 0


@pytest.mark.parametrize(("die", "seconds"), [(0.0, 1350.0), (1.0, 2250.0)])
async def test_audit_lists_run_about_every_half_hour_with_jitter(
    apiserver: ScriptedApiserver, die: float, seconds: float
) -> None:
    """The jitter of a quarter spreads the lists of all kinds and clusters."""
    now, first, second = [0.0], WatchStream(), WatchStream().send(event("MODIFIED", make_pod("a", 21)))
    apiserver.queue("list", listing(20, make_pod("a", 5)), listing(22))
    apiserver.queue("watch", first, second, WatchStream())
    cluster, cache = HttpCluster("a", access_to(apiserver.port), margin=0.2, timeout=5.0), Cache()
    pace = InformerTimings(settled=0.0)
    informer = Informer(cluster, POD, Selection(), cache, chance=lambda: die, pace=pace, clock=lambda: now[0])
    task = asyncio.create_task(informer.run())
    await wait_for_cache(cache, lambda: len(cache) == 1)
    now[0] = seconds - 1
    first.end()
    await wait_for_cache(cache, lambda: cache.version == 21)
    assert informer.relists == 1
    now[0] = seconds
    second.end()
    await wait_for_cache(cache, lambda: len(cache) == 0)
    assert informer.relists == 2
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await cluster.close()


async def test_an_audit_list_runs_although_every_watch_is_shorter_than_its_interval(
    apiserver: ScriptedApiserver,
) -> None:
    """Watches that end normally and are resumed do not delay it."""
    many, ticks = 1_000, count(0.0, 0.001)
    apiserver.queue("list", listing(20, make_pod("a", 5)), listing(21))
    apiserver.queue("watch", *(WatchStream().end() for _ in range(many)))
    async with following(apiserver, QUICK._replace(relist=0.05), lambda: next(ticks)) as followed:
        await followed.has("a")
        await followed.has()
        assert followed.informer.relists == 2
        assert len(apiserver.requests_of("watch")) < many


async def test_an_exception_of_a_subscriber_ends_the_run_and_the_next_run_lists(apiserver: ScriptedApiserver) -> None:
    """The exception is raised, and the next run does not skip the object that caused it."""
    faults = [RuntimeError("listener")]

    def hear(delta: Delta) -> None:
        """Fail once for the bad object."""
        if delta.entry.name == "bad" and faults:
            raise faults.pop()

    apiserver.queue("list", listing(20), listing(22, make_pod("bad", 21)))
    apiserver.queue("watch", WatchStream().send(event("ADDED", make_pod("bad", 21))))
    cluster = HttpCluster("a", access_to(apiserver.port))
    cache = Cache()
    cache.subscribe(hear)
    informer = Informer(cluster, POD, Selection(), cache, chance=lambda: 0.0, pace=QUICK)
    with pytest.raises(RuntimeError, match="listener"):
        await informer.run()
    again = asyncio.create_task(informer.run())
    await apiserver.wait_for_request("watch", 2)
    again.cancel()
    await asyncio.gather(again, return_exceptions=True)
    await cluster.close()
    assert informer.relists == 2
