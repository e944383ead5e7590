"""State of keys that are blocked: their dependencies, back-off of refused steps, recorded Events, repeated writes.

All classes are plain data, with the time passed in. A step that failed is tried again after doubling times, a denied
one about every 5 s. The steps before it, and independent ones after it, are still tried: so the status of a pod whose
creation is denied is updated, and the pod can be deleted.
"""

import re
from collections import OrderedDict
from collections.abc import Container, Hashable
from dataclasses import dataclass
from hashlib import sha256
from http import HTTPStatus
from typing import TypeVar

import orjson

from tensile.errors import ClusterError, Throttled
from tensile.kube.limits import KeyedTokenBuckets
from tensile.objects import EVENT, POD, Ref
from tensile.reconcile.plan import Step, StepIdentity
from tensile.reconcile.world import Key, Problem

MIN_DELAY = 0.1
MAX_DELAY = 5.0
"""The longest back-off in seconds without a denial: a cluster that is back is used soon."""
FIRST_DELAY_AFTER_DENIAL = 1.0
DELAY_AFTER_DENIAL = 5.5
"""Seconds between two tries after a denial. With one early retry, for a transient cause, that is at most twelve tries
per minute."""
SPREAD_AFTER_DENIAL = 0.5
MAX_DELAY_OF_DENIED_CHANGE = 60.0
"""The longest back-off in seconds for a denied change of a running object: usually a policy denies it, which rarely
changes."""
EVENT_INTERVAL = 1800.0
"""Seconds after which the same Event is recorded again."""
REWORDED_INTERVAL = 60.0
"""Seconds after which an Event with another message for the same refusal is recorded: some messages contain a port or
time."""
EVENTS_PER_OBJECT = (25, 60.0)
"""The burst of Events about one object, and the seconds after which one more is allowed.

Messages quote annotations of upper objects and responses of lower clusters. So whoever writes these determines the
message, and another message is another Event."""
LONG_WAIT = 2.0
"""A cluster that asks for a longer wait, in seconds, is reported to users."""
FREE_REPETITIONS = 10
"""How often one change of one object is made without delay. If it is needed more often, another client reverts it."""
REPETITION_SECONDS = 30.0
"""Seconds within which the same change counts as a repetition."""
_VARYING_PARTS = re.compile(
    rb'"[0-9-]{10}T[0-9:.]{8,15}Z"|"/metadata/resourceVersion","value":"[0-9]+"|"resourceVersion":"[0-9]+"'
)
"""What differs each time in the same write: times, and the version that it rests on."""
SHORTEST_DELAY = 0.01
"""The shortest delay in seconds: event loops round timers, so one may fire before the back-off is over."""

_NO_KEYS = frozenset[Key]()
_Recorded = TypeVar("_Recorded", bound=Hashable)


class DependencyIndex:
    """The dependencies between keys: a key is enqueued again after a key that it depends on was reconciled.

    There are no cycles. Keys that wait for each other, such as claims that are each other's data source, would be
    enqueued again and again.
    """

    def __init__(self) -> None:
        self._dependencies: dict[Key, frozenset[Key]] = {}
        self._dependents: dict[Key, set[Key]] = {}

    def note(self, key: Key, dependencies: tuple[Key, ...]) -> frozenset[Key]:
        """Replace the dependencies of a key, but for keys that depend on it. Return the new ones."""
        known = self._dependencies.get(key, _NO_KEYS)
        if not dependencies and not known:
            return _NO_KEYS
        accepted = frozenset(dependency for dependency in dependencies if not self._depends_on(dependency, key))
        for removed in known - accepted:
            self._remove_dependent(removed, key)
        for added in accepted - known:
            self._dependents.setdefault(added, set()).add(key)
        if accepted:
            self._dependencies[key] = accepted
        else:
            self._dependencies.pop(key, None)
        return accepted - known

    def dependents(self, key: Key) -> tuple[Key, ...]:
        """Return the keys that depend on this one."""
        return tuple(self._dependents.get(key, ()))

    def count_unblocked(self, problems: Container[Key]) -> int:
        """Return the number of waiting keys that are not blocked themselves, nor by a dependency."""
        waiting = ((key, *dependencies) for key, dependencies in self._dependencies.items())
        return sum(not any(one in problems for one in keys) for keys in waiting)

    def forget(self, lower: str) -> None:
        """Remove every key of one lower."""
        for key in [key for key in self._dependencies if key.lower == lower]:
            self.note(key, ())

    def _depends_on(self, key: Key, target: Key) -> bool:
        """Report whether a key is another one, or waits for it, directly or through others."""
        seen, pending = set(), [key]
        while pending:
            current = pending.pop()
            if current == target:
                return True
            if current not in seen:
                seen.add(current)
                pending += self._dependencies.get(current, ())
        return False

    def _remove_dependent(self, dependency: Key, key: Key) -> None:
        waiting = self._dependents[dependency]
        waiting.discard(key)
        if not waiting:
            del self._dependents[dependency]


