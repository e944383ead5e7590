"""Tests of a fault proxy in front of a real apiserver: it is transparent until a fault is set."""

import asyncio
from collections.abc import Callable

import pytest
from proxykit import BROKEN, fronted

from bench.kit import audit
from bench.kit.faultproxy.directors import writes_of
from bench.kit.faultproxy.event_faults import DropEvents, DuplicateEvents, ReorderEvents, events_of
from bench.kit.faultproxy.faults import Delayed, Dropped, Fault, Hung, Lost, Refused, Torn
from bench.kit.sites import Refused as SiteRefused
from tensile.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.real
LIMIT = 20.0
CREATES = writes_of("configmaps", "create")


async def test_responses_and_refusals_of_the_apiserver_are_passed_on(sandbox: Sandbox) -> None:
    """They are those for the calling user, and each write is in the journal with its status."""
    async with fronted(sandbox) as front:
        start = audit.position(front.past.audit_log)
        made = await front.make()
        assert await front.past.call("GET", f"{front.maps}/{front.name()}") == made
        with pytest.raises(SiteRefused, match="already exists"):
            await front.make()
        version = await front.site.version()
        assert version == await front.past.version()
        assert [(one.status, one.is_answered) for one in front.proxy.journal.writes] == [(201, True), (409, True)]
        await until(lambda: len(creates_of(audit.read(front.past.audit_log, start), front.name())) == 2)
        records = creates_of(audit.read(front.past.audit_log, start), front.name())
        assert [one["user"]["username"] for one in records] == [one.request.user for one in front.proxy.journal.writes]


def creates_of(records: list[audit.Record], name: str) -> list[audit.Record]:
    """Return the records of an object's creation."""
    return [one for one in records if one["verb"] == "create" and one.get("objectRef", {}).get("name") == name]


@pytest.mark.parametrize(
    ("fault", "is_done"),
    [(Dropped(), False), (Lost(), True), (Torn(), True)],
    ids=["dropped", "lost", "torn"],
)
async def test_a_write_can_be_lost_before_or_after_the_apiserver(
    sandbox: Sandbox, fault: Fault, *, is_done: bool
) -> None:
    """The client cannot know whether it was done, because the connection breaks in either case."""
    async with fronted(sandbox) as front:
        front.script.on(CREATES, fault)
        with pytest.raises(BROKEN):
            await front.make()
        assert await front.names() == ([front.name()] if is_done else [])
        (write,) = front.proxy.journal.writes
        assert (write.is_done, write.is_answered) == (is_done, False)
        await front.make(1)


async def test_a_write_can_be_refused_with_any_status(sandbox: Sandbox) -> None:
    """It does not reach the apiserver, and the response has a Retry-After header."""
    async with fronted(sandbox) as front:
        for code in (401, 403, 409, 410, 429, 500, 503, 504):
            front.script.on(CREATES, Refused(code, retry_after=3))
            async with front.site.session.post(front.maps, json=front.body()) as answer:
                told = await answer.json()
                assert (answer.status, answer.headers["Retry-After"]) == (code, "3")
                assert (told["kind"], told["code"]) == ("Status", code)
        assert await front.names() == []


async def test_a_write_can_be_delayed_or_hang(sandbox: Sandbox) -> None:
    """The delayed write is done in the end; the hanging one is never answered, and affects no other."""
    async with fronted(sandbox) as front:
        front.script.on(CREATES, Hung(), Delayed(0.05))
        hanging = asyncio.create_task(front.make(0))
        await until(lambda: len(front.script.faulted) == 1)
        await front.make(1)
        assert await front.names() == [front.name(1)]
        assert not hanging.done()
        hanging.cancel()
        assert [type(one.fault) for one in front.proxy.journal.writes] == [Hung, Delayed]


