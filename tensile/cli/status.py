"""The report of `tensile status`: a table in kubectl's style, followed by the state of the topology."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from tensile.resources import readable
from tensile.text import aligned, joined

_HEAD = ("LOWER", "NODE", "STATE", "PODS", "CPU", "MEMORY", "MAX PODS", "LAG")
_RED, _PLAIN = "\x1b[31m", "\x1b[0m"
_MINUTE, _HOUR = 60, 3600
_HASH = 12


def as_text(document: Mapping[str, Any], *, colour: bool) -> str:
    """Render a report as text, without a trailing newline; `colour` marks unreachable clusters red."""
    lowers = document["lowers"]
    lines = aligned([_HEAD, *map(_cells, lowers)]) if lowers else ["No lower clusters."]
    marked = [lines[0], *(_marked(line, row, colour=colour) for line, row in zip(lines[1:], lowers, strict=False))]
    notes = [f"{row['name']}: {row['message']}" for row in lowers if row["message"]]
    legend = ["CPU, MEMORY and MAX PODS: advertised/real."] if lowers else []
    return "\n".join([*marked, joined([*_block(legend), *_block(notes), "", *_verdict(document)])])


def as_json(document: Mapping[str, Any]) -> str:
    """Render a report as JSON."""
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def _block(lines: Sequence[str]) -> list[str]:
    return ["", *lines] if lines else []


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    amounts = (_pair(row, name) for name in ("cpu", "memory", "pods"))
    return (row["name"], row["node"], _state(row), str(row["pods"]), *amounts, _seconds(row["lag"]))


def _state(row: Mapping[str, Any]) -> str:
    """Return the state in one word; an engine of an earlier version does not tell it."""
    return str(row.get("state") or ("Ready" if row["reachable"] else "NoAnswer"))


def _pair(row: Mapping[str, Any], name: str) -> str:
    return "/".join(readable(row[side].get(name, ""), name) for side in ("advertised", "real"))


def _seconds(lag: int) -> str:
    """Render seconds as kubectl renders an age."""
    if lag < 2 * _MINUTE:
        return f"{lag}s"
    return f"{lag // _MINUTE}m" if lag < 2 * _HOUR else f"{lag // _HOUR}h"


def _marked(line: str, row: Mapping[str, Any], *, colour: bool) -> str:
    return f"{_RED}{line}{_PLAIN}" if colour and not row["reachable"] else line


def _verdict(document: Mapping[str, Any]) -> Iterable[str]:
    """Yield whether the topology was accepted, what is pending, and the latest error."""
    accepted, rejected = document.get("accepted"), document.get("rejected")
    name = document["topology"]
    if accepted:
        version = f", resourceVersion {accepted['resourceVersion']}" if "resourceVersion" in accepted else ""
        digest = str(accepted.get("sha256", ""))[:_HASH]
        yield f"Topology {name}: in force since {accepted['time']} (sha256 {digest}...{version})"
        yield from (f"  not in force: {words}" for words in accepted.get("restartNeeded", ()))
        yield from (f"  topology change pending: {words}" for words in accepted.get("pending", ()))
    if rejected:
        meanwhile = "the last good topology stays in force" if accepted else "the engine does not start"
        yield f"Refused at {rejected['time']}, {meanwhile}:"
        yield from (f"  {line}" for line in str(rejected["error"]).splitlines())
    if document.get("waits"):
        yield f"The engine is not ready: {document['waits']}"
