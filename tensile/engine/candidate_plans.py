"""Keeps ConfigMap NAME-plan in line with ConfigMap NAME-candidate, while this engine leads.

It is level-based: both ConfigMaps are in the engine's cache of all ConfigMaps, and the hashes in the plan say which
candidate was planned for which topology in force. So a new leader does not plan again, and a plan that a user deletes
comes back. Without a candidate the plan is deleted.

Planning must not delay what the engine is for. It waits for a moment in which the engine has nothing to do, takes small
turns of the event loop and few requests at a time, and rests afterwards for as long as it has worked, and more.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import NamedTuple, TypeVar

import structlog

from tensile.engine import topology_reader
from tensile.engine.candidate import (
    CANDIDATE_HASH,
    TAKEN,
    TIME,
    TOPOLOGY_HASH,
    Foreseen,
    candidate_key,
    error_data,
    foresee,
    is_planned,
    plan_data,
    plan_ref,
    plan_text,
    plan_write,
)
from tensile.engine.clusters import utc_now
from tensile.engine.engine import Engine
from tensile.engine.plan_and_apply import (
    BESIDE_ENGINE,
    AssumedClusters,
    KnownClusters,
    Planned,
    Problems,
    previewed,
    rehearse,
)
from tensile.engine.status.configmap import NameTaken, check_ours, status_owner, status_ref
from tensile.engine.status.report import EngineStatus, are_known
from tensile.engine.topology_reader import ConfigMapKey, ConfigMapText
from tensile.errors import AlreadyExists, ClusterError, Conflict, Denied, NotFound, TensileError, described
from tensile.kube.cluster import Cluster
from tensile.kube.store import Delta
from tensile.names import EventReason
from tensile.objects import CONFIG_MAP, UPPER, Manifest, Ref, metadata, timestamp, uid
from tensile.reconcile.desired import EmitEvent
from tensile.reconcile.ownership import is_ours
from tensile.reconcile.plan import event
from tensile.reconcile.report import Lines, Recorder, lines_of, summary_line
from tensile.topology import Topology
from tensile.topology.diff import Edit, edit

PLAN_NAME_CONFLICT: EventReason = "PlanNameConflict"
"""On the ConfigMap of a candidate: the ConfigMap for its plan exists and is not the engine's. Remedy: rename or delete
that ConfigMap."""
PLAN_DENIED: EventReason = "PlanDenied"
"""On the ConfigMap of a candidate: the upper cluster refuses the ConfigMap for its plan. Remedy: see the message, for
example a missing permission, an admission policy, or keys of others that leave no room in that ConfigMap."""
MAX_TEXT_BYTES = 256 * 1024
"""The most bytes of a candidate: to parse more would take seconds, in which the engine responds later."""
CHECK_INTERVAL = 5.0
"""Seconds between two checks if no ConfigMap changes: the topology in force may have changed."""
_RETRY_DELAY = 2.0
_KNOWN_TIMEOUT = 20.0
"""Seconds to wait after a start until each lower has been read, or is known to be out of reach."""
_POLL_INTERVAL = 0.2
_IDLE_TIMEOUT = 2.0
"""Seconds to wait until the engine has nothing to do."""
_PLAN_TIMEOUT = 60.0
"""Seconds that a plan may take."""
_REST_FACTOR = 2.0
"""Seconds of rest per second of planning."""
NOT_LEADING = "not planned: only the engine that leads plans; open its page, or run `tensile plan`"
_LARGE_TEXT = 16 * 1024
_LARGE_PLAN = 100
"""The bytes of a candidate, and the changes of a plan, from which they take more than some milliseconds."""
T = TypeVar("T")
_log = structlog.get_logger("tensile.engine.candidate")


class PlanningContext(NamedTuple):
    """What planning needs of the engine.

    `clusters` are its clusters, `address` host and port of the upper apiserver. `in_force` returns the SHA-256 of the
    topology's text in force, and `connection_errors` the last error of each connection, by lower. `wait_until_idle`
    returns when the engine has little to do, or after a while. `now` returns the time in UTC.
    """

    clusters: KnownClusters
    address: tuple[str, int]
    in_force: Callable[[], str]
    connection_errors: Callable[[], Mapping[str, str]]
    wait_until_idle: Callable[[], Awaitable[None]]
    now: Callable[[], datetime]


def make_candidate_plans(place: ConfigMapKey, engine: Engine, status: EngineStatus) -> "CandidatePlans":
    """Return what plans candidates on the caches of a running engine; `status` has the text in force."""
    return CandidatePlans(place, planning_context(engine, status))


def planning_context(engine: Engine, status: EngineStatus) -> PlanningContext:
    """Return what planning needs of a running engine; `status` has the text in force."""

    async def wait_until_idle() -> None:
        """Wait for a while until the state of each lower is known, and until no key waits."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_KNOWN_TIMEOUT):
                while not are_known(engine.clusters.world):  # noqa: ASYNC110 - it depends on many caches
                    await asyncio.sleep(_POLL_INTERVAL)
        with suppress(TimeoutError):
            async with asyncio.timeout(_IDLE_TIMEOUT):
                await engine.loop.wait_idle()

    def in_force() -> str:
        """Return the hash of the accepted text, "" for none."""
        accepted = status.verdict.accepted
        return accepted.text.sha256 if accepted is not None else ""

    def connection_errors() -> Mapping[str, str]:
        """Return the errors of the connections."""
        return {name: opened.health.error for name, opened in engine.clusters.fleet.items()}

    address = engine.clusters.upper_address
    return PlanningContext(engine.clusters, address, in_force, connection_errors, wait_until_idle, utc_now)


