"""The metrics API of a sandbox: simulated usage, and the usage that kubelets report."""

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
    """Never all of it and never next to nothing, at any time."""
    one = pod({"cpu": "200m", "memory": "100Mi"}, name=name)
    for now in range(NOW, NOW + metrics_api.PERIOD, 5000):
        rate = used(one, now)
        assert 50 * MILLI_CPU < rate.cpu < 170 * MILLI_CPU
        assert 45 * MIB < rate.memory < 95 * MIB


def test_usage_changes_with_time_and_repeats() -> None:
    """Two requests at one time agree, also after a restart of the process."""
    one = pod({"cpu": "200m"})
    assert used(one) == used(one)
    assert used(one).cpu != used(one, NOW + 20_000).cpu
    assert abs(used(one).cpu - used(one, NOW + metrics_api.PERIOD).cpu) < MILLI_CPU


def test_pods_differ() -> None:
    """A list does not show the same figures in every row."""
    assert len({used(pod(name=f"web-{number}")).cpu for number in range(20)}) > 15


def test_a_pod_without_requests_uses_something() -> None:
    """A plain pod shows up in `kubectl top`."""
    rate = used(pod())
    assert 0 < rate.cpu < 20 * MILLI_CPU
    assert 0 < rate.memory < 64 * MIB


def test_annotations_say_what_a_pod_uses() -> None:
    """Exactly, and each for itself."""
    rate = used(pod({"cpu": "100m", "memory": "100Mi"}, cpu="850m"))
    assert rate.cpu == 850 * MILLI_CPU
    assert 45 * MIB < rate.memory < 95 * MIB
    assert used(pod(memory="3Gi")).memory == 3 << 30


@pytest.mark.parametrize("text", ["much", "", "-1"])
def test_an_annotation_that_is_no_usage_does_not_count(text: str) -> None:
    """The pod uses what it would without it."""
    assert used(pod({"cpu": "100m"}, cpu=text)) == used(pod({"cpu": "100m"}))


def test_a_pod_that_does_not_run_uses_nothing() -> None:
    """It is left out, as in a real cluster."""
    assert metrics_api.simulated_pod(pod(runs=False), NOW) is None


def test_a_node_uses_what_its_pods_use_and_a_little_more() -> None:
    """The sums agree with those of `kubectl top pods`."""
    samples = [PodSample(NOW, 1, {"a": UsageRate(5, 7)}), PodSample(NOW, 1, {"a": UsageRate(1, 1)})]
    found = metrics_api.simulated_node(samples, NOW)
    assert found.used == metrics_api.SYSTEM + UsageRate(6, 8)


def test_the_objects_are_those_that_the_engine_reads() -> None:
    """Names, times and quantities survive the way through JSON."""
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
    """Return a usage that quantities can express."""
    return UsageRate(1_500_000_000, 3 << 30)


def reported(time: int, seconds: float, *, started: int, memory: int = 5 * MIB) -> str:
    """Return what a virtual node reports of itself and of one container, both with this counter."""
    reading = UsageReading(Counter(time, round(seconds * 10**9)), UsageRate(1, memory))
    runner = RunningPod("shop", "web", "u", LowerPodRef("shop", "web", "l"), started, {"main": started})
    one = PodReading(runner, reading, (ContainerReading("main", started, reading),))
    return exposition(UsageReport("lower-a", reading, (one,))).decode()


def test_usage_is_the_difference_of_two_counters() -> None:
    """Half a cpu second in two seconds is a quarter of a cpu, for the node as for the pod."""
    kubelet = KubeletUsage()
    kubelet.update(reported(NOW, 100.0, started=NOW - 3_600_000))
    assert (kubelet.node, kubelet.pods) == (None, {})
    kubelet.update(reported(NOW + 2000, 100.5, started=NOW - 3_600_000))
    assert kubelet.node == Sample(NOW + 2000, 2000, UsageRate(250 * MILLI_CPU, 5 * MIB))
    assert kubelet.pods == {("shop", "web"): PodSample(NOW + 2000, 2000, {"main": UsageRate(250_000_000, 5 * MIB)})}


def test_a_young_container_is_known_at_once() -> None:
    """Its first counter is what it used since it started."""
    kubelet = KubeletUsage()
    kubelet.update(reported(NOW, 2.0, started=NOW - 4000))
    assert kubelet.node is None
    assert kubelet.pods[("shop", "web")] == PodSample(NOW, 4000, {"main": UsageRate(500 * MILLI_CPU, 5 * MIB)})


def test_a_counter_that_did_not_move_on_keeps_the_last_usage() -> None:
    """The kubelet measured nothing in between."""
    kubelet = KubeletUsage()
    for time, seconds in ((NOW, 1.0), (NOW + 2000, 2.0), (NOW + 2000, 2.0)):
        kubelet.update(reported(time, seconds, started=NOW - 3_600_000))
    assert kubelet.node == Sample(NOW + 2000, 2000, UsageRate(500 * MILLI_CPU, 5 * MIB))


def test_a_counter_that_restarted_is_no_usage() -> None:
    """After a restart of the engine, the next reading tells."""
    kubelet = KubeletUsage()
    kubelet.update(reported(NOW, 100.0, started=NOW - 3_600_000))
    kubelet.update(reported(NOW + 2000, 1.0, started=NOW - 3_600_000))
    assert (kubelet.node, kubelet.pods) == (None, {})
    kubelet.update(reported(NOW + 4000, 2.0, started=NOW - 3_600_000))
    assert kubelet.node == Sample(NOW + 4000, 2000, UsageRate(500 * MILLI_CPU, 5 * MIB))


def test_what_is_not_reported_any_more_is_forgotten() -> None:
    """A pod that ended, or a kubelet that did not answer, has no usage."""
    kubelet = KubeletUsage()
    kubelet.update(reported(NOW, 2.0, started=NOW - 4000))
    kubelet.update("")
    assert (kubelet.node, kubelet.pods) == (None, {})


def test_something_else_than_metrics_is_an_error() -> None:
    """The caller passes over it."""
    with pytest.raises(ValueError, match="invalid metric name"):
        KubeletUsage().update("<html>no metrics</html>\n")


def test_discovery_names_both_kinds() -> None:
    """Kubectl and the autoscaler find them by it."""
    found = metrics_api.resources()
    assert found["groupVersion"] == "metrics.k8s.io/v1beta1"
    assert [(one["name"], one["kind"], one["namespaced"]) for one in found["resources"]] == [
        ("nodes", "NodeMetrics", False),
        ("pods", "PodMetrics", True),
    ]
