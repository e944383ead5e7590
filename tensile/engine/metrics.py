"""Prometheus metrics in a registry of their own, and the state of the engine that they and the status read.

Counters are incremented when something happens. Gauges (a queue's depth, a present problem) are computed at each
scrape, because a gauge that code must remember to lower becomes wrong sooner or later. All reads work before the engine
has started, too.

Where client-go, controller-runtime or Kubernetes' leader election have a metric, ours has its name and labels, so that
dashboards for controllers show this one. What is counted for each request and each key is counted in
`tensile.kube.measures`, and becomes samples here.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

import tensile
from tensile.engine.engine import Engine
from tensile.engine.leader_election import lease_ref
from tensile.engine.status.report import LowerRow, are_known, rows
from tensile.kube.measures import LATENCIES, NO_RESPONSE, Histogram, RequestMetrics
from tensile.kube.net import place
from tensile.kube.tls import expiration
from tensile.objects import UPPER
from tensile.reconcile.copies import strays
from tensile.reconcile.desired import EvictionCause
from tensile.reconcile.ownership import is_ours
from tensile.reconcile.workqueue import QueueReading
from tensile.reconcile.world import ForeignProblem, LowerWorld, World
from tensile.resources import add, parse_all

_BOUNDS = (*map(str, LATENCIES), "+Inf")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Media type of `Metrics.text`."""

_OTHER = "Other"
"""The reason of keys that an admission webhook blocks for a reason that Kubernetes does not define."""
_THOUSAND = 1000
Series = tuple[str, ...]
"""The label values of one time series of a metric."""

ObserveRequest = Callable[[str, str, str], None]
"""Called for each write: its verb, the kind's name, and "ok" or the error's name."""


