"""Tests of the metrics pages and `/stats/summary` of a virtual node, with a scripted metrics API of the lower."""

import asyncio
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from kubelet_lab import (
    NODE,
    PATIENCE,
    QUICK,
    HttpHead,
    HttpStream,
    KubeletApiHarness,
    KubeletResponse,
    answering,
    request,
)
from prometheus_client.parser import text_string_to_metric_families
from worldkit import OWNER_HERE, A, add_namespace, make_lower_pod, make_upper_pod, make_world, put

from tensile.kubelet.api.requests import MirroredPods
from tensile.kubelet.stats import collector
from tensile.kubelet.stats.collector import FRESH_SECONDS, StatsCollector, reason
from tensile.objects import Manifest
from tensile.reconcile.world import LowerWorld

STARTED = {"running": {"startedAt": "2026-03-01T11:00:00Z"}}
RUNS = {"phase": "Running", "containerStatuses": [{"name": "main", "image": "app:1", "state": STARTED}]}
RESOURCE, SUMMARY = "GET /metrics/resource", "GET /stats/summary"
CADVISOR = "GET /metrics/cadvisor"
UNMEASURED = b"lower-a has no metrics API (metrics.k8s.io)"


class Metrics:
    """The metrics API of a lower with configurable nodes and pods, measured `second` seconds after noon."""

    def __init__(self) -> None:
        self.second = 0
        self.cpu = "500m"
        self.pods: list[tuple[str, str]] = [("default", "web")]
        self.heads: list[HttpHead] = []

    async def __call__(self, head: HttpHead, stream: HttpStream) -> None:
        """Answer a request."""
        self.heads.append(head)
        await answering("200 OK", orjson.dumps({"items": list(self._items(head.first))}))(head, stream)

    def _items(self, first: str) -> Iterator[Manifest]:
        at = {"timestamp": f"2026-03-01T12:{self.second // 60:02d}:{self.second % 60:02d}Z", "window": "15s"}
        usage = {"cpu": self.cpu, "memory": "20Mi"}
        if "/nodes" in first:
            yield from ({"metadata": {"name": name}, **at, "usage": usage} for name in ("n1", "n2"))
            return
        for namespace, name in self.pods:
            containers = [{"name": "main", "usage": usage}]
            yield {"metadata": {"namespace": namespace, "name": name}, **at, "containers": containers}


class StatsHarness:
    """The harness with a node whose usage can be read, and the rights on metrics and stats."""

    def __init__(self, kubelet_api: KubeletApiHarness, lower: LowerWorld) -> None:
        self.kubelet_api = kubelet_api
        self.lower = lower
        self.metrics = kubelet_api.lower.script = Metrics()
        kubelet_api.upper.permit("kube-apiserver", "get", "metrics")
        kubelet_api.upper.permit("kube-apiserver", "get", "stats")

    async def serve(self) -> None:
        """Serve the node with a new stats collector."""
        made = StatsCollector(
            self.lower,
            OWNER_HERE,
            lambda: self.kubelet_api.cluster,
            self.kubelet_api.log,
            limits=QUICK,
            clock=lambda: self.kubelet_api.time,
        )
        await self.kubelet_api.serve(meter=made)

    async def ask(self, first: str = RESOURCE) -> KubeletResponse:
        """Send a request as the apiserver."""
        return await self.kubelet_api.ask(self.kubelet_api.pki.apiserver, first)

    async def values(self) -> dict[str, float]:
        """Request the metrics, and return the first sample of each."""
        answer = await self.ask()
        assert answer.status == 200, answer
        return {name: samples[0].value for name, samples in parsed(answer.body).items()}

    def request_count(self) -> list[str]:
        """Return the paths that were requested from the lower."""
        return [head.first.split()[1] for head in self.kubelet_api.lower.heads]


@pytest.fixture
async def harness(kubelet_api: KubeletApiHarness) -> StatsHarness:
    """Serve a node with one running pod."""
    world = make_world()
    add_namespace(world)
    put(world.lowers[A].upper_pods, make_upper_pod())
    put(world.lowers[A].pods, make_lower_pod(make_upper_pod(), RUNS))
    made = StatsHarness(kubelet_api, world.lowers[A])
    await made.serve()
    return made


def parsed(text: bytes) -> dict[str, list[Any]]:
    """Parse metrics as Prometheus does."""
    found: dict[str, list[Any]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


async def test_resource_metrics_contain_the_sum_of_nodes_and_the_upper_pod(harness: StatsHarness) -> None:
    """The usage of lower nodes is summed, the pod has its upper name, and the content type has a version."""
    answer = await harness.ask()
    assert answer.status == 200
    assert answer.head.value("content-type") == "text/plain; version=0.0.4; charset=utf-8"
    found = parsed(answer.body)
    assert found["node_cpu_usage_seconds_total"][0].value == 15
    assert found["node_memory_working_set_bytes"][0].value == 40 << 20
    (pod,) = found["pod_cpu_usage_seconds_total"]
    assert (pod.labels, pod.value) == ({"namespace": "default", "pod": "web"}, 7.5)


async def test_cadvisor_metrics_are_served_with_the_container_image(harness: StatsHarness) -> None:
    """They use the same reading of the lower as the resource metrics."""
    await harness.ask()
    answer = await harness.ask(CADVISOR)
    assert answer.head.value("content-type") == "text/plain; version=0.0.4; charset=utf-8"
    _, _, container = parsed(answer.body)["container_cpu_usage_seconds_total"]
    assert (container.labels["pod"], container.labels["image"], container.value) == ("web", "app:1", 7.5)
    assert len(harness.request_count()) == 2


async def test_cadvisor_metrics_report_a_missing_metrics_api_as_a_scrape_error(harness: StatsHarness) -> None:
    """An error status would mark the node as down in Prometheus, so it answers 200."""
    harness.kubelet_api.lower.script = answering("404 Not Found", b"404 page not found\n")
    answer = await harness.ask(CADVISOR)
    assert (answer.status, parsed(answer.body)["container_scrape_error"][0].value) == (200, 1)


@pytest.mark.parametrize("page", ["probes", "slis"])
async def test_pages_without_a_source_in_the_lower_are_empty(harness: StatsHarness, page: str) -> None:
    """The page is valid for Prometheus, and the lower gets no request for it."""
    answer = await harness.ask(f"GET /metrics/{page}")
    assert (answer.status, answer.body, harness.request_count()) == (200, b"", [])
    assert answer.head.value("content-type") == "text/plain; version=0.0.4; charset=utf-8"


async def test_the_summary_is_json_with_the_upper_pods_uid(harness: StatsHarness) -> None:
    """The summary contains the CPU usage of the node and a reference to the upper pod."""
    answer = await harness.ask(SUMMARY)
    assert answer.head.value("content-type") == "application/json"
    found = orjson.loads(answer.body)
    assert found["node"]["cpu"]["usageNanoCores"] == 1_000_000_000
    assert found["pods"][0]["podRef"] == {"name": "web", "namespace": "default", "uid": "Pod-web"}


async def test_only_pods_of_this_owner_are_requested(harness: StatsHarness) -> None:
    """The request selects by the owner label, and has the lower's credential and no header of the caller's."""
    await harness.ask()
    nodes, pods = harness.metrics.heads
    assert nodes.first == "GET /front/apis/metrics.k8s.io/v1beta1/nodes HTTP/1.1"
    query = f"labelSelector=tensile-kube.io%2Fowner%3D{OWNER_HERE.mark}"
    assert pods.first == f"GET /front/apis/metrics.k8s.io/v1beta1/pods?{query} HTTP/1.1"
    assert {name for name, _ in pods.fields} == {"host", "user-agent", "authorization"}
    assert pods.value("authorization") == harness.kubelet_api.cluster.credential["Authorization"]


async def test_the_lower_gets_no_request_before_usage_is_requested(harness: StatsHarness) -> None:
    """Unauthorized requests and other routes cause no request to the metrics API."""
    await harness.kubelet_api.ask(None, RESOURCE)
    await harness.ask("GET /pods")
    assert harness.request_count() == []


async def test_usage_is_cached_for_some_seconds(harness: StatsHarness) -> None:
    """Several requests in that time cause one reading of the lower, a later one causes a new reading."""
    await asyncio.gather(*(harness.ask(each) for each in (RESOURCE, SUMMARY, RESOURCE)))
    assert len(harness.request_count()) == 2
    harness.kubelet_api.time += FRESH_SECONDS - 0.1
    await harness.ask()
    assert len(harness.request_count()) == 2
    harness.kubelet_api.time += 0.1
    await harness.ask()
    assert len(harness.request_count()) == 4


async def test_counters_continue_when_a_node_is_served_again(harness: StatsHarness) -> None:
    """After a reload of the topology the node is served with its former stats collector."""
    first = await harness.values()
    await harness.kubelet_api.serve(meter=harness.kubelet_api.endpoints[NODE].meter)
    harness.metrics.second = 60
    harness.kubelet_api.time += FRESH_SECONDS
    assert (await harness.values())["pod_cpu_usage_seconds_total"] == first["pod_cpu_usage_seconds_total"] + 30


async def test_a_lower_without_a_metrics_api_gets_404_with_the_reason(harness: StatsHarness) -> None:
    """The reason is in the body, in the status line that metrics-server logs, and once in the engine's log."""
    harness.kubelet_api.lower.script = answering("404 Not Found", b"404 page not found\n")
    for _ in range(3):
        answer = await harness.ask()
        assert answer.status == 404
        assert answer.body.startswith(UNMEASURED)
        assert answer.head.first.startswith(f"HTTP/1.1 404 {UNMEASURED.decode()}")
        assert "metrics-server" in answer.head.first
        harness.kubelet_api.time += 1
    assert len(harness.request_count()) == 1
    assert harness.kubelet_api.log.entries == [
        (
            "usage of a virtual node cannot be read",
            {"node": A, "why": answer.body.decode().strip()},
        )
    ]


async def test_a_metrics_api_that_becomes_available_is_logged(harness: StatsHarness) -> None:
    """Its usage is served with the next reading."""
    harness.kubelet_api.lower.script = answering("404 Not Found")
    await harness.ask()
    harness.kubelet_api.lower.script = harness.metrics
    harness.kubelet_api.time += FRESH_SECONDS
    assert (await harness.values())["resource_scrape_error"] == 0
    assert harness.kubelet_api.log.entries[-1] == ("usage of a virtual node can be read again", {"node": A})


FORBIDDEN = orjson.dumps({"kind": "Status", "message": 'nodes.metrics.k8s.io is forbidden: User "t" cannot list'})


@pytest.mark.parametrize(
    ("status", "body", "expected", "payload"),
    [
        ("403 Forbidden", FORBIDDEN, 403, b"cannot list"),
        ("503 Service Unavailable", b"service unavailable", 503, b"lower-a: service unavailable"),
        ("302 Found", b"", 502, b"redirect"),
        ("200 OK", b"<html>", 502, b"invalid response"),
        ("200 OK", b'{"items": [{}]}', 502, b"invalid response"),
    ],
)
async def test_a_failure_of_the_metrics_api_is_reported_with_the_lowers_name(
    harness: StatsHarness, status: str, body: bytes, expected: int, payload: bytes
) -> None:
    """The answer contains the lower's message, and the next reading works again."""
    harness.kubelet_api.lower.script = answering(status, body)
    answer = await harness.ask()
    assert (answer.status, answer.body.startswith(b"lower-a: "), payload in answer.body) == (expected, True, True)
    assert answer.body.decode().strip() in answer.head.first
    harness.kubelet_api.lower.script = harness.metrics
    harness.kubelet_api.time += FRESH_SECONDS
    assert (await harness.ask()).status == 200


async def test_a_truncated_answer_of_the_metrics_api_gets_502(harness: StatsHarness) -> None:
    """No usage is served from an incomplete answer."""

    async def half(_head: HttpHead, stream: HttpStream) -> None:
        await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")

    harness.kubelet_api.lower.script = half
    answer = await harness.ask()
    assert (answer.status, answer.body[:24]) == (502, b"lower-a: metrics API: pe")


async def test_a_metrics_api_that_does_not_answer_gets_504(harness: StatsHarness) -> None:
    """The timeout is shorter than the ten seconds for which metrics-server waits."""

    async def silent(_head: HttpHead, stream: HttpStream) -> None:
        await stream.read_to_end()

    harness.kubelet_api.lower.script = silent
    answer = await harness.ask()
    assert (answer.status, b"no response in time" in answer.body) == (504, True)
    assert collector.PATIENCE_SECONDS < 10


async def test_usage_is_unavailable_without_a_connection_or_collector(harness: StatsHarness) -> None:
    """A lower that is not connected yet is 503, a node without a stats collector is 404."""
    harness.lower.upper_pods.replace((), 2)
    unconnected = StatsCollector(
        harness.lower, OWNER_HERE, lambda: None, harness.kubelet_api.log, clock=lambda: harness.kubelet_api.time
    )
    await harness.kubelet_api.serve(meter=unconnected)
    assert (await harness.ask()).status == 503
    await harness.kubelet_api.serve()
    assert (await harness.ask()).status == 404
    assert harness.request_count() == []


async def test_a_caller_that_leaves_cancels_only_its_reading(harness: StatsHarness) -> None:
    """The request to the lower ends, and the next caller makes a new one."""
    requested = asyncio.Event()

    async def silent(_head: HttpHead, stream: HttpStream) -> None:
        requested.set()
        await stream.read_to_end()

    harness.kubelet_api.lower.script = silent
    stream = await harness.kubelet_api.connect(harness.kubelet_api.pki.apiserver)
    await stream.send(request(RESOURCE))
    await requested.wait()
    await stream.close()
    async with asyncio.timeout(PATIENCE):
        await harness.kubelet_api.lower.ended.wait()
    harness.kubelet_api.lower.script = harness.metrics
    assert (await harness.ask()).status == 200


async def test_running_pods_are_counted_without_a_request_to_the_lower(harness: StatsHarness) -> None:
    """The node's metrics contain the count, and `/runningpods/` the names."""
    harness.kubelet_api.pods.running_pods = MirroredPods(harness.lower, OWNER_HERE, lambda: None).running()
    metrics, pods = await harness.ask("GET /metrics"), await harness.ask("GET /runningpods/")
    assert parsed(metrics.body)["kubelet_running_pods"][0].value == 1
    assert [pod["metadata"]["name"] for pod in orjson.loads(pods.body)["items"]] == ["web"]
    assert harness.request_count() == []


@pytest.mark.parametrize("first", [RESOURCE, SUMMARY, CADVISOR, "GET /metrics/probes", "GET /metrics/slis"])
async def test_usage_requires_the_kubelets_rights(harness: StatsHarness, first: str) -> None:
    """Metrics require `get nodes/metrics` and the summary `get nodes/stats`; otherwise nothing is requested."""
    harness.kubelet_api.upper.rights.clear()
    harness.kubelet_api.upper.permit("kube-apiserver", "get", "proxy")
    answer = await harness.ask(first)
    assert answer.status == 403
    assert f"subresource(s)=[{'stats' if first == SUMMARY else 'metrics'}]".encode() in answer.body
    assert harness.request_count() == []


def test_a_reason_fits_into_a_status_line() -> None:
    """It has no line breaks, only ASCII, and at most 400 characters."""
    assert reason("lower-a: a\r\nb é") == "lower-a: a??b ?"
    assert len(reason("x" * 5000)) == 400
