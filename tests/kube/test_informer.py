"""List and watch against a scripted apiserver: the cache stays true through every way in which a watch can go wrong."""

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
    """An informer that runs, its cache, and what it talks to."""

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


async def test_a_list_and_then_a_watch_from_there(apiserver: Apiserver) -> None:
    """The watch begins at the list's version, and its events arrive in the cache."""
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


async def test_after_its_end_a_watch_goes_on_from_the_last_version(apiserver: Apiserver) -> None:
    """A normal end costs one request; a bookmark, and a type that may come one day, move the version only."""
    apiserver.play("list", listing(20))
    sent = event("ADDED", pod("a", 21)), bookmark(30), event("TELEPORTED", pod("b", 35))
    apiserver.play("watch", *(Stream().send(one).end() for one in sent))
    async with following(apiserver) as followed:
        versions = [(await apiserver.until("watch", n)).query["resourceVersion"] for n in (1, 2, 3, 4)]
        assert versions == ["20", "21", "30", "35"]
        assert [asked.sort for asked in apiserver.asked] == ["list", "watch", "watch", "watch", "watch"]
        assert (followed.informer.newest, followed.names()) == (35, ["a"])


async def test_the_time_of_a_watch_is_spread(apiserver: Apiserver) -> None:
    """The time asked for lies between the bounds as the die falls, so that watches do not all end at once."""
    pace = QUICK._replace(shortest=240, longest=480)
    async with following(apiserver, pace):
        assert (await apiserver.until("watch")).query["timeoutSeconds"] == "360"


async def test_what_is_not_worth_a_watch_is_listed_again_and_again(apiserver: Apiserver) -> None:
    """What comes and what goes is known with the next list, also after one that was refused; nothing is watched."""
    lists = (listing(20, pod("a", 5)), refusal(500, "InternalError"), listing(22, pod("b", 21)), listing(30))
    apiserver.play("list", *lists)
    async with following(apiserver, every=0.01) as followed:
        await followed.has("b")
        await followed.has()
        assert {asked.sort for asked in apiserver.asked} == {"list"}


@pytest.mark.parametrize(
    "play", [refusal(410, "Gone"), Stream().send(event("ERROR", status_body(410, "Expired"))).end()]
)
async def test_an_expired_version_means_a_new_list(apiserver: Apiserver, play: Answer | Stream) -> None:
    """410, as a status or as an event, leads to a list; what is missing from it is gone, but was not seen to go."""
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


@pytest.mark.parametrize("ends", [True, False], ids=["broken", "hanging"])
async def test_after_a_broken_watch_the_version_is_checked_and_resumed(apiserver: Apiserver, *, ends: bool) -> None:
    """A list of nothing shows that the cluster has got as far as we have; then no full list is needed."""
    watch = Stream().send(event("ADDED", pod("b", 25)))
    apiserver.play("list", listing(20, pod("a", 5)))
    apiserver.play("watch", watch.drop() if ends else watch)
    apiserver.play("check", listing(25))
    async with following(apiserver, QUICK if ends else QUICK._replace(shortest=0, longest=0)) as followed:
        assert (await apiserver.until("watch", 2)).query["resourceVersion"] == "25"
        assert [asked.sort for asked in apiserver.asked][:4] == ["list", "watch", "check", "watch"]
        assert "labelSelector" not in apiserver.of("check")[0].query
        assert followed.informer.relists == 1


async def test_a_watch_from_the_future_is_never_opened(apiserver: Apiserver) -> None:
    """After a restore the cluster is behind us: a watch would be silent for ever, so everything is listed anew."""
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


async def test_while_history_is_in_doubt_the_cache_says_so(apiserver: Apiserver) -> None:
    """Between the rewind and the new list nothing may rest on the cache, though it can be read."""
    apiserver.play("list", listing(278, pod("a", 270)), Hang())
    apiserver.play("watch", Stream().drop())
    apiserver.play("check", listing(250))
    async with following(apiserver) as followed:
        await apiserver.until("list", 2)
        assert not followed.cache.synced
        assert followed.names() == ["a"]


