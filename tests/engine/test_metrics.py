"""Tests of the metrics: what is counted, what is read at each scrape, and that Prometheus can parse them."""

from collections import Counter

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families
from worldkit import A, make_world

import tensile
from tensile.engine.metrics import MetricReadings, Metrics, blocked
from tensile.kube.measures import Histogram
from tensile.reconcile.workqueue import QueueReading
from tensile.reconcile.world import ForeignProblem, Key, Problem

Series = tuple[str, tuple[tuple[str, str], ...]]


@pytest.fixture
def metrics() -> Metrics:
    """Return metrics in which nothing was counted yet."""
    return Metrics()


def scraped(metrics: Metrics) -> dict[Series, float]:
    """Return every sample as Prometheus parses it, by name and labels."""
    families = text_string_to_metric_families(metrics.text().decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value for one in families for sample in one.samples
    }


def series(name: str, /, **labels: str) -> Series:
    """Return the key of a series."""
    return name, tuple(sorted(labels.items()))


def timed(*seconds: float) -> Histogram:
    """Return a histogram of some durations."""
    found = Histogram()
    for one in seconds:
        found.observe(one)
    return found


def queue(depth: int = 0, **more: float) -> QueueReading:
    """Return the reading of a work queue."""
    return QueueReading(depth, 0, 0, timed(), timed(), 0.0, 0.0)._replace(**more)


def test_steps_are_counted_by_result(metrics: Metrics) -> None:
    """The upper cluster, which has no name, has the label upper."""
    for _ in range(3):
        metrics.step("lower-a", "create", "Pod", "ok")
    metrics.step("lower-a", "create", "Pod", "Denied")
    metrics.step("", "patch", "Pod", "ok")
    found = scraped(metrics)
    steps = {key: value for key, value in found.items() if key[0] == "tensile_steps_total"}
    assert steps == {
        series("tensile_steps_total", cluster="lower-a", verb="create", kind="Pod", result="ok"): 3,
        series("tensile_steps_total", cluster="lower-a", verb="create", kind="Pod", result="Denied"): 1,
        series("tensile_steps_total", cluster="upper", verb="patch", kind="Pod", result="ok"): 1,
    }


def test_mirrored_events_are_counted_by_result(metrics: Metrics) -> None:
    """The counts of each lower's mirror are read at the time of the scrape."""
    counts = {("lower-a", "copied"): 3, ("lower-a", "dropped"): 0}
    metrics.readings = MetricReadings(events=lambda: counts)
    counts["lower-a", "dropped"] = 2
    found = scraped(metrics)
    assert found[series("tensile_events_total", lower="lower-a", result="copied")] == 3
    assert found[series("tensile_events_total", lower="lower-a", result="dropped")] == 2


def test_writes_are_counted_for_each_cluster(metrics: Metrics) -> None:
    """An observer is created once for each cluster, and adds the name of the cluster itself."""
    upper, lower = metrics.observe(""), metrics.observe("lower-a")
    upper("patch", "Lease", "ok")
    lower("create", "Pod", "ok")
    lower("create", "Pod", "ok")
    again = metrics.observe("lower-a")
    again("create", "Pod", "Unreachable")
    found = scraped(metrics)
    assert found[series("tensile_writes_total", cluster="upper", verb="patch", kind="Lease", result="ok")] == 1
    assert found[series("tensile_writes_total", cluster="lower-a", verb="create", kind="Pod", result="ok")] == 2
    assert (
        found[series("tensile_writes_total", cluster="lower-a", verb="create", kind="Pod", result="Unreachable")] == 1
    )


def test_the_reload_series_exist_before_the_first_reload(metrics: Metrics) -> None:
    """The first rejection is thus an increase that an alert can detect."""
    accepted, refused = (series("tensile_topology_reloads_total", result=result) for result in ("accepted", "rejected"))
    found = scraped(metrics)
    assert (found[accepted], found[refused]) == (0, 0)
    metrics.reload(accepted=True)
    metrics.reload(accepted=False)
    metrics.reload(accepted=False)
    found = scraped(metrics)
    assert (found[accepted], found[refused]) == (1, 2)


