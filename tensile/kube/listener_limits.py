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

_MAX_ADMITTED_ORIGINS = 256
"""The most origins that are remembered because a connection from them was admitted."""
_RETRY_SECONDS = 0.02
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
    has_sent: bool


CloseConnection = Callable[[], object]
"""Closes a connection without waiting for that."""
MeasureIdle = Callable[[], IdleTime]


class ClientConnection:
    """A pending connection that a limiter counts.

    `drop` closes the connection. `silence` returns how long it has been silent.
    """

    def __init__(self, limiter: "ConnectionLimiter", origin: str, now: float) -> None:
        self.origin = origin
        self.since = now
        self.is_known = False
        self.drop: CloseConnection = _nothing
        self.silence: MeasureIdle = _not_awaited
        self._limiter = limiter

    def advance(self, *, known: bool) -> None:
        """Restart its time, as after a handshake. `known`: it has authenticated itself."""
        self.since = self._limiter.now()
        self.is_known = known

    def leave(self) -> None:
        """Free its slot. Further calls have no effect.

        The callbacks are dropped: they refer to the connection, which refers to this object, and a flood would leave
        such cycles.
        """
        self.drop, self.silence = _nothing, _not_awaited
        self._limiter.remove(self)

    def be_admitted(self) -> None:
        """Free its slot after a successful admission, and remember its address."""
        self._limiter.remember_origin(self.origin)
        self.leave()


class ConnectionLimiter:
    """At most `room` pending connections at one time, for one port or several.

    An origin from which a connection was admitted recently is an admitted origin (`_admitted_origins`).
    """

    def __init__(self, capacity: int, timeouts: ClientTimeouts) -> None:
        self._capacity = capacity
        self._timeouts = timeouts
        self._size = 0
        self._origins: dict[str, dict[ClientConnection, None]] = {}
        self._admitted_origins: OrderedDict[str, None] = OrderedDict()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return self._size

    async def enter(self, host: str) -> ClientConnection | None:
        """Return the slot of a connection from an IP address, once there is room. None if it is refused.

        A client from an admitted origin waits for room. Others are refused while no other origin has more connections,
        and no connection of their own origin, or of one with as many, is overdue.
        """
        origin = origin_of(host)
        is_admitted = origin in self._admitted_origins
        while self._size >= self._capacity:
            found = (
                self._overdue(is_urgent=True) or self._from_busiest_origin(origin)
                if is_admitted
                else self._displaceable(origin)
            )
            if found is not None:
                _end(found)
            elif not is_admitted:
                return None
            else:
                self._changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_RETRY_SECONDS):
                        await self._changed.wait()
        connection = ClientConnection(self, origin, self.now())
        self._origins.setdefault(origin, {})[connection] = None
        self._size += 1
        return connection

    def displace(self) -> None:
        """Drop an overdue connection, if any: descriptors are scarce."""
        found = self._overdue(is_urgent=True)
        if found is not None:
            _end(found)

    def _displaceable(self, origin: str) -> ClientConnection | None:
        """Return the connection that makes room for a client from an origin that was not admitted.

        It is none from an origin with fewer connections: a client with a persistent connection is silent between
        requests, and a flood would have it dropped.
        """
        own = len(self._origins.get(origin, ()))
        return (
            self._overdue(is_urgent=False, least=own + 1)
            or self._from_busiest_origin(origin)
            or self._overdue(is_urgent=False, least=own)
        )

    def _overdue(self, *, is_urgent: bool, least: int = 0) -> ClientConnection | None:
        """Return an overdue connection, unauthenticated ones first, then the oldest of the busiest origin.

        The busiest origin has the most connections. Only origins with at least `least` connections count.
        """
        now = self.now()
        groups = sorted((group for group in self._origins.values() if len(group) >= least), key=len, reverse=True)
        for known in (False, True):
            for connections in groups:
                for connection in connections:
                    if connection.is_known is known and self._is_overdue(connection, now, is_urgent=is_urgent):
                        return connection
        return None

    def _is_overdue(self, connection: ClientConnection, now: float, *, is_urgent: bool) -> bool:
        age = now - connection.since
        if age >= self._timeouts.whole or not is_urgent or age < self._timeouts.first:
            return age >= self._timeouts.whole
        seconds, has_sent = connection.silence()
        return seconds >= (self._timeouts.next if has_sent else self._timeouts.first)

    def _from_busiest_origin(self, origin: str) -> ClientConnection | None:
        """Return the oldest unauthenticated connection of the busiest origin, if a new client displaces it.

        It does if its origin was admitted, or has fewer connections.
        """
        unadmitted = [
            (name, connections) for name, connections in self._origins.items() if name not in self._admitted_origins
        ]
        _, connections = max(unadmitted, key=lambda one: len(one[1]), default=("", {}))
        if origin not in self._admitted_origins and len(self._origins.get(origin, ())) >= len(connections):
            return None
        return next((connection for connection in connections if not connection.is_known), None)

    def remember_origin(self, origin: str) -> None:
        """Remember an origin from which a connection was admitted."""
        self._admitted_origins[origin] = None
        self._admitted_origins.move_to_end(origin)
        if len(self._admitted_origins) > _MAX_ADMITTED_ORIGINS:
            self._admitted_origins.popitem(last=False)

    def remove(self, connection: ClientConnection) -> None:
        """Remove a connection."""
        connections = self._origins.get(connection.origin, {})
        if connection in connections:
            del connections[connection]
            self._size -= 1
            if not connections:
                del self._origins[connection.origin]
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


def _end(connection: ClientConnection) -> None:
    """Free the slot of a connection and close it."""
    drop = connection.drop
    connection.leave()
    drop()


def _nothing() -> None:
    """Do nothing."""


def _not_awaited() -> IdleTime:
    """Return that nothing is awaited."""
    return IdleTime(0.0, has_sent=True)
