"""Tests of one cluster under two names: which name is refused, and when it is accepted after all."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from fleetkit import fleet_of, names, pods
from scripted import UID, WAIT, ChangeSignal, Hang, ScriptedApiserver, access_to, listing, make_pod, refusal, running

from tensile.kube.cluster import Patch, Selection
from tensile.kube.fleet import Fleet
from tensile.kube.health import SharedCluster, WrongCluster
from tensile.kube.store import Cache
from tensile.objects import POD, UPPER, Ref


@asynccontextmanager
async def served(*servers: ScriptedApiserver) -> AsyncIterator[None]:
    """Run scripted apiservers."""
    async with AsyncExitStack() as stack:
        for server in servers:
            await stack.enter_async_context(running(server))
        yield


async def refused(fleet: Fleet, news: ChangeSignal, name: str) -> str:
    """Wait until a name is refused because its cluster has another name already, and return the error."""
    await news.wait_until(lambda: fleet[name].health.shared)
    assert fleet[name].health.wrong
    return fleet[name].health.error


@asynccontextmanager
async def watched(**options: object) -> AsyncIterator[tuple[Fleet, ChangeSignal]]:
    """Make a fleet that notifies a waiting test after each refusal, when it computes the wait for the next try."""
    news = ChangeSignal()
    async with fleet_of(chance=news.fixed_random, **options) as fleet:
        yield fleet, news


async def test_a_second_name_for_an_open_cluster_is_refused(apiserver: ScriptedApiserver) -> None:
    """Only its identity is read with that name, nothing is written, and the error names both and has advice."""
    first, second = Cache(), Cache()
    apiserver.queue("list", listing(20, make_pod("web", 5)))
    async with watched() as (fleet, news):
        fleet.open("a", access_to(apiserver.port), [pods("a", first)])
        client = fleet.open("b", access_to(apiserver.port), [pods("b", second)])
        message = await refused(fleet, news, "b")
        assert "the same cluster as lower a" in message
        assert "remove the lower from the topology" in message
        await fleet.synced("a")
        assert (names(first), second.synced, len(apiserver.requests_of("list"))) == (["web"], False, 1)
        assert (fleet["b"].identity, fleet["b"].is_identified, fleet["a"].unreachable_seconds) == ("", False, 0.0)
        for call in (
            client.create(Ref("b", POD, "default", "x"), {}),
            client.patch(Ref("b", POD, "default", "web"), Patch("merge-patch", {})),
            client.delete(Ref("b", POD, "default", "web"), uid="u"),
            client.list(POD, Selection()),
        ):
            with pytest.raises(SharedCluster):
                await call
        assert apiserver.requests_of("write") == []
        assert fleet["b"].cluster.credential_error == message


async def test_the_upper_cluster_is_refused_as_a_lower(apiserver: ScriptedApiserver) -> None:
    """Otherwise its pods would be created again in the same cluster, over and over."""
    async with watched() as (fleet, news):
        fleet.open(UPPER, access_to(apiserver.port))
        await fleet[UPPER].identified()
        fleet.open("a", access_to(apiserver.port))
        assert "the upper cluster itself" in await refused(fleet, news, "a")


async def test_the_next_name_gets_the_cluster_if_the_first_try_of_the_first_name_fails() -> None:
    """It keeps the cluster afterwards, and it waits only for one try of the first name."""
    server = ScriptedApiserver()
    async with served(server), watched() as (fleet, news):
        server.queue("identity", refusal(500, "InternalError"))
        fleet.open("a", access_to(server.port))
        fleet.open("b", access_to(server.port), pin=UID)
        fleet.open("c", access_to(server.port))
        await fleet["b"].identified()
        assert "lower b" in await refused(fleet, news, "a")
        assert "lower b" in await refused(fleet, news, "c")


async def test_opening_a_cluster_does_not_wait_for_one_at_another_server() -> None:
    """A server that hangs does not delay a lower that was opened after it."""
    hanging, well = ScriptedApiserver(), ScriptedApiserver("well")
    hanging.queue("identity", *[Hang()] * 100)
    async with served(hanging, well), fleet_of(patience=2 * WAIT) as fleet:
        fleet.open("a", access_to(hanging.port))
        fleet.open("b", access_to(well.port))
        assert await fleet["b"].identified() == "well"


async def test_one_cluster_at_two_addresses_is_recognized_by_its_identity() -> None:
    """The addresses differ, but the UID of kube-system is the same."""
    near, far = ScriptedApiserver(), ScriptedApiserver()
    async with served(near, far), watched() as (fleet, news):
        fleet.open("a", access_to(near.port))
        await fleet["a"].identified()
        fleet.open("b", access_to(far.port))
        assert "lower a" in await refused(fleet, news, "b")
        assert far.requests_of("list") == []


async def test_the_pinned_cluster_of_an_unreachable_lower_is_refused_under_another_name() -> None:
    """The unreachable lower may have pods there, so no other name gets its cluster."""
    away, back = ScriptedApiserver(), ScriptedApiserver()
    away.queue("identity", *[refusal(503, "ServiceUnavailable")] * 10_000)
    async with served(away, back), watched() as (fleet, news):
        fleet.open("a", access_to(away.port), pin=UID)
        fleet.open("b", access_to(back.port))
        assert "lower a" in await refused(fleet, news, "b")


async def test_a_refused_name_is_accepted_if_the_other_name_is_closed(apiserver: ScriptedApiserver) -> None:
    """After the other lower left the topology, the cluster is watched under the remaining name."""
    cache = Cache()
    async with watched() as (fleet, news):
        fleet.open("a", access_to(apiserver.port))
        fleet.open("b", access_to(apiserver.port), [pods("b", cache)])
        await refused(fleet, news, "b")
        await fleet.close("a")
        assert await fleet["b"].identified() == UID
        await fleet.synced("b")
        assert (fleet["b"].health.wrong, cache.synced) == (False, True)


async def test_a_different_cluster_is_reported_as_such_even_if_it_is_open_under_another_name() -> None:
    """The kubeconfig of a pinned lower leads to another lower's cluster, and the error names that lower."""
    one, other = ScriptedApiserver("one"), ScriptedApiserver("other")
    async with served(one, other), watched() as (fleet, news):
        fleet.open("b", access_to(other.port))
        await fleet["b"].identified()
        fleet.open("a", access_to(other.port), pin="one")
        await news.wait_until(lambda: fleet["a"].health.wrong)
        assert not fleet["a"].health.shared
        neighbour = r", the same cluster as lower b \(.*\): use the kubeconfig of another cluster than the test$"
        with pytest.raises(WrongCluster, match=f"a different cluster responds at .*{neighbour}"):
            await fleet["a"].cluster.identify()
        fleet["a"].cluster.identity.accept_any()
        assert "lower b" in await refused(fleet, news, "a")
        fleet["a"].cluster.take(access_to(one.port))
        assert await fleet["a"].identified() == "one"


