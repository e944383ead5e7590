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
from tensile.kubelet.api.http import PLAIN, LowerExchange, ServerExchange, while_present
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
    picture,
    pod_samples,
    runner,
    whole,
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
_AT_ONCE = 100
_JSON = "application/json"
_REASON_AT_MOST = 400


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
        self._ledger = CPUCounters()
        self._asking = asyncio.Lock()
        self._known: UsageReport | HTTPError | None = None
        self._until = 0.0
        self._said = ""

    async def picture(self) -> UsageReport:
        """Return the usage of the node and its pods, at most some seconds old; raise HTTPError where it is unknown."""
        async with self._asking:
            if self._known is None or self._clock() >= self._until:
                self._known = await self._measured()
                self._until = self._clock() + FRESH_SECONDS
                self._tell(self._known)
        if isinstance(self._known, HTTPError):
            raise HTTPError(self._known.status, self._known.message)
        return self._known

    async def _measured(self) -> UsageReport | HTTPError:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                most = _LARGEST + _PER_NODE * len(self._lower.nodes)
                nodes = node_samples(await self._asked(NODE_METRICS, most))
                most = _LARGEST + _PER_POD * len(self._lower.pods)
                pods = await asyncio.to_thread(pod_samples, await self._asked(POD_METRICS, most, self._query))
        except HTTPError as refused:
            return self._absent() if refused.status is HTTPStatus.NOT_FOUND else refused
        except TimeoutError:
            return self._failed(HTTPStatus.GATEWAY_TIMEOUT, "no response in time")
        except (OSError, h11.RemoteProtocolError) as error:
            return self._failed(HTTPStatus.BAD_GATEWAY, str(error) or type(error).__name__)
        except (ValueError, RecursionError) as error:
            return self._failed(HTTPStatus.BAD_GATEWAY, f"invalid response: {error}")
        return picture(self._lower.node, whole(nodes), await self._runners(), pods, self._ledger)

    async def _asked(self, kind: Kind, most: int, query: str = "") -> bytes:
        """Return the list of a metrics kind; raise HTTPError, ValueError, or an error of the connection.

        More than `most` bytes are refused: they describe pods and nodes that do not exist.
        """
        cluster = self._cluster()
        if cluster is None:
            raise self._failed(HTTPStatus.SERVICE_UNAVAILABLE, "the cluster is not connected yet")
        body = bytearray()
        ask = LowerRequest(f"list {kind.name}", "GET", kind.path(), query)
        async with aclosing(LowerExchange(cluster, ask, self._limits)) as call:
            await call.answer(HTTPStatus.OK)
            async for piece in call.pieces():
                body += piece
                if len(body) > most:
                    raise ValueError(f"more than {most:,} bytes")
        return bytes(body)

    async def _runners(self) -> list[RunningPod]:
        """Return the running pods; yield to the event loop at intervals, as there may be thousands."""
        found: list[RunningPod] = []
        for count, (upper, below) in enumerate(self._pods.pairs()):
            if count % _AT_ONCE == 0:
                await asyncio.sleep(0)
            found.append(runner(upper, below))
        return found

    def _absent(self) -> HTTPError:
        return HTTPError(
            HTTPStatus.NOT_FOUND,
            f"{self._lower.name} has no metrics API (metrics.k8s.io): install metrics-server there to measure its pods",
        )

    def _failed(self, status: HTTPStatus, why: str) -> HTTPError:
        return HTTPError(status, f"{self._lower.name}: metrics API: {why}")

    def _tell(self, known: UsageReport | HTTPError) -> None:
        """Log once that usage is not available and why, and once that it is available again."""
        words = known.message if isinstance(known, HTTPError) else ""
        if words == self._said:
            return
        self._said = words
        if words:
            self._log.warning("usage of a virtual node cannot be read", node=self._lower.node, why=words)
        else:
            self._log.info("usage of a virtual node can be read again", node=self._lower.node)


async def show(caller: ServerExchange, call: APICall, meter: StatsCollector | None) -> None:
    """Answer with the usage of a node and its pods, or with the reason why it is not known.

    cAdvisor's metrics then say so themselves, as in a kubelet: its page is never missing, whatever cannot be measured.
    """
    is_cadvisor = call.rest == routes.CADVISOR
    try:
        found = await while_present(caller.wire, _picture(meter))
    except HTTPError as refused:
        if is_cadvisor:
            await caller.reply(HTTPStatus.OK, cadvisor_exposition(None), MEDIA)
            return
        await caller.reply(refused.status, f"{refused.message}\n".encode(), PLAIN, reason(refused.message))
        return
    if call.area == routes.STATS:
        await caller.reply(HTTPStatus.OK, await asyncio.to_thread(summary, found), _JSON)
    else:
        text = await asyncio.to_thread(cadvisor_exposition if is_cadvisor else exposition, found)
        await caller.reply(HTTPStatus.OK, text, MEDIA)


async def _picture(meter: StatsCollector | None) -> UsageReport:
    if meter is None:
        raise HTTPError(HTTPStatus.NOT_FOUND, "no usage of this node has been read yet")
    return await meter.picture()


def reason(message: str) -> str:
    """Return a text that is valid in a status line: printable ASCII of limited length."""
    return "".join(letter if letter.isascii() and letter.isprintable() else "?" for letter in message[:_REASON_AT_MOST])
