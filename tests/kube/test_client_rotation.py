"""Tests of a client whose access changes: which requests use which access, and what is verified before."""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from scripted import (
    UID,
    HttpResponse,
    RecordedRequest,
    ScriptedApiserver,
    WatchStream,
    access_to,
    event,
    make_pod,
    refusal,
    running,
)

from tensile.errors import ClusterError, Unauthorized, Unreachable
from tensile.kube.client import HttpCluster
from tensile.kube.cluster import Selection
from tensile.kube.credentials import Access, AccessError
from tensile.kube.health import WrongCluster
from tensile.objects import POD, UPPER, Ref

REF = Ref("a", POD, "default", "web")
UNAUTHORIZED = refusal(401, "Unauthorized")


def token_of(request: RecordedRequest) -> str:
    """Return the token of a request."""
    return request.headers.get("authorization", "").removeprefix("Bearer ")


def make_access(port: int, token: str, renewals: "Callable[[], Access] | None" = None) -> Access:
    """Make an access with a token. Renewing it returns the result of `renewals`, or the same access without it."""

    async def renew() -> Access:
        """Return the renewed access."""
        return renewals() if renewals else make_access(port, token)

    return access_to(port, {"Authorization": f"Bearer {token}"}, renew)


@asynccontextmanager
async def two(uid: str = UID) -> AsyncIterator[tuple[ScriptedApiserver, ScriptedApiserver]]:
    """Run two apiservers; the second belongs to the cluster with that UID."""
    async with running(ScriptedApiserver()) as one, running(ScriptedApiserver(uid)) as other:
        yield one, other


@asynccontextmanager
async def client(access: Access, **options: object) -> AsyncIterator[HttpCluster]:
    """Make a client that has identified its cluster."""
    cluster = HttpCluster("a", access, timeout=5.0, **options)  # type: ignore[arg-type]
    try:
        await cluster.identify()
        yield cluster
    finally:
        await cluster.close()


async def test_requests_are_sent_to_a_new_address_after_an_identity_check() -> None:
    """The cluster must prove its identity first; the old address receives no more requests."""
    async with two() as (one, other), client(make_access(one.port, "old")) as cluster:
        assert cluster.take(make_access(other.port, "new")) == ""
        await cluster.create(REF, make_pod("web", 1))
        assert [(request.sort, token_of(request)) for request in other.requests] == [
            ("identity", "new"),
            ("write", "new"),
        ]
        assert [request.sort for request in one.requests] == ["identity"]
        assert cluster.endpoint().port == other.port


async def test_another_access_restarts_the_time_for_which_the_access_is_in_use() -> None:
    """An access that equals the present one does not restart it."""
    now = [100.0]
    async with two() as (one, other), client(make_access(one.port, "old"), clock=lambda: now[0]) as cluster:
        now[0] = 160.0
        cluster.take(make_access(one.port, "old"))
        assert cluster.health.tried_for(now[0]) == 60.0
        cluster.take(make_access(other.port, "old"))
        now[0] = 163.0
        assert cluster.health.tried_for(now[0]) == 3.0


async def test_a_different_cluster_at_a_new_address_receives_no_requests() -> None:
    """If the kubeconfig is replaced by that of another cluster, all calls fail until it is corrected."""
    async with two("another") as (one, other), client(make_access(one.port, "old")) as cluster:
        cluster.take(make_access(other.port, "new"))
        for call in (cluster.create(REF, make_pod("web", 1)), cluster.delete(REF, uid="u"), cluster.read(REF)):
            with pytest.raises(WrongCluster, match="correct the server in the test"):
                await call
        assert {request.sort for request in other.requests} == {"identity"}
        assert "a different cluster responds" in cluster.credential_error
        cluster.take(make_access(one.port, "old"))
        await cluster.create(REF, make_pod("web", 1))
        assert cluster.credential_error == ""
        assert len(one.requests_of("write")) == 1


