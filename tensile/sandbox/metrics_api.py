"""The contents of the metrics API (metrics.k8s.io): what pods and nodes of a sandbox use.

Simulated nodes run nothing, so the usage of their pods is made up: a part of the request, or what an annotation says.
It depends on the pod and the time alone, so repeated requests agree. For other nodes, which are the virtual ones and a
real one, it is computed as metrics-server does: from the cpu counters that a kubelet reports, twice.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from zlib import crc32

from prometheus_client.parser import text_string_to_metric_families

from tensile.kubelet.stats.usage import NODE_METRICS, POD_METRICS, PodSample, Sample, UsageRate
from tensile.objects import Manifest, annotations, labels, metadata, timestamp, uid
from tensile.resources import NANO, is_quantity, parse, render

USAGE = {"cpu": "sandbox.tensile-kube.io/usage-cpu", "memory": "sandbox.tensile-kube.io/usage-memory"}
"""The annotations that say what each container of a pod uses, by resource."""
WINDOW = 10_000
"""Milliseconds over which simulated usage counts as measured."""
WITHOUT_REQUEST = {"cpu": "20m", "memory": "64Mi"}
SYSTEM = UsageRate(150_000_000, 600 << 20)
"""What a simulated node uses without pods."""
PERIOD = 90_000
"""Milliseconds after which the cpu usage of a simulated container repeats."""
YOUNG = 60_000
"""Milliseconds after its start in which the first counter of a container is all that it used since."""
_BYTE_SCALE = 0
_THOUSAND = 1000
_NODE = ""
_CPU, _MEMORY, _START = "cpu_usage_seconds_total", "memory_working_set_bytes", "start_time_seconds"


def simulated_pod(pod: Manifest, now: int) -> PodSample | None:
    """Return the usage of a pod on a simulated node at a time (ms since 1970), None if no container of it runs."""
    statuses = pod.get("status", {}).get("containerStatuses") or ()
    running = {one["name"] for one in statuses if "running" in one.get("state", {})}
    used = {one["name"]: _simulated(pod, one, now) for one in pod["spec"]["containers"] if one["name"] in running}
    return PodSample(now, WINDOW, used) if used else None


def simulated_node(pods: Iterable[PodSample], now: int) -> Sample:
    """Return the usage of a simulated node with these pods."""
    return Sample(now, WINDOW, sum((one for pod in pods for one in pod.containers.values()), SYSTEM))


def _simulated(pod: Manifest, container: Manifest, now: int) -> UsageRate:
    """Return the usage of a container: what the pod's annotations say, else 30 to 70 % of its request."""
    part = crc32(f"{uid(pod)}/{container['name']}".encode()) / 2**32
    share = 0.3 + 0.4 * part
    wave = 1 + 0.15 * math.sin(2 * math.pi * (now / PERIOD + part))
    return UsageRate(
        _stated(pod, "cpu", NANO) or round(_requested(container, "cpu", NANO) * share * wave),
        _stated(pod, "memory", _BYTE_SCALE) or round(_requested(container, "memory", _BYTE_SCALE) * (0.2 + share)),
    )


def _stated(pod: Manifest, resource: str, scale: int) -> int:
    """Return what an annotation says that a container uses, 0 without one and for what is no quantity."""
    text = annotations(pod).get(USAGE[resource], "")
    return max(0, parse(text, scale)) if is_quantity(text) else 0


def _requested(container: Manifest, resource: str, scale: int) -> int:
    """Return a container's request, or what counts as one."""
    requests = container.get("resources", {}).get("requests") or {}
    return parse(str(requests.get(resource, WITHOUT_REQUEST[resource])), scale)


class KubeletUsage:
    """The usage of a node with a kubelet, from its `/metrics/resource` of at least two times.

    Attributes:
        node: the usage of the node, None while it is not known.
        pods: the usage of its pods by namespace and name.
    """

    def __init__(self) -> None:
        self.node: Sample | None = None
        self.pods: dict[tuple[str, str], PodSample] = {}
        self._counters: dict[tuple[str, ...], tuple[int, float]] = {}
        self._samples: dict[tuple[str, ...], Sample] = {}

    def update(self, text: str) -> None:
        """Take note of what the kubelet reports now.

        Raises:
            ValueError: this is not the text format of Prometheus.
        """
        reported = _reported(text)
        counters = {key: found for key, values in reported.items() if (found := _counter(values))}
        samples = {key: self._sample(key, counter, reported[key]) for key, counter in counters.items()}
        self._samples = {key: sample for key, sample in samples.items() if sample is not None}
        self._counters = counters
        self.node = self._samples.get((_NODE,))
        self.pods = dict(_by_pod(self._samples))

    def _sample(self, key: tuple[str, ...], counter: tuple[int, float], values: Mapping[str, Any]) -> Sample | None:
        """Return the usage between two counters; the last one again if nothing was measured meanwhile."""
        time, seconds = counter
        memory = round(values[_MEMORY].value) if _MEMORY in values else 0
        before = self._counters.get(key) or _start_counter(time, values)
        if before == counter:
            return self._samples.get(key)
        if before is None or before[0] >= time or before[1] > seconds:
            return None
        window = time - before[0]
        return Sample(time, window, UsageRate(round((seconds - before[1]) * _THOUSAND / window * 10**NANO), memory))


