"""Limit the pending connections of a listener, and choose which one makes room for a new one.

Anyone who reaches a port can open connections and send nothing. Each holds a file descriptor and some 60 KB that the
engine may need, so their number is limited. At the limit, a new connection displaces one that is overdue, or one from
the address with the most connections. So a flood displaces its own connections. A client from an address that was
admitted before is displaced only when it is overdue.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple

_FRIENDS = 256
"""The most origins that are remembered because a connection from them was admitted."""
_LOOK = 0.02
_OF_A_SITE = 64
"""The prefix length of an IPv6 network. One machine owns all addresses in it."""


class ClientTimeouts(NamedTuple):
    """Seconds until a connection is overdue: `first` without any byte, `next` without more data, `whole` in total.

    `whole` also applies to clients that send a byte now and then. `first` and `next` only apply when a client from an
    admitted origin needs room, or descriptors are scarce.
    """

    first: float = 0.05
    next: float = 0.3
    whole: float = 1.0


class IdleTime(NamedTuple):
    """For how many seconds an awaited client has sent nothing, and whether it has ever sent anything."""

    seconds: float
    heard: bool


CloseConnection = Callable[[], object]
"""Closes a connection without waiting for that."""
MeasureIdle = Callable[[], IdleTime]


class ClientConnection:
    """A pending connection that a door counts.

    `drop` closes the connection. `silence` returns how long it has been silent.
    """

    def __init__(self, door: "ConnectionLimiter", origin: str, now: float) -> None:
        self.origin = origin
        self.since = now
        self.is_known = False
        self.drop: CloseConnection = _nothing
        self.silence: MeasureIdle = _no_silence
        self._door = door

    def advance(self, *, known: bool) -> None:
        """Restart its time, as after a handshake. `known`: it has authenticated itself."""
        self.since = self._door.now()
        self.is_known = known

    def leave(self) -> None:
        """Free its slot. Further calls have no effect.

        The callbacks are dropped: they refer to the connection, which refers to this guest, and a flood would leave
        such cycles.
        """
        self.drop, self.silence = _nothing, _no_silence
        self._door.left(self)

    def be_admitted(self) -> None:
        """Free its slot after a successful admission, and remember its address."""
        self._door.befriend(self.origin)
        self.leave()


class ConnectionLimiter:
    """At most `room` pending connections at one time, for one port or several.

    An origin from which a connection was admitted recently is an admitted origin (`_friends`).
    """

    def __init__(self, room: int, patience: ClientTimeouts) -> None:
        self._room = room
        self._patience = patience
        self._size = 0
        self._origins: dict[str, dict[ClientConnection, None]] = {}
        self._friends: OrderedDict[str, None] = OrderedDict()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return self._size

    async def enter(self, host: str) -> ClientConnection | None:
        """Return the guest for a connection from an IP address, once there is room. None if it is refused.

        A client from an admitted origin waits for room. Others are refused while no other origin has more guests, and
        no guest of their own origin, or of one with as many, is overdue.
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
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK):
                        await self._changed.wait()
        guest = ClientConnection(self, origin, self.now())
        self._origins.setdefault(origin, {})[guest] = None
        self._size += 1
        return guest

    def displace(self) -> None:
        """Drop an overdue guest, if any: descriptors are scarce."""
        found = self._late(haste=True)
        if found is not None:
            _end(found)

    def _in_the_way(self, origin: str) -> ClientConnection | None:
        """Return the guest that makes room for a client from an origin that was not admitted.

        It is none from an origin with fewer guests: a client with a persistent connection is silent between requests,
        and a flood would have it dropped.
        """
        own = len(self._origins.get(origin, ()))
        return self._late(haste=False, least=own + 1) or self._crowding(origin) or self._late(haste=False, least=own)

    def _late(self, *, haste: bool, least: int = 0) -> ClientConnection | None:
        """Return an overdue guest, unauthenticated ones first, then the oldest of the origin with the most guests.

        Only origins with at least `least` guests count.
        """
        now = self.now()
        crowds = sorted((crowd for crowd in self._origins.values() if len(crowd) >= least), key=len, reverse=True)
        for known in (False, True):
            for crowd in crowds:
                for guest in crowd:
                    if guest.is_known is known and self._is_late(guest, now, haste=haste):
                        return guest
        return None

    def _is_late(self, guest: ClientConnection, now: float, *, haste: bool) -> bool:
        age = now - guest.since
        if age >= self._patience.whole or not haste or age < self._patience.first:
            return age >= self._patience.whole
        seconds, heard = guest.silence()
        return seconds >= (self._patience.next if heard else self._patience.first)

    def _crowding(self, origin: str) -> ClientConnection | None:
        """Return the oldest unauthenticated guest of the origin with the most guests, if a new client displaces it.

        It does if its origin was admitted, or has fewer guests.
        """
        strange = [(name, crowd) for name, crowd in self._origins.items() if name not in self._friends]
        _, crowd = max(strange, key=lambda one: len(one[1]), default=("", {}))
        if origin not in self._friends and len(self._origins.get(origin, ())) >= len(crowd):
            return None
        return next((guest for guest in crowd if not guest.is_known), None)

    def befriend(self, origin: str) -> None:
        """Remember an origin from which a connection was admitted."""
        self._friends[origin] = None
        self._friends.move_to_end(origin)
        if len(self._friends) > _FRIENDS:
            self._friends.popitem(last=False)

    def left(self, guest: ClientConnection) -> None:
        """Remove a guest."""
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
    """Return the origin of an address: an IPv4 address in its canonical form, or an IPv6 network."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Address(int(address) >> _OF_A_SITE << _OF_A_SITE))


def _end(guest: ClientConnection) -> None:
    """Free a guest's slot and close its connection."""
    drop = guest.drop
    guest.leave()
    drop()


def _nothing() -> None:
    """Do nothing."""


def _no_silence() -> IdleTime:
    """Return that nothing is awaited."""
    return IdleTime(0.0, heard=True)
