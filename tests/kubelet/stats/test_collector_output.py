"""Tests of a virtual node's usage in the output formats of a kubelet, as its clients parse them."""

from datetime import UTC, datetime
from typing import Any

import orjson
from prometheus_client.parser import text_string_to_metric_families
from usagekit import CPU, HOUR, MEBI, NOON, node_sample, pod_sample, running

from tensile.kubelet.stats.collector import cadvisor_exposition, exposition, summary
from tensile.kubelet.stats.usage import CPUCounters, UsageReport, usage_report

WEB = {"namespace": "shop", "pod": "web"}


def two_pods() -> UsageReport:
    """Return a report of a node with a pod of two containers and a pod of one."""
    samples = {
        ("mapped", "web-below"): pod_sample(2, main=0.5, side=0.000000001),
        ("mapped", "db-below"): pod_sample(1, main=2),
    }
    return usage_report(
        "virtual-a", node_sample(3, 4), [running(main=3600, side=7200), running("db")], samples, CPUCounters()
    )


def read(found: UsageReport) -> dict[str, list[Any]]:
    """Parse the text as Prometheus does: samples by metric."""
    families = text_string_to_metric_families(exposition(found).decode())
    samples = [sample for family in families for sample in family.samples]
    return {name: [one for one in samples if one.name == name] for name in {one.name for one in samples}}


def test_resource_metrics_have_the_kubelets_names() -> None:
    """They include those that metrics-server requests, the sums of pods, and the scrape error."""
    assert set(read(two_pods())) == {
        "container_cpu_usage_seconds_total",
        "container_memory_working_set_bytes",
        "container_start_time_seconds",
        "node_cpu_usage_seconds_total",
        "node_memory_working_set_bytes",
        "pod_cpu_usage_seconds_total",
        "pod_memory_working_set_bytes",
        "resource_scrape_error",
    }


def test_container_metrics_have_upper_names_as_labels() -> None:
    """The labels are container, pod and namespace."""
    found = [sample.labels for sample in read(two_pods())["container_cpu_usage_seconds_total"]]
    assert found == [WEB | {"container": "main"}, WEB | {"container": "side"}, WEB | {"container": "main", "pod": "db"}]


def test_values_have_the_timestamp_of_their_sample() -> None:
    """It is in milliseconds, as Prometheus parses it; a start time has no timestamp."""
    found = read(two_pods())
    assert [one.timestamp * 1000 for one in found["pod_cpu_usage_seconds_total"]] == [NOON + 2000, NOON + 1000]
    assert found["node_cpu_usage_seconds_total"][0].timestamp * 1000 == NOON + 3000
    assert [one.timestamp for one in found["container_start_time_seconds"]] == [None] * 3


def test_counters_are_exact_to_a_microsecond() -> None:
    """The usage of an almost idle container is not rounded to zero."""
    main, side, _ = read(two_pods())["container_cpu_usage_seconds_total"]
    assert (main.value, side.value) == (7.5, 0.000001)


def test_start_times_and_memory_are_plain_numbers() -> None:
    """They are seconds since 1970, and bytes."""
    found = read(two_pods())
    assert found["container_start_time_seconds"][0].value == (NOON - HOUR) / 1000
    assert found["pod_memory_working_set_bytes"][0].value == 20 * MEBI
    assert found["node_memory_working_set_bytes"][0].value == 1024 * MEBI
    assert found["node_cpu_usage_seconds_total"][0].value == 60


def test_an_unmeasured_node_reports_a_scrape_error() -> None:
    """It is the kubelet's own metric, and no values are invented."""
    whole, nothing = read(two_pods()), read(UsageReport("virtual-a", None, ()))
    assert whole["resource_scrape_error"][0].value == 0
    assert set(nothing) == {"resource_scrape_error"}
    assert nothing["resource_scrape_error"][0].value == 1


def test_every_metric_has_a_type_and_a_help_text() -> None:
    """Counters and gauges are declared as such."""
    families = {one.name: one for one in text_string_to_metric_families(exposition(two_pods()).decode())}
    assert families["container_cpu_usage_seconds"].type == "counter"
    assert families["container_memory_working_set_bytes"].type == "gauge"
    assert all(family.documentation for family in families.values())


