"""Prometheus metrics in a registry of their own, and the state of the engine that they and the status read.

Counters are incremented when something happens. Gauges (a queue's depth, a present problem) are computed at each
scrape, because a gauge that code must remember to lower becomes wrong sooner or later. All reads work before the engine
has started, too.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import tensile
from tensile.engine.engine import Engine
from tensile.engine.status.report import LowerRow, are_known, rows
from tensile.objects import UPPER
from tensile.reconcile.copies import strays

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Media type of `Metrics.text`."""

Series = tuple[str, ...]
"""The label values of one time series of a metric."""

ObserveRequest = Callable[[str, str, str], None]
"""Called for each write: its verb, the kind's name, and "ok" or the error's name."""


@dataclass(frozen=True, slots=True)
class MetricReadings:
    """What is read at each scrape, on the event loop's thread.

    `depth` is the number of keys waiting or in progress, by lower. `silent` is for how many seconds a lower has not
    responded (0 if it does). `problems` yields the lower and reason of each blocked key. `events` counts mirrored
    events of lower pods, by lower and result. `skipped` counts skipped objects, by cluster ("" for the upper) and kind.
    `leads` is whether this engine leads. `strays` counts a lower's objects with our mark in namespaces that no upper
    namespace maps to.
    """

    depth: Callable[[], Mapping[str, int]] = dict
    silent: Callable[[], Mapping[str, float]] = dict
    problems: Callable[[], Iterable[tuple[str, str]]] = tuple
    events: Callable[[], Mapping[tuple[str, str], int]] = dict
    skipped: Callable[[], Mapping[tuple[str, str], int]] = dict
    leads: Callable[[], bool] = bool
    strays: Callable[[], Mapping[str, int]] = dict


class MetricFamily(NamedTuple):
    """A metric: its name, its help text, and its labels.

    Each stands in docs/reference/conditions.md, with what its docstring says to do.
    """

    name: str
    meaning: str
    labels: Series


_STEPS = MetricFamily(
    "tensile_steps_total",
    "Reconcile steps sent to a cluster, by result: ok, or the name of the error.",
    ("cluster", "verb", "kind", "result"),
)
"""Remedy: where a result other than ok grows, look for the error in the log."""
_WRITES = MetricFamily(
    "tensile_writes_total",
    "Write requests sent to a cluster, Leases and access reviews included, by result: ok, or the name of the error.",
    ("cluster", "verb", "kind", "result"),
)
"""Remedy: where a result other than ok grows, look for the error in the log."""
_RELOADS = MetricFamily(
    "tensile_topology_reloads_total", "Topology reloads, by result: accepted or rejected.", ("result",)
)
"""Remedy: alert when rejected ones grow, and correct the topology as the log says."""
_DEFECTS = MetricFamily(
    "tensile_reconcile_panics_total", "Unexpected errors in a reconcile rule, which are bugs in tensile.", ("rule",)
)
"""Remedy: alert when it grows, and report the log as a bug."""
_EVENTS = MetricFamily(
    "tensile_events_total",
    "Events of lower pods, by result: copied, dropped (rate limit, full queue) or failed (rejected by the upper).",
    ("lower", "result"),
)
"""Remedy: where dropped ones grow, look for a pod or a tenant that makes too many events."""
_SKIPPED = MetricFamily(
    "tensile_objects_skipped_total",
    "Objects in responses that were skipped because they were malformed or not requested.",
    ("cluster", "kind"),
)
"""Remedy: where it grows, look for the objects in the log: an apiserver or a proxy before it answers wrongly."""
_DEPTH = MetricFamily(
    "workqueue_depth", "Keys that are waiting or being processed, by lower cluster (name).", ("name",)
)
"""Remedy: where it stays high, look for a slow cluster, or raise `qps` of the lower."""
_SILENT = MetricFamily(
    "tensile_lower_unreachable_seconds",
    "Seconds since a lower cluster last responded, 0 while it responds.",
    ("lower",),
)
"""Remedy: alert above 40, when its pods become not ready, and run `tensile doctor`."""
_PROBLEMS = MetricFamily(
    "tensile_blocked_objects", "Objects whose reconciliation is blocked, by reason.", ("lower", "reason")
)
"""Remedy: alert when it stays above 0, and look up the [reason](#reasons-of-problems)."""
_STRAYS = MetricFamily(
    "tensile_stray_objects",
    "Pods, ConfigMaps and Secrets in a lower cluster that carry this topology's owner mark without an upper object.",
    ("lower",),
)
"""Remedy: alert above 0, and find out where they come from ([strays](../metrics.md#engine-metrics))."""
_LEADS = MetricFamily("leader_election_master_status", "1 if this engine is the leader, 0 if it stands by.", ())
"""Remedy: alert when the sum over all replicas is not 1."""
_BUILD = MetricFamily("tensile_build_info", "Always 1; the label has the version.", ("version",))
"""Remedy: nothing."""


