"""Watches of the client: what is asked for, how they end, and what is made of each end."""

import asyncio
from contextlib import aclosing

import orjson
import pytest
from scripted import (
    WAIT,
    Apiserver,
    Hang,
    Stream,
    access_to,
    bookmark,
    event,
    pod,
    refusal,
)

from tensile.errors import Expired, Unauthorized, Unreachable
from tensile.kube.client import HttpCluster
from tensile.kube.cluster import Selection, WatchEvent
from tensile.kube.credentials import Access
from tensile.objects import POD

ALL = Selection()


async def follow(cluster: HttpCluster, seconds: int = 60) -> list[WatchEvent]:
    """Return all events of one watch."""
    async with asyncio.timeout(WAIT):
        return [seen async for seen in cluster.watch(POD, ALL, "10", seconds)]


async def test_a_watch_asks_for_bookmarks_and_an_end(apiserver: Apiserver, cluster: HttpCluster) -> None:
    """Version, selection and the time after which the server shall end it are in the query."""
    apiserver.play("watch", Stream().end())
    selection = Selection("default", "a=b", "spec.nodeName=n")
    assert [seen async for seen in cluster.watch(POD, selection, "10", 300)] == []
    asked = apiserver.asked[-1]
    assert asked.path == "/api/v1/namespaces/default/pods"
    assert asked.query == {
        "labelSelector": "a=b",
        "fieldSelector": "spec.nodeName=n",
        "watch": "1",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": "300",
        "resourceVersion": "10",
    }


async def test_events_come_as_they_are_sent(apiserver: Apiserver, cluster: HttpCluster) -> None:
    """Each event is there as soon as its line is, bookmarks and unknown types included, until the server ends it."""
    stream = Stream()
    apiserver.play("watch", stream)
    async with aclosing(cluster.watch(POD, ALL, "10", 60)) as events:
        for sent in (event("ADDED", pod("a", 11)), bookmark(12), event("NEW", pod("b", 13))):
            stream.send(sent)
            seen = await anext(events)
            assert (seen.type, orjson.loads(seen.raw)) == (sent["type"], sent["object"])
        stream.end()
        with pytest.raises(StopAsyncIteration):
            await anext(events)


async def test_an_object_of_three_megabytes_comes_through(apiserver: Apiserver, cluster: HttpCluster) -> None:
    """No limit on lines or buffers stands in the way of what etcd can hold."""
    big = pod("big", 11, data="x" * 3_000_000)
    apiserver.play("watch", Stream().send(event("ADDED", big), bookmark(12)).end())
    first, second = await follow(cluster)
    assert orjson.loads(first.raw) == big
    assert second.type == "BOOKMARK"


async def test_a_refused_watch_is_an_error(apiserver: Apiserver, cluster: HttpCluster) -> None:
    """A status instead of a stream means what it means for every call; the watch is not asked for again."""
    apiserver.play("watch", refusal(504, "Timeout", ("ResourceVersionTooLarge", "")))
    with pytest.raises(Expired) as refused:
        await follow(cluster)
    assert (refused.value.cluster, refused.value.doing) == ("a", "watch Pod")
    assert len(apiserver.asked) == 1


async def test_a_watch_refused_for_its_credential_renews_it(apiserver: Apiserver) -> None:
    """The next watch shows the new one."""
    fresh = access_to(apiserver.port, {"Authorization": "Bearer new"})

    async def renew() -> Access:
        """Return the access with the new token."""
        return fresh

    cluster = HttpCluster("a", access_to(apiserver.port, renew=renew))
    apiserver.play("watch", refusal(401, "Unauthorized"), Stream().end())
    with pytest.raises(Unauthorized):
        await follow(cluster)
    await follow(cluster)
    await cluster.close()
    assert apiserver.asked[-1].headers["authorization"] == "Bearer new"


async def test_a_connection_that_breaks_is_no_end(apiserver: Apiserver, cluster: HttpCluster) -> None:
    """What came before counts, the half line does not, and the break is an error."""
    apiserver.play("watch", Stream().send(event("ADDED", pod("a", 11))).raw(b'{"type":"ADDED"').drop())
    events = cluster.watch(POD, ALL, "10", 60)
    assert (await anext(events)).type == "ADDED"
    with pytest.raises(Unreachable, match="closed the connection"):
        await anext(events)


@pytest.mark.parametrize("play", [Hang(), Stream()])
async def test_a_watch_that_hangs_is_given_up(apiserver: Apiserver, play: Hang | Stream) -> None:
    """A server that is frozen shows no error: when the end does not come in time, the client ends it."""
    cluster = HttpCluster("a", access_to(apiserver.port), margin=0.2)
    apiserver.play("watch", play)
    with pytest.raises(Unreachable, match="did not respond in time"):
        await follow(cluster, seconds=0)
    await cluster.close()


async def test_watches_do_not_use_up_the_calls_connections(apiserver: Apiserver) -> None:
    """With one connection for calls, open watches leave it free, and the other way round."""
    cluster = HttpCluster("a", access_to(apiserver.port), connections=1, timeout=WAIT)
    apiserver.play("watch", Stream().send(bookmark(11)), Stream().send(bookmark(12)))
    first, second = cluster.watch(POD, ALL, "10", 60), cluster.watch(POD, ALL, "10", 60)
    async with aclosing(first), aclosing(second):
        assert (await anext(first)).type == (await anext(second)).type == "BOOKMARK"
        assert await cluster.version() == "v1.36.3"
    await cluster.close()


async def test_an_open_watch_is_contact(apiserver: Apiserver, cluster: HttpCluster) -> None:
    """A watch on which nothing happens says that the cluster is there."""
    apiserver.play("watch", Stream().send(bookmark(11)))
    async with aclosing(cluster.watch(POD, ALL, "10", 60)) as events:
        await anext(events)
        assert cluster.health.unreachable_for(1e9) == 0.0


async def test_a_bookmark_is_no_sign_that_the_cluster_works(apiserver: Apiserver, cluster: HttpCluster) -> None:
    """An apiserver sends them from its memory while its store is away; an event comes from the store."""
    apiserver.play("watch", Stream().send(*map(bookmark, (11, 12)), event("ADDED", pod("a", 13)), bookmark(14)))
    async with aclosing(cluster.watch(POD, ALL, "10", 60)) as events:
        await anext(events)
        cluster.health.silence(0.0, "no answer", unconnected=False)
        for _ in range(2):
            await anext(events)
            assert cluster.health.error == "no answer"
        await anext(events)
        assert cluster.health.error == ""
