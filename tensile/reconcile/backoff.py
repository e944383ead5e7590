"""The books the loop keeps about keys that cannot go on: what they wait for, which steps were refused, what was told.

All are plain data with the time passed in. A refused step rests for a while that doubles; the key's other steps
do not, so a pod whose creation is denied can still be reported on, and deleted.
"""

import re
from collections import OrderedDict
from collections.abc import Container, Hashable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from http import HTTPStatus
from typing import TypeVar

import orjson

from tensile.errors import ClusterError, Throttled
from tensile.kube.limits import Allowances
from tensile.objects import EVENT, POD, Ref
from tensile.reconcile.plan import Identity, Step
from tensile.reconcile.world import Key, Problem

FIRST_REST = 0.1
LONGEST_REST = 5.0
"""Seconds between two tries where nobody has said no: a cluster that is back is used soon."""
FIRST_REST_OF_DENIED = 1.0
REST_OF_DENIED = 5.5
"""Seconds where a cluster has: with one try soon, for what was only a moment, twelve in a minute and never more."""
SPREAD_OF_DENIED = 0.5
LASTING_REST = 60.0
"""Seconds for a change of something that runs: what refuses it, a policy as a rule, seldom thinks better of it."""
RETOLD = 1800.0
"""Seconds after which the same is told again."""
REWORDED = 60.0
"""Seconds after which a refusal in other words is told: some name a port, or the time."""
OF_AN_OBJECT = (25, 60.0)
"""Events about one object: so many at once, and one more for each so many seconds.

What is told quotes annotations above and answers below, so that whoever writes those chooses the words, and other words
are another Event.
"""
LONG_WAIT = 2.0
"""Seconds: a cluster that asks for more of them is said to, and not only to itself."""
REPEATED = 10
"""So many times one change of one object is made as soon as it is wanted: more often, somebody else undoes it."""
REPEATED_WITHIN = 30.0
"""Seconds in which a change that is made again counts as the same one's repetition."""
_MOMENTS = re.compile(
    rb'"[0-9-]{10}T[0-9:.]{8,15}Z"|"/metadata/resourceVersion","value":"[0-9]+"|"resourceVersion":"[0-9]+"'
)
"""What differs each time that the same is written: moments, and the version that it rests on."""
SHORTEST_LOOK = 0.01
"""Seconds: event loops round the times of their timers, so that one may fire before the rest it stands for is over."""


class Waits:
    """Which keys wait for which: they are looked at again when the awaited one was."""

    def __init__(self) -> None:
        self._awaited: dict[Key, frozenset[Key]] = {}
        self._waiting: dict[Key, set[Key]] = {}

    def note(self, key: Key, awaited: Iterable[Key]) -> frozenset[Key]:
        """Take over all that a key waits for now; returns what it did not wait for before."""
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
        """Yield the keys that wait for this one."""
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


def is_answer(error: ClusterError) -> bool:
    """Report whether a cluster has answered that it does not do something now: a webhook of its fails, or it is busy."""
    return isinstance(error, Throttled) or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR


def is_lasting(error: ClusterError) -> bool:
    """Report whether such an answer is worth telling at once: others are told when they come twice.

    "InternalError" is what the API says for a webhook or a quota that does not answer it.
    """
    return error.reason == "InternalError" or error.retry_after > LONG_WAIT


class Telling:
    """Which Events have been told: a rule that goes on saying the same of something need not be heard each time.

    An apiserver drops Events after a while, an hour as a rule; what is still said then is told again.
    """

    def __init__(self, limit: int = 10_000) -> None:
        self._told: OrderedDict[Ref, float] = OrderedDict()
        self._about: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._often: Allowances[str] = Allowances(*OF_AN_OBJECT, limit)
        self._limit = limit

    def fresh(self, steps: tuple[Step, ...], now: float, *, refused: bool = False) -> tuple[Step, ...]:
        """Return the steps without those that would tell what was told lately; `now` is in seconds.

        `refused`: something of the key is refused, so that it is looked at again, and may say the same in other words
        with each try. Those can wait.
        """
        return tuple(one for one in steps if one.ref.kind != EVENT or self._is_fresh(one, now, refused=refused))

    def _is_fresh(self, step: Step, now: float, *, refused: bool) -> bool:
        """Report whether an Event may be told: not lately, nor in too many words of the same object."""
        if now - self._told.get(step.ref, -RETOLD) < RETOLD or self._often.left(_about(step)[0], now):
            return False
        return not refused or now - self._about.get(_about(step), -REWORDED) >= REWORDED

    def note(self, step: Step, now: float) -> None:
        """Note that a step came through, or that its Event was there; beyond the limit the oldest are forgotten."""
        if step.ref.kind == EVENT:
            _remember(self._told, step.ref, now, self._limit)
            _remember(self._about, _about(step), now, self._limit)
            self._often.take(_about(step)[0], now)


