"""How often something may be done for each of many keys: token buckets in bounded memory.

A bucket is one number, the moment at which it is full again. So a bucket that is full needs no memory, and a key that
was quiet for long enough is the same as one that was never seen.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

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
