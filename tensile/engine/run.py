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
from tensile.engine.candidate_plans import EditPlans, make_candidate_plans, planning_context
from tensile.engine.clusters import own_namespace, utc_now
from tensile.engine.engine import Engine
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
from tensile.engine.telemetry_server import ProbeServer, TelemetryServer
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
_LARGE_ALLOCATION = 1 << 19
"""Bytes from which an allocation is mapped separately, and returned to the system when freed.

This is twice what a TLS connection allocates for each read: mapping each of those separately would cost three system
calls and a page fault, thousands of times a second.
"""
_POLL_INTERVAL = 0.5
"""Seconds between two checks whether the engine is ready."""
_SETTLE_DELAY = 5.0
"""Seconds after the first sync of everything, in which events are mirrored."""
_PROBE_TIMEOUT = 3.0
"""Timeout in seconds of a health probe on the lease's connection; nothing is sent on it until a probe succeeds."""
_RETRY_DELAY = 2.0
"""Seconds between two attempts to read what was accepted before."""
_LIST_TIMEOUT = 60.0
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

    source: TopologySource
    status: EngineStatus
    access: ClusterAccess
    watcher: FileWatcher
    elects: bool
    stop: asyncio.Event


def run(path: Path, *, allow_exec_plugins: bool = False, options: RunOptions) -> None:
    """Run on a topology file until SIGTERM or SIGINT; raises TensileError if it cannot start or lost the lease."""
    access, watcher, status = ClusterAccess(path.parent, allow_exec_plugins), FileWatcher(), EngineStatus(utc_now)
    uvloop.run(_run(FileSource(path, status, watcher), status, access, watcher, options))


def run_observing(path: Path, *, allow_exec_plugins: bool = False) -> None:
    """Report what the engine would do on a topology file, until SIGTERM or SIGINT; raises TensileError like `run`."""

    async def run() -> None:
        """Read the file once, and observe."""
        stop = _stopped_by_signal()
        found = await read_file(path)
        if found.topology is not None:
            access = ClusterAccess(path.parent, allow_exec_plugins)
            await _run_until(stop, observe(found.topology, access))

    uvloop.run(run())


def run_map(place: ConfigMapKey, access: ClusterAccess, *, options: RunOptions) -> None:
    """Run on a topology in a ConfigMap of the upper cluster until SIGTERM or SIGINT; raises TensileError like `run`."""

    async def run() -> None:
        """Run with a status ConfigMap beside the topology's."""
        status, watcher = EngineStatus(utc_now), FileWatcher()
        await _run(ConfigMapSource(place, access, status, watcher), status, access, watcher, options)

    uvloop.run(run())


async def _run(
    source: TopologySource, status: EngineStatus, access: ClusterAccess, watcher: FileWatcher, options: RunOptions
) -> None:
    net.raise_limit()
    context = _RunContext(source, status, access, watcher, options.elects, _stopped_by_signal())
    async with AsyncExitStack() as exit_stack:
        exit_stack.push_async_callback(watcher.close)
        exit_stack.push_async_callback(source.close)
        if options.probes is not None:
            probes = ProbeServer(None, options.probes, partial(_unready_reason, status))
            await probes.start()
            exit_stack.push_async_callback(probes.close)
        first = await _run_until(context.stop, source.first())
        if first is not None and first.topology is not None:
            await _run_engine(first, context)
    _log.info("stopped", topology=status.topology)


def _unready_reason(status: EngineStatus) -> str:
    """Return why the process is not ready, "" if it is."""
    return status.waits() if status.topology else "no topology is loaded yet"


