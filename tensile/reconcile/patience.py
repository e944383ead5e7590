"""Two books the loop keeps about keys that cannot go on: what they wait for, and which step was refused.

Both are plain data with the time passed in. A refused step rests for a while that doubles; the key's other steps
do not, so a pod whose creation is denied can still be reported on, and deleted.
"""

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass

from tensile.reconcile.plan import Step
from tensile.world import Key

FIRST_REST = 0.1
LONGEST_REST = 5.0
SHORTEST_LOOK = 0.01
"""Seconds: event loops round the times of their timers, so that one may fire before the rest it stands for is over."""


class Waits:
    """Which keys wait for which: they are looked at again when the awaited one was."""

    def __init__(self) -> None:
        self._awaited: dict[Key, frozenset[Key]] = {}
        self._waiting: dict[Key, set[Key]] = {}

    def note(self, key: Key, awaited: Iterable[Key]) -> frozenset[Key]:
        """Take over all that a key waits for now; gives what it did not wait for before."""
        wanted, known = frozenset(awaited), self._awaited.get(key, frozenset())
        for gone in known - wanted:
            self._leave(gone, key)
        for fresh in wanted - known:
            self._waiting.setdefault(fresh, set()).add(key)
        if wanted:
            self._awaited[key] = wanted
        else:
            self._awaited.pop(key, None)
        return wanted - known

    def waiting_for(self, key: Key) -> Iterator[Key]:
        """Give the keys that wait for this one."""
        yield from tuple(self._waiting.get(key, ()))

    def hopeful(self, problems: Container[Key]) -> int:
        """Count the keys all of whose awaited keys have no problem."""
        return sum(not any(one in problems for one in awaited) for awaited in self._awaited.values())

    def forget(self, lower: str) -> None:
        """Drop every key of one lower."""
        for key in [key for key in self._awaited if key.lower == lower]:
            self.note(key, ())

    def _leave(self, awaited: Key, key: Key) -> None:
        waiting = self._waiting[awaited]
        waiting.discard(key)
        if not waiting:
            del self._waiting[awaited]


@dataclass(slots=True)
class _Refusal:
    step: tuple[str, object, str]
    until: float
    tries: int


class Refusals:
    """The last refused step of each key, and until when it rests; times are monotonic seconds."""

    def __init__(self) -> None:
        self._refused: dict[Key, _Refusal] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._refused

    def note(self, key: Key, step: Step, now: float, jitter: float, at_least: float = 0.0) -> float:
        """Note a refusal; gives for how many seconds the step rests.

        `jitter` is in [0, 1), `at_least` what the cluster itself asked for, in seconds.
        """
        known = self._refused.get(key)
        tries = known.tries + 1 if known and known.step == step.identity else 0
        rest = at_least + min(FIRST_REST * 2.0 ** min(tries, 10), LONGEST_REST) * (0.5 + jitter / 2)
        self._refused[key] = _Refusal(step.identity, now + rest, tries)
        return rest

    def rested(self, key: Key, steps: tuple[Step, ...], now: float) -> tuple[Step, ...]:
        """Give the steps that may be tried now: those before one that still rests."""
        known = self._refused.get(key)
        if known is None or now >= known.until:
            return steps
        place = next((place for place, step in enumerate(steps) if step.identity == known.step), len(steps))
        return steps[:place]

    def left(self, key: Key, now: float) -> float:
        """Give for how many seconds the refused step of a key still rests, a moment at least."""
        return max(self._refused[key].until - now, SHORTEST_LOOK)

    def hasten(self, now: float, within: float) -> None:
        """Let what would rest for up to so many seconds more be tried now."""
        for refusal in self._refused.values():
            if refusal.until <= now + within:
                refusal.until = min(refusal.until, now)

    def forgive(self, key: Key, step: Step) -> bool:
        """Forget the refusal of a step that came through; says whether there was one."""
        known = self._refused.get(key)
        if known is None or known.step != step.identity:
            return False
        del self._refused[key]
        return True

    def settle(self, key: Key, steps: tuple[Step, ...]) -> None:
        """Forget the refusal of a step that is not wanted any more."""
        known = self._refused.get(key)
        if known is not None and all(step.identity != known.step for step in steps):
            del self._refused[key]

    def forget(self, lower: str) -> None:
        """Drop every key of one lower."""
        for key in [key for key in self._refused if key.lower == lower]:
            del self._refused[key]
