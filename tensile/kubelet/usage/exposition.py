"""What a virtual node used, as the text of a kubelet's `/metrics/resource`, which metrics-server and Prometheus read.

Names and labels are the kubelet's. Values carry the time of the sample that they rest on, so that a reader who comes
twice between two samples sees that nothing is new. They are floating point numbers, as a kubelet's are.
"""

from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tensile.kubelet.usage.picture import ContainerReading, Picture, Reading

MEDIA = "text/plain; version=0.0.4; charset=utf-8"
_NANO = 1_000_000_000
_THOUSAND = 1000
_POD = ("namespace", "pod")
_CONTAINER = ("container", *_POD)


class _Scope(NamedTuple):
    """What is measured, the names of its labels, and its readings, each with their values."""

    name: str
    labels: tuple[str, ...]
    readings: list[tuple[tuple[str, ...], Reading]]


class _Measured(Collector):
    """What prometheus_client writes instead of the metrics of this process."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture

    def collect(self) -> Iterator[Metric]:
        """Return every family; without a node's reading it says that there was an error in measuring."""
        for scope in _scopes(self._picture):
            yield from _use(scope)
        yield _starts(self._picture)
        failed = GaugeMetricFamily(
            "resource_scrape_error", "1 if there was an error while getting container metrics, 0 otherwise"
        )
        failed.add_metric((), int(self._picture.node is None))
        yield failed


def exposition(picture: Picture) -> bytes:
    """Return the text."""
    return generate_latest(_Measured(picture))


def _scopes(picture: Picture) -> Iterator[_Scope]:
    yield _Scope("container", _CONTAINER, [(names, one.reading) for names, one in _containers(picture)])
    yield _Scope("node", (), [((), picture.node)] if picture.node is not None else [])
    yield _Scope("pod", _POD, [((pod.runner.namespace, pod.runner.name), pod.reading) for pod in picture.pods])


def _use(scope: _Scope) -> Iterator[Metric]:
    """Return the seconds of cpu and the bytes of memory."""
    words = f"Cumulative cpu time consumed by the {scope.name} in core-seconds"
    cpu = CounterMetricFamily(f"{scope.name}_cpu_usage_seconds", words, labels=scope.labels)
    words = f"Current working set of the {scope.name} in bytes"
    memory = GaugeMetricFamily(f"{scope.name}_memory_working_set_bytes", words, labels=scope.labels)
    for values, (counter, amount) in scope.readings:
        time = counter.time / _THOUSAND
        cpu.add_metric(values, counter.used / _NANO, timestamp=time)
        memory.add_metric(values, amount.memory, timestamp=time)
    yield from (cpu, memory)


def _starts(picture: Picture) -> Metric:
    words = "Start time of the container since unix epoch in seconds"
    found = GaugeMetricFamily("container_start_time_seconds", words, labels=_CONTAINER)
    for values, container in _containers(picture):
        found.add_metric(values, container.started / _THOUSAND)
    return found


def _containers(picture: Picture) -> Iterator[tuple[tuple[str, ...], ContainerReading]]:
    """Return each container with the values of its labels."""
    for pod in picture.pods:
        yield from (((one.name, pod.runner.namespace, pod.runner.name), one) for one in pod.containers)
