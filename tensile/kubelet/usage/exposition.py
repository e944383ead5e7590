"""What a virtual node used, as the text of a kubelet's `/metrics/resource`, which metrics-server and Prometheus read.

Names and labels are the kubelet's. Values carry the time of the sample that they rest on, so that a reader who comes
twice between two samples sees that nothing is new. Written by hand, since libraries tell of this process and this
moment; label values are names of objects and need no escaping.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from tensile.kubelet.usage.picture import ContainerReading, Picture, PodReading, Reading

MEDIA = "text/plain; version=0.0.4; charset=utf-8"
_NANO = 1_000_000_000
_THOUSAND = 1000


class _Family(NamedTuple):
    name: str
    kind: str
    help: str
    lines: Callable[[Picture], Iterator[str]]


def exposition(picture: Picture) -> bytes:
    """Give the text; without a node's reading it says that there was an error in measuring."""
    lines: list[str] = []
    for family in _FAMILIES:
        lines += (f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}")
        lines += (f"{family.name}{line}" for line in family.lines(picture))
    return "\n".join((*lines, "")).encode()


def _used(reading: Reading) -> str:
    """Write seconds of cpu with all their digits, and the time."""
    seconds, rest = divmod(reading.counter.used, _NANO)
    return f"{seconds}.{rest:09d} {reading.counter.time}"


def _held(reading: Reading) -> str:
    return f"{reading.amount.memory} {reading.counter.time}"


def _started(container: ContainerReading) -> str:
    seconds, rest = divmod(container.started, _THOUSAND)
    return f"{seconds}.{rest:03d}"


def _labels(pod: PodReading) -> str:
    return f'namespace="{pod.runner.namespace}",pod="{pod.runner.name}"'


def _of_node(value: Callable[[Reading], str]) -> Callable[[Picture], Iterator[str]]:
    def lines(picture: Picture) -> Iterator[str]:
        if picture.node is not None:
            yield f" {value(picture.node)}"

    return lines


def _of_pods(value: Callable[[Reading], str]) -> Callable[[Picture], Iterator[str]]:
    return lambda picture: (f"{{{_labels(pod)}}} {value(pod.reading)}" for pod in picture.pods)


def _of_containers(value: Callable[[ContainerReading], str]) -> Callable[[Picture], Iterator[str]]:
    def lines(picture: Picture) -> Iterator[str]:
        for pod in picture.pods:
            labels = _labels(pod)
            for one in pod.containers:
                yield f'{{container="{one.name}",{labels}}} {value(one)}'

    return lines


def _error(picture: Picture) -> Iterator[str]:
    yield f" {int(picture.node is None)}"


_CPU = "Cumulative cpu time consumed by the {} in core-seconds"
_MEMORY = "Current working set of the {} in bytes"
_FAMILIES = (
    _Family(
        "container_cpu_usage_seconds_total",
        "counter",
        _CPU.format("container"),
        _of_containers(lambda one: _used(one.reading)),
    ),
    _Family(
        "container_memory_working_set_bytes",
        "gauge",
        _MEMORY.format("container"),
        _of_containers(lambda one: _held(one.reading)),
    ),
    _Family(
        "container_start_time_seconds",
        "gauge",
        "Start time of the container since unix epoch in seconds",
        _of_containers(_started),
    ),
    _Family("node_cpu_usage_seconds_total", "counter", _CPU.format("node"), _of_node(_used)),
    _Family("node_memory_working_set_bytes", "gauge", _MEMORY.format("node"), _of_node(_held)),
    _Family("pod_cpu_usage_seconds_total", "counter", _CPU.format("pod"), _of_pods(_used)),
    _Family("pod_memory_working_set_bytes", "gauge", _MEMORY.format("pod"), _of_pods(_held)),
    _Family(
        "resource_scrape_error",
        "gauge",
        "1 if there was an error while getting container metrics, 0 otherwise",
        _error,
    ),
)
