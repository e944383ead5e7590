"""Many logs followed at once: lost lines, the delay of lines, and the cost for pods that are mirrored at the same time.

    .venv/bin/python -m bench.speed.follow --streams 200 --rate 50000 --seconds 60 --pods 500 --rounds 3

The logs of pods are written at a steady rate, each line with the time when it was written. They are followed through
the upper cluster and at the lower clusters directly, in turns, by the same reader. After `--seconds` the pods of a
Deployment are mirrored while the streams go on: by the engine that carries the streams; by the ceiling beside it, under
the same streams; and by the ceiling while the logs are followed directly. If the direct streams alone use most of the
machine, the result measures the machine and states that; use a lower `--rate`, or longer lines. The processor time of
all programs is reported with each turn.
"""

import asyncio
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import psutil

from bench.kit.child_processes import Child, ceiling
from bench.kit.oracles import is_ready
from bench.kit.participants import wait_until_machine_idle, wait_until_nodes_usable
from bench.kit.sites import DEPLOYMENTS, NODES, PODS, Manifest, Refused, Site, until, until_gone
from bench.kit.trial import NAMESPACE, Trial, run
from bench.kit.workload import PROVIDER, deployment
from bench.speed.log_lines import LineShape, Reading, between, delay_figures, due, entry, line, wrong_lines
from bench.speed.makespan import all_ready, labelled
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER, Options

if TYPE_CHECKING:
    from typing import Self

LATE = 0.050
"""The limit in seconds by which the 99th percentile of delays may exceed the direct one."""
BAR = 1.2
"""The limit for the makespan, as a multiple of the ceiling's."""
FULL = 0.8
"""The share of the machine that the direct streams may use."""
CONTAINER = "c"
TICK = 0.01
LIMIT = 300.0
GRACE = 30.0


class LogWriter:
    """Writes the logs of the followed pods, all lines that are due every hundredth of a second."""

    def __init__(self, files: Sequence[Path], shape: LineShape) -> None:
        self.written = [0] * len(files)
        self.slowest = 0.0
        """Seconds by which a check for due lines came late: the part of the benchmark itself in the delays."""
        self._files = files
        self._shape = shape
        self._open: list[int] = []

    def begin(self) -> None:
        """Create each log with its first line, so that its readers get an answer."""
        for path in self._files:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            self._open.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644))
        for stream in range(len(self._files)):
            self._write(stream)

    async def go_on(self) -> None:
        """Write the lines that are due, until it is cancelled."""
        begin = last = time.monotonic()
        while True:
            await asyncio.sleep(TICK)
            now = time.monotonic()
            self.slowest, last = max(self.slowest, now - last - TICK), now
            for stream in range(len(self._files)):
                while self.written[stream] <= due(self._shape, stream, now - begin):
                    self._write(stream)

    def end(self) -> None:
        """Close and delete the logs, which ends the streams that follow them."""
        while self._open:
            os.close(self._open.pop())
        for path in self._files:
            path.unlink()

    def _write(self, stream: int) -> None:
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ").encode()
        text = line(stream, self.written[stream], time.time_ns(), self._shape.line)
        os.write(self._open[stream], entry(text, stamp))
        self.written[stream] += 1


class Followed:
    """The pods whose logs are followed: one for each stream, spread over the lower clusters."""

    def __init__(self, trial: Trial, shape: LineShape, nodes: dict[str, str]) -> None:
        self.shape = shape
        self._trial = trial
        self._lowers = [list(nodes)[number % len(nodes)] for number in range(shape.streams)]
        self._nodes = nodes
        self.names = [f"follow-{number:03d}" for number in range(shape.streams)]

    async def make(self) -> None:
        """Create the upper pods and wait until they are ready."""
        for name, lower in zip(self.names, self._lowers, strict=True):
            await self._trial.upper.call("POST", PODS.format(NAMESPACE), _pod(name, self._nodes[lower]))

        async def are_ready() -> bool:
            """Report whether all pods are ready."""
            found = await self._trial.upper.items(f"{PODS.format(NAMESPACE)}?labelSelector=followed")
            return len(found) == len(self.names) and all(map(is_ready, found))

        await until(are_ready, f"{len(self.names)} pods are ready", LIMIT)

    @asynccontextmanager
    async def streams(self, way: str) -> AsyncIterator["Streams"]:
        """Write and follow the logs; in the end every written line was read, or is reported as missing."""
        clusters = self._trial.sandbox.clusters
        files = [
            clusters[lower].logs / NAMESPACE / name / f"{CONTAINER}.log"
            for name, lower in zip(self.names, self._lowers, strict=True)
        ]
        async with _readers(self._trial.sandbox, len(self.names)) as sites:
            made = Streams(LogWriter(files, self.shape), self.shape)
            for number, (name, lower) in enumerate(zip(self.names, self._lowers, strict=True)):
                made.follow(number, sites[UPPER if way == "through" else lower], name)
            async with made:
                yield made


