"""How fast and how often: a token bucket for requests, and the waits between tries.

Both are arithmetic over a clock and a die that are passed in, so that a test needs neither time nor luck.

How often something may be done for each of many keys: token buckets in bounded memory.

A bucket is one number, the moment at which it is full again. So a bucket that is full needs no memory, and a key that
was quiet for long enough is the same as one that was never seen.

Lets the first event of a sort through in a while, and counts those in between.

Whoever can make an event happen can make it happen without end; what a person reads stays short.

How much is taken of one cluster: a bound for all that an apiserver could make endless, and what a breach costs it.

An engine follows clusters that others operate. Whatever one of them sends, the memory and the time of the others stay
their own, so each answer has a size that ends, and so has the sum of what one cluster has under way and of what is kept
of it. No bound is one that a cluster within Kubernetes' own limits meets; each says why.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, NamedTuple, TypeVar

from tensile.errors import Unreachable
from tensile.kube.store import Tally


class Bucket:
    """At most `qps` requests a second on average and `burst` at once; `qps` 0 is no limit."""

    def __init__(self, qps: float, burst: int, now: float) -> None:
        self._qps = qps
        self._burst = float(max(burst, 1))
        self._tokens = self._burst
        self._at = now

    def take(self, now: float, amount: float = 1.0) -> float:
        """Take tokens and give the seconds to wait before they may be used; the order of calls is the order of use."""
        if not self._qps:
            return 0.0
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._qps) - amount
        self._at = now
        return max(-self._tokens / self._qps, 0.0)


class Pace(NamedTuple):
    """The waits of an informer, all in seconds.

    Waits double from `first` to `cap`, or to `near` while the cluster answers; a watch is asked for a time between
    `shortest` and `longest`, so that not all end at once; `margin` is what an end may come late. An outage of
    `outage` is long enough for a store to have been restored meanwhile: list afresh. `settled` is how long a watch
    has to live to count as one. `audit` is the period, give or take a quarter, of a list that compares everything: what
    an apiserver left out of a watch nobody tells of again. It costs what the first list did, and what is as it was has
    no consequence. 0 for none.
    """

    first: float = 0.1
    cap: float = 30.0
    near: float = 5.0
    shortest: int = 240
    longest: int = 480
    margin: float = 10.0
    outage: float = 30.0
    settled: float = 1.0
    audit: float = 1800.0


class Backoff:
    """Waits that double with each failure in a row, with full jitter, so that a crowd spreads out."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._failures = 0

    def reset(self) -> None:
        """Begin again at the shortest wait: something worked."""
        self._failures = 0

    def after_failure(self, chance: float, *, answered: bool = False, at_least: float = 0.0) -> float:
        """Return the seconds to wait after one more failure.

        `chance` is a random number in [0, 1). `answered`: the cluster itself said no. `at_least` is what it asked for.
        """
        ceiling = self._pace.near if answered else self._pace.cap
        spread = min(self._pace.first * 2.0**self._failures, ceiling)
        self._failures = min(self._failures + 1, 32)
        return at_least + chance * spread


Key = TypeVar("Key", bound=Hashable)
_ROUNDING = 1e-6


class Allowances(Generic[Key]):
    """A bucket of `burst` tokens for each key, refilled by one token every `seconds`; times are monotonic seconds.

    At most `limit` keys are remembered. Beyond that the key that was used least lately is forgotten, which gives it a
    full bucket: where keys are chosen by a stranger, something else has to bound their sum.
    """

    def __init__(self, burst: int, seconds: float, limit: int) -> None:
        self._window = burst * seconds
        self._seconds = seconds
        self._limit = limit
        self._full: OrderedDict[Key, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._full)

    def left(self, key: Key, now: float) -> float:
        """Return the seconds until the key has a token, 0.0 when it has one now."""
        wait = self._full.get(key, now) + self._seconds - self._window - now
        return wait if wait > _ROUNDING else 0.0

    def take(self, key: Key, now: float) -> bool:
        """Take a token of the key, and report whether there was one."""
        if self.left(key, now):
            return False
        self._full[key] = max(self._full.get(key, now), now) + self._seconds
        self._full.move_to_end(key)
        if len(self._full) > self._limit:
            self._full.popitem(last=False)
        return True


PAUSE = 60.0
"""Seconds in which an event of one sort is not told again."""
AT_ONCE, EVERY = 20, 30.0
"""Lines of one author that may come together, and the seconds after which there may be one more."""
_REMEMBERED = 10_000


class Seldom:
    """Remembers when each sort was told last; `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._told: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()

    def tell(self, sort: Hashable, tell: Callable[[Mapping[str, int]], object]) -> bool:
        """Call `tell` unless an event of that sort was told lately, and report whether it was called.

        It gets the field `more_since`, the number held back since the last one, {} for none.
        """
        now = self._clock()
        until, count = self._told.get(sort, (now, 0))
        if now < until:
            self._told[sort] = (until, count + 1)
            return False
        self._told[sort] = (now + PAUSE, 0)
        self._told.move_to_end(sort)
        if len(self._told) > _REMEMBERED:
            self._told.popitem(last=False)
        tell({"more_since": count} if count else {})
        return True


class Ration:
    """Lines of one author, whose words are new each time: so many at once, and then one in a while."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left = float(AT_ONCE)
        self._at = clock()

    def take(self) -> bool:
        """Report whether another line may be written now, and count it."""
        now = self._clock()
        self._left = min(self._left + (now - self._at) / EVERY, float(AT_ONCE))
        self._at = now
        may = self._left >= 1
        self._left -= may
        return may


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
