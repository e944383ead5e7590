"""A client whose way to its cluster changes: what is sent which way, and what has to be shown before."""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from scripted import UID, Answer, Apiserver, Asked, Stream, access_to, event, pod, refusal, running

from tensile.errors import ClusterError, Unauthorized, Unreachable
from tensile.kube.client import HttpCluster
from tensile.kube.cluster import Selection
from tensile.kube.credentials import Access, AccessError
from tensile.kube.health import WrongCluster
from tensile.objects import POD, UPPER, Ref

REF = Ref("a", POD, "default", "web")
UNAUTHORIZED = refusal(401, "Unauthorized")


def shown(asked: Asked) -> str:
    """Return the token of a request."""
    return asked.headers.get("authorization", "").removeprefix("Bearer ")


def way(port: int, token: str, renewals: "Callable[[], Access] | None" = None) -> Access:
    """Make a way with a token, whose renewal is what `renewals` gives, or the same."""

    async def renew() -> Access:
        """Return what is there by now."""
        return renewals() if renewals else way(port, token)

    return access_to(port, {"Authorization": f"Bearer {token}"}, renew)


@asynccontextmanager
async def two(uid: str = UID) -> AsyncIterator[tuple[Apiserver, Apiserver]]:
    """Run two apiservers; the second is of the cluster with that UID."""
    async with running(Apiserver()) as one, running(Apiserver(uid)) as other:
        yield one, other


@asynccontextmanager
async def client(access: Access, **options: object) -> AsyncIterator[HttpCluster]:
    """Make a client that knows its cluster."""
    cluster = HttpCluster("a", access, timeout=5.0, **options)  # type: ignore[arg-type]
    try:
        await cluster.identify()
        yield cluster
    finally:
        await cluster.close()


async def test_the_same_cluster_at_another_address_is_followed() -> None:
    """It shows itself first, and then gets the requests; the old address gets none any more."""
    async with two() as (one, other), client(way(one.port, "old")) as cluster:
        assert cluster.take(way(other.port, "new")) == ""
        await cluster.create(REF, pod("web", 1))
        assert [(asked.sort, shown(asked)) for asked in other.asked] == [("identity", "new"), ("write", "new")]
        assert [asked.sort for asked in one.asked] == ["identity"]
        assert cluster.endpoint().port == other.port


async def test_a_way_that_was_just_taken_has_not_been_tried_yet() -> None:
    """However long the one before had been in use; the same credential once more is no other way."""
    now = [100.0]
    async with two() as (one, other), client(way(one.port, "old"), clock=lambda: now[0]) as cluster:
        now[0] = 160.0
        cluster.take(way(one.port, "old"))
        assert cluster.health.tried_for(now[0]) == 60.0
        cluster.take(way(other.port, "old"))
        now[0] = 163.0
        assert cluster.health.tried_for(now[0]) == 3.0


async def test_another_cluster_at_another_address_is_refused() -> None:
    """A kubeconfig swapped for another cluster's gets nothing done there, however valid its credential is."""
    async with two("another") as (one, other), client(way(one.port, "old")) as cluster:
        cluster.take(way(other.port, "new"))
        for call in (cluster.create(REF, pod("web", 1)), cluster.delete(REF, uid="u"), cluster.read(REF)):
            with pytest.raises(WrongCluster, match="correct the server in the test"):
                await call
        assert {asked.sort for asked in other.asked} == {"identity"}
        assert "a different cluster responds" in cluster.credential_error
        cluster.take(way(one.port, "old"))
        await cluster.create(REF, pod("web", 1))
        assert cluster.credential_error == ""
        assert len(one.of("write")) == 1


async def test_what_to_do_about_another_upper_cluster_is_something_else() -> None:
    """There is one upper cluster, and it is a restart that exchanges it."""
    async with two("another") as (one, other):
        cluster = HttpCluster(UPPER, way(one.port, "t"))
        await cluster.identify()
        cluster.take(way(other.port, "t"))
        with pytest.raises(WrongCluster, match=r", or, if intended, restart the engine$"):
            await cluster.identify()
        await cluster.close()


async def test_a_credential_of_another_cluster_behind_the_address_is_found_out(apiserver: Apiserver) -> None:
    """After 401 the write is not repeated with the new credential before the cluster has shown itself."""
    fresh = way(apiserver.port, "new")
    async with client(way(apiserver.port, "old", lambda: fresh)) as cluster:
        apiserver.uid = "another"
        apiserver.play("write", UNAUTHORIZED)
        with pytest.raises(WrongCluster):
            await cluster.create(REF, pod("web", 1))
        assert [(asked.sort, shown(asked)) for asked in apiserver.asked[1:]] == [("write", "old"), ("identity", "new")]


