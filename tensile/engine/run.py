"""`tensile run`: the engine and what surrounds it: the topology that it follows, telemetry, the signals that end it.

Whatever goes wrong before the first topology is in force ends the program with an error; afterwards nothing does but
a signal: a bad file, a cluster that is away, or a port that cannot be had are said, and what works goes on.

Settles the process's memory once the first lists are in: what stays is set apart, what they took is given back.

Lists come as pages of megabytes, beside which what is kept of them is allocated. The C library keeps such pages for
later use, a third of all memory here, until it is told otherwise; and the collector would go through all that stays
again and again.
"""

import asyncio
import ctypes
import gc
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, aclosing, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar
from uuid import uuid4

import orjson
import structlog
import uvloop

from tensile.engine.clusters import utc_now
from tensile.engine.configmap_source import Place
from tensile.engine.engine import Engine
from tensile.engine.file_source import Reading
from tensile.engine.health import ProbeServer, TelemetryServer
from tensile.engine.leader_election import Election, LeadMark, lease_ref, own_pod, warn_of_leader
from tensile.engine.logging import Narration
from tensile.engine.lower import Ways
from tensile.engine.metrics import Metrics, lowers, missing, readings
from tensile.engine.servers import InForce, WebhookAlone, own_namespace
from tensile.engine.sources import Followed, FollowedFile, FollowedMap
from tensile.engine.status.query import engine_at
from tensile.engine.status.report import Standing
from tensile.errors import PortTaken, TensileError
from tensile.kube import net
from tensile.kube.file_watch import FileWatcher
from tensile.kube.fleet import Fleet
from tensile.kube.net import supervised
from tensile.kube.store import forget_decoded
from tensile.objects import UPPER
from tensile.topology import Topology
from tensile.topology.diff import Edit, edit

_M_MMAP_THRESHOLD = -3
_LARGE = 1 << 19
"""Bytes from which on a block is one of its own, which goes back to the system when it is freed.

Twice what a TLS connection sets aside for each read: a block of its own for each of those would cost three system calls
and a page fault, thousands of times a second.
"""


def keep_large_apart() -> None:
    """Have what is large, such as a page of a list, never lie between what stays; the C library else learns to."""
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:
        tune(_M_MMAP_THRESHOLD, _LARGE)


def set_apart() -> None:
    """Take what there is now out of the collector's sight: it stays for as long as the engine runs."""
    gc.collect()
    gc.freeze()


def give_back() -> None:
    """Have the C library return what is free to the system; one that cannot be told does as it likes."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


_SETTLING = 5.0
"""Seconds after the first look at everything, in which events are told."""
_PROBING = 3.0
"""Seconds in which a probe of the lease's own way has to be answered: until it is, nothing goes that way."""
_LISTING = 60.0
"""Seconds in which everything is listed, but for what is away or not allowed, for which nothing else waits."""
_log = structlog.get_logger("tensile.run")


class Manner(NamedTuple):
    """How to run: `only` that part ("webhook") and nothing else; with `elect`, engines of one topology take turns.

    Where `elect` is None they do so in a cluster, where a Deployment has replicas and rolls, and not elsewhere.
    `probes` is the port at which a kubelet asks how this program is, None where nobody does.
    """

    only: str | None = None
    elect: bool | None = None
    probes: int | None = None

    @property
    def elects(self) -> bool:
        """Whether this engine waits until no other one drives."""
        return bool(own_namespace()) if self.elect is None else self.elect


class _Around(NamedTuple):
    """What the engine runs in: the topology it follows, what it says of itself, how it reaches clusters, its end.

    `watcher` watches all files; `elects` says whether this engine waits until no other one of its topology drives.
    """

    followed: Followed
    standing: Standing
    ways: Ways
    watcher: FileWatcher
    elects: bool
    stop: asyncio.Event


def run(path: Path, *, allow_exec_plugins: bool = False, manner: Manner) -> None:
    """Run on a topology file until SIGTERM or SIGINT; raises TensileError when it cannot begin, or leads no more."""
    ways, watcher = Ways(path.parent, allow_exec_plugins), FileWatcher()
    uvloop.run(_run(FollowedFile(path, watcher), Standing(utc_now), ways, watcher, manner))


def run_map(place: Place, ways: Ways, *, manner: Manner) -> None:
    """Run on a topology in a ConfigMap of the upper cluster until SIGTERM or SIGINT; raises TensileError likewise."""

    async def run() -> None:
        """Follow it, told beside it."""
        standing, watcher = Standing(utc_now), FileWatcher()
        await _run(FollowedMap(place, ways, standing, watcher), standing, ways, watcher, manner)

    uvloop.run(run())


