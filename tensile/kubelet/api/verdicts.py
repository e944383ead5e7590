"""Answers that hold for a while: a bounded memory with an end for each entry.

Asking the upper cluster about every request would cost a round trip each and take exec down with its first hiccup;
Kubernetes' own kubelet remembers its reviews the same way.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Verdicts(Generic[Key, Value]):
    """What was answered for a key, until its time is over; the entry longest unused goes first when it is full."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[Key, tuple[float, Value]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key, now: float) -> Value | None:
        """Give the answer that holds at `now` (seconds of any clock), None when there is none."""
        end, value = self._entries.get(key, (now, None))
        if end <= now:
            self._entries.pop(key, None)
            return None
        self._entries.move_to_end(key)
        return value

    def put(self, key: Key, value: Value, end: float) -> None:
        """Remember an answer until `end`."""
        self._entries[key] = (end, value)
        self._entries.move_to_end(key)
        if len(self._entries) > self._limit:
            self._entries.popitem(last=False)