Told = TypeVar("Told", bound=Hashable)


def _remember(book: OrderedDict[Told, float], what: Told, now: float, limit: int) -> None:
    book[what] = now
    book.move_to_end(what)
    if len(book) > limit:
        book.popitem(last=False)


def _about(step: Step) -> tuple[str, str]:
    """Return the UID of what an Event is about, and its reason."""
    body = step.body or {}
    return str(body.get("involvedObject", {}).get("uid", "")), str(body.get("reason", ""))


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
        self,
        key: Key,
        step: Step,
        now: float,
        *,
        jitter: float,
        at_least: float = 0.0,
        problem: Problem | None = None,
        denied: bool = False,
    ) -> float:
        """Note a refusal; returns for how many seconds the step rests.

        `jitter` is in [0, 1), `at_least` what the cluster itself asked for, in seconds; `problem` is what it said.
        `denied`: the cluster has said no, and not that something else was quicker.
        """
        book = self._refused.setdefault(key, {})
        known = book.get(step.identity)
        tries = known.tries + 1 if known else 0
        said = problem or (known.problem if known else None)
        if denied and not step.apart:
            rest = at_least + _rest_of_denied(tries, jitter)
        else:
            longest = LASTING_REST if step.apart and problem else LONGEST_REST
            rest = at_least + min(FIRST_REST * 2.0 ** min(tries, 10), longest) * (0.5 + jitter / 2)
        book[step.identity] = _Refusal(now + rest, tries, said)
        return rest

    def is_refused(self, key: Key, step: Step) -> bool:
        """Report whether a step of a key was refused before, and has not come through since."""
        return step.identity in self._refused.get(key, {})

    def rested(self, key: Key, steps: tuple[Step, ...], now: float) -> tuple[Step, ...]:
        """Return the steps that may be tried now: what follows one that still rests may not, unless that is apart."""
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
        """Return for how many seconds the refused steps of a key still rest: the first of them, a moment at least."""
        resting = [one.until - now for one in self._refused[key].values() if one.until > now]
        return max(min(resting, default=0.0), SHORTEST_LOOK)

    def problem(self, key: Key) -> Problem | None:
        """Return what was said of the refused steps of a key, None where no cluster has said anything."""
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


class Repetitions:
    """Steps that came through, again and again: somebody else wants the object to be otherwise.

    It may be another engine, which cannot reach what this one can, or a controller. The change is made every few
    seconds then, and not as fast as two can write in turn. So is a read that leads to no decision, whatever the reason:
    a lower cluster decides what is read there. `limit` bounds how many objects are remembered.
    """

    def __init__(self, limit: int = 10_000) -> None:
        self._made: OrderedDict[tuple[Ref, str], dict[bytes, tuple[int, float]]] = OrderedDict()
        self._limit = limit

    def note(self, step: Step, now: float) -> None:
        """Note that a step came through; times are monotonic seconds."""
        if not _counts(step):
            return
        place, content = _place(step), _content(step)
        book = {one: known for one, known in self._made.pop(place, {}).items() if now - known[1] < REPEATED_WITHIN}
        book[content] = (book.get(content, (0, 0.0))[0] + 1, now)
        self._made[place] = book
        if len(self._made) > self._limit:
            self._made.popitem(last=False)

    def left(self, step: Step, now: float) -> float:
        """Return for how many seconds a step has to rest because the same was done too often, 0.0 or less for none."""
        book = self._made.get(_place(step)) if _counts(step) else None
        if not book or all(times < REPEATED for times, _ in book.values()):
            return 0.0
        times, last = book.get(_content(step), (0, now))
        if times < REPEATED or now - last >= REPEATED_WITHIN:
            return 0.0
        return last + min(FIRST_REST * 2.0 ** min(times - REPEATED, 10), LONGEST_REST) - now


def _counts(step: Step) -> bool:
    """Report whether a step may come again and again: one that somebody undoes each time, or a read.

    Pods are left out where they are created: those of one name come and go as people like.
    """
    is_undone = step.verb == "create" and step.ref.kind not in (POD, EVENT)
    return step.patch is not None or step.verb == "confirm" or is_undone


def _place(step: Step) -> tuple[Ref, str]:
    return step.ref, step.subresource


def _content(step: Step) -> bytes:
    """Tell what a step changes from every other change of that object, whenever it is made; b"" for its making.

    A read is told from others by the UID that is looked for.
    """
    if step.verb == "confirm":
        return f"confirm {step.uid}".encode()
    return b"" if step.patch is None else sha256(_MOMENTS.sub(b"", orjson.dumps(step.patch.body))).digest()


def _rest_of_denied(tries: int, jitter: float) -> float:
    """Return the seconds until a denied step may be tried again, after so many tries more than one."""
    return REST_OF_DENIED + SPREAD_OF_DENIED * jitter if tries else FIRST_REST_OF_DENIED * (0.5 + jitter / 2)
