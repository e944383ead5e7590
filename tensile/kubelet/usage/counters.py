"""Rates made into counters that only grow, because readers of a kubelet take differences of counters.

The time since the last sample counts at the new sample's rate, not only the sample's own window: samples that nobody
asked for are missed, and a reader that divides by the time between two readings then finds the rate again. A counter
that begins anew, as all do when the engine starts, begins so low that no reader finds more than what is used.
"""

from collections.abc import Hashable
from typing import NamedTuple

_THOUSAND = 1000
_LEAST = 1000
_YOUNG = 60_000
"""Milliseconds in which a reader may take a container's whole counter for what it used since it started."""


class Counter(NamedTuple):
    """Nanoseconds of cpu used up to a `time` in milliseconds since 1970; never 0, which readers take for missing."""

    time: int
    used: int


def begun(rate: int, time: int, window: int, started: int | None = None) -> Counter:
    """Begin a counter at a sample: its `window` at its `rate` (nanoseconds a second).

    What `started` (milliseconds since 1970) less than a minute before counts from then on.
    """
    age = window if started is None else time - started
    held = age if 0 <= age <= _YOUNG else window
    return Counter(time, max(_LEAST, rate * held // _THOUSAND))


def advanced(counter: Counter, rate: int, time: int) -> Counter:
    """Let a counter count on to a sample; one that is not newer changes nothing."""
    if time <= counter.time:
        return counter
    return Counter(time, counter.used + rate * (time - counter.time) // _THOUSAND)


class Ledger:
    """The counters of one virtual node, by what they count."""

    def __init__(self) -> None:
        self._counters: dict[Hashable, Counter] = {}

    def __len__(self) -> int:
        return len(self._counters)

    def count(self, key: Hashable, rate: int, time: int, window: int, started: int | None = None) -> Counter:
        """Take in a sample of what `key` names, as `begun` and `advanced` do, and give the counter."""
        known = self._counters.get(key)
        counter = begun(rate, time, window, started) if known is None else advanced(known, rate, time)
        self._counters[key] = counter
        return counter

    def forget_all_but(self, keys: set[Hashable]) -> None:
        """Drop the counters of what is no more."""
        self._counters = {key: counter for key, counter in self._counters.items() if key in keys}