@dataclass(slots=True, eq=False)
class Metrics(Collector):
    """All metrics of one engine; `readings` may be set later."""

    readings: MetricReadings = field(default_factory=MetricReadings)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    _counts: dict[MetricFamily, Counter[Series]] = field(
        default_factory=lambda: {family: Counter() for family in (_STEPS, _WRITES, _RELOADS, _DEFECTS)}
    )

    def __post_init__(self) -> None:
        """Register everything; reload counters start at 0, so that the first rejected reload is an increase."""
        self._counts[_RELOADS].update({("accepted",): 0, ("rejected",): 0})
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def step(self, cluster: str, verb: str, kind: str, result: str) -> None:
        """Count a step of the loop in a cluster ("" for the upper)."""
        self._counts[_STEPS][cluster or "upper", verb, kind, result] += 1

    def observe(self, cluster: str) -> ObserveRequest:
        """Return the function that counts a cluster's writes ("" for the upper)."""
        counts, name = self._counts[_WRITES], cluster or "upper"

        def observe(verb: str, kind: str, result: str) -> None:
            """Count one write."""
            counts[name, verb, kind, result] += 1

        return observe

    def reload(self, *, accepted: bool) -> None:
        """Count a change of the topology file."""
        self._counts[_RELOADS]["accepted" if accepted else "rejected",] += 1

    def defect(self, rule: str) -> None:
        """Count a failure of a rule that is a bug in this program."""
        self._counts[_DEFECTS][rule,] += 1

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def describe(self) -> Iterable[Metric]:
        """Return no families: registration must not read the engine's state."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the counters and the gauges."""
        for family, counts in self._counts.items():
            yield _counter(family, counts)
        yield _counter(_EVENTS, self.readings.events())
        skipped = self.readings.skipped().items()
        yield _counter(_SKIPPED, {(cluster or "upper", kind): count for (cluster, kind), count in skipped})
        yield _gauge(_DEPTH, {(lower,): depth for lower, depth in self.readings.depth().items()})
        yield _gauge(_SILENT, {(lower,): seconds for lower, seconds in self.readings.silent().items()})
        yield _gauge(_PROBLEMS, Counter(self.readings.problems()))
        yield _gauge(_STRAYS, {(lower,): count for lower, count in self.readings.strays().items()})
        yield _gauge(_LEADS, {(): float(self.readings.leads())})
        yield _gauge(_BUILD, {(tensile.__version__,): 1})


def _counter(family: MetricFamily, counts: Mapping[Any, int]) -> CounterMetricFamily:
    """Return a counter family with its series."""
    counter = CounterMetricFamily(family.name, family.meaning, labels=family.labels)
    for series, count in counts.items():
        counter.add_metric(series, count)
    return counter


def _gauge(family: MetricFamily, values: Mapping[Series, float]) -> Metric:
    """Return a gauge family with its series."""
    gauge = GaugeMetricFamily(family.name, family.meaning, labels=family.labels)
    for series, value in values.items():
        gauge.add_metric(series, value)
    return gauge


def readings(engine: Engine) -> MetricReadings:
    """Return the functions that read an engine at each scrape."""

    def problems() -> list[tuple[str, str]]:
        """Return the lower and the reason of every blocked key."""
        world = engine.clusters.world if engine.is_running else None
        return [(key.lower, problem.reason) for key, problem in world.problems.items()] if world else []

    return MetricReadings(
        depth=lambda: engine.loop.depth if engine.is_running else {},
        silent=lambda: {name: joined.lower.unreachable_seconds for name, joined in engine.clusters.joined.items()},
        problems=problems,
        events=lambda: _events(engine),
        skipped=lambda: engine.clusters.fleet.skipped() if engine.is_running else {},
        leads=lambda: engine.is_leader,
        strays=lambda: _strays(engine),
    )


def lowers(engine: Engine) -> Callable[[], list[LowerRow] | None]:
    """Return a function that returns the state of each lower, None until all are known after a start."""
    known = False

    def now() -> list[LowerRow] | None:
        """Return the present rows."""
        nonlocal known
        known = known or (engine.is_leader and are_known(engine.clusters.world))
        if not known:
            return None
        clusters = engine.clusters
        return rows(clusters.world, {name: opened.health.error for name, opened in clusters.fleet.items()})

    return now


def _events(engine: Engine) -> dict[tuple[str, str], int]:
    """Return the number of mirrored events, by lower and result."""
    mirrors = {name: joined.events for name, joined in engine.clusters.joined.items()}
    return {(name, end): count for name, one in mirrors.items() if one for end, count in one.counts.items()}


def _strays(engine: Engine) -> dict[str, int]:
    """Return the number of strays of each lower."""
    owner = engine.clusters.world.owner if engine.is_leader else None
    joined = engine.clusters.joined.items() if owner else ()
    return {name: strays(one.lower, owner) for name, one in joined if owner}


def missing(engine: Engine) -> str:
    """Return why the engine is not ready, "" if it is.

    It is ready when the upper cluster has responded, what every lower needs of it is listed, and the upper's apiserver
    trusts the webhook. What a controller watches does not count. An edit may enable a controller without its
    permissions, and then all replicas, and with them the webhook, would be unready for what affects that controller
    alone. The log names such a permission.
    """
    if not engine.is_running:
        return "the upper cluster has not responded yet"
    upper = engine.clusters.world.upper
    behind = [one.lower.name for one in engine.clusters.joined.values() if not one.lower.upper_pods.synced]
    if all(cache.synced for cache in upper.caches()) and not behind:
        return engine.hook.server.waits()
    denied = engine.clusters.fleet[UPPER].denied
    return "not all objects of the upper cluster are listed yet" + (f": {denied}" if denied else "")