def test_rule_errors_are_counted_by_rule(metrics: Metrics) -> None:
    """A rule without an error has no series."""
    metrics.defect("pod")
    metrics.defect("pod")
    found = scraped(metrics)
    assert {key: value for key, value in found.items() if key[0] == "tensile_reconcile_panics_total"} == {
        series("tensile_reconcile_panics_total", rule="pod"): 2
    }


def test_readings_are_taken_at_each_scrape(metrics: Metrics) -> None:
    """A removed lower and a resolved problem no longer have a series."""
    queues, silent = {"a": queue(3), "b": queue()}, {"a": 0.0, "b": 41.5}
    problems = [("a", "Denied"), ("a", "Denied"), ("b", "x")]
    strays = {"a": 2}
    metrics.readings = MetricReadings(
        queues=lambda: queues, silent=lambda: silent, problems=lambda: problems, strays=lambda: strays
    )
    found = scraped(metrics)
    assert found[series("tensile_stray_objects", lower="a")] == 2
    assert found[series("workqueue_depth", name="a")] == 3
    assert found[series("workqueue_depth", name="b")] == 0
    assert found[series("tensile_lower_unreachable_seconds", lower="b")] == 41.5
    assert found[series("tensile_blocked_objects", lower="a", reason="Denied")] == 2
    del queues["b"], silent["b"]
    problems.clear()
    found = scraped(metrics)
    assert series("workqueue_depth", name="b") not in found
    assert series("tensile_lower_unreachable_seconds", lower="b") not in found
    assert not [key for key in found if key[0] == "tensile_blocked_objects"]


def test_a_scrape_succeeds_without_readings(metrics: Metrics) -> None:
    """The server responds before the engine exists; version and process metrics are present then."""
    found = scraped(metrics)
    assert found[series("tensile_build_info", version=tensile.__version__)] == 1
    assert found[series("process_resident_memory_bytes")] > 1_000_000
    assert any(name == "python_gc_collections_total" for name, _ in found)


def test_blocked_objects_with_foreign_reasons_are_counted_as_other() -> None:
    """A webhook of a lower cluster can return any reason, and Prometheus would keep a series for each."""
    world = make_world()
    world.problems = {Key("pod", A, "shop", f"web-{n}"): ForeignProblem(f"Policy{n}", "no") for n in range(3)}
    world.problems[Key("pod", A, "shop", "web")] = Problem("Forbidden", "no")
    assert Counter(blocked(world)) == {(A, "Other"): 3, (A, "Forbidden"): 1}


def test_label_values_are_escaped(metrics: Metrics) -> None:
    """A reason comes from a cluster and can contain any character."""
    reason = 'a"b\\c\nd'
    metrics.readings = MetricReadings(problems=lambda: [("a", reason)])
    assert scraped(metrics)[series("tensile_blocked_objects", lower="a", reason=reason)] == 1


def test_two_engines_in_one_process_have_separate_metrics(metrics: Metrics) -> None:
    """Neither uses the registry that all libraries share."""
    other = Metrics()
    metrics.defect("pod")
    assert series("tensile_reconcile_panics_total", rule="pod") not in scraped(other)
    assert not [family.name for family in REGISTRY.collect() if family.name.startswith("tensile")]


def test_every_metric_has_a_help_text(metrics: Metrics) -> None:
    """It is the only documentation that the reader of a dashboard has."""
    metrics.readings = MetricReadings(silent=lambda: {"a": 1.0}, problems=lambda: [("a", "b")])
    families = [one for one in metrics.registry.collect() if not one.name.startswith(("process", "python"))]
    assert len(families) == 29
    assert all(len(family.documentation) > 20 for family in families)


