"""`tensile run`: the engine with what surrounds it: the file that it follows, telemetry, and the signals that end it.

Whatever goes wrong before the first topology is in force ends the program with an error; afterwards nothing does but
a signal: a bad file, a cluster that is away, or a port that cannot be had are said, and what works goes on.
"""

import asyncio
import random
import signal
import time
from collections.abc import Coroutine
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path

import structlog
import uvloop

from tensile.app import Engine
from tensile.errors import TensileError
from tensile.joined import Ways
from tensile.kube.fleet import Fleet
from tensile.reconcile import source
from tensile.reconcile.narration import Narration
from tensile.telemetry import Metrics, Readings, TelemetryServer
from tensile.topology import Topology, not_yet
from tensile.topology.edit import edit

_log = structlog.get_logger("tensile.run")


def run(path: Path, *, allow_exec_plugins: bool = False) -> None:
    """Run until SIGTERM or SIGINT; raises TensileError when it cannot begin."""
    uvloop.run(_run(path, Ways(path.parent, allow_exec_plugins)))


async def _run(path: Path, ways: Ways) -> None:
    topology = await source.read(path)
    _say_not_yet(topology)
    metrics = Metrics()
    fleet = Fleet(chance=random.random, observe=metrics.observe)
    engine = Engine(topology, ways, Narration(metrics, time.monotonic), fleet)
    metrics.readings = _readings(engine)
    telemetry = _Telemetry(engine, metrics)
    stop = _stopped_by_signal()
    await telemetry.serve(topology)
    try:
        if await _unless(stop, engine.start()):
            _log.info("started", topology=topology.name, lowers=len(topology.lowers), file=str(path))
            await _unless(stop, _follow(path, engine, metrics, telemetry))
    finally:
        await engine.stop()
        await telemetry.close()
    _log.info("stopped", topology=topology.name)


async def _unless(stop: asyncio.Event, work: Coroutine[None, None, None]) -> bool:
    """Do the work until it is done or `stop` is set; says whether it was done."""
    doing = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(stop.wait())
    await asyncio.wait({doing, waiting}, return_when=asyncio.FIRST_COMPLETED)
    for task in (doing, waiting):
        task.cancel()
    with suppress(asyncio.CancelledError):
        await waiting
    with suppress(asyncio.CancelledError):
        await doing
    return not stop.is_set()


class _Telemetry:
    """The telemetry server where the topology in force wants it."""

    def __init__(self, engine: Engine, metrics: Metrics) -> None:
        self._metrics = metrics
        self._ready = partial(_missing, engine)
        self._place = ("", 0)
        self._server: TelemetryServer | None = None

    async def serve(self, topology: Topology) -> None:
        """Serve there from now on; raises TensileError, with all as before, when that is not possible."""
        place = (topology.telemetry.bind, topology.telemetry.port)
        if place == self._place:
            return
        server = TelemetryServer(*place, self._metrics, self._ready)
        await server.start()
        await self.close()
        self._place, self._server = place, server

    async def close(self) -> None:
        """Serve no more."""
        if self._server is not None:
            await self._server.close()


async def _follow(path: Path, engine: Engine, metrics: Metrics, telemetry: _Telemetry) -> None:
    """Put each valid change of the file in force."""

    def refused(error: TensileError) -> None:
        """Say what is wrong with the file; the last good topology stays."""
        metrics.reload(accepted=False)
        for line in str(error).splitlines():
            _log.error("topology file refused: the last good one stays in force", error=line)

    async with aclosing(source.follow(path, engine.topology, refused)) as topologies:
        async for topology in topologies:
            metrics.reload(accepted=True)
            await engine.reload(_accepted(engine.topology, topology))
            try:
                await telemetry.serve(engine.topology)
            except TensileError as error:
                _log.error("telemetry stays where it is", error=str(error))


def _accepted(before: Topology, after: Topology) -> Topology:
    """Say what an edit changes, and give the topology to put in force."""
    change = edit(before, after)
    for words in change.refused:
        _log.warning("not reloaded", change=words)
    for words in change.words:
        _log.info("topology changed", change=words)
    _say_not_yet(after)
    return change.topology


def _say_not_yet(topology: Topology) -> None:
    for notice in not_yet(topology):
        _log.warning(str(notice))


def _stopped_by_signal() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def _readings(engine: Engine) -> Readings:
    """Give what metrics ask of the engine at each scrape."""

    def problems() -> list[tuple[str, str]]:
        """List the lower and the reason of every key that is stuck."""
        world = engine.clusters.world if engine.is_running else None
        return [(key.lower, problem.reason) for key, problem in world.problems.items()] if world else []

    return Readings(
        depth=lambda: engine.loop.depth if engine.is_running else {},
        silent=lambda: {name: joined.lower.silent for name, joined in engine.clusters.joined.items()},
        problems=problems,
        events=lambda: _events(engine),
    )


def _events(engine: Engine) -> dict[tuple[str, str], int]:
    """Count what became of events, by lower and result."""
    mirrors = {name: joined.events for name, joined in engine.clusters.joined.items()}
    return {(name, end): count for name, one in mirrors.items() if one for end, count in one.counts.items()}


def _missing(engine: Engine) -> str:
    """Say why the engine is not ready, "" when it is: its upper cluster answered and its caches are complete."""
    if not engine.is_running:
        return "the upper cluster has not answered yet"
    upper = engine.clusters.world.upper
    behind = [one.lower.name for one in engine.clusters.joined.values() if not one.lower.upper_pods.synced]
    complete = all(cache.synced for cache in upper.caches()) and not behind
    return "" if complete else "the upper cluster's objects are not all listed yet"