def is_answer(error: ClusterError) -> bool:
    """Report whether the error is a response of a working cluster: it is busy, or one of its webhooks fails."""
    return isinstance(error, Throttled) or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR


def is_lasting(error: ClusterError) -> bool:
    """Report whether such an error is reported at its first occurrence. Others are when they occur twice.

    The API uses "InternalError" for a webhook or quota that does not respond.
    """
    return error.reason == "InternalError" or error.retry_after > LONG_WAIT


class EventDeduplicator:
    """Deduplicates Events: a rule may return the same Event each time.

    An apiserver deletes Events after some time, usually an hour. If the cause persists, the Event is recorded again.
    """

    def __init__(self, limit: int = 10_000) -> None:
        self._last_recorded: OrderedDict[Ref, float] = OrderedDict()
        self._last_by_reason: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._event_buckets: KeyedTokenBuckets[str] = KeyedTokenBuckets(*EVENTS_PER_OBJECT, limit)
        self._limit = limit

    def fresh(self, steps: tuple[Step, ...], now: float, *, refused: bool = False) -> tuple[Step, ...]:
        """Return the steps without Events that were recorded recently. `now` is in seconds.

        `refused`: a step of the key is refused, so each retry may produce the same Event with another message. Those
        are delayed.
        """
        return tuple([one for one in steps if one.ref.kind != EVENT or self._is_fresh(one, now, refused=refused)])

    def _is_fresh(self, step: Step, now: float, *, refused: bool) -> bool:
        """Report whether an Event may be recorded: not recently recorded, and not too many about the same object."""
        if now - self._last_recorded.get(step.ref, -EVENT_INTERVAL) < EVENT_INTERVAL or self._event_buckets.left(
            _object_and_reason(step)[0], now
        ):
            return False
        return (
            not refused
            or now - self._last_by_reason.get(_object_and_reason(step), -REWORDED_INTERVAL) >= REWORDED_INTERVAL
        )

    def note(self, step: Step, now: float) -> None:
        """Record that a step succeeded, or that its Event existed. Beyond the limit the oldest are dropped."""
        if step.ref.kind == EVENT:
            _remember(self._last_recorded, step.ref, now, self._limit)
            _remember(self._last_by_reason, _object_and_reason(step), now, self._limit)
            self._event_buckets.take(_object_and_reason(step)[0], now)


def _remember(times: OrderedDict[_Recorded, float], item: _Recorded, now: float, limit: int) -> None:
    times[item] = now
    times.move_to_end(item)
    if len(times) > limit:
        times.popitem(last=False)


def _object_and_reason(step: Step) -> tuple[str, str]:
    """Return the UID of the object of an Event, and the reason."""
    body = step.body or {}
    return str(body.get("involvedObject", {}).get("uid", "")), str(body.get("reason", ""))


@dataclass(slots=True)
class _Refusal:
    until: float
    tries: int
    problem: Problem | None


