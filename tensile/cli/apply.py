"""`tensile apply`: show the plan, ask on a terminal, and make its changes once.

The question comes between two connections: nothing is open while a person reads, so Ctrl-C ends the command at once.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import NamedTuple, TextIO

from tensile.cli.plan import previewed
from tensile.engine.metrics import Metrics
from tensile.engine.observer import LoggingObserver
from tensile.engine.oneshot import OpenedClusters, converge, rehearse
from tensile.errors import ClusterError, TensileError
from tensile.reconcile.plan import Step
from tensile.reconcile.report import Preview, Recorder, as_text, summary_line
from tensile.reconcile.world import Key, Problem
from tensile.text import takes_colour

QUESTION = "Make these changes? Only 'yes' or 'y' is accepted: "
_YES = ("yes", "y")
Ask = Callable[[], bool]
"""Asks a person whether to go on."""
Opening = Callable[[], AbstractAsyncContextManager[OpenedClusters]]
"""Opens the clusters of the topology, as `tensile.engine.oneshot.opened` does."""
Show = Callable[[Preview], None]
"""Shows a plan to a person."""


class ApplyOptions(NamedTuple):
    """How to apply: whether to make deletions that the guard blocks, and who is asked first (None: nobody)."""

    forced: bool = False
    ask: Ask | None = None


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


def question(reading: TextIO, *writing: TextIO) -> Ask | None:
    """Return what asks on a terminal, None if `reading`, or each of `writing`, is not connected to one."""
    stream = next((one for one in writing if one.isatty()), None)
    if stream is None or not reading.isatty():
        return None

    def ask() -> bool:
        """Write the question and read a line."""
        print(QUESTION, end="", file=stream, flush=True)
        return is_yes(reading.readline())

    return ask


def shown_on(stream: TextIO) -> Show:
    """Return what writes a plan to a stream, with an empty line behind it. A plan without content is not written."""

    def show(plan: Preview) -> None:
        """Write the plan."""
        if plan.changes or plan.problems or plan.unreached:
            print(as_text(plan, colour=takes_colour(stream)), end="\n\n", file=stream, flush=True)

    return show


def is_yes(answer: str) -> bool:
    """Report whether an answer agrees. No answer, at the end of the input, does not."""
    return answer.strip() in _YES


def apply(opening: Opening, options: ApplyOptions, show: Show) -> str:
    """Show the plan, apply the topology once, and return the closing line.

    Raises TensileError when the answer is no, an object is blocked or a lower cluster is unreachable.
    """
    if options.ask is None:
        return asyncio.run(_apply(opening, options, show))
    if asyncio.run(_plan(opening, options, show)).changes and not options.ask():
        raise TensileError("Nothing was changed.")
    return asyncio.run(_apply(opening, options, None))


async def _plan(opening: Opening, options: ApplyOptions, show: Show) -> Preview:
    async with opening() as found:
        return await _shown(found, options, show)


async def _apply(opening: Opening, options: ApplyOptions, show: Show | None) -> str:
    """Apply. The plan is shown before, unless a person was asked about it already."""
    async with opening() as found:
        if show is not None:
            await _shown(found, options, show)
        return await _applied(found, options)


async def _shown(found: OpenedClusters, options: ApplyOptions, show: Show) -> Preview:
    recorder = Recorder()
    work = partial(rehearse, observer=recorder, forced=options.forced)
    planned = await previewed(*found, recorder, work)
    show(planned)
    return planned


async def _applied(found: OpenedClusters, options: ApplyOptions) -> str:
    recorder = _Applying(LoggingObserver(Metrics(), time.monotonic))
    done = await previewed(*found, recorder, partial(converge, observer=recorder, forced=options.forced))
    if done.problems or done.unreached:
        body, _, last = as_text(done, colour=False).rpartition("Plan: ")
        raise TensileError(f"{body}Applied in part: {last}")
    return summary_line(done).replace("Plan: ", "Applied: ", 1)
