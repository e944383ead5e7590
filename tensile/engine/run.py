"""`tensile run`: the engine with its topology source, telemetry, leader election and signals.

An error before the first topology is active ends the program. Afterwards only a signal does, or a lost lease: a bad
file, an unreachable cluster or a port in use is reported, and everything else continues.

Once the first lists are processed, memory is returned to the system. Lists arrive as pages of megabytes, between which
the C library allocates what is kept of them. It would retain the freed pages, a third of all memory here, until told
otherwise, and the garbage collector would traverse all long-lived objects again and again.
"""

import asyncio
import ctypes
import gc
import os
import random
import signal
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import structlog
import uvloop

from tensile.engine.approval import EditGate, Start, nodes_of_others, start_of
from tensile.engine.candidate_plans import EditPlans, plans_beside, surroundings
from tensile.engine.clusters import own_namespace, utc_now
from tensile.engine.engine import Engine
from tensile.engine.health import ProbeServer, TelemetryServer
from tensile.engine.history import TopologyRecords, read_records
from tensile.engine.leader_election import Election, LeaderLabel, lease_ref, own_pod, warn_of_leader
from tensile.engine.lower import ClusterAccess
from tensile.engine.metrics import Metrics, lowers, missing, readings
from tensile.engine.observer import LoggingObserver, observe
from tensile.engine.sources import ConfigMapSource, FileSource, TopologySource
from tensile.engine.status.page import PageView, RecentChanges, ResourceUsage, stamp
from tensile.engine.status.query import engine_at
from tensile.engine.status.report import EngineStatus
from tensile.engine.status.site import PageSource, StatusSite
from tensile.engine.topology_reader import ConfigMapKey, TopologyUpdate, read_file
from tensile.engine.tracing import PodTraces, open_export
from tensile.errors import ClusterError, PortTaken, TensileError
from tensile.kube import net
from tensile.kube.cluster import Cluster
from tensile.kube.file_watch import FileWatcher
from tensile.kube.fleet import Fleet
from tensile.kube.net import cancel_and_wait, supervised
from tensile.kube.store import forget_decoded
from tensile.kubelet.pods.events import CarriedEvent
from tensile.objects import UPPER
from tensile.reconcile.plan import Step
from tensile.reconcile.world import Key, World
from tensile.topology import Topology
from tensile.topology.diff import edit

_M_MMAP_THRESHOLD = -3
_LARGE = 1 << 19
"""Bytes from which an allocation is mapped separately, and returned to the system when freed.

This is twice what a TLS connection allocates for each read: mapping each of those separately would cost three system
calls and a page fault, thousands of times a second.
"""
_LOOK = 0.5
"""Seconds between two looks whether the engine is ready."""
_SETTLING = 5.0
"""Seconds after the first sync of everything, in which events are mirrored."""
_PROBING = 3.0
"""Timeout in seconds of a health probe on the lease's connection; nothing is sent on it until a probe succeeds."""
_RETRY = 2.0
"""Seconds between two attempts to read what was accepted before."""
_LISTING = 60.0
"""Seconds to wait for all lists; unreachable clusters and denied lists delay nothing for longer."""
_log = structlog.get_logger("tensile.run")
T = TypeVar("T")


class RunOptions(NamedTuple):
    """How to run.

    `elect` is whether to use leader election among engines of one topology; None: inside a cluster, where a Deployment
    has replicas and rolling updates. `probes` is the port for a kubelet's probes, None for no such port.
    """

    elect: bool | None = None
    probes: int | None = None

    @property
    def elects(self) -> bool:
        """Whether this engine waits until no other one leads."""
        return bool(own_namespace()) if self.elect is None else self.elect


class _RunContext(NamedTuple):
    """The context of the engine: its topology source, its status, its access to clusters, and when to stop.

    `watcher` watches all files; `elects` is whether this engine waits until no other one of its topology leads.
    """

    followed: TopologySource
    standing: EngineStatus
    ways: ClusterAccess
    watcher: FileWatcher
    elects: bool
    stop: asyncio.Event


def run(path: Path, *, allow_exec_plugins: bool = False, manner: RunOptions) -> None:
    """Run on a topology file until SIGTERM or SIGINT; raises TensileError if it cannot start or lost the lease."""
    ways, watcher, standing = ClusterAccess(path.parent, allow_exec_plugins), FileWatcher(), EngineStatus(utc_now)
    uvloop.run(_run(FileSource(path, standing, watcher), standing, ways, watcher, manner))


def run_observing(path: Path, *, allow_exec_plugins: bool = False) -> None:
    """Report what the engine would do on a topology file, until SIGTERM or SIGINT; raises TensileError like `run`."""

    async def run() -> None:
        """Read the file once, and observe."""
        stop = _stopped_by_signal()
        found = await read_file(path)
        if found.reading.topology is not None:
            ways = ClusterAccess(path.parent, allow_exec_plugins)
            await _unless(stop, observe(found.reading.topology, ways))

    uvloop.run(run())


