"""Limits: request rates, back-off, log rates, and the size of what one cluster may send.

Clusters are operated by others. Whatever one of them sends, the memory and time for the others must remain. So every
response has a maximum size, and so have a cluster's responses in progress and its cached objects. No cluster within
Kubernetes' own limits reaches a bound; the text at each bound says why. Users who can cause events can cause any
number, so what they cause is logged at a limited rate.

Everything here is arithmetic over a clock and random numbers that are passed in, so tests are deterministic and need
not wait.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, NamedTuple, TypeVar

from tensile.errors import Unreachable
from tensile.kube.store import CacheTotals

PAUSE = 60.0
"""Seconds in which the same kind of event is not logged again."""
AT_ONCE, EVERY = 20, 30.0
"""The burst of log lines from one source, and the seconds after which one more is allowed."""
_REMEMBERED = 10_000

OBJECT = 8 << 20
"""The most bytes of one object, or of one watch event. etcd takes 1.5 MiB, an apiserver accepts requests of 3 MiB, and
JSON is up to three times as long as the stored form."""
SMALL = 1 << 20
"""The most bytes of a cluster's own data: its version, its identity, its APIs."""
PAGE = 16 << 20
"""The most bytes of one page of a list: 500 objects of 32 KiB. A longer page is requested again with fewer objects."""
PAGES = (500, 50, 2)
"""Objects per page, from the first try to the last: two of the largest objects fit into one page."""
WHOLE = 64 << 20
"""The most bytes of a list without pages, for when the store compacts the version of the pages meanwhile."""
REFUSAL = 64 << 10
"""The most bytes read of an error's body. Beyond that only the status counts."""
HEAD = 64 << 10
"""The most bytes around content: headers, trailers, chunk extensions and informational responses."""
CHUNKS, SPARSE = 4096, 256
"""After so many chunks of one body, their average must be at least `SPARSE` bytes. Go sends at least 2 KiB."""
IN_FLIGHT = 128 << 20
"""The most bytes of a cluster's incomplete responses: eight pages, over all calls."""
LISTINGS = 4
"""Concurrent lists of one cluster. Each has two pages in memory."""
EMPTY_PAGES = 10
"""The most consecutive pages without an object, though each announces more."""
TOKEN = 4096
"""The most characters of a continue token: it contains the name of an object."""
GROUPS = 1_000
"""The most versions of API groups. A large cluster with hundreds of extensions has fewer than half."""
OBJECTS = 400_000
"""The most objects of one cluster in all caches. Kubernetes supports 150,000 pods and 5,000 nodes. With the extender or
the descheduler both are cached twice, which leaves 90,000 for mirrored objects."""
CONTENT = 384 << 20
"""The most bytes of one cluster in all caches. 150,000 pods of other owners take 225 MiB at most, which leaves room for
18,000 mirrored pods of 9 KiB. The manifests limit a container to 1 GiB."""
FRESH = 4
"""While a list is read, the limits are larger by one part in so many. So a cluster that has shrunk recovers, though its
cached objects are at the limit."""
SHARE, BURST = 0.25, 2
"""The share of the event loop's time for the objects of one cluster, and the burst in seconds: a first list of 50,000
pods needs no more. The rest waits in the connection."""
SLICE = 0.005
"""Seconds of one turn of the event loop for the objects of one cluster, before others have their turn."""
LONGEST_WAIT = 600.0
"""The most seconds of a Retry-After that are respected."""

Key = TypeVar("Key", bound=Hashable)
_ROUNDING = 1e-6


class TokenBucket:
    """A token bucket: at most `qps` requests per second on average and `burst` at once. `qps` 0 is no limit."""

    def __init__(self, qps: float, burst: int, now: float) -> None:
        self._qps = qps
        self._burst = float(max(burst, 1))
        self._tokens = self._burst
        self._at = now

    def change(self, qps: float, burst: int, now: float) -> None:
        """Set other limits. Tokens that were taken in advance stay taken."""
        left = self.left(now) if self._qps else self._burst
        self._qps, self._burst, self._at = qps, float(max(burst, 1)), now
        self._tokens = min(left, self._burst)

    def take(self, now: float, amount: float = 1.0) -> float:
        """Take tokens and return the seconds to wait before using them. Calls are served in order."""
        if not self._qps:
            return 0.0
        self._tokens = self.left(now) - amount
        self._at = now
        return max(-self._tokens / self._qps, 0.0)

    def left(self, now: float) -> float:
        """Return the tokens that can be taken now without a wait, negative if some were taken in advance."""
        return min(self._burst, self._tokens + (now - self._at) * self._qps)


