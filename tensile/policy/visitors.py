"""Who is connected to a port, how much of what they send is kept, and who makes room when that is too much.

Whoever reaches a port can open connections and send half of something on each: that takes descriptors and memory which
the rest of the engine needs. So both are bounded, for all of a port together; beyond a bound one who is there goes, of
the address that has most: first who has never asked a whole question, then of whom none has come for longest. Who
floods a port displaces its own by that, and a caller with a few connections keeps them.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

_SITE = 64
"""Bits of an IPv6 address that are one machine's network: it has all addresses behind them."""


@dataclass(eq=False, slots=True)
class Visitor:
    """One connection: where it comes from, since when it has asked nothing, and the bytes that are kept of it.

    `drop` ends it, `known` is whether it has ever asked a whole question.
    """

    origin: str
    since: float
    drop: Callable[[], object]
    held: int = 0
    known: bool = False

    def ask(self, now: float) -> None:
        """Note that it has asked a whole question."""
        self.known, self.since = True, now


class Visitors:
    """All that are connected to a port: at most `most` of them, of whom at most `content` bytes are kept together."""

    def __init__(self, most: int, content: int) -> None:
        self._most = most
        self._content = content
        self._here: dict[Visitor, None] = {}
        self._held = 0

    def __len__(self) -> int:
        return len(self._here)

    def __iter__(self) -> Iterator[Visitor]:
        return iter(tuple(self._here))

    def __contains__(self, visitor: Visitor) -> bool:
        return visitor in self._here

    def enter(self, visitor: Visitor) -> None:
        """Count one who has come; another one may have to go for it."""
        self._here[visitor] = None
        if len(self._here) > self._most:
            self.displace()

    def hold(self, visitor: Visitor, size: int) -> None:
        """Count bytes that are kept of a visitor from now on; it may be the one who has to go for them."""
        visitor.held += size
        self._held += size
        while self._held > self._content:
            self._end(self._chosen(lambda one: one.held))

    def release(self, visitor: Visitor) -> None:
        """Count none of a visitor's bytes any more."""
        if visitor in self._here:
            self._held -= visitor.held
        visitor.held = 0

    def leave(self, visitor: Visitor) -> None:
        """Forget one who has gone; more than once is as good as once."""
        self.release(visitor)
        self._here.pop(visitor, None)

    def displace(self) -> None:
        """Have one go, if anybody is there."""
        if self._here:
            self._end(self._chosen(lambda _: 1))

    def _chosen(self, weight: Callable[[Visitor], int]) -> Visitor:
        """Return who goes first of the origin that weighs most."""
        weights: Counter[str] = Counter()
        for one in self._here:
            weights[one.origin] += weight(one)
        (origin, _), *_ = weights.most_common(1)
        crowd = (one for one in self._here if one.origin == origin and weight(one))
        return min(crowd, key=lambda one: (one.known, one.since))

    def _end(self, visitor: Visitor) -> None:
        self.leave(visitor)
        visitor.drop()


def origin_of(host: str) -> str:
    """Return what counts as one origin of connections: an IPv4 address, however it is written, or a network of IPv6."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Address(int(address) >> _SITE << _SITE))
