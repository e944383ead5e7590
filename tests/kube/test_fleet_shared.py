"""One cluster under two names: which of them is refused, and when it may be followed after all."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from fleetkit import fleet_of, names, pods
from scripted import UID, WAIT, Apiserver, Hang, News, access_to, listing, pod, refusal, running

from tensile.kube.cluster import Patch, Selection
from tensile.kube.fleet import Fleet
from tensile.kube.health import SharedCluster, WrongCluster
from tensile.kube.store import Cache
from tensile.objects import POD, UPPER, Ref


@asynccontextmanager
async def served(*servers: Apiserver) -> AsyncIterator[None]:
    """Run scripted apiservers."""
    async with AsyncExitStack() as stack:
        for server in servers:
            await stack.enter_async_context(running(server))
        yield


async def refused(fleet: Fleet, news: News, name: str) -> str:
    """Wait until a cluster is refused because of another, and give the words."""
    await news.until(lambda: fleet[name].health.shared)
    assert fleet[name].health.wrong
    return fleet[name].health.error


@asynccontextmanager
async def watched(**options: object) -> AsyncIterator[tuple[Fleet, News]]:
    """Make a fleet that tells when a cluster was refused: it rolls a die for how long to wait then."""
    news = News()
    async with fleet_of(chance=news.roll, **options) as fleet:
        yield fleet, news


async def test_the_second_name_of_a_cluster_is_refused(apiserver: Apiserver) -> None:
    """Nothing but its identity is read under it, nothing is written, and the words name both and say what to do."""
    first, second = Cache(), Cache()
    apiserver.play("list", listing(20, pod("web", 5)))
    async with watched() as (fleet, news):
        fleet.open("a", access_to(apiserver.port), [pods("a", first)])
        client = fleet.open("b", access_to(apiserver.port), [pods("b", second)])
        words = await refused(fleet, news, "b")
        assert "the same cluster as lower a" in words
        assert "remove the lower from the topology" in words
        await fleet.synced("a")
        assert (names(first), second.synced, len(apiserver.of("list"))) == (["web"], False, 1)
        assert (fleet["b"].identity, fleet["b"].is_identified, fleet["a"].silent) == ("", False, 0.0)
        for call in (
            client.create(Ref("b", POD, "default", "x"), {}),
            client.patch(Ref("b", POD, "default", "web"), Patch("merge-patch", {})),
            client.delete(Ref("b", POD, "default", "web"), uid="u"),
            client.list(POD, Selection()),
        ):
            with pytest.raises(SharedCluster):
                await call
        assert apiserver.of("write") == []
        assert fleet["b"].cluster.credential_error == words


async def test_the_upper_cluster_is_not_its_own_lower(apiserver: Apiserver) -> None:
    """Its pods would be made anew where they are, and again."""
    async with watched() as (fleet, news):
        fleet.open(UPPER, access_to(apiserver.port))
        await fleet[UPPER].identified()
        fleet.open("a", access_to(apiserver.port))
        assert "the upper cluster itself" in await refused(fleet, news, "a")


async def test_the_next_name_is_taken_where_the_first_does_not_get_through() -> None:
    """Then it is that one's, whoever comes later; and it is not waited for longer than for one answer."""
    server = Apiserver()
    async with served(server), watched() as (fleet, news):
        server.play("identity", refusal(500, "InternalError"))
        fleet.open("a", access_to(server.port))
        fleet.open("b", access_to(server.port), pin=UID)
        fleet.open("c", access_to(server.port))
        await fleet["b"].identified()
        assert "lower b" in await refused(fleet, news, "a")
        assert "lower b" in await refused(fleet, news, "c")


async def test_another_server_is_not_waited_for() -> None:
    """One that hangs costs a lower behind another one nothing."""
    hanging, well = Apiserver(), Apiserver("well")
    hanging.play("identity", *[Hang()] * 100)
    async with served(hanging, well), fleet_of(patience=2 * WAIT) as fleet:
        fleet.open("a", access_to(hanging.port))
        fleet.open("b", access_to(well.port))
        assert await fleet["b"].identified() == "well"


async def test_two_ways_to_one_cluster_are_found_out_by_its_identity() -> None:
    """Different addresses, the same kube-system."""
    near, far = Apiserver(), Apiserver()
    async with served(near, far), watched() as (fleet, news):
        fleet.open("a", access_to(near.port))
        await fleet["a"].identified()
        fleet.open("b", access_to(far.port))
        assert "lower a" in await refused(fleet, news, "b")
        assert far.of("list") == []


