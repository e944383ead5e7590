"""Tests of a cluster's identity: the UID of kube-system is pinned and checked after every lost connection.

A cluster with another UID is refused.
"""

import asyncio

import pytest
from scripted import (
    UID,
    DropConnection,
    Hang,
    HttpResponse,
    ScriptedApiserver,
    WatchStream,
    access_to,
    make_pod,
    refusal,
    running,
)

from tensile.errors import Denied, Unreachable
from tensile.kube.client import HttpCluster
from tensile.kube.cluster import Patch, Selection
from tensile.kube.health import WrongCluster
from tensile.objects import POD, Ref

REF = Ref("a", POD, "default", "web")


async def test_the_first_uid_of_kube_system_is_pinned(apiserver: ScriptedApiserver, cluster: HttpCluster) -> None:
    """The UID of namespace kube-system identifies a cluster."""
    assert cluster.identity.pin == ""
    assert await cluster.identify() == UID
    assert cluster.identity.pin == UID
    assert apiserver.requests[-1].path == "/api/v1/namespaces/kube-system"


async def test_identify_raises_denied_and_pins_nothing_without_the_permission(
    apiserver: ScriptedApiserver, cluster: HttpCluster
) -> None:
    """The error names the missing permission to read namespace kube-system."""
    apiserver.queue("identity", refusal(403, "Forbidden"))
    with pytest.raises(Denied, match="read Namespace kube-system"):
        await cluster.identify()
    assert cluster.identity.pin == ""


async def test_no_request_is_sent_while_the_cluster_denies_reading_its_identity(
    apiserver: ScriptedApiserver, cluster: HttpCluster
) -> None:
    """The cluster responds, so it counts as reachable, but it is unproven until its identity can be read."""
    await cluster.identify()
    cluster.identity.require_proof()
    apiserver.queue("identity", refusal(403, "Forbidden"))
    with pytest.raises(Denied):
        await cluster.read(REF)
    assert cluster.health.unproven.startswith("read Namespace kube-system: denied")
    with pytest.raises(Denied):
        cluster.endpoint()
    assert not apiserver.requests_of("read")
    await cluster.read(REF)
    assert cluster.health.unproven == ""


async def test_a_404_without_a_status_counts_as_no_contact(apiserver: ScriptedApiserver) -> None:
    """Every apiserver has namespace kube-system, so such a 404 comes from another program."""
    now = [0.0]
    cluster = HttpCluster("a", access_to(apiserver.port), clock=lambda: now[0])
    await cluster.identify()
    cluster.identity.require_proof()
    strange = HttpResponse(404, b"404 page not found", {"Content-Type": "text/plain"})
    for now[0] in (10.0, 60.0):
        apiserver.queue("identity", strange)
        with pytest.raises(Unreachable, match="check that the server address is that of an apiserver"):
            await cluster.read(REF)
    assert cluster.health.unreachable_for(now[0]) == 50.0
    await cluster.close()


async def test_no_request_but_the_identity_check_is_sent_to_a_different_cluster(
    apiserver: ScriptedApiserver, cluster: HttpCluster
) -> None:
    """All calls raise WrongCluster until the pinned cluster responds again, which ends the refusal by itself."""
    await cluster.identify()
    apiserver.uid = "another"
    with pytest.raises(WrongCluster, match="a different cluster responds"):
        await cluster.identify()
    before = len(apiserver.requests)
    calls = (
        cluster.read(REF),
        cluster.list(POD, Selection()),
        cluster.create(REF, make_pod("web", 1)),
        cluster.patch(REF, Patch("merge-patch", {})),
        cluster.delete(REF, uid="u"),
        anext(cluster.watch(POD, Selection(), "1", 60)),
    )
    for call in calls:
        with pytest.raises(WrongCluster):
            await call
    assert {request.sort for request in apiserver.requests[before:]} == {"identity"}
    assert cluster.health.wrong
    assert cluster.health.unreachable_for(1e9) > 0
    apiserver.uid = UID
    await cluster.create(REF, make_pod("web", 1))
    assert not cluster.health.wrong
    assert cluster.health.unreachable_for(1e9) == 0.0
    assert len(apiserver.requests_of("write")) == 1


