"""Which cluster it is: pinned by its kube-system, checked after every lost connection, refused when it is another."""

import asyncio

import pytest
from scripted import UID, Answer, Apiserver, Drop, Hang, Stream, access_to, pod, refusal, running

from tensile.errors import Denied, Unreachable
from tensile.kube.client import HttpCluster
from tensile.kube.cluster import Patch, Selection
from tensile.kube.health import WrongCluster
from tensile.objects import POD, Ref

REF = Ref("a", POD, "default", "web")


async def test_the_first_identity_is_kept(apiserver: Apiserver, cluster: HttpCluster) -> None:
    """The UID of kube-system is what tells clusters apart."""
    assert cluster.identity.pin == ""
    assert await cluster.identify() == UID
    assert cluster.identity.pin == UID
    assert apiserver.asked[-1].path == "/api/v1/namespaces/kube-system"


async def test_without_the_right_to_read_it_that_is_said(apiserver: Apiserver, cluster: HttpCluster) -> None:
    """A missing permission is a denial and pins nothing."""
    apiserver.play("identity", refusal(403, "Forbidden"))
    with pytest.raises(Denied, match="read Namespace kube-system"):
        await cluster.identify()
    assert cluster.identity.pin == ""


async def test_a_cluster_that_denies_its_identity_is_unproven(apiserver: Apiserver, cluster: HttpCluster) -> None:
    """It answers, so it is not silent; but nothing may be done in it until it shows which cluster it is."""
    await cluster.identify()
    cluster.identity.doubt()
    apiserver.play("identity", refusal(403, "Forbidden"))
    with pytest.raises(Denied):
        await cluster.read(REF)
    assert cluster.health.unproven.startswith("read Namespace kube-system: denied")
    with pytest.raises(Denied):
        cluster.endpoint()
    assert not apiserver.of("read")
    await cluster.read(REF)
    assert cluster.health.unproven == ""


async def test_a_server_that_is_no_apiserver_is_silence(apiserver: Apiserver) -> None:
    """Every apiserver knows that namespace: a 404 without a Status is another program's, and no contact."""
    now = [0.0]
    cluster = HttpCluster("a", access_to(apiserver.port), clock=lambda: now[0])
    await cluster.identify()
    cluster.identity.doubt()
    strange = Answer(404, b"404 page not found", {"Content-Type": "text/plain"})
    for now[0] in (10.0, 60.0):
        apiserver.play("identity", strange)
        with pytest.raises(Unreachable, match="check that the server address is that of an apiserver"):
            await cluster.read(REF)
    assert cluster.health.unreachable_for(now[0]) == 50.0
    await cluster.close()


async def test_another_cluster_gets_nothing_at_all(apiserver: Apiserver, cluster: HttpCluster) -> None:
    """Once another cluster answered, no call of any sort reaches it; the right one is served again by itself."""
    await cluster.identify()
    apiserver.uid = "another"
    with pytest.raises(WrongCluster, match="a different cluster responds"):
        await cluster.identify()
    before = len(apiserver.asked)
    calls = (
        cluster.read(REF),
        cluster.list(POD, Selection()),
        cluster.create(REF, pod("web", 1)),
        cluster.patch(REF, Patch("merge-patch", {})),
        cluster.delete(REF, uid="u"),
        anext(cluster.watch(POD, Selection(), "1", 60)),
    )
    for call in calls:
        with pytest.raises(WrongCluster):
            await call
    assert {asked.sort for asked in apiserver.asked[before:]} == {"identity"}
    assert cluster.health.wrong
    assert cluster.health.unreachable_for(1e9) > 0
    apiserver.uid = UID
    await cluster.create(REF, pod("web", 1))
    assert not cluster.health.wrong
    assert cluster.health.unreachable_for(1e9) == 0.0
    assert len(apiserver.of("write")) == 1


async def test_after_a_lost_connection_the_identity_is_checked_first(
    apiserver: Apiserver, cluster: HttpCluster
) -> None:
    """Nothing is written to what came up at an address before it has shown which cluster it is."""
    await cluster.identify()
    apiserver.play("write", Drop())
    with pytest.raises(Unreachable):
        await cluster.create(REF, {})
    apiserver.uid = "another"
    with pytest.raises(WrongCluster):
        await cluster.create(REF, {})
    assert [asked.sort for asked in apiserver.asked] == ["identity", "write", "identity"]


async def test_after_a_broken_watch_the_identity_is_checked_first(apiserver: Apiserver, cluster: HttpCluster) -> None:
    """The next watch, too, asks first who is there."""
    await cluster.identify()
    apiserver.play("watch", Stream().drop(), Stream().end())
    with pytest.raises(Unreachable):
        await anext(cluster.watch(POD, Selection(), "1", 60))
    assert [seen async for seen in cluster.watch(POD, Selection(), "1", 60)] == []
    assert [asked.sort for asked in apiserver.asked] == ["identity", "watch", "identity", "watch"]


async def test_one_check_serves_all_that_wait(apiserver: Apiserver, cluster: HttpCluster) -> None:
    """A hundred calls after an outage ask for the identity once."""
    await cluster.identify()
    apiserver.play("write", Drop())
    with pytest.raises(Unreachable):
        await cluster.create(REF, {})
    await asyncio.gather(*(cluster.read(REF) for _ in range(100)))
    assert len(apiserver.of("identity")) == 2
    assert len(apiserver.of("list")) == 100


async def test_an_error_of_the_server_is_no_lost_connection(apiserver: Apiserver, cluster: HttpCluster) -> None:
    """A 500 comes from the same cluster: to a read it is silence, but needs no check."""
    await cluster.identify()
    apiserver.play("list", *[refusal(500, "InternalError")] * 3)
    with pytest.raises(Unreachable):
        await cluster.read(REF)
    assert cluster.health.error == "words about InternalError"
    await cluster.create(REF, {})
    assert cluster.health.error == ""
    assert len(apiserver.of("identity")) == 1


async def test_an_error_of_the_server_to_a_write_is_no_silence(apiserver: Apiserver, cluster: HttpCluster) -> None:
    """A webhook that fails makes one, while the cluster is as well as it was."""
    await cluster.identify()
    apiserver.play("write", refusal(500, "InternalError"), refusal(503, ""))
    for _ in range(2):
        with pytest.raises(Unreachable):
            await cluster.create(REF, {})
    assert cluster.health.error == ""
    assert cluster.health.unreachable_for(1e9) == 0.0


async def test_refusals_are_contact_and_failures_are_silence(apiserver: Apiserver) -> None:
    """Any answer of the apiserver shows that it is there; no answer begins the silence."""
    now = [0.0]
    cluster = HttpCluster("a", access_to(apiserver.port), clock=lambda: now[0])
    apiserver.play("write", refusal(403, "Forbidden"), Drop())
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


async def test_closing_gives_up_a_check_that_waits() -> None:
    """A client can be closed while an apiserver that hangs is asked who it is."""
    async with running(Apiserver()) as server:
        cluster = HttpCluster("a", access_to(server.port))
        await cluster.identify()
        cluster.identity.suspect("it hangs")
        server.play("identity", Hang())
        waiting = asyncio.create_task(cluster.read(REF))
        await server.until("identity", 2)
        await cluster.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting
