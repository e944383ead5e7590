"""`tensile doctor`: collects the facts, runs every check on every cluster, and prints the findings.

The text begins with what needs attention: failures, then warnings, each with advice. What is ok is only counted.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import orjson

from tensile.diagnostics.doctor.access import permitted, reached
from tensile.diagnostics.doctor.certificates import papers
from tensile.diagnostics.doctor.collect import gathered, topology_at
from tensile.diagnostics.doctor.facts import CHECKS, ClusterFacts, Facts, Finding, Level, shown
from tensile.diagnostics.doctor.lowers import called, identified, measured, noded, stored, tenanted, unprotected
from tensile.diagnostics.doctor.networks import bound, hooked, networked
from tensile.engine.clusters import utc_now
from tensile.engine.lower import ClusterAccess
from tensile.engine.topology_reader import ConfigMapKey
from tensile.text import aligned, harmless
from tensile.topology import Topology

FORMAT = 1
_COLOURS = {Level.OK: "\x1b[32m", Level.WARN: "\x1b[33m", Level.FAIL: "\x1b[31m"}
_PLAIN = "\x1b[0m"
_WORDS = {Level.OK: "ok", Level.SKIP: "skipped", Level.WARN: "warn", Level.FAIL: "fail"}
"""The levels in the JSON output."""
_COUNTED = (
    (Level.OK, "ok", "ok"),
    (Level.FAIL, "failed", "failed"),
    (Level.WARN, "warning", "warnings"),
    (Level.SKIP, "skipped", "skipped"),
)
"""The levels in the counts of a cluster, with the words for one and for several."""
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
_OF_CONTENT = ("rights", "metrics", "storage", "network", "ports", "tenants")
"""The checks of what is in a cluster: for the wrong cluster, their advice would be wrong."""


def examine(
    topology: Topology,
    ways: ClusterAccess,
    output: str,
    place: ConfigMapKey | None = None,
    *,
    colour: bool,
    every: bool = False,
) -> tuple[str, bool]:
    """Return the findings as "text" or "json", and whether no check fails.

    `place` is the topology's ConfigMap in the upper cluster, None for a file. With `every`, the text has each finding.
    """
    facts = asyncio.run(gathered(topology, ways, utc_now, place))
    findings = diagnosed(facts)
    if output == "json":
        text = orjson.dumps(as_document(facts, findings), option=orjson.OPT_INDENT_2).decode()
    else:
        text = as_text(facts, findings, colour=colour, every=every)
    return text, worst(findings) != Level.FAIL


def examine_map(
    place: ConfigMapKey, ways: ClusterAccess, output: str, *, colour: bool, every: bool = False
) -> tuple[str, bool]:
    """Return the same as `examine` for the topology in a ConfigMap; raises TensileError if that cannot be read."""
    return examine(asyncio.run(topology_at(place, ways)), ways, output, place, colour=colour, every=every)


def diagnosed(facts: Facts) -> list[Finding]:
    """Return all findings, cluster by cluster, in the order of CHECKS."""
    of_all = list(networked(facts))
    return [finding for side in facts.sides() for finding in _of(side, facts, of_all)]


def _of(side: ClusterFacts, facts: Facts, of_all: list[Finding]) -> list[Finding]:
    found = [finding for check in _CHECKS for finding in check(side, facts)]
    found += [finding for finding in of_all if finding.cluster == side.name]
    if any(one.check == "identity" and one.level == Level.FAIL for one in found):
        content = dict.fromkeys(one.check for one in found if one.check in _OF_CONTENT)
        found = [one for one in found if one.check not in content]
        found += [Finding(side.name, check, Level.SKIP, "not checked in a wrong cluster") for check in content]
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


def as_text(facts: Facts, findings: Sequence[Finding], *, colour: bool, every: bool = False) -> str:
    """Return the findings as text, without a trailing newline: failures, warnings, and a line for each cluster.

    With `every`, each cluster has a line for each of its findings instead.
    """
    worst_first = [one for level in (Level.FAIL, Level.WARN) for one in findings if one.level == level]
    lines = [line for one in worst_first for line in [*_problem(one, colour=colour), ""]]
    by_cluster = {side.name: [one for one in findings if one.cluster == side.name] for side in facts.sides()}
    if every:
        lines += [line for name, found in by_cluster.items() for line in [*_all(name, found, colour=colour), ""]]
    else:
        rows = [(shown(name), _counted(found), _who(found)) for name, found in by_cluster.items()]
        lines += [*aligned(rows), ""]
    return "\n".join([*lines, _sum(findings)])


def _problem(finding: Finding, *, colour: bool) -> Iterator[str]:
    """Yield the lines of a failure or a warning: what is wrong in which cluster, and what to do."""
    yield f"{_mark(finding.level, colour=colour)} {shown(finding.cluster)}: {finding.check}: {harmless(finding.what)}"
    for number, line in enumerate(finding.advice.splitlines()):
        yield f"     {'->' if number == 0 else '  '} {harmless(line)}"


def _all(name: str, findings: Sequence[Finding], *, colour: bool) -> Iterator[str]:
    """Yield a line for each finding of a cluster, below its name."""
    who = _who(findings)
    yield f"{shown(name)}: {who}" if who else shown(name)
    yield from (f"  {_mark(one.level, colour=colour)} {one.check}: {harmless(one.what)}" for one in findings)


def _mark(level: Level, *, colour: bool) -> str:
    """Return a level as a word of four characters."""
    word = f"{level:4}"
    return f"{_COLOURS[level]}{word}{_PLAIN}" if colour and level in _COLOURS else word


def _counted(findings: Sequence[Finding]) -> str:
    """Return how many findings a cluster has of each level."""
    counts = ((sum(one.level == level for one in findings), one, several) for level, one, several in _COUNTED)
    return ", ".join(f"{count} {one if count == 1 else several}" for count, one, several in counts if count)


def _who(findings: Sequence[Finding]) -> str:
    """Return a summary of a reachable cluster: version, address and user."""
    return harmless(", ".join(words for check in ("version", "reach", "login") if (words := _first(findings, check))))


def _first(findings: Sequence[Finding], check: str) -> str:
    return next((one.what for one in findings if one.check == check and one.level == Level.OK), "")


def _sum(findings: Sequence[Finding]) -> str:
    fails, warnings = (sum(one.level == level for one in findings) for level in (Level.FAIL, Level.WARN))
    return f"{fails} failed, {warnings} {'warning' if warnings == 1 else 'warnings'}"
