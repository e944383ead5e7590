"""Tests of many clusters at once: each is opened, watched, probed and closed independently of the others."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from fleetkit import QUICK, fleet_of, names, pods
from scripted import (
    UID,
    ChangeSignal,
    Hang,
    HttpResponse,
    ScriptedApiserver,
    WatchStream,
    access_to,
    answer,
    event,
    listing,
    make_pod,
    refusal,
    running,
    wait_for_cache,
)

from tensile.errors import Unreachable
from tensile.kube.cluster import Selection, WatchEvent
from tensile.kube.fleet import InformerSpec
from tensile.kube.health import WrongCluster
from tensile.kube.store import Cache, Delta
from tensile.objects import CONFIG_MAP, POD, UPPER, Ref


def own_tasks(tasks: set[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    """Return the tasks of tensile.kube; the other tasks belong to the scripted apiserver."""
    return {task for task in tasks if "/tensile/kube/" in repr(task)}


async def test_an_opened_cluster_is_identified_before_its_informers_list(apiserver: ScriptedApiserver) -> None:
    """Each informer lists with its own selection into its own cache."""
    mine, all_of_them = Cache(), Cache()
    apiserver.queue("list", listing(20, make_pod("a", 5)), selector="x=y")
    apiserver.queue("list", listing(21, make_pod("a", 5), make_pod("b", 6)))
    async with fleet_of() as fleet:
        feeds = [InformerSpec("a", POD, Selection("", "x=y"), mine), pods("a", all_of_them)]
        client = fleet.open("a", access_to(apiserver.port), feeds)
        assert fleet["a"].identity == ""
        assert await fleet["a"].identified() == UID
        await fleet.synced("a")
        assert (names(mine), names(all_of_them)) == (["a"], ["a", "b"])
        assert apiserver.requests[0].sort == "identity"
        assert {request.query.get("labelSelector") for request in apiserver.requests_of("list")} == {"x=y", None}
        assert fleet["a"].cluster is client
        assert fleet["a"].identity == UID
        assert fleet["a"].unreachable_seconds == 0.0
        assert list(fleet) == ["a"]


async def test_an_informer_can_be_added_to_an_open_cluster(apiserver: ScriptedApiserver) -> None:
    """It may depend on the identity; a second request for the same cache returns the same informer."""
    cache = Cache()
    async with fleet_of() as fleet:
        fleet.open(UPPER, access_to(apiserver.port))
        await fleet[UPPER].identified()
        apiserver.queue("list", listing(20, make_pod("a", 5)))
        informer = fleet.follow(pods(UPPER, cache))
        assert fleet.follow(pods(UPPER, cache)) is informer
        await fleet.synced()
        assert names(cache) == ["a"]


async def test_leaving_a_cache_stops_only_its_informer(apiserver: ScriptedApiserver) -> None:
    """The cache becomes stale and keeps its contents, and `synced` does not wait for it.

    Leaving it twice does nothing.
    """
    left, kept = Cache(), Cache()
    apiserver.queue("list", listing(20, make_pod("a", 5)), listing(20, make_pod("a", 5)))
    ended, news = WatchStream(), WatchStream()
    apiserver.queue("watch", ended, news)
    async with fleet_of() as fleet:
        fleet.open(UPPER, access_to(apiserver.port), [pods(UPPER, left), pods(UPPER, kept)])
        await fleet.synced()
        before = asyncio.all_tasks()
        await fleet.leave(UPPER, left)
        await fleet.leave(UPPER, left)
        await fleet.leave("nowhere", kept)
        assert len(own_tasks(before - asyncio.all_tasks())) == 1
        assert (left.synced, kept.synced, names(left)) == (False, True, ["a"])
        await fleet.synced(UPPER)


async def test_a_left_cache_is_removed_from_the_clusters_totals(apiserver: ScriptedApiserver) -> None:
    """Otherwise each switch of a controller would use up more of the cluster's limit for cached objects."""
    left, kept = Cache(), Cache()
    apiserver.queue("list", listing(20, make_pod("a", 5)), listing(20, make_pod("a", 5)))
    async with fleet_of() as fleet:
        client = fleet.open("a", access_to(apiserver.port), [pods("a", left), pods("a", kept)])
        await fleet.synced("a")
        assert (client.tally.objects, both := client.tally.content) == (2, both)
        await fleet.leave("a", left)
        assert (client.tally.objects, client.tally.content) == (1, both // 2)


async def test_a_probe_does_not_wait_for_a_connection_of_other_calls(apiserver: ScriptedApiserver) -> None:
    """All calls may hang at once, as creates do while an admission webhook is down."""
    apiserver.queue("write", Hang())
    async with fleet_of() as fleet:
        client = fleet.open("a", access_to(apiserver.port), connections=1)
        await fleet["a"].identified()
        hanging = asyncio.create_task(client.create(Ref("a", POD, "default", "web"), {"metadata": {"name": "web"}}))
        await apiserver.wait_for_request("write")
        assert await client.identify() == UID
        hanging.cancel()


async def test_opening_an_open_cluster_raises_value_error(apiserver: ScriptedApiserver) -> None:
    """Two clients with one name would be a bug of the caller."""
    async with fleet_of() as fleet:
        fleet.open("a", access_to(apiserver.port))
        with pytest.raises(ValueError, match="already open"):
            fleet.open("a", access_to(apiserver.port))


async def test_no_request_is_sent_to_a_closed_cluster(apiserver: ScriptedApiserver) -> None:
    """Its cache is stale, no task is left, and a cluster can be opened under the same name again."""
    cache = Cache()
    stream = WatchStream()
    apiserver.queue("watch", stream)
    before = asyncio.all_tasks()
    async with fleet_of() as fleet:
        fleet.open("a", access_to(apiserver.port), [pods("a", cache)])
        await apiserver.wait_for_request("watch")
        await fleet.close("a")
        count = len(apiserver.requests)
        assert not cache.synced
        assert list(fleet) == []
        fleet.open("a", access_to(apiserver.port))
        await fleet["a"].identified()
        assert {request.sort for request in apiserver.requests[count:]} == {"identity"}
    assert own_tasks(asyncio.all_tasks() - before) == set()


async def test_closing_a_cluster_releases_callers_that_wait_for_it() -> None:
    """A lower may leave the topology before it ever responds.

    A caller that waits for all clusters still waits for the others.
    """
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


async def test_the_number_of_connections_to_a_cluster_is_limited(apiserver: ScriptedApiserver) -> None:
    """More calls than connections share the connections, and all of them succeed."""
    async with fleet_of() as fleet:
        client = fleet.open("a", access_to(apiserver.port), connections=2)
        await asyncio.gather(*(client.version() for _ in range(10)))
        assert len(apiserver.requests_of("version")) == 10
        assert apiserver.connections <= 2


async def test_a_cluster_that_hangs_does_not_delay_another() -> None:
    """The hanging cluster counts as unreachable with a timeout as its error, and can be closed."""
    async with AsyncExitStack() as stack:
        good, bad = ScriptedApiserver(), ScriptedApiserver()
        for server in (good, bad):
            await stack.enter_async_context(running(server))
        bad.queue("identity", *[Hang()] * 100)
        good.queue("list", listing(20, make_pod("a", 5)))
        caches = Cache(), Cache()
        fleet = await stack.enter_async_context(fleet_of(patience=0.2))
        fleet.open("bad", access_to(bad.port), [pods("bad", caches[0])])
        fleet.open("good", access_to(good.port), [pods("good", caches[1])])
        await fleet.synced("good")
        assert names(caches[1]) == ["a"]
        assert not caches[0].synced
        assert fleet["bad"].unreachable_seconds > 0
        assert fleet["bad"].health.error in {"not contacted yet", "no response within 0.2 s"}
        await bad.wait_for_request("identity", 2)
        assert fleet["bad"].health.error == "no response within 0.2 s"


async def test_informers_do_not_list_before_the_identity_is_known(apiserver: ScriptedApiserver) -> None:
    """The identity is requested again until the cluster returns it."""
    apiserver.queue("identity", refusal(403, "Forbidden"), refusal(500, "InternalError"))
    cache = Cache()
    async with fleet_of() as fleet:
        fleet.open("a", access_to(apiserver.port), [pods("a", cache)])
        await fleet.synced("a")
        assert [request.sort for request in apiserver.requests][:3] == ["identity"] * 3


async def test_the_probe_detects_an_apiserver_that_freezes() -> None:
    """An open watch shows no error; the silence begins with a probe that times out and ends with the next response."""
    now = [0.0]
    news = ChangeSignal()
    options = {"clock": lambda: now[0], "sleep": news.sleep, "patience": 0.2}
    async with running(ScriptedApiserver()) as server, fleet_of(**options) as fleet:
        cache = Cache()
        fleet.open("a", access_to(server.port), [pods("a", cache)])
        await server.wait_for_request("watch")
        server.queue("identity", Hang(), Hang())
        await news.wait_until(lambda: fleet["a"].health.error)
        assert fleet["a"].unreachable_seconds == 0.0
        now[0] = 45.0
        assert fleet["a"].unreachable_seconds == 45.0
        await news.wait_until(lambda: fleet["a"].unreachable_seconds == 0.0)
        assert cache.synced


async def test_a_different_cluster_at_the_address_is_refused_until_the_first_one_responds(
    apiserver: ScriptedApiserver,
) -> None:
    """Caches are stale while it responds, no write is sent to it, and everything is listed again afterwards."""
    cache = Cache()
    now = [0.0]
    apiserver.queue("list", listing(500, make_pod("a", 400)), listing(20, make_pod("b", 5)))
    news = ChangeSignal()
    async with fleet_of(clock=lambda: now[0], sleep=news.sleep) as fleet:
        client = fleet.open("a", access_to(apiserver.port), [pods("a", cache)])
        await apiserver.wait_for_request("watch")
        apiserver.uid = "another"
        await news.wait_until(lambda: fleet["a"].health.wrong and not cache.synced)
        now[0] = 3.0
        assert fleet["a"].unreachable_seconds == 3.0
        assert "a different cluster responds" in fleet["a"].health.error
        with pytest.raises(WrongCluster):
            await client.create(Ref("a", POD, "default", "x"), {})
        assert names(cache) == ["a"]
        assert fleet["a"].identity == UID
        apiserver.uid = UID
        await wait_for_cache(cache, lambda: names(cache) == ["b"])
        assert cache.synced
        assert not fleet["a"].health.wrong
        assert len(apiserver.requests_of("list")) == 2
        assert apiserver.requests_of("write") == []


async def test_informers_list_without_back_off_when_the_cluster_responds_again() -> None:
    """The probe notices it within seconds and wakes the informers.

    The cluster fails and responds many times, so that it responds at least once after the list has failed.
    """
    server = ScriptedApiserver()
    cache = Cache()
    slow = QUICK._replace(first=3600.0, cap=3600.0, near=0.02)
    server.queue("list", HttpResponse(500, b"{}"), listing(20, make_pod("a", 5)))
    known = answer({"metadata": {"uid": UID}})
    server.queue("identity", known, *[refusal(500, "InternalError"), known] * 100)
    async with running(server), fleet_of(pace=slow) as fleet:
        fleet.open("a", access_to(server.port), [pods("a", cache)])
        await wait_for_cache(cache, lambda: names(cache) == ["a"])


async def test_a_create_that_contradicts_an_informer_marks_its_cache_stale(apiserver: ScriptedApiserver) -> None:
    """The client reports creates only to informers of the same kind."""
    cache = Cache()
    apiserver.queue("list", listing(278, make_pod("a", 270)), Hang())
    old = HttpResponse(201, b'{"metadata":{"namespace":"default","name":"b","resourceVersion":"246"}}')
    apiserver.queue("write", old, old)
    async with fleet_of() as fleet:
        client = fleet.open("a", access_to(apiserver.port), [pods("a", cache)])
        await apiserver.wait_for_request("watch")
        await client.create(Ref("a", CONFIG_MAP, "default", "b"), {})
        assert cache.synced
        await client.create(Ref("a", POD, "default", "b"), {})
        assert not cache.synced


async def test_an_unexpected_exception_restarts_only_its_informer(apiserver: ScriptedApiserver) -> None:
    """The informers of other caches are not affected."""
    faults = [RuntimeError("one")]

    def hear(_delta: Delta) -> None:
        """Fail once."""
        if faults:
            raise faults.pop()

    fragile, sound = Cache(), Cache()
    fragile.subscribe(hear)
    apiserver.queue("list", *[listing(20, make_pod("a", 5))] * 3)
    async with fleet_of() as fleet:
        fleet.open("a", access_to(apiserver.port), [pods("a", fragile), pods("a", sound)])
        await fleet.synced()
        assert (names(fragile), names(sound)) == (["a"], ["a"])
        assert len(apiserver.requests_of("list")) == 3


async def test_the_observer_of_writes_gets_the_name_of_the_cluster(apiserver: ScriptedApiserver) -> None:
    """Each write is counted for its cluster."""
    observed: list[tuple[str, ...]] = []
    async with fleet_of(observe=lambda name: lambda *what: observed.append((name, *what))) as fleet:
        client = fleet.open("a", access_to(apiserver.port))
        await client.delete(Ref("a", POD, "default", "x"), uid="u")
    assert observed == [("a", "delete", "Pod", "ok")]


async def test_the_rate_limit_applies_to_each_cluster(apiserver: ScriptedApiserver) -> None:
    """The requests per second of a cluster are limited as its topology entry defines."""
    waited: list[float] = []

    async def wait(seconds: float) -> None:
        """Record the wait, and sleep for a short part of it."""
        waited.append(seconds)
        await asyncio.sleep(min(seconds, 0.001))

    async with fleet_of(clock=lambda: 0.0, sleep=wait, probe=0.0) as fleet:
        client = fleet.open("a", access_to(apiserver.port), qps=4, burst=1)
        await fleet["a"].identified()
        await client.version()
        assert any(seconds > 0 and seconds % 0.25 == 0 for seconds in waited)


async def test_closing_the_fleet_closes_every_cluster() -> None:
    """This includes a cluster that is down and a cluster whose probe hangs."""
    async with running(ScriptedApiserver()) as server:
        server.queue("identity", Hang())
        async with fleet_of() as fleet:
            fleet.open("down", access_to(1), [pods("down", Cache())])
            client = fleet.open("hangs", access_to(server.port), [pods("hangs", Cache())])
            await server.wait_for_request("identity")
        assert list(fleet) == []
        with pytest.raises((Unreachable, RuntimeError)):
            await client.version()


async def test_closing_a_cluster_continues_if_its_caller_is_canceled(apiserver: ScriptedApiserver) -> None:
    """Whenever the caller is canceled, closing the fleet still closes every connection."""
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


async def test_a_tail_receives_events_until_its_cluster_is_closed(apiserver: ScriptedApiserver) -> None:
    """It starts once the identity is known, and a second tail with the same selection opens no second watch."""
    received: list[str] = []
    news, stream = ChangeSignal(), WatchStream()
    apiserver.queue("watch", stream)

    def hear(one: WatchEvent) -> None:
        """Record the type of the event."""
        received.append(one.type)
        news.notify()

    async with fleet_of() as fleet:
        fleet.open("a", access_to(apiserver.port))
        fleet["a"].tail(POD, Selection(), hear)
        fleet["a"].tail(POD, Selection(), lambda _: pytest.fail("what is heard already is heard twice"))
        await fleet.synced("a")
        stream.send(event("ADDED", make_pod("a", 30)))
        await news.wait_until(lambda: received == ["ADDED"])
    assert apiserver.requests[0].sort == "identity"
