"""`/metrics/resource` and `/stats/summary` of a virtual node, before a lower whose metrics API does as it is told."""

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
    """The metrics API of a lower: nodes and pods as they are set, measured `second` seconds after noon."""

    def __init__(self) -> None:
        self.second = 0
        self.cpu = "500m"
        self.pods: list[tuple[str, str]] = [("default", "web")]
        self.heads: list[Head] = []

    async def __call__(self, head: Head, stream: Stream) -> None:
        """Answer."""
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
    """The lab with a node that can be measured, and rights for whoever reads metrics and stats."""

    def __init__(self, lab: Lab, lower: LowerWorld) -> None:
        self.lab = lab
        self.lower = lower
        self.metrics = lab.lower.script = Metrics()
        lab.upper.permit("kube-apiserver", "get", "metrics")
        lab.upper.permit("kube-apiserver", "get", "stats")

    async def serve(self) -> None:
        """Serve the node's usage from now on."""
        made = StatsCollector(
            self.lower, OWNER_HERE, lambda: self.lab.cluster, self.lab.log, limits=QUICK, clock=lambda: self.lab.time
        )
        await self.lab.serve(meter=made)

    async def ask(self, first: str = RESOURCE) -> Answer:
        """Ask as the apiserver."""
        return await self.lab.ask(self.lab.pki.apiserver, first)

    async def values(self) -> dict[str, float]:
        """Ask for the metrics, and give the first sample of each."""
        answer = await self.ask()
        assert answer.status == 200, answer
        return {name: samples[0].value for name, samples in parsed(answer.body).items()}

    def asked(self) -> list[str]:
        """Return what the lower was asked for."""
        return [head.first.split()[1] for head in self.lab.lower.heads]


@pytest.fixture
async def scene(lab: Lab) -> Scene:
    """A node with one pod that runs."""
    here = world()
    home(here)
    put(here.lowers[A].upper_pods, upper_pod())
    put(here.lowers[A].pods, twin(upper_pod(), RUNS))
    made = Scene(lab, here.lowers[A])
    await made.serve()
    return made


