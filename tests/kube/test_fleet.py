"""Many clusters at once: opened, fed, watched over, closed, each apart from the others."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from fleetkit import QUICK, fleet_of, names, pods
from scripted import (
    UID,
    Answer,
    Apiserver,
    Hang,
    News,
    Stream,
    access_to,
    answer,
    event,
    listing,
    pod,
    refusal,
    running,
    told,
)

from tensile.errors import Unreachable
from tensile.kube.cluster import Selection, WatchEvent
from tensile.kube.fleet import InformerSpec
from tensile.kube.health import WrongCluster
from tensile.kube.store import Cache, Delta
from tensile.objects import CONFIG_MAP, POD, UPPER, Ref


def ours(tasks: set[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    """Return the tasks of our own code: the others accept connections of the scripted apiserver, and serve them."""
    return {task for task in tasks if "/tensile/kube/" in repr(task)}


async def test_an_opened_cluster_is_identified_and_fed(apiserver: Apiserver) -> None:
    """The identity comes first, then every feed's list; each feed has its own selection."""
    mine, all_of_them = Cache(), Cache()
    apiserver.play("list", listing(20, pod("a", 5)), selector="x=y")
    apiserver.play("list", listing(21, pod("a", 5), pod("b", 6)))
    async with fleet_of() as fleet:
        feeds = [InformerSpec("a", POD, Selection("", "x=y"), mine), pods("a", all_of_them)]
        client = fleet.open("a", access_to(apiserver.port), feeds)
        assert fleet["a"].identity == ""
        assert await fleet["a"].identified() == UID
        await fleet.synced("a")
        assert (names(mine), names(all_of_them)) == (["a"], ["a", "b"])
        assert apiserver.asked[0].sort == "identity"
        assert {asked.query.get("labelSelector") for asked in apiserver.of("list")} == {"x=y", None}
        assert fleet["a"].cluster is client
        assert fleet["a"].identity == UID
        assert fleet["a"].silent == 0.0
        assert list(fleet) == ["a"]


async def test_a_feed_can_join_an_open_cluster(apiserver: Apiserver) -> None:
    """What depends on an identity can be fed once that is known, and whoever asks again gets the same informer."""
    cache = Cache()
    async with fleet_of() as fleet:
        fleet.open(UPPER, access_to(apiserver.port))
        await fleet[UPPER].identified()
        apiserver.play("list", listing(20, pod("a", 5)))
        informer = fleet.follow(pods(UPPER, cache))
        assert fleet.follow(pods(UPPER, cache)) is informer
        await fleet.synced()
        assert names(cache) == ["a"]


async def test_a_cache_can_be_left_while_its_cluster_stays_open(apiserver: Apiserver) -> None:
    """The feed of one cache ends, the others go on; who waits for it is let go, and leaving twice does nothing."""
    left, kept = Cache(), Cache()
    apiserver.play("list", listing(20, pod("a", 5)), listing(20, pod("a", 5)))
    ended, news = Stream(), Stream()
    apiserver.play("watch", ended, news)
    async with fleet_of() as fleet:
        fleet.open(UPPER, access_to(apiserver.port), [pods(UPPER, left), pods(UPPER, kept)])
        await fleet.synced()
        before = asyncio.all_tasks()
        await fleet.leave(UPPER, left)
        await fleet.leave(UPPER, left)
        await fleet.leave("nowhere", kept)
        assert len(ours(before - asyncio.all_tasks())) == 1
        assert (left.synced, kept.synced, names(left)) == (False, True, ["a"])
        await fleet.synced(UPPER)


