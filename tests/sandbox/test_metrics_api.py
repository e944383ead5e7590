"""Tests of a sandbox's metrics API: simulated usage, and the usage that kubelets report."""

from typing import Any

import orjson
import pytest

from tensile.kubelet.stats.collector import exposition
from tensile.kubelet.stats.usage import (
    ContainerReading,
    Counter,
    LowerPodRef,
    PodReading,
    PodSample,
    RunningPod,
    Sample,
    UsageRate,
    UsageReading,
    UsageReport,
    node_samples,
    pod_samples,
)
from tensile.objects import Manifest
from tensile.sandbox import metrics_api
from tensile.sandbox.metrics_api import KubeletUsage

NOW = 1_900_000_000_000
MILLI_CPU, MIB = 1_000_000, 1 << 20


def pod(requests: dict[str, str] | None = None, *, runs: bool = True, name: str = "web", **notes: str) -> Manifest:
    """Return a pod with one container; `notes` are its annotations about usage, by resource."""
    annotations = {metrics_api.USAGE[resource]: text for resource, text in notes.items()}
    state: dict[str, Any] = {"running": {}} if runs else {"waiting": {}}
    return {
        "metadata": {"name": name, "namespace": "shop", "uid": f"uid-{name}", "annotations": annotations},
        "spec": {"nodeName": "n", "containers": [{"name": "main", "resources": {"requests": requests or {}}}]},
        "status": {"containerStatuses": [{"name": "main", "state": state}]},
    }


def used(one: Manifest, now: int = NOW) -> UsageRate:
    """Return the simulated usage of a pod's container."""
    sample = metrics_api.simulated_pod(one, now)
    assert sample is not None
    return sample.containers["main"]


@pytest.mark.parametrize("name", ["web-1", "web-2", "web-3", "web-4", "web-5"])
def test_a_pod_uses_a_part_of_its_request(name: str) -> None:
    """At any time the usage is well above zero and below the request."""
    one = pod({"cpu": "200m", "memory": "100Mi"}, name=name)
    for now in range(NOW, NOW + metrics_api.PERIOD, 5000):
        rate = used(one, now)
        assert 50 * MILLI_CPU < rate.cpu < 170 * MILLI_CPU
        assert 45 * MIB < rate.memory < 95 * MIB


def test_usage_changes_with_time_and_repeats() -> None:
    """Usage depends only on pod and time, so it is the same after a restart of the process."""
    one = pod({"cpu": "200m"})
    assert used(one) == used(one)
    assert used(one).cpu != used(one, NOW + 20_000).cpu
    assert abs(used(one).cpu - used(one, NOW + metrics_api.PERIOD).cpu) < MILLI_CPU


def test_usage_differs_between_pods() -> None:
    """A list does not have the same figures in every row."""
    assert len({used(pod(name=f"web-{number}")).cpu for number in range(20)}) > 15


def test_a_pod_without_requests_has_usage() -> None:
    """A plain pod is visible in `kubectl top`."""
    rate = used(pod())
    assert 0 < rate.cpu < 20 * MILLI_CPU
    assert 0 < rate.memory < 64 * MIB


def test_annotations_set_a_pods_usage() -> None:
    """The value is exact, and each resource has a separate annotation."""
    rate = used(pod({"cpu": "100m", "memory": "100Mi"}, cpu="850m"))
    assert rate.cpu == 850 * MILLI_CPU
    assert 45 * MIB < rate.memory < 95 * MIB
    assert used(pod(memory="3Gi")).memory == 3 << 30


@pytest.mark.parametrize("text", ["much", "", "-1"])
def test_an_invalid_usage_annotation_is_ignored(text: str) -> None:
    """The usage is the same as without the annotation."""
    assert used(pod({"cpu": "100m"}, cpu=text)) == used(pod({"cpu": "100m"}))


def test_a_pod_that_does_not_run_has_no_usage() -> None:
    """It is omitted, as in a real cluster."""
    assert metrics_api.simulated_pod(pod(runs=False), NOW) is None


def test_a_node_uses_the_sum_of_its_pods_and_a_fixed_amount() -> None:
    """The sums agree with those of `kubectl top pods`."""
    samples = [PodSample(NOW, 1, {"a": UsageRate(5, 7)}), PodSample(NOW, 1, {"a": UsageRate(1, 1)})]
    found = metrics_api.simulated_node(samples, NOW)
    assert found.used == metrics_api.SYSTEM + UsageRate(6, 8)


