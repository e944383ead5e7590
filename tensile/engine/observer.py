"""What is logged about the loop: what it does, and with `tensile run --observe` what it would do.

Each decision is logged once. What a person decides about gets a line. Status, heartbeats and the many small refusals
that resolve themselves are counted, and logged at level debug. Bodies are never logged: a change is described by the
names of its fields.

`--observe` writes nothing, and reports again after changes of the clusters. Each report is a plan: the loop on dry-run
clusters, over copies of the caches. So the engine can be observed beside tensile-kube, or an engine of another
topology, before it replaces it. A virtual node that another engine keeps alive counts as one whose engine has stopped.
Otherwise the only result would be that the node is in conflict, and what happens to its pods would stay unknown.
"""

import asyncio
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import orjson
import structlog

from tensile.engine.lower import ClusterAccess
from tensile.engine.metrics import Metrics
from tensile.engine.plan_and_apply import AssumedClusters, KnownClusters, feeds, opened, rehearse
from tensile.errors import AlreadyExists, ClusterError, Conflict, Denied, NotFound, Throttled, raised_at
from tensile.kube.limits import LogThrottle
from tensile.kube.store import Cache, Delta
from tensile.objects import Manifest, Ref
from tensile.reconcile.diff import fields
from tensile.reconcile.loop import NOT_IN_PLAN
from tensile.reconcile.ownership import is_kept_alive, is_ours, transform_node
from tensile.reconcile.plan import Step
from tensile.reconcile.report import Change, Preview, Recorder, observed, preview_of, summary_line
from tensile.reconcile.report.changes import subject as name_of
from tensile.reconcile.world import Key, Problem, World
from tensile.topology import Topology

_PAST_TENSE = {"create": "created", "patch": "changed", "delete": "deleted", "confirm": "looked up"}
_MAX_FIELDS = 8
_EXPECTED_ERRORS = (AlreadyExists, Conflict, Denied, NotFound, Throttled)
_MIN_PAUSE = 2.0
"""Minimum number of seconds between two reports."""
_PAUSE_FACTOR = 5.0
"""Minimum time between two reports, in multiples of what one takes: planning for thousands of pods takes seconds."""
_WOULD = {
    "create": "would create",
    "update": "would change",
    "delete": "would delete",
    "replace": "would replace",
}


class LoggingObserver:
    """Logs and counts what the loop does; `clock` returns monotonic seconds, `log` is the logger.

    `on_change` is called with each step that succeeded and that a person decides about.
    """

    def __init__(
        self,
        metrics: Metrics,
        clock: Callable[[], float],
        log: Any = None,
        on_change: Callable[[Step], object] = lambda _: None,
    ) -> None:
        self._metrics = metrics
        self._on_change = on_change
        self._log = log or structlog.get_logger("tensile.reconcile").bind()
        self._throttle = LogThrottle(clock)

    def on_step(self, key: Key, step: Step, error: ClusterError | None) -> None:
        """Count a step; log it if a person would want to know, and an error that is logged nowhere else.

        A denial is logged with its key, which is then blocked. After the other errors of `_EXPECTED_ERRORS` the loop
        decides again.
        """
        ref = step.ref
        self._metrics.step(ref.cluster, step.verb, ref.kind.name, type(error).__name__ if error else "ok")
        if error is None:
            if step.cause is not None:
                self._metrics.eviction(key.lower, step.cause)
            self._log_step(step)
        elif isinstance(error, _EXPECTED_ERRORS):
            self._log.debug("step refused", rule=key.rule, error=str(error))
        else:
            self._warn((ref.cluster, type(error)), "step failed", rule=key.rule, error=str(error))

    def _log_step(self, step: Step) -> None:
        """Log a step that succeeded."""
        event = f"{step.ref.kind.name} {_PAST_TENSE[step.verb]}"
        if step.in_plan and step.verb != "confirm":
            self._log.info(event, **object_fields(step.ref), because=step.reason, **_extra_fields(step))
            self._on_change(step)
        else:
            self._log.debug(event, **object_fields(step.ref), because=step.reason)

    def on_blocked(self, key: Key, problem: Problem) -> None:
        """Log that a key is blocked, and why: once for each reason, and again with another message after a while."""
        log_fields = {**_key_fields(key), "reason": problem.reason, "error": problem.message}
        self._warn((key, problem.reason), "reconcile blocked", **log_fields)

    def on_unexpected_error(self, key: Key, error: Exception) -> None:
        """Log a defect: the error, its line and the key; the traceback at level debug only."""
        self._metrics.defect(key.rule)
        category = key.rule, type(error), raised_at(error)
        log_fields = {**_key_fields(key), "exc_info": error}
        self._throttle.log(
            category, lambda more: self._log.error("a rule failed (bug, please report)", **log_fields, **more)
        )

    def _warn(self, category: Hashable, event: str, **log_fields: Any) -> None:
        """Log a warning, rate-limited per sort; otherwise log it at level debug."""
        if not self._throttle.log(category, lambda more: self._log.warning(event, **log_fields, **more)):
            self._log.debug(event, **log_fields)