async def test_a_list_that_goes_back_is_a_rewind(apiserver: Apiserver) -> None:
    """After 410, too, an older list means a restored store; it is reported and taken over."""
    apiserver.play("list", listing(278, pod("a", 270)), listing(100, pod("b", 90)))
    apiserver.play("watch", refusal(410, "Expired"))
    async with following(apiserver) as followed:
        await followed.has("b")
        assert followed.informer.rewinds == 1
        assert followed.informer.newest == 100


@pytest.mark.parametrize("sort", ["MODIFIED", "DELETED"])
async def test_an_event_that_goes_back_is_a_rewind_and_proves_no_restore(apiserver: Apiserver, sort: str) -> None:
    """It is not applied, and everything is listed anew; what that lacks, and is newer, was deleted."""
    apiserver.play("list", listing(20, pod("a", 15)), listing(40, pod("b", 35)))
    apiserver.play("watch", Stream().send(event("MODIFIED", pod("a", 30)), event(sort, pod("a", 12))))
    async with following(apiserver) as followed:
        await followed.has("b")
        assert followed.informer.rewinds == 1
        assert followed.cache.tombstone("default", "a") is None
        assert not followed.cache.is_lost("default", "a")


async def test_a_list_behind_what_a_watch_told_proves_it(apiserver: Apiserver) -> None:
    """As one behind another list does; also where an event of the restored store came first."""
    apiserver.play("list", listing(20), listing(25))
    apiserver.play("watch", Stream().send(event("ADDED", pod("a", 30)), event("MODIFIED", pod("b", 24))))
    async with following(apiserver) as followed:
        await apiserver.until("watch", 2)
        assert followed.cache.is_lost("default", "a")
        assert followed.informer.newest == 25


async def test_another_cluster_is_not_a_restored_one(apiserver: Apiserver) -> None:
    """Whose objects were cached is not known any more, so their absence tells nothing of a store."""
    apiserver.play("list", listing(278, pod("a", 270)), listing(20))
    async with following(apiserver) as followed:
        await followed.has("a")
        await apiserver.until("watch")
        followed.informer.mark_stale()
        await followed.has()
        assert not followed.cache.is_lost("default", "a")


async def test_an_event_that_comes_twice_changes_nothing(apiserver: Apiserver) -> None:
    """A repeated event is neither a rewind nor a change."""
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


async def test_a_create_that_goes_back_is_a_rewind(apiserver: Apiserver) -> None:
    """A store restored under a running apiserver: its lists and watches go on as before, only a write gives it away."""
    apiserver.play("list", listing(278, pod("a", 270)), Hang())
    apiserver.play("write", Answer(201, b'{"metadata":{"namespace":"default","name":"b","resourceVersion":"246"}}'))
    async with following(apiserver) as followed:
        await apiserver.until("watch")
        await followed.cluster.create(Ref("a", POD, "default", "b"), {})
        assert not followed.cache.synced
        assert followed.informer.rewinds == 1
        await apiserver.until("list", 2)


async def test_a_create_that_goes_on_is_no_rewind(apiserver: Apiserver) -> None:
    """The answer is compared with what was seen before the create was sent, not with what came since."""
    stream = Stream()
    apiserver.play("list", listing(20))
    apiserver.play("watch", stream)
    async with following(apiserver) as followed:
        await apiserver.until("watch")
        since = followed.informer.newest
        stream.send(event("ADDED", pod("other", 30)))
        await followed.has("other")
        followed.informer.note_created(25, since)
        followed.informer.note_created(0, since)
        assert followed.informer.rewinds == 0
        assert followed.cache.synced
        followed.informer.note_created(20, since)
        assert followed.informer.rewinds == 1


async def test_a_long_outage_means_a_new_list(apiserver: Apiserver) -> None:
    """In the time that a restore takes the versions may have caught up with ours: they prove nothing any more."""
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


async def test_a_restarted_apiserver_is_found_again() -> None:
    """Refused connections are waited out for as long as it takes."""
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
async def test_every_error_of_a_list_is_waited_out(apiserver: Apiserver, play: Answer | Drop) -> None:
    """Whatever the cluster says, the informer comes back, and the cache is in sync only after a whole list."""
    apiserver.play("list", *[play] * 4, listing(20, pod("a", 5)))
    async with following(apiserver) as followed:
        await followed.has("a")
        assert len(apiserver.of("list")) == 5