def run_map(place: ConfigMapKey, ways: ClusterAccess, *, manner: RunOptions) -> None:
    """Run on a topology in a ConfigMap of the upper cluster until SIGTERM or SIGINT; raises TensileError like `run`."""

    async def run() -> None:
        """Run with a status ConfigMap beside the topology's."""
        standing, watcher = EngineStatus(utc_now), FileWatcher()
        await _run(ConfigMapSource(place, ways, standing, watcher), standing, ways, watcher, manner)

    uvloop.run(run())


async def _run(
    followed: TopologySource, standing: EngineStatus, ways: ClusterAccess, watcher: FileWatcher, manner: RunOptions
) -> None:
    net.raise_limit()
    around = _RunContext(followed, standing, ways, watcher, manner.elects, _stopped_by_signal())
    async with AsyncExitStack() as ending:
        ending.push_async_callback(watcher.close)
        ending.push_async_callback(followed.close)
        if manner.probes is not None:
            probes = ProbeServer(None, manner.probes, partial(_waits, standing))
            await probes.start()
            ending.push_async_callback(probes.close)
        first = await _unless(around.stop, followed.first())
        if first is not None and first.topology is not None:
            await _run_engine(first, around)
    _log.info("stopped", topology=standing.topology)


def _waits(standing: EngineStatus) -> str:
    """Return why the process is not ready, "" if it is."""
    return standing.waits() if standing.topology else "no topology is loaded yet"


async def _run_engine(first: TopologyUpdate, around: _RunContext) -> None:
    """Run the engine on the first text of the source, or on what was accepted before that."""
    beginning = _Beginning(first, around)
    if await _unless(around.stop, beginning.read()) is None:
        return
    topology = beginning.found.topology
    metrics, changes, traced = Metrics(), RecentChanges(utc_now), open_export(os.environ)
    engine = Engine(
        topology,
        around.ways,
        LoggingObserver(metrics, time.monotonic, changed=changes.add),
        Fleet(chance=random.random, observe=metrics.observe, requests=metrics.requests, watcher=around.watcher),
        PodTraces(traced) if traced is not None else None,
    )
    metrics.readings = replace(readings(engine), waiting=partial(_waiting, around.standing))
    around.standing.lowers, around.standing.waits = lowers(engine), partial(missing, engine)
    around.standing.pending = lambda: engine.pending
    pages = page_source(engine, around.standing, changes, in_configmap=isinstance(around.followed, ConfigMapSource))
    telemetry = await _telemetry(topology, metrics, engine, around.standing, pages)
    async with AsyncExitStack() as ending:
        if traced is not None:
            ending.push_async_callback(traced.close)
        ending.push_async_callback(telemetry.close)
        election = await _candidate(engine, around, ending, metrics) if around.elects else None
        around.standing.leader = lambda: election.leader if election is not None and not engine.is_leader else ""
        ending.push_async_callback(engine.stop)
        keep_large_apart()
        start = engine.open if election is None else engine.standby
        await _unless(around.stop, start(None if beginning.is_known else beginning.accepted))
        if engine.is_running:
            gate = _gate(beginning, engine, around, metrics)
            ending.push_async_callback(gate.close)
            mark = LeaderLabel(engine.clusters.connections[UPPER], own_pod(os.environ), topology.name)
            ending.push_async_callback(mark.close)
            mark.open()
            following = _side_by_side(_follow(first, around, gate, metrics), gate.run())
            await _unless(around.stop, _side_by_side(_lead(engine, around, election, mark, gate), following))


class _Beginning:
    """How to start on the `first` text of the source: on that, or on what was accepted before it (`found`).

    A source in the upper cluster knows what was accepted. Of a file, only the engine's connection to the upper cluster
    tells it, to `accepted`; then `is_known` stays False.
    """

    def __init__(self, first: TopologyUpdate, around: _RunContext) -> None:
        assert first.topology is not None, "a bad first text ends the program"
        self.first = first
        self._around = around
        self.found = Start(first.topology, first)
        self.is_known = False

    async def read(self) -> Start:
        """Return how to start, as far as the source knows it."""
        records = await self._around.followed.records()
        self.is_known = records is not None
        if records is not None:
            self.found = await _started(self.first, records, self._around)
        self._around.standing.take(self.found.accepted, _refused(self.found))
        if self.found.accepted is self.first:
            self._around.followed.tell(self.first)
        return self.found

    async def accepted(self, upper: Cluster, uid: str) -> Topology:
        """Return the topology to start on, as the upper cluster of that UID knows it."""
        read = partial(read_records, upper, uid, self._around.followed.place)
        records = await net.insist(read, ClusterError, lambda: _RETRY)
        self.found = await _started(self.first, records, self._around)
        self._around.standing.take(self.found.accepted, _refused(self.found))
        return self.found.topology


