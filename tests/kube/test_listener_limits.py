"""Who gets a place at a port that is full, and who makes room."""

import asyncio

import pytest
from virtualtime import clock, in_virtual_time

from tensile.kube.listener_limits import ClientConnection, ClientTimeouts, ConnectionLimiter, IdleTime, origin_of

PATIENCE = ClientTimeouts()
ROOM = 4
STRANGER, OTHER, FRIEND = "10.0.0.1", "10.0.0.2", "10.0.0.9"


class LimitedListener:
    """A door with some room, and the guests in it by the order of their coming."""

    def __init__(self, *hosts: str) -> None:
        self.door = ConnectionLimiter(ROOM, PATIENCE)
        self.dropped: list[ClientConnection] = []
        self._hosts = hosts

    async def full(self) -> list[ClientConnection]:
        """Let in who is to be there, and give them."""
        return [await self.come(host) for host in self._hosts]

    async def come(self, host: str) -> ClientConnection:
        """Let somebody in at once."""
        guest = await self.door.enter(host)
        assert guest is not None
        guest.drop = lambda: self.dropped.append(guest)
        return guest

    async def befriend(self, host: str) -> None:
        """Let somebody in who is then admitted."""
        (await self.come(host)).be_admitted()


@in_virtual_time
async def test_who_says_nothing_makes_room_for_the_next() -> None:
    """The oldest of the address that has most, once it is late; nobody while there is room."""
    ground = LimitedListener(OTHER, STRANGER, STRANGER, STRANGER)
    guests = await ground.full()
    assert ground.dropped == []
    await asyncio.sleep(PATIENCE.whole)
    await ground.come(STRANGER)
    assert ground.dropped == [guests[1]]
    assert len(ground.door) == ROOM


@in_virtual_time
async def test_a_crowd_displaces_its_own() -> None:
    """Another address goes before its oldest, at once; one more of the crowd gets nothing."""
    ground = LimitedListener(OTHER, STRANGER, STRANGER, STRANGER)
    guests = await ground.full()
    assert await ground.door.enter(STRANGER) is None
    assert ground.dropped == []
    await ground.come("10.0.0.3")
    assert ground.dropped == [guests[1]]
    assert clock() == 0.0


@in_virtual_time
async def test_a_friend_goes_before_strangers_and_is_not_displaced_by_them() -> None:
    """However many connections of its own it has in the making."""
    ground = LimitedListener(STRANGER, FRIEND, FRIEND, FRIEND)
    await ground.befriend(FRIEND)
    guests = await ground.full()
    assert await ground.door.enter(STRANGER) is None
    await ground.come(FRIEND)
    assert ground.dropped == [guests[0]]
    assert await ground.door.enter(OTHER) is None


@in_virtual_time
async def test_a_burst_of_a_friend_waits_its_turn() -> None:
    """Until one of those before it is done; none of them is dropped while it says what it wants."""
    ground = LimitedListener(*[FRIEND] * ROOM)
    await ground.befriend(FRIEND)
    guests = await ground.full()
    waiting = asyncio.create_task(ground.door.enter(FRIEND))
    await asyncio.sleep(PATIENCE.next)
    assert not waiting.done()
    guests[2].leave()
    assert await waiting is not None
    assert ground.dropped == []


@pytest.mark.parametrize(("heard", "seconds"), [(False, PATIENCE.first), (True, PATIENCE.next)])
@in_virtual_time
async def test_a_friend_waits_for_who_is_silent_only_shortly(heard: bool, seconds: float) -> None:  # noqa: FBT001
    """Shorter for one that has never said anything: who means it sends its first byte with the connection."""
    ground = LimitedListener(*[FRIEND] * ROOM)
    await ground.befriend(FRIEND)
    guests = await ground.full()
    for guest in guests:
        guest.silence = lambda: IdleTime(clock(), heard=heard)
    await ground.come(FRIEND)
    assert ground.dropped == [guests[0]]
    assert seconds <= clock() <= seconds + 0.05


@in_virtual_time
async def test_who_sends_a_byte_now_and_then_is_late_in_the_end() -> None:
    """Though nothing is missing from it at any moment."""
    ground = LimitedListener(*[FRIEND] * ROOM)
    await ground.befriend(FRIEND)
    await ground.full()
    await ground.come(FRIEND)
    assert PATIENCE.whole <= clock() <= PATIENCE.whole + 0.05


@in_virtual_time
async def test_who_has_shown_who_it_is_goes_last() -> None:
    """Before it strangers that are late; and it has as long again for what comes after the handshake."""
    ground = LimitedListener(*[STRANGER] * 3, OTHER)
    guests = await ground.full()
    await asyncio.sleep(PATIENCE.whole / 2)
    guests[0].advance(known=True)
    guests[1].advance(known=False)
    await asyncio.sleep(PATIENCE.whole / 2)
    await ground.come(STRANGER)
    assert ground.dropped == [guests[2]]
    await asyncio.sleep(PATIENCE.whole / 2)
    await ground.come(STRANGER)
    assert ground.dropped[1:] == [guests[1]]
    await asyncio.sleep(PATIENCE.whole)
    for _ in range(2):
        await ground.come(STRANGER)
    assert guests[0] not in ground.dropped


@in_virtual_time
async def test_who_keeps_a_connection_is_not_displaced_by_a_crowd_that_comes_at_once() -> None:
    """Between its questions it is as late as who says nothing; another address goes before the crowd's oldest."""
    ground = LimitedListener(OTHER)
    await ground.full()
    await asyncio.sleep(PATIENCE.whole)
    crowd = [await ground.come(STRANGER) for _ in range(ROOM - 1)]
    assert await ground.door.enter(STRANGER) is None
    await ground.come(OTHER)
    assert ground.dropped == crowd[:1]


@in_virtual_time
async def test_leaving_twice_is_leaving_once() -> None:
    """Also after having been dropped, and what would end the connection is forgotten."""
    ground = LimitedListener(*[STRANGER] * ROOM)
    guests = await ground.full()
    guests[0].leave()
    guests[0].leave()
    assert len(ground.door) == ROOM - 1
    await asyncio.sleep(PATIENCE.whole)
    ground.door.displace()
    assert ground.dropped == [guests[1]]
    guests[1].leave()
    guests[1].drop()
    assert ground.dropped == [guests[1]]
    assert len(ground.door) == ROOM - 2


@in_virtual_time
async def test_friends_are_remembered_in_bounded_number() -> None:
    """Those that were let in last."""
    ground = LimitedListener()
    for number in range(300):
        await ground.befriend(f"10.1.{number // 256}.{number % 256}")
    assert len(ground.door._friends) == 256
    assert origin_of("10.1.0.0") not in ground.door._friends


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
def test_what_counts_as_one_origin(host: str, origin: str) -> None:
    """A machine has as many addresses of IPv6 as it likes, and an IPv4 address two ways to be written."""
    assert origin_of(host) == origin