async def test_errors_in_a_row_make_the_waits_longer(apiserver: Apiserver) -> None:
    """No hot loop: the tries spread out by the back-off, which only what works begins anew."""
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


async def test_what_works_begins_the_waits_anew(apiserver: Apiserver) -> None:
    """A watch that told something before it broke is no failure in a row: the next wait is the shortest again."""
    pace = QUICK._replace(first=0.02, near=3600.0, cap=3600.0)
    apiserver.play("list", listing(20))
    apiserver.play("watch", *(Stream().send(event("ADDED", pod(f"p{n}", n))).drop() for n in range(21, 36)))
    apiserver.play("check", *[listing(40)] * 15)
    async with following(apiserver, pace):
        await apiserver.until("watch", 16)


async def test_watches_that_end_at_once_do_not_become_a_hot_loop(apiserver: Apiserver) -> None:
    """A server that ends each watch immediately is an error to back off from, with a check before the next."""
    apiserver.play("list", listing(20))
    apiserver.play("check", listing(20), listing(20))
    apiserver.play("watch", Stream().end(), Stream().end())
    async with following(apiserver, QUICK._replace(settled=1.0)):
        await apiserver.until("watch", 3)
        assert [asked.sort for asked in apiserver.asked] == ["list", "watch", "check", "watch", "check", "watch"]


async def test_what_the_server_asks_to_wait_is_waited(apiserver: Apiserver) -> None:
    """Retry-After of a refused watch is a lower bound of the wait."""
    loop = asyncio.get_running_loop()
    apiserver.play("list", listing(20))
    apiserver.play("watch", refusal(429, "TooManyRequests", Retry_After="1"))
    async with following(apiserver):
        await apiserver.until("watch")
        began = loop.time()
        await apiserver.until("watch", 2)
        assert loop.time() - began >= 0.99


async def test_waking_ends_a_wait(apiserver: Apiserver) -> None:
    """When the cluster is known to answer again, nobody waits for a back-off of half a minute to end."""
    apiserver.play("list", refusal(500, "InternalError"), listing(20, pod("a", 5)))
    async with following(apiserver, QUICK._replace(first=3600.0, cap=3600.0)) as followed:
        await followed.news.until(lambda: followed.cluster.health.error.startswith("words"))
        followed.informer.wake()
        await followed.has("a")


async def test_distrust_begins_anew_with_a_list(apiserver: Apiserver) -> None:
    """When another cluster may have answered, the watch is cut and everything listed, without a version to compare."""
    apiserver.play("list", listing(500, pod("a", 400)), listing(20, pod("b", 5)))
    async with following(apiserver) as followed:
        await apiserver.until("watch")
        followed.informer.mark_stale()
        assert not followed.cache.synced
        await followed.has("b")
        assert followed.cache.synced
        assert followed.informer.rewinds == 0


@pytest.mark.parametrize(("die", "seconds"), [(0.0, 1350.0), (1.0, 2250.0)])
async def test_audits_are_seldom_and_not_all_at_once(apiserver: Apiserver, die: float, seconds: float) -> None:
    """Every half an hour, give or take a quarter of it: each kind of each cluster has a time of its own."""
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


async def test_an_audit_comes_though_every_watch_is_shorter_than_its_period(apiserver: Apiserver) -> None:
    """Watches that end in good order and are resumed do not put it off."""
    many, ticks = 1_000, count(0.0, 0.001)
    apiserver.play("list", listing(20, pod("a", 5)), listing(21))
    apiserver.play("watch", *(Stream().end() for _ in range(many)))
    async with following(apiserver, QUICK._replace(audit=0.05), lambda: next(ticks)) as followed:
        await followed.has("a")
        await followed.has()
        assert followed.informer.relists == 2
        assert len(apiserver.of("watch")) < many


async def test_a_defect_of_a_listener_begins_anew_with_a_list(apiserver: Apiserver) -> None:
    """What raises while an object is taken over is not swallowed, and the next run does not go on behind it."""
    faults = [RuntimeError("listener")]

    def hear(delta: Delta) -> None:
        """Fail for the bad object as often as there are faults."""
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