@dataclass(frozen=True, slots=True)
class MetricReadings:
    """What is read at each scrape, on the event loop's thread.

    `queues` is the work queue of each lower, and `reconciled` how long keys were processed, by rule. `drift` counts
    what other clients changed, by lower and kind. `created` and
    `reported` are the latencies of pods, by lower. `silent` is for how many seconds a lower has not responded (0 if it
    does). `problems` yields the lower and reason of each blocked key. `events` counts mirrored events of lower pods, by
    lower and result. `skipped` counts skipped objects, by cluster ("" for the upper) and kind. `preempted` counts the
    pods that were deleted to make room, by lower. `leads` is whether this engine leads, by the name of its lease.
    `strays` counts a lower's objects with our mark in namespaces that no upper namespace maps to. `advertised` and
    `real` are amounts by lower, node and resource: what a virtual node advertises, and what the nodes behind it have.
    `certificates` is when a certificate expires in seconds since 1970, by use and name. `waiting` is the number of pods
    that the edit which waits for an approval affects, 0 for none.
    """

    queues: Callable[[], Mapping[str, QueueReading]] = dict
    drift: Callable[[], Mapping[Series, int]] = dict
    reconciled: Callable[[], Mapping[str, Histogram]] = dict
    created: Callable[[], Mapping[str, Histogram]] = dict
    reported: Callable[[], Mapping[str, Histogram]] = dict
    silent: Callable[[], Mapping[str, float]] = dict
    problems: Callable[[], Iterable[tuple[str, str]]] = tuple
    events: Callable[[], Mapping[tuple[str, str], int]] = dict
    skipped: Callable[[], Mapping[tuple[str, str], int]] = dict
    preempted: Callable[[], Mapping[str, int]] = dict
    leads: Callable[[], Mapping[str, bool]] = dict
    strays: Callable[[], Mapping[str, int]] = dict
    advertised: Callable[[], Mapping[Series, float]] = dict
    real: Callable[[], Mapping[Series, float]] = dict
    certificates: Callable[[], Mapping[Series, float]] = dict
    waiting: Callable[[], int] = int


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
_WAITING = MetricFamily(
    "tensile_topology_pending_approval_pods",
    "Running pods that are affected by the topology edit that waits for an approval; 0 if none waits.",
    (),
)
"""Remedy: where it stays above 0, approve the edit or undo it ([approvals](../howto/approve-edits.md))."""
_DEFECTS = MetricFamily(
    "tensile_reconcile_panics_total", "Unexpected errors in a reconcile rule, which are bugs in tensile.", ("rule",)
)
"""Remedy: alert when it grows, and report the log as a bug."""
_EVICTIONS = MetricFamily(
    "tensile_evictions_total",
    "Upper pods that the engine evicted, by reason: descheduled, drained, preempted or unreachable.",
    ("lower", "reason"),
)
"""Remedy: where those with reason unreachable grow, bring the cluster back; the others are as the topology wants."""
_DRIFT = MetricFamily(
    "tensile_drift_total",
    "Objects of the engine that another client changed or deleted, and that were put back, by kind.",
    ("lower", "kind"),
)
"""Remedy: where it grows, look for Events with reason DriftReverted: who changes copies should change the originals."""
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
_REQUESTS = MetricFamily(
    "rest_client_requests_total",
    "HTTP requests to an apiserver, by status code, method and host; <error> without a response.",
    ("code", "method", "host"),
)
"""Remedy: where codes from 400 on grow, look for the error in the log; 429 means that the apiserver is overloaded."""
_REQUEST_SECONDS = MetricFamily(
    "rest_client_request_duration_seconds",
    "Duration of HTTP requests to an apiserver, of watches until they begin, without waiting for `qps`.",
    ("verb", "host"),
)
"""Remedy: where it grows, look at that apiserver and at the network."""
_DEPTH = MetricFamily("workqueue_depth", "Keys that wait to be processed, by lower cluster (name).", ("name",))
"""Remedy: where it stays high, look for a slow cluster, or raise `qps` of the lower."""
_ADDS = MetricFamily("workqueue_adds_total", "Keys that were added to the work queue of a lower cluster.", ("name",))
"""Remedy: nothing."""
_RETRIES = MetricFamily(
    "workqueue_retries_total", "Keys that were added with a delay: retries, and checks at a later time.", ("name",)
)
"""Remedy: where it grows fast, look for errors in the log."""
_QUEUED = MetricFamily(
    "workqueue_queue_duration_seconds", "How long keys waited before they were processed.", ("name",)
)
"""Remedy: where it grows, look at the CPU of the engine, and for a slow cluster."""
_WORKED = MetricFamily(
    "workqueue_work_duration_seconds", "How long keys were processed, their requests included.", ("name",)
)
"""Remedy: where it grows, look for a slow cluster."""
_UNFINISHED = MetricFamily(
    "workqueue_unfinished_work_seconds",
    "Total of the seconds for which the keys in progress have been processed.",
    ("name",),
)
"""Remedy: where it stays high, the lower cluster or the upper one answers slowly."""
_LONGEST = MetricFamily(
    "workqueue_longest_running_processor_seconds",
    "Seconds for which the longest of the keys in progress has been processed.",
    ("name",),
)
"""Remedy: where it grows, a cluster does not answer a request."""
_RECONCILED = MetricFamily(
    "controller_runtime_reconcile_time_seconds",
    "How long keys were processed, their requests included, by rule (controller).",
    ("controller",),
)
"""Remedy: where it grows, look for a slow cluster."""
_CREATED = MetricFamily(
    "tensile_pod_creation_duration_seconds",
    "Time from when a pod was seen bound to the virtual node until its lower pod existed.",
    ("lower",),
)
"""Remedy: where it grows, look at `workqueue_queue_duration_seconds` and `rest_client_request_duration_seconds`."""
_REPORTED = MetricFamily(
    "tensile_pod_status_report_duration_seconds",
    "Time from when a changed status of a lower pod was seen until its upper pod had it.",
    ("lower",),
)
"""Remedy: where it grows, look at `workqueue_queue_duration_seconds` and `rest_client_request_duration_seconds`."""
_SILENT = MetricFamily(
    "tensile_lower_unreachable_seconds",
    "Seconds since a lower cluster last responded, 0 while it responds.",
    ("lower",),
)
"""Remedy: alert above 40, when its pods become not ready, and run `tensile doctor`."""
_PROBLEMS = MetricFamily(
    "tensile_blocked_objects", "Objects whose reconciliation is blocked, by reason.", ("lower", "reason")
)
"""Remedy: alert when it stays above 0, and look up the [reason](#reasons-of-problems); Other stands for reasons of
webhooks, which the log has."""
_STRAYS = MetricFamily(
    "tensile_stray_objects",
    "Pods, ConfigMaps and Secrets in a lower cluster that carry this topology's owner mark without an upper object.",
    ("lower",),
)
"""Remedy: alert above 0, and find out where they come from ([strays](../metrics.md#strays))."""
_ADVERTISED = MetricFamily(
    "tensile_node_advertised_allocatable",
    "Allocatable amount of a resource that a virtual node advertises, cpu in cores, memory in bytes.",
    ("lower", "node", "resource"),
)
"""Remedy: nothing."""
_REAL = MetricFamily(
    "tensile_node_real_allocatable",
    "Sum of the allocatable amounts of the ready and schedulable nodes of a lower cluster.",
    ("lower", "node", "resource"),
)
"""Remedy: where it falls, look for nodes of the lower cluster that are not ready."""
_CERTIFICATES = MetricFamily(
    "tensile_certificate_expiration_timestamp_seconds",
    "When a certificate expires, in seconds since 1970. Use: client (name: upper or the lower), kubelet (name: the "
    "node) or webhook.",
    ("use", "name"),
)
"""Remedy: alert a week before, and renew it ([rotation](../howto/rotate-credentials.md))."""
_LEADS = MetricFamily(
    "leader_election_master_status", "1 if this engine is the leader, 0 if it stands by, by lease.", ("name",)
)
"""Remedy: alert when the sum over all replicas is not 1."""
_BUILD = MetricFamily("tensile_build_info", "Always 1; the label has the version.", ("version",))
"""Remedy: nothing."""


