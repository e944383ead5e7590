"""Tests of parsing the answers of a metrics API."""

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from tensile.kubelet.stats.usage import (
    NODE_METRICS,
    POD_METRICS,
    Sample,
    UsageRate,
    milliseconds,
    node_samples,
    pod_samples,
    span,
    total_of_nodes,
)

NOON = milliseconds(datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC))


def body(*items: dict[str, Any]) -> bytes:
    """Return a list as metrics-server returns it."""
    return orjson.dumps({"kind": "List", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": {}, "items": items})


def node(name: str = "n1", cpu: str = "250m", memory: str = "1Gi", second: int = 0) -> dict[str, Any]:
    """Return a NodeMetrics object."""
    return {
        "metadata": {"name": name, "creationTimestamp": "2026-03-01T12:00:05Z"},
        "timestamp": f"2026-03-01T12:00:{second:02d}Z",
        "window": "15.023s",
        "usage": {"cpu": cpu, "memory": memory},
    }


def test_the_paths_are_those_of_the_metrics_api() -> None:
    """They list all nodes, and the pods of all namespaces."""
    assert NODE_METRICS.path() == "/apis/metrics.k8s.io/v1beta1/nodes"
    assert POD_METRICS.path() == "/apis/metrics.k8s.io/v1beta1/pods"


def test_a_node_sample_is_parsed() -> None:
    """Time and window are in milliseconds, CPU in billionths, memory in bytes."""
    assert node_samples(body(node())) == [Sample(NOON, 15_023, UsageRate(250_000_000, 1 << 30))]


@pytest.mark.parametrize(
    ("cpu", "memory", "amount"),
    [
        ("0", "0", UsageRate(0, 0)),
        ("1n", "1", UsageRate(1, 1)),
        ("123456789n", "4096Ki", UsageRate(123_456_789, 4 << 20)),
        ("17u", "1k", UsageRate(17_000, 1000)),
        ("2", "1500Mi", UsageRate(2_000_000_000, 1500 << 20)),
    ],
)
def test_amounts_are_exact_in_every_unit(cpu: str, memory: str, amount: UsageRate) -> None:
    """CPU is exact to a billionth."""
    assert node_samples(body(node(cpu=cpu, memory=memory)))[0].used == amount


def test_pod_samples_are_parsed_by_namespace_and_name() -> None:
    """Each contains the usage of its containers at one time."""
    pod = {
        "metadata": {"name": "web", "namespace": "shop", "labels": {"a": "b"}},
        "timestamp": "2026-03-01T12:00:01Z",
        "window": "20s",
        "containers": [
            {"name": "main", "usage": {"cpu": "5m", "memory": "10Mi"}},
            {"name": "side", "usage": {"cpu": "1m", "memory": "1Mi"}},
        ],
    }
    found = pod_samples(body(pod))["shop", "web"]
    assert (found.time, found.window) == (NOON + 1000, 20_000)
    assert found.containers == {"main": UsageRate(5_000_000, 10 << 20), "side": UsageRate(1_000_000, 1 << 20)}


@pytest.mark.parametrize("read", [node_samples, pod_samples])
def test_an_empty_list_has_no_samples(read: Any) -> None:
    """A metrics API that has just started returns no items."""
    assert not read(body())


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"404 page not found",
        b"{}",
        orjson.dumps({"items": None}),
        body({"metadata": {"name": "n1"}}),
        body({**node(), "usage": {"cpu": "much", "memory": "1"}}),
    ],
)
def test_an_invalid_answer_raises_an_error(wrong: bytes) -> None:
    """Values that cannot be parsed are not used."""
    with pytest.raises(ValueError, match=r"."):
        node_samples(wrong)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0", 0),
        ("0s", 0),
        ("15s", 15_000),
        ("15.023s", 15_023),
        ("1m0.5s", 60_500),
        ("1h2m3s", 3_723_000),
        ("750ms", 750),
        ("1500us", 2),
        ("1500µs", 2),
        ("999999ns", 1),
    ],
)
def test_durations_are_parsed_as_go_formats_them(text: str, found: int) -> None:
    """The result is in whole milliseconds."""
    assert span(text) == found


@pytest.mark.parametrize("text", ["", "15", "s", "-1s", "1d", "1 s", "1s ", "1.s", "PT15S"])
def test_an_invalid_duration_raises_an_error(text: str) -> None:
    """The message reads "is not a duration"."""
    with pytest.raises(ValueError, match="is not a duration"):
        span(text)


def test_a_clusters_sample_is_the_sum_of_its_nodes() -> None:
    """It has the time and the window of the newest sample."""
    nodes = node_samples(body(node(second=3), {**node("n2", "1", "1Gi", second=9), "window": "9s"}, node("n3")))
    assert total_of_nodes(nodes) == Sample(NOON + 9000, 9000, UsageRate(1_500_000_000, 3 << 30))


def test_a_cluster_without_nodes_has_no_sample() -> None:
    """No measurement is different from no usage."""
    assert total_of_nodes([]) is None


def test_usage_rates_are_added_by_part() -> None:
    """Adding any other tuple is a TypeError, not a concatenation."""
    assert UsageRate(1, 2) + UsageRate(3, 4) == UsageRate(4, 6)
    with pytest.raises(TypeError):
        sum([(3, 4)], UsageRate(1, 2))