async def plan_edit(change: Edit, context: PlanningContext) -> tuple[Planned, Foreseen]:
    """Plan an edit on the caches of the engine, at a slow pace. Raises TensileError for a bug in a rule."""
    clusters = context.clusters
    foreseen = foresee(clusters.world, change, context.address, context.connection_errors())
    connections = {
        name: clusters.connections[now]
        for name in (UPPER, *foreseen.world.lowers)
        if (now := foreseen.connections.get(name, name)) in clusters.connections
    }
    recorder = Recorder()

    async def work(assumed: AssumedClusters) -> Problems:
        """Rehearse at a slow pace, and add what is not watched."""
        return {**await rehearse(assumed, recorder, pace=BESIDE_ENGINE), **foreseen.problems}

    planned = await previewed(AssumedClusters(foreseen.world, connections), foreseen.unreached, recorder, work)
    return planned, foreseen


class EditPlans:
    """Plans edits for people who look at the status page, one after the other, with rests as for candidates.

    `make_context` returns what planning needs of the engine, None if this engine does not lead.
    """

    def __init__(self, make_context: Callable[[], PlanningContext | None]) -> None:
        self._make_context = make_context
        self._planning = asyncio.Lock()
        self._next_start = 0.0

    async def text(self, change: Edit) -> str:
        """Return the plan of an edit as text, or why there is none."""
        async with self._planning:
            await asyncio.sleep(max(0.0, self._next_start - _clock()))
            context = self._make_context()
            if context is None:
                return NOT_LEADING
            await context.wait_until_idle()
            started = _clock()
            try:
                async with asyncio.timeout(_PLAN_TIMEOUT):
                    planned, foreseen = await plan_edit(change, context)
                    is_large = len(planned.preview.changes) > _LARGE_PLAN
                    return await _offload_if_large(partial(plan_text, planned, foreseen), large=is_large)
            except Exception as error:  # noqa: BLE001 - a person has to know, and the engine goes on
                return _failure_message(error)
            finally:
                self._next_start = _clock() + _REST_FACTOR * (_clock() - started)


