"""The reconcile loop: decide, plan, guard and apply each key, and handle every error in one place.

No other code runs between two awaits, so a decision sees the caches as one snapshot. The loop is level-based: a key is
enqueued whenever something that it depends on changed, and the reason is not stored.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from http import HTTPStatus
from typing import NamedTuple, Protocol
from weakref import WeakSet

from tensile.errors import STATUS_REASONS, AlreadyExists, ClusterError, Conflict, Denied, NotFound, Unreachable
from tensile.kube.cluster import Cluster
from tensile.kube.measures import Histogram
from tensile.kube.store import Cache, Delta, Entry, changed_facts
from tensile.names import NO_ORIGINAL, REPLACES, UPPER_UID, ProblemReason
from tensile.objects import EVENT, UPPER, Manifest, Ref, annotations
from tensile.reconcile.apply import carry_out, is_cached, reread, resolve_existing, with_requested_tokens
from tensile.reconcile.backoff import (
    MAX_DELAY,
    SHORTEST_DELAY,
    DependencyIndex,
    EventDeduplicator,
    FailureBackoff,
    WriteThrottle,
    is_answer,
    is_lasting,
)
from tensile.reconcile.desired import EmitEvent, Rule, Watch, find_cache
from tensile.reconcile.drift import DRIFT_REVERTED, DriftDetector, DriftLog, RecentDrift
from tensile.reconcile.guard import guard, is_restored
from tensile.reconcile.ownership import adoption_problem, conflict
from tensile.reconcile.plan import EVICTION, Plan, Step, event, plan
from tensile.reconcile.redaction import redact_error
from tensile.reconcile.workqueue import FULL_PACE, Pace, QueueReading, Work, WorkQueue
from tensile.reconcile.world import ForeignProblem, Key, Problem, World

DENIED: ProblemReason = "Denied"
"""A cluster refuses a request without a reason of its own; the message has its words. Remedy: change what the
cluster objects to."""
NOT_FOUND: ProblemReason = "NotFound"
"""A cluster does not have what a request names, such as a subresource. Remedy: see the message; an apiserver that is
too old lacks it ([versions](../versions.md))."""
NOT_IN_PLAN: ProblemReason = "NotInPlan"
"""A step is not in the plan that is applied, because it follows from what happened meanwhile. Remedy: run
`tensile plan` again."""
_SYNC_DELAY = 0.05
"""Seconds in which several caches that become synced cause one reconciliation of all keys."""


class Observer(Protocol):
    """Receives what the loop does, for telemetry and for the output of `plan`."""

    def on_step(self, key: Key, step: Step, error: ClusterError | None) -> None:
        """Record that a step succeeded, or its error."""
        ...

    def on_blocked(self, key: Key, problem: Problem) -> None:
        """Record that a key is blocked for a new reason."""
        ...

    def on_unexpected_error(self, key: Key, error: Exception) -> None:
        """Record an unexpected error of a rule, or while its steps are carried out: a bug."""
        ...


class Timing(NamedTuple):
    """Clocks and randomness: `now` returns UTC, `jitter` a float in [0, 1), `clock` seconds for durations."""

    now: Callable[[], datetime]
    jitter: Callable[[], float]
    clock: Callable[[], float] = time.perf_counter


class Loop:
    """Reconciles a world by rules. `clusters` holds the connections by cluster name, including UPPER.

    With `forced` the guard blocks nothing. Steps that a person decides about are only carried out if `permits` allows
    them, None for all. `pace` is that of its queues. `held` are the steps that the guard blocks now, by key.
    `durations` is how long keys were processed, by rule. `drift` has the changes of other clients that were put back.
    """

    def __init__(
        self,
        world: World,
        rules: tuple[Rule, ...],
        clusters: Mapping[str, Cluster],
        observer: Observer,
        timing: Timing,
        *,
        forced: bool = False,
        permits: Callable[[Step], bool] | None = None,
        pace: Pace = FULL_PACE,
    ) -> None:
        self._permits = permits
        self._pace = pace
        self._world = world
        self._rules = {rule.name: rule for rule in rules}
        self._clusters = clusters
        self._observer = observer
        self._timing = timing
        self._forced = forced
        self.held: dict[Key, tuple[Step, ...]] = {}
        self.durations: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.drift = DriftLog()
        self._drift_detector = DriftDetector()
        self._queues: dict[str, WorkQueue] = {}
        self._dependencies = DependencyIndex()
        self._reporters = DependencyIndex()
        self._refusals = FailureBackoff()
        self._events = EventDeduplicator()
        self._repetitions = WriteThrottle()
        self._wake_timers: dict[str, asyncio.TimerHandle] = {}
        self._synced_caches: WeakSet[Cache] = WeakSet()
        for name, watches in self._watches_by_cache(upper=True).items():
            cache = find_cache(world, "", name)
            cache.subscribe(partial(self._on_upper_change, watches, cache))
        for cache in (*world.upper.caches(), *world.upper.more.values(), world.upper.policies):
            self._when_synced(cache, self._wake_all)

    def open(self, lower: str) -> None:
        """Start reconciling a lower: subscribe to its changes, and enqueue all its keys."""
        self._queues[lower] = WorkQueue(self._start, self._pace, durations=self.durations, clock=self._timing.clock)
        for name, watches in self._watches_by_cache(upper=False).items():
            cache = find_cache(self._world, lower, name)
            cache.subscribe(partial(self._on_lower_change, watches, lower, cache))
        lower_world = self._world.lowers[lower]
        lower_world.since = self._timing.now()
        for cache in (*lower_world.caches(), *lower_world.more.values()):
            self._when_synced(cache, partial(self._wake_soon, lower))
        self.enqueue_all(lower)

    async def close(self, lower: str) -> None:
        """Stop reconciling a lower."""
        if lower in self._wake_timers:
            self._wake_timers.pop(lower).cancel()
        await self._queues.pop(lower).close()
        self._dependencies.forget(lower)
        self._reporters.forget(lower)
        self._refusals.forget(lower)
        self._drift_detector.forget(lower)
        for key in [key for key in self._world.problems if key.lower == lower]:
            del self._world.problems[key]
        for key in [key for key in self.held if key.lower == lower]:
            del self.held[key]

    def enqueue_all(self, lower: str, *rules: str) -> None:
        """Enqueue every key of a lower, or those of the named rules."""
        for rule in self._rules.values():
            if not rules or rule.name in rules:
                for key in rule.keys(self._world, lower):
                    self.add(key)

    def add(self, key: Key, delay: float = 0.0) -> None:
        """Enqueue one key, now or after a delay in seconds."""
        queue = self._queues.get(key.lower)
        if queue is not None and delay:
            queue.add_after(key, delay)
        elif queue is not None:
            queue.add(key)

    async def wait_idle(self) -> None:
        """Wait until no key is queued or in progress."""
        while self._wake_timers or any(queue.depth for queue in self._queues.values()):
            await asyncio.gather(*(queue.wait_idle() for queue in self._queues.values()))
            if self._wake_timers:
                await asyncio.sleep(_SYNC_DELAY)

    def expedite(self, within: float) -> bool:
        """Reconcile now what was due within so many seconds. Report whether there was any."""
        self._refusals.expedite(asyncio.get_running_loop().time(), within)
        expedited = [queue.expedite(within) for queue in self._queues.values()]
        return any(expedited)

    @property
    def waiting(self) -> int:
        """The number of keys whose dependencies may still be met, as none of them is blocked."""
        return self._dependencies.count_unblocked(self._world.problems)

    @property
    def delayed(self) -> int:
        """The number of keys with a delay."""
        return sum(queue.delayed for queue in self._queues.values())

    @property
    def depth(self) -> dict[str, int]:
        """The number of keys that are queued or in progress, by lower."""
        return {name: queue.depth for name, queue in self._queues.items()}

    def read_queues(self) -> dict[str, QueueReading]:
        """Return the state of each lower's queue."""
        return {name: queue.read() for name, queue in self._queues.items()}

    def _wake_all(self) -> None:
        for lower in self._queues:
            self._wake_soon(lower)

    def _wake_soon(self, lower: str) -> None:
        """Enqueue all keys shortly: caches sync one after the other, and one reconciliation suffices."""
        if lower in self._queues and lower not in self._wake_timers:
            self._wake_timers[lower] = asyncio.get_running_loop().call_later(_SYNC_DELAY, self._wake_now, lower)

    def _wake_now(self, lower: str) -> None:
        del self._wake_timers[lower]
        self.enqueue_all(lower)

    def _watches_by_cache(self, *, upper: bool) -> dict[str, list[Watch]]:
        """Return the rules' watches by cache, for the upper cluster or for lowers."""
        found: dict[str, list[Watch]] = {}
        for rule in self._rules.values():
            for watch in rule.watches():
                if watch.cache.startswith("upper.") == upper:
                    found.setdefault(watch.cache, []).append(watch)
        return found

    def _when_synced(self, cache: Cache, wake: Callable[[], None]) -> None:
        """Enqueue everything when a cache becomes synced."""
        if cache.synced:
            self._synced_caches.add(cache)
        cache.on_sync(partial(self._on_synced, cache, wake))

    def _on_synced(self, cache: Cache, wake: Callable[[], None]) -> None:
        self._synced_caches.add(cache)
        wake()

    def _on_lower_change(self, watches: list[Watch], lower: str, cache: Cache, delta: Delta) -> None:
        """Enqueue the keys that a change affects. Objects of a first list are handled together, in rule order."""
        if lower in self._queues and self._is_change(cache, delta):
            self._enqueue(watches, lower, delta, changed_facts(delta))

    def _on_upper_change(self, watches: list[Watch], cache: Cache, delta: Delta) -> None:
        """Do the same for every lower."""
        if self._is_change(cache, delta):
            changed = changed_facts(delta)
            for lower in self._queues:
                self._enqueue(watches, lower, delta, changed)

    def _is_change(self, cache: Cache, delta: Delta) -> bool:
        """Report whether a change is more than one object of a first list."""
        return delta.before is not None or cache in self._synced_caches

    def _enqueue(self, watches: list[Watch], lower: str, delta: Delta, changed: frozenset[str] | None) -> None:
        for _, keys, delay, facts in watches:
            if facts is None or changed is None or not changed.isdisjoint(facts):
                for key in keys(self._world, lower, delta):
                    self.add(key, delay)

    def _start(self, key: Key) -> Work | None:
        """Decide synchronously. Return the remaining asynchronous work."""
        self._world.now = self._timing.now()
        try:
            decision = self._rules[key.rule].decide(key, self._world)
            found = self._permitted(self._guarded(key, plan(key, decision, self._world)))
        except Exception as error:  # noqa: BLE001 - a bug in one rule must not stop the keys of the others
            self._observer.on_unexpected_error(key, error)
            self.add(key, MAX_DELAY)
            return None
        for dependency in self._dependencies.note(key, decision.depends_on):
            self.add(dependency)
        self._reporters.note(key, decision.reports_on)
        if decision.requeue_after is not None:
            self.add(key, decision.requeue_after)
        self._refusals.retain(key, found.steps)
        self._note_problem(key, found.problem or self._refusals.problem(key))
        if not found.steps:
            self._enqueue_dependents(key)
            return None
        now = asyncio.get_running_loop().time()
        wanted = self._events.fresh(found.steps, now, refused=key in self._refusals)
        steps = self._refusals.retryable_steps(key, wanted, now)
        if len(steps) < len(wanted):
            self.add(key, self._refusals.left(key, now))
        steps = self._without_repeated(key, steps, now)
        if steps:
            return self._carry_out(key, (*self._drift_events(key, steps, now), *steps))
        self._enqueue_dependents(key)
        return None

    def _drift_events(self, key: Key, steps: tuple[Step, ...], now: float) -> tuple[Step, ...]:
        """Count what other clients changed that the steps put back. Return Events about it, on the upper objects."""
        events: list[Step] = []
        for step in steps:
            entry = self._known(key, step)
            found = self._drift_detector.find(step, entry, self._world, now)
            if found is not None:
                self.drift.add(key.lower, RecentDrift(self._world.now, step.ref, found))
                emitted = _drift_event(key, step, found.summary, entry)
                events += [event(emitted, self._world.now)] if emitted is not None else []
        return self._events.fresh(tuple(events), now) if events else ()

    def _known(self, key: Key, step: Step) -> Entry | None:
        """Return the object of a step as it is known now."""
        cache = self._world.cache(step.ref.cluster, step.ref.kind, key.lower, key.rule)
        return cache.get(step.ref.namespace, step.ref.name) if cache is not None else None

    def _without_repeated(self, key: Key, steps: tuple[Step, ...], now: float) -> tuple[Step, ...]:
        """Return the steps without those that another client keeps reverting, which are delayed and block no other."""
        delays = [self._repetitions.left(step, now) for step in steps]
        if max(delays, default=0.0) <= 0.0:
            return steps
        self.add(key, max(min(delay for delay in delays if delay > 0.0), SHORTEST_DELAY))
        return tuple(step for step, delay in zip(steps, delays, strict=True) if delay <= 0.0)

    def _guarded(self, key: Key, found: Plan) -> Plan:
        """Remove the steps that the guard blocks. One key per lower has all unrequested deletions, and the problem."""
        self.held.pop(key, None)
        if all(step.requested for step in found.steps):
            return found
        world, lower = self._world, self._world.lowers[key.lower]
        is_forced, restored = self._forced, is_restored(lower, world)
        guarded = guard(found, world.topology.guard, lower, restored=restored, forced=is_forced)
        if not guarded.message:
            return guarded.plan
        self.held[key] = guarded.blocked
        return guarded.plan._replace(problem=Problem(guarded.reason, guarded.message))

    def _permitted(self, found: Plan) -> Plan:
        """Remove the steps that are not permitted, and those that depend on one."""
        if self._permits is None:
            return found
        kept: list[Step] = []
        problem = found.problem
        for step in found.steps:
            if not step.in_plan or self._permits(step):
                kept.append(step)
                continue
            problem = problem or Problem(NOT_IN_PLAN, f"{step.verb} {step.ref} is not in the plan")
            if not step.independent and step.requested:
                break
        return Plan(tuple(kept), problem)

    def _note_problem(self, key: Key, problem: Problem | None) -> None:
        known = self._world.problems.get(key)
        if problem is None:
            if known is not None and key not in self._refusals:
                del self._world.problems[key]
                self._problem_changed(key)
        elif problem != known:
            self._world.problems[key] = problem
            self._observer.on_blocked(key, problem)
            self._problem_changed(key)

    def _problem_changed(self, key: Key) -> None:
        """Enqueue the keys that report the problem of this one."""
        for reporter in self._reporters.dependents(key):
            self.add(reporter)

    async def _carry_out(self, key: Key, steps: tuple[Step, ...]) -> float | None:
        """Carry out steps. After an unexpected error the key is retried."""
        try:
            return await self._carry_out_in_order(key, steps)
        except Exception as error:  # noqa: BLE001 - any error is reported, and the key is retried
            self._observer.on_unexpected_error(key, error)
            return MAX_DELAY

    async def _carry_out_in_order(self, key: Key, steps: tuple[Step, ...]) -> float | None:
        delays: list[float] = []
        for step in steps:
            error = await self._try(key, step)
            self._observer.on_step(key, step, error)
            if error is None or isinstance(error, AlreadyExists):
                self._events.note(step, asyncio.get_running_loop().time())
            if error is None:
                self._on_success(key, step)
                continue
            delay = await self._after_error(key, step, error)
            if delay is not None:
                delays.append(delay)
                if not step.independent:
                    return min(delays)
        self._enqueue_dependents(key)
        return min(delays, default=None)

    async def _try(self, key: Key, step: Step) -> ClusterError | None:
        cache = self._world.cache(step.ref.cluster, step.ref.kind, key.lower, key.rule)
        cluster = self._clusters.get(step.ref.cluster)
        if cluster is None:
            return Unreachable("it is not connected yet", cluster=step.ref.cluster, doing=f"{step.verb}")
        sent = step
        try:
            sent = await with_requested_tokens(step, self._clusters)
            await carry_out(sent, cluster, cache)
        except ClusterError as error:
            return redact_error(error, sent, cache)
        return None

    async def _after_error(self, key: Key, step: Step, error: ClusterError) -> float | None:
        """Handle the error of a step. If the cluster does not respond meanwhile, the step is retried later."""
        cluster = self._clusters.get(step.ref.cluster)
        if cluster is None:
            return self._back_off(key, step)
        try:
            return await self._handle_error(key, step, error, cluster)
        except ClusterError:
            return self._back_off(key, step)

    async def _handle_error(self, key: Key, step: Step, error: ClusterError, cluster: Cluster) -> float | None:
        """Return the delay in seconds that an error requires, or None to continue with the next step."""
        cache = self._world.cache(step.ref.cluster, step.ref.kind, key.lower, key.rule)
        match error:
            case Denied() | NotFound() if step.ref.kind == EVENT:
                return None
            case AlreadyExists():
                problem = await resolve_existing(step, cluster, cache, partial(self._adoption_problem, key, step))
                if problem is not None:
                    return self._refused(key, step, problem, denied=False)
                return None if cache is None else self._back_off(key, step)
            case NotFound() | Conflict() if step.verb != "create":
                return await self._read_again(key, step, error, cluster)
            case Denied(status=HTTPStatus.UNPROCESSABLE_ENTITY, causes=()) if self._may_be_stale(key, step):
                # The API's response when a JSON patch removes what another client has removed. Causes would name an
                # invalid field.
                return await self._read_again(key, step, error, cluster)
            case Denied() | NotFound():
                return self._refused(key, step, _problem_of(error, DENIED))
            case _ if is_answer(error):
                return self._handle_server_error(key, step, error)
            case _:
                return self._back_off(key, step)

    def _may_be_stale(self, key: Key, step: Step) -> bool:
        """Report whether a JSON patch may rest on a field that is gone. If it fails twice, it is a refusal."""
        is_json_patch = step.patch is not None and step.patch.media == "json-patch"
        return is_json_patch and bool(step.operations) and not self._refusals.is_refused(key, step)

    def _adoption_problem(self, key: Key, step: Step, found: Manifest) -> Problem | None:
        """Return why an object that is not ours must not be adopted. One in the place of a replacement pod never is."""
        if REPLACES in annotations(step.body or {}):
            return conflict(step.ref)
        upper_uid = annotations(step.body or {}).get(UPPER_UID, "")
        return adoption_problem(step.ref, found, upper_uid, self._world, key.lower)

    async def _read_again(self, key: Key, step: Step, error: ClusterError, cluster: Cluster) -> float:
        """Read the object of a step again. If it still exists, the subresource does not."""
        cache = self._world.cache(step.ref.cluster, step.ref.kind, key.lower, key.rule)
        await reread(step, cluster, cache)
        if isinstance(error, NotFound) and step.independent and is_cached(step, cache):
            return self._refused(key, step, Problem(NOT_FOUND, f"{step.subresource}: {error.message}"))
        return self._back_off(key, step)

    def _handle_server_error(self, key: Key, step: Step, error: ClusterError) -> float:
        """Back off as long as the cluster asks. A lower cluster's lasting failure is reported like a denial.

        So is an eviction that a disruption budget refuses.
        """
        if step.ref.cluster == UPPER and step.subresource != EVICTION:
            return self._back_off(key, step, error.retry_after)
        if not (is_lasting(error) or self._refusals.is_refused(key, step)):
            return self._back_off(key, step, error.retry_after, denied=True)
        return self._refused(key, step, _problem_of(error, type(error).__name__), error.retry_after)

    def _refused(self, key: Key, step: Step, problem: Problem, at_least: float = 0.0, *, denied: bool = True) -> float:
        """Back off the step, and decide the key again now, so that its problem is reported."""
        delay = self._back_off(key, step, at_least, problem, denied=denied)
        self._note_problem(key, self._refusals.problem(key))
        self._enqueue_dependents(key)
        self.add(key)
        return delay

    def _back_off(
        self, key: Key, step: Step, at_least: float = 0.0, problem: Problem | None = None, *, denied: bool = False
    ) -> float:
        now, jitter = asyncio.get_running_loop().time(), self._timing.jitter()
        return self._refusals.note(key, step, now, jitter=jitter, at_least=at_least, problem=problem, denied=denied)

    def _on_success(self, key: Key, step: Step) -> None:
        self._repetitions.note(step, asyncio.get_running_loop().time())
        if step.content or step.verb == "delete":
            self._drift_detector.note(step, self._known(key, step))
        if step.verb == "confirm":
            self.add(key)
        reported = self._refusals.problem(key)
        if self._refusals.clear(key, step):
            if reported is not None:  # without a cluster's reason, the rule's own problem stays
                self._note_problem(key, self._refusals.problem(key))
            self.add(key)

    def _enqueue_dependents(self, key: Key) -> None:
        """Enqueue the keys that depend on this one."""
        for dependent in self._dependencies.dependents(key):
            self.add(dependent)


