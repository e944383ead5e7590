"""`tensile run --observe`: report what the engine would change, again after changes of the clusters; write nothing.

Each report is a plan: the loop on dry-run clusters, over copies of the caches. So the engine can be observed beside
tensile-kube, or an engine of another topology, before it replaces it. A virtual node that another engine keeps alive
counts as one whose engine has stopped. Otherwise the only result would be that the node is in conflict, and what
happens to its pods would stay unknown.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson
import structlog

from tensile.engine.lower import ClusterAccess
from tensile.engine.observer import first_fields, place
from tensile.engine.oneshot import KnownClusters, feeds, opened, rehearse
from tensile.kube.cluster import Cluster
from tensile.kube.store import Cache, Delta
from tensile.objects import Manifest, Ref
from tensile.reconcile.ownership import digest_node, is_kept_alive, is_ours
from tensile.reconcile.report import Change, Preview, Recorder, observed, preview_of, summary_line
from tensile.reconcile.report.changes import subject as name_of
from tensile.reconcile.world import Key, Problem, World
from tensile.topology import Topology

_PAUSE = 2.0
"""Minimum number of seconds between two reports."""
_SHARE = 5.0
"""Minimum time between two reports, in multiples of what one takes: planning for thousands of pods takes seconds."""
_WOULD = {"create": "would create", "update": "would change", "delete": "would delete", "replace": "would replace"}


class LogLine(NamedTuple):
    """One line of the log; `fields` hold no content of an object, only names and reasons."""

    level: str
    event: str
    fields: Mapping[str, Any]


Report = Mapping[Ref | Key, LogLine]
"""What would happen to each object, and what would block each key. A line is the same as long as it says the same: the
content of an object is no part of it, as it can have the time of the plan in it."""


class _Stopped(NamedTuple):
    """The clusters, with what would be known of them if other engines stopped."""

    world: World
    connections: Mapping[str, Cluster]


async def observe(topology: Topology, ways: ClusterAccess) -> None:
    """Report until cancelled. Raises ClusterTimeout if the upper cluster does not respond."""
    log = structlog.get_logger("tensile.observe")
    changed = asyncio.Event()

    def heard(_delta: Delta) -> None:
        """Remember that a report may be outdated."""
        changed.set()

    async with opened(topology, ways, log.info) as (clusters, unreached):
        log.info("observing, nothing is written", topology=topology.name, lowers=len(topology.lowers))
        for name, why in unreached.items():
            log.warning("lower cluster is not observed", lower=name, error=why)
        for feed in feeds(clusters.world):
            feed.cache.subscribe(heard)
        last: Report | None = None
        while True:
            changed.clear()
            begun = time.monotonic()
            found = await planned(clusters, topology, unreached)
            report = report_of(found)
            for level, event, fields in news(report, last, summary_line(found)):
                (log.info if level == "info" else log.warning)(event, **fields)
            last = report
            await asyncio.sleep(max(_PAUSE, _SHARE * (time.monotonic() - begun)))
            await changed.wait()


async def planned(clusters: KnownClusters, topology: Topology, unreached: Mapping[str, str]) -> Preview:
    """Return the plan for the clusters as they would be if other engines of their virtual nodes had stopped.

    Raises TensileError for a bug in a rule.
    """
    world, recorder = stopped(clusters.world), Recorder()
    before = observed(world)
    problems = await rehearse(_Stopped(world, clusters.connections), recorder)
    return preview_of(recorder, problems, before, topology, unreached=unreached)


def stopped(world: World) -> World:
    """Return a copy of the world in which no other engine keeps a virtual node alive."""
    copied, nodes = world.copy(), Cache(digest_node)
    nodes.replace([_silenced(entry.raw, world) for entry in copied.upper.nodes], copied.upper.nodes.version)
    nodes.synced = copied.upper.nodes.synced
    copied.upper.nodes = nodes
    return copied


def _silenced(raw: bytes, world: World) -> bytes:
    node: Manifest = orjson.loads(raw)
    if is_ours(node, world.owner) or not is_kept_alive(node):
        return raw
    for condition in node["status"]["conditions"]:
        if condition["type"] == "Ready":
            condition["status"] = "Unknown"
    return orjson.dumps(node)


def report_of(found: Preview) -> Report:
    """Return the lines for a plan."""
    return {one.ref: _change(one) for one in found.changes} | {key: _problem(key, one) for key, one in found.problems}


def news(report: Report, last: Report | None, summary: str) -> list[LogLine]:
    """Return the lines that were not in the last report, and those that are no longer; `summary` follows them."""
    known = last or {}
    found = [line for subject, line in report.items() if known.get(subject) != line]
    found += [
        line._replace(level="info", event=f"no longer: {line.event}")
        for subject, line in known.items()
        if subject not in report
    ]
    return [*found, LogLine("info", summary, {})] if found or last is None else []


def _change(change: Change) -> LogLine:
    fields: dict[str, Any] = {**place(change.ref), "because": change.reason}
    if change.action == "update":
        fields["fields"] = first_fields([difference.field for difference in change.differences])
    return LogLine("info", f"{_WOULD[change.action]} {change.ref.kind.name}", fields)


def _problem(key: Key, problem: Problem) -> LogLine:
    fields = {"lower": key.lower, "object": name_of(key), "reason": problem.reason, "error": problem.message}
    return LogLine("warning", "would be blocked", fields)