async def test_the_identity_is_checked_before_the_next_write_after_a_lost_connection(
    apiserver: ScriptedApiserver, cluster: HttpCluster
) -> None:
    """No write is sent to the server at the address until it proves which cluster it is."""
    await cluster.identify()
    apiserver.queue("write", DropConnection())
    with pytest.raises(Unreachable):
        await cluster.create(REF, {})
    apiserver.uid = "another"
    with pytest.raises(WrongCluster):
        await cluster.create(REF, {})
    assert [request.sort for request in apiserver.requests] == ["identity", "write", "identity"]


async def test_the_identity_is_checked_before_the_next_watch_after_a_broken_watch(
    apiserver: ScriptedApiserver, cluster: HttpCluster
) -> None:
    """A new watch is only opened after the server has proved which cluster it is."""
    await cluster.identify()
    apiserver.queue("watch", WatchStream().drop(), WatchStream().end())
    with pytest.raises(Unreachable):
        await anext(cluster.watch(POD, Selection(), "1", 60))
    assert [seen async for seen in cluster.watch(POD, Selection(), "1", 60)] == []
    assert [request.sort for request in apiserver.requests] == ["identity", "watch", "identity", "watch"]


async def test_concurrent_calls_share_one_identity_check(apiserver: ScriptedApiserver, cluster: HttpCluster) -> None:
    """After an outage, a hundred reads cause a single request for the identity."""
    await cluster.identify()
    apiserver.queue("write", DropConnection())
    with pytest.raises(Unreachable):
        await cluster.create(REF, {})
    await asyncio.gather(*(cluster.read(REF) for _ in range(100)))
    assert len(apiserver.requests_of("identity")) == 2
    assert len(apiserver.requests_of("list")) == 100


async def test_a_server_error_for_a_read_needs_no_identity_check(
    apiserver: ScriptedApiserver, cluster: HttpCluster
) -> None:
    """A 500 comes from the same cluster. It counts as a failure of the cluster until the next response."""
    await cluster.identify()
    apiserver.queue("list", *[refusal(500, "InternalError")] * 3)
    with pytest.raises(Unreachable):
        await cluster.read(REF)
    assert cluster.health.error == "words about InternalError"
    await cluster.create(REF, {})
    assert cluster.health.error == ""
    assert len(apiserver.requests_of("identity")) == 1


async def test_a_server_error_for_a_write_does_not_make_the_cluster_unreachable(
    apiserver: ScriptedApiserver, cluster: HttpCluster
) -> None:
    """A failing webhook also causes a 500, although the cluster itself is healthy."""
    await cluster.identify()
    apiserver.queue("write", refusal(500, "InternalError"), refusal(503, ""))
    for _ in range(2):
        with pytest.raises(Unreachable):
            await cluster.create(REF, {})
    assert cluster.health.error == ""
    assert cluster.health.unreachable_for(1e9) == 0.0


async def test_a_denied_request_counts_as_contact_and_a_lost_response_does_not(apiserver: ScriptedApiserver) -> None:
    """Any response of the apiserver proves that it runs; the time of silence begins with the first lost response."""
    now = [0.0]
    cluster = HttpCluster("a", access_to(apiserver.port), clock=lambda: now[0])
    apiserver.queue("write", refusal(403, "Forbidden"), DropConnection())
    now[0] = 10.0
    assert cluster.health.unreachable_for(now[0]) == 10.0
    with pytest.raises(Denied):
        await cluster.create(REF, {})
    assert cluster.health.unreachable_for(now[0]) == 0.0
    with pytest.raises(Unreachable):
        await cluster.create(REF, {})
    now[0] = 25.0
    assert cluster.health.unreachable_for(now[0]) == 15.0
    await cluster.read(REF)
    assert (cluster.health.unreachable_for(now[0]), cluster.health.last_contact) == (0.0, 25.0)
    await cluster.close()


async def test_closing_the_client_cancels_a_pending_identity_check() -> None:
    """A client can be closed while an apiserver does not respond to the identity check."""
    async with running(ScriptedApiserver()) as server:
        cluster = HttpCluster("a", access_to(server.port))
        await cluster.identify()
        cluster.identity.record_hang("it hangs")
        server.queue("identity", Hang())
        waiting = asyncio.create_task(cluster.read(REF))
        await server.wait_for_request("identity", 2)
        await cluster.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting
