"""The report of `tensile status`: a table in kubectl's style, followed by the state of the topology.

With `--watch` a terminal shows the latest report in place. A file or a pipe gets one report after the other, each when
something has changed.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from shutil import get_terminal_size
from typing import Any
from unicodedata import east_asian_width

import orjson

from tensile.engine.status.query import StatusAnswer, StatusUpdates
from tensile.errors import TensileError
from tensile.objects import timestamp
from tensile.resources import readable
from tensile.text import aligned, human_duration, joined, takes_colour

_HEAD = ("LOWER", "NODE", "STATE", "PODS", "CPU", "MEMORY", "MAX PODS", "LAG")
_WIDE = ("NODES", "VERSION", "MESSAGE")
_RED, _PLAIN = "\x1b[31m", "\x1b[0m"
_CLEAR, _TOP = "\x1b[J", "\x1b[H"
"""Clear from the cursor to the end of the screen; move the cursor to its top left corner."""
_HASH = 12
_BROKEN = ("NoAnswer", "Error", "Forbidden")
_DOCTOR = "To find the cause, run `tensile doctor`: it checks connections, credentials and permissions."
_NOT_LOCAL = "  changes and pods: see ConfigMap NAME-status; the engine shows them on loopback addresses only"
"""What stands there for an engine that was called at another address."""


def as_text(document: Mapping[str, Any], *, colour: bool, wide: bool = False) -> str:
    """Render a report as text, without a trailing newline; `colour` marks unreachable clusters red.

    A `wide` table has more columns, and the messages in the last one.
    """
    lowers = document["lowers"]
    head, cells = ((*_HEAD, *_WIDE), _wide_cells) if wide else (_HEAD, _cells)
    nothing = "No lower clusters." if document.get("topology") else "No topology is active."
    if document.get("waits"):
        nothing = "The lower clusters are not known yet."
    if leader := document.get("leader"):
        nothing = f"This engine is a standby: {leader} leads, and knows the lower clusters."
    lines = aligned([head, *map(cells, lowers)]) if lowers else [nothing]
    marked = [lines[0], *(_marked(line, row, colour=colour) for line, row in zip(lines[1:], lowers, strict=False))]
    notes = [_named(row["name"], row["message"]) for row in lowers if row["message"] and not wide]
    notes += [f"{row['name']}: {_blocked_message(row['blocked'])}" for row in lowers if row.get("blocked")]
    notes += [f"{row['name']}: {_drift_message(row['drift'])}" for row in lowers if row.get("drift")]
    notes += [_DOCTOR] if any(_is_broken(row) for row in lowers) else []
    more = "; NODES: Ready and schedulable/all" if wide else ""
    legend = [f"CPU, MEMORY and MAX PODS: advertised/real{more}."] if lowers else []
    return "\n".join([*marked, joined([*_block(legend), *_block(notes), "", *_verdict(document)])])


def as_json(document: Mapping[str, Any]) -> str:
    """Render a report as JSON."""
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def rendered(document: Mapping[str, Any], output: str, *, colour: bool) -> str:
    """Render a report as "text", "wide" or "json"."""
    return as_json(document) if output == "json" else as_text(document, colour=colour, wide=output == "wide")


def _block(lines: Sequence[str]) -> list[str]:
    return ["", *lines] if lines else []


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    amounts = (_pair(row, name) for name in ("cpu", "memory", "pods"))
    return (row["name"], row["node"], _state(row), str(row["pods"]), *amounts, human_duration(row["lag"]))


def _wide_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    nodes = row.get("nodes") or {}
    counts = f"{nodes['ready']}/{nodes['total']}" if nodes else "-"
    return (*_cells(row), counts, row.get("version") or "-", row["message"] or "-")


def _state(row: Mapping[str, Any]) -> str:
    """Return the state in one word; an engine of an earlier version does not report it."""
    return str(row.get("state") or ("Ready" if row["reachable"] else "NoAnswer"))


def _pair(row: Mapping[str, Any], name: str) -> str:
    return "/".join(readable(row[side].get(name, ""), name) for side in ("advertised", "real"))


def _named(lower: str, message: str) -> str:
    """Return a message with its lower's name before it; errors of requests have the name already."""
    return message if message.startswith(f"{lower}: ") else f"{lower}: {message}"


def _is_broken(row: Mapping[str, Any]) -> bool:
    """Report whether a lower's state has a cause outside of its objects, or a request of it failed."""
    is_failing = bool(row["message"]) and (row["lag"] > 0 or row["message"].startswith(f"{row['name']}: "))
    return _state(row) in _BROKEN or is_failing


def _blocked_message(count: int) -> str:
    """Return how many objects are blocked; an engine of an earlier version does not report it."""
    subject = "1 object is" if count == 1 else f"{count} objects are"
    return f"{subject} blocked: the engine's log and status page name them; `tensile explain pod` says why a pod waits"


def _drift_message(count: int) -> str:
    """Return how many changes of other clients were put back; an engine of an earlier version does not report it."""
    subject = "1 change" if count == 1 else f"{count} changes"
    return f"{subject} by other clients put back since the engine started: see the status page, or Events DriftReverted"


def _marked(line: str, row: Mapping[str, Any], *, colour: bool) -> str:
    return f"{_RED}{line}{_PLAIN}" if colour and not row["reachable"] else line


def _verdict(document: Mapping[str, Any]) -> Iterable[str]:
    """Yield whether the topology was accepted, what is pending, and the latest error."""
    accepted, rejected = document.get("accepted"), document.get("rejected")
    approval = document.get("pendingApproval")
    name = document["topology"]
    if accepted:
        version = f", resourceVersion {accepted['resourceVersion']}" if "resourceVersion" in accepted else ""
        digest = str(accepted.get("sha256", ""))[:_HASH]
        yield f"Topology {name}: in force since {accepted['time']} (sha256 {digest}...{version})"
        yield from (f"  not in force: {message}" for message in accepted.get("restartNeeded", ()))
        yield from (f"  topology change pending: {message}" for message in accepted.get("pending", ()))
    if approval:
        pods = "1 running pod" if approval["pods"] == 1 else f"{approval['pods']} running pods"
        yield (
            f"Edit {approval['sha256'][:_HASH]}... waits for an approval since {approval['time']}: "
            f"it affects {pods} (guard.approveOver: {approval['approveOver']})"
        )
        yield from (f"  {message}" for message in approval["changes"])
        yield f"  pods: {', '.join(_affected(approval))}" if approval["affected"] else _NOT_LOCAL
        yield f"  to approve it: {approval['command']}"
    if rejected:
        meanwhile = "the last good topology stays in force" if accepted else "the engine does not start"
        yield f"Refused at {rejected['time']}, {meanwhile}:"
        yield from (f"  {line}" for line in str(rejected["error"]).splitlines())
    if document.get("waits"):
        yield f"The engine is not ready: {document['waits']}"


def _affected(approval: Mapping[str, Any]) -> list[str]:
    """Return the first pods that an edit affects, and how many more there are."""
    named = [str(one) for one in approval["affected"]]
    more = approval["pods"] - len(named)
    return [*named, f"and {more} more"] if more > 0 else named


Form = Callable[[Mapping[str, Any]], str]
"""Renders a report."""
Size = Callable[[], os.terminal_size]