def _reported(text: str) -> dict[tuple[str, ...], dict[str, Any]]:
    """Return the values for the node and for each container, by the ends of their metrics' names."""
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            scope, _, name = sample.name.partition("_")
            if name not in (_CPU, _MEMORY, _START) or scope not in ("node", "container"):
                continue
            names = ("namespace", "pod", "container") if scope == "container" else ()
            key = tuple(sample.labels.get(one, "") for one in names) or (_NODE,)
            found.setdefault(key, {})[name] = sample
    return found


def _counter(values: Mapping[str, Any]) -> tuple[int, float] | None:
    """Return the time (ms since 1970) and the cpu seconds of a counter, None if there is none with a time."""
    sample = values.get(_CPU)
    return None if sample is None or sample.timestamp is None else (round(sample.timestamp * _THOUSAND), sample.value)


def _start_counter(time: int, values: Mapping[str, Any]) -> tuple[int, float] | None:
    """Return the counter of a container when it started, None if that was long ago or is not known."""
    if _START not in values:
        return None
    start = round(values[_START].value * _THOUSAND)
    return (start, 0.0) if time - YOUNG <= start <= time - _THOUSAND else None


def _by_pod(samples: Mapping[tuple[str, ...], Sample]) -> Iterator[tuple[tuple[str, str], PodSample]]:
    """Yield the samples of containers by pod; a pod's time is the oldest of its containers."""
    containers: dict[tuple[str, str], dict[str, Sample]] = {}
    for key, sample in samples.items():
        if key != (_NODE,):
            namespace, pod, container = key
            containers.setdefault((namespace, pod), {})[container] = sample
    for pod_key, found in containers.items():
        oldest = min(found.values(), key=lambda sample: sample.time)
        yield pod_key, PodSample(oldest.time, oldest.window, {name: one.used for name, one in found.items()})


def pod_metrics(pod: Manifest, sample: PodSample) -> Manifest:
    """Return the PodMetrics of a pod."""
    containers = [{"name": name, "usage": _usage(used)} for name, used in sample.containers.items()]
    return {**_metrics("PodMetrics", pod, sample.time, sample.window), "containers": containers}


def node_metrics(node: Manifest, sample: Sample) -> Manifest:
    """Return the NodeMetrics of a node."""
    return {**_metrics("NodeMetrics", node, sample.time, sample.window), "usage": _usage(sample.used)}


def metrics_list(kind: str, items: list[Manifest]) -> Manifest:
    """Return the list of a kind, which is PodMetrics or NodeMetrics."""
    return {"kind": f"{kind}List", "apiVersion": NODE_METRICS.api, "metadata": {}, "items": items}


def resources() -> Manifest:
    """Return the resources of the API, for discovery."""
    found = [
        {"name": kind.plural, "singularName": "", "namespaced": kind.namespaced, "kind": kind.name}
        for kind in (NODE_METRICS, POD_METRICS)
    ]
    listed = [{**one, "verbs": ["get", "list"]} for one in found]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": NODE_METRICS.api, "resources": listed}


def absent(name: str) -> Manifest:
    """Return the Status for an object of which no usage is known."""
    message = f"no usage of {name} is known yet"
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": "NotFound",
        "code": 404,
    }


def _metrics(kind: str, manifest: Manifest, time: int, window: int) -> Manifest:
    """Return the fields that both kinds have."""
    meta = metadata(manifest)
    moment = timestamp(datetime.fromtimestamp(time / _THOUSAND, UTC))
    named = {key: meta[key] for key in ("name", "namespace") if key in meta}
    return {
        "kind": kind,
        "apiVersion": NODE_METRICS.api,
        "metadata": {**named, "creationTimestamp": moment, "labels": labels(manifest)},
        "timestamp": moment,
        "window": f"{window / _THOUSAND:.3f}s",
    }


def _usage(used: UsageRate) -> dict[str, str]:
    """Return a usage as quantities."""
    return {
        "cpu": render(used.cpu, scale=NANO),
        "memory": render(used.memory >> 10 << 10, binary=True, scale=_BYTE_SCALE),
    }
