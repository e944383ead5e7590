"""`tensile run`: the engine and what surrounds it: the topology that it follows, telemetry, the signals that end it.

Whatever goes wrong before the first topology is in force ends the program with an error; afterwards nothing does but
a signal: a bad file, a cluster that is away, or a port that cannot be had are said, and what works goes on.
"""

import asyncio
import random
import signal
import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import orjson
import structlog
import uvloop

from tensile import memory
from tensile.app import Engine
from tensile.cache import forget_decoded
from tensile.clusters import utc_now
from tensile.errors import TensileError
from tensile.followed import Followed, FollowedFile, FollowedMap
from tensile.hookport import WebhookAlone
from tensile.joined import Ways
from tensile.kube.fleet import Fleet
from tensile.reconcile.mapsource import Place
from tensile.reconcile.narration import Narration
from tensile.reconcile.reading import Reading
from tensile.status.lowers import Row, are_known, rows
from tensile.status.standing import Standing
from tensile.supervision import supervised
from tensile.telemetry import Metrics, Readings, TelemetryServer
from tensile.topology import Topology, not_yet
from tensile.topology.edit import Edit, edit

_SETTLING = 5.0
"""Seconds after the first look at everything, in which events are told."""
_log = structlog.get_logger("tensile.run")


def run(path: Path, *, allow_exec_plugins: bool = False, only: str | None = None) -> None:
    """Run on a topology file until SIGTERM or SIGINT; raises TensileError when it cannot begin.

    With `only` it is that part ("webhook") and nothing else.
    """
    uvloop.run(_run(FollowedFile(path), Standing(utc_now), Ways(path.parent, allow_exec_plugins), only))


def run_map(place: Place, ways: Ways, *, only: str | None = None) -> None:
    """Run on a topology in a ConfigMap of the upper cluster until SIGTERM or SIGINT; raises TensileError likewise."""

    async def run() -> None:
        """Follow it, told beside it."""
        standing = Standing(utc_now)
        await _run(FollowedMap(place, ways, standing), standing, ways, only)

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


async def _run(followed: Followed, standing: Standing, ways: Ways, only: str | None) -> None:
    stop = _stopped_by_signal()
    try:
        first = await _unless(stop, followed.first())
        if first is not None and first.topology is not None:
            standing.take(first)
            followed.tell(first)
            run_it = _run_webhook if only else _run_engine
            await run_it(first.topology, followed, standing, ways, stop)
    finally:
        await followed.close()
    _log.info("stopped", topology=standing.topology)


async def _run_engine(
    topology: Topology, followed: Followed, standing: Standing, ways: Ways, stop: asyncio.Event
) -> None:
    _say_not_yet(topology)
    metrics = Metrics()
    fleet = Fleet(chance=random.random, observe=metrics.observe)
    engine = Engine(topology, ways, Narration(metrics, time.monotonic), fleet)
    metrics.readings = _readings(engine)
    standing.lowers, standing.waits = _lowers(engine), partial(_missing, engine)
    telemetry = _Telemetry(partial(_missing, engine), metrics, standing)
    await telemetry.serve(topology)
    try:
        memory.keep_large_apart()
        await _unless(stop, engine.start())
        if engine.is_running:
            _log.info("started", topology=topology.name, lowers=len(topology.lowers), file=followed.name)
            settling = supervised("settling", partial(_settle, engine))
            await _unless(stop, _follow(followed, standing, engine, metrics, telemetry))
            settling.cancel()
    finally:
        await engine.stop()
        await telemetry.close()


async def _run_webhook(
    topology: Topology, followed: Followed, standing: Standing, ways: Ways, stop: asyncio.Event
) -> None:
    """Run the webhook and nothing else."""
    metrics = Metrics()
    alone = WebhookAlone(topology, ways, Fleet(chance=random.random, observe=metrics.observe))
    standing.waits = alone.missing
    telemetry = _Telemetry(alone.missing, metrics, standing)
    await telemetry.serve(topology)
    try:
        await _unless(stop, alone.start())
        if alone.is_running:
            _log.info("started", topology=topology.name, only="webhook", file=followed.name)
            await _unless(stop, _follow(followed, standing, alone, metrics, telemetry))
    finally:
        await alone.stop()
        await telemetry.close()


async def _settle(engine: Engine) -> None:
    """Put the memory in order when the first lists have been looked at, and again when all has been told.

    Not before: whoever waits for the status of a pod would wait for that as well.
    """
    await engine.clusters.fleet.synced()
    await engine.loop.quiet()
    memory.set_apart()
    await asyncio.sleep(_SETTLING)
    forget_decoded()
    memory.set_apart()
    memory.give_back()


T = TypeVar("T")


async def _unless(stop: asyncio.Event, work: Coroutine[None, None, T]) -> T | None:
    """Do the work until it is done or `stop` is set; gives its result, None when it was stopped."""
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

    async def serve(self, topology: Topology) -> None:
        """Serve there from now on; raises TensileError, with all as before, when that is not possible."""
        place = (topology.telemetry.bind, topology.telemetry.port)
        if place == self._place:
            return
        server = TelemetryServer(*place, self._metrics, self._ready, self._status)
        await server.start()
        await self.close()
        self._place, self._server = place, server

    async def close(self) -> None:
        """Serve no more."""
        if self._server is not None:
            await self._server.close()

    def _status(self) -> bytes:
        return orjson.dumps(self._standing.report().document())


async def _follow(
    followed: Followed, standing: Standing, engine: Running, metrics: Metrics, telemetry: _Telemetry
) -> None:
    """Put each valid change of the topology in force; what is refused is said, and the last good one stays."""
    async with aclosing(followed.readings(engine.topology)) as readings:
        async for reading in readings:
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


async def _reload(topology: Topology, engine: Running, telemetry: _Telemetry) -> None:
    """Put a topology in force, but for what of it asks for a restart."""
    change = edit(engine.topology, topology)
    _say(change)
    _say_not_yet(topology)
    await engine.reload(change.topology)
    try:
        await telemetry.serve(engine.topology)
    except TensileError as error:
        _log.error("telemetry stays where it is", error=str(error))


def _say(change: Edit) -> None:
    for words in change.refused:
        _log.warning("not reloaded", change=words)
    for words in change.words:
        _log.info("topology changed", change=words)


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


def _lowers(engine: Engine) -> Callable[[], list[Row] | None]:
    """Make what gives how each lower is, None until that is known of every one: a start is no news of them."""
    known = False

    def lowers() -> list[Row] | None:
        """Give the rows as of now."""
        nonlocal known
        known = known or (engine.is_running and are_known(engine.clusters.world))
        if not known:
            return None
        fleet = engine.clusters.fleet
        return rows(engine.clusters.world, {name: fleet.health(name).error for name in fleet.names()})

    return lowers


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
