"""A virtual node's use in the two forms of a kubelet, as their readers take them."""

from datetime import UTC, datetime
from typing import Any

import orjson
from prometheus_client.parser import text_string_to_metric_families
from usagekit import CPU, HOUR, MEBI, NOON, node_sample, pod_sample, running

from tensile.kubelet.stats.collector import cadvisor_exposition, exposition, summary
from tensile.kubelet.stats.usage import CPUCounters, UsageReport, picture

WEB = {"namespace": "shop", "pod": "web"}


def two_pods() -> UsageReport:
    """Make a picture of a node with a pod of two containers and one of one."""
    samples = {
        ("mapped", "web-below"): pod_sample(2, main=0.5, side=0.000000001),
        ("mapped", "db-below"): pod_sample(1, main=2),
    }
    return picture(
        "virtual-a", node_sample(3, 4), [running(main=3600, side=7200), running("db")], samples, CPUCounters()
    )


def read(found: UsageReport) -> dict[str, list[Any]]:
    """Parse the text as Prometheus does: samples by metric."""
    families = text_string_to_metric_families(exposition(found).decode())
    samples = [sample for family in families for sample in family.samples]
    return {name: [one for one in samples if one.name == name] for name in {one.name for one in samples}}


def test_the_text_has_the_kubelets_names() -> None:
    """Those that metrics-server asks for, the pods' sums, and whether all went well."""
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


def test_containers_carry_the_upper_names() -> None:
    """Container, pod and namespace, as labels."""
    found = [sample.labels for sample in read(two_pods())["container_cpu_usage_seconds_total"]]
    assert found == [WEB | {"container": "main"}, WEB | {"container": "side"}, WEB | {"container": "main", "pod": "db"}]


def test_values_carry_the_time_of_their_sample() -> None:
    """In milliseconds, as Prometheus reads them; a start is a fact and has none."""
    found = read(two_pods())
    assert [one.timestamp * 1000 for one in found["pod_cpu_usage_seconds_total"]] == [NOON + 2000, NOON + 1000]
    assert found["node_cpu_usage_seconds_total"][0].timestamp * 1000 == NOON + 3000
    assert [one.timestamp for one in found["container_start_time_seconds"]] == [None] * 3


def test_counters_keep_every_digit() -> None:
    """What is all but idle is still there: the least counter is a millionth of a second."""
    main, side, _ = read(two_pods())["container_cpu_usage_seconds_total"]
    assert (main.value, side.value) == (7.5, 0.000001)


def test_starts_and_memory_are_plain_numbers() -> None:
    """Seconds since 1970, and bytes."""
    found = read(two_pods())
    assert found["container_start_time_seconds"][0].value == (NOON - HOUR) / 1000
    assert found["pod_memory_working_set_bytes"][0].value == 20 * MEBI
    assert found["node_memory_working_set_bytes"][0].value == 1024 * MEBI
    assert found["node_cpu_usage_seconds_total"][0].value == 60


def test_a_node_that_was_not_measured_says_so() -> None:
    """By the kubelet's own metric for it; nothing is made up."""
    whole, nothing = read(two_pods()), read(UsageReport("virtual-a", None, ()))
    assert whole["resource_scrape_error"][0].value == 0
    assert set(nothing) == {"resource_scrape_error"}
    assert nothing["resource_scrape_error"][0].value == 1


def test_every_metric_says_what_it_is() -> None:
    """Type and help come before the first sample."""
    families = {one.name: one for one in text_string_to_metric_families(exposition(two_pods()).decode())}
    assert families["container_cpu_usage_seconds"].type == "counter"
    assert families["container_memory_working_set_bytes"].type == "gauge"
    assert all(family.documentation for family in families.values())


def test_the_summary_names_pods_with_their_upper_uid() -> None:
    """As kubelets do, so that a reader can tell a pod from its successor."""
    found = orjson.loads(summary(two_pods()))
    assert found["node"]["nodeName"] == "virtual-a"
    assert [pod["podRef"] for pod in found["pods"]] == [
        {"name": "web", "namespace": "shop", "uid": "web-uid"},
        {"name": "db", "namespace": "shop", "uid": "db-uid"},
    ]


def test_the_summary_has_rates_and_counters() -> None:
    """Of node, pods and containers, at the time of their sample."""
    found = orjson.loads(summary(two_pods()))
    time = datetime.fromtimestamp(NOON / 1000 + 3, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert found["node"]["cpu"] == {"time": time, "usageNanoCores": 4 * CPU, "usageCoreNanoSeconds": 60 * CPU}
    assert found["node"]["memory"] == {"time": time, "workingSetBytes": 1024 * MEBI}
    main = found["pods"][0]["containers"][0]
    assert (main["name"], main["startTime"]) == ("main", "2026-03-01T11:00:00Z")
    assert main["cpu"]["usageNanoCores"] == CPU // 2
    assert found["pods"][0]["startTime"] == "2026-03-01T11:00:00Z"
    assert found["pods"][0]["memory"]["workingSetBytes"] == 20 * MEBI


def test_the_summary_of_a_node_that_was_not_measured_has_no_figures() -> None:
    """Its name is all that is known."""
    assert orjson.loads(summary(UsageReport("virtual-a", None, ()))) == {"node": {"nodeName": "virtual-a"}, "pods": []}


def cadvisor(found: UsageReport | None) -> dict[str, list[Any]]:
    """Parse cAdvisor's text as Prometheus does: samples by metric, without empty labels, which are none to it."""
    samples: dict[str, list[Any]] = {}
    for family in text_string_to_metric_families(cadvisor_exposition(found).decode()):
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if value}
            samples.setdefault(sample.name, []).append(sample._replace(labels=labels))
    return samples


def test_cadvisor_has_its_own_labels() -> None:
    """The node's root, pods without a container, and containers with the image by which rules tell them from pods."""
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


def test_cadvisor_has_the_same_values() -> None:
    """With the time of their sample: both pages are read by the same clients."""
    resource, found = read(two_pods()), cadvisor(two_pods())
    for name in ("container_cpu_usage_seconds_total", "container_memory_working_set_bytes"):
        containers = [one for one in found[name] if "container" in one.labels]
        assert [(one.value, one.timestamp) for one in containers] == [
            (one.value, one.timestamp) for one in resource[name]
        ]
    assert found["container_scrape_error"][0].value == 0


def test_cadvisor_says_that_nothing_is_known() -> None:
    """By its own metric for it; a node that was not measured yet is the same."""
    for unknown in (None, UsageReport("virtual-a", None, ())):
        found = cadvisor(unknown)
        assert set(found) == {"container_scrape_error"}
        assert found["container_scrape_error"][0].value == 1