class Running(Protocol):
    """What runs as a topology says."""

    @property
    def topology(self) -> Topology:
        """The topology in force."""
        ...

    async def reload(self, topology: Topology) -> None:
        """Put another topology in force."""
        ...


async def _run(followed: Followed, standing: Standing, ways: Ways, watcher: FileWatcher, manner: Manner) -> None:
    net.raise_limit()
    around = _Around(followed, standing, ways, watcher, manner.elects, _stopped_by_signal())
    async with AsyncExitStack() as ending:
        ending.push_async_callback(watcher.close)
        ending.push_async_callback(followed.close)
        if manner.probes is not None:
            probes = ProbeServer(None, manner.probes, partial(_waits, standing))
            await probes.start()
            ending.push_async_callback(probes.close)
        first = await _unless(around.stop, followed.first())
        if first is not None and first.topology is not None:
            standing.take(first)
            followed.tell(first)
            await (_run_webhook if manner.only else _run_engine)(first.topology, around)
    _log.info("stopped", topology=standing.topology)


def _waits(standing: Standing) -> str:
    """Return why nothing can be expected yet, "" when it can."""
    return standing.waits() if standing.topology else "there is no topology yet"


async def _run_engine(topology: Topology, around: _Around) -> None:
    metrics = Metrics()
    engine = Engine(
        topology,
        around.ways,
        Narration(metrics, time.monotonic),
        Fleet(chance=random.random, observe=metrics.observe, watcher=around.watcher),
    )
    metrics.readings = readings(engine)
    around.standing.lowers, around.standing.waits = lowers(engine), partial(missing, engine)
    telemetry = InForce("telemetry", _Telemetry(partial(missing, engine), metrics, around.standing))
    around.standing.pending = lambda: (*engine.pending, *telemetry.pending)
    await _open_telemetry(telemetry, topology)
    async with AsyncExitStack() as ending:
        ending.push_async_callback(telemetry.close)
        election = await _candidate(engine, around, ending) if around.elects else None
        ending.push_async_callback(engine.stop)
        keep_large_apart()
        await _unless(around.stop, engine.start() if election is None else engine.stand_by())
        if engine.is_running:
            mark = LeadMark(engine.clusters.connections[UPPER], own_pod(os.environ), topology.name)
            ending.push_async_callback(mark.close)
            mark.open()
            following = _follow(around, engine, metrics, telemetry)
            await _unless(around.stop, _side_by_side(_lead(engine, around, election, mark), following))


async def _open_telemetry(telemetry: InForce, topology: Topology) -> None:
    """Serve telemetry; raises TensileError, and says which engine it is that has the port, if one has."""
    try:
        await telemetry.open(topology)
    except PortTaken as error:
        other = await engine_at(topology.telemetry)
        if not other:
            raise
        found = f"an engine of topology {other} runs on this machine and has telemetry's port"
        advice = "stop it first" if other == topology.name else "set telemetry.port in one of the two topology files"
        raise PortTaken(f"{found} {topology.telemetry.port}: {advice}") from error


async def _candidate(engine: Engine, around: _Around, ending: AsyncExitStack) -> Election:
    """Have the engine be one of several; its lease has a connection of its own, which nothing else can hold up."""
    fleet = Fleet(chance=random.random, patience=_PROBING, watcher=around.watcher)
    ending.push_async_callback(fleet.close_all)
    upper = fleet.open(UPPER, await around.ways.upper_access(engine.topology.upper), connections=2)
    ref, identity = lease_ref(engine.topology.name), f"{socket.gethostname()}_{uuid4()}"
    election = Election(upper, ref, lambda: engine.clusters.world.owner, identity, utc_now)
    ending.push_async_callback(election.resign)
    return election


async def _lead(engine: Engine, around: _Around, election: Election | None, mark: LeadMark) -> None:
    """Have the engine drive once nobody else does; raises TensileError when it may no more."""
    if election is None:
        await warn_of_leader(engine.clusters.connections[UPPER], lease_ref(engine.topology.name), utc_now())
        await _drive(engine, around, mark)
    else:
        await election.won()
        await _side_by_side(_until_lost(election, mark), _drive(engine, around, mark))


async def _until_lost(election: Election, mark: LeadMark) -> None:
    why = await election.lost()
    mark.lose()
    raise TensileError(f"this engine leads no more: {why}: it ends, to stand by when it is started again")


