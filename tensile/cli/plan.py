"""`tensile plan`, `tensile apply` and `tensile drain --plan`: run them once and return their output."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tensile.engine.clusters import Clusters
from tensile.engine.lower import ClusterAccess
from tensile.engine.metrics import Metrics
from tensile.engine.observer import LoggingObserver
from tensile.engine.oneshot import ClusterTimeout, Problems, Progress, converge, opened, rehearse
from tensile.errors import ClusterError, TensileError
from tensile.policy.descheduler.drain_report import Eviction, evictions
from tensile.policy.descheduler.drain_report import as_json as as_departures_json
from tensile.policy.descheduler.drain_report import as_text as as_departures_text
from tensile.reconcile.plan import Step
from tensile.reconcile.report import (
    Preview,
    Recorder,
    as_json,
    as_markdown,
    as_text,
    defects,
    observed,
    preview,
    summary_line,
)
from tensile.reconcile.world import Key, Problem
from tensile.topology import Topology


class _Applying(Recorder):
    """A recorder that also logs every step: `apply` takes time, and people watch it."""

    def __init__(self, narration: LoggingObserver) -> None:
        super().__init__()
        self._narration = narration

    def on_step(self, key: Key, step: Step, error: ClusterError | None) -> None:
        """Record and log a step."""
        super().on_step(key, step, error)
        self._narration.on_step(key, step, error)

    def on_blocked(self, key: Key, problem: Problem) -> None:
        """Log a key whose reconciliation is blocked."""
        self._narration.on_blocked(key, problem)


class PlanText(NamedTuple):
    """A plan as text, whether it has changes, and the lower clusters that it leaves out ("": none).

    `unreached` gives the causes when the text is JSON; a text for people contains them itself.
    """

    text: str
    changes: bool
    unreached: str


def plan(
    topology: Topology,
    directory: Path,
    output: str,
    *,
    colour: bool,
    allow_exec_plugins: bool,
    progress: Progress | None = None,
) -> PlanText:
    """Return what would change, as "text", "json" or "markdown".

    Raises TensileError when the upper cluster is unreachable, for another output format, and for a bug in a rule.
    """
    if output not in ("text", "json", "markdown"):
        raise TensileError(f"output {output!r}: take one of text, json, markdown")
    found = asyncio.run(_plan(topology, ClusterAccess(directory, allow_exec_plugins), progress))
    forms = {"json": lambda: as_json(found).decode(), "markdown": lambda: as_markdown(found)}
    text = forms.get(output, lambda: as_text(found, colour=colour))()
    away = _unreached(found.unreached)
    if found.unreached and output != "json":
        away = f"not planned: {', '.join(found.unreached)}: the plan says why"
    return PlanText(text, bool(found.changes), away)


def apply(topology: Topology, directory: Path, *, forced: bool, allow_exec_plugins: bool) -> str:
    """Apply the topology once and return the closing line.

    Raises TensileError when an object is blocked or a lower cluster is unreachable.
    """
    return asyncio.run(_apply(topology, ClusterAccess(directory, allow_exec_plugins), forced=forced))


def drain_plan(
    topology: Topology, directory: Path, lower: str, output: str, *, allow_exec_plugins: bool
) -> tuple[str, bool]:
    """Return the preview of a drain of a lower cluster, as "text" or "json", and whether any pod would be evicted.

    Raises TensileError for a lower that is not in the topology, and when a cluster is unreachable.
    """
    names = [spec.name for spec in topology.lowers]
    if lower not in names:
        raise TensileError(f"drain {lower}: no lower cluster of that name; there are {', '.join(names) or 'none'}")
    found = asyncio.run(_departures(topology, ClusterAccess(directory, allow_exec_plugins), lower))
    text = as_departures_json(lower, found) if output == "json" else as_departures_text(lower, found)
    return text, any(one.leaves for one in found)


async def _departures(topology: Topology, ways: ClusterAccess, lower: str) -> list[Eviction]:
    """Return every pod on the node of a lower cluster, and where it would go in a drain.

    The descheduler is enabled for this, so that its informers run: they supply the free capacity of every cluster.
    """
    watching = topology.descheduler.model_copy(update={"enabled": True})
    async with opened(topology.model_copy(update={"descheduler": watching}), ways) as (clusters, unreached):
        if unreached:  # without all clusters it is unknown where pods would fit
            raise ClusterTimeout(_unreached(unreached))
        return evictions(clusters.world, lower)


async def _plan(topology: Topology, ways: ClusterAccess, progress: Progress | None) -> Preview:
    recorder = Recorder()
    return await _recorded(topology, ways, recorder, lambda clusters: rehearse(clusters, recorder), progress)


async def _apply(topology: Topology, ways: ClusterAccess, *, forced: bool) -> str:
    recorder = _Applying(LoggingObserver(Metrics(), time.monotonic))
    work = partial(converge, observer=recorder, forced=forced)
    done = await _recorded(topology, ways, recorder, work)
    if done.problems or done.unreached:
        body, _, last = as_text(done, colour=False).rpartition("Plan: ")
        raise TensileError(f"{body}Applied in part: {last}")
    return summary_line(done).replace("Plan: ", "Applied: ", 1)


async def _recorded(
    topology: Topology,
    ways: ClusterAccess,
    recorder: Recorder,
    work: Callable[[Clusters], Awaitable[Problems]],
    progress: Progress | None = None,
) -> Preview:
    """Run one-shot work on the clusters of a topology and return a preview of what `recorder` recorded."""
    async with opened(topology, ways, progress) as (clusters, unreached):
        before = observed(clusters.world.copy())
        problems = await work(clusters)
    found = defects(recorder.broken)
    if found:
        raise TensileError(found)
    lowers = [spec.name for spec in topology.lowers]
    return preview(recorder.recorded, problems, before, topology=topology.name, lowers=lowers, unreached=unreached)


def _unreached(found: Mapping[str, str]) -> str:
    return "\n".join(f"{name}: {why}" for name, why in found.items())