class LoggingRecorder(Recorder):
    """A recorder that also logs, for commands that change clusters: that takes time, and people watch it."""

    def __init__(self, observer: LoggingObserver) -> None:
        super().__init__()
        self._observer = observer

    def on_step(self, key: Key, step: Step, error: ClusterError | None) -> None:
        """Record and log a step."""
        super().on_step(key, step, error)
        self._observer.on_step(key, step, error)

    def on_blocked(self, key: Key, problem: Problem) -> None:
        """Log a key whose reconciliation is blocked, except for steps that are not in the plan: `apply` lists them."""
        if problem.reason == NOT_IN_PLAN:
            return
        self._observer.on_blocked(key, problem)


def object_fields(ref: Ref) -> dict[str, str]:
    """Return the log fields of an object."""
    return {"cluster": ref.cluster or "upper", "object": ref.namespaced_name}


def first_fields(names: list[str]) -> list[str]:
    """Return the names of changed fields for a log line: the first ones of many."""
    return names[:_MAX_FIELDS] + (["..."] if len(names) > _MAX_FIELDS else [])


def _key_fields(key: Key) -> dict[str, str]:
    """Return the log fields of a key."""
    return {
        "lower": key.lower,
        "rule": key.rule,
        "object": f"{key.namespace}/{key.name}" if key.namespace else key.name,
    }


def _extra_fields(step: Step) -> dict[str, Any]:
    """Return the names of the fields that a patch changes, not their values; `unrequested` for such a deletion."""
    if step.verb == "patch":
        return {"fields": first_fields(fields(list(step.operations)))}
    return {} if step.requested else {"unrequested": True}


class LogLine(NamedTuple):
    """One line of the log; `fields` hold no content of an object, only names and reasons."""

    level: str
    event: str
    fields: Mapping[str, Any]


Report = Mapping[Ref | Key, LogLine]
"""What would happen to each object, and what would block each key. A line is the same as long as it says the same: the
content of an object is no part of it, as it can have the time of the plan in it."""


async def observe(topology: Topology, access: ClusterAccess) -> None:
    """Report until cancelled. Raises ClusterTimeout if the upper cluster does not respond."""
    log = structlog.get_logger("tensile.observe")
    changed = asyncio.Event()

    def on_change(_delta: Delta) -> None:
        """Remember that a report may be outdated."""
        changed.set()

    async with opened(topology, access, log.info) as (clusters, unreached, _waits):
        log.info("observing, nothing is written", topology=topology.name, lowers=len(topology.lowers))
        for name, reason in unreached.items():
            log.warning("lower cluster is not observed", lower=name, error=reason)
        for feed in feeds(clusters.world):
            feed.cache.subscribe(on_change)
        last: Report | None = None
        while True:
            changed.clear()
            started = time.monotonic()
            found = await planned(clusters, topology, unreached)
            report = report_of(found)
            for level, event, line_fields in new_lines(report, last, summary_line(found)):
                (log.info if level == "info" else log.warning)(event, **line_fields)
            last = report
            await asyncio.sleep(max(_MIN_PAUSE, _PAUSE_FACTOR * (time.monotonic() - started)))
            await changed.wait()


async def planned(clusters: KnownClusters, topology: Topology, unreached: Mapping[str, str]) -> Preview:
    """Return the plan for the clusters as they would be if other engines of their virtual nodes had stopped.

    Raises TensileError for a bug in a rule.
    """
    world, recorder = stopped(clusters.world), Recorder()
    before = observed(world)
    problems = await rehearse(AssumedClusters(world, clusters.connections), recorder)
    return preview_of(recorder, problems, before, topology, unreached=unreached)


def stopped(world: World) -> World:
    """Return a copy of the world in which no other engine keeps a virtual node alive."""
    copied, nodes = world.copy(), Cache(transform_node)
    nodes.replace([_without_heartbeat(entry.raw, world) for entry in copied.upper.nodes], copied.upper.nodes.version)
    nodes.synced = copied.upper.nodes.synced
    copied.upper.nodes = nodes
    return copied


def _without_heartbeat(raw: bytes, world: World) -> bytes:
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


def new_lines(report: Report, last: Report | None, summary: str) -> list[LogLine]:
    """Return the lines that were not in the last report, and those that are no longer; `summary` follows them."""
    previous = last or {}
    found = [line for subject, line in report.items() if previous.get(subject) != line]
    found += [
        line._replace(level="info", event=f"no longer: {line.event}")
        for subject, line in previous.items()
        if subject not in report
    ]
    return [*found, LogLine("info", summary, {})] if found or last is None else []


def _change(change: Change) -> LogLine:
    log_fields: dict[str, Any] = {**object_fields(change.ref), "because": change.reason}
    if change.action == "update":
        log_fields["fields"] = first_fields([difference.field for difference in change.differences])
    return LogLine("info", f"{_WOULD[change.action]} {change.ref.kind.name}", log_fields)


def _problem(key: Key, problem: Problem) -> LogLine:
    log_fields = {"lower": key.lower, "object": name_of(key), "reason": problem.reason, "error": problem.message}
    return LogLine("warning", "would be blocked", log_fields)