async def _run_engine(first: TopologyUpdate, context: _RunContext) -> None:
    """Run the engine on the first text of the source, or on what was accepted before that."""
    decision = _StartDecision(first, context)
    if await _run_until(context.stop, decision.read()) is None:
        return
    topology = decision.found.topology
    metrics, changes, trace_export = Metrics(), RecentChanges(utc_now), open_export(os.environ)
    engine = Engine(
        topology,
        context.access,
        LoggingObserver(metrics, time.monotonic, on_change=changes.add),
        Fleet(chance=random.random, observe=metrics.observe, requests=metrics.requests, watcher=context.watcher),
        PodTraces(trace_export) if trace_export is not None else None,
    )
    metrics.readings = replace(readings(engine), waiting=partial(_pending_pods, context.status))
    context.status.lowers, context.status.waits = lowers(engine), partial(missing, engine)
    context.status.pending = lambda: engine.pending
    page_data = page_source(engine, context.status, changes, in_configmap=isinstance(context.source, ConfigMapSource))
    telemetry = await _start_telemetry(topology, metrics, engine, context.status, page_data)
    async with AsyncExitStack() as exit_stack:
        if trace_export is not None:
            exit_stack.push_async_callback(trace_export.close)
        exit_stack.push_async_callback(telemetry.close)
        election = await _join_election(engine, context, exit_stack, metrics) if context.elects else None
        context.status.leader = lambda: election.leader if election is not None and not engine.is_leader else ""
        exit_stack.push_async_callback(engine.stop)
        map_large_allocations()
        start = engine.open if election is None else engine.standby
        await _run_until(context.stop, start(None if decision.is_known else decision.accepted))
        if engine.is_running:
            gate = _gate(decision, engine, context, metrics)
            exit_stack.push_async_callback(gate.close)
            label = LeaderLabel(engine.clusters.connections[UPPER], own_pod(os.environ), topology.name)
            exit_stack.push_async_callback(label.close)
            label.open()
            follow = _run_together(_follow(first, context, gate, metrics), gate.run())
            await _run_until(context.stop, _run_together(_lead(engine, context, election, label, gate), follow))


class _StartDecision:
    """How to start on the `first` text of the source: on that, or on what was accepted before it (`found`).

    A source in the upper cluster knows what was accepted. Of a file, it is read by the engine's connection to the upper
    cluster, in `accepted`; then `is_known` stays False.
    """

    def __init__(self, first: TopologyUpdate, context: _RunContext) -> None:
        assert first.topology is not None, "a bad first text ends the program"
        self.first = first
        self._context = context
        self.found = Start(first.topology, first)
        self.is_known = False

    async def read(self) -> Start:
        """Return how to start, as far as the source knows it."""
        records = await self._context.source.records()
        self.is_known = records is not None
        if records is not None:
            self.found = await _decide_start(self.first, records, self._context)
        self._context.status.record(self.found.accepted, _refused(self.found))
        if self.found.accepted is self.first:
            self._context.source.report(self.first)
        return self.found

    async def accepted(self, upper: Cluster, uid: str) -> Topology:
        """Return the topology to start on, as the upper cluster of that UID knows it."""
        read = partial(read_records, upper, uid, self._context.source.place)
        records = await net.insist(read, ClusterError, lambda: _RETRY_DELAY)
        self.found = await _decide_start(self.first, records, self._context)
        self._context.status.record(self.found.accepted, _refused(self.found))
        return self.found.topology


async def _decide_start(first: TopologyUpdate, records: TopologyRecords, context: _RunContext) -> Start:
    """Return how to start on what the upper cluster holds of the topology, and log what is unusual about it."""
    found = start_of(first, records, context.source.parse)
    if found.warning:
        _log.warning("a topology edit was not compared with the accepted topology", reason=found.warning)
    elif found.accepted is not first:
        _log.warning(
            "the topology was edited and is not accepted yet: starting on the accepted one",
            accepted=found.accepted.text.sha256,
            edited=first.text.sha256,
        )
    return found


def _gate(decision: _StartDecision, engine: Engine, context: _RunContext, metrics: Metrics) -> EditGate:
    """Return what decides about edits."""
    source, upper, world = context.source, engine.clusters.connections[UPPER], engine.clusters.world
    start = decision.found
    for node, owner in () if decision.is_known else nodes_of_others(start.topology, world):
        message = "a node belongs to another topology; if the name was edited, that is active without an approval"
        _log.warning(message, node=node, topology=owner)
    source.attach(upper, world)
    gate = EditGate(engine, source, context.status, metrics, start, first=decision.first, now=utc_now)
    context.status.pending = lambda: (*engine.pending, *gate.pending)
    return gate