async def test_the_error_for_a_different_upper_cluster_recommends_a_restart() -> None:
    """There is only one upper cluster, and only a restart of the engine can replace it."""
    async with two("another") as (one, other):
        cluster = HttpCluster(UPPER, make_access(one.port, "t"))
        await cluster.identify()
        cluster.take(make_access(other.port, "t"))
        with pytest.raises(WrongCluster, match=r", or, if intended, restart the engine$"):
            await cluster.identify()
        await cluster.close()


async def test_a_rejected_write_is_not_repeated_if_the_cluster_changed(apiserver: ScriptedApiserver) -> None:
    """After a 401, the cluster must prove its identity before the write is repeated with the renewed credential."""
    fresh = make_access(apiserver.port, "new")
    async with client(make_access(apiserver.port, "old", lambda: fresh)) as cluster:
        apiserver.uid = "another"
        apiserver.queue("write", UNAUTHORIZED)
        with pytest.raises(WrongCluster):
            await cluster.create(REF, make_pod("web", 1))
        assert [(request.sort, token_of(request)) for request in apiserver.requests[1:]] == [
            ("write", "old"),
            ("identity", "new"),
        ]


async def test_a_request_that_waits_for_the_rate_limit_keeps_its_verified_access() -> None:
    """If the access changes during the wait, the request is not sent to the new, unverified cluster."""
    turn = asyncio.Event()
    waiting = asyncio.Event()

    async def wait(_seconds: float) -> None:
        """Wait until the test sets `turn`."""
        waiting.set()
        await turn.wait()

    async with two("another") as (one, other):
        async with client(make_access(one.port, "old"), qps=1.0, burst=1, clock=lambda: 0.0, sleep=wait) as cluster:
            writing = asyncio.create_task(cluster.create(REF, make_pod("web", 1)))
            await waiting.wait()
            cluster.take(make_access(other.port, "new"))
            turn.set()
            await writing
        assert [token_of(request) for request in one.requests_of("write")] == ["old"]
        assert other.requests == []


async def test_an_identity_read_with_the_old_access_does_not_verify_the_new_one() -> None:
    """A late response with the right UID from the old address does not permit writes to the new address."""
    async with two("another") as (one, other), client(make_access(one.port, "old")) as cluster:
        slow = WatchStream()
        one.queue("identity", slow)
        asking = asyncio.create_task(cluster.identify())
        await one.wait_for_request("identity", 2)
        cluster.take(make_access(other.port, "new"))
        slow.raw(b'{"metadata": {"uid": "%s"}}' % UID.encode()).end()
        assert await asking == UID
        with pytest.raises(WrongCluster):
            await cluster.create(REF, make_pod("web", 1))
        assert other.requests_of("write") == []


async def test_endpoint_raises_unreachable_until_the_new_access_is_verified() -> None:
    """Streams for exec and logs cannot check the identity themselves, so they wait for the check."""
    async with two() as (one, other), client(make_access(one.port, "old")) as cluster:
        cluster.take(make_access(other.port, "new"))
        with pytest.raises(Unreachable, match=r"identity not verified: .*try again in a moment"):
            cluster.endpoint()
        await cluster.identify()
        assert cluster.endpoint().headers == {"Authorization": "Bearer new"}


async def test_the_error_for_a_stream_says_that_the_cluster_is_not_reachable() -> None:
    """A message about an unverified identity would suggest a wrong credential."""
    async with two() as (one, other), client(make_access(one.port, "old")) as cluster:
        cluster.take(make_access(other.port, "new"))
        cluster.identity.record_hang("cannot connect")
        with pytest.raises(Unreachable, match=r"not reachable: cannot connect"):
            cluster.endpoint()


