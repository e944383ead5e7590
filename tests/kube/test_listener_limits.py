"""Tests of the limit of pending connections of a listener: which are accepted, and which are dropped."""

import asyncio

import pytest
from virtualtime import clock, in_virtual_time

from tensile.kube.listener_limits import ClientConnection, ClientTimeouts, ConnectionLimiter, IdleTime, origin_of

PATIENCE = ClientTimeouts()
ROOM = 4
STRANGER, OTHER, FRIEND = "10.0.0.1", "10.0.0.2", "10.0.0.9"


class LimitedListener:
    """A listener with limited room, and its pending connections in the order of their arrival."""

    def __init__(self, *hosts: str) -> None:
        self.door = ConnectionLimiter(ROOM, PATIENCE)
        self.dropped: list[ClientConnection] = []
        self._hosts = hosts

    async def full(self) -> list[ClientConnection]:
        """Accept a connection from each of the given hosts and return the connections."""
        return [await self.come(host) for host in self._hosts]

    async def come(self, host: str) -> ClientConnection:
        """Accept a connection at once."""
        guest = await self.door.enter(host)
        assert guest is not None
        guest.drop = lambda: self.dropped.append(guest)
        return guest

    async def befriend(self, host: str) -> None:
        """Accept and then admit a connection, so that its address counts as admitted."""
        (await self.come(host)).be_admitted()


@in_virtual_time
async def test_an_overdue_connection_is_dropped_for_a_new_one_at_the_limit() -> None:
    """It is the oldest one of the address with the most connections; below the limit no connection is dropped."""
    listener = LimitedListener(OTHER, STRANGER, STRANGER, STRANGER)
    guests = await listener.full()
    assert listener.dropped == []
    await asyncio.sleep(PATIENCE.whole)
    await listener.come(STRANGER)
    assert listener.dropped == [guests[1]]
    assert len(listener.door) == ROOM


@in_virtual_time
async def test_a_flood_from_one_address_displaces_only_its_own_connections() -> None:
    """A client from another address gets the oldest one's place at once; one more of the flood is refused."""
    listener = LimitedListener(OTHER, STRANGER, STRANGER, STRANGER)
    guests = await listener.full()
    assert await listener.door.enter(STRANGER) is None
    assert listener.dropped == []
    await listener.come("10.0.0.3")
    assert listener.dropped == [guests[1]]
    assert clock() == 0.0


@in_virtual_time
async def test_a_client_from_an_admitted_address_displaces_others_and_not_vice_versa() -> None:
    """The number of its own pending connections does not matter."""
    listener = LimitedListener(STRANGER, FRIEND, FRIEND, FRIEND)
    await listener.befriend(FRIEND)
    guests = await listener.full()
    assert await listener.door.enter(STRANGER) is None
    await listener.come(FRIEND)
    assert listener.dropped == [guests[0]]
    assert await listener.door.enter(OTHER) is None


@in_virtual_time
async def test_a_client_from_an_admitted_address_waits_for_its_earlier_connections() -> None:
    """None of them is dropped while it still sends data."""
    listener = LimitedListener(*[FRIEND] * ROOM)
    await listener.befriend(FRIEND)
    guests = await listener.full()
    waiting = asyncio.create_task(listener.door.enter(FRIEND))
    await asyncio.sleep(PATIENCE.next)
    assert not waiting.done()
    guests[2].leave()
    assert await waiting is not None
    assert listener.dropped == []


@pytest.mark.parametrize(("has_sent", "seconds"), [(False, PATIENCE.first), (True, PATIENCE.next)])
@in_virtual_time
async def test_a_silent_connection_is_soon_dropped_for_an_admitted_address(has_sent: bool, seconds: float) -> None:  # noqa: FBT001
    """The wait is shorter for a connection that never sent a byte, because real clients send one at once."""
    listener = LimitedListener(*[FRIEND] * ROOM)
    await listener.befriend(FRIEND)
    guests = await listener.full()
    for guest in guests:
        guest.silence = lambda: IdleTime(clock(), has_sent=has_sent)
    await listener.come(FRIEND)
    assert listener.dropped == [guests[0]]
    assert seconds <= clock() <= seconds + 0.05


@in_virtual_time
async def test_a_connection_that_sends_bytes_slowly_is_overdue_after_the_total_time() -> None:
    """It is never silent for long, but its time in total is limited."""
    listener = LimitedListener(*[FRIEND] * ROOM)
    await listener.befriend(FRIEND)
    await listener.full()
    await listener.come(FRIEND)
    assert PATIENCE.whole <= clock() <= PATIENCE.whole + 0.05


@in_virtual_time
async def test_an_authenticated_connection_is_dropped_last() -> None:
    """Overdue connections without authentication are dropped first; the handshake restarts the time of a connection."""
    listener = LimitedListener(*[STRANGER] * 3, OTHER)
    guests = await listener.full()
    await asyncio.sleep(PATIENCE.whole / 2)
    guests[0].advance(known=True)
    guests[1].advance(known=False)
    await asyncio.sleep(PATIENCE.whole / 2)
    await listener.come(STRANGER)
    assert listener.dropped == [guests[2]]
    await asyncio.sleep(PATIENCE.whole / 2)
    await listener.come(STRANGER)
    assert listener.dropped[1:] == [guests[1]]
    await asyncio.sleep(PATIENCE.whole)
    for _ in range(2):
        await listener.come(STRANGER)
    assert guests[0] not in listener.dropped


@in_virtual_time
async def test_a_persistent_connection_is_not_displaced_by_a_flood() -> None:
    """It is silent between requests and so overdue, but its address has fewer connections than the flood."""
    listener = LimitedListener(OTHER)
    await listener.full()
    await asyncio.sleep(PATIENCE.whole)
    crowd = [await listener.come(STRANGER) for _ in range(ROOM - 1)]
    assert await listener.door.enter(STRANGER) is None
    await listener.come(OTHER)
    assert listener.dropped == crowd[:1]


@in_virtual_time
async def test_leaving_a_second_time_has_no_effect() -> None:
    """The same applies after the connection was dropped, and the callback that closes it is removed."""
    listener = LimitedListener(*[STRANGER] * ROOM)
    guests = await listener.full()
    guests[0].leave()
    guests[0].leave()
    assert len(listener.door) == ROOM - 1
    await asyncio.sleep(PATIENCE.whole)
    listener.door.displace()
    assert listener.dropped == [guests[1]]
    guests[1].leave()
    guests[1].drop()
    assert listener.dropped == [guests[1]]
    assert len(listener.door) == ROOM - 2


@in_virtual_time
async def test_the_number_of_admitted_addresses_is_limited() -> None:
    """The addresses that were admitted last are kept."""
    listener = LimitedListener()
    for number in range(300):
        await listener.befriend(f"10.1.{number // 256}.{number % 256}")
    assert len(listener.door._admitted_origins) == 256
    assert origin_of("10.1.0.0") not in listener.door._admitted_origins


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("2001:db8:1:2::1", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("::1", "::"),
        ("somewhere", "somewhere"),
        ("", ""),
    ],
)
def test_the_origin_is_an_ipv4_address_or_an_ipv6_network(host: str, origin: str) -> None:
    """A machine has many IPv6 addresses, and an IPv4 address can be written in two ways."""
    assert origin_of(host) == origin
