"""What is counted, what is asked at each scrape, and that Prometheus can read it."""

from collections import Counter

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families
from worldkit import A, world

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
    """Read every sample as Prometheus does, by name and labels."""
    families = text_string_to_metric_families(metrics.text().decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value for one in families for sample in one.samples
    }


def series(name: str, /, **labels: str) -> Series:
    """Name a series."""
    return name, tuple(sorted(labels.items()))


def timed(*seconds: float) -> Histogram:
    """Make a histogram of some durations."""
    found = Histogram()
    for one in seconds:
        found.observe(one)
    return found


def queue(depth: int = 0, **more: float) -> QueueReading:
    """Make the state of a work queue."""
    return QueueReading(depth, 0, 0, timed(), timed(), 0.0, 0.0)._replace(**more)


def test_steps_are_counted_by_what_came_of_them(metrics: Metrics) -> None:
    """And the upper cluster, which has no name, is called so."""
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


def test_events_are_counted_by_what_became_of_them(metrics: Metrics) -> None:
    """As the mirror of each lower has counted them, at the moment of the scrape."""
    counts = {("lower-a", "copied"): 3, ("lower-a", "dropped"): 0}
    metrics.readings = MetricReadings(events=lambda: counts)
    counts["lower-a", "dropped"] = 2
    found = scraped(metrics)
    assert found[series("tensile_events_total", lower="lower-a", result="copied")] == 3
    assert found[series("tensile_events_total", lower="lower-a", result="dropped")] == 2


def test_each_cluster_s_writes_are_counted_apart(metrics: Metrics) -> None:
    """Who hears of a cluster's writes is made once and need not say which cluster it is."""
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


def test_reloads_are_there_before_the_first(metrics: Metrics) -> None:
    """So that the first refusal is a rise that an alert can see."""
    accepted, refused = (series("tensile_topology_reloads_total", result=result) for result in ("accepted", "rejected"))
    found = scraped(metrics)
    assert (found[accepted], found[refused]) == (0, 0)
    metrics.reload(accepted=True)
    metrics.reload(accepted=False)
    metrics.reload(accepted=False)
    found = scraped(metrics)
    assert (found[accepted], found[refused]) == (1, 2)


def test_defects_are_counted_by_rule(metrics: Metrics) -> None:
    """A rule without one is not listed."""
    metrics.defect("pod")
    metrics.defect("pod")
    found = scraped(metrics)
    assert {key: value for key, value in found.items() if key[0] == "tensile_reconcile_panics_total"} == {
        series("tensile_reconcile_panics_total", rule="pod"): 2
    }


def test_what_is_so_is_asked_at_each_scrape(metrics: Metrics) -> None:
    """A lower that is gone has no series any more, and a problem that was settled neither."""
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


def test_without_readings_there_is_still_a_scrape(metrics: Metrics) -> None:
    """The server answers before the engine is there; the version and the process are told then."""
    found = scraped(metrics)
    assert found[series("tensile_build_info", version=tensile.__version__)] == 1
    assert found[series("process_resident_memory_bytes")] > 1_000_000
    assert any(name == "python_gc_collections_total" for name, _ in found)


def test_blocked_keys_are_counted_under_few_reasons() -> None:
    """A webhook of a lower cluster can answer with any, and Prometheus would keep a series for each."""
    here = world()
    here.problems = {Key("pod", A, "shop", f"web-{n}"): ForeignProblem(f"Policy{n}", "no") for n in range(3)}
    here.problems[Key("pod", A, "shop", "web")] = Problem("Forbidden", "no")
    assert Counter(blocked(here)) == {(A, "Other"): 3, (A, "Forbidden"): 1}


def test_labels_are_escaped(metrics: Metrics) -> None:
    """A reason comes from a cluster and may hold anything."""
    reason = 'a"b\\c\nd'
    metrics.readings = MetricReadings(problems=lambda: [("a", reason)])
    assert scraped(metrics)[series("tensile_blocked_objects", lower="a", reason=reason)] == 1


def test_two_engines_in_one_process_count_apart(metrics: Metrics) -> None:
    """And neither appears in the registry that all libraries share."""
    other = Metrics()
    metrics.defect("pod")
    assert series("tensile_reconcile_panics_total", rule="pod") not in scraped(other)
    assert not [family.name for family in REGISTRY.collect() if family.name.startswith("tensile")]


def test_every_metric_has_a_meaning(metrics: Metrics) -> None:
    """It is the only manual that whoever reads a dashboard has."""
    metrics.readings = MetricReadings(silent=lambda: {"a": 1.0}, problems=lambda: [("a", "b")])
    families = [one for one in metrics.registry.collect() if not one.name.startswith(("process", "python"))]
    assert len(families) == 29
    assert all(len(family.documentation) > 20 for family in families)


def test_a_histogram_is_cumulative(metrics: Metrics) -> None:
    """As Prometheus wants it: each bucket has what the shorter ones have, and its bound belongs to it."""
    metrics.readings = MetricReadings(created=lambda: {"a": timed(0.001, 0.002, 0.005, 61.0)})
    found = scraped(metrics)
    name = "tensile_pod_creation_duration_seconds"
    buckets = {bound: found[series(f"{name}_bucket", lower="a", le=bound)] for bound in ("0.001", "0.005", "60.0")}
    assert buckets == {"0.001": 1, "0.005": 3, "60.0": 3}
    assert found[series(f"{name}_bucket", lower="a", le="+Inf")] == found[series(f"{name}_count", lower="a")] == 4
    assert found[series(f"{name}_sum", lower="a")] == pytest.approx(61.008)


def test_queues_are_told_as_client_go_does(metrics: Metrics) -> None:
    """Under its names, by the name of the queue."""
    told = queue(2, adds=7, retries=3, queued=timed(0.2), worked=timed(0.3, 0.4), unfinished=1.5, longest=1.0)
    metrics.readings = MetricReadings(queues=lambda: {"a": told}, reconciled=lambda: {"pod": timed(0.3)})
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


def test_requests_are_told_as_client_go_does(metrics: Metrics) -> None:
    """By code, method and host; one without a response has a code of its own."""
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


def test_evictions_are_told_by_reason(metrics: Metrics) -> None:
    """Those of the loop, and those of the extender, which counts its own."""
    metrics.eviction("a", "drained")
    metrics.eviction("a", "drained")
    metrics.readings = MetricReadings(preempted=lambda: {"a": 3, "b": 0})
    found = scraped(metrics)
    assert {key: value for key, value in found.items() if key[0] == "tensile_evictions_total"} == {
        series("tensile_evictions_total", lower="a", reason="drained"): 2,
        series("tensile_evictions_total", lower="a", reason="preempted"): 3,
    }


def test_what_others_changed_is_told_by_kind(metrics: Metrics) -> None:
    """As the loop has counted it, by lower."""
    metrics.readings = MetricReadings(drift=lambda: {("a", "Secret"): 2})
    assert scraped(metrics)[series("tensile_drift_total", lower="a", kind="Secret")] == 2


def test_the_leader_is_told_by_its_lease(metrics: Metrics) -> None:
    """As client-go does, so that several controllers can be told apart."""
    for leads in (True, False):
        metrics.readings = MetricReadings(leads=lambda leads=leads: {"tensile-demo": leads})
        assert scraped(metrics)[series("leader_election_master_status", name="tensile-demo")] == leads