async def test_an_open_watch_continues_if_the_access_changes() -> None:
    """The old watch ends by itself, and only the next watch uses the new access."""
    async with two() as (one, other), client(make_access(one.port, "old")) as cluster:
        stream = WatchStream().send(event("ADDED", make_pod("a", 5)))
        one.queue("watch", stream)
        watch = cluster.watch(POD, Selection(), "1", 60)
        await anext(watch)
        cluster.take(make_access(other.port, "new"))
        stream.send(event("ADDED", make_pod("b", 6))).end()
        assert [seen.type async for seen in watch] == ["ADDED"]
        other.queue("watch", WatchStream().end())
        assert [seen async for seen in cluster.watch(POD, Selection(), "6", 60)] == []
        assert [request.sort for request in other.requests] == ["identity", "watch"]


async def test_a_rejected_credential_makes_the_cluster_unreachable_until_it_is_accepted(
    apiserver: ScriptedApiserver,
) -> None:
    """Until then each call sends an identity check and no write."""
    now = [0.0]
    async with client(make_access(apiserver.port, "old"), clock=lambda: now[0]) as cluster:
        apiserver.queue("write", UNAUTHORIZED)
        with pytest.raises(Unauthorized, match="has no other credential"):
            await cluster.create(REF, make_pod("web", 1))
        now[0] = 7.0
        assert cluster.health.unreachable_for(now[0]) == 7.0
        assert "Unauthorized" in cluster.credential_error
        apiserver.queue("identity", UNAUTHORIZED)
        with pytest.raises(Unauthorized):
            await cluster.create(REF, make_pod("web", 1))
        assert len(apiserver.requests_of("write")) == 1
        await cluster.create(REF, make_pod("web", 1))
        assert (cluster.health.unreachable_for(now[0]), cluster.credential_error) == (0.0, "")


async def test_the_error_for_an_expired_token_names_the_expiry(apiserver: ScriptedApiserver) -> None:
    """The expiry is read from the claims of the token and is named in each error until another token exists."""
    claims = base64.urlsafe_b64encode(b'{"exp": 1767225600}').decode()
    async with client(make_access(apiserver.port, f"head.{claims}.sign")) as cluster:
        for _ in range(2):
            apiserver.queue("write", UNAUTHORIZED)
            with pytest.raises(Unauthorized, match=r"\(its token expired on 2026-01-01 00:00 UTC\)"):
                await cluster.create(REF, make_pod("web", 1))
            apiserver.queue("identity", UNAUTHORIZED)


async def test_the_credential_is_renewed_once_after_a_401(apiserver: ScriptedApiserver) -> None:
    """The request is repeated, even a write, because it had no effect.

    If the new credential is rejected too, the call raises Unauthorized.
    """
    cluster = HttpCluster("a", make_access(apiserver.port, "old", lambda: make_access(apiserver.port, "new")))
    apiserver.queue("write", UNAUTHORIZED)
    await cluster.create(REF, {})
    assert [token_of(request) for request in apiserver.requests] == ["old", "new"]
    assert cluster.endpoint().headers == {"Authorization": "Bearer new"}
    apiserver.queue("list", UNAUTHORIZED)
    with pytest.raises(Unauthorized, match="the new credential was rejected too"):
        await cluster.read(REF)
    await cluster.close()
    assert len(apiserver.requests_of("list")) == 1


async def test_concurrent_rejected_calls_share_one_renewal(apiserver: ScriptedApiserver) -> None:
    """If a token expires under load, all waiting calls use the same renewed credential."""
    renewals = 0

    async def renew() -> Access:
        """Return the next token after all calls have been sent with the old one."""
        nonlocal renewals
        renewals += 1
        await apiserver.wait_for_request("list", 5)
        return make_access(apiserver.port, "new")

    cluster = HttpCluster("a", replace(make_access(apiserver.port, "old"), renew=renew))
    apiserver.queue("list", *[UNAUTHORIZED] * 5)
    await asyncio.gather(*(cluster.read(REF) for _ in range(5)))
    await cluster.close()
    assert [token_of(request) for request in apiserver.requests] == ["old"] * 5 + ["new"] * 5
    assert renewals == 1


