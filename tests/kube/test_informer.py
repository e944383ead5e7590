"""Tests of list and watch against a scripted apiserver: the cache stays correct however a watch fails."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count, pairwise

import pytest
from scripted import (
    Answer,
    Apiserver,
    Drop,
    Hang,
    News,
    Stream,
    access_to,
    bookmark,
    event,
    listing,
    pod,
    refusal,
    running,
    status_body,
    told,
)
from tasks import background

from tensile.kube.client import HttpCluster
from tensile.kube.cluster import Selection
from tensile.kube.informer import Informer
from tensile.kube.limits import InformerTimings
from tensile.kube.store import Cache, Delta
from tensile.objects import POD, Ref

QUICK = InformerTimings(first=0.01, cap=0.02, near=0.02, shortest=60, longest=60, settled=0.0)


class Followed:
    """A running informer, its cache and its apiserver."""

    def __init__(
        self, server: Apiserver, pace: InformerTimings, clock: Callable[[], float], cache: Cache, every: float = 0.0
    ) -> None:
        self.server = server
        self.news = News()
        self.cache = cache
        self.cluster = HttpCluster("a", access_to(server.port), margin=0.2, timeout=5.0)
        selection = Selection("", "x=y")
        self.informer = Informer(
            self.cluster, POD, selection, self.cache, chance=self.news.roll, every=every, pace=pace, clock=clock
        )
        self.cluster.followers[POD] = [self.informer]

    def names(self) -> list[str]:
        """Return the cached names, sorted."""
        return sorted(entry.name for entry in self.cache)

    async def has(self, *names: str) -> None:
        """Wait until exactly these names are cached."""
        await told(self.cache, lambda: self.names() == sorted(names))


@asynccontextmanager
async def following(
    server: Apiserver,
    pace: InformerTimings = QUICK,
    clock: Callable[[], float] = lambda: 0.0,
    cache: Cache | None = None,
    every: float = 0.0,
) -> AsyncIterator[Followed]:
    """Run an informer against a scripted apiserver."""
    followed = Followed(server, pace, clock, cache or Cache(), every)
    try:
        async with background(followed.informer.run()):
            yield followed
    finally:
        await followed.cluster.close()


async def test_a_watch_starts_at_the_resource_version_of_the_list(apiserver: Apiserver) -> None:
    """The events of the watch are applied to the cache."""
    stream = Stream()
    apiserver.play("list", listing(20, pod("a", 5), pod("b", 6)))
    apiserver.play("watch", stream)
    async with following(apiserver) as followed:
        assert not followed.cache.synced
        await followed.has("a", "b")
        assert followed.cache.synced
        assert (await apiserver.until("watch")).query["resourceVersion"] == "20"
        stream.send(event("ADDED", pod("c", 21)), event("MODIFIED", pod("a", 22)), event("DELETED", pod("b", 23)))
        await followed.has("a", "c")
        assert followed.cache.version == 23
        assert followed.cache.tombstone("default", "b") is not None
        assert followed.informer.relists == 1


async def test_a_watch_that_ended_is_resumed_from_the_last_resource_version(apiserver: Apiserver) -> None:
    """A normal end costs one request; bookmarks and events of unknown types only change the resourceVersion."""
    apiserver.play("list", listing(20))
    sent = event("ADDED", pod("a", 21)), bookmark(30), event("TELEPORTED", pod("b", 35))
    apiserver.play("watch", *(Stream().send(one).end() for one in sent))
    async with following(apiserver) as followed:
        versions = [(await apiserver.until("watch", n)).query["resourceVersion"] for n in (1, 2, 3, 4)]
        assert versions == ["20", "21", "30", "35"]
        assert [asked.sort for asked in apiserver.asked] == ["list", "watch", "watch", "watch", "watch"]
        assert (followed.informer.resume_version, followed.names()) == (35, ["a"])


async def test_the_duration_of_a_watch_is_random_between_its_bounds(apiserver: Apiserver) -> None:
    """Otherwise all watches would end at the same time."""
    pace = QUICK._replace(shortest=240, longest=480)
    async with following(apiserver, pace):
        assert (await apiserver.until("watch")).query["timeoutSeconds"] == "360"


async def test_an_informer_with_an_interval_lists_periodically_and_does_not_watch(apiserver: Apiserver) -> None:
    """Created and deleted objects are detected by the next list, also after a failed list."""
    lists = (listing(20, pod("a", 5)), refusal(500, "InternalError"), listing(22, pod("b", 21)), listing(30))
    apiserver.play("list", *lists)
    async with following(apiserver, every=0.01) as followed:
        await followed.has("b")
        await followed.has()
        assert {asked.sort for asked in apiserver.asked} == {"list"}


@pytest.mark.parametrize(
    "play", [refusal(410, "Gone"), Stream().send(event("ERROR", status_body(410, "Expired"))).end()]
)
async def test_an_expired_resource_version_leads_to_a_new_list(apiserver: Apiserver, play: Answer | Stream) -> None:
    """The 410 may be a Status or an event.

    An object that the new list lacks has no tombstone, because its deletion was not seen.
    """
    apiserver.play("list", listing(20, pod("a", 5), pod("b", 6)), listing(40, pod("b", 35, uid="new"), pod("c", 31)))
    apiserver.play("watch", play)
    async with following(apiserver) as followed:
        await followed.has("b", "c")
        assert (await apiserver.until("watch", 2)).query["resourceVersion"] == "40"
        assert followed.cache.tombstone("default", "a") is None
        recreated = followed.cache.get("default", "b")
        assert recreated is not None
        assert recreated.uid == "new"
        assert followed.informer.rewinds == 0


@pytest.mark.parametrize("ends", [True, False], ids=["breaks", "hangs"])
async def test_a_broken_watch_is_resumed_after_a_check_of_the_resource_version(
    apiserver: Apiserver, *, ends: bool
) -> None:
    """An empty list shows that the cluster has reached the last resourceVersion, so no full list is needed."""
    watch = Stream().send(event("ADDED", pod("b", 25)))
    apiserver.play("list", listing(20, pod("a", 5)))
    apiserver.play("watch", watch.drop() if ends else watch)
    apiserver.play("check", listing(25))
    async with following(apiserver, QUICK if ends else QUICK._replace(shortest=0, longest=0)) as followed:
        assert (await apiserver.until("watch", 2)).query["resourceVersion"] == "25"
        assert [asked.sort for asked in apiserver.asked][:4] == ["list", "watch", "check", "watch"]
        assert "labelSelector" not in apiserver.of("check")[0].query
        assert followed.informer.relists == 1


async def test_no_watch_is_opened_from_a_future_resource_version(apiserver: Apiserver) -> None:
    """After a restore of etcd such a watch would return nothing indefinitely, so everything is listed again."""
    apiserver.play("list", listing(278, pod("lost", 270), pod("kept", 100)), listing(251, pod("kept", 100)))
    apiserver.play("watch", Stream().drop())
    apiserver.play("check", listing(250))
    async with following(apiserver) as followed:
        await followed.has("kept", "lost")
        await followed.has("kept")
        assert (await apiserver.until("watch", 2)).query["resourceVersion"] == "251"
        assert followed.informer.rewinds == 1
        assert followed.cache.synced
        assert followed.cache.tombstone("default", "lost") is None
        assert followed.cache.is_lost("default", "lost")


async def test_the_cache_is_stale_between_a_rewind_and_the_next_list(apiserver: Apiserver) -> None:
    """It can still be read, but no decision may rely on it."""
    apiserver.play("list", listing(278, pod("a", 270)), Hang())
    apiserver.play("watch", Stream().drop())
    apiserver.play("check", listing(250))
    async with following(apiserver) as followed:
        await apiserver.until("list", 2)
        assert not followed.cache.synced
        assert followed.names() == ["a"]


async def test_a_list_with_an_older_resource_version_is_a_rewind(apiserver: Apiserver) -> None:
    """It means that etcd was restored, also after a 410; the list replaces the cache."""
    apiserver.play("list", listing(278, pod("a", 270)), listing(100, pod("b", 90)))
    apiserver.play("watch", refusal(410, "Expired"))
    async with following(apiserver) as followed:
        await followed.has("b")
        assert followed.informer.rewinds == 1
        assert followed.informer.resume_version == 100


@pytest.mark.parametrize("sort", ["MODIFIED", "DELETED"])
async def test_an_event_with_an_older_resource_version_is_a_rewind_but_proves_no_restore(
    apiserver: Apiserver, sort: str
) -> None:
    """It is not applied, and everything is listed again; a newer object that the list lacks does not count as lost."""
    apiserver.play("list", listing(20, pod("a", 15)), listing(40, pod("b", 35)))
    apiserver.play("watch", Stream().send(event("MODIFIED", pod("a", 30)), event(sort, pod("a", 12))))
    async with following(apiserver) as followed:
        await followed.has("b")
        assert followed.informer.rewinds == 1
        assert followed.cache.tombstone("default", "a") is None
        assert not followed.cache.is_lost("default", "a")


async def test_a_list_older_than_a_watch_event_proves_a_restore(apiserver: Apiserver) -> None:
    """It does so even if an older event of the restored etcd was received first."""
    apiserver.play("list", listing(20), listing(25))
    apiserver.play("watch", Stream().send(event("ADDED", pod("a", 30)), event("MODIFIED", pod("b", 24))))
    async with following(apiserver) as followed:
        await apiserver.until("watch", 2)
        assert followed.cache.is_lost("default", "a")
        assert followed.informer.resume_version == 25


async def test_an_older_list_after_mark_stale_proves_no_restore(apiserver: Apiserver) -> None:
    """The cache may have held objects of another cluster, so their absence does not count as lost."""
    apiserver.play("list", listing(278, pod("a", 270)), listing(20))
    async with following(apiserver) as followed:
        await followed.has("a")
        await apiserver.until("watch")
        followed.informer.mark_stale()
        await followed.has()
        assert not followed.cache.is_lost("default", "a")


async def test_a_repeated_event_is_ignored(apiserver: Apiserver) -> None:
    """It is neither a rewind nor a change."""
    stream = Stream()
    apiserver.play("list", listing(20))
    apiserver.play("watch", stream)
    async with following(apiserver) as followed:
        await apiserver.until("watch")
        changes: list[object] = []
        followed.cache.subscribe(changes.append)
        same = event("ADDED", pod("a", 21))
        stream.send(same, same, event("ADDED", pod("b", 22)))
        await followed.has("a", "b")
        assert len(changes) == 2
        assert followed.informer.rewinds == 0


async def test_a_create_with_an_older_resource_version_is_a_rewind(apiserver: Apiserver) -> None:
    """If etcd is restored under a running apiserver, lists and watches continue, and only a write reveals it."""
    apiserver.play("list", listing(278, pod("a", 270)), Hang())
    apiserver.play("write", Answer(201, b'{"metadata":{"namespace":"default","name":"b","resourceVersion":"246"}}'))
    async with following(apiserver) as followed:
        await apiserver.until("watch")
        await followed.cluster.create(Ref("a", POD, "default", "b"), {})
        assert not followed.cache.synced
        assert followed.informer.rewinds == 1
        await apiserver.until("list", 2)


async def test_a_create_with_a_newer_resource_version_than_before_is_no_rewind(apiserver: Apiserver) -> None:
    """It is compared with the version before the create was sent, and not with later events."""
    stream = Stream()
    apiserver.play("list", listing(20))
    apiserver.play("watch", stream)
    async with following(apiserver) as followed:
        await apiserver.until("watch")
        since = followed.informer.resume_version
        stream.send(event("ADDED", pod("other", 30)))
        await followed.has("other")
        followed.informer.note_created(25, since)
        followed.informer.note_created(0, since)
        assert followed.informer.rewinds == 0
        assert followed.cache.synced
        followed.informer.note_created(20, since)
        assert followed.informer.rewinds == 1


async def test_a_long_outage_leads_to_a_new_list(apiserver: Apiserver) -> None:
    """A restore may take as long, and the resourceVersion may have caught up, so comparing it proves nothing."""
    now = [0.0]
    apiserver.play("list", listing(20), listing(50, pod("a", 45)))
    apiserver.play("watch", Stream().drop())
    apiserver.play("check", *[refusal(500, "InternalError")] * 2, listing(20))
    async with following(apiserver, QUICK._replace(outage=30.0), lambda: now[0]) as followed:
        await apiserver.until("check", 2)
        now[0] = 30.0
        await followed.has("a")
        assert (await apiserver.until("watch", 2)).query["resourceVersion"] == "50"
        assert len(apiserver.of("check")) == 2


async def test_an_informer_waits_until_a_stopped_apiserver_runs() -> None:
    """It retries refused connections indefinitely."""
    server = Apiserver()
    server.play("list", listing(20, pod("a", 5)))
    async with running(server):
        pass
    async with following(server) as followed:
        await followed.news.until(lambda: "cannot connect" in followed.cluster.health.error)
        assert not followed.cache.synced
        async with running(server):
            await followed.has("a")


@pytest.mark.parametrize("play", [refusal(403, "Forbidden"), refusal(401, "Unauthorized"), refusal(500, "x"), Drop()])
async def test_a_list_is_retried_after_every_kind_of_error(apiserver: Apiserver, play: Answer | Drop) -> None:
    """The cache is synced only after a complete list."""
    apiserver.play("list", *[play] * 4, listing(20, pod("a", 5)))
    async with following(apiserver) as followed:
        await followed.has("a")
        assert len(apiserver.of("list")) == 5


async def test_consecutive_errors_increase_the_back_off(apiserver: Apiserver) -> None:
    """There is no hot loop, and only a success resets the back-off."""
    loop = asyncio.get_running_loop()
    pace = QUICK._replace(first=0.02, near=0.16, cap=0.16)
    apiserver.play("list", *[refusal(403, "Forbidden")] * 6)
    times: list[float] = []
    async with following(apiserver, pace):
        for count in range(1, 7):
            await apiserver.until("list", count)
            times.append(loop.time())
    gaps = [b - a for a, b in pairwise(times)]
    ceilings = [0.01, 0.02, 0.04, 0.08, 0.08]
    assert all(gap >= ceiling * 0.9 for gap, ceiling in zip(gaps, ceilings, strict=True))


async def test_a_watch_that_received_an_event_resets_the_back_off(apiserver: Apiserver) -> None:
    """If it breaks afterwards, the next wait is the shortest one."""
    pace = QUICK._replace(first=0.02, near=3600.0, cap=3600.0)
    apiserver.play("list", listing(20))
    apiserver.play("watch", *(Stream().send(event("ADDED", pod(f"p{n}", n))).drop() for n in range(21, 36)))
    apiserver.play("check", *[listing(40)] * 15)
    async with following(apiserver, pace):
        await apiserver.until("watch", 16)


async def test_watches_that_end_at_once_are_backed_off(apiserver: Apiserver) -> None:
    """An immediate end counts as an error, so the resourceVersion is checked before the next watch."""
    apiserver.play("list", listing(20))
    apiserver.play("check", listing(20), listing(20))
    apiserver.play("watch", Stream().end(), Stream().end())
    async with following(apiserver, QUICK._replace(settled=1.0)):
        await apiserver.until("watch", 3)
        assert [asked.sort for asked in apiserver.asked] == ["list", "watch", "check", "watch", "check", "watch"]


async def test_the_retry_after_of_a_rejected_watch_is_respected(apiserver: Apiserver) -> None:
    """It is the lower bound of the wait."""
    loop = asyncio.get_running_loop()
    apiserver.play("list", listing(20))
    apiserver.play("watch", refusal(429, "TooManyRequests", Retry_After="1"))
    async with following(apiserver):
        await apiserver.until("watch")
        began = loop.time()
        await apiserver.until("watch", 2)
        assert loop.time() - began >= 0.99


async def test_waking_an_informer_ends_its_back_off(apiserver: Apiserver) -> None:
    """If the cluster is known to respond again, the informer does not wait for up to half a minute."""
    apiserver.play("list", refusal(500, "InternalError"), listing(20, pod("a", 5)))
    async with following(apiserver, QUICK._replace(first=3600.0, cap=3600.0)) as followed:
        await followed.news.until(lambda: followed.cluster.health.error.startswith("words"))
        followed.informer.wake()
        await followed.has("a")


async def test_mark_stale_ends_the_watch_and_lists_again(apiserver: Apiserver) -> None:
    """Another cluster may have responded, so the resourceVersion of the list is not compared with the old one."""
    apiserver.play("list", listing(500, pod("a", 400)), listing(20, pod("b", 5)))
    async with following(apiserver) as followed:
        await apiserver.until("watch")
        followed.informer.mark_stale()
        assert not followed.cache.synced
        await followed.has("b")
        assert followed.cache.synced
        assert followed.informer.rewinds == 0


@pytest.mark.parametrize(("die", "seconds"), [(0.0, 1350.0), (1.0, 2250.0)])
async def test_audit_lists_run_about_every_half_hour_with_jitter(
    apiserver: Apiserver, die: float, seconds: float
) -> None:
    """The jitter of a quarter spreads the lists of all kinds and clusters."""
    now, first, second = [0.0], Stream(), Stream().send(event("MODIFIED", pod("a", 21)))
    apiserver.play("list", listing(20, pod("a", 5)), listing(22))
    apiserver.play("watch", first, second, Stream())
    cluster, cache = HttpCluster("a", access_to(apiserver.port), margin=0.2, timeout=5.0), Cache()
    pace = InformerTimings(settled=0.0)
    informer = Informer(cluster, POD, Selection(), cache, chance=lambda: die, pace=pace, clock=lambda: now[0])
    task = asyncio.create_task(informer.run())
    await told(cache, lambda: len(cache) == 1)
    now[0] = seconds - 1
    first.end()
    await told(cache, lambda: cache.version == 21)
    assert informer.relists == 1
    now[0] = seconds
    second.end()
    await told(cache, lambda: len(cache) == 0)
    assert informer.relists == 2
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await cluster.close()


async def test_an_audit_list_runs_although_every_watch_is_shorter_than_its_interval(apiserver: Apiserver) -> None:
    """Watches that end normally and are resumed do not delay it."""
    many, ticks = 1_000, count(0.0, 0.001)
    apiserver.play("list", listing(20, pod("a", 5)), listing(21))
    apiserver.play("watch", *(Stream().end() for _ in range(many)))
    async with following(apiserver, QUICK._replace(relist=0.05), lambda: next(ticks)) as followed:
        await followed.has("a")
        await followed.has()
        assert followed.informer.relists == 2
        assert len(apiserver.of("watch")) < many


async def test_an_exception_of_a_subscriber_ends_the_run_and_the_next_run_lists(apiserver: Apiserver) -> None:
    """The exception is raised, and the next run does not skip the object that caused it."""
    faults = [RuntimeError("listener")]

    def hear(delta: Delta) -> None:
        """Fail once for the bad object."""
        if delta.entry.name == "bad" and faults:
            raise faults.pop()

    apiserver.play("list", listing(20), listing(22, pod("bad", 21)))
    apiserver.play("watch", Stream().send(event("ADDED", pod("bad", 21))))
    cluster = HttpCluster("a", access_to(apiserver.port))
    cache = Cache()
    cache.subscribe(hear)
    informer = Informer(cluster, POD, Selection(), cache, chance=lambda: 0.0, pace=QUICK)
    with pytest.raises(RuntimeError, match="listener"):
        await informer.run()
    again = asyncio.create_task(informer.run())
    await apiserver.until("watch", 2)
    again.cancel()
    await asyncio.gather(again, return_exceptions=True)
    await cluster.close()
    assert informer.relists == 2