async def _started(first: TopologyUpdate, records: TopologyRecords, around: _RunContext) -> Start:
    """Return how to start on what the upper cluster holds of the topology, and log what is unusual about it."""
    found = start_of(first, records, around.followed.parse)
    if found.warning:
        _log.warning("a topology edit was not compared with the accepted topology", reason=found.warning)
    elif found.accepted is not first:
        _log.warning(
            "the topology was edited and is not accepted yet: starting on the accepted one",
            accepted=found.accepted.text.sha256,
            edited=first.text.sha256,
        )
    return found


def _gate(beginning: _Beginning, engine: Engine, around: _RunContext, metrics: Metrics) -> EditGate:
    """Return what decides about edits."""
    followed, upper, world = around.followed, engine.clusters.connections[UPPER], engine.clusters.world
    begun = beginning.found
    for node, owner in () if beginning.is_known else nodes_of_others(begun.topology, world):
        words = "a node belongs to another topology; if the name was edited, that is active without an approval"
        _log.warning(words, node=node, topology=owner)
    followed.attach(upper, world)
    gate = EditGate(engine, followed, around.standing, metrics, begun, first=beginning.first, now=utc_now)
    around.standing.pending = lambda: (*engine.pending, *gate.pending)
    return gate


def _refused(begun: Start) -> tuple[str, ...]:
    """Return what of the accepted text needs a restart, although the engine has just started: its ports are edited."""
    accepted = begun.accepted.topology
    return edit(begun.topology, accepted).refused if accepted is not None else ()


def _waiting(standing: EngineStatus) -> int:
    """Return how many pods the edit that waits for an approval affects, 0 for none."""
    return standing.verdict.approval.pods if standing.verdict.approval is not None else 0


def page_source(engine: Engine, standing: EngineStatus, changes: RecentChanges, *, in_configmap: bool) -> PageSource:
    """Return what the status page of an engine is made from; it reads the engine at each request."""

    def world() -> World | None:
        return engine.clusters.world if engine.is_running else None

    def held() -> dict[Key, tuple[Step, ...]]:
        return engine.loop.held if engine.is_running else {}

    def view(usage: ResourceUsage) -> PageView:
        report, now = standing.report(), world()
        used = {lower.name: usage.of(lower) for lower in now.lowers.values()} if now is not None else {}
        counts = {key: len(steps) for key, steps in held().items()}
        problems = tuple(now.problems.items()) if now is not None else ()
        drifts = tuple(engine.loop.drift) if engine.is_running else ()
        return PageView(report, engine.is_leader, problems, tuple(changes), used, counts, drifts)

    def shown() -> object:
        now = world()
        said = (standing.verdict, standing.topology, standing.waits(), standing.pending(), engine.is_leader)
        drifts = engine.loop.drift.counts.total() if engine.is_running else 0
        return said, changes.count, drifts, stamp(now) if now is not None else None

    def events(lower: str, namespace: str, uid: str) -> list[CarriedEvent]:
        joined = engine.clusters.joined.get(lower)
        return joined.events.last(namespace, uid) if joined is not None and joined.events is not None else []

    plans = EditPlans(lambda: surroundings(engine, standing) if engine.is_leader else None)
    return PageSource(view, shown, world, held, events, in_configmap, plans.text)


async def _telemetry(
    topology: Topology, metrics: Metrics, engine: Engine, standing: EngineStatus, pages: PageSource
) -> TelemetryServer:
    """Serve telemetry; raises TensileError, which names the engine that has the port, if one has."""
    where, site = topology.telemetry, StatusSite(pages)
    telemetry = TelemetryServer(
        where.bind, where.port, metrics, partial(missing, engine), lambda: standing.report().document(), site=site
    )
    try:
        await telemetry.start()
    except PortTaken as error:
        other = await engine_at(where)
        if not other:
            raise
        found = f"an engine of topology {other} on this machine already uses telemetry port"
        same = "stop it first, or, if it is for other clusters, set another telemetry.port"
        advice = same if other == topology.name else "set telemetry.port in one of the two topology files"
        raise PortTaken(f"{found} {where.port}: {advice}") from error
    return telemetry


async def _candidate(engine: Engine, around: _RunContext, ending: AsyncExitStack, metrics: Metrics) -> Election:
    """Return the engine's part in the election; the lease has a connection of its own, which nothing else can block."""
    fleet = Fleet(chance=random.random, patience=_PROBING, requests=metrics.requests, watcher=around.watcher)
    ending.push_async_callback(fleet.close_all)
    upper = fleet.open(UPPER, await around.ways.upper_access(engine.topology.upper), connections=2)
    ref = lease_ref(engine.topology.name)
    election = Election(upper, ref, lambda: engine.clusters.world.owner, engine.identity, utc_now)
    ending.push_async_callback(election.release_lease)
    return election


