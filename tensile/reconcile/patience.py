"""The books the loop keeps about keys that cannot go on: what they wait for, which steps were refused, what was told.

All are plain data with the time passed in. A refused step rests for a while that doubles; the key's other steps
do not, so a pod whose creation is denied can still be reported on, and deleted.
"""

from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass

from tensile.objects import EVENT, Ref
from tensile.reconcile.plan import Identity, Step
from tensile.world import Key, Problem

FIRST_REST = 0.1
LONGEST_REST = 5.0
LASTING_REST = 60.0
"""Seconds for a change of something that runs: what refuses it, a policy as a rule, seldom thinks better of it."""
RETOLD = 1800.0
"""Seconds after which the same is told again."""
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


class Telling:
    """Which Events have been told: a rule that goes on saying the same of something need not be heard each time.

    An apiserver drops Events after a while, an hour as a rule; what is still said then is told again.
    """

    def __init__(self, limit: int = 10_000) -> None:
        self._told: OrderedDict[Ref, float] = OrderedDict()
        self._limit = limit

    def fresh(self, steps: tuple[Step, ...], now: float) -> tuple[Step, ...]:
        """Give the steps without those that would tell what was told lately; `now` is in seconds."""
        return tuple(step for step in steps if now - self._told.get(step.ref, -RETOLD) >= RETOLD)

    def note(self, step: Step, now: float) -> None:
        """Note that a step came through, or that its Event was there; beyond the limit the oldest are forgotten."""
        if step.ref.kind == EVENT:
            self._told[step.ref] = now
            self._told.move_to_end(step.ref)
            if len(self._told) > self._limit:
                self._told.popitem(last=False)


@dataclass(slots=True)
class _Refusal:
    until: float
    tries: int
    problem: Problem | None


class Refusals:
    """The refused steps of each key, and until when they rest; times are monotonic seconds."""

    def __init__(self) -> None:
        self._refused: dict[Key, dict[Identity, _Refusal]] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._refused

    def note(
        self, key: Key, step: Step, now: float, *, jitter: float, at_least: float = 0.0, problem: Problem | None = None
    ) -> float:
        """Note a refusal; gives for how many seconds the step rests.

        `jitter` is in [0, 1), `at_least` what the cluster itself asked for, in seconds; `problem` is what it said.
        """
        book = self._refused.setdefault(key, {})
        known = book.get(step.identity)
        tries = known.tries + 1 if known else 0
        longest = LASTING_REST if step.apart and problem else LONGEST_REST
        rest = at_least + min(FIRST_REST * 2.0 ** min(tries, 10), longest) * (0.5 + jitter / 2)
        said = problem or (known.problem if known else None)
        book[step.identity] = _Refusal(now + rest, tries, said)
        return rest

    def rested(self, key: Key, steps: tuple[Step, ...], now: float) -> tuple[Step, ...]:
        """Give the steps that may be tried now: what follows one that still rests may not, unless that is apart."""
        book = self._refused.get(key)
        if book is None:
            return steps
        found: list[Step] = []
        for step in steps:
            known = book.get(step.identity)
            if known is None or now >= known.until:
                found.append(step)
            elif not step.apart:
                break
        return tuple(found)

    def left(self, key: Key, now: float) -> float:
        """Give for how many seconds the refused steps of a key still rest: the first of them, a moment at least."""
        resting = [one.until - now for one in self._refused[key].values() if one.until > now]
        return max(min(resting, default=0.0), SHORTEST_LOOK)

    def problem(self, key: Key) -> Problem | None:
        """Give what was said of the refused steps of a key, None where no cluster has said anything."""
        said = [one.problem for one in self._refused.get(key, {}).values() if one.problem]
        if not said:
            return None
        return Problem(said[0].reason, "; ".join(dict.fromkeys(one.message for one in said)))

    def hasten(self, now: float, within: float) -> None:
        """Let what would rest for up to so many seconds more be tried now."""
        for refusal in (one for book in self._refused.values() for one in book.values()):
            if refusal.until <= now + within:
                refusal.until = min(refusal.until, now)

    def forgive(self, key: Key, step: Step) -> bool:
        """Forget the refusal of a step that came through; says whether there was one."""
        book = self._refused.get(key, {})
        known = book.pop(step.identity, None)
        if known is not None and not book:
            del self._refused[key]
        return known is not None

    def settle(self, key: Key, steps: tuple[Step, ...]) -> None:
        """Forget the refusals of steps that are not wanted any more."""
        book = self._refused.get(key)
        if book is None:
            return
        wanted = {step.identity for step in steps}
        for gone in [one for one in book if one not in wanted]:
            del book[gone]
        if not book:
            del self._refused[key]

    def forget(self, lower: str) -> None:
        """Drop every key of one lower."""
        for key in [key for key in self._refused if key.lower == lower]:
            del self._refused[key]
