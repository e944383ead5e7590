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
MOST_TEXT = 256 * 1024
"""The most bytes of a candidate: to parse more would take seconds, in which the engine responds later."""
SELDOM = 5.0
"""Seconds between two checks if no ConfigMap changes: the topology in force may have changed."""
_RETRY = 2.0
_KNOWN = 20.0
"""Seconds to wait after a start until each lower has been read, or is known to be out of reach."""
_LOOK = 0.2
_CALM = 2.0
"""Seconds to wait until the engine has nothing to do."""
_LONGEST = 60.0
"""Seconds that a plan may take."""
_REST = 2.0
"""Seconds of rest per second of planning."""
NOT_LEADING = "not planned: only the engine that leads plans; open its page, or run `tensile plan`"
_LARGE_TEXT = 16 * 1024
_LARGE_PLAN = 100
"""The bytes of a candidate, and the changes of a plan, from which they take more than some milliseconds."""
T = TypeVar("T")
_log = structlog.get_logger("tensile.engine.candidate")


class Surroundings(NamedTuple):
    """What planning needs of the engine.

    `clusters` are its clusters, `address` host and port of the upper apiserver. `in_force` returns the SHA-256 of the
    topology's text in force, `troubles` what is wrong with connections, by lower, and `calm` returns when the engine
    has little to do, or after a while. `now` returns the time in UTC.
    """

    clusters: KnownClusters
    address: tuple[str, int]
    in_force: Callable[[], str]
    troubles: Callable[[], Mapping[str, str]]
    calm: Callable[[], Awaitable[None]]
    now: Callable[[], datetime]


def plans_beside(place: ConfigMapKey, engine: Engine, standing: EngineStatus) -> "CandidatePlans":
    """Return what plans candidates on the caches of a running engine; `standing` has the text in force."""
    return CandidatePlans(place, surroundings(engine, standing))