def test_the_engine_can_read_the_metrics_objects() -> None:
    """Names, times and quantities are preserved in JSON, memory to full KiB."""
    sample = metrics_api.simulated_pod(pod({"cpu": "200m", "memory": "100Mi"}), NOW)
    assert sample is not None
    lists = metrics_api.metrics_list("PodMetrics", [metrics_api.pod_metrics(pod(), sample)])
    found = pod_samples(orjson.dumps(lists))[("shop", "web")]
    assert (found.time, found.window) == (NOW, metrics_api.WINDOW)
    assert found.containers["main"].cpu == sample.containers["main"].cpu
    assert found.containers["main"].memory == sample.containers["main"].memory >> 10 << 10
    node = {"metadata": {"name": "n", "labels": {"zone": "a"}}}
    listed = metrics_api.metrics_list("NodeMetrics", [metrics_api.node_metrics(node, Sample(NOW, 15_000, found_use()))])
    assert node_samples(orjson.dumps(listed)) == [Sample(NOW, 15_000, found_use())]
    assert listed["items"][0]["metadata"]["labels"] == {"zone": "a"}


def found_use() -> UsageRate:
    """Return a usage that quantities can express exactly."""
    return UsageRate(1_500_000_000, 3 << 30)


def reported(time: int, seconds: float, *, started: int, memory: int = 5 * MIB) -> str:
    """Return a virtual node's report on itself and on one container, both with this counter."""
    reading = UsageReading(Counter(time, round(seconds * 10**9)), UsageRate(1, memory))
    runner = RunningPod("shop", "web", "u", LowerPodRef("shop", "web", "l"), started, {"main": started})
    one = PodReading(runner, reading, (ContainerReading("main", started, reading),))
    return exposition(UsageReport("lower-a", reading, (one,))).decode()


def test_usage_is_the_difference_of_two_counters() -> None:
    """Half a CPU second in two seconds is a quarter of a CPU, for the node and for the pod."""
    kubelet = KubeletUsage()
    kubelet.update(reported(NOW, 100.0, started=NOW - 3_600_000))
    assert (kubelet.node, kubelet.pods) == (None, {})
    kubelet.update(reported(NOW + 2000, 100.5, started=NOW - 3_600_000))
    assert kubelet.node == Sample(NOW + 2000, 2000, UsageRate(250 * MILLI_CPU, 5 * MIB))
    assert kubelet.pods == {("shop", "web"): PodSample(NOW + 2000, 2000, {"main": UsageRate(250_000_000, 5 * MIB)})}


def test_a_new_container_has_usage_after_one_reading() -> None:
    """Its first counter is its usage since it started."""
    kubelet = KubeletUsage()
    kubelet.update(reported(NOW, 2.0, started=NOW - 4000))
    assert kubelet.node is None
    assert kubelet.pods[("shop", "web")] == PodSample(NOW, 4000, {"main": UsageRate(500 * MILLI_CPU, 5 * MIB)})


def test_an_unchanged_counter_keeps_the_last_usage() -> None:
    """The kubelet has measured nothing in between."""
    kubelet = KubeletUsage()
    for time, seconds in ((NOW, 1.0), (NOW + 2000, 2.0), (NOW + 2000, 2.0)):
        kubelet.update(reported(time, seconds, started=NOW - 3_600_000))
    assert kubelet.node == Sample(NOW + 2000, 2000, UsageRate(500 * MILLI_CPU, 5 * MIB))


def test_a_restarted_counter_gives_no_usage() -> None:
    """After a restart of the engine, usage is known again from the next reading."""
    kubelet = KubeletUsage()
    kubelet.update(reported(NOW, 100.0, started=NOW - 3_600_000))
    kubelet.update(reported(NOW + 2000, 1.0, started=NOW - 3_600_000))
    assert (kubelet.node, kubelet.pods) == (None, {})
    kubelet.update(reported(NOW + 4000, 2.0, started=NOW - 3_600_000))
    assert kubelet.node == Sample(NOW + 4000, 2000, UsageRate(500 * MILLI_CPU, 5 * MIB))


def test_usage_that_is_no_longer_reported_is_dropped() -> None:
    """A pod that ended, or a kubelet that does not answer, has no usage."""
    kubelet = KubeletUsage()
    kubelet.update(reported(NOW, 2.0, started=NOW - 4000))
    kubelet.update("")
    assert (kubelet.node, kubelet.pods) == (None, {})


def test_a_page_that_is_no_metrics_is_an_error() -> None:
    """The caller skips this kubelet."""
    with pytest.raises(ValueError, match="invalid metric name"):
        KubeletUsage().update("<html>no metrics</html>\n")


def test_discovery_has_nodes_and_pods() -> None:
    """Kubectl and the autoscaler find the resources through discovery."""
    found = metrics_api.resources()
    assert found["groupVersion"] == "metrics.k8s.io/v1beta1"
    assert [(one["name"], one["kind"], one["namespaced"]) for one in found["resources"]] == [
        ("nodes", "NodeMetrics", False),
        ("pods", "PodMetrics", True),
    ]
