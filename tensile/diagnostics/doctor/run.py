"""`tensile doctor`: collects the facts, runs every check on every cluster, and prints the findings.

The text is a table of clusters and checks, followed by the details and advice for what is not ok.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import orjson

from tensile.diagnostics.doctor.certificates import papers
from tensile.diagnostics.doctor.collect import gathered, topology_at
from tensile.diagnostics.doctor.connectivity import reached
from tensile.diagnostics.doctor.facts import CHECKS, ClusterFacts, Facts, Finding, Level, shown
from tensile.diagnostics.doctor.features import measured, stored
from tensile.diagnostics.doctor.networks import bound, networked
from tensile.diagnostics.doctor.nodes import called, identified, noded
from tensile.diagnostics.doctor.rbac import permitted
from tensile.diagnostics.doctor.tenants import tenanted, unprotected
from tensile.diagnostics.doctor.webhook import hooked
from tensile.engine.clusters import utc_now
from tensile.engine.configmap_source import ConfigMapKey
from tensile.engine.lower import ClusterAccess
from tensile.text import aligned, harmless
from tensile.topology import Topology

FORMAT = 1
_COLOURS = {Level.OK: "\x1b[32m", Level.WARN: "\x1b[33m", Level.FAIL: "\x1b[31m"}
_PLAIN = "\x1b[0m"
_WORDS = {Level.OK: "ok", Level.SKIP: "skipped", Level.WARN: "warn", Level.FAIL: "fail"}
"""The levels in the JSON output."""
_TOLD = ("certificates", "network")
"""Checks whose findings the text shows even when they are ok: expiry dates of certificates, and address ranges."""
Check = Callable[[ClusterFacts, Facts], Iterator[Finding]]
_CHECKS: tuple[Check, ...] = (
    reached,
    papers,
    identified,
    permitted,
    noded,
    called,
    measured,
    stored,
    hooked,
    bound,
    tenanted,
    unprotected,
)


def examine(
    topology: Topology, ways: ClusterAccess, output: str, place: ConfigMapKey | None = None, *, colour: bool
) -> tuple[str, bool]:
    """Return the findings as "text" or "json", and whether no check fails.

    `place` is the topology's ConfigMap in the upper cluster, None for a file.
    """
    facts = asyncio.run(gathered(topology, ways, utc_now, place))
    findings = diagnosed(facts)
    if output == "json":
        text = orjson.dumps(as_document(facts, findings), option=orjson.OPT_INDENT_2).decode()
    else:
        text = as_text(facts, findings, colour=colour)
    return text, worst(findings) != Level.FAIL


def examine_map(place: ConfigMapKey, ways: ClusterAccess, output: str, *, colour: bool) -> tuple[str, bool]:
    """Return the same as `examine` for the topology in a ConfigMap; raises TensileError if that cannot be read."""
    return examine(asyncio.run(topology_at(place, ways)), ways, output, place, colour=colour)


def diagnosed(facts: Facts) -> list[Finding]:
    """Return all findings, cluster by cluster, in the order of CHECKS."""
    of_all = list(networked(facts))
    return [finding for side in facts.sides() for finding in _of(side, facts, of_all)]


def _of(side: ClusterFacts, facts: Facts, of_all: list[Finding]) -> list[Finding]:
    found = [finding for check in _CHECKS for finding in check(side, facts)]
    found += [finding for finding in of_all if finding.cluster == side.name]
    return sorted(found, key=lambda finding: CHECKS.index(finding.check))


def worst(findings: list[Finding]) -> Level:
    """Return the worst level of some findings."""
    order = list(Level)
    return max((finding.level for finding in findings), key=order.index, default=Level.SKIP)


def as_document(facts: Facts, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the JSON document: `formatVersion`, `topology`, `level`, and the `findings` of each of `clusters`."""
    return {
        "formatVersion": FORMAT,
        "topology": facts.topology.name,
        "level": _WORDS[worst(list(findings))],
        "clusters": [
            {
                "name": side.name or None,
                "findings": [
                    {
                        "check": one.check,
                        "level": _WORDS[one.level],
                        "what": one.what,
                        "advice": one.advice.splitlines(),
                    }
                    for one in findings
                    if one.cluster == side.name
                ],
            }
            for side in facts.sides()
        ],
    }


def as_text(facts: Facts, findings: Sequence[Finding], *, colour: bool) -> str:
    """Return the findings as text, without a trailing newline."""
    lines = _table(facts, findings, colour=colour)
    for side in facts.sides():
        of_side = [one for one in findings if one.cluster == side.name]
        lines += ["", f"{shown(side.name)}{_who(of_side)}"]
        worth = (one for one in of_side if one.level != Level.OK or one.check in _TOLD)
        lines += [line for one in worth for line in _told(one, colour=colour)]
    return "\n".join([*lines, "", _sum(findings)])


def _table(facts: Facts, findings: Sequence[Finding], *, colour: bool) -> list[str]:
    """Return the table: a line for each cluster, with the worst level of each check."""
    checks = [check for check in CHECKS if any(one.check == check for one in findings)]
    rows = [[shown(side.name), *(_mark(findings, side.name, check) for check in checks)] for side in facts.sides()]
    head, *lines = aligned([["CLUSTER", *(check.upper() for check in checks)], *rows])
    return [head, *(_coloured(line) if colour else line for line in lines)]


def _mark(findings: Sequence[Finding], cluster: str, check: str) -> str:
    found = [one for one in findings if (one.cluster, one.check) == (cluster, check)]
    return str(worst(found)) if found else ""


def _coloured(line: str) -> str:
    """Return a line of the table with coloured levels; they are separate words after the cluster's name."""
    for level, code in _COLOURS.items():
        line = f"{line} ".replace(f" {level} ", f" {code}{level}{_PLAIN} ").rstrip(" ")
    return line


def _who(findings: Sequence[Finding]) -> str:
    """Return a summary of a reachable cluster: version, address and user."""
    known = ", ".join(words for check in ("version", "reach", "login") if (words := _first(findings, check)))
    return f": {harmless(known)}" if known else ""


def _first(findings: Sequence[Finding], check: str) -> str:
    return next((one.what for one in findings if one.check == check and one.level == Level.OK), "")


def _told(finding: Finding, *, colour: bool) -> Iterator[str]:
    """Yield the lines of one finding."""
    mark = str(finding.level)
    painted = f"{_COLOURS[finding.level]}{mark}{_PLAIN}" if colour and finding.level in _COLOURS else mark
    yield f"  {painted}{' ' * (5 - len(mark))}{finding.check}: {harmless(finding.what)}"
    for number, line in enumerate(finding.advice.splitlines()):
        yield f"         {'->' if number == 0 else '  '} {harmless(line)}"


def _sum(findings: Sequence[Finding]) -> str:
    fails, warnings = (sum(one.level == level for one in findings) for level in (Level.FAIL, Level.WARN))
    return f"{fails} failed, {warnings} {'warning' if warnings == 1 else 'warnings'}"