def _problem_of(error: ClusterError, default_reason: str) -> Problem:
    """Return the problem that a cluster's answer is, with the reason `default_reason` for an answer without one."""
    problem_type = ForeignProblem if error.reason and error.reason not in STATUS_REASONS else Problem
    return problem_type(error.reason or default_reason, error.message)


def _drift_event(key: Key, step: Step, changed: str, entry: Entry | None) -> EmitEvent | None:
    """Return the Event about a change that another client made, None if there is no upper object for it.

    It is about the original of a copy, and about a Node of ours itself. `entry` is the object, None if it was deleted.
    """
    ref = step.ref
    body = entry.manifest() if entry is not None else step.body or {}
    described = f"{ref.kind.name} {ref.namespaced_name}"
    if ref.cluster == UPPER:
        message = (
            f"another client changed {described} in the upper cluster ({changed}): "
            "the engine puts it back; change the topology instead"
        )
        return EmitEvent(ref, step.uid, DRIFT_REVERTED, message)
    upper_uid = annotations(body).get(UPPER_UID, "")
    if upper_uid in ("", NO_ORIGINAL):
        return None
    upper_ref = Ref(UPPER, ref.kind, key.namespace, ref.name if key.namespace else key.name)
    message = (
        f"another client changed {described} in lower cluster {ref.cluster} ({changed}): "
        f"the engine puts it back; change the upper {ref.kind.name} instead"
    )
    return EmitEvent(upper_ref, upper_uid, DRIFT_REVERTED, message)