class InformerTimings(NamedTuple):
    """The timings of an informer, in seconds.

    Waits double from `first` to `cap`, or to `near` while the cluster responds. The duration of a watch is between
    `shortest` and `longest`, so that not all end at once. After an `outage` of that length the store may have been
    restored: list again. `settled` is how long a watch must live to count as a success.

    `relist` is the period, plus or minus a quarter, of a full list that compares everything, 0 for none: events that an
    apiserver omitted from a watch are never repeated. It costs as much as the first list, and unchanged objects have no
    effect.
    """

    first: float = 0.1
    cap: float = 30.0
    near: float = 5.0
    shortest: int = 240
    longest: int = 480
    outage: float = 30.0
    settled: float = 1.0
    relist: float = 1800.0

    def duration(self, chance: float) -> int:
        """Return the duration of a watch; `chance` is in [0, 1)."""
        return self.shortest + int(chance * (self.longest - self.shortest + 1))


class Backoff:
    """Waits that double with each consecutive failure, with full jitter."""

    def __init__(self, pace: InformerTimings) -> None:
        self._pace = pace
        self._failures = 0

    def reset(self) -> None:
        """Start again at the shortest wait, after a success."""
        self._failures = 0

    def after_failure(self, chance: float, *, reachable: bool = False, at_least: float = 0.0) -> float:
        """Return the seconds to wait after one more failure.

        `chance` is a random number in [0, 1). `reachable`: the cluster itself refused. `at_least` is the wait that it
        asked for.
        """
        ceiling = self._pace.near if reachable else self._pace.cap
        spread = min(self._pace.first * 2.0**self._failures, ceiling)
        self._failures = min(self._failures + 1, 32)
        return at_least + chance * spread


class KeyedTokenBuckets(Generic[Key]):
    """A token bucket per key: `burst` tokens, one more every `seconds`. Times are monotonic seconds.

    A bucket is one number, the time at which it is full, so a full bucket needs no memory. At most `limit` keys are
    stored. Beyond that the least recently used key is dropped, which refills its bucket: if clients choose the keys,
    something else must limit the sum.
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


class LogThrottle:
    """Limits repeated log lines: one per `PAUSE` for each kind of event. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_logged: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()

    def log(self, event: Hashable, write: Callable[[Mapping[str, int]], object]) -> bool:
        """Call `write` unless that kind of event was logged recently, and report whether it was called.

        `write` receives {"more_since": N}, the number suppressed since the last call, {} for none.
        """
        now = self._clock()
        until, count = self._last_logged.get(event, (now, 0))
        if now < until:
            self._last_logged[event] = (until, count + 1)
            return False
        self._last_logged[event] = (now + PAUSE, 0)
        self._last_logged.move_to_end(event)
        if len(self._last_logged) > _REMEMBERED:
            self._last_logged.popitem(last=False)
        write({"more_since": count} if count else {})
        return True


class TooLarge(Unreachable):
    """A cluster sent more than allowed."""

    title = "response too large"


class ClusterPaused(TooLarge):
    """The cluster is paused because it sent too much. `retry_after` is the rest of the pause."""

    title = "requests are paused"


class ResponseBudget:
    """The bytes of all incomplete responses of one cluster."""

    def __init__(self, most: int = IN_FLIGHT) -> None:
        self.held = 0
        self._most = most

    def take(self, size: int) -> None:
        """Add bytes. Raises Unreachable when the total exceeds the limit.

        It is no breach: a retry will find fewer responses in progress.
        """
        self.held += size
        if self.held > self._most:
            raise Unreachable(f"more than {self._most >> 20} MiB of responses are in progress at once")

    def give_back(self, size: int) -> None:
        """Subtract bytes."""
        self.held -= size


class OversizeBackoff:
    """The pauses of a cluster that sent too much, in seconds. Each is twice as long as the last.

    After `forgiven` seconds without a breach, pauses start at `first` again.
    """

    def __init__(self, first: float = 10.0, cap: float = 600.0, forgiven: float = 1200.0) -> None:
        self.until = 0.0
        self.message = ""
        self._first = first
        self._cap = cap
        self._reset_after = forgiven
        self._breaches = 0

    def note(self, now: float, message: str) -> float:
        """Record a breach and return the seconds of its pause. A breach during a pause does not extend it."""
        if now < self.until:
            return self.until - now
        if now - self.until > self._reset_after:
            self._breaches = 0
        pause = min(self._first * 2.0 ** min(self._breaches, 32), self._cap)
        self._breaches += 1
        self.until, self.message = now + pause, message
        return pause

    def left(self, now: float) -> float:
        """Return the remaining seconds of the pause, 0 without one."""
        return max(self.until - now, 0.0)

    @property
    def trusted_from(self) -> float:
        """When the cluster counts as healthy again: some time after its pause, in which it is tried."""
        return self.until + min(self._first, self._cap)


class CacheLimit(NamedTuple):
    """The most that the caches of one cluster may hold."""

    objects: int = OBJECTS
    content: int = CONTENT

    def check(self, tally: CacheTotals, *, listing: bool = False) -> None:
        """Raise TooLarge if the tally exceeds the limits. `listing`: a list is being read."""
        more = 1 + listing / FRESH
        if tally.objects > self.objects * more:
            raise TooLarge(f"more than {self.objects:,} objects in total")
        if tally.content > self.content * more:
            raise TooLarge(f"objects of more than {mebibytes(self.content)} in total")


def mebibytes(size: int) -> str:
    """Format a number of bytes for people."""
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
