"""Tests of the client's watches: their request, how they end, and the result of each kind of end."""

import asyncio
from contextlib import aclosing

import orjson
import pytest
from scripted import (
    WAIT,
    Hang,
    ScriptedApiserver,
    WatchStream,
    access_to,
    bookmark,
    event,
    make_pod,
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


async def test_a_watch_requests_bookmarks_and_a_timeout(apiserver: ScriptedApiserver, cluster: HttpCluster) -> None:
    """The query also has the selectors and the resourceVersion."""
    apiserver.queue("watch", WatchStream().end())
    selection = Selection("default", "a=b", "spec.nodeName=n")
    assert [seen async for seen in cluster.watch(POD, selection, "10", 300)] == []
    request = apiserver.requests[-1]
    assert request.path == "/api/v1/namespaces/default/pods"
    assert request.query == {
        "labelSelector": "a=b",
        "fieldSelector": "spec.nodeName=n",
        "watch": "1",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": "300",
        "resourceVersion": "10",
    }


async def test_a_watch_returns_each_event_as_soon_as_it_is_received(
    apiserver: ScriptedApiserver, cluster: HttpCluster
) -> None:
    """Bookmarks and events of unknown types are returned too, until the server ends the watch."""
    stream = WatchStream()
    apiserver.queue("watch", stream)
    async with aclosing(cluster.watch(POD, ALL, "10", 60)) as events:
        for sent in (event("ADDED", make_pod("a", 11)), bookmark(12), event("NEW", make_pod("b", 13))):
            stream.send(sent)
            seen = await anext(events)
            assert (seen.type, orjson.loads(seen.raw)) == (sent["type"], sent["object"])
        stream.end()
        with pytest.raises(StopAsyncIteration):
            await anext(events)


async def test_a_watch_returns_an_object_of_three_megabytes(apiserver: ScriptedApiserver, cluster: HttpCluster) -> None:
    """No limit of lines or buffers is smaller than the largest object that etcd can store."""
    big = make_pod("big", 11, data="x" * 3_000_000)
    apiserver.queue("watch", WatchStream().send(event("ADDED", big), bookmark(12)).end())
    first, second = await follow(cluster)
    assert orjson.loads(first.raw) == big
    assert second.type == "BOOKMARK"


async def test_a_rejected_watch_raises_the_error_of_its_status(
    apiserver: ScriptedApiserver, cluster: HttpCluster
) -> None:
    """The error is the same as for other calls, and the watch is not requested again."""
    apiserver.queue("watch", refusal(504, "Timeout", ("ResourceVersionTooLarge", "")))
    with pytest.raises(Expired) as refused:
        await follow(cluster)
    assert (refused.value.cluster, refused.value.doing) == ("a", "watch Pod")
    assert len(apiserver.requests) == 1


async def test_a_watch_rejected_with_401_renews_the_credential(apiserver: ScriptedApiserver) -> None:
    """The next watch uses the renewed credential."""
    fresh = access_to(apiserver.port, {"Authorization": "Bearer new"})

    async def renew() -> Access:
        """Return the access with the new token."""
        return fresh

    cluster = HttpCluster("a", access_to(apiserver.port, renew=renew))
    apiserver.queue("watch", refusal(401, "Unauthorized"), WatchStream().end())
    with pytest.raises(Unauthorized):
        await follow(cluster)
    await follow(cluster)
    await cluster.close()
    assert apiserver.requests[-1].headers["authorization"] == "Bearer new"


async def test_a_watch_raises_unreachable_if_its_connection_breaks(
    apiserver: ScriptedApiserver, cluster: HttpCluster
) -> None:
    """Complete events before the break are returned, and the incomplete line is dropped."""
    apiserver.queue("watch", WatchStream().send(event("ADDED", make_pod("a", 11))).raw(b'{"type":"ADDED"').drop())
    events = cluster.watch(POD, ALL, "10", 60)
    assert (await anext(events)).type == "ADDED"
    with pytest.raises(Unreachable, match="closed the connection"):
        await anext(events)


@pytest.mark.parametrize("play", [Hang(), WatchStream()])
async def test_a_watch_fails_if_the_server_does_not_end_it_in_time(
    apiserver: ScriptedApiserver, play: Hang | WatchStream
) -> None:
    """A frozen server causes no connection error, so the client ends the watch after a timeout."""
    cluster = HttpCluster("a", access_to(apiserver.port), margin=0.2)
    apiserver.queue("watch", play)
    with pytest.raises(Unreachable, match="did not respond in time"):
        await follow(cluster, seconds=0)
    await cluster.close()


async def test_watches_do_not_count_as_connections_for_calls(apiserver: ScriptedApiserver) -> None:
    """With one connection for calls, two watches can be open while a call is made."""
    cluster = HttpCluster("a", access_to(apiserver.port), connections=1, timeout=WAIT)
    apiserver.queue("watch", WatchStream().send(bookmark(11)), WatchStream().send(bookmark(12)))
    first, second = cluster.watch(POD, ALL, "10", 60), cluster.watch(POD, ALL, "10", 60)
    async with aclosing(first), aclosing(second):
        assert (await anext(first)).type == (await anext(second)).type == "BOOKMARK"
        assert await cluster.version() == "v1.36.3"
    await cluster.close()


async def test_an_accepted_watch_counts_as_contact(apiserver: ScriptedApiserver, cluster: HttpCluster) -> None:
    """The cluster is reachable although the watch returned nothing but a bookmark."""
    apiserver.queue("watch", WatchStream().send(bookmark(11)))
    async with aclosing(cluster.watch(POD, ALL, "10", 60)) as events:
        await anext(events)
        assert cluster.health.unreachable_for(1e9) == 0.0


async def test_a_bookmark_does_not_make_an_unreachable_cluster_reachable(
    apiserver: ScriptedApiserver, cluster: HttpCluster
) -> None:
    """An apiserver sends bookmarks from memory even if etcd is down, but events come from etcd."""
    apiserver.queue(
        "watch", WatchStream().send(*map(bookmark, (11, 12)), event("ADDED", make_pod("a", 13)), bookmark(14))
    )
    async with aclosing(cluster.watch(POD, ALL, "10", 60)) as events:
        await anext(events)
        cluster.health.record_failure(0.0, "no answer", unconnected=False)
        for _ in range(2):
            await anext(events)
            assert cluster.health.error == "no answer"
        await anext(events)
        assert cluster.health.error == ""
