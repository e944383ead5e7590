"""`tensile plan` and `tensile apply`: what they print, and whether that is an error."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tensile.engine.clusters import Clusters
from tensile.engine.logging import Narration
from tensile.engine.lower import Ways
from tensile.engine.metrics import Metrics
from tensile.engine.oneshot import Problems, Progress, Unreached, converge, opened, rehearse
from tensile.errors import ClusterError, TensileError
from tensile.policy.descheduler.drain_report import Departure, departures
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
    """Records, and tells what it hears: apply takes its time, and people watch."""

    def __init__(self, narration: Narration) -> None:
        super().__init__()
        self._narration = narration

    def stepped(self, key: Key, step: Step, error: ClusterError | None) -> None:
        """Keep a step, and tell it."""
        super().stepped(key, step, error)
        self._narration.stepped(key, step, error)

    def stuck(self, key: Key, problem: Problem) -> None:
        """Tell a problem."""
        self._narration.stuck(key, problem)


class Planned(NamedTuple):
    """A plan as text; whether it has `changes`; and in words which lowers it leaves out, "" for none.

    The words give the causes where the text is for programs; one for people has them.
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
) -> Planned:
    """Return what would change, as "text", "json" or "markdown".

    Raises TensileError when the upper cluster is out of reach, for another output, and for a defect.
    """
    if output not in ("text", "json", "markdown"):
        raise TensileError(f"output {output!r}: take one of text, json, markdown")
    found = asyncio.run(_plan(topology, Ways(directory, allow_exec_plugins), progress))
    forms = {"json": lambda: as_json(found).decode(), "markdown": lambda: as_markdown(found)}
    text = forms.get(output, lambda: as_text(found, colour=colour))()
    away = _unreached(found.unreached)
    if found.unreached and output != "json":
        away = f"not planned: {', '.join(found.unreached)}: the plan says why"
    return Planned(text, bool(found.changes), away)


def apply(topology: Topology, directory: Path, *, forced: bool, allow_exec_plugins: bool) -> str:
    """Converge once; returns a closing line, raises TensileError when something stands in the way."""
    return asyncio.run(_apply(topology, Ways(directory, allow_exec_plugins), forced=forced))


def drain_plan(
    topology: Topology, directory: Path, lower: str, output: str, *, allow_exec_plugins: bool
) -> tuple[str, bool]:
    """Return what a drain of a lower would come to, as "text" or "json", and whether any pod would leave.

    Raises TensileError for a lower that is not in the topology, and when a cluster is out of reach.
    """
    names = [spec.name for spec in topology.lowers]
    if lower not in names:
        raise TensileError(f"drain {lower}: no lower cluster of that name; there are {', '.join(names) or 'none'}")
    found = asyncio.run(_departures(topology, Ways(directory, allow_exec_plugins), lower))
    text = as_departures_json(lower, found) if output == "json" else as_departures_text(lower, found)
    return text, any(one.leaves for one in found)


async def _departures(topology: Topology, ways: Ways, lower: str) -> list[Departure]:
    """Look at every cluster as the descheduler does, once, whether it is on or not."""
    watching = topology.descheduler.model_copy(update={"enabled": True})
    async with opened(topology.model_copy(update={"descheduler": watching}), ways) as (clusters, unreached):
        if unreached:  # where pods find room is not known without all of them
            raise Unreached(_unreached(unreached))
        return departures(clusters.world, lower)


async def _plan(topology: Topology, ways: Ways, progress: Progress | None) -> Preview:
    recorder = Recorder()
    return await _recorded(topology, ways, recorder, lambda clusters: rehearse(clusters, recorder), progress)


async def _apply(topology: Topology, ways: Ways, *, forced: bool) -> str:
    recorder = _Applying(Narration(Metrics(), time.monotonic))
    work = partial(converge, observer=recorder, forced=forced)
    done = await _recorded(topology, ways, recorder, work)
    if done.problems or done.unreached:
        body, _, last = as_text(done, colour=False).rpartition("Plan: ")
        raise TensileError(f"{body}Applied in part: {last}")
    return summary_line(done).replace("Plan: ", "Applied: ", 1)


async def _recorded(
    topology: Topology,
    ways: Ways,
    recorder: Recorder,
    work: Callable[[Clusters], Awaitable[Problems]],
    progress: Progress | None = None,
) -> Preview:
    """Do one-shot work on the clusters of a topology; returns what `recorder` heard of it."""
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
