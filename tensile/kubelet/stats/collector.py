"""Fetch what a virtual node and its pods use from the lower's metrics API, and render it as a kubelet does.

It is fetched only when a reader requests it, over connections of its own, like streams: readers come every few seconds
and may request much, and must not delay the engine's own requests to the cluster. Large responses are decoded in a
thread, so that the event loop goes on meanwhile. An answer is cached for some seconds, errors too, since the samples
behind it are no fresher. metrics-server logs only the status line of a response. So an error's reason is also put into
the status line, where an operator who misses figures finds it.

Names and labels are the kubelet's. Values of `/metrics/resource` and `/metrics/cadvisor`, which metrics-server and
Prometheus read, carry the time of their sample, so that a reader who comes twice between two samples sees that nothing
is new. They are floating point numbers, as in a kubelet. cAdvisor's metrics repeat those of containers, pods and the
node with its labels, since the rules and dashboards of most clusters select by these, such as by `image!=""`. The
summary holds cpu and memory only; network and file systems are left out, as a kubelet leaves out what it cannot
measure. The list of running pods holds names and running containers only, because in a kubelet it comes from the
container runtime and not from the API.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import urlencode

import h11
import orjson
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from structlog.typing import FilteringBoundLogger

from tensile.kube.cluster import Cluster
from tensile.kubelet.api import routes
from tensile.kubelet.api.connection import ConnectionLimits
from tensile.kubelet.api.http import PLAIN, LowerExchange, ServerExchange, while_connected
from tensile.kubelet.api.requests import LowerRequest, MirroredPods
from tensile.kubelet.api.routes import APICall, HTTPError
from tensile.kubelet.stats.usage import (
    NODE_METRICS,
    POD_METRICS,
    ContainerReading,
    CPUCounters,
    PodReading,
    RunningPod,
    UsageReading,
    UsageReport,
    node_samples,
    pod_samples,
    running_pod,
    total_of_nodes,
    usage_report,
)
from tensile.names import OWNER, Owner
from tensile.objects import Kind, Manifest, timestamp
from tensile.reconcile.world import LowerWorld

MEDIA = "text/plain; version=0.0.4; charset=utf-8"
_NANO = 1_000_000_000
_THOUSAND = 1000
_POD = ("namespace", "pod")
_CONTAINER = ("container", *_POD)
_CGROUP = ("container", "id", "image", *_POD)
"""cAdvisor's labels: `id` is the path of the cgroup, with the upper names here; pods have no container and no image."""

Stats = dict[str, Any]
FRESH_SECONDS = 5.0
PATIENCE_SECONDS = 8.0
"""Seconds after which a reader gets an error: metrics-server gives up after ten."""
_LARGEST, _PER_POD, _PER_NODE = 1 << 20, 32 << 10, 8 << 10
"""Maximum bytes of a response: a fixed part, and a part for each pod of ours or lower node, labels included."""
_PODS_PER_STEP = 100
_JSON = "application/json"
_MAX_REASON = 400


class _Scope(NamedTuple):
    """What is measured, the names of its labels, and its readings, each with its label values."""

    name: str
    labels: tuple[str, ...]
    readings: list[tuple[tuple[str, ...], UsageReading]]