async def _drive(engine: Engine, around: _Around, mark: LeadMark) -> None:
    """Have the engine drive, and tell of it; done when all is in order."""
    if not engine.drives:
        await engine.drive()
    mark.lead()
    topology = engine.topology
    _log.info("started", topology=topology.name, lowers=len(topology.lowers), file=around.followed.name)
    around.followed.lead()
    await supervised("settling", partial(_settle, engine))


async def _run_webhook(topology: Topology, around: _Around) -> None:
    """Run the webhook and nothing else."""
    metrics = Metrics()
    fleet = Fleet(chance=random.random, observe=metrics.observe, watcher=around.watcher)
    alone = WebhookAlone(topology, around.ways, fleet)
    around.standing.waits = alone.missing
    telemetry = InForce("telemetry", _Telemetry(alone.missing, metrics, around.standing))
    around.standing.pending = lambda: (*alone.pending, *telemetry.pending)
    await telemetry.open(topology)
    try:
        await _unless(around.stop, alone.start())
        if alone.is_running:
            _log.info("started", topology=topology.name, only="webhook", file=around.followed.name)
            around.followed.lead()
            await _unless(around.stop, _follow(around, alone, metrics, telemetry))
    finally:
        await alone.stop()
        await telemetry.close()


async def _settle(engine: Engine) -> None:
    """Put the memory in order when the first lists have been looked at, and again when all has been told.

    Not before: whoever waits for the status of a pod would wait for that as well.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(_LISTING):
            await engine.clusters.fleet.synced()
    await engine.loop.quiet()
    set_apart()
    await asyncio.sleep(_SETTLING)
    forget_decoded()
    set_apart()
    give_back()


T = TypeVar("T")


async def _side_by_side(*work: Coroutine[None, None, None]) -> None:
    """Do works until all are done; the first that fails ends the others, and its error is raised."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _unless(stop: asyncio.Event, work: Coroutine[None, None, T]) -> T | None:
    """Do the work until it is done or `stop` is set; returns its result, None when it was stopped."""
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


class _Telemetry:
    """The telemetry server where the topology in force wants it."""

    def __init__(self, ready: Callable[[], str], metrics: Metrics, standing: Standing) -> None:
        self._metrics = metrics
        self._standing = standing
        self._ready = ready
        self._place = ("", 0)
        self._server: TelemetryServer | None = None

    @property
    def port(self) -> int:
        """The port that it listens on, 0 for none."""
        return self._server.port if self._server is not None else 0

    async def open(self, topology: Topology) -> None:
        """Serve there from now on; raises TensileError, with all as before, when that is not possible."""
        place = (topology.telemetry.bind, topology.telemetry.port)
        if self._server is not None and place == self._place:
            return
        server = TelemetryServer(*place, self._metrics, self._ready, self._status)
        await server.start()
        await self.close()
        self._place, self._server = place, server

    async def close(self) -> None:
        """Serve no more."""
        server, self._server = self._server, None
        if server is not None:
            await server.close()

    def _status(self) -> bytes:
        return orjson.dumps(self._standing.report().document())


async def _follow(around: _Around, engine: Running, metrics: Metrics, telemetry: InForce) -> None:
    """Put each valid change of the topology in force; what is refused is said, and the last good one stays."""
    followed, standing = around.followed, around.standing
    async with aclosing(followed.readings(engine.topology)) as states:
        async for reading in states:
            if reading.topology is None:
                _refused(reading, metrics)
                standing.take(reading)
            else:
                if reading.changed:
                    metrics.reload(accepted=True)
                    await _reload(reading.topology, engine, telemetry)
                standing.take(reading, edit(engine.topology, reading.topology).refused)
            followed.tell(reading)


def _refused(reading: Reading, metrics: Metrics) -> None:
    metrics.reload(accepted=False)
    for line in str(reading.error).splitlines():
        _log.error("topology refused: the last good one stays in force", error=line)


async def _reload(topology: Topology, engine: Running, telemetry: InForce) -> None:
    """Put a topology in force, but for what of it asks for a restart."""
    change = edit(engine.topology, topology)
    _say(change)
    await telemetry.make_way(change.topology)
    await engine.reload(change.topology)
    await telemetry.follow(change.topology)


def _say(change: Edit) -> None:
    for words in change.refused:
        _log.warning("not reloaded", change=words)
    for words in change.words:
        _log.info("topology changed", change=words)


def _stopped_by_signal() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
