"""Tests of the metrics pages and `/stats/summary` of a virtual node, with a scripted metrics API of the lower."""

import asyncio
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from kubelet_lab import NODE, PATIENCE, QUICK, Answer, Head, Lab, Stream, answering, request
from prometheus_client.parser import text_string_to_metric_families
from worldkit import OWNER_HERE, A, home, put, twin, upper_pod, world

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
        self.heads: list[Head] = []

    async def __call__(self, head: Head, stream: Stream) -> None:
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


class Scene:
    """The lab with a node whose usage can be read, and the rights on metrics and stats."""

    def __init__(self, lab: Lab, lower: LowerWorld) -> None:
        self.lab = lab
        self.lower = lower
        self.metrics = lab.lower.script = Metrics()
        lab.upper.permit("kube-apiserver", "get", "metrics")
        lab.upper.permit("kube-apiserver", "get", "stats")

    async def serve(self) -> None:
        """Serve the node with a new stats collector."""
        made = StatsCollector(
            self.lower, OWNER_HERE, lambda: self.lab.cluster, self.lab.log, limits=QUICK, clock=lambda: self.lab.time
        )
        await self.lab.serve(meter=made)

    async def ask(self, first: str = RESOURCE) -> Answer:
        """Send a request as the apiserver."""
        return await self.lab.ask(self.lab.pki.apiserver, first)

    async def values(self) -> dict[str, float]:
        """Request the metrics, and return the first sample of each."""
        answer = await self.ask()
        assert answer.status == 200, answer
        return {name: samples[0].value for name, samples in parsed(answer.body).items()}

    def asked(self) -> list[str]:
        """Return the paths that were requested from the lower."""
        return [head.first.split()[1] for head in self.lab.lower.heads]


@pytest.fixture
async def scene(lab: Lab) -> Scene:
    """Serve a node with one running pod."""
    here = world()
    home(here)
    put(here.lowers[A].upper_pods, upper_pod())
    put(here.lowers[A].pods, twin(upper_pod(), RUNS))
    made = Scene(lab, here.lowers[A])
    await made.serve()
    return made