class _ResourceMetrics(Collector):
    """The collector that prometheus_client renders instead of the metrics of this process."""

    def __init__(self, report: UsageReport) -> None:
        self._report = report

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family; without a reading of the node, `resource_scrape_error` is 1."""
        for scope in _scopes(self._report):
            yield from _scope_metrics(scope)
        yield _start_times(self._report)
        failed = GaugeMetricFamily(
            "resource_scrape_error", "1 if there was an error while getting container metrics, 0 otherwise"
        )
        failed.add_metric((), int(self._report.node is None))
        yield failed


class _CAdvisor(Collector):
    """The collector of cAdvisor's metrics, which has no others if the usage is not known (None)."""

    def __init__(self, report: UsageReport | None) -> None:
        self._report = report

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family; without a usage, `container_scrape_error` is 1."""
        if self._report is not None:
            yield from _cgroup_metrics(self._report)
        failed = GaugeMetricFamily(
            "container_scrape_error", "1 if there was an error while getting container metrics, 0 otherwise"
        )
        failed.add_metric((), int(self._report is None or self._report.node is None))
        yield failed


def exposition(report: UsageReport) -> bytes:
    """Return the text of `/metrics/resource`."""
    return generate_latest(_ResourceMetrics(report))


def cadvisor_exposition(report: UsageReport | None) -> bytes:
    """Return the text of `/metrics/cadvisor`; None for a usage that is not known."""
    return generate_latest(_CAdvisor(report))


def _cgroup_metrics(report: UsageReport) -> Iterator[Metric]:
    """Yield the cpu seconds and the memory bytes of every cgroup, and the starts of containers."""
    description = "Cumulative cpu time consumed in seconds"
    cpu = CounterMetricFamily("container_cpu_usage_seconds", description, labels=(*_CGROUP, "cpu"))
    memory = GaugeMetricFamily("container_memory_working_set_bytes", "Current working set in bytes", labels=_CGROUP)
    starts = GaugeMetricFamily(
        "container_start_time_seconds", "Start time of the container since unix epoch in seconds", labels=_CGROUP
    )
    for values, (counter, amount), started in _cgroups(report):
        time = counter.time / _THOUSAND
        cpu.add_metric((*values, "total"), counter.used / _NANO, timestamp=time)
        memory.add_metric(values, amount.memory, timestamp=time)
        if started is not None:
            starts.add_metric(values, started / _THOUSAND)
    yield from (cpu, memory, starts)


def _cgroups(report: UsageReport) -> Iterator[tuple[tuple[str, ...], UsageReading, int | None]]:
    """Yield the label values and the reading of each cgroup, and the start of a container."""
    if report.node is not None:
        yield ("", "/", "", "", ""), report.node, None
    for pod in report.pods:
        running_pod = pod.pod
        cgroup, names = f"/kubepods/pod{running_pod.uid}", (running_pod.namespace, running_pod.name)
        yield ("", cgroup, "", *names), pod.reading, None
        for one in pod.containers:
            labels = (one.name, f"{cgroup}/{one.name}", running_pod.images.get(one.name, ""), *names)
            yield labels, one.reading, one.started


def _scopes(report: UsageReport) -> Iterator[_Scope]:
    yield _Scope("container", _CONTAINER, [(names, one.reading) for names, one in _containers(report)])
    yield _Scope("node", (), [((), report.node)] if report.node is not None else [])
    yield _Scope("pod", _POD, [((pod.pod.namespace, pod.pod.name), pod.reading) for pod in report.pods])


def _scope_metrics(scope: _Scope) -> Iterator[Metric]:
    """Yield the cpu seconds and the memory bytes of a scope."""
    description = f"Cumulative cpu time consumed by the {scope.name} in core-seconds"
    cpu = CounterMetricFamily(f"{scope.name}_cpu_usage_seconds", description, labels=scope.labels)
    description = f"Current working set of the {scope.name} in bytes"
    memory = GaugeMetricFamily(f"{scope.name}_memory_working_set_bytes", description, labels=scope.labels)
    for values, (counter, amount) in scope.readings:
        time = counter.time / _THOUSAND
        cpu.add_metric(values, counter.used / _NANO, timestamp=time)
        memory.add_metric(values, amount.memory, timestamp=time)
    yield from (cpu, memory)


def _start_times(report: UsageReport) -> Metric:
    description = "Start time of the container since unix epoch in seconds"
    family = GaugeMetricFamily("container_start_time_seconds", description, labels=_CONTAINER)
    for values, container in _containers(report):
        family.add_metric(values, container.started / _THOUSAND)
    return family


def _containers(report: UsageReport) -> Iterator[tuple[tuple[str, ...], ContainerReading]]:
    """Yield each container with its label values."""
    for pod in report.pods:
        yield from (((one.name, pod.pod.namespace, pod.pod.name), one) for one in pod.containers)


def summary(report: UsageReport) -> bytes:
    """Return the JSON of a stats v1alpha1 Summary."""
    node = {"nodeName": report.name, **(_stats(report.node) if report.node else {})}
    return orjson.dumps({"node": node, "pods": [_pod(pod) for pod in report.pods]})


def _pod(pod: PodReading) -> Stats:
    running_pod = pod.pod
    return {
        "podRef": {"name": running_pod.name, "namespace": running_pod.namespace, "uid": running_pod.uid},
        "startTime": None if running_pod.started is None else _time(running_pod.started),
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


def node_metrics(node: str, running_pods: Sequence[RunningPod]) -> bytes:
    """Return the part of a kubelet's `/metrics` that is about the node: its name, running pods and containers."""
    containers = sum(len(one.containers) for one in running_pods)
    lines = [
        *_gauge("kubelet_node_name", "The node's name. The count is always 1.", f'{{node="{node}"}} 1'),
        *_gauge("kubelet_running_pods", "Number of pods of which a container runs", f" {len(running_pods)}"),
        *_gauge(
            "kubelet_running_containers",
            "Number of containers that run",
            f'{{container_state="running"}} {containers}',
        ),
    ]
    return "\n".join((*lines, "")).encode()