async def test_what_a_name_stood_for_before_is_its_own_until_it_answers() -> None:
    """A lower that is away may have pods there: another name does not take its cluster from it."""
    away, back = Apiserver(), Apiserver()
    away.play("identity", *[refusal(503, "ServiceUnavailable")] * 10_000)
    async with served(away, back), watched() as (fleet, news):
        fleet.open("a", access_to(away.port), pin=UID)
        fleet.open("b", access_to(back.port))
        assert "lower a" in await refused(fleet, news, "b")


async def test_a_name_is_free_when_the_other_is_given_up(apiserver: Apiserver) -> None:
    """Its lower left the topology: the cluster is followed under the name that is left."""
    cache = Cache()
    async with watched() as (fleet, news):
        fleet.open("a", access_to(apiserver.port))
        fleet.open("b", access_to(apiserver.port), [pods("b", cache)])
        await refused(fleet, news, "b")
        await fleet.close("a")
        assert await fleet["b"].identified() == UID
        await fleet.synced("b")
        assert (fleet["b"].health.wrong, cache.synced) == (False, True)


async def test_another_cluster_than_before_is_told_before_one_that_has_a_name() -> None:
    """A lower with pods whose address leads to its neighbour has the wrong kubeconfig; the neighbour is named."""
    one, other = Apiserver("one"), Apiserver("other")
    async with served(one, other), watched() as (fleet, news):
        fleet.open("b", access_to(other.port))
        await fleet["b"].identified()
        fleet.open("a", access_to(other.port), pin="one")
        await news.until(lambda: fleet["a"].health.wrong)
        assert not fleet["a"].health.shared
        neighbour = r", the same cluster as lower b \(.*\): use the kubeconfig of another cluster than the test$"
        with pytest.raises(WrongCluster, match=f"a different cluster responds at .*{neighbour}"):
            await fleet["a"].cluster.identify()
        fleet["a"].cluster.identity.accept_any()
        assert "lower b" in await refused(fleet, news, "a")
        fleet["a"].cluster.take(access_to(one.port))
        assert await fleet["a"].identified() == "one"


async def test_two_names_whose_addresses_were_swapped_are_told_of_each_other() -> None:
    """Neither has answered as itself, so the pinned identities tell whose cluster it is."""
    one, other = Apiserver("one"), Apiserver("other")
    async with served(one, other), watched() as (fleet, news):
        fleet.open("a", access_to(other.port), pin="one")
        fleet.open("b", access_to(one.port), pin="other")
        await news.until(lambda: fleet["a"].health.wrong and fleet["b"].health.wrong)
        assert "the same cluster as lower b (" in fleet["a"].health.error
        assert "the same cluster as lower a (" in fleet["b"].health.error
        assert [fleet[name].health.shared for name in "ab"] == [False, False]


async def test_the_name_that_is_to_have_a_cluster_is_not_refused_for_one_opened_before(apiserver: Apiserver) -> None:
    """Whichever of them answers first: one whose Node notes another cluster does not take its place."""
    async with watched() as (fleet, news):
        fleet.open("a", access_to(apiserver.port))
        fleet.open("b", access_to(apiserver.port), pin=UID)
        assert "the same cluster as lower b" in await refused(fleet, news, "a")
        assert await fleet["b"].identified() == UID
        assert not fleet["a"].is_identified


async def test_the_first_name_for_a_server_is_tried_before_the_next() -> None:
    """Or which of the two is refused would be chance."""
    server = Apiserver()
    server.play("identity", Hang())
    async with served(server), watched(patience=0.2) as (fleet, news):
        fleet.open("a", access_to(server.port))
        fleet.open("b", access_to(server.port))
        await news.until(lambda: fleet["a"].health.error.startswith("no response"))
        assert len(server.of("identity")) == 1
        await fleet["b"].identified()


async def test_a_proof_that_comes_while_its_cluster_is_closed_conflicts_with_nothing(apiserver: Apiserver) -> None:
    """A call may have asked for it: it ends with an error of the connection, and not with a defect."""
    async with fleet_of() as fleet:
        client = fleet.open("a", access_to(apiserver.port))
        await fleet.close("a")
        client.identity.verify(UID, b"", client.access, is_current=True)
        assert client.identity.pin == UID