@dataclass(slots=True, eq=False)
class Metrics(Collector):
    """All metrics of one engine; `readings` may be set later."""

    readings: MetricReadings = field(default_factory=MetricReadings)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    requests: RequestMetrics = field(default_factory=RequestMetrics)
    _counts: dict[MetricFamily, Counter[Series]] = field(
        default_factory=lambda: {family: Counter() for family in (_STEPS, _WRITES, _RELOADS, _DEFECTS)}
    )
    _evictions: Counter[Series] = field(default_factory=Counter)

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

    def eviction(self, lower: str, cause: EvictionCause) -> None:
        """Count an upper pod that the loop evicted from a lower."""
        self._evictions[lower, cause] += 1

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
        preempted = {(lower, "preempted"): count for lower, count in self.readings.preempted().items() if count}
        yield _counter(_EVICTIONS, self._evictions | Counter(preempted))
        yield _counter(_DRIFT, self.readings.drift())
        yield from _request_metrics(self.requests)
        yield from _queue_metrics(self.readings.queues())
        yield _histogram(_RECONCILED, _labelled(self.readings.reconciled()))
        yield _histogram(_CREATED, _labelled(self.readings.created()))
        yield _histogram(_REPORTED, _labelled(self.readings.reported()))
        yield _gauge(_SILENT, {(lower,): seconds for lower, seconds in self.readings.silent().items()})
        yield _gauge(_PROBLEMS, Counter(self.readings.problems()))
        yield _gauge(_STRAYS, {(lower,): count for lower, count in self.readings.strays().items()})
        yield _gauge(_ADVERTISED, self.readings.advertised())
        yield _gauge(_REAL, self.readings.real())
        yield _gauge(_CERTIFICATES, self.readings.certificates())
        yield _gauge(_LEADS, {(name,): float(leads) for name, leads in self.readings.leads().items()})
        yield _gauge(_WAITING, {(): self.readings.waiting()})
        yield _gauge(_BUILD, {(tensile.__version__,): 1})


def _request_metrics(requests: RequestMetrics) -> Iterator[Metric]:
    """Yield the metrics of requests to apiservers."""
    counts = {
        (str(status) if status else NO_RESPONSE, method, place(address, port)): count
        for (address, port, method, status), count in requests.counts.items()
    }
    yield _counter(_REQUESTS, counts)
    durations = requests.durations.items()
    timed: dict[Series, Histogram] = {
        (method, place(address, port)): found for (address, port, method), found in durations
    }
    yield _histogram(_REQUEST_SECONDS, timed)


def _queue_metrics(queues: Mapping[str, QueueReading]) -> Iterator[Metric]:
    """Yield the metrics of work queues."""
    yield _gauge(_DEPTH, {(name,): queue.depth for name, queue in queues.items()})
    yield _counter(_ADDS, {(name,): queue.adds for name, queue in queues.items()})
    yield _counter(_RETRIES, {(name,): queue.retries for name, queue in queues.items()})
    yield _histogram(_QUEUED, {(name,): queue.queued for name, queue in queues.items()})
    yield _histogram(_WORKED, {(name,): queue.worked for name, queue in queues.items()})
    yield _gauge(_UNFINISHED, {(name,): queue.unfinished for name, queue in queues.items()})
    yield _gauge(_LONGEST, {(name,): queue.longest for name, queue in queues.items()})


def _labelled(found: Mapping[str, Histogram]) -> dict[Series, Histogram]:
    """Return histograms by the values of their only label."""
    return {(name,): histogram for name, histogram in found.items()}


def _histogram(family: MetricFamily, found: Mapping[Series, Histogram]) -> Metric:
    """Return a histogram family with its series."""
    metric = HistogramMetricFamily(family.name, family.meaning, labels=family.labels)
    for series, histogram in found.items():
        buckets = list(zip(_BOUNDS, accumulate(histogram.counts), strict=True))
        metric.add_metric(series, buckets, histogram.total)
    return metric


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


def blocked(world: World) -> list[tuple[str, str]]:
    """Return the lower and the reason of every blocked key: few reasons, as each is a series that Prometheus keeps."""
    found = world.problems.items()
    return [(key.lower, _OTHER if isinstance(one, ForeignProblem) else one.reason) for key, one in found]