async def test_a_cache_that_was_left_counts_no_more(apiserver: Apiserver) -> None:
    """Else each switch of a controller would use up more of what one cluster may send."""
    left, kept = Cache(), Cache()
    apiserver.play("list", listing(20, pod("a", 5)), listing(20, pod("a", 5)))
    async with fleet_of() as fleet:
        client = fleet.open("a", access_to(apiserver.port), [pods("a", left), pods("a", kept)])
        await fleet.synced("a")
        assert (client.tally.objects, both := client.tally.content) == (2, both)
        await fleet.leave("a", left)
        assert (client.tally.objects, client.tally.content) == (1, both // 2)


async def test_a_probe_does_not_wait_for_the_calls(apiserver: Apiserver) -> None:
    """They may hang all together, as creates do while an admission webhook is away."""
    apiserver.play("write", Hang())
    async with fleet_of() as fleet:
        client = fleet.open("a", access_to(apiserver.port), connections=1)
        await fleet["a"].identified()
        hanging = asyncio.create_task(client.create(Ref("a", POD, "default", "web"), {"metadata": {"name": "web"}}))
        await apiserver.until("write")
        assert await client.identify() == UID
        hanging.cancel()


async def test_no_cluster_is_opened_twice(apiserver: Apiserver) -> None:
    """Two clients under one name would be a defect of the caller's."""
    async with fleet_of() as fleet:
        fleet.open("a", access_to(apiserver.port))
        with pytest.raises(ValueError, match="already open"):
            fleet.open("a", access_to(apiserver.port))


async def test_a_closed_cluster_is_left_alone(apiserver: Apiserver) -> None:
    """After closing nothing is asked any more, what is cached is not trusted, and the name is free again."""
    cache = Cache()
    stream = Stream()
    apiserver.play("watch", stream)
    before = asyncio.all_tasks()
    async with fleet_of() as fleet:
        fleet.open("a", access_to(apiserver.port), [pods("a", cache)])
        await apiserver.until("watch")
        await fleet.close("a")
        count = len(apiserver.asked)
        assert not cache.synced
        assert list(fleet) == []
        fleet.open("a", access_to(apiserver.port))
        await fleet["a"].identified()
        assert {asked.sort for asked in apiserver.asked[count:]} == {"identity"}
    assert ours(asyncio.all_tasks() - before) == set()


async def test_closing_lets_go_who_waits_for_a_cluster() -> None:
    """One that left the topology before it ever answered keeps nobody waiting, and who waits for others waits on."""
    async with fleet_of() as fleet:
        cache = Cache()
        for name in ("a", "b"):
            fleet.open(name, access_to(1), [pods(name, cache)])
            fleet[name].tail(POD, Selection(), lambda _: None)
        opened = fleet["a"]
        waiting, for_all = asyncio.gather(opened.identified(), fleet.synced("a")), asyncio.create_task(fleet.synced())
        await asyncio.sleep(0)
        await fleet.close("a")
        assert await waiting == ["", None]
        assert (cache.synced, opened.is_identified, for_all.done()) == (False, False, False)
        await fleet.close("b")
        await for_all


async def test_the_connections_of_a_cluster_are_bounded(apiserver: Apiserver) -> None:
    """However many calls run, no more connections are opened than allowed."""
    async with fleet_of() as fleet:
        client = fleet.open("a", access_to(apiserver.port), connections=2)
        await asyncio.gather(*(client.version() for _ in range(10)))
        assert len(apiserver.of("version")) == 10
        assert apiserver.connections <= 2


async def test_one_cluster_that_hangs_does_not_hold_up_another() -> None:
    """A lower that never answers costs the others nothing, and can be closed."""
    async with AsyncExitStack() as stack:
        good, bad = Apiserver(), Apiserver()
        for server in (good, bad):
            await stack.enter_async_context(running(server))
        bad.play("identity", *[Hang()] * 100)
        good.play("list", listing(20, pod("a", 5)))
        caches = Cache(), Cache()
        fleet = await stack.enter_async_context(fleet_of(patience=0.2))
        fleet.open("bad", access_to(bad.port), [pods("bad", caches[0])])
        fleet.open("good", access_to(good.port), [pods("good", caches[1])])
        await fleet.synced("good")
        assert names(caches[1]) == ["a"]
        assert not caches[0].synced
        assert fleet["bad"].silent > 0
        assert fleet["bad"].health.error in {"not contacted yet", "no response within 0.2 s"}
        await bad.until("identity", 2)
        assert fleet["bad"].health.error == "no response within 0.2 s"


async def test_nothing_is_listed_before_the_identity_is_known(apiserver: Apiserver) -> None:
    """A cluster that does not say who it is feeds no cache, and is asked until it does."""
    apiserver.play("identity", refusal(403, "Forbidden"), refusal(500, "InternalError"))
    cache = Cache()
    async with fleet_of() as fleet:
        fleet.open("a", access_to(apiserver.port), [pods("a", cache)])
        await fleet.synced("a")
        assert [asked.sort for asked in apiserver.asked][:3] == ["identity"] * 3


async def test_an_apiserver_that_freezes_is_found_by_the_probe() -> None:
    """An open watch shows nothing: the silence begins when the probe gets no answer, and ends with the next."""
    now = [0.0]
    news = News()
    options = {"clock": lambda: now[0], "sleep": news.sleep, "patience": 0.2}
    async with running(Apiserver()) as server, fleet_of(**options) as fleet:
        cache = Cache()
        fleet.open("a", access_to(server.port), [pods("a", cache)])
        await server.until("watch")
        server.play("identity", Hang(), Hang())
        await news.until(lambda: fleet["a"].health.error)
        assert fleet["a"].silent == 0.0
        now[0] = 45.0
        assert fleet["a"].silent == 45.0
        await news.until(lambda: fleet["a"].silent == 0.0)
        assert cache.synced


async def test_another_cluster_at_the_address_is_refused_until_the_first_is_back(apiserver: Apiserver) -> None:
    """Caches are not trusted while it is there, and everything is listed anew afterwards."""
    cache = Cache()
    now = [0.0]
    apiserver.play("list", listing(500, pod("a", 400)), listing(20, pod("b", 5)))
    news = News()
    async with fleet_of(clock=lambda: now[0], sleep=news.sleep) as fleet:
        client = fleet.open("a", access_to(apiserver.port), [pods("a", cache)])
        await apiserver.until("watch")
        apiserver.uid = "another"
        await news.until(lambda: fleet["a"].health.wrong and not cache.synced)
        now[0] = 3.0
        assert fleet["a"].silent == 3.0
        assert "a different cluster responds" in fleet["a"].health.error
        with pytest.raises(WrongCluster):
            await client.create(Ref("a", POD, "default", "x"), {})
        assert names(cache) == ["a"]
        assert fleet["a"].identity == UID
        apiserver.uid = UID
        await told(cache, lambda: names(cache) == ["b"])
        assert cache.synced
        assert not fleet["a"].health.wrong
        assert len(apiserver.of("list")) == 2
        assert apiserver.of("write") == []


async def test_when_a_cluster_is_back_its_informers_do_not_wait_for_their_back_off() -> None:
    """The probe finds it within seconds, and wakes the tasks that wait for longer.

    It goes and comes back many times, so that it does so at least once after the list has failed.
    """
    server = Apiserver()
    cache = Cache()
    slow = QUICK._replace(first=3600.0, cap=3600.0, near=0.02)
    server.play("list", Answer(500, b"{}"), listing(20, pod("a", 5)))
    known = answer({"metadata": {"uid": UID}})
    server.play("identity", known, *[refusal(500, "InternalError"), known] * 100)
    async with running(server), fleet_of(pace=slow) as fleet:
        fleet.open("a", access_to(server.port), [pods("a", cache)])
        await told(cache, lambda: names(cache) == ["a"])


async def test_creates_through_an_open_cluster_are_compared_with_its_feeds(apiserver: Apiserver) -> None:
    """The client tells the informers of a kind about creates of that kind, and of no other."""
    cache = Cache()
    apiserver.play("list", listing(278, pod("a", 270)), Hang())
    old = Answer(201, b'{"metadata":{"namespace":"default","name":"b","resourceVersion":"246"}}')
    apiserver.play("write", old, old)
    async with fleet_of() as fleet:
        client = fleet.open("a", access_to(apiserver.port), [pods("a", cache)])
        await apiserver.until("watch")
        await client.create(Ref("a", CONFIG_MAP, "default", "b"), {})
        assert cache.synced
        await client.create(Ref("a", POD, "default", "b"), {})
        assert not cache.synced


async def test_a_defect_in_one_feed_is_survived(apiserver: Apiserver) -> None:
    """An exception that nobody foresaw restarts that feed, and the other feeds do not notice."""
    faults = [RuntimeError("one")]

    def hear(_delta: Delta) -> None:
        """Fail once."""
        if faults:
            raise faults.pop()

    fragile, sound = Cache(), Cache()
    fragile.subscribe(hear)
    apiserver.play("list", *[listing(20, pod("a", 5))] * 3)
    async with fleet_of() as fleet:
        fleet.open("a", access_to(apiserver.port), [pods("a", fragile), pods("a", sound)])
        await fleet.synced()
        assert (names(fragile), names(sound)) == (["a"], ["a"])
        assert len(apiserver.of("list")) == 3


async def test_writes_are_told_by_cluster(apiserver: Apiserver) -> None:
    """Whoever counts writes learns in which cluster they were made."""
    heard: list[tuple[str, ...]] = []
    async with fleet_of(observe=lambda name: lambda *what: heard.append((name, *what))) as fleet:
        client = fleet.open("a", access_to(apiserver.port))
        await client.delete(Ref("a", POD, "default", "x"), uid="u")
    assert heard == [("a", "delete", "Pod", "ok")]


async def test_the_rate_of_a_cluster_is_its_own(apiserver: Apiserver) -> None:
    """Requests a second are bounded by cluster, as the topology says."""
    waited: list[float] = []

    async def wait(seconds: float) -> None:
        """Note the wait, and wait a moment of it."""
        waited.append(seconds)
        await asyncio.sleep(min(seconds, 0.001))

    async with fleet_of(clock=lambda: 0.0, sleep=wait, probe=0.0) as fleet:
        client = fleet.open("a", access_to(apiserver.port), qps=4, burst=1)
        await fleet["a"].identified()
        await client.version()
        assert any(seconds > 0 and seconds % 0.25 == 0 for seconds in waited)


async def test_closing_the_fleet_closes_every_cluster() -> None:
    """Also one that is down, and one whose probe hangs."""
    async with running(Apiserver()) as server:
        server.play("identity", Hang())
        async with fleet_of() as fleet:
            fleet.open("down", access_to(1), [pods("down", Cache())])
            client = fleet.open("hangs", access_to(server.port), [pods("hangs", Cache())])
            await server.until("identity")
        assert list(fleet) == []
        with pytest.raises((Unreachable, RuntimeError)):
            await client.version()


async def test_closing_a_cluster_outlives_who_asked_for_it(apiserver: Apiserver) -> None:
    """Where that one is cancelled in the middle, at whichever moment, the fleet's end still finds every connection."""
    for moment in range(6):
        async with fleet_of() as fleet:
            client = fleet.open("a", access_to(apiserver.port), [pods("a", Cache())])
            await fleet.synced("a")
            leaving = asyncio.create_task(fleet.close("a"))
            for _ in range(moment):
                await asyncio.sleep(0)
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
        with pytest.raises((Unreachable, RuntimeError)):
            await client.version()


async def test_a_tail_hears_of_what_comes_and_ends_with_its_cluster(apiserver: Apiserver) -> None:
    """It begins once the identity is known, and one watch serves whoever asks for the same."""
    heard: list[str] = []
    news, stream = News(), Stream()
    apiserver.play("watch", stream)

    def hear(one: WatchEvent) -> None:
        """Keep the type of an event."""
        heard.append(one.type)
        news.tell()

    async with fleet_of() as fleet:
        fleet.open("a", access_to(apiserver.port))
        fleet["a"].tail(POD, Selection(), hear)
        fleet["a"].tail(POD, Selection(), lambda _: pytest.fail("what is heard already is heard twice"))
        await fleet.synced("a")
        stream.send(event("ADDED", pod("a", 30)))
        await news.until(lambda: heard == ["ADDED"])
    assert apiserver.asked[0].sort == "identity"