async def test_renewals_back_off_while_the_credential_is_rejected(apiserver: ScriptedApiserver) -> None:
    """A kubeconfig or an exec plugin is not read for each of many 401 responses."""
    now, reads = [100.0], [0.0]

    def again() -> Access:
        """Return the same credential and record the time."""
        reads.append(now[0])
        return make_access(apiserver.port, "old", again)

    async with client(make_access(apiserver.port, "old", again), clock=lambda: now[0]) as cluster:
        apiserver.queue("identity", *[UNAUTHORIZED] * 400)
        for _ in range(300):
            with pytest.raises(Unauthorized):
                await cluster.identify()
            now[0] += 1.0
        assert reads[1:] == [100.0, 110.0, 130.0, 170.0, 250.0, 330.0]


async def test_an_unusable_kubeconfig_is_reported_and_the_access_is_kept(apiserver: ScriptedApiserver) -> None:
    """A partly written kubeconfig does not end the connection; its error is added to a later 401."""

    def fail() -> Access:
        """Raise the error of an invalid kubeconfig."""
        raise AccessError("f:3:1: not valid YAML")

    async with client(make_access(apiserver.port, "old", fail)) as cluster:
        assert await cluster.refresh() == "f:3:1: not valid YAML"
        assert (cluster.credential_error, cluster.reread.stale) == ("f:3:1: not valid YAML",) * 2
        await cluster.create(REF, make_pod("web", 1))
        assert [request.sort for request in apiserver.requests] == ["identity", "write"]
        assert cluster.health.unreachable_for(1e9) == 0.0
        apiserver.queue("write", UNAUTHORIZED)
        with pytest.raises(Unauthorized, match=r"words about Unauthorized \(f:3:1: not valid YAML"):
            await cluster.create(REF, {})


async def test_a_refresh_without_changes_sends_no_request_and_keeps_connections(apiserver: ScriptedApiserver) -> None:
    """Files whose content did not change need no identity check and no new connection."""
    async with client(make_access(apiserver.port, "old")) as cluster:
        assert await cluster.refresh() == "the test has no other credential"
        await cluster.create(REF, make_pod("web", 1))
        assert [request.sort for request in apiserver.requests] == ["identity", "write"]
        assert apiserver.connections == 2  # one of them is for the identity check


async def test_a_credential_is_renewed_when_it_expires(apiserver: ScriptedApiserver) -> None:
    """The next call renews it without a 401 and verifies the identity of the cluster first."""
    now = [0.0]
    fresh = make_access(apiserver.port, "new")
    ending = replace(make_access(apiserver.port, "old", lambda: fresh), good_until=50.0)
    async with client(ending, clock=lambda: now[0]) as cluster:
        await cluster.create(REF, make_pod("web", 1))
        now[0] = 50.0
        await cluster.create(REF, make_pod("web", 1))
        requests = [(one.sort, token_of(one)) for one in apiserver.requests[1:]]
        assert requests == [("write", "old"), ("identity", "new"), ("write", "new")]


async def test_a_renewal_continues_if_its_caller_is_canceled(apiserver: ScriptedApiserver) -> None:
    """A probe times out after ten seconds, but an exec plugin may need three times as long."""
    begun, ready = asyncio.Event(), asyncio.Event()

    async def slow() -> Access:
        """Return another credential after the test sets `ready`."""
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
    assert apiserver.requests[-1].headers["authorization"] == "Bearer new"
    await cluster.close()


async def test_closing_the_client_cancels_renewals_and_fails_their_callers(apiserver: ScriptedApiserver) -> None:
    """The callers get a ClusterError, as for any failed renewal, and are not canceled themselves."""
    begun = asyncio.Event()

    async def endless() -> Access:
        """Wait indefinitely."""
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    cluster = HttpCluster("a", replace(access_to(apiserver.port, renew=endless), good_until=0.0))
    probe = asyncio.create_task(cluster.identify())
    await begun.wait()
    await cluster.close()
    with pytest.raises(ClusterError):
        await probe