async def test_a_request_goes_the_way_that_was_checked_for_it() -> None:
    """One that waits for its turn while the way is exchanged is not sent to a cluster that nobody has looked at."""
    turn = asyncio.Event()
    waiting = asyncio.Event()

    async def wait(_seconds: float) -> None:
        """Wait until the test says so."""
        waiting.set()
        await turn.wait()

    async with two("another") as (one, other):
        async with client(way(one.port, "old"), qps=1.0, burst=1, clock=lambda: 0.0, sleep=wait) as cluster:
            writing = asyncio.create_task(cluster.create(REF, pod("web", 1)))
            await waiting.wait()
            cluster.take(way(other.port, "new"))
            turn.set()
            await writing
        assert [shown(asked) for asked in one.of("write")] == ["old"]
        assert other.asked == []


async def test_an_answer_of_the_old_way_does_not_vouch_for_the_new_one() -> None:
    """The right identity, come late from the old address, does not open the new one."""
    async with two("another") as (one, other), client(way(one.port, "old")) as cluster:
        slow = Stream()
        one.play("identity", slow)
        asking = asyncio.create_task(cluster.identify())
        await one.until("identity", 2)
        cluster.take(way(other.port, "new"))
        slow.raw(b'{"metadata": {"uid": "%s"}}' % UID.encode()).end()
        assert await asking == UID
        with pytest.raises(WrongCluster):
            await cluster.create(REF, pod("web", 1))
        assert other.of("write") == []


async def test_a_stream_is_not_opened_while_it_is_open_who_answers() -> None:
    """Exec and logs have no second look at the cluster: they wait until it has shown itself."""
    async with two() as (one, other), client(way(one.port, "old")) as cluster:
        cluster.take(way(other.port, "new"))
        with pytest.raises(Unreachable, match=r"identity not verified: .*try again in a moment"):
            cluster.endpoint()
        await cluster.identify()
        assert cluster.endpoint().headers == {"Authorization": "Bearer new"}


async def test_a_stream_to_a_cluster_that_does_not_answer_names_that() -> None:
    """Not that its identity is unknown, which sounds like a wrong credential."""
    async with two() as (one, other), client(way(one.port, "old")) as cluster:
        cluster.take(way(other.port, "new"))
        cluster.identity.suspect("cannot connect")
        with pytest.raises(Unreachable, match=r"not reachable: cannot connect"):
            cluster.endpoint()


async def test_a_watch_runs_on_when_the_way_changes() -> None:
    """What was opened before ends by itself; the next watch goes the new way."""
    async with two() as (one, other), client(way(one.port, "old")) as cluster:
        stream = Stream().send(event("ADDED", pod("a", 5)))
        one.play("watch", stream)
        watch = cluster.watch(POD, Selection(), "1", 60)
        await anext(watch)
        cluster.take(way(other.port, "new"))
        stream.send(event("ADDED", pod("b", 6))).end()
        assert [seen.type async for seen in watch] == ["ADDED"]
        other.play("watch", Stream().end())
        assert [seen async for seen in cluster.watch(POD, Selection(), "6", 60)] == []
        assert [asked.sort for asked in other.asked] == ["identity", "watch"]


async def test_a_credential_that_is_not_accepted_is_silence(apiserver: Apiserver) -> None:
    """Until it is accepted again nobody is there for us, and one question serves all that wait."""
    now = [0.0]
    async with client(way(apiserver.port, "old"), clock=lambda: now[0]) as cluster:
        apiserver.play("write", UNAUTHORIZED)
        with pytest.raises(Unauthorized, match="has no other credential"):
            await cluster.create(REF, pod("web", 1))
        now[0] = 7.0
        assert cluster.health.unreachable_for(now[0]) == 7.0
        assert "Unauthorized" in cluster.credential_error
        apiserver.play("identity", UNAUTHORIZED)
        with pytest.raises(Unauthorized):
            await cluster.create(REF, pod("web", 1))
        assert len(apiserver.of("write")) == 1
        await cluster.create(REF, pod("web", 1))
        assert (cluster.health.unreachable_for(now[0]), cluster.credential_error) == (0.0, "")


async def test_a_token_that_has_expired_is_said_to_be_that(apiserver: Apiserver) -> None:
    """At once and until another one is there; the date is in the token itself."""
    claims = base64.urlsafe_b64encode(b'{"exp": 1767225600}').decode()
    async with client(way(apiserver.port, f"head.{claims}.sign")) as cluster:
        for _ in range(2):
            apiserver.play("write", UNAUTHORIZED)
            with pytest.raises(Unauthorized, match=r"\(its token expired on 2026-01-01 00:00 UTC\)"):
                await cluster.create(REF, pod("web", 1))
            apiserver.play("identity", UNAUTHORIZED)