def test_histogram_buckets_are_cumulative(metrics: Metrics) -> None:
    """Each bucket includes the shorter ones and its own bound, as Prometheus requires."""
    metrics.readings = MetricReadings(created=lambda: {"a": timed(0.001, 0.002, 0.005, 61.0)})
    found = scraped(metrics)
    name = "tensile_pod_creation_duration_seconds"
    buckets = {bound: found[series(f"{name}_bucket", lower="a", le=bound)] for bound in ("0.001", "0.005", "60.0")}
    assert buckets == {"0.001": 1, "0.005": 3, "60.0": 3}
    assert found[series(f"{name}_bucket", lower="a", le="+Inf")] == found[series(f"{name}_count", lower="a")] == 4
    assert found[series(f"{name}_sum", lower="a")] == pytest.approx(61.008)


def test_work_queues_have_the_metrics_of_client_go(metrics: Metrics) -> None:
    """They have the same names, and the queue as label."""
    queue_metrics = queue(2, adds=7, retries=3, queued=timed(0.2), worked=timed(0.3, 0.4), unfinished=1.5, longest=1.0)
    metrics.readings = MetricReadings(queues=lambda: {"a": queue_metrics}, reconciled=lambda: {"pod": timed(0.3)})
    found = scraped(metrics)
    values = {
        "workqueue_depth": 2,
        "workqueue_adds_total": 7,
        "workqueue_retries_total": 3,
        "workqueue_queue_duration_seconds_sum": 0.2,
        "workqueue_work_duration_seconds_count": 2,
        "workqueue_unfinished_work_seconds": 1.5,
        "workqueue_longest_running_processor_seconds": 1.0,
    }
    assert {name: found[series(name, name="a")] for name in values} == values
    assert found[series("controller_runtime_reconcile_time_seconds_count", controller="pod")] == 1


def test_requests_have_the_metrics_of_client_go(metrics: Metrics) -> None:
    """The labels are code, method and host; a request without a response has the code <error>."""
    metrics.requests.observe("10.0.0.1", 6443, "GET", 200, 0.02)
    metrics.requests.observe("10.0.0.1", 6443, "GET", 200, 0.03)
    metrics.requests.observe("fd00::1", 6443, "PATCH", 0, 30.0)
    found = scraped(metrics)
    ok = series("rest_client_requests_total", code="200", method="GET", host="10.0.0.1:6443")
    failed = series("rest_client_requests_total", code="<error>", method="PATCH", host="[fd00::1]:6443")
    assert (found[ok], found[failed]) == (2, 1)
    durations = "rest_client_request_duration_seconds_sum"
    assert found[series(durations, verb="GET", host="10.0.0.1:6443")] == pytest.approx(0.05)
    assert found[series(durations, verb="PATCH", host="[fd00::1]:6443")] == 30.0


def test_evictions_are_counted_by_reason(metrics: Metrics) -> None:
    """Both evictions of the loop and preemptions of the extender, which has its own counter, are included."""
    metrics.eviction("a", "drained")
    metrics.eviction("a", "drained")
    metrics.readings = MetricReadings(preempted=lambda: {"a": 3, "b": 0})
    found = scraped(metrics)
    assert {key: value for key, value in found.items() if key[0] == "tensile_evictions_total"} == {
        series("tensile_evictions_total", lower="a", reason="drained"): 2,
        series("tensile_evictions_total", lower="a", reason="preempted"): 3,
    }


def test_drift_is_counted_by_lower_and_kind(metrics: Metrics) -> None:
    """The counter of the loop is read at each scrape."""
    metrics.readings = MetricReadings(drift=lambda: {("a", "Secret"): 2})
    assert scraped(metrics)[series("tensile_drift_total", lower="a", kind="Secret")] == 2


def test_the_leader_metric_has_the_name_of_the_lease(metrics: Metrics) -> None:
    """It is the metric of client-go, which distinguishes several controllers by that name."""
    for leads in (True, False):
        metrics.readings = MetricReadings(leads=lambda leads=leads: {"tensile-demo": leads})
        assert scraped(metrics)[series("leader_election_master_status", name="tensile-demo")] == leads
