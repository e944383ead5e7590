"""Parts that listen where the topology says: ports that are taken for now, passed on, or had at other addresses."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs
from virtualtime import in_virtual_time
from worldkit import topology

from bench.kit.spareports import spare_ports
from tensile.engine.servers import ReloadableServer
from tensile.errors import TensileError
from tensile.kube import net
from tensile.topology import Topology

HOST, BESIDE, EVERYWHERE, NOT_HERE = "127.0.0.1", "127.0.0.2", "0.0.0.0", "192.0.2.77"


class Listener:
    """A part that listens and does nothing else, where its section of the topology says."""

    def __init__(self, section: str) -> None:
        self.section = section
        self.place: tuple[str, int] | None = None
        self.held: socket.socket | None = None
        self.stolen = False
        """Whether somebody takes the place as soon as it is left."""
        self.flaw = ""
        """What is wrong with a topology, whatever its port."""
        self.asked: list[bool] = []
        """Whether each topology that it was given wants it."""
        self._thief: socket.socket | None = None

    @property
    def port(self) -> int:
        """The port that it listens on, 0 for none."""
        return self.place[1] if self.place else 0

    async def open(self, wanted: Topology) -> None:
        """Listen there."""
        section = getattr(wanted, self.section)
        place, is_wanted = (section.bind, section.port), getattr(section, "enabled", True)
        self.asked.append(is_wanted)
        if not is_wanted:
            await self.close()
            return
        if self.flaw:
            raise TensileError(self.flaw)
        if place == self.place:
            return
        try:
            opened = net.listening(*place)
        except OSError as error:
            raise net.refusal(error, f"{place}: {error.strerror}") from None
        await self.close()
        self.place, self.held = place, opened

    async def close(self) -> None:
        """Listen no more."""
        if self.held is not None and self.place is not None:
            self.held.close()
            self._thief = socket.create_server(self.place) if self.stolen else None
        self.place = self.held = None

    def give_back(self) -> None:
        """Free the port again."""
        self.stolen = False
        if self._thief is not None:
            self._thief.close()


def placed(telemetry: int, webhook: int = 0, bind: str = HOST) -> Topology:
    """Make a topology in which these parts have such ports, 0 for not enabled."""
    hook = f"webhook: {{enabled: true, bind: {HOST}, port: {webhook}}}\n" if webhook else ""
    return topology("name: a", more=f"telemetry: {{bind: {bind}, port: {telemetry}}}\n{hook}")


@asynccontextmanager
async def opened(first: Topology, section: str = "telemetry") -> AsyncIterator[tuple[ReloadableServer, Listener]]:
    """Return a part that is served; at the end it is not any more."""
    listener = Listener(section)
    part = ReloadableServer(section, listener)
    await part.open(first)
    try:
        yield part, listener
    finally:
        await part.close()
    assert listener.port == 0


@in_virtual_time
async def test_a_port_that_is_taken_is_had_once_it_is_free() -> None:
    """It is said once, and what was served before is served on."""
    before, after = spare_ports(2)
    async with opened(placed(before)) as (part, listener):
        with socket.create_server((HOST, after)), capture_logs() as said:
            await part.follow(placed(after))
            await asyncio.sleep(10)
            assert listener.port == before
            (words,) = part.pending
            assert words == f"('{HOST}', {after}): Address already in use"
            assert [one["meanwhile"] for one in said] == ["served as before"]
        await asyncio.sleep(2)
        assert (listener.port, part.pending) == (after, ())


@in_virtual_time
async def test_an_edit_that_is_taken_back_is_forgotten() -> None:
    """Nothing moves when the port comes free."""
    before, after = spare_ports(2)
    async with opened(placed(before)) as (part, listener):
        with socket.create_server((HOST, after)):
            await part.follow(placed(after))
            await part.follow(placed(before))
            assert part.pending == ()
        await asyncio.sleep(10)
        assert listener.port == before


@in_virtual_time
async def test_two_that_change_places_make_way_for_each_other() -> None:
    """Neither port is free while both are held."""
    one, other = spare_ports(2)
    first, second = placed(one, other), placed(other, one)
    async with opened(first) as (telemetry, its), opened(first, "webhook") as (webhook, hooks):
        for part in (telemetry, webhook):
            await part.release_port(second)
        for part in (telemetry, webhook):
            await part.follow(second)
        assert (its.port, hooks.port) == (other, one)
        assert (telemetry.pending, webhook.pending) == ((), ())


@in_virtual_time
async def test_who_made_way_and_finds_its_port_taken_waits() -> None:
    """Its old one is another part's by now."""
    one, other = spare_ports(2)
    async with opened(placed(one, other)) as (telemetry, its):
        with socket.create_server((HOST, other)), capture_logs() as said:
            await telemetry.release_port(placed(other, one))
            await telemetry.follow(placed(other, one))
            assert its.port == 0
            assert [found["meanwhile"] for found in said] == ["not served"]
        await asyncio.sleep(2)
        assert its.port == other


@in_virtual_time
async def test_who_keeps_its_port_makes_no_way() -> None:
    """Nothing that is open there ends."""
    one, other, new = spare_ports(3)
    async with opened(placed(one, other)) as (telemetry, its):
        held = its.held
        await telemetry.release_port(placed(one, new))
        await telemetry.follow(placed(one, new))
        assert its.held is held


