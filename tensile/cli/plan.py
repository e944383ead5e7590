"""`tensile plan` and `tensile apply`: run them once and return their output."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tensile.engine.clusters import Clusters
from tensile.engine.lower import ClusterAccess
from tensile.engine.metrics import Metrics
from tensile.engine.observer import LoggingObserver
from tensile.engine.oneshot import Problems, Progress, converge, opened, rehearse
from tensile.errors import ClusterError, TensileError
from tensile.policy.descheduler.plan import Eviction, evictions
from tensile.policy.descheduler.plan import as_document as as_drain_document
from tensile.policy.descheduler.plan import as_text as as_drain_text
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


class PlanOptions(NamedTuple):
    """What a plan is about: lowers to `drain`, as if the topology did, and the lowers to show, () for all."""

    drain: tuple[str, ...] = ()
    only: tuple[str, ...] = ()


_WHOLE = PlanOptions()


def plan(
    topology: Topology,
    directory: Path,
    output: str,
    options: PlanOptions = _WHOLE,
    *,
    colour: bool,
    allow_exec_plugins: bool,
    progress: Progress | None = None,
) -> PlanText:
    """Return what would change, as "text", "json" or "markdown", and for a drain where each pod would go.

    Raises TensileError when the upper cluster is unreachable, for another output format, for a lower that is not in the
    topology, and for a bug in a rule.
    """
    if output not in ("text", "json", "markdown"):
        raise TensileError(f"output {output!r}: take one of text, json, markdown")
    _check(topology, options)
    found, drains = asyncio.run(_plan(topology, ClusterAccess(directory, allow_exec_plugins), options, progress))
    if output == "json":
        documents = [as_drain_document(*drain) for drain in drains.items()]
        return PlanText(as_json(found, drains=documents).decode(), bool(found.changes), _unreached(found.unreached))
    more = [*(as_drain_text(*drain) for drain in drains.items())]
    more += [
        f"Drain of {name}: where its pods fit is unknown, see above" for name in options.drain if name not in drains
    ]
    text = as_markdown(found, more) if output == "markdown" else as_text(found, colour=colour, more=more)
    away = f"not planned: {', '.join(found.unreached)}: the plan says why" if found.unreached else ""
    return PlanText(text, bool(found.changes), away)


def apply(
    topology: Topology, directory: Path, *, forced: bool, allow_exec_plugins: bool, progress: Progress | None = None
) -> str:
    """Apply the topology once and return the closing line.

    Raises TensileError when an object is blocked or a lower cluster is unreachable.
    """
    ways = ClusterAccess(directory, allow_exec_plugins)
    return asyncio.run(_apply(topology, ways, forced=forced, progress=progress))


def _check(topology: Topology, options: PlanOptions) -> None:
    """Raise TensileError for a lower that is not in the topology."""
    names = [spec.name for spec in topology.lowers]
    for option, given in (("--drain", options.drain), ("--lower", options.only)):
        for name in given:
            if name not in names:
                known = ", ".join(names) or "none"
                raise TensileError(f"{option} {name}: no lower cluster of the topology; there are: {known}")


async def _plan(
    topology: Topology, ways: ClusterAccess, options: PlanOptions, progress: Progress | None
) -> tuple[Preview, dict[str, list[Eviction]]]:
    """Return the plan, and for each drained lower where its pods would go.

    Without all clusters it is unknown where pods would fit, so that nothing is returned for the drains then.
    """
    recorder, drains = Recorder(), dict[str, list[Eviction]]()
    drained = _drained(topology, options.drain)

    async def rehearsed(clusters: Clusters) -> Problems:
        """Look where the pods of the drained lowers fit, and rehearse."""
        if all(spec.name in clusters.world.lowers for spec in topology.lowers):
            drains.update((name, evictions(clusters.world, name)) for name in options.drain)
        clusters.world.topology = drained
        return await rehearse(clusters, recorder)

    watched = _with_room(drained) if options.drain else drained
    found = await _recorded(watched, ways, recorder, rehearsed, progress=progress, only=options.only)
    return found, drains


def _drained(topology: Topology, names: Collection[str]) -> Topology:
    """Return the topology with `maintenance: drain` for some lowers."""
    lowers = [
        spec.model_copy(update={"maintenance": "drain"}) if spec.name in names else spec for spec in topology.lowers
    ]
    return topology.model_copy(update={"lowers": tuple(lowers)})


def _with_room(topology: Topology) -> Topology:
    """Return the topology with the descheduler, whose informers show where pods fit."""
    watching = topology.descheduler.model_copy(update={"enabled": True})
    return topology.model_copy(update={"descheduler": watching})


async def _apply(topology: Topology, ways: ClusterAccess, *, forced: bool, progress: Progress | None) -> str:
    recorder = _Applying(LoggingObserver(Metrics(), time.monotonic))
    work = partial(converge, observer=recorder, forced=forced)
    done = await _recorded(topology, ways, recorder, work, progress=progress)
    if done.problems or done.unreached:
        body, _, last = as_text(done, colour=False).rpartition("Plan: ")
        raise TensileError(f"{body}Applied in part: {last}")
    return summary_line(done).replace("Plan: ", "Applied: ", 1)


async def _recorded(
    topology: Topology,
    ways: ClusterAccess,
    recorder: Recorder,
    work: Callable[[Clusters], Awaitable[Problems]],
    *,
    progress: Progress | None = None,
    only: Sequence[str] = (),
) -> Preview:
    """Run one-shot work on the clusters of a topology and return a preview of what `recorder` recorded."""
    async with opened(topology, ways, progress) as (clusters, unreached):
        before = observed(clusters.world.copy())
        problems = await work(clusters)
    found = defects(recorder.broken)
    if found:
        raise TensileError(found)
    lowers = [spec.name for spec in topology.lowers]
    return preview(
        recorder.recorded, problems, before, topology=topology.name, lowers=lowers, unreached=unreached, only=only
    )


def _unreached(found: Mapping[str, str]) -> str:
    return "\n".join(f"{name}: {why}" for name, why in found.items())
