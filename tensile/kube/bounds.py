"""How much is taken of one cluster: a bound for all that an apiserver could make endless, and what a breach costs it.

An engine follows clusters that others operate. Whatever one of them sends, the memory and the time of the others stay
their own, so each answer has a size that ends, and so has the sum of what one cluster has under way and of what is kept
of it. No bound is one that a cluster within Kubernetes' own limits meets; each says why.
"""

from typing import NamedTuple

from tensile.cache import Tally
from tensile.errors import Unreachable

OBJECT = 8 << 20
"""Bytes of one object, or of one line of a watch. etcd takes 1.5 MiB, an apiserver 3 MiB of a request; JSON is up to
three times as long as what etcd keeps."""
SMALL = 1 << 20
"""Bytes of what a cluster says of itself: its version, its identity, the APIs that it has."""
PAGE = 16 << 20
"""Bytes of one page of a list: 500 objects of 32 KiB. One that is longer is asked for again with fewer objects."""
PAGES = (500, 50, 2)
"""Objects of one page, from the first try to the last: two of the largest fit into one page."""
WHOLE = 64 << 20
"""Bytes of a list that has to come in one piece, since the store forgets the version of its pages meanwhile."""
REFUSAL = 64 << 10
"""Bytes of the body of an error: what is beyond is not read, and the status alone counts."""
HEAD = 64 << 10
"""Bytes without content: of headers, trailers, extensions of chunks, and answers that only announce another."""
CHUNKS, SPARSE = 4096, 256
"""Chunks of one body after which they must have so many bytes on average: Go sends 2 KiB at least."""
IN_FLIGHT = 128 << 20
"""Bytes of all answers of a cluster that have not ended: eight pages, however many calls there are."""
LISTINGS = 4
"""Lists of one cluster at a time: each has two pages in memory."""
EMPTY_PAGES = 10
"""Pages without an object in a row, though each promises more."""
TOKEN = 4096
"""Characters of the token for the next page: it holds the name of an object."""
GROUPS = 1_000
"""Versions of API groups that a cluster may name: a large one with hundreds of extensions has less than half."""
OBJECTS = 400_000
"""Objects of one cluster in all caches. Kubernetes supports 150,000 pods and 5,000 nodes; with the extender or the
descheduler both are kept twice, which leaves 90,000 for all that is ours."""
CONTENT = 384 << 20
"""Bytes of one cluster in all caches: 150,000 pods of others take 225 MiB at most, which leaves 18,000 of ours at
9 KiB. A container of the manifests may use 1 GiB."""
FRESH = 4
"""While a list comes in there may be one part in so many more: so a cluster that has become small comes back, though
what was kept of it is at the bound."""
SHARE, BURST = 0.25, 2
"""Part of the event loop's time in which the objects of one cluster are read, and seconds that it may take at once:
a first list of 50,000 pods needs no more. What is beyond waits in the connection."""
SLICE = 0.005
"""Seconds of one turn of the event loop in which the objects of one cluster are read; then others have theirs."""
LONGEST_WAIT = 600.0
"""Seconds: who asks for more patience is not believed."""


class TooLarge(Unreachable):
    """A cluster sent more than is taken of any."""

    title = "sent too much"


class Paused(TooLarge):
    """A cluster that sent too much is not asked before its pause ends; `retry_after` is what is left of it."""

    title = "is not asked for a while"


class Account:
    """The bytes of all answers of one cluster that have not ended."""

    def __init__(self, most: int = IN_FLIGHT) -> None:
        self.held = 0
        self._most = most

    def take(self, size: int) -> None:
        """Count so many bytes more; raises Unreachable when they are too many at one time.

        Another try finds fewer answers under way, so this is no breach.
        """
        self.held += size
        if self.held > self._most:
            raise Unreachable(f"more than {self._most >> 20} MiB of answers are under way at one time")

    def give_back(self, size: int) -> None:
        """Count so many bytes less."""
        self.held -= size


class Restraint:
    """For how long a cluster that sent too much is left alone: each time for twice as long, in seconds.

    Who has kept to the bounds for `forgiven` seconds begins at `first`.
    """

    def __init__(self, first: float = 10.0, cap: float = 600.0, forgiven: float = 1200.0) -> None:
        self.until = 0.0
        self.words = ""
        self._first = first
        self._cap = cap
        self._forgiven = forgiven
        self._times = 0

    def note(self, now: float, words: str) -> float:
        """Note a breach and return the seconds of the pause that begins; one within a pause is part of the last."""
        if now < self.until:
            return self.until - now
        if now - self.until > self._forgiven:
            self._times = 0
        pause = min(self._first * 2.0 ** min(self._times, 32), self._cap)
        self._times += 1
        self.until, self.words = now + pause, words
        return pause

    def left(self, now: float) -> float:
        """Return the seconds of a pause that are left, 0 without one."""
        return max(self.until - now, 0.0)

    @property
    def trusted_from(self) -> float:
        """When the cluster counts as well again: a while after its last pause, in which it may be tried."""
        return self.until + min(self._first, self._cap)


class Allowance(NamedTuple):
    """The most that the caches of one cluster may hold."""

    objects: int = OBJECTS
    content: int = CONTENT

    def check(self, tally: Tally, *, listing: bool = False) -> None:
        """Raise TooLarge when there is too much; `listing`: a list is coming in."""
        more = 1 + listing / FRESH
        if tally.objects > self.objects * more:
            raise TooLarge(f"more than {self.objects:,} objects in all")
        if tally.content > self.content * more:
            raise TooLarge(f"objects that take more than {mebibytes(self.content)} in all")


def mebibytes(size: int) -> str:
    """Write a number of bytes for people."""
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