async def _lead(
    engine: Engine, around: _RunContext, election: Election | None, mark: LeaderLabel, gate: EditGate
) -> None:
    """Lead once no other engine does; raises TensileError when the lease is lost."""
    if election is None:
        await warn_of_leader(engine.clusters.connections[UPPER], lease_ref(engine.topology.name), utc_now())
        await _drive(engine, around, mark, gate)
    else:
        await election.acquired()
        await _side_by_side(_until_lost(election, mark), _drive(engine, around, mark, gate))


async def _until_lost(election: Election, mark: LeaderLabel) -> None:
    why = await election.lost()
    mark.lose()
    raise TensileError(f"leader election lost ({why}), exiting")


async def _drive(engine: Engine, around: _RunContext, mark: LeaderLabel, gate: EditGate) -> None:
    """Lead, and log that; return when the engine is ready and the memory has been settled.

    With a topology in a ConfigMap, it continues to plan candidates.
    """
    if not engine.is_leader:
        await engine.lead()
    mark.lead()
    topology = engine.topology
    _log.info("started", topology=topology.name, lowers=len(topology.lowers), file=around.followed.name)
    around.followed.lead()
    gate.lead()
    jobs = [_settled(engine), _announce(engine, around.followed.name)]
    if isinstance(around.followed, ConfigMapSource):
        jobs.append(_plan_candidates(engine, around.followed, around.standing))
    await _side_by_side(*jobs)


async def _plan_candidates(engine: Engine, followed: ConfigMapSource, standing: EngineStatus) -> None:
    await supervised("plans of candidates", plans_beside(followed.place, engine, standing).run)


async def _announce(engine: Engine, watching: str) -> None:
    """Log once that the engine is ready, as /readyz reports it."""
    while missing(engine):  # noqa: ASYNC110 - it depends on many caches, and on the webhook
        await asyncio.sleep(_LOOK)
    _log.info("ready", **ready(engine.topology, watching))


def ready(topology: Topology, watching: str) -> dict[str, str]:
    """Return the fields of the log line for a ready engine: where it serves what, and the file that it watches."""
    url = f"http://{net.place(topology.telemetry.bind, topology.telemetry.port)}"
    served = {path: f"{url}/{path}" for path in ("metrics", "healthz", "status")}
    return {"topology": topology.name, "watching": watching, **served}


async def _settled(engine: Engine) -> None:
    await supervised("memory optimization", partial(_settle, engine))


async def _settle(engine: Engine) -> None:
    """Settle the memory when the first lists are processed, and again when events are mirrored too.

    Not earlier, because it would delay the statuses of pods.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(_LISTING):
            await engine.clusters.fleet.synced()
    await engine.loop.wait_idle()
    set_apart()
    await asyncio.sleep(_SETTLING)
    forget_decoded()
    set_apart()
    give_back()


def keep_large_apart() -> None:
    """Keep large allocations, such as a page of a list, separate; otherwise the C library raises its threshold."""
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:
        tune(_M_MMAP_THRESHOLD, _LARGE)


def set_apart() -> None:
    """Exclude all present objects from garbage collection: they live as long as the engine."""
    gc.collect()
    gc.freeze()


def give_back() -> None:
    """Return free memory of the C library to the system, if the library supports that."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


async def _follow(first: TopologyUpdate, around: _RunContext, gate: EditGate, metrics: Metrics) -> None:
    """Have each state of the topology decided; a bad one is reported, and what is active stays so."""
    assert first.topology is not None, "a bad first text ends the program"
    async with aclosing(around.followed.readings(first.topology)) as states:
        async for reading in states:
            if reading.topology is None:
                _rejected(reading, metrics)
                await gate.reject(reading)
            else:
                await gate.decide(reading)


def _rejected(reading: TopologyUpdate, metrics: Metrics) -> None:
    metrics.reload(accepted=False)
    for line in str(reading.error).splitlines():
        _log.error("topology rejected: the last valid one stays active", error=line)


async def _side_by_side(*work: Coroutine[None, None, None]) -> None:
    """Run coroutines until all are done; the first that fails ends the others, and its error is raised."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        await cancel_and_wait(*tasks)


async def _unless(stop: asyncio.Event, work: Coroutine[None, None, T]) -> T | None:
    """Run a coroutine until it is done or `stop` is set; return its result, None if it was stopped."""
    doing = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(stop.wait())
    await asyncio.wait({doing, waiting}, return_when=asyncio.FIRST_COMPLETED)
    for task in (doing, waiting):
        task.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    with suppress(asyncio.CancelledError):
        return await doing
    return None


def _stopped_by_signal() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