class Streams:
    """The logs while they are written and followed; used with `async with`."""

    def __init__(self, writer: LogWriter, shape: LineShape) -> None:
        self.readings: list[Reading] = []
        self.broken: list[str] = []
        self.writer = writer
        self._shape = shape
        self._sources: list[tuple[Site, str]] = []
        self._tasks: list[asyncio.Task[None]] = []

    def follow(self, number: int, site: Site, pod: str) -> None:
        """Follow a log at a cluster."""
        self.readings.append(Reading(number, self._shape.line))
        self._sources.append((site, f"{PODS.format(NAMESPACE)}/{pod}/log?follow=true&container={CONTAINER}"))

    async def __aenter__(self) -> "Self":
        self.writer.begin()
        pairs = zip(self._sources, self.readings, strict=True)
        self._tasks = [asyncio.create_task(_read(site, path, reading)) for (site, path), reading in pairs]
        await until(self._have, "every log is followed", LIMIT)
        self._tasks.append(asyncio.create_task(self.writer.go_on()))
        return self

    async def __aexit__(self, *_: object) -> None:
        *reading, writing = self._tasks
        writing.cancel()
        await asyncio.wait({asyncio.create_task(until(self._have, "everything was read", GRACE))})
        self.writer.end()
        await asyncio.wait(reading, timeout=GRACE)
        self.broken += [f"log {number} has no end" for number, task in enumerate(reading) if not task.done()]
        for task in self._tasks:
            task.cancel()
        ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        self.broken += [f"{type(one).__name__}: {one}" for one in ends if isinstance(one, Exception)]
        self.broken += wrong_lines(self.readings, self.writer.written)

    async def _have(self) -> bool:
        """Report whether every reader has all written lines; an error that ended a reader too early is raised."""
        for task in self._tasks:
            if task.done():
                task.result()
        return all(one.lines >= lines for one, lines in zip(self.readings, self.writer.written, strict=True))


async def _read(site: Site, path: str, reading: Reading) -> None:
    async with site.session.get(path) as answer:
        if answer.status != HTTPStatus.OK:
            raise Refused(answer.status, f"{site.name}: {path}: {await answer.text()}")
        async for data in answer.content.iter_any():
            reading.take(data, time.time_ns())


@asynccontextmanager
async def _readers(sandbox: Sandbox, streams: int) -> AsyncIterator[dict[str, Site]]:
    """Connect to every cluster, with so many streams at a time."""
    sites = {name: Site(cluster, at_once=streams) for name, cluster in sandbox.clusters.items()}
    try:
        yield sites
    finally:
        await asyncio.gather(*(site.session.close() for site in sites.values()))


def _pod(name: str, node: str) -> Manifest:
    container = {"name": CONTAINER, "image": "none"}
    spec = {"nodeName": node, "containers": [container], "terminationGracePeriodSeconds": 1}
    return {"metadata": {"name": name, "labels": {"followed": "true"}}, "spec": spec}


async def mirrored(trial: Trial, pods: int, *, by_ceiling: bool) -> float:
    """Return the seconds until the pods of a Deployment are all Ready; then delete them from every cluster.

    The engine's nodes have a taint that the ceiling's nodes do not have, so a toleration decides which of them get the
    pods.
    """
    name = f"follow-{time.time_ns() // 1_000_000}"
    body = deployment(name, pods)
    body["spec"]["template"]["spec"]["tolerations"] = [] if by_ceiling else [PROVIDER]
    begin = time.monotonic()
    await trial.upper.call("POST", DEPLOYMENTS.format(NAMESPACE), body)
    found = await all_ready(trial.upper, labelled(name), pods, begin, LIMIT)
    await trial.upper.delete(f"{DEPLOYMENTS.format(NAMESPACE)}/{name}?propagationPolicy=Background")
    for site in (trial.upper, *trial.lowers.values()):
        await until_gone(site, PODS.format(NAMESPACE), labelled(name), LIMIT)
    return float(found.summary()["last_ready_s"])


@asynccontextmanager
async def beside(trial: Trial, *, wanted: bool) -> AsyncIterator[Child | None]:
    """Run the ceiling beside the engine, with nodes of its own, if it is wanted."""
    if not wanted:
        yield None
        return
    child = ceiling(trial.sandbox, trial.sandbox.directory / "ceiling.log")
    try:
        await wait_until_nodes_usable(trial.upper, 2 * len(trial.lowers))
        yield child
    finally:
        child.stop()
        for node in await trial.upper.items(NODES):
            if node["metadata"]["name"].startswith("ceiling-"):
                await trial.upper.delete(f"{NODES}/{node['metadata']['name']}")


def spent(trial: Trial) -> dict[str, float]:
    """Return the CPU seconds of the upper cluster, the lower ones with their nodes, the engine, and this process."""
    assert trial.engine is not None
    sums = {"upper": 0.0, "lowers": 0.0, "engine": trial.engine.usage().cpu, "bench": sum(os.times()[:2])}
    for name, cluster in trial.sandbox.clusters.items():
        for pid in cluster.pids.values():
            times = psutil.Process(pid).cpu_times()
            sums["upper" if name == UPPER else "lowers"] += times.user + times.system
    return sums