class StatusView:
    """What `--watch` writes for each update; `form` renders a report.

    `size` returns the size of the terminal. It is None where reports are appended: only those that differ from the last
    one by more than the lag of a cluster.
    """

    def __init__(self, form: Form, size: Size | None) -> None:
        self._form = form
        self._size = size
        self._report: list[str] = []
        self._last: object = None
        self._drawn_lines: list[str] = []

    def render(self, update: StatusAnswer | TensileError, now: datetime) -> str:
        """Return what to write for an update that was received at a time, "" for nothing."""
        at = timestamp(now)
        if isinstance(update, StatusAnswer):
            self._report = f"As of {at}:\n{self._form(update.document)}".split("\n")
            problem = update.problem
        else:
            problem = f"No status at {at}, trying again: {update}"
        note = joined(problem.split("\n")).split("\n") if problem else []
        if self._size is not None:
            between = [""] if self._report and note else []
            return self._redraw([*self._report, *between, *note], self._size())
        return self._append(update, note)

    def _append(self, update: StatusAnswer | TensileError, note: Sequence[str]) -> str:
        content = essence(update)
        if content == self._last:
            return ""
        report = self._report if isinstance(update, StatusAnswer) else []
        lines = [*([""] if self._last else ()), *report, *([""] if report and note else ()), *note]
        self._last = content
        return "".join(f"{line}\n" for line in lines)

    def _redraw(self, lines: Sequence[str], size: os.terminal_size) -> str:
        """Return the lines with what moves the cursor to the beginning of those written before, and clears them."""
        before = sum(_height(line, size.columns) for line in self._drawn_lines)
        up = _TOP if before >= size.lines else f"\x1b[{before}A" if before else ""
        self._drawn_lines = _fitting(lines, size)
        return f"{up}\r{_CLEAR}" + "".join(f"{line}\n" for line in self._drawn_lines)


def essence(update: StatusAnswer | TensileError) -> object:
    """Return what makes an update differ from another; the lag of a cluster, which grows all the time, does not."""
    if isinstance(update, TensileError):
        return str(update)
    rows = [{**row, "lag": 0} for row in update.document["lowers"]]
    return {**update.document, "lowers": rows}, update.problem


class JsonLines:
    """What `--watch -o json` writes: a line for each report that differs from the last.

    `report_error` receives errors.
    """

    def __init__(self, report_error: Callable[[str], None]) -> None:
        self._report_error = report_error
        self._last: object = None

    def render(self, update: StatusAnswer | TensileError, _now: datetime) -> str:
        """Return what to write for an update, "" for nothing."""
        content = essence(update)
        if content == self._last:
            return ""
        self._last = content
        error = str(update) if isinstance(update, TensileError) else update.problem
        if error:
            self._report_error(joined(error.split("\n")))
        return "" if isinstance(update, TensileError) else f"{orjson.dumps(update.document).decode()}\n"


def _fitting(lines: Sequence[str], size: os.terminal_size) -> list[str]:
    """Return the lines that a terminal can show above the line of its cursor, and how many it cannot."""
    lines_left = size.lines - 1
    if sum(_height(line, size.columns) for line in lines) <= lines_left:
        return list(lines)
    found: list[str] = []
    for line in lines:
        lines_left -= _height(line, size.columns)
        if lines_left < 1:
            break
        found.append(line)
    return [*found, f"... {len(lines) - len(found)} more lines do not fit on the terminal"[: size.columns]]


def _height(line: str, columns: int) -> int:
    """Return how many lines of a terminal a line takes."""
    plain = line.replace(_RED, "").replace(_PLAIN, "")
    width = sum(2 if east_asian_width(char) in "WF" else 1 for char in plain)
    return max(-(-width // columns), 1)


def watch(updates: StatusUpdates, output: str) -> None:
    """Write every update to stdout until Ctrl-C, as "text", "wide" or "json"."""
    is_terminal = sys.stdout.isatty()
    form = partial(rendered, output=output, colour=takes_colour(sys.stdout))
    view = JsonLines(_print_error) if output == "json" else StatusView(form, get_terminal_size if is_terminal else None)
    asyncio.run(_watch(updates, view))


async def _watch(updates: StatusUpdates, view: StatusView | JsonLines) -> None:
    async with aclosing(updates) as found:
        async for update in found:
            sys.stdout.write(view.render(update, datetime.now(UTC)))
            sys.stdout.flush()


def _print_error(line: str) -> None:
    sys.stderr.write(f"{line}\n")
