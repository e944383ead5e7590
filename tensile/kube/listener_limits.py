"""How many strangers a port has at one time, and which of them makes room for the next.

Whoever reaches a port can open connections and say nothing, and each holds a file descriptor and some 60 KB that the
rest of the engine may need. So their number is bounded. When the bound is reached, a newcomer takes the place of one
that keeps us waiting, or of one from the address that has the most; who opens thousands displaces its own by that, and
a caller from an address that others were let in from is not displaced unless it keeps us waiting.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple

_FRIENDS = 256
"""Origins that are remembered since somebody was let in from there."""
_LOOK = 0.02
_OF_A_SITE = 64
"""Bits of an IPv6 address that tell networks apart: one machine has all addresses behind them."""


class Patience(NamedTuple):
    """Seconds after which a guest is late: with its first byte, with what comes next, and with all that it has to say.

    Only time in which nothing has come from it counts, but for the last: who sends a byte now and then is late by that.
    The first two are for a newcomer that is a friend's: others wait for the last.
    """

    first: float = 0.05
    next: float = 0.3
    whole: float = 1.0


class Silence(NamedTuple):
    """For how many seconds nothing has come from a guest that is waited for, and whether anything ever has."""

    seconds: float
    heard: bool


End = Callable[[], object]
"""Ends a connection, without waiting for that."""
Wait = Callable[[], Silence]


class Guest:
    """A connection that has been let in by a door and has not left it.

    `drop` ends the connection; `silence` says how long it has kept us waiting.
    """

    def __init__(self, door: "Door", origin: str, now: float) -> None:
        self.origin = origin
        self.since = now
        self.is_known = False
        self.drop: End = _nothing
        self.silence: Wait = _no_silence
        self._door = door

    def advance(self, *, known: bool) -> None:
        """Note that it is waited for anew, as after a handshake; `known`: it has shown who it is."""
        self.since = self._door.now()
        self.is_known = known

    def leave(self) -> None:
        """Make room for the next; more than once is as good as once.

        What would end the connection is forgotten: it holds what holds this, and a flood would leave such circles.
        """
        self.drop, self.silence = _nothing, _no_silence
        self._door.left(self)

    def be_admitted(self) -> None:
        """Leave as one that may come in: its address is known by that."""
        self._door.befriend(self.origin)
        self.leave()


class Door:
    """At most `room` guests at one time, for one port or for several.

    An origin from which somebody was let in lately is a friend's.
    """

    def __init__(self, room: int, patience: Patience) -> None:
        self._room = room
        self._patience = patience
        self._size = 0
        self._origins: dict[str, dict[Guest, None]] = {}
        self._friends: OrderedDict[str, None] = OrderedDict()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return self._size

    async def enter(self, host: str) -> Guest | None:
        """Return the guest that a connection from an IP address is, once there is room; None where it gets none.

        A friend waits for room. Others get none while no other origin has more guests, and nobody is late of their own
        or of one with as many.
        """
        origin = origin_of(host)
        is_friend = origin in self._friends
        while self._size >= self._room:
            found = self._late(haste=True) or self._crowding(origin) if is_friend else self._in_the_way(origin)
            if found is not None:
                _end(found)
            elif not is_friend:
                return None
            else:
                self._changed.clear()
                await _set_within(self._changed, _LOOK)
        guest = Guest(self, origin, self.now())
        self._origins.setdefault(origin, {})[guest] = None
        self._size += 1
        return guest

    def displace(self) -> None:
        """Drop a guest that is late, if there is one: descriptors are scarce."""
        found = self._late(haste=True)
        if found is not None:
            _end(found)

    def _in_the_way(self, origin: str) -> Guest | None:
        """Return the guest before which somebody goes who is no friend's.

        None of an origin that has fewer guests: a caller that keeps its connection says nothing between its questions,
        and whoever opens many of them at once would have it dropped.
        """
        own = len(self._origins.get(origin, ()))
        return self._late(haste=False, least=own + 1) or self._crowding(origin) or self._late(haste=False, least=own)

    def _late(self, *, haste: bool, least: int = 0) -> Guest | None:
        """Return a guest that is late, a stranger rather than another, the oldest of the origin that has most.

        Only of origins with `least` guests or more.
        """
        now = self.now()
        crowds = sorted((crowd for crowd in self._origins.values() if len(crowd) >= least), key=len, reverse=True)
        for known in (False, True):
            for crowd in crowds:
                for guest in crowd:
                    if guest.is_known is known and self._is_late(guest, now, haste=haste):
                        return guest
        return None

    def _is_late(self, guest: Guest, now: float, *, haste: bool) -> bool:
        age = now - guest.since
        if age >= self._patience.whole or not haste or age < self._patience.first:
            return age >= self._patience.whole
        seconds, heard = guest.silence()
        return seconds >= (self._patience.next if heard else self._patience.first)

    def _crowding(self, origin: str) -> Guest | None:
        """Return the oldest stranger of the origin with the most guests, where a newcomer goes before it.

        It does if it is a friend, or its origin has fewer.
        """
        strange = [(name, crowd) for name, crowd in self._origins.items() if name not in self._friends]
        _, crowd = max(strange, key=lambda one: len(one[1]), default=("", {}))
        if origin not in self._friends and len(self._origins.get(origin, ())) >= len(crowd):
            return None
        return next((guest for guest in crowd if not guest.is_known), None)

    def befriend(self, origin: str) -> None:
        """Note that somebody was let in from an origin."""
        self._friends[origin] = None
        self._friends.move_to_end(origin)
        if len(self._friends) > _FRIENDS:
            self._friends.popitem(last=False)

    def left(self, guest: Guest) -> None:
        """Forget a guest."""
        crowd = self._origins.get(guest.origin, {})
        if guest in crowd:
            del crowd[guest]
            self._size -= 1
            if not crowd:
                del self._origins[guest.origin]
            self._changed.set()

    @staticmethod
    def now() -> float:
        """Return the time, in seconds of the event loop."""
        return asyncio.get_running_loop().time()


def origin_of(host: str) -> str:
    """Return what counts as one origin: an IPv4 address, however it is written, or a network of IPv6."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Address(int(address) >> _OF_A_SITE << _OF_A_SITE))


def _end(guest: Guest) -> None:
    """Have a guest make room, and end its connection."""
    drop = guest.drop
    guest.leave()
    drop()


def _nothing() -> None:
    """Do nothing."""


def _no_silence() -> Silence:
    """Describe that nothing is waited for."""
    return Silence(0.0, heard=True)


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    """Wait until an event is set, for at most so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