def running_pod_list(running_pods: Sequence[RunningPod]) -> bytes:
    """Return the JSON of a v1 PodList with names, UIDs and running containers."""
    return orjson.dumps(
        {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [_running_pod(one) for one in running_pods]}
    )


def _gauge(name: str, description: str, value: str) -> tuple[str, str, str]:
    return f"# HELP {name} {description}", f"# TYPE {name} gauge", f"{name}{value}"


def _running_pod(one: RunningPod) -> Manifest:
    return {
        "metadata": {"name": one.name, "namespace": one.namespace, "uid": one.uid},
        "spec": {"containers": [{"name": name, "resources": {}} for name in one.containers]},
        "status": {},
    }


class StatsCollector:
    """The usage of one virtual node; there is one for as long as the node exists, since its counters must only grow."""

    def __init__(
        self,
        lower: LowerWorld,
        owner: Owner,
        cluster: Callable[[], Cluster | None],
        log: FilteringBoundLogger,
        *,
        limits: ConnectionLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lower = lower
        self._pods = MirroredPods(lower, owner, cluster)
        self._query = urlencode({"labelSelector": f"{OWNER}={owner.mark}"})
        self._cluster = cluster
        self._log = log
        self._limits = limits or ConnectionLimits()
        self._clock = clock
        self._counters = CPUCounters()
        self._lock = asyncio.Lock()
        self._result: UsageReport | HTTPError | None = None
        self._fresh_until = 0.0
        self._last_error = ""

    async def usage(self) -> UsageReport:
        """Return the usage of the node and its pods, at most some seconds old; raise HTTPError where it is unknown."""
        async with self._lock:
            if self._result is None or self._clock() >= self._fresh_until:
                self._result = await self._read()
                self._fresh_until = self._clock() + FRESH_SECONDS
                self._log_change(self._result)
        if isinstance(self._result, HTTPError):
            raise HTTPError(self._result.status, self._result.message)
        return self._result

    async def _read(self) -> UsageReport | HTTPError:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                most = _LARGEST + _PER_NODE * len(self._lower.nodes)
                nodes = node_samples(await self._fetch(NODE_METRICS, most))
                most = _LARGEST + _PER_POD * len(self._lower.pods)
                pods = await asyncio.to_thread(pod_samples, await self._fetch(POD_METRICS, most, self._query))
        except HTTPError as refused:
            return self._no_metrics_api() if refused.status is HTTPStatus.NOT_FOUND else refused
        except TimeoutError:
            return self._failed(HTTPStatus.GATEWAY_TIMEOUT, "no response in time")
        except (OSError, h11.RemoteProtocolError) as error:
            return self._failed(HTTPStatus.BAD_GATEWAY, str(error) or type(error).__name__)
        except (ValueError, RecursionError) as error:
            return self._failed(HTTPStatus.BAD_GATEWAY, f"invalid response: {error}")
        return usage_report(self._lower.node, total_of_nodes(nodes), await self._running_pods(), pods, self._counters)

    async def _fetch(self, kind: Kind, max_bytes: int, query: str = "") -> bytes:
        """Return the list of a metrics kind; raise HTTPError, ValueError, or an error of the connection.

        More than `max_bytes` bytes are refused: they describe pods and nodes that do not exist.
        """
        cluster = self._cluster()
        if cluster is None:
            raise self._failed(HTTPStatus.SERVICE_UNAVAILABLE, "the cluster is not connected yet")
        body = bytearray()
        request = LowerRequest(f"list {kind.name}", "GET", kind.path(), query)
        async with aclosing(LowerExchange(cluster, request, self._limits)) as exchange:
            await exchange.answer(HTTPStatus.OK)
            async for piece in exchange.pieces():
                body += piece
                if len(body) > max_bytes:
                    raise ValueError(f"more than {max_bytes:,} bytes")
        return bytes(body)

    async def _running_pods(self) -> list[RunningPod]:
        """Return the running pods; yield to the event loop at intervals, as there may be thousands."""
        found: list[RunningPod] = []
        for count, (upper, lower_pod) in enumerate(self._pods.pairs()):
            if count % _PODS_PER_STEP == 0:
                await asyncio.sleep(0)
            found.append(running_pod(upper, lower_pod))
        return found

    def _no_metrics_api(self) -> HTTPError:
        return HTTPError(
            HTTPStatus.NOT_FOUND,
            f"{self._lower.name} has no metrics API (metrics.k8s.io): install metrics-server there to measure its pods",
        )

    def _failed(self, status: HTTPStatus, reason: str) -> HTTPError:
        return HTTPError(status, f"{self._lower.name}: metrics API: {reason}")

    def _log_change(self, result: UsageReport | HTTPError) -> None:
        """Log once that usage is not available and why, and once that it is available again."""
        message = result.message if isinstance(result, HTTPError) else ""
        if message == self._last_error:
            return
        self._last_error = message
        if message:
            self._log.warning("usage of a virtual node cannot be read", node=self._lower.node, why=message)
        else:
            self._log.info("usage of a virtual node can be read again", node=self._lower.node)


async def reply_usage(caller: ServerExchange, call: APICall, meter: StatsCollector | None) -> None:
    """Answer with the usage of a node and its pods, or with the reason why it is not known.

    cAdvisor's metrics then say so themselves, as in a kubelet: its page is never missing, whatever cannot be measured.
    """
    is_cadvisor = call.rest == routes.CADVISOR
    try:
        usage = await while_connected(caller.wire, _read_usage(meter))
    except HTTPError as refused:
        if is_cadvisor:
            await caller.reply(HTTPStatus.OK, cadvisor_exposition(None), MEDIA)
            return
        await caller.reply(refused.status, f"{refused.message}\n".encode(), PLAIN, reason(refused.message))
        return
    if call.area == routes.STATS:
        await caller.reply(HTTPStatus.OK, await asyncio.to_thread(summary, usage), _JSON)
    else:
        text = await asyncio.to_thread(cadvisor_exposition if is_cadvisor else exposition, usage)
        await caller.reply(HTTPStatus.OK, text, MEDIA)


async def _read_usage(meter: StatsCollector | None) -> UsageReport:
    if meter is None:
        raise HTTPError(HTTPStatus.NOT_FOUND, "no usage of this node has been read yet")
    return await meter.usage()


def reason(message: str) -> str:
    """Return a text that is valid in a status line: printable ASCII of limited length."""
    return "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in message[:_MAX_REASON])
