"""Render a virtual node's usage as a kubelet does: `/metrics` and what is below it, `/stats/summary`, running pods.

Names and labels are the kubelet's. Values of `/metrics/resource` and `/metrics/cadvisor`, which metrics-server and
Prometheus read, carry the time of their sample, so that a reader who comes twice between two samples sees that nothing
is new. They are floating point numbers, as in a kubelet. cAdvisor's metrics repeat those of containers, pods and the
node with its labels, since the rules and dashboards of most clusters select by these, such as by `image!=""`. The
summary holds cpu and memory only; network and file systems are left out, as a kubelet leaves out what it cannot
measure. The list of running pods holds names and running containers only, because in a kubelet it comes from the
container runtime and not from the API.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tensile.kubelet.stats.usage import ContainerReading, PodReading, RunningPod, UsageReading, UsageReport
from tensile.objects import Manifest, timestamp

MEDIA = "text/plain; version=0.0.4; charset=utf-8"
_NANO = 1_000_000_000
_THOUSAND = 1000
_POD = ("namespace", "pod")
_CONTAINER = ("container", *_POD)
_CGROUP = ("container", "id", "image", *_POD)
"""cAdvisor's labels: `id` is the path of the cgroup, with the upper names here; pods have no container and no image."""

Stats = dict[str, Any]


class _Scope(NamedTuple):
    """What is measured, the names of its labels, and its readings, each with its label values."""

    name: str
    labels: tuple[str, ...]
    readings: list[tuple[tuple[str, ...], UsageReading]]