def parsed(text: bytes) -> dict[str, list[Any]]:
    """Parse metrics as Prometheus does."""
    found: dict[str, list[Any]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


async def test_resource_metrics_contain_the_sum_of_nodes_and_the_upper_pod(scene: Scene) -> None:
    """The usage of lower nodes is summed, the pod has its upper name, and the content type has a version."""
    answer = await scene.ask()
    assert answer.status == 200
    assert answer.head.value("content-type") == "text/plain; version=0.0.4; charset=utf-8"
    found = parsed(answer.body)
    assert found["node_cpu_usage_seconds_total"][0].value == 15
    assert found["node_memory_working_set_bytes"][0].value == 40 << 20
    (pod,) = found["pod_cpu_usage_seconds_total"]
    assert (pod.labels, pod.value) == ({"namespace": "default", "pod": "web"}, 7.5)


async def test_cadvisor_metrics_are_served_with_the_container_image(scene: Scene) -> None:
    """They use the same reading of the lower as the resource metrics."""
    await scene.ask()
    answer = await scene.ask(CADVISOR)
    assert answer.head.value("content-type") == "text/plain; version=0.0.4; charset=utf-8"
    _, _, container = parsed(answer.body)["container_cpu_usage_seconds_total"]
    assert (container.labels["pod"], container.labels["image"], container.value) == ("web", "app:1", 7.5)
    assert len(scene.asked()) == 2


async def test_cadvisor_metrics_report_a_missing_metrics_api_as_a_scrape_error(scene: Scene) -> None:
    """An error status would mark the node as down in Prometheus, so it answers 200."""
    scene.lab.lower.script = answering("404 Not Found", b"404 page not found\n")
    answer = await scene.ask(CADVISOR)
    assert (answer.status, parsed(answer.body)["container_scrape_error"][0].value) == (200, 1)


@pytest.mark.parametrize("page", ["probes", "slis"])
async def test_pages_without_a_source_in_the_lower_are_empty(scene: Scene, page: str) -> None:
    """The page is valid for Prometheus, and the lower gets no request for it."""
    answer = await scene.ask(f"GET /metrics/{page}")
    assert (answer.status, answer.body, scene.asked()) == (200, b"", [])
    assert answer.head.value("content-type") == "text/plain; version=0.0.4; charset=utf-8"


async def test_the_summary_is_json_with_the_upper_pods_uid(scene: Scene) -> None:
    """The summary contains the CPU usage of the node and a reference to the upper pod."""
    answer = await scene.ask(SUMMARY)
    assert answer.head.value("content-type") == "application/json"
    found = orjson.loads(answer.body)
    assert found["node"]["cpu"]["usageNanoCores"] == 1_000_000_000
    assert found["pods"][0]["podRef"] == {"name": "web", "namespace": "default", "uid": "Pod-web"}


async def test_only_pods_of_this_owner_are_requested(scene: Scene) -> None:
    """The request selects by the owner label, and has the lower's credential and no header of the caller's."""
    await scene.ask()
    nodes, pods = scene.metrics.heads
    assert nodes.first == "GET /front/apis/metrics.k8s.io/v1beta1/nodes HTTP/1.1"
    query = f"labelSelector=tensile-kube.io%2Fowner%3D{OWNER_HERE.mark}"
    assert pods.first == f"GET /front/apis/metrics.k8s.io/v1beta1/pods?{query} HTTP/1.1"
    assert {name for name, _ in pods.fields} == {"host", "user-agent", "authorization"}
    assert pods.value("authorization") == scene.lab.cluster.credential["Authorization"]


async def test_the_lower_gets_no_request_before_usage_is_requested(scene: Scene) -> None:
    """Unauthorized requests and other routes cause no request to the metrics API."""
    await scene.lab.ask(None, RESOURCE)
    await scene.ask("GET /pods")
    assert scene.asked() == []


async def test_usage_is_cached_for_some_seconds(scene: Scene) -> None:
    """Several requests in that time cause one reading of the lower, a later one causes a new reading."""
    await asyncio.gather(*(scene.ask(each) for each in (RESOURCE, SUMMARY, RESOURCE)))
    assert len(scene.asked()) == 2
    scene.lab.time += FRESH_SECONDS - 0.1
    await scene.ask()
    assert len(scene.asked()) == 2
    scene.lab.time += 0.1
    await scene.ask()
    assert len(scene.asked()) == 4


async def test_counters_continue_when_a_node_is_served_again(scene: Scene) -> None:
    """After a reload of the topology the node is served with its former stats collector."""
    first = await scene.values()
    await scene.lab.serve(meter=scene.lab.seats[NODE].meter)
    scene.metrics.second = 60
    scene.lab.time += FRESH_SECONDS
    assert (await scene.values())["pod_cpu_usage_seconds_total"] == first["pod_cpu_usage_seconds_total"] + 30


async def test_a_lower_without_a_metrics_api_gets_404_with_the_reason(scene: Scene) -> None:
    """The reason is in the body, in the status line that metrics-server logs, and once in the engine's log."""
    scene.lab.lower.script = answering("404 Not Found", b"404 page not found\n")
    for _ in range(3):
        answer = await scene.ask()
        assert answer.status == 404
        assert answer.body.startswith(UNMEASURED)
        assert answer.head.first.startswith(f"HTTP/1.1 404 {UNMEASURED.decode()}")
        assert "metrics-server" in answer.head.first
        scene.lab.time += 1
    assert len(scene.asked()) == 1
    assert scene.lab.log.entries == [
        (
            "usage of a virtual node cannot be read",
            {"node": A, "why": answer.body.decode().strip()},
        )
    ]


async def test_a_metrics_api_that_becomes_available_is_logged(scene: Scene) -> None:
    """Its usage is served with the next reading."""
    scene.lab.lower.script = answering("404 Not Found")
    await scene.ask()
    scene.lab.lower.script = scene.metrics
    scene.lab.time += FRESH_SECONDS
    assert (await scene.values())["resource_scrape_error"] == 0
    assert scene.lab.log.entries[-1] == ("usage of a virtual node can be read again", {"node": A})


FORBIDDEN = orjson.dumps({"kind": "Status", "message": 'nodes.metrics.k8s.io is forbidden: User "t" cannot list'})


@pytest.mark.parametrize(
    ("status", "body", "expected", "words"),
    [
        ("403 Forbidden", FORBIDDEN, 403, b"cannot list"),
        ("503 Service Unavailable", b"service unavailable", 503, b"lower-a: service unavailable"),
        ("302 Found", b"", 502, b"redirect"),
        ("200 OK", b"<html>", 502, b"invalid response"),
        ("200 OK", b'{"items": [{}]}', 502, b"invalid response"),
    ],
)
async def test_a_failure_of_the_metrics_api_is_reported_with_the_lowers_name(
    scene: Scene, status: str, body: bytes, expected: int, words: bytes
) -> None:
    """The answer contains the lower's message, and the next reading works again."""
    scene.lab.lower.script = answering(status, body)
    answer = await scene.ask()
    assert (answer.status, answer.body.startswith(b"lower-a: "), words in answer.body) == (expected, True, True)
    assert answer.body.decode().strip() in answer.head.first
    scene.lab.lower.script = scene.metrics
    scene.lab.time += FRESH_SECONDS
    assert (await scene.ask()).status == 200


async def test_a_truncated_answer_of_the_metrics_api_gets_502(scene: Scene) -> None:
    """No usage is served from an incomplete answer."""

    async def half(_head: Head, stream: Stream) -> None:
        await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")

    scene.lab.lower.script = half
    answer = await scene.ask()
    assert (answer.status, answer.body[:24]) == (502, b"lower-a: metrics API: pe")


async def test_a_metrics_api_that_does_not_answer_gets_504(scene: Scene) -> None:
    """The timeout is shorter than the ten seconds for which metrics-server waits."""

    async def silent(_head: Head, stream: Stream) -> None:
        await stream.to_end()

    scene.lab.lower.script = silent
    answer = await scene.ask()
    assert (answer.status, b"no response in time" in answer.body) == (504, True)
    assert collector.PATIENCE_SECONDS < 10


async def test_usage_is_unavailable_without_a_connection_or_collector(scene: Scene) -> None:
    """A lower that is not connected yet is 503, a node without a stats collector is 404."""
    scene.lower.upper_pods.replace((), 2)
    unconnected = StatsCollector(scene.lower, OWNER_HERE, lambda: None, scene.lab.log, clock=lambda: scene.lab.time)
    await scene.lab.serve(meter=unconnected)
    assert (await scene.ask()).status == 503
    await scene.lab.serve()
    assert (await scene.ask()).status == 404
    assert scene.asked() == []


async def test_a_caller_that_leaves_cancels_only_its_reading(scene: Scene) -> None:
    """The request to the lower ends, and the next caller makes a new one."""
    asked = asyncio.Event()

    async def silent(_head: Head, stream: Stream) -> None:
        asked.set()
        await stream.to_end()

    scene.lab.lower.script = silent
    stream = await scene.lab.connect(scene.lab.pki.apiserver)
    await stream.send(request(RESOURCE))
    await asked.wait()
    await stream.close()
    async with asyncio.timeout(PATIENCE):
        await scene.lab.lower.ended.wait()
    scene.lab.lower.script = scene.metrics
    assert (await scene.ask()).status == 200


async def test_running_pods_are_counted_without_a_request_to_the_lower(scene: Scene) -> None:
    """The node's metrics contain the count, and `/runningpods/` the names."""
    scene.lab.pods.runners = MirroredPods(scene.lower, OWNER_HERE, lambda: None).running()
    metrics, pods = await scene.ask("GET /metrics"), await scene.ask("GET /runningpods/")
    assert parsed(metrics.body)["kubelet_running_pods"][0].value == 1
    assert [pod["metadata"]["name"] for pod in orjson.loads(pods.body)["items"]] == ["web"]
    assert scene.asked() == []


@pytest.mark.parametrize("first", [RESOURCE, SUMMARY, CADVISOR, "GET /metrics/probes", "GET /metrics/slis"])
async def test_usage_requires_the_kubelets_rights(scene: Scene, first: str) -> None:
    """Metrics require `get nodes/metrics` and the summary `get nodes/stats`; otherwise nothing is requested."""
    scene.lab.upper.rights.clear()
    scene.lab.upper.permit("kube-apiserver", "get", "proxy")
    answer = await scene.ask(first)
    assert answer.status == 403
    assert f"subresource(s)=[{'stats' if first == SUMMARY else 'metrics'}]".encode() in answer.body
    assert scene.asked() == []


def test_a_reason_fits_into_a_status_line() -> None:
    """It has no line breaks, only ASCII, and at most 400 characters."""
    assert reason("lower-a: a\r\nb é") == "lower-a: a??b ?"
    assert len(reason("x" * 5000)) == 400