def parsed(text: bytes) -> dict[str, list[Any]]:
    """Parse as Prometheus does."""
    found: dict[str, list[Any]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


async def test_resource_metrics_are_told(scene: Scene) -> None:
    """Nodes summed, and the pod under its upper name, as text that says its version."""
    answer = await scene.ask()
    assert answer.status == 200
    assert answer.head.value("content-type") == "text/plain; version=0.0.4; charset=utf-8"
    found = parsed(answer.body)
    assert found["node_cpu_usage_seconds_total"][0].value == 15
    assert found["node_memory_working_set_bytes"][0].value == 40 << 20
    (pod,) = found["pod_cpu_usage_seconds_total"]
    assert (pod.labels, pod.value) == ({"namespace": "default", "pod": "web"}, 7.5)


async def test_cadvisor_metrics_are_told(scene: Scene) -> None:
    """From the same look, with the image of the container."""
    await scene.ask()
    answer = await scene.ask(CADVISOR)
    assert answer.head.value("content-type") == "text/plain; version=0.0.4; charset=utf-8"
    _, _, container = parsed(answer.body)["container_cpu_usage_seconds_total"]
    assert (container.labels["pod"], container.labels["image"], container.value) == ("web", "app:1", 7.5)
    assert len(scene.asked()) == 2


async def test_cadvisor_is_there_whatever_is_missing(scene: Scene) -> None:
    """Its reader would call the node down; the metric for it says that nothing was measured."""
    scene.lab.lower.script = answering("404 Not Found", b"404 page not found\n")
    answer = await scene.ask(CADVISOR)
    assert (answer.status, parsed(answer.body)["container_scrape_error"][0].value) == (200, 1)


@pytest.mark.parametrize("page", ["probes", "slis"])
async def test_what_no_lower_tells_is_empty(scene: Scene, page: str) -> None:
    """It is a page that Prometheus takes, and nothing is asked below for it."""
    answer = await scene.ask(f"GET /metrics/{page}")
    assert (answer.status, answer.body, scene.asked()) == (200, b"", [])
    assert answer.head.value("content-type") == "text/plain; version=0.0.4; charset=utf-8"


async def test_the_summary_is_told(scene: Scene) -> None:
    """As JSON, with the upper pod's UID."""
    answer = await scene.ask(SUMMARY)
    assert answer.head.value("content-type") == "application/json"
    found = orjson.loads(answer.body)
    assert found["node"]["cpu"]["usageNanoCores"] == 1_000_000_000
    assert found["pods"][0]["podRef"] == {"name": "web", "namespace": "default", "uid": "Pod-web"}


async def test_only_our_pods_are_asked_for(scene: Scene) -> None:
    """By the owner's label, with the lower's credential and nothing of the caller's."""
    await scene.ask()
    nodes, pods = scene.metrics.heads
    assert nodes.first == "GET /front/apis/metrics.k8s.io/v1beta1/nodes HTTP/1.1"
    query = f"labelSelector=tensile-kube.io%2Fowner%3D{OWNER_HERE.mark}"
    assert pods.first == f"GET /front/apis/metrics.k8s.io/v1beta1/pods?{query} HTTP/1.1"
    assert {name for name, _ in pods.fields} == {"host", "user-agent", "authorization"}
    assert pods.value("authorization") == scene.lab.cluster.credential["Authorization"]


async def test_nobody_asks_below_before_somebody_asks_here(scene: Scene) -> None:
    """A node that nobody measures costs its cluster nothing; nor do callers that may not, or other routes."""
    await scene.lab.ask(None, RESOURCE)
    await scene.ask("GET /pods")
    assert scene.asked() == []


async def test_answers_hold_for_some_seconds(scene: Scene) -> None:
    """Two readers in a moment cost one look; a later one gets what is new."""
    await asyncio.gather(*(scene.ask(each) for each in (RESOURCE, SUMMARY, RESOURCE)))
    assert len(scene.asked()) == 2
    scene.lab.time += FRESH_SECONDS - 0.1
    await scene.ask()
    assert len(scene.asked()) == 2
    scene.lab.time += 0.1
    await scene.ask()
    assert len(scene.asked()) == 4


async def test_counters_go_on_when_a_node_is_served_anew(scene: Scene) -> None:
    """A topology that is reloaded serves its nodes again, with the meter that they had."""
    first = await scene.values()
    await scene.lab.serve(meter=scene.lab.seats[NODE].meter)
    scene.metrics.second = 60
    scene.lab.time += FRESH_SECONDS
    assert (await scene.values())["pod_cpu_usage_seconds_total"] == first["pod_cpu_usage_seconds_total"] + 30


async def test_a_lower_without_a_metrics_api_says_so(scene: Scene) -> None:
    """In the body, in the status line that metrics-server logs, and in our log, once; nothing is asked for twice."""
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


async def test_a_metrics_api_that_comes_is_noted(scene: Scene) -> None:
    """And its figures are told at once."""
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
async def test_a_metrics_api_that_fails_is_told(
    scene: Scene, status: str, body: bytes, expected: int, words: bytes
) -> None:
    """With its cluster and what it said, and the next look finds it well again."""
    scene.lab.lower.script = answering(status, body)
    answer = await scene.ask()
    assert (answer.status, answer.body.startswith(b"lower-a: "), words in answer.body) == (expected, True, True)
    assert answer.body.decode().strip() in answer.head.first
    scene.lab.lower.script = scene.metrics
    scene.lab.time += FRESH_SECONDS
    assert (await scene.ask()).status == 200


async def test_an_answer_that_breaks_off_is_told(scene: Scene) -> None:
    """Half of the figures are none."""

    async def half(_head: Head, stream: Stream) -> None:
        await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")

    scene.lab.lower.script = half
    answer = await scene.ask()
    assert (answer.status, answer.body[:24]) == (502, b"lower-a: metrics API: pe")


async def test_an_answer_that_does_not_come_is_told(scene: Scene) -> None:
    """In time for whoever asks: metrics-server waits ten seconds."""

    async def silent(_head: Head, stream: Stream) -> None:
        await stream.to_end()

    scene.lab.lower.script = silent
    answer = await scene.ask()
    assert (answer.status, b"no response in time" in answer.body) == (504, True)
    assert collector.PATIENCE_SECONDS < 10


async def test_without_a_connection_there_are_no_figures(scene: Scene) -> None:
    """A cluster that has not been reached yet is said; a node of which nothing is known, too."""
    scene.lower.upper_pods.replace((), 2)
    unconnected = StatsCollector(scene.lower, OWNER_HERE, lambda: None, scene.lab.log, clock=lambda: scene.lab.time)
    await scene.lab.serve(meter=unconnected)
    assert (await scene.ask()).status == 503
    await scene.lab.serve()
    assert (await scene.ask()).status == 404
    assert scene.asked() == []


async def test_a_caller_that_leaves_spoils_nothing(scene: Scene) -> None:
    """Its look at the lower ends, and the next caller makes one of its own."""
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


async def test_a_node_counts_what_runs(scene: Scene) -> None:
    """In its own metrics and by name, without a look at the lower cluster."""
    scene.lab.pods.runners = MirroredPods(scene.lower, OWNER_HERE, lambda: None).running()
    metrics, pods = await scene.ask("GET /metrics"), await scene.ask("GET /runningpods/")
    assert parsed(metrics.body)["kubelet_running_pods"][0].value == 1
    assert [pod["metadata"]["name"] for pod in orjson.loads(pods.body)["items"]] == ["web"]
    assert scene.asked() == []


@pytest.mark.parametrize("first", [RESOURCE, SUMMARY, CADVISOR, "GET /metrics/probes", "GET /metrics/slis"])
async def test_figures_take_the_kubelets_rights(scene: Scene, first: str) -> None:
    """`get nodes/metrics` for the one and `get nodes/stats` for the other; without, nothing is asked below."""
    scene.lab.upper.rights.clear()
    scene.lab.upper.permit("kube-apiserver", "get", "proxy")
    answer = await scene.ask(first)
    assert answer.status == 403
    assert f"subresource(s)=[{'stats' if first == SUMMARY else 'metrics'}]".encode() in answer.body
    assert scene.asked() == []


def test_a_reason_fits_a_status_line() -> None:
    """No line breaks, nothing but ASCII, and no more than a log line can bear."""
    assert reason("lower-a: a\r\nb é") == "lower-a: a??b ?"
    assert len(reason("x" * 5000)) == 400