class _Measured(Collector):
    """The collector that prometheus_client renders instead of the metrics of this process."""

    def __init__(self, picture: UsageReport) -> None:
        self._picture = picture

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family; without a reading of the node, `resource_scrape_error` is 1."""
        for scope in _scopes(self._picture):
            yield from _use(scope)
        yield _starts(self._picture)
        failed = GaugeMetricFamily(
            "resource_scrape_error", "1 if there was an error while getting container metrics, 0 otherwise"
        )
        failed.add_metric((), int(self._picture.node is None))
        yield failed


class _CAdvisor(Collector):
    """The collector of cAdvisor's metrics, which has no others if the usage is not known (None)."""

    def __init__(self, picture: UsageReport | None) -> None:
        self._picture = picture

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family; without a usage, `container_scrape_error` is 1."""
        if self._picture is not None:
            yield from _cgroup_use(self._picture)
        failed = GaugeMetricFamily(
            "container_scrape_error", "1 if there was an error while getting container metrics, 0 otherwise"
        )
        failed.add_metric((), int(self._picture is None or self._picture.node is None))
        yield failed


def exposition(picture: UsageReport) -> bytes:
    """Return the text of `/metrics/resource`."""
    return generate_latest(_Measured(picture))


def cadvisor_exposition(picture: UsageReport | None) -> bytes:
    """Return the text of `/metrics/cadvisor`; None for a usage that is not known."""
    return generate_latest(_CAdvisor(picture))


def _cgroup_use(picture: UsageReport) -> Iterator[Metric]:
    """Yield the cpu seconds and the memory bytes of every cgroup, and the starts of containers."""
    words = "Cumulative cpu time consumed in seconds"
    cpu = CounterMetricFamily("container_cpu_usage_seconds", words, labels=(*_CGROUP, "cpu"))
    memory = GaugeMetricFamily("container_memory_working_set_bytes", "Current working set in bytes", labels=_CGROUP)
    starts = GaugeMetricFamily(
        "container_start_time_seconds", "Start time of the container since unix epoch in seconds", labels=_CGROUP
    )
    for values, (counter, amount), started in _cgroups(picture):
        time = counter.time / _THOUSAND
        cpu.add_metric((*values, "total"), counter.used / _NANO, timestamp=time)
        memory.add_metric(values, amount.memory, timestamp=time)
        if started is not None:
            starts.add_metric(values, started / _THOUSAND)
    yield from (cpu, memory, starts)


def _cgroups(picture: UsageReport) -> Iterator[tuple[tuple[str, ...], UsageReading, int | None]]:
    """Yield the label values and the reading of each cgroup, and the start of a container."""
    if picture.node is not None:
        yield ("", "/", "", "", ""), picture.node, None
    for pod in picture.pods:
        runner = pod.runner
        place, names = f"/kubepods/pod{runner.uid}", (runner.namespace, runner.name)
        yield ("", place, "", *names), pod.reading, None
        for one in pod.containers:
            labels = (one.name, f"{place}/{one.name}", runner.images.get(one.name, ""), *names)
            yield labels, one.reading, one.started


def _scopes(picture: UsageReport) -> Iterator[_Scope]:
    yield _Scope("container", _CONTAINER, [(names, one.reading) for names, one in _containers(picture)])
    yield _Scope("node", (), [((), picture.node)] if picture.node is not None else [])
    yield _Scope("pod", _POD, [((pod.runner.namespace, pod.runner.name), pod.reading) for pod in picture.pods])


def _use(scope: _Scope) -> Iterator[Metric]:
    """Yield the cpu seconds and the memory bytes of a scope."""
    words = f"Cumulative cpu time consumed by the {scope.name} in core-seconds"
    cpu = CounterMetricFamily(f"{scope.name}_cpu_usage_seconds", words, labels=scope.labels)
    words = f"Current working set of the {scope.name} in bytes"
    memory = GaugeMetricFamily(f"{scope.name}_memory_working_set_bytes", words, labels=scope.labels)
    for values, (counter, amount) in scope.readings:
        time = counter.time / _THOUSAND
        cpu.add_metric(values, counter.used / _NANO, timestamp=time)
        memory.add_metric(values, amount.memory, timestamp=time)
    yield from (cpu, memory)


def _starts(picture: UsageReport) -> Metric:
    words = "Start time of the container since unix epoch in seconds"
    found = GaugeMetricFamily("container_start_time_seconds", words, labels=_CONTAINER)
    for values, container in _containers(picture):
        found.add_metric(values, container.started / _THOUSAND)
    return found


def _containers(picture: UsageReport) -> Iterator[tuple[tuple[str, ...], ContainerReading]]:
    """Yield each container with its label values."""
    for pod in picture.pods:
        yield from (((one.name, pod.runner.namespace, pod.runner.name), one) for one in pod.containers)


def summary(picture: UsageReport) -> bytes:
    """Return the JSON of a stats v1alpha1 Summary."""
    node = {"nodeName": picture.name, **(_stats(picture.node) if picture.node else {})}
    return orjson.dumps({"node": node, "pods": [_pod(pod) for pod in picture.pods]})


def _pod(pod: PodReading) -> Stats:
    runner = pod.runner
    return {
        "podRef": {"name": runner.name, "namespace": runner.namespace, "uid": runner.uid},
        "startTime": None if runner.started is None else _time(runner.started),
        "containers": [_container(one) for one in pod.containers],
        **_stats(pod.reading),
    }


def _container(one: ContainerReading) -> Stats:
    return {"name": one.name, "startTime": _time(one.started), **_stats(one.reading)}


def _stats(reading: UsageReading) -> Stats:
    time = _time(reading.counter.time)
    return {
        "cpu": {"time": time, "usageNanoCores": reading.amount.cpu, "usageCoreNanoSeconds": reading.counter.used},
        "memory": {"time": time, "workingSetBytes": reading.amount.memory},
    }


def _time(milliseconds: int) -> str:
    return timestamp(datetime.fromtimestamp(milliseconds / _THOUSAND, UTC))


def census(node: str, runners: Sequence[RunningPod]) -> bytes:
    """Return the part of a kubelet's `/metrics` that is about the node: its name, running pods and containers."""
    containers = sum(len(one.containers) for one in runners)
    lines = [
        *_gauge("kubelet_node_name", "The node's name. The count is always 1.", f'{{node="{node}"}} 1'),
        *_gauge("kubelet_running_pods", "Number of pods of which a container runs", f" {len(runners)}"),
        *_gauge(
            "kubelet_running_containers",
            "Number of containers that run",
            f'{{container_state="running"}} {containers}',
        ),
    ]
    return "\n".join((*lines, "")).encode()


def running_list(runners: Sequence[RunningPod]) -> bytes:
    """Return the JSON of a v1 PodList with names, UIDs and running containers."""
    return orjson.dumps(
        {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [_running_pod(one) for one in runners]}
    )


def _gauge(name: str, words: str, value: str) -> tuple[str, str, str]:
    return f"# HELP {name} {words}", f"# TYPE {name} gauge", f"{name}{value}"


def _running_pod(one: RunningPod) -> Manifest:
    return {
        "metadata": {"name": one.name, "namespace": one.namespace, "uid": one.uid},
        "spec": {"containers": [{"name": name, "resources": {}} for name in one.containers]},
        "status": {},
    }