class CandidatePlans:
    """Plans each candidate beside the topology at `place`, and writes the result."""

    def __init__(self, place: ConfigMapKey, context: PlanningContext) -> None:
        self._key = candidate_key(place)
        self._ref = plan_ref(place)
        self._context = context
        self._owner = status_owner(context.clusters.world.owner.upper, place)
        self._names = {self._key.name, self._ref.name, status_ref(place).name}
        self._woken = asyncio.Event()
        self._pending_write: tuple[tuple[str, ...], dict[str, str]] | None = None
        self._settled: tuple[object, ...] = ()
        self._next_start = 0.0
        self._last_error = ""

    async def run(self) -> None:
        """Plan indefinitely, whenever the candidate or the topology in force changes."""
        cache = self._context.clusters.world.upper.config_maps
        cache.subscribe(self._on_change)
        cache.on_sync(self._woken.set)
        try:
            while True:
                self._woken.clear()
                await self.reconcile()
                with suppress(TimeoutError):
                    async with asyncio.timeout(CHECK_INTERVAL):
                        await self._woken.wait()
        finally:
            cache.unsubscribe(self._on_change, self._woken.set)

    async def reconcile(self) -> None:
        """Bring NAME-plan in line once. A failure is logged once, and tried again."""
        try:
            await self._reconcile()
        except NameTaken as error:
            await self._report(PLAN_NAME_CONFLICT, str(error))
        except (Conflict, AlreadyExists, NotFound):
            await self._retry_later()  # another client was first: its change is in the cache soon
        except Denied as error:
            await self._report(PLAN_DENIED, str(error))
            await self._retry_later()
        except ClusterError as error:
            self._log_failure(str(error))
            await self._retry_later()
        else:
            self._last_error = ""

    async def _retry_later(self) -> None:
        await asyncio.sleep(_RETRY_DELAY)
        self._woken.set()

    async def _reconcile(self) -> None:
        version = self._inputs_version()
        if not self._context.clusters.world.upper.config_maps.synced or version == self._settled:
            return
        candidate, seen = self._entry(self._key.name), self._entry(self._ref.name)
        if candidate is None:
            await self._remove(seen)
        else:
            if seen is not None:
                check_ours(seen, self._ref, self._owner, TAKEN)
            if await self._update_plan(candidate, seen):
                self._settled = version

    def _inputs_version(self) -> tuple[object, ...]:
        """Return what a plan depends on, at little cost: the versions of both objects, and the topology in force."""
        cache = self._context.clusters.world.upper.config_maps
        entries = [cache.get(self._key.namespace, name) for name in (self._key.name, self._ref.name)]
        return *((one.uid, one.version) if one is not None else None for one in entries), self._context.in_force()

    async def _remove(self, seen: Manifest | None) -> None:
        """Delete the plan of a candidate that is gone, if it is ours."""
        self._pending_write = None
        if seen is not None and is_ours(seen, self._owner):
            read = metadata(seen)
            await self._upper.delete(self._ref, uid=read["uid"], version=read["resourceVersion"])
            _log.info("plan deleted, its candidate is gone", configmap=self._ref.namespaced_name)

    async def _update_plan(self, candidate: Manifest, seen: Manifest | None) -> bool:
        """Report whether NAME-plan has the plan of a candidate. If not, plan it, and write the result."""
        found, in_force = topology_reader.document(candidate, self._key), self._context.in_force()
        hashes = {CANDIDATE_HASH: found.text.sha256, TOPOLOGY_HASH: in_force}
        error = error_data(found.problem) if found.problem else {}
        if is_planned(seen, uid(candidate), hashes | error):
            return True
        inputs = (uid(candidate), *hashes.values(), found.problem)
        if self._pending_write is None or self._pending_write[0] != inputs:
            delay = self._next_start - _clock()
            if delay > 0:
                await asyncio.sleep(delay)
                self._woken.set()
                return False
            self._pending_write = (inputs, {**hashes, **(error or await self._data(found)), TIME: self._time()})
        if self._is_current(inputs):
            await self._write(self._pending_write[1], uid(candidate))
            self._pending_write = None
        self._woken.set()
        return False

    async def _write(self, data: Mapping[str, str], candidate_uid: str) -> None:
        wanted = plan_write(self._entry(self._ref.name), data, self._ref, self._owner, candidate_uid)
        raw = await wanted.send(self._upper, self._ref)
        self._context.clusters.world.upper.config_maps.apply_response(raw)

    def _is_current(self, inputs: tuple[str, ...]) -> bool:
        """Report whether candidate and topology in force are still those of a plan."""
        candidate = self._entry(self._key.name)
        if candidate is None:
            return False
        found = topology_reader.document(candidate, self._key)
        return inputs == (uid(candidate), found.text.sha256, self._context.in_force(), found.problem)

    async def _data(self, found: ConfigMapText) -> dict[str, str]:
        """Return the data of the plan of a candidate, or why there is none."""
        await self._context.wait_until_idle()
        started = _clock()
        try:
            async with asyncio.timeout(_PLAN_TIMEOUT):
                _check_size(found, self._key)
                compare = partial(_compared, found, self._key, self._context.clusters.world.topology)
                change, lines = await _offload_if_large(compare, large=found.text.size > _LARGE_TEXT)
                planned, foreseen = await plan_edit(change, self._context)
                is_large = len(planned.preview.changes) > _LARGE_PLAN
                limit = self._context.clusters.world.topology.guard.approve_over
                data = await _offload_if_large(partial(plan_data, planned, foreseen, lines, limit), large=is_large)
        except Exception as error:  # noqa: BLE001 - the author has to know, and the engine goes on
            return error_data(_failure_message(error))
        finally:
            duration = _clock() - started
            self._next_start = _clock() + _REST_FACTOR * duration
        _log.info(
            "candidate planned",
            configmap=str(self._key),
            plan=summary_line(planned.preview),
            seconds=round(duration, 2),
        )
        return data

    async def _report(self, reason: EventReason, message: str) -> None:
        """Report once why there is no plan, in the log and as an Event on the candidate."""
        candidate = self._entry(self._key.name)
        if self._log_failure(message) and candidate is not None:
            subject = Ref(UPPER, CONFIG_MAP, self._key.namespace, self._key.name)
            step = event(EmitEvent(subject, uid(candidate), reason, message), self._context.now())
            with suppress(ClusterError):  # the log has it
                await self._upper.create(step.ref, step.body or {})

    def _log_failure(self, message: str) -> bool:
        """Log a failure; report whether it is new."""
        is_new = message != self._last_error
        if is_new:
            self._last_error = message
            _log.warning("cannot report the plan of the candidate", error=message)
        return is_new

    @property
    def _upper(self) -> Cluster:
        return self._context.clusters.connections[UPPER]

    def _time(self) -> str:
        return timestamp(self._context.now())

    def _entry(self, name: str) -> Manifest | None:
        """Return a ConfigMap of the namespace as it is cached."""
        entry = self._context.clusters.world.upper.config_maps.get(self._key.namespace, name)
        return entry.manifest() if entry is not None else None

    def _on_change(self, delta: Delta) -> None:
        if delta.entry.namespace == self._key.namespace and delta.entry.name in self._names:
            self._woken.set()