def surroundings(engine: Engine, standing: EngineStatus) -> Surroundings:
    """Return what planning needs of a running engine; `standing` has the text in force."""

    async def calm() -> None:
        """Wait for a while until the state of each lower is known, and until no key waits."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_KNOWN):
                while not are_known(engine.clusters.world):  # noqa: ASYNC110 - it depends on many caches
                    await asyncio.sleep(_LOOK)
        with suppress(TimeoutError):
            async with asyncio.timeout(_CALM):
                await engine.loop.wait_idle()

    def in_force() -> str:
        """Return the hash of the accepted text, "" for none."""
        accepted = standing.verdict.accepted
        return accepted.text.sha256 if accepted is not None else ""

    def troubles() -> Mapping[str, str]:
        """Return the errors of the connections."""
        return {name: opened.health.error for name, opened in engine.clusters.fleet.items()}

    address = engine.clusters.upper_address
    return Surroundings(engine.clusters, address, in_force, troubles, calm, utc_now)


async def plan_edit(change: Edit, around: Surroundings) -> tuple[Planned, Foreseen]:
    """Plan an edit on the caches of the engine, at a slow pace. Raises TensileError for a bug in a rule."""
    clusters = around.clusters
    foreseen = foresee(clusters.world, change, around.address, around.troubles())
    open_now = {
        name: clusters.connections[now]
        for name in (UPPER, *foreseen.world.lowers)
        if (now := foreseen.connections.get(name, name)) in clusters.connections
    }
    recorder = Recorder()

    async def work(standing: AssumedClusters) -> Problems:
        """Rehearse at a slow pace, and add what is not watched."""
        return {**await rehearse(standing, recorder, pace=BESIDE_ENGINE), **foreseen.problems}

    planned = await previewed(AssumedClusters(foreseen.world, open_now), foreseen.unreached, recorder, work)
    return planned, foreseen


class EditPlans:
    """Plans edits for people who look at the status page, one after the other, with rests as for candidates.

    `around` returns what planning needs of the engine, None if this engine does not lead.
    """

    def __init__(self, around: Callable[[], Surroundings | None]) -> None:
        self._around = around
        self._planning = asyncio.Lock()
        self._free = 0.0

    async def text(self, change: Edit) -> str:
        """Return the plan of an edit as text, or why there is none."""
        async with self._planning:
            await asyncio.sleep(max(0.0, self._free - _clock()))
            around = self._around()
            if around is None:
                return NOT_LEADING
            await around.calm()
            began = _clock()
            try:
                async with asyncio.timeout(_LONGEST):
                    planned, foreseen = await plan_edit(change, around)
                    is_large = len(planned.preview.changes) > _LARGE_PLAN
                    return await _apart(partial(plan_text, planned, foreseen), large=is_large)
            except Exception as error:  # noqa: BLE001 - a person has to know, and the engine goes on
                return _failure(error)
            finally:
                self._free = _clock() + _REST * (_clock() - began)


class CandidatePlans:
    """Plans each candidate beside the topology at `place`, and writes the result."""

    def __init__(self, place: ConfigMapKey, around: Surroundings) -> None:
        self._key = candidate_key(place)
        self._ref = plan_ref(place)
        self._around = around
        self._owner = status_owner(around.clusters.world.owner.upper, place)
        self._names = {self._key.name, self._ref.name, status_ref(place).name}
        self._woken = asyncio.Event()
        self._made: tuple[tuple[str, ...], dict[str, str]] | None = None
        self._settled: tuple[object, ...] = ()
        self._free = 0.0
        self._trouble = ""

    async def run(self) -> None:
        """Plan indefinitely, whenever the candidate or the topology in force changes."""
        cache = self._around.clusters.world.upper.config_maps
        cache.subscribe(self._heard)
        cache.on_sync(self._woken.set)
        try:
            while True:
                self._woken.clear()
                await self.look()
                with suppress(TimeoutError):
                    async with asyncio.timeout(SELDOM):
                        await self._woken.wait()
        finally:
            cache.unsubscribe(self._heard, self._woken.set)

    async def look(self) -> None:
        """Bring NAME-plan in line once. A failure is logged once, and tried again."""
        try:
            await self._look()
        except NameTaken as error:
            await self._report(PLAN_NAME_CONFLICT, str(error))
        except (Conflict, AlreadyExists, NotFound):
            await self._again()  # another client was first: its change is in the cache soon
        except Denied as error:
            await self._report(PLAN_DENIED, str(error))
            await self._again()
        except ClusterError as error:
            self._complain(str(error))
            await self._again()
        else:
            self._trouble = ""

    async def _again(self) -> None:
        await asyncio.sleep(_RETRY)
        self._woken.set()

    async def _look(self) -> None:
        stamp = self._stamp()
        if not self._around.clusters.world.upper.config_maps.synced or stamp == self._settled:
            return
        candidate, seen = self._entry(self._key.name), self._entry(self._ref.name)
        if candidate is None:
            await self._remove(seen)
        else:
            if seen is not None:
                check_ours(seen, self._ref, self._owner, TAKEN)
            if await self._keep(candidate, seen):
                self._settled = stamp

    def _stamp(self) -> tuple[object, ...]:
        """Return what a plan depends on, at little cost: the versions of both objects, and the topology in force."""
        cache = self._around.clusters.world.upper.config_maps
        entries = [cache.get(self._key.namespace, name) for name in (self._key.name, self._ref.name)]
        return *((one.uid, one.version) if one is not None else None for one in entries), self._around.in_force()

    async def _remove(self, seen: Manifest | None) -> None:
        """Delete the plan of a candidate that is gone, if it is ours."""
        self._made = None
        if seen is not None and is_ours(seen, self._owner):
            read = metadata(seen)
            await self._upper.delete(self._ref, uid=read["uid"], version=read["resourceVersion"])
            _log.info("plan deleted, its candidate is gone", configmap=self._ref.namespaced_name)

    async def _keep(self, candidate: Manifest, seen: Manifest | None) -> bool:
        """Report whether NAME-plan has the plan of a candidate. If not, plan it, and write the result."""
        found, in_force = topology_reader.document(candidate, self._key), self._around.in_force()
        hashes = {CANDIDATE_HASH: found.text.sha256, TOPOLOGY_HASH: in_force}
        trouble = error_data(found.trouble) if found.trouble else {}
        if is_planned(seen, uid(candidate), hashes | trouble):
            return True
        asked = (uid(candidate), *hashes.values(), found.trouble)
        if self._made is None or self._made[0] != asked:
            rest = self._free - _clock()
            if rest > 0:
                await asyncio.sleep(rest)
                self._woken.set()
                return False
            self._made = (asked, {**hashes, **(trouble or await self._data(found)), TIME: self._time()})
        if self._is_current(asked):
            await self._write(self._made[1], uid(candidate))
            self._made = None
        self._woken.set()
        return False

    async def _write(self, data: Mapping[str, str], candidate_uid: str) -> None:
        wanted = plan_write(self._entry(self._ref.name), data, self._ref, self._owner, candidate_uid)
        raw = await wanted.send(self._upper, self._ref)
        self._around.clusters.world.upper.config_maps.apply_response(raw)

    def _is_current(self, asked: tuple[str, ...]) -> bool:
        """Report whether candidate and topology in force are still those of a plan."""
        candidate = self._entry(self._key.name)
        if candidate is None:
            return False
        found = topology_reader.document(candidate, self._key)
        return asked == (uid(candidate), found.text.sha256, self._around.in_force(), found.trouble)

    async def _data(self, found: ConfigMapText) -> dict[str, str]:
        """Return the data of the plan of a candidate, or why there is none."""
        await self._around.calm()
        began = _clock()
        try:
            async with asyncio.timeout(_LONGEST):
                _check_size(found, self._key)
                compare = partial(_compared, found, self._key, self._around.clusters.world.topology)
                change, lines = await _apart(compare, large=found.text.size > _LARGE_TEXT)
                planned, foreseen = await plan_edit(change, self._around)
                is_large = len(planned.preview.changes) > _LARGE_PLAN
                limit = self._around.clusters.world.topology.guard.approve_over
                data = await _apart(partial(plan_data, planned, foreseen, lines, limit), large=is_large)
        except Exception as error:  # noqa: BLE001 - the author has to know, and the engine goes on
            return error_data(_failure(error))
        finally:
            took = _clock() - began
            self._free = _clock() + _REST * took
        _log.info(
            "candidate planned", configmap=str(self._key), plan=summary_line(planned.preview), seconds=round(took, 2)
        )
        return data

    async def _report(self, reason: EventReason, words: str) -> None:
        """Report once why there is no plan, in the log and as an Event on the candidate."""
        candidate = self._entry(self._key.name)
        if self._complain(words) and candidate is not None:
            about = Ref(UPPER, CONFIG_MAP, self._key.namespace, self._key.name)
            step = event(EmitEvent(about, uid(candidate), reason, words), self._around.now())
            with suppress(ClusterError):  # the log has it
                await self._upper.create(step.ref, step.body or {})

    def _complain(self, words: str) -> bool:
        """Log a failure; report whether it is new."""
        news = words != self._trouble
        if news:
            self._trouble = words
            _log.warning("cannot report the plan of the candidate", error=words)
        return news

    @property
    def _upper(self) -> Cluster:
        return self._around.clusters.connections[UPPER]

    def _time(self) -> str:
        return timestamp(self._around.now())

    def _entry(self, name: str) -> Manifest | None:
        """Return a ConfigMap of the namespace as it is cached."""
        entry = self._around.clusters.world.upper.config_maps.get(self._key.namespace, name)
        return entry.manifest() if entry is not None else None

    def _heard(self, delta: Delta) -> None:
        if delta.entry.namespace == self._key.namespace and delta.entry.name in self._names:
            self._woken.set()


def _failure(error: Exception) -> str:
    """Return why there is no plan. An unexpected error is logged."""
    if isinstance(error, TimeoutError):
        return f"not planned: it took longer than {_LONGEST:g} s; run `tensile plan`"
    if isinstance(error, TensileError):
        return str(error)
    _log.error("planning a candidate failed (bug, please report)", error=described(error))
    return f"not planned: {type(error).__name__}: this is a bug in tensile: see the engine's log"


def _check_size(found: ConfigMapText, key: ConfigMapKey) -> None:
    """Raise TensileError for a candidate that takes too long to parse."""
    if found.text.size > MOST_TEXT:
        limit = f"larger than {MOST_TEXT // 1024} KiB, which the engine does not plan"
        raise TensileError(f"{key.file}: {limit}: run `tensile plan`")


def _compared(found: ConfigMapText, key: ConfigMapKey, in_force: Topology) -> tuple[Edit, Lines]:
    """Parse a candidate. Return how it differs from the topology in force, and what adds its lines to a plan.

    It reads nothing of the engine, which goes on meanwhile. Raises TensileError for a candidate that is not valid.
    """
    topology = topology_reader.read_configmap(found, key)
    return edit(in_force, topology), lines_of(key.key, found.data.decode(), topology)


async def _apart(job: Callable[[], T], *, large: bool) -> T:
    """Return the result of a pure function, a large job's from a thread: it would block the event loop."""
    return await asyncio.to_thread(job) if large else job()


def _clock() -> float:
    return asyncio.get_running_loop().time()
