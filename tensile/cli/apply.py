"""`tensile apply`: show the plan, ask on a terminal, and make its changes once.

The question comes between two connections: nothing is open while a person reads, so Ctrl-C ends the command at once.
What is applied after it is what was shown, as with a saved plan: it is planned again, and refused if it differs.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, TextIO

from tensile.engine.metrics import Metrics
from tensile.engine.observer import LoggingObserver, LoggingRecorder
from tensile.engine.plan_and_apply import OpenedClusters, Planned, converge, previewed, rehearse
from tensile.engine.status.query import report_at
from tensile.errors import TensileError
from tensile.objects import Ref
from tensile.policy.disruption import as_sections
from tensile.reconcile.loop import NOT_IN_PLAN
from tensile.reconcile.plan import Step
from tensile.reconcile.report import (
    LARGEST,
    WHOLE_PLAN,
    Later,
    Lines,
    Recorder,
    SavedPlan,
    SavedTopology,
    as_text,
    moved,
    parsed,
    saved,
    summary_line,
)
from tensile.text import listed, takes_colour
from tensile.topology import Topology

QUESTION = "Make these changes? Only 'yes' or 'y' is accepted: "
NO_CHANGE = "Nothing was changed."
_STALE = "The plan is stale. These have moved since it was made:"
_PLAN_AGAIN = f"{NO_CHANGE} Plan again with `tensile plan --out FILE`."
_APPLY_AGAIN = f"{NO_CHANGE} Run `tensile apply` again."
_AGREEING_ANSWERS = ("yes", "y")
_DIGITS = 12
_MAX_NAMED = 3
_UNNAMED = SavedTopology("", "", "")
Ask = Callable[[], bool]
"""Asks a person whether to go on."""
Opening = Callable[[], AbstractAsyncContextManager[OpenedClusters]]
"""Opens the clusters of the topology, as `tensile.engine.plan_and_apply.opened` does."""
Show = Callable[[Planned], None]
"""Shows a plan to a person."""


class ApplyOptions(NamedTuple):
    """How to apply: whether to make deletions that the guard blocks, and what asks a person first (None: no question).

    With a `plan`, exactly its steps are made, or none if anything that it rests on has moved. `lines` adds the lines of
    the topology file that cause changes.
    """

    forced: bool = False
    ask: Ask | None = None
    plan: SavedPlan | None = None
    lines: Lines = lambda found: found


def question(input_stream: TextIO, *output_streams: TextIO) -> Ask | None:
    """Return what asks on a terminal, None if `input_stream`, or each of `output_streams`, is not connected to one."""
    stream = next((one for one in output_streams if one.isatty()), None)
    if stream is None or not input_stream.isatty():
        return None

    def ask() -> bool:
        """Write the question and read a line."""
        print(QUESTION, end="", file=stream, flush=True)
        return is_yes(input_stream.readline())

    return ask


def shown_on(stream: TextIO) -> Show:
    """Return what writes a plan to a stream, with an empty line behind it. A plan without content is not written."""

    def show(planned: Planned) -> None:
        """Write the plan."""
        plan, more = planned.preview, [*Later((), planned.waits).sections(), *as_sections(planned.cost)]
        if plan.changes or plan.problems or plan.unreached or planned.waits:
            print(as_text(plan, colour=takes_colour(stream), more=more), end="\n\n", file=stream, flush=True)

    return show


def is_yes(answer: str) -> bool:
    """Report whether an answer agrees. No answer, at the end of the input, does not."""
    return answer.strip() in _AGREEING_ANSWERS


def read_plan(name: str) -> SavedPlan:
    """Return the saved plan in a file. Raises TensileError if it cannot be read, or is none."""
    try:
        with Path(name).open("rb") as stream:
            data = stream.read(LARGEST + 1)
    except OSError as error:
        raise TensileError(f"{name}: cannot be read: {error.strerror}: name a file of `tensile plan --out`") from None
    if len(data) > LARGEST:
        raise TensileError(f"{name}: larger than {LARGEST} bytes: name a file of `tensile plan --out`")
    return parsed(data, name)


def topology_file(plan: SavedPlan, given: str | None) -> str:
    """Return the file to read the topology of a saved plan from: the `given` one, else the one that it was made from.

    Raises TensileError if it was made from no file.
    """
    if given is None and not plan.topology.file:
        raise TensileError(
            "the topology of this plan came from standard input or a ConfigMap: name it with -f or --configmap"
        )
    return plan.topology.file if given is None else given


def check_topology(plan: SavedPlan, name: str, data: bytes, errors: str = "") -> None:
    """Raise TensileError if the content of a topology file is not the one that was planned.

    `errors` are the lines about what is invalid in it.
    """
    found = sha256(data).hexdigest()
    if found != plan.topology.sha256:
        edited = f"{name}: edited, from SHA-256 {plan.topology.sha256[:_DIGITS]} to {found[:_DIGITS]}"
        invalid = (f"{edited}, which is not valid:", errors)
        raise TensileError("\n".join((_STALE, *(invalid if errors else (edited,)), _PLAN_AGAIN)))


def beside_engine(topology: Topology, data: bytes) -> str:
    """Return a warning if an engine on this machine runs the topology with another text than `data`, else ""."""
    report = asyncio.run(report_at(topology.telemetry))
    active = str((report.get("accepted") or {}).get("sha256", ""))
    if report.get("topology") != topology.name or active in ("", sha256(data).hexdigest()):
        return ""
    return (
        f"warning: an engine of topology {topology.name} uses another text of it, and undoes what differs: edit the "
        "topology that it follows instead"
    )


def apply(open_clusters: Opening, options: ApplyOptions, show: Show) -> str:
    """Show the plan, apply the topology once, and return the closing line, and before it what was left out.

    Raises TensileError when the answer is no, the plan is stale, an object is blocked or a lower cluster is
    unreachable.
    """
    if options.ask is None:
        return asyncio.run(_apply(open_clusters, options, show))
    planned = asyncio.run(_plan(open_clusters, options, show))
    if planned.preview.changes and not options.ask():
        raise TensileError(NO_CHANGE)
    agreed = options.plan or saved(planned.preview, _UNNAMED, planned.clusters, "")
    return asyncio.run(_apply(open_clusters, options._replace(plan=agreed), None))


async def _plan(open_clusters: Opening, options: ApplyOptions, show: Show) -> Planned:
    async with open_clusters() as found:
        planned, _ = await _rehearsed(found, options)
    show(planned)
    return planned


async def _apply(open_clusters: Opening, options: ApplyOptions, show: Show | None) -> str:
    """Apply. The plan is shown before, unless a person was asked about it already."""
    async with open_clusters() as found:
        planned, steps = await _rehearsed(found, options)
        if show is not None:
            show(planned)
        return await _applied(found, options, None if options.plan is None else steps)


async def _rehearsed(found: OpenedClusters, options: ApplyOptions) -> tuple[Planned, frozenset[tuple[str, Ref]]]:
    """Plan; return also the verbs and objects of the steps. Raises TensileError if the saved plan is stale."""
    recorder, scope = Recorder(), options.plan.scope if options.plan else WHOLE_PLAN
    planned = await previewed(
        found.clusters, found.unreached, recorder, partial(rehearse, observer=recorder, forced=options.forced), scope
    )
    if options.plan is not None:
        current = saved(planned.preview, options.plan.topology, planned.clusters, options.plan.salt)
        differences = moved(options.plan, current)
        if differences:
            advice = _APPLY_AGAIN if options.plan.topology is _UNNAMED else _PLAN_AGAIN
            raise TensileError("\n".join((_STALE, *differences, advice)))
    refs = {change.ref for change in planned.preview.changes}
    shown = planned._replace(preview=options.lines(planned.preview), waits=found.waits)
    return shown, frozenset((one.step.verb, one.step.ref) for one in recorder.recorded if one.step.ref in refs)


async def _applied(found: OpenedClusters, options: ApplyOptions, allowed: frozenset[tuple[str, Ref]] | None) -> str:
    """Make the changes, only those that are `allowed` (None: all)."""
    recorder = LoggingRecorder(LoggingObserver(Metrics(), time.monotonic))

    def permits(step: Step) -> bool:
        """Report whether a step is in the plan."""
        return allowed is None or (step.verb, step.ref) in allowed

    run = partial(converge, observer=recorder, forced=options.forced, permits=permits)
    scope = options.plan.scope if options.plan else WHOLE_PLAN
    done = (await previewed(found.clusters, found.unreached, recorder, run, scope)).preview
    left_out = list(dict.fromkeys(one.message for _, one in done.problems if one.reason == NOT_IN_PLAN))
    done = replace(done, problems=tuple(one for one in done.problems if one[1].reason != NOT_IN_PLAN))
    made = {change.ref for change in done.changes}
    not_made = sorted({str(ref) for _, ref in allowed or () if ref not in made}) if left_out else []
    lines = [f"Left out: {listed(left_out, _MAX_NAMED)}: run `tensile plan` again"] if left_out else []
    lines += [f"Not made, for lack of what was left out: {listed(not_made, _MAX_NAMED)}"] if not_made else []
    if done.problems or done.unreached or not_made:
        body, _, last = as_text(done, colour=False).rpartition("Plan: ")
        notes = "".join(f"{line}\n" for line in lines)
        raise TensileError(f"{body}{notes}Applied in part: {last}")
    return "\n".join([*lines, summary_line(done).replace("Plan: ", "Applied: ", 1)])