async def test_the_errors_for_two_lowers_with_swapped_addresses_name_each_other() -> None:
    """Neither cluster has been identified yet, so the pinned identities show which lower each cluster belongs to."""
    one, other = ScriptedApiserver("one"), ScriptedApiserver("other")
    async with served(one, other), watched() as (fleet, news):
        fleet.open("a", access_to(other.port), pin="one")
        fleet.open("b", access_to(one.port), pin="other")
        await news.wait_until(lambda: fleet["a"].health.wrong and fleet["b"].health.wrong)
        assert "the same cluster as lower b (" in fleet["a"].health.error
        assert "the same cluster as lower a (" in fleet["b"].health.error
        assert [fleet[name].health.shared for name in "ab"] == [False, False]


async def test_the_name_for_which_the_cluster_is_pinned_is_preferred_to_an_earlier_name(
    apiserver: ScriptedApiserver,
) -> None:
    """It does not matter which of them gets a response first."""
    async with watched() as (fleet, news):
        fleet.open("a", access_to(apiserver.port))
        fleet.open("b", access_to(apiserver.port), pin=UID)
        assert "the same cluster as lower b" in await refused(fleet, news, "a")
        assert await fleet["b"].identified() == UID
        assert not fleet["a"].is_identified


async def test_the_first_name_for_a_server_is_tried_before_the_next_name() -> None:
    """Otherwise it would be chance which of the two names is refused."""
    server = ScriptedApiserver()
    server.queue("identity", Hang())
    async with served(server), watched(patience=0.2) as (fleet, news):
        fleet.open("a", access_to(server.port))
        fleet.open("b", access_to(server.port))
        await news.wait_until(lambda: fleet["a"].health.error.startswith("no response"))
        assert len(server.requests_of("identity")) == 1
        await fleet["b"].identified()


async def test_an_identity_verified_after_its_cluster_was_closed_raises_no_error(apiserver: ScriptedApiserver) -> None:
    """A call may have requested the identity; it then fails with a connection error and not because of a bug."""
    async with fleet_of() as fleet:
        client = fleet.open("a", access_to(apiserver.port))
        await fleet.close("a")
        client.identity.verify(UID, b"", client.access, is_current=True)
        assert client.identity.pin == UID