async def test_after_401_the_credential_is_read_anew_once(apiserver: Apiserver) -> None:
    """An expired token costs one more request, for writes too, since nothing was done; a refused one is an error."""
    cluster = HttpCluster("a", way(apiserver.port, "old", lambda: way(apiserver.port, "new")))
    apiserver.play("write", UNAUTHORIZED)
    await cluster.create(REF, {})
    assert [shown(asked) for asked in apiserver.asked] == ["old", "new"]
    assert cluster.endpoint().headers == {"Authorization": "Bearer new"}
    apiserver.play("list", UNAUTHORIZED)
    with pytest.raises(Unauthorized, match="the new credential was rejected too"):
        await cluster.read(REF)
    await cluster.close()
    assert len(apiserver.of("list")) == 1


async def test_many_refused_calls_renew_once(apiserver: Apiserver) -> None:
    """When a token expires under load all waiting calls share one renewal."""
    renewals = 0

    async def renew() -> Access:
        """Return the next token once all calls are under way with the one before."""
        nonlocal renewals
        renewals += 1
        await apiserver.until("list", 5)
        return way(apiserver.port, "new")

    cluster = HttpCluster("a", replace(way(apiserver.port, "old"), renew=renew))
    apiserver.play("list", *[UNAUTHORIZED] * 5)
    await asyncio.gather(*(cluster.read(REF) for _ in range(5)))
    await cluster.close()
    assert [shown(asked) for asked in apiserver.asked] == ["old"] * 5 + ["new"] * 5
    assert renewals == 1


async def test_the_source_of_a_credential_is_asked_less_and_less_often(apiserver: Apiserver) -> None:
    """A plugin or file is not read with each of a thousand refusals; something accepted begins anew."""
    now, reads = [100.0], [0.0]

    def again() -> Access:
        """Return the same credential, and note when."""
        reads.append(now[0])
        return way(apiserver.port, "old", again)

    async with client(way(apiserver.port, "old", again), clock=lambda: now[0]) as cluster:
        apiserver.play("identity", *[UNAUTHORIZED] * 400)
        for _ in range(300):
            with pytest.raises(Unauthorized):
                await cluster.identify()
            now[0] += 1.0
        assert reads[1:] == [100.0, 110.0, 130.0, 170.0, 250.0, 330.0]


async def test_files_that_cannot_be_used_leave_the_way_as_it_is(apiserver: Apiserver) -> None:
    """A half-written kubeconfig is told of and changes nothing."""

    def fail() -> Access:
        """Find nothing usable."""
        raise AccessError("f:3:1: not valid YAML")

    async with client(way(apiserver.port, "old", fail)) as cluster:
        assert await cluster.refresh() == "f:3:1: not valid YAML"
        assert (cluster.credential_error, cluster.reread.stale) == ("f:3:1: not valid YAML",) * 2
        await cluster.create(REF, pod("web", 1))
        assert [asked.sort for asked in apiserver.asked] == ["identity", "write"]
        assert cluster.health.unreachable_for(1e9) == 0.0
        apiserver.play("write", UNAUTHORIZED)
        with pytest.raises(Unauthorized, match=r"words about Unauthorized \(f:3:1: not valid YAML"):
            await cluster.create(REF, {})


async def test_a_refresh_without_news_costs_nothing(apiserver: Apiserver) -> None:
    """Files that were only touched lead to no question and no new connection."""
    async with client(way(apiserver.port, "old")) as cluster:
        assert await cluster.refresh() == "the test has no other credential"
        await cluster.create(REF, pod("web", 1))
        assert [asked.sort for asked in apiserver.asked] == ["identity", "write"]
        assert apiserver.connections == 2  # one of them is for the question who answers


async def test_a_credential_that_ends_is_replaced_before(apiserver: Apiserver) -> None:
    """The next call reads it anew, and has the cluster show itself first."""
    now = [0.0]
    fresh = way(apiserver.port, "new")
    ending = replace(way(apiserver.port, "old", lambda: fresh), good_until=50.0)
    async with client(ending, clock=lambda: now[0]) as cluster:
        await cluster.create(REF, pod("web", 1))
        now[0] = 50.0
        await cluster.create(REF, pod("web", 1))
        asked = [(one.sort, shown(one)) for one in apiserver.asked[1:]]
        assert asked == [("write", "old"), ("identity", "new"), ("write", "new")]


async def test_a_renewal_goes_on_when_nobody_waits_for_it_any_more(apiserver: Apiserver) -> None:
    """A probe gives up after ten seconds, and an exec plugin may take three times as long."""
    begun, ready = asyncio.Event(), asyncio.Event()

    async def slow() -> Access:
        """Return another credential after a while."""
        begun.set()
        await ready.wait()
        return access_to(apiserver.port, {"Authorization": "Bearer new"})

    cluster = HttpCluster("a", replace(access_to(apiserver.port, renew=slow), good_until=0.0))
    probe = asyncio.create_task(cluster.identify())
    await begun.wait()
    probe.cancel()
    await asyncio.wait([probe])
    ready.set()
    await cluster.identify()
    assert apiserver.asked[-1].headers["authorization"] == "Bearer new"
    await cluster.close()