async def test_a_frozen_cluster_answers_once_it_is_unfrozen(sandbox: Sandbox) -> None:
    """It then performs the waiting requests, and sends the events that occurred."""
    async with fronted(sandbox) as front, front.watch() as told:
        front.proxy.freeze()
        waiting = asyncio.create_task(front.make(0))
        await front.make(1, past=True)
        hearing = asyncio.ensure_future(anext(told))
        await until(lambda: front.proxy.requests >= 2)
        assert not waiting.done()
        assert not hearing.done()
        front.proxy.thaw()
        await waiting
        assert await hearing == ("ADDED", front.name(1))


async def test_abandoned_connections_never_answer_again(sandbox: Sandbox) -> None:
    """This holds for an open watch and for a request on a kept connection; a new connection works."""
    async with fronted(sandbox) as front, front.watch() as told:
        await front.make(0)
        assert await anext(told) == ("ADDED", front.name(0))
        front.proxy.leave_half_open()
        stale = asyncio.create_task(front.site.version())
        await until(lambda: front.proxy.requests >= 3)
        hearing = asyncio.ensure_future(anext(told))
        async with front.watch() as fresh:
            await front.make(1)
            assert await anext(fresh) == ("ADDED", front.name(1))
        assert not stale.done()
        assert not hearing.done()
        stale.cancel()
        hearing.cancel()


async def test_a_held_watch_sends_its_events_in_order_when_it_is_released(sandbox: Sandbox) -> None:
    """It sends none before that."""
    async with fronted(sandbox) as front, front.watch() as told:
        (stream,) = front.proxy.streams
        stream.hold()
        await front.make(0)
        await front.make(1)
        hearing = asyncio.ensure_future(anext(told))
        async with front.watch() as other:
            await front.make(2)
            assert await anext(other) == ("ADDED", front.name(2))
        assert not hearing.done()
        stream.release()
        assert [await hearing, await anext(told)] == [("ADDED", front.name(0)), ("ADDED", front.name(1))]


async def test_a_watch_can_report_an_expired_version(sandbox: Sandbox) -> None:
    """As in Kubernetes, it sends an ERROR with code 410 and ends."""
    async with fronted(sandbox) as front, front.watch() as told:
        front.proxy.streams[0].end("expired")
        assert [one async for one in told] == [("ERROR", "410")]
        assert front.proxy.streams == []


async def test_a_watch_can_end_or_be_reset(sandbox: Sandbox) -> None:
    """An end is no error for the client, a reset is one."""
    async with fronted(sandbox) as front:
        async with front.watch() as told:
            front.proxy.streams[0].end("ended")
            assert [one async for one in told] == []
        async with front.watch() as told:
            front.proxy.streams[0].end("reset")
            with pytest.raises(BROKEN):
                await anext(told)


async def test_single_events_can_be_dropped_doubled_or_swapped(sandbox: Sandbox) -> None:
    """The watch receives the changed sequence."""
    async with fronted(sandbox) as front:
        a, b, c = (front.name(number) for number in range(3))
        for number, (tamper, expected) in enumerate(
            [(DropEvents, [b, c]), (DuplicateEvents, [a, a, b]), (ReorderEvents, [b, a, c])]
        ):
            front.proxy.tamper = tamper(events_of("configmaps"))
            async with front.watch() as told:
                for one in range(3):
                    await front.make(one, past=True)
                assert [(await anext(told))[1] for _ in expected] == expected, number
            for name in (a, b, c):
                await front.past.delete(f"{front.maps}/{name}")


async def test_a_cut_resets_open_connections(sandbox: Sandbox) -> None:
    """Later requests reach the cluster as before."""
    async with fronted(sandbox) as front, front.watch() as told:
        front.proxy.reset_connections()
        with pytest.raises(BROKEN):
            await anext(told)
        await front.make()


async def until(holds: Callable[[], object]) -> None:
    """Wait until a condition about the proxy's state holds."""
    async with asyncio.timeout(LIMIT):
        while not holds():  # noqa: ASYNC110 - a proxy's counters have no change event
            await asyncio.sleep(0.005)