def test_the_summary_identifies_pods_by_their_upper_uid() -> None:
    """A client can distinguish a pod from its successor, as with a kubelet."""
    found = orjson.loads(summary(two_pods()))
    assert found["node"]["nodeName"] == "virtual-a"
    assert [pod["podRef"] for pod in found["pods"]] == [
        {"name": "web", "namespace": "shop", "uid": "web-uid"},
        {"name": "db", "namespace": "shop", "uid": "db-uid"},
    ]


def test_the_summary_contains_rates_and_counters() -> None:
    """It has those of node, pods and containers at the time of their sample."""
    found = orjson.loads(summary(two_pods()))
    time = datetime.fromtimestamp(NOON / 1000 + 3, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert found["node"]["cpu"] == {"time": time, "usageNanoCores": 4 * CPU, "usageCoreNanoSeconds": 60 * CPU}
    assert found["node"]["memory"] == {"time": time, "workingSetBytes": 1024 * MEBI}
    main = found["pods"][0]["containers"][0]
    assert (main["name"], main["startTime"]) == ("main", "2026-03-01T11:00:00Z")
    assert main["cpu"]["usageNanoCores"] == CPU // 2
    assert found["pods"][0]["startTime"] == "2026-03-01T11:00:00Z"
    assert found["pods"][0]["memory"]["workingSetBytes"] == 20 * MEBI


def test_the_summary_of_an_unmeasured_node_has_no_values() -> None:
    """It contains only the node's name."""
    assert orjson.loads(summary(UsageReport("virtual-a", None, ()))) == {"node": {"nodeName": "virtual-a"}, "pods": []}


def cadvisor(found: UsageReport | None) -> dict[str, list[Any]]:
    """Parse cAdvisor's text as Prometheus does: samples by metric, without empty labels, which Prometheus ignores."""
    samples: dict[str, list[Any]] = {}
    for family in text_string_to_metric_families(cadvisor_exposition(found).decode()):
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if value}
            samples.setdefault(sample.name, []).append(sample._replace(labels=labels))
    return samples


def test_cadvisor_metrics_have_cadvisors_labels() -> None:
    """They are for the node's root, pods without a container label, and containers with their image."""
    found = cadvisor(two_pods())
    memory = [one.labels for one in found["container_memory_working_set_bytes"]]
    web, db = {**WEB, "id": "/kubepods/podweb-uid"}, {**WEB, "pod": "db", "id": "/kubepods/poddb-uid"}
    assert memory == [
        {"id": "/"},
        web,
        {**web, "id": "/kubepods/podweb-uid/main", "container": "main", "image": "main:1"},
        {**web, "id": "/kubepods/podweb-uid/side", "container": "side", "image": "side:1"},
        db,
        {**db, "id": "/kubepods/poddb-uid/main", "container": "main", "image": "main:1"},
    ]
    cpu = found["container_cpu_usage_seconds_total"]
    assert [one.labels for one in cpu] == [{**one, "cpu": "total"} for one in memory]
    starts = [one.labels for one in found["container_start_time_seconds"]]
    assert starts == [one for one in memory if "container" in one]


def test_cadvisor_metrics_have_the_values_of_the_resource_metrics() -> None:
    """The timestamps are equal too, because the same clients read both pages."""
    resource, found = read(two_pods()), cadvisor(two_pods())
    for name in ("container_cpu_usage_seconds_total", "container_memory_working_set_bytes"):
        containers = [one for one in found[name] if "container" in one.labels]
        assert [(one.value, one.timestamp) for one in containers] == [
            (one.value, one.timestamp) for one in resource[name]
        ]
    assert found["container_scrape_error"][0].value == 0


def test_cadvisor_metrics_of_an_unmeasured_node_are_a_scrape_error() -> None:
    """It is cAdvisor's own metric; a node without any report is the same."""
    for unknown in (None, UsageReport("virtual-a", None, ())):
        found = cadvisor(unknown)
        assert set(found) == {"container_scrape_error"}
        assert found["container_scrape_error"][0].value == 1