def _refused(start: Start) -> tuple[str, ...]:
    """Return what of the accepted text needs a restart, although the engine has just started: its ports are edited."""
    accepted = start.accepted.topology
    return edit(start.topology, accepted).refused if accepted is not None else ()


def _pending_pods(status: EngineStatus) -> int:
    """Return how many pods the edit that waits for an approval affects, 0 for none."""
    return status.verdict.approval.pods if status.verdict.approval is not None else 0


def page_source(engine: Engine, status: EngineStatus, changes: RecentChanges, *, in_configmap: bool) -> PageSource:
    """Return what the status page of an engine is made from; it reads the engine at each request."""

    def world() -> World | None:
        return engine.clusters.world if engine.is_running else None

    def held() -> dict[Key, tuple[Step, ...]]:
        return engine.loop.held if engine.is_running else {}

    def view(usage: ResourceUsage) -> PageView:
        report, now = status.report(), world()
        used = {lower.name: usage.of(lower) for lower in now.lowers.values()} if now is not None else {}
        counts = {key: len(steps) for key, steps in held().items()}
        problems = tuple(now.problems.items()) if now is not None else ()
        drifts = tuple(engine.loop.drift) if engine.is_running else ()
        return PageView(report, engine.is_leader, problems, tuple(changes), used, counts, drifts)

    def shown() -> object:
        now = world()
        engine_state = (status.verdict, status.topology, status.waits(), status.pending(), engine.is_leader)
        drifts = engine.loop.drift.counts.total() if engine.is_running else 0
        return engine_state, changes.count, drifts, stamp(now) if now is not None else None

    def events(lower: str, namespace: str, uid: str) -> list[CarriedEvent]:
        joined = engine.clusters.joined.get(lower)
        return joined.events.last(namespace, uid) if joined is not None and joined.events is not None else []

    plans = EditPlans(lambda: planning_context(engine, status) if engine.is_leader else None)
    return PageSource(view, shown, world, held, events, in_configmap, plans.text)


async def _start_telemetry(
    topology: Topology, metrics: Metrics, engine: Engine, status: EngineStatus, page_data: PageSource
) -> TelemetryServer:
    """Serve telemetry; raises TensileError, which names the engine that has the port, if one has."""
    section, site = topology.telemetry, StatusSite(page_data)
    telemetry = TelemetryServer(
        section.bind, section.port, metrics, partial(missing, engine), lambda: status.report().document(), site=site
    )
    try:
        await telemetry.start()
    except PortTaken as error:
        other = await engine_at(section)
        if not other:
            raise
        conflict = f"an engine of topology {other} on this machine already uses telemetry port"
        remedy_for_same = "stop it first, or, if it is for other clusters, set another telemetry.port"
        advice = remedy_for_same if other == topology.name else "set telemetry.port in one of the two topology files"
        raise PortTaken(f"{conflict} {section.port}: {advice}") from error
    return telemetry


async def _join_election(
    engine: Engine, context: _RunContext, exit_stack: AsyncExitStack, metrics: Metrics
) -> Election:
    """Return the engine's part in the election; the lease has a connection of its own, which nothing else can block."""
    fleet = Fleet(chance=random.random, patience=_PROBE_TIMEOUT, requests=metrics.requests, watcher=context.watcher)
    exit_stack.push_async_callback(fleet.close_all)
    upper = fleet.open(UPPER, await context.access.upper_access(engine.topology.upper), connections=2)
    ref = lease_ref(engine.topology.name)
    election = Election(upper, ref, lambda: engine.clusters.world.owner, engine.identity, utc_now)
    exit_stack.push_async_callback(election.release_lease)
    return election


async def _lead(
    engine: Engine, context: _RunContext, election: Election | None, label: LeaderLabel, gate: EditGate
) -> None:
    """Lead once no other engine does; raises TensileError when the lease is lost."""
    if election is None:
        await warn_of_leader(engine.clusters.connections[UPPER], lease_ref(engine.topology.name), utc_now())
        await _drive(engine, context, label, gate)
    else:
        await election.acquire()
        await _run_together(_until_lost(election, label), _drive(engine, context, label, gate))


async def _until_lost(election: Election, label: LeaderLabel) -> None:
    reason = await election.renew_until_lost()
    label.lose()
    raise TensileError(f"leader election lost ({reason}), exiting")


