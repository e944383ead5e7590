"""How fast and how often: a token bucket for requests, and the waits between tries.

Both are arithmetic over a clock and a die that are passed in, so that a test needs neither time nor luck.
"""

from typing import NamedTuple


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
        """Give the seconds to wait after one more failure.

        `chance` is a random number in [0, 1). `answered`: the cluster itself said no. `at_least` is what it asked for.
        """
        ceiling = self._pace.near if answered else self._pace.cap
        spread = min(self._pace.first * 2.0**self._failures, ceiling)
        self._failures = min(self._failures + 1, 32)
        return at_least + chance * spread