class FailureBackoff:
    """The refused steps of each key, and when they may be retried. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._refused: dict[Key, dict[StepIdentity, _Refusal]] = {}

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
        """Record a failure. Return the back-off in seconds.

        `jitter` is in [0, 1), `at_least` the wait in seconds that the cluster asked for, and `problem` the reason that
        it gave. `denied`: the cluster does not allow it, as opposed to a lost race.
        """
        refusals = self._refused.setdefault(key, {})
        known = refusals.get(step.identity)
        tries = known.tries + 1 if known else 0
        reported = problem or (known.problem if known else None)
        if denied and not step.independent:
            delay = at_least + _delay_after_denial(tries, jitter)
        else:
            longest = MAX_DELAY_OF_DENIED_CHANGE if step.independent and problem else MAX_DELAY
            delay = at_least + min(MIN_DELAY * 2.0 ** min(tries, 10), longest) * (0.5 + jitter / 2)
        refusals[step.identity] = _Refusal(now + delay, tries, reported)
        return delay

    def is_refused(self, key: Key, step: Step) -> bool:
        """Report whether a step of a key was refused and has not succeeded since."""
        return step.identity in self._refused.get(key, {})

    def retryable_steps(self, key: Key, steps: tuple[Step, ...], now: float) -> tuple[Step, ...]:
        """Return the steps that may be tried now. One in back-off blocks the later ones unless it is `independent`."""
        refusals = self._refused.get(key)
        if refusals is None:
            return steps
        retryable: list[Step] = []
        for step in steps:
            known = refusals.get(step.identity)
            if known is None or now >= known.until:
                retryable.append(step)
            elif not step.independent:
                break
        return tuple(retryable)

    def left(self, key: Key, now: float) -> float:
        """Return the shortest remaining back-off of a key's refused steps in seconds, at least `SHORTEST_DELAY`."""
        remaining = [one.until - now for one in self._refused[key].values() if one.until > now]
        return max(min(remaining, default=0.0), SHORTEST_DELAY)

    def problem(self, key: Key) -> Problem | None:
        """Return the combined reasons for the refused steps of a key, None if no cluster gave any."""
        refusals = self._refused.get(key)
        reported = [refusal.problem for refusal in refusals.values() if refusal.problem] if refusals else []
        if not reported:
            return None
        return reported[0]._replace(message="; ".join(dict.fromkeys(refusal.message for refusal in reported)))

    def expedite(self, now: float, within: float) -> None:
        """Make steps whose back-off ends within so many seconds available now."""
        for refusal in (one for refusals in self._refused.values() for one in refusals.values()):
            if refusal.until <= now + within:
                refusal.until = min(refusal.until, now)

    def clear(self, key: Key, step: Step) -> bool:
        """Remove the refusal of a step that succeeded. Report whether there was one."""
        refusals = self._refused.get(key, {})
        known = refusals.pop(step.identity, None)
        if known is not None and not refusals:
            del self._refused[key]
        return known is not None

    def retain(self, key: Key, steps: tuple[Step, ...]) -> None:
        """Remove the refusals of steps that are not wanted any more."""
        refusals = self._refused.get(key)
        if refusals is None:
            return
        wanted = {step.identity for step in steps}
        for obsolete in [identity for identity in refusals if identity not in wanted]:
            del refusals[obsolete]
        if not refusals:
            del self._refused[key]

    def forget(self, lower: str) -> None:
        """Remove every key of one lower."""
        for key in [key for key in self._refused if key.lower == lower]:
            del self._refused[key]


class WriteThrottle:
    """Steps that succeed repeatedly because another client reverts the change.

    It may be a controller, or another engine with other permissions or connections. The change is then made every few
    seconds instead of as fast as both can write. The same applies to repeated reads that lead to no decision, as a
    lower cluster determines their result. `limit` is how many objects are tracked.
    """

    def __init__(self, limit: int = 10_000) -> None:
        self._writes: OrderedDict[tuple[Ref, str], dict[bytes, tuple[int, float]]] = OrderedDict()
        self._limit = limit

    def note(self, step: Step, now: float) -> None:
        """Record that a step succeeded. Times are monotonic seconds."""
        if not _is_limited(step):
            return
        target, content = _target(step), _content(step)
        changes = {
            one: known for one, known in self._writes.pop(target, {}).items() if now - known[1] < REPETITION_SECONDS
        }
        changes[content] = (changes.get(content, (0, 0.0))[0] + 1, now)
        self._writes[target] = changes
        if len(self._writes) > self._limit:
            self._writes.popitem(last=False)

    def left(self, step: Step, now: float) -> float:
        """Return the seconds to delay a step that was repeated too often, 0.0 or less for none."""
        changes = self._writes.get(_target(step)) if _is_limited(step) else None
        if not changes or all(count < FREE_REPETITIONS for count, _ in changes.values()):
            return 0.0
        count, last = changes.get(_content(step), (0, now))
        if count < FREE_REPETITIONS or now - last >= REPETITION_SECONDS:
            return 0.0
        return last + min(MIN_DELAY * 2.0 ** min(count - FREE_REPETITIONS, 10), MAX_DELAY) - now


def _is_limited(step: Step) -> bool:
    """Report whether repetitions of a step are limited: changes that may be reverted, and reads.

    Creation of pods is not limited: pods with the same name may come and go as users like.
    """
    is_recreation = step.verb == "create" and step.ref.kind not in (POD, EVENT)
    return step.patch is not None or step.verb == "confirm" or is_recreation


def _target(step: Step) -> tuple[Ref, str]:
    return step.ref, step.subresource


def _content(step: Step) -> bytes:
    """Return what identifies a change of an object, apart from its time. b"" for its creation.

    For a read it is the UID that is looked for.
    """
    if step.verb == "confirm":
        return f"confirm {step.uid}".encode()
    return b"" if step.patch is None else sha256(_VARYING_PARTS.sub(b"", orjson.dumps(step.patch.body))).digest()


def _delay_after_denial(tries: int, jitter: float) -> float:
    """Return the seconds until a denied step may be retried, after `tries` earlier retries."""
    return DELAY_AFTER_DENIAL + SPREAD_AFTER_DENIAL * jitter if tries else FIRST_DELAY_AFTER_DENIAL * (0.5 + jitter / 2)