async def turn(trial: Trial, followed: Followed, args: Namespace, way: str, *, by_ceiling: bool) -> dict[str, Any]:
    """Follow all logs one way for a time, then mirror pods under that load; return measurements and failures."""
    async with beside(trial, wanted=by_ceiling):
        await wait_until_machine_idle()
        async with followed.streams(way) as streams:
            before, begin = spent(trial), time.time()
            await asyncio.sleep(args.seconds)
            after, quiet = spent(trial), time.time()
            seconds = await mirrored(trial, args.pods, by_ceiling=by_ceiling) if args.pods else 0.0
            last, end = spent(trial), time.time()
    run: dict[str, Any] = {"way": way, "mirror": "ceiling" if by_ceiling else "engine", "last_ready_s": seconds}
    run |= {"cores": _cores(before, after, quiet - begin), **delay_figures(between(streams.readings, begin, quiet))}
    mirroring = {"cores": _cores(after, last, end - quiet), **delay_figures(between(streams.readings, quiet, end))}
    run |= {f"mirroring_{name}": value for name, value in mirroring.items()}
    run |= {"writer_late_ms": round(streams.writer.slowest * 1000, 1), "broken": streams.broken}
    print(" ".join(f"{key}={value}" for key, value in run.items()), flush=True)
    return run


def _cores(before: dict[str, float], after: dict[str, float], seconds: float) -> dict[str, float]:
    """Return how many processors each used, from CPU seconds."""
    return {name: round((after[name] - before[name]) / max(seconds, 1e-9), 3) for name in after}


TURNS = (("direct", True), ("through", False), ("through", True))
"""Which way logs are followed, and whether the ceiling mirrors the pods."""


async def follow(sandbox: Sandbox, args: Namespace) -> dict[str, Any]:
    """Take all turns in all rounds."""
    async with Trial(sandbox) as trial:
        await trial.start_engine_and_nodes()
        nodes = {name: name for name in trial.lowers}
        followed = Followed(trial, LineShape(args.streams, args.rate, args.line), nodes)
        await followed.make()
        runs = [
            {"round": number, **await turn(trial, followed, args, way, by_ceiling=by_ceiling)}
            for number in range(1, args.rounds + 1)
            for way, by_ceiling in TURNS
        ]
        await trial.clear()
    lost = [note for one in runs for note in one["broken"]]
    return {"shape": followed.shape._asdict(), "seconds": args.seconds, "runs": runs, "broken": lost}


def judged(runs: Sequence[dict[str, Any]], processors: int) -> tuple[dict[str, float], list[str]]:
    """Return medians over the rounds, and which bars are exceeded."""

    def of(field: str, way: str, mirror: str) -> float:
        """Return the median of a field over the runs of one kind."""
        return float(median(one[field] for one in runs if (one["way"], one["mirror"]) == (way, mirror)))

    found = {
        "direct_p99_ms": of("p99_ms", "direct", "ceiling"),
        "through_p99_ms": of("p99_ms", "through", "engine"),
        "mirroring_direct_p99_ms": of("mirroring_p99_ms", "direct", "ceiling"),
        "mirroring_through_p99_ms": of("mirroring_p99_ms", "through", "engine"),
    }
    later = found["through_p99_ms"] - found["direct_p99_ms"]
    over = [f"the 99th percentile of delays is {later:.1f} ms behind the direct one"] if later > LATE * 1000 else []
    ready = of("last_ready_s", "through", "engine")
    if ready:
        found["x_ceiling_under_the_same_streams"] = round(ready / of("last_ready_s", "through", "ceiling"), 3)
        found["x_ceiling_under_direct_streams"] = round(ready / of("last_ready_s", "direct", "ceiling"), 3)
        ratio = found["x_ceiling_under_the_same_streams"]
        over += [f"pods take {ratio:g} x the ceiling's time under the same streams"] if ratio > BAR else []
    cores = [sum(one["cores"].values()) for one in runs if one["way"] == "direct"]
    found["direct_cores"] = round(median(cores), 2)
    if found["direct_cores"] > FULL * processors:
        note = f" (the direct streams alone take {found['direct_cores']:g} of {processors} processors)"
        over = [one + note for one in over]
    return found, over


async def scenario(sandbox: Sandbox, args: Namespace) -> dict[str, Any]:
    """Measure and judge."""
    result = await follow(sandbox, args)
    medians, over = judged(result["runs"], os.cpu_count() or 1)
    print(" ".join(f"{key}={value}" for key, value in medians.items()), flush=True)
    return {"medians": medians, **result, "broken": result["broken"] + over}


def arguments(parser: ArgumentParser) -> None:
    """Add the options of the streams."""
    parser.add_argument("--streams", type=int, default=200, help="the number of logs that are followed")
    parser.add_argument("--rate", type=int, default=50_000, help="the bytes per second that each container writes")
    parser.add_argument(
        "--line",
        type=int,
        default=5_000,
        help="the bytes of one line; the cost of a line does not depend on its length",
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="the seconds of streaming before further pods are created"
    )


if __name__ == "__main__":
    sys.exit(run("follow", scenario, Options(), pods=500, rounds=3, doc=__doc__ or "", arguments=arguments))
