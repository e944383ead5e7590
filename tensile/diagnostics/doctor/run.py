"""`tensile doctor`: collects the facts, runs every check on every cluster, and prints the findings.

The text begins with what needs attention: failures, then warnings, each with advice. What is ok is only counted.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import orjson

from tensile.diagnostics.doctor.apiserver import check_connection, check_rights
from tensile.diagnostics.doctor.certificates import check_certificates
from tensile.diagnostics.doctor.collect import gather_facts, topology_at
from tensile.diagnostics.doctor.facts import CHECKS, ClusterFacts, Facts, Finding, Level, shown
from tensile.diagnostics.doctor.lowers import (
    check_identity,
    check_kubelet,
    check_metrics,
    check_network_policies,
    check_node,
    check_storage,
    check_tenants,
)
from tensile.diagnostics.doctor.networks import check_networks, check_ports, check_webhook
from tensile.engine.clusters import utc_now
from tensile.engine.lower import ClusterAccess
from tensile.engine.topology_reader import ConfigMapKey
from tensile.text import aligned, harmless
from tensile.topology import Topology

FORMAT = 1
_COLOURS = {Level.OK: "\x1b[32m", Level.WARN: "\x1b[33m", Level.FAIL: "\x1b[31m"}
_PLAIN = "\x1b[0m"
_LEVEL_NAMES = {Level.OK: "ok", Level.SKIP: "skipped", Level.WARN: "warn", Level.FAIL: "fail"}
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
    check_connection,
    check_certificates,
    check_identity,
    check_rights,
    check_node,
    check_kubelet,
    check_metrics,
    check_storage,
    check_webhook,
    check_ports,
    check_tenants,
    check_network_policies,
)
_OF_CONTENT = ("rights", "metrics", "storage", "network", "ports", "tenants")
"""The checks of what is in a cluster: for the wrong cluster, their advice would be wrong."""


def examine(
    topology: Topology,
    cluster_access: ClusterAccess,
    output: str,
    configmap_key: ConfigMapKey | None = None,
    *,
    colour: bool,
    every: bool = False,
) -> tuple[str, bool]:
    """Return the findings as "text" or "json", and whether no check fails.

    `configmap_key` is the topology's ConfigMap in the upper cluster, None for a file. With `every`, the text has each
    finding.
    """
    facts = asyncio.run(gather_facts(topology, cluster_access, utc_now, configmap_key))
    findings = run_checks(facts)
    if output == "json":
        text = orjson.dumps(as_document(facts, findings), option=orjson.OPT_INDENT_2).decode()
    else:
        text = as_text(facts, findings, colour=colour, every=every)
    return text, worst(findings) != Level.FAIL


def examine_map(
    configmap_key: ConfigMapKey, cluster_access: ClusterAccess, output: str, *, colour: bool, every: bool = False
) -> tuple[str, bool]:
    """Return the same as `examine` for the topology in a ConfigMap; raises TensileError if that cannot be read."""
    return examine(
        asyncio.run(topology_at(configmap_key, cluster_access)),
        cluster_access,
        output,
        configmap_key,
        colour=colour,
        every=every,
    )


def run_checks(facts: Facts) -> list[Finding]:
    """Return all findings, cluster by cluster, in the order of CHECKS."""
    network_findings = list(check_networks(facts))
    return [finding for cluster in facts.clusters() for finding in _findings_of(cluster, facts, network_findings)]


def _findings_of(cluster: ClusterFacts, facts: Facts, network_findings: list[Finding]) -> list[Finding]:
    found = [finding for check in _CHECKS for finding in check(cluster, facts)]
    found += [finding for finding in network_findings if finding.cluster == cluster.name]
    if any(one.check == "identity" and one.level == Level.FAIL for one in found):
        content = dict.fromkeys(one.check for one in found if one.check in _OF_CONTENT)
        found = [one for one in found if one.check not in content]
        found += [Finding(cluster.name, check, Level.SKIP, "not checked in a wrong cluster") for check in content]
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
        "level": _LEVEL_NAMES[worst(list(findings))],
        "clusters": [
            {
                "name": cluster.name or None,
                "findings": [
                    {
                        "check": one.check,
                        "level": _LEVEL_NAMES[one.level],
                        "what": one.what,
                        "advice": one.advice.splitlines(),
                    }
                    for one in findings
                    if one.cluster == cluster.name
                ],
            }
            for cluster in facts.clusters()
        ],
    }


def as_text(facts: Facts, findings: Sequence[Finding], *, colour: bool, every: bool = False) -> str:
    """Return the findings as text, without a trailing newline: failures, warnings, and a line for each cluster.

    With `every`, each cluster has a line for each of its findings instead.
    """
    worst_first = [one for level in (Level.FAIL, Level.WARN) for one in findings if one.level == level]
    lines = [line for one in worst_first for line in [*_problem(one, colour=colour), ""]]
    by_cluster = {
        cluster.name: [one for one in findings if one.cluster == cluster.name] for cluster in facts.clusters()
    }
    if every:
        lines += [
            line for name, found in by_cluster.items() for line in [*_cluster_lines(name, found, colour=colour), ""]
        ]
    else:
        rows = [(shown(name), _counted(found), _summary(found)) for name, found in by_cluster.items()]
        lines += [*aligned(rows), ""]
    return "\n".join([*lines, _totals(findings)])


def _problem(finding: Finding, *, colour: bool) -> Iterator[str]:
    """Yield the lines of a failure or a warning: what is wrong in which cluster, and what to do."""
    yield f"{_mark(finding.level, colour=colour)} {shown(finding.cluster)}: {finding.check}: {harmless(finding.what)}"
    for number, line in enumerate(finding.advice.splitlines()):
        yield f"     {'->' if number == 0 else '  '} {harmless(line)}"


def _cluster_lines(name: str, findings: Sequence[Finding], *, colour: bool) -> Iterator[str]:
    """Yield a line for each finding of a cluster, below its name."""
    who = _summary(findings)
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


def _summary(findings: Sequence[Finding]) -> str:
    """Return a summary of a reachable cluster: version, address and user."""
    return harmless(", ".join(text for check in ("version", "reach", "login") if (text := _first(findings, check))))


def _first(findings: Sequence[Finding], check: str) -> str:
    return next((one.what for one in findings if one.check == check and one.level == Level.OK), "")


def _totals(findings: Sequence[Finding]) -> str:
    fails, warnings = (sum(one.level == level for one in findings) for level in (Level.FAIL, Level.WARN))
    return f"{fails} failed, {warnings} {'warning' if warnings == 1 else 'warnings'}"