def readings(engine: Engine) -> MetricReadings:
    """Return the functions that read an engine at each scrape."""

    def problems() -> list[tuple[str, str]]:
        """Return the lower and the reason of every blocked key."""
        world = engine.clusters.world if engine.is_running else None
        return blocked(world) if world else []

    return MetricReadings(
        queues=lambda: engine.loop.read_queues() if engine.is_running else {},
        drift=lambda: _drift(engine),
        reconciled=lambda: engine.loop.durations if engine.is_running else {},
        created=lambda: engine.latency.created,
        reported=lambda: engine.latency.reported,
        silent=lambda: {name: joined.lower.unreachable_seconds for name, joined in engine.clusters.joined.items()},
        problems=problems,
        events=lambda: _events(engine),
        skipped=lambda: engine.clusters.fleet.skipped() if engine.is_running else {},
        preempted=lambda: _preempted(engine),
        leads=lambda: {lease_ref(engine.topology.name).name: engine.is_leader},
        strays=lambda: _strays(engine),
        advertised=lambda: _amounts(engine, _advertised),
        real=lambda: _amounts(engine, _real),
        certificates=lambda: _certificates(engine),
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
        drifts = {name: engine.loop.drift.of_lower(name) for name in clusters.world.lowers}
        return rows(clusters.world, {name: opened.health.error for name, opened in clusters.fleet.items()}, drifts)

    return now


def _events(engine: Engine) -> dict[tuple[str, str], int]:
    """Return the number of mirrored events, by lower and result."""
    mirrors = {name: joined.events for name, joined in engine.clusters.joined.items()}
    return {
        (name, result): count for name, mirror in mirrors.items() if mirror for result, count in mirror.counts.items()
    }


def _strays(engine: Engine) -> dict[str, int]:
    """Return the number of strays of each lower."""
    owner = engine.clusters.world.owner if engine.is_leader else None
    joined = engine.clusters.joined.items() if owner else ()
    return {name: strays(one.lower, owner) for name, one in joined if owner}


def _drift(engine: Engine) -> dict[Series, int]:
    """Return the number of objects that were put back, by lower and kind."""
    found = engine.loop.drift.counts.items() if engine.is_running else ()
    return {(lower, kind): number for (lower, kind), number in found}


def _preempted(engine: Engine) -> dict[str, int]:
    """Return the number of pods that were deleted to make room, of each lower that is joined."""
    evicted = engine.extender.evicted if engine.is_running else {}
    return {name: evicted.get(one.lower.node, 0) for name, one in engine.clusters.joined.items()}


def _amounts(engine: Engine, amounts_of: Callable[[LowerWorld, World], Mapping[str, int]]) -> dict[Series, float]:
    """Return amounts by lower, node and resource; `amounts_of` returns those of one lower in milli-units."""
    joined = engine.clusters.joined.values() if engine.is_leader else ()
    return {
        (one.lower.name, one.lower.node, resource): amount / _THOUSAND
        for one in joined
        for resource, amount in amounts_of(one.lower, engine.clusters.world).items()
    }


def _advertised(lower: LowerWorld, world: World) -> Mapping[str, int]:
    """Return what the Node of a lower advertises, nothing if it has none of ours."""
    entry = world.upper.nodes.get("", lower.node)
    node = entry.manifest() if entry is not None else {}
    return parse_all((node.get("status") or {}).get("allocatable") or {}) if is_ours(node, world.owner) else {}


def _real(lower: LowerWorld, _world: World) -> Mapping[str, int]:
    """Return the sum of what the nodes offer on which pods can start."""
    total: Mapping[str, int] = {}
    for entry in lower.nodes:
        if entry.facts.counts:
            total = add(total, entry.facts.allocatable)
    return total


def _certificates(engine: Engine) -> dict[Series, float]:
    """Return when each certificate expires that the engine uses."""
    opened = engine.clusters.fleet.items()
    found = {("client", name or "upper"): one.cluster.access.papers.certificate for name, one in opened}
    if engine.is_running:
        found["webhook", ""] = engine.webhook.server.certificate
    ends = {series: _seconds_of(pem) for series, pem in found.items()}
    if engine.is_running:
        ends |= {("kubelet", node): end.timestamp() for node, end in engine.ports.expirations().items()}
    return {series: end for series, end in ends.items() if end}


@lru_cache(maxsize=256)
def _seconds_of(pem: bytes) -> float:
    """Return when a certificate expires in seconds since 1970, 0 if there is none; each is read once."""
    end = expiration(pem)
    return end.timestamp() if end else 0.0


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
    unlisted = [one.lower.name for one in engine.clusters.joined.values() if not one.lower.upper_pods.synced]
    if all(cache.synced for cache in upper.caches()) and not unlisted:
        return engine.webhook.server.waits()
    denied = engine.clusters.fleet[UPPER].denied
    return "not all objects of the upper cluster are listed yet" + (f": {denied}" if denied else "")