async def test_a_connection_that_is_closed_ends_renewals_and_fails_their_callers(apiserver: Apiserver) -> None:
    """They get an error like for any credential that is not renewed, and are not cancelled themselves."""
    begun = asyncio.Event()

    async def endless() -> Access:
        """Return no credential."""
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    cluster = HttpCluster("a", replace(access_to(apiserver.port, renew=endless), good_until=0.0))
    probe = asyncio.create_task(cluster.identify())
    await begun.wait()
    await cluster.close()
    with pytest.raises(ClusterError):
        await probe


async def test_an_event_of_an_old_watch_does_not_end_the_silence(apiserver: Apiserver) -> None:
    """An apiserver lets watches run on for minutes after their token has ended."""
    now = [0.0]
    async with client(way(apiserver.port, "old"), clock=lambda: now[0]) as cluster:
        stream = Stream().send(event("ADDED", pod("a", 5)))
        apiserver.play("watch", stream)
        watch = cluster.watch(POD, Selection(), "1", 60)
        await anext(watch)
        apiserver.play("identity", UNAUTHORIZED)
        with pytest.raises(Unauthorized):
            await cluster.identify()
        now[0] = 9.0
        stream.send(event("ADDED", pod("b", 6)), event("ADDED", pod("c", 7)))
        await anext(watch)
        await anext(watch)
        assert cluster.health.last_contact == 9.0
        assert cluster.health.unreachable_for(now[0]) == 9.0
        await watch.aclose()  # type: ignore[attr-defined]


async def test_an_event_from_the_former_server_does_not_end_the_silence(apiserver: Apiserver) -> None:
    """The kubeconfig names another server, at which nothing listens, and the watch on the former one runs on."""
    now = [0.0]
    async with client(way(apiserver.port, "old"), clock=lambda: now[0]) as cluster:
        stream = Stream().send(event("ADDED", pod("a", 5)))
        apiserver.play("watch", stream)
        watch = cluster.watch(POD, Selection(), "1", 60)
        await anext(watch)
        assert cluster.take(way(1, "old")) == ""
        with pytest.raises(Unreachable):
            await cluster.read(REF)
        now[0] = 50.0
        stream.send(event("ADDED", pod("b", 6)), event("ADDED", pod("c", 7)))
        await anext(watch)
        await anext(watch)
        assert cluster.health.unreachable_for(now[0]) == 50.0
        await watch.aclose()  # type: ignore[attr-defined]


async def test_an_anchored_way_takes_other_credentials_for_its_server(apiserver: Apiserver) -> None:
    """The upper cluster's kubeconfig may be rotated; only its server may not change."""
    async with client(way(apiserver.port, "old"), anchored=True) as cluster:
        assert cluster.take(way(apiserver.port, "new")) == ""
        await cluster.create(REF, pod("web", 1))
        refused = cluster.take(way(1, "new"))
        assert "names another server now (http://127.0.0.1:1)" in refused
        assert "restart the engine" in refused
        await cluster.create(REF, pod("web", 1))
        assert [shown(asked) for asked in apiserver.of("write")] == ["new", "new"]
        assert cluster.take(way(apiserver.port, "newer")) == ""
        assert cluster.credential_error == ""


async def test_a_cluster_that_is_known_from_before_has_to_be_that_one() -> None:
    """With an identity of an earlier run the first request of all asks for it, and another cluster gets nothing."""
    async with two("another") as (one, other):
        cluster = HttpCluster("a", way(one.port, "t"), pin=UID)
        with pytest.raises(Unreachable, match="try again in a moment"):
            cluster.endpoint()
        await cluster.create(REF, pod("web", 1))
        assert [asked.sort for asked in one.asked] == ["identity", "write"]
        await cluster.close()
        cluster = HttpCluster("a", way(other.port, "t"), pin=UID)
        with pytest.raises(WrongCluster):
            await cluster.create(REF, pod("web", 1))
        assert cluster.health.wrong
        cluster.identity.accept_any()
        await cluster.create(REF, pod("web", 1))
        assert (cluster.identity.pin, cluster.health.wrong) == ("another", False)
        await cluster.close()


async def test_a_401_without_a_body_is_told_too(apiserver: Apiserver) -> None:
    """Proxies answer without a Status."""
    async with client(way(apiserver.port, "old")) as cluster:
        apiserver.play("list", Answer(401, b""))
        with pytest.raises(Unauthorized):
            await cluster.read(REF)