@in_virtual_time
async def test_the_same_port_is_had_at_more_addresses() -> None:
    """It cannot be listened on at all of them while it is at one."""
    (port,) = spare_ports(1)
    async with opened(placed(port)) as (part, listener):
        await part.follow(placed(port, bind=EVERYWHERE))
        assert (listener.place, part.pending) == ((EVERYWHERE, port), ())
        await part.follow(placed(port))
        assert (listener.place, part.pending) == ((HOST, port), ())


@in_virtual_time
async def test_what_is_served_seldom_ends_for_a_try() -> None:
    """Where another program has the port at one of the addresses, that is found out once a minute; then it is had."""
    (port,) = spare_ports(1)
    async with opened(placed(port)) as (part, listener):
        with socket.create_server((BESIDE, port)):
            await part.follow(placed(port, bind=EVERYWHERE))
            held = listener.held
            await asyncio.sleep(50)
            assert listener.place == (HOST, port)
            assert listener.held is held
            assert "already in use" in part.pending[0]
        await asyncio.sleep(20)
        assert (listener.place, part.pending) == ((EVERYWHERE, port), ())


@pytest.mark.parametrize("bind", [HOST, EVERYWHERE])
@in_virtual_time
async def test_nothing_ends_for_an_address_that_is_not_here(bind: str) -> None:
    """An edit that can never be had costs no connection."""
    (port,) = spare_ports(1)
    async with opened(placed(port, bind=bind)) as (part, listener):
        held = listener.held
        await part.follow(placed(port, bind=NOT_HERE))
        await asyncio.sleep(200)
        assert listener.held is held
        assert len(part.pending) == 1


@in_virtual_time
async def test_who_cannot_go_back_at_once_goes_back_later() -> None:
    """Its old place was taken in the moment in which it was tried whether the new one is free."""
    (port,) = spare_ports(1)
    async with opened(placed(port)) as (part, listener):
        with socket.create_server((BESIDE, port)), capture_logs() as said:
            listener.stolen = True
            await part.follow(placed(port, bind=EVERYWHERE))
            assert listener.port == 0
            assert [one["meanwhile"] for one in said] == ["not served"]
            listener.give_back()
            await asyncio.sleep(2)
            assert listener.place == (HOST, port)


@in_virtual_time
async def test_what_is_wrong_otherwise_ends_nothing() -> None:
    """Files that cannot be read are no reason to let go of a port."""
    (port,) = spare_ports(1)
    async with opened(placed(port)) as (part, listener):
        held, listener.flaw = listener.held, "tls.crt: no such file"
        await part.follow(placed(port, bind=EVERYWHERE))
        await asyncio.sleep(200)
        assert listener.held is held
        assert part.pending == ("tls.crt: no such file",)


@in_virtual_time
async def test_who_was_off_is_not_told_so_again_while_its_port_is_taken() -> None:
    """There is nothing to go back to."""
    one, other = spare_ports(2)
    async with opened(placed(one), "webhook") as (part, listener):
        with socket.create_server((HOST, other)):
            await part.follow(placed(one, other))
            await asyncio.sleep(10)
        assert listener.asked.count(False) == 1
        await asyncio.sleep(2)
        assert listener.port == other


@in_virtual_time
async def test_another_edit_is_not_kept_waiting_by_the_one_before() -> None:
    """That one was tried once a minute only."""
    port, other = spare_ports(2)
    async with opened(placed(port)) as (part, listener):
        with socket.create_server((BESIDE, port)), socket.create_server((HOST, other)):
            await part.follow(placed(port, bind=EVERYWHERE))
            await asyncio.sleep(5)
            await part.follow(placed(other))
        await asyncio.sleep(3)
        assert (listener.place, part.pending) == ((HOST, other), ())


@in_virtual_time
async def test_an_edit_of_something_else_costs_one_try() -> None:
    """What is served ends for it once, as the edit might be what was waited for, and then a minute later."""
    (port,) = spare_ports(1)
    async with opened(placed(port)) as (part, listener):
        with socket.create_server((BESIDE, port)):
            await part.follow(placed(port, bind=EVERYWHERE))
            await part.follow(placed(port, bind=EVERYWHERE))
            held = listener.held
            await asyncio.sleep(50)
            assert listener.held is held


@in_virtual_time
async def test_a_flaw_that_is_mended_counts_at_once() -> None:
    """Nothing had to end for the tries meanwhile."""
    (port,) = spare_ports(1)
    async with opened(placed(port)) as (part, listener):
        listener.flaw = "tls.crt: no such file"
        await part.follow(placed(port, bind=EVERYWHERE))
        listener.flaw = ""
        await asyncio.sleep(2)
        assert listener.place == (EVERYWHERE, port)


@in_virtual_time
async def test_nothing_is_tried_after_the_end() -> None:
    """Even where the port comes free then."""
    before, after = spare_ports(2)
    with socket.create_server((HOST, after)):
        async with opened(placed(before)) as (part, listener):
            await part.follow(placed(after))
    await asyncio.sleep(10)
    assert listener.port == 0