async def _drive(engine: Engine, context: _RunContext, label: LeaderLabel, gate: EditGate) -> None:
    """Lead, and log that; return when the engine is ready and the memory has been settled.

    With a topology in a ConfigMap, it continues to plan candidates.
    """
    if not engine.is_leader:
        await engine.lead()
    label.lead()
    topology = engine.topology
    _log.info("started", topology=topology.name, lowers=len(topology.lowers), file=context.source.name)
    context.source.lead()
    gate.lead()
    jobs = [_settle_memory(engine), _announce(engine, context.source.name)]
    if isinstance(context.source, ConfigMapSource):
        jobs.append(_plan_candidates(engine, context.source, context.status))
    await _run_together(*jobs)


async def _plan_candidates(engine: Engine, source: ConfigMapSource, status: EngineStatus) -> None:
    await supervised("plans of candidates", make_candidate_plans(source.place, engine, status).run)


async def _announce(engine: Engine, source_name: str) -> None:
    """Log once that the engine is ready, as /readyz reports it."""
    while missing(engine):  # noqa: ASYNC110 - it depends on many caches, and on the webhook
        await asyncio.sleep(_POLL_INTERVAL)
    _log.info("ready", **ready(engine.topology, source_name))


def ready(topology: Topology, source_name: str) -> dict[str, str]:
    """Return the fields of the log line for a ready engine: where it serves what, and the file that it watches."""
    url = f"http://{net.place(topology.telemetry.bind, topology.telemetry.port)}"
    served = {path: f"{url}/{path}" for path in ("metrics", "healthz", "status")}
    return {"topology": topology.name, "watching": source_name, **served}


async def _settle_memory(engine: Engine) -> None:
    await supervised("memory optimization", partial(_settle_once_listed, engine))


async def _settle_once_listed(engine: Engine) -> None:
    """Settle the memory when the first lists are processed, and again when events are mirrored too.

    Not earlier, because it would delay the statuses of pods.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(_LIST_TIMEOUT):
            await engine.clusters.fleet.synced()
    await engine.loop.wait_idle()
    freeze_objects()
    await asyncio.sleep(_SETTLE_DELAY)
    forget_decoded()
    freeze_objects()
    return_free_memory()


def map_large_allocations() -> None:
    """Keep large allocations, such as a page of a list, separate; otherwise the C library raises its threshold."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_ALLOCATION)


def freeze_objects() -> None:
    """Exclude all present objects from garbage collection: they live as long as the engine."""
    gc.collect()
    gc.freeze()


def return_free_memory() -> None:
    """Return free memory of the C library to the system, if the library supports that."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


async def _follow(first: TopologyUpdate, context: _RunContext, gate: EditGate, metrics: Metrics) -> None:
    """Have each state of the topology decided; a bad one is reported, and what is active stays so."""
    assert first.topology is not None, "a bad first text ends the program"
    async with aclosing(context.source.readings(first.topology)) as states:
        async for reading in states:
            if reading.topology is None:
                _report_rejected(reading, metrics)
                await gate.reject(reading)
            else:
                await gate.decide(reading)


def _report_rejected(reading: TopologyUpdate, metrics: Metrics) -> None:
    metrics.reload(accepted=False)
    for line in str(reading.error).splitlines():
        _log.error("topology rejected: the last valid one stays active", error=line)


async def _run_together(*jobs: Coroutine[None, None, None]) -> None:
    """Run coroutines until all are done; the first that fails ends the others, and its error is raised."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        await asyncio.gather(*tasks)
    finally:
        await cancel_and_wait(*tasks)


async def _run_until(stop: asyncio.Event, job: Coroutine[None, None, T]) -> T | None:
    """Run a coroutine until it is done or `stop` is set; return its result, None if it was stopped."""
    doing = asyncio.ensure_future(job)
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({doing, stopping}, return_when=asyncio.FIRST_COMPLETED)
    for task in (doing, stopping):
        task.cancel()
    with suppress(asyncio.CancelledError):
        await stopping
    with suppress(asyncio.CancelledError):
        return await doing
    return None


def _stopped_by_signal() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