async def test_a_watch_event_does_not_make_a_cluster_reachable_that_rejects_the_credential(
    apiserver: ScriptedApiserver,
) -> None:
    """An apiserver continues open watches for minutes after their token has expired."""
    now = [0.0]
    async with client(make_access(apiserver.port, "old"), clock=lambda: now[0]) as cluster:
        stream = WatchStream().send(event("ADDED", make_pod("a", 5)))
        apiserver.queue("watch", stream)
        watch = cluster.watch(POD, Selection(), "1", 60)
        await anext(watch)
        apiserver.queue("identity", UNAUTHORIZED)
        with pytest.raises(Unauthorized):
            await cluster.identify()
        now[0] = 9.0
        stream.send(event("ADDED", make_pod("b", 6)), event("ADDED", make_pod("c", 7)))
        await anext(watch)
        await anext(watch)
        assert cluster.health.last_contact == 9.0
        assert cluster.health.unreachable_for(now[0]) == 9.0
        await watch.aclose()  # type: ignore[attr-defined]


async def test_a_watch_event_from_the_old_server_does_not_make_the_cluster_reachable(
    apiserver: ScriptedApiserver,
) -> None:
    """The kubeconfig names another server, which refuses connections, while the watch of the old server continues."""
    now = [0.0]
    async with client(make_access(apiserver.port, "old"), clock=lambda: now[0]) as cluster:
        stream = WatchStream().send(event("ADDED", make_pod("a", 5)))
        apiserver.queue("watch", stream)
        watch = cluster.watch(POD, Selection(), "1", 60)
        await anext(watch)
        assert cluster.take(make_access(1, "old")) == ""
        with pytest.raises(Unreachable):
            await cluster.read(REF)
        now[0] = 50.0
        stream.send(event("ADDED", make_pod("b", 6)), event("ADDED", make_pod("c", 7)))
        await anext(watch)
        await anext(watch)
        assert cluster.health.unreachable_for(now[0]) == 50.0
        await watch.aclose()  # type: ignore[attr-defined]


async def test_an_anchored_client_accepts_other_credentials_but_no_other_server(apiserver: ScriptedApiserver) -> None:
    """The kubeconfig of the upper cluster may be rotated, but its server must not change without a restart."""
    async with client(make_access(apiserver.port, "old"), anchored=True) as cluster:
        assert cluster.take(make_access(apiserver.port, "new")) == ""
        await cluster.create(REF, make_pod("web", 1))
        refused = cluster.take(make_access(1, "new"))
        assert "names another server now (http://127.0.0.1:1)" in refused
        assert "restart the engine" in refused
        await cluster.create(REF, make_pod("web", 1))
        assert [token_of(request) for request in apiserver.requests_of("write")] == ["new", "new"]
        assert cluster.take(make_access(apiserver.port, "newer")) == ""
        assert cluster.credential_error == ""


async def test_a_client_with_a_pinned_uid_verifies_the_cluster_before_the_first_request() -> None:
    """With the UID of an earlier run, a different cluster gets no request but the identity check until `accept_any`."""
    async with two("another") as (one, other):
        cluster = HttpCluster("a", make_access(one.port, "t"), pin=UID)
        with pytest.raises(Unreachable, match="try again in a moment"):
            cluster.endpoint()
        await cluster.create(REF, make_pod("web", 1))
        assert [request.sort for request in one.requests] == ["identity", "write"]
        await cluster.close()
        cluster = HttpCluster("a", make_access(other.port, "t"), pin=UID)
        with pytest.raises(WrongCluster):
            await cluster.create(REF, make_pod("web", 1))
        assert cluster.health.wrong
        cluster.identity.accept_any()
        await cluster.create(REF, make_pod("web", 1))
        assert (cluster.identity.pin, cluster.health.wrong) == ("another", False)
        await cluster.close()


async def test_a_401_without_a_body_raises_unauthorized(apiserver: ScriptedApiserver) -> None:
    """Proxies respond without a Status."""
    async with client(make_access(apiserver.port, "old")) as cluster:
        apiserver.queue("list", HttpResponse(401, b""))
        with pytest.raises(Unauthorized):
            await cluster.read(REF)