def _failure_message(error: Exception) -> str:
    """Return why there is no plan. An unexpected error is logged."""
    if isinstance(error, TimeoutError):
        return f"not planned: it took longer than {_PLAN_TIMEOUT:g} s; run `tensile plan`"
    if isinstance(error, TensileError):
        return str(error)
    _log.error("planning a candidate failed (bug, please report)", error=described(error))
    return f"not planned: {type(error).__name__}: this is a bug in tensile: see the engine's log"


def _check_size(found: ConfigMapText, key: ConfigMapKey) -> None:
    """Raise TensileError for a candidate that takes too long to parse."""
    if found.text.size > MAX_TEXT_BYTES:
        limit = f"larger than {MAX_TEXT_BYTES // 1024} KiB, which the engine does not plan"
        raise TensileError(f"{key.file}: {limit}: run `tensile plan`")


def _compared(found: ConfigMapText, key: ConfigMapKey, in_force: Topology) -> tuple[Edit, Lines]:
    """Parse a candidate. Return how it differs from the topology in force, and what adds its lines to a plan.

    It reads nothing of the engine, which goes on meanwhile. Raises TensileError for a candidate that is not valid.
    """
    topology = topology_reader.read_configmap(found, key)
    return edit(in_force, topology), lines_of(key.key, found.data.decode(), topology)


async def _offload_if_large(function: Callable[[], T], *, large: bool) -> T:
    """Return the result of a pure function, a large job's from a thread: it would block the event loop."""
    return await asyncio.to_thread(function) if large else function()


def _clock() -> float:
    return asyncio.get_running_loop().time()
