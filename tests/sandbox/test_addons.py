"""Tests of the addons process between a scripted apiserver and a caller: its requests, and its answers."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
import pytest_asyncio
from aiohttp import web

from tensile.kubelet.stats.usage import node_samples, pod_samples
from tensile.objects import Manifest
from tensile.sandbox import addons, credentials
from tensile.sandbox.addons import AddonCluster, Provisioner
from tensile.sandbox.apiserver import LOWER_PROVISIONER
from tensile.sandbox.processes import choose
from tensile.sandbox.state import LOOPBACK, Layout, Ports

ROOT = "/apis/metrics.k8s.io/v1beta1"
FAKE = {"kwok.x-k8s.io/node": "fake"}
NODE = {"metadata": {"name": "n-1", "annotations": FAKE}, "status": {}}


def pod(name: str, node: str = "n-1") -> Manifest:
    """Return a running pod, which uses a quarter of a CPU if it is on a simulated node."""
    notes = {"sandbox.tensile-kube.io/usage-cpu": "250m"}
    meta = {"name": name, "namespace": "shop", "uid": name, "annotations": notes, "labels": {"app": name}}
    status = {"containerStatuses": [{"name": "main", "state": {"running": {}}}]}
    return {"metadata": meta, "spec": {"nodeName": node, "containers": [{"name": "main"}]}, "status": status}


class TableApiserver:
    """An apiserver that answers reads from a table and records requests; a watch gets the events that a test sends."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {
            "/api/v1/nodes": [NODE],
            "/api/v1/pods": [pod("web"), pod("db")],
            "/api/v1/namespaces/shop/pods": [pod("web"), pod("db")],
            "/api/v1/namespaces/shop/pods/web": pod("web"),
            addons.CLAIMS: [],
            addons.VOLUMES: [],
        }
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.written: asyncio.Queue[tuple[str, str, Any]] = asyncio.Queue()
        self.events: dict[str, asyncio.Queue[Manifest]] = {path: asyncio.Queue() for path in self.objects}
        self.page = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer any request."""
        if request.path == "/metrics/resource":
            return web.Response(text=self.page)
        if request.method != "GET":
            body = await request.json() if request.can_read_body else None
            self.written.put_nowait((request.method, request.path, body))
            return web.json_response({}, status=201)
        self.requests.append((request.path, dict(request.query)))
        if "watch" in request.query:
            return await self._watched(request)
        found = self.objects.get(request.path)
        if found is None:
            return web.json_response({"kind": "Status", "reason": "NotFound"}, status=404)
        body = {"items": found, "metadata": {"resourceVersion": "7"}} if isinstance(found, list) else found
        return web.json_response(body)

    async def _watched(self, request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        while True:
            await stream.write(orjson.dumps(await self.events[request.path].get()) + b"\n")


@pytest.fixture
def layout(tmp_path: Path, now: datetime) -> Layout:
    """Return the layout of a lower cluster with credentials and free ports."""
    (run,) = choose([len(Ports.__struct_fields__)])
    made = Layout(str(tmp_path), "lower-a", 1, 1, Ports(*run))
    credentials.write(made, datetime.now(now.tzinfo))
    return made


@asynccontextmanager
async def scripted(layout: Layout) -> AsyncIterator[TableApiserver]:
    """Run an apiserver at the cluster's port, with its certificate, for callers with a certificate of the cluster."""
    server = TableApiserver()
    application = web.Application()
    application.router.add_route("*", "/{rest:.*}", server.answer)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(layout.pki / "ca.crt"))
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.load_cert_chain(layout.pki / "apiserver.crt", layout.pki / "apiserver.key")
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, LOOPBACK, layout.ports.apiserver, ssl_context=tls).start()
    try:
        yield server
    finally:
        await runner.cleanup()


@pytest_asyncio.fixture
async def server(layout: Layout) -> AsyncIterator[TableApiserver]:
    """The scripted apiserver, which runs as long as the test does."""
    async with scripted(layout) as running:
        yield running


@pytest_asyncio.fixture
async def cluster(layout: Layout, server: TableApiserver) -> AsyncIterator[AddonCluster]:
    """The cluster as the addons access it, with its nodes read."""
    async with AddonCluster(layout) as opened:
        await opened.read_kubelets()
        server.requests.clear()
        yield opened


@pytest_asyncio.fixture
async def served(cluster: AddonCluster) -> AsyncIterator[aiohttp.ClientSession]:
    """Serve the metrics API, and return a session of a caller with the front proxy's certificate."""
    runner = await addons.serve(cluster)
    try:
        async with aiohttp.ClientSession(connector=connector(cluster.layout, "front-proxy")) as session:
            yield session
    finally:
        await runner.cleanup()


def connector(layout: Layout, credential: str) -> aiohttp.TCPConnector:
    """Return a connector with that client certificate that checks the Service's name as the apiserver does."""
    tls = ssl.create_default_context(cafile=str(layout.pki / "ca.crt"))
    tls.load_cert_chain(layout.pki / f"{credential}.crt", layout.pki / f"{credential}.key")
    return aiohttp.TCPConnector(ssl=tls)


async def read(session: aiohttp.ClientSession, layout: Layout, path: str, status: int = 200) -> bytes:
    """Return the body of a page of the metrics API, after a check of its status."""
    name = f"{credentials.METRICS_SERVICE}.{credentials.METRICS_NAMESPACE}.svc"
    url = f"https://{LOOPBACK}:{layout.ports.addons}{path}"
    async with session.get(url, server_hostname=name) as answer:
        body = await answer.read()
        assert answer.status == status, body
        return body


async def test_pod_metrics_cover_the_pods_that_the_apiserver_selects(
    served: aiohttp.ClientSession, server: TableApiserver, layout: Layout
) -> None:
    """The query is forwarded unchanged, and the answer has the usage of every pod that the apiserver returns."""
    body = await read(served, layout, f"{ROOT}/namespaces/shop/pods?labelSelector=app%20in%20(web%2Cdb)&limit=500")
    assert server.requests == [("/api/v1/namespaces/shop/pods", {"labelSelector": "app in (web,db)", "limit": "500"})]
    samples = pod_samples(body)
    assert {place: sample.containers["main"].cpu for place, sample in samples.items()} == {
        ("shop", "web"): 250_000_000,
        ("shop", "db"): 250_000_000,
    }
    assert orjson.loads(body)["items"][0]["metadata"]["labels"] == {"app": "web"}


async def test_metrics_of_one_pod_are_returned_as_an_object(served: aiohttp.ClientSession, layout: Layout) -> None:
    """The metrics of a pod that is named in the path are an object of kind PodMetrics and not a list."""
    found = orjson.loads(await read(served, layout, f"{ROOT}/namespaces/shop/pods/web"))
    assert (found["kind"], found["metadata"]["name"]) == ("PodMetrics", "web")


async def test_metrics_of_a_missing_pod_get_404(served: aiohttp.ClientSession, layout: Layout) -> None:
    """The answer has the body of the apiserver's own answer."""
    found = orjson.loads(await read(served, layout, f"{ROOT}/namespaces/shop/pods/gone", 404))
    assert found == {"kind": "Status", "reason": "NotFound"}


async def test_a_node_uses_more_than_the_sum_of_its_pods(served: aiohttp.ClientSession, layout: Layout) -> None:
    """The usage of a node is the usage of its pods and some usage of its own."""
    (sample,) = node_samples(await read(served, layout, f"{ROOT}/nodes"))
    assert 500_000_000 < sample.used.cpu < 1_000_000_000


async def test_the_metrics_api_serves_discovery_and_health(served: aiohttp.ClientSession, layout: Layout) -> None:
    """The apiserver and the sandbox request these paths; other paths do not exist, as discovery expects."""
    assert orjson.loads(await read(served, layout, ROOT))["kind"] == "APIResourceList"
    assert await read(served, layout, "/healthz") == b"ok"
    await read(served, layout, "/apis", 404)


async def test_the_metrics_api_accepts_only_the_front_proxy(served: aiohttp.ClientSession, layout: Layout) -> None:
    """Even an administrator is refused, because no apiserver would have authorized the request."""
    assert await read(served, layout, "/healthz") == b"ok"
    async with aiohttp.ClientSession(connector=connector(layout, "admin")) as session:
        with pytest.raises(aiohttp.ClientError):
            await read(session, layout, "/healthz")


async def test_metrics_get_503_if_the_apiserver_does_not_answer(layout: Layout) -> None:
    """The answer reports that the apiserver does not answer, and contains no invented usage."""
    async with AddonCluster(layout) as cluster:
        runner = await addons.serve(cluster)
        try:
            async with aiohttp.ClientSession(connector=connector(layout, "front-proxy")) as session:
                body = await read(session, layout, f"{ROOT}/nodes", 503)
        finally:
            await runner.cleanup()
    assert body.startswith(b"the apiserver does not answer: ")


async def test_kubelets_are_read_at_the_address_of_their_node(
    served: aiohttp.ClientSession, cluster: AddonCluster, server: TableApiserver, layout: Layout
) -> None:
    """Usage of a virtual node and its pods needs two readings; until then they are absent, and other pods are not."""
    addresses = [{"type": "InternalIP", "address": LOOPBACK}]
    endpoint = {"kubeletEndpoint": {"Port": layout.ports.apiserver}}
    virtual = {"metadata": {"name": "v"}, "status": {"addresses": addresses, "daemonEndpoints": endpoint}}
    server.objects["/api/v1/nodes"] = [NODE, virtual]
    server.objects["/api/v1/pods"] = [pod("web"), pod("far", "v")]
    for seconds in (1, 3):
        assert set(pod_samples(await read(served, layout, f"{ROOT}/pods"))) == {("shop", "web")}
        labels = '{container="main",namespace="shop",pod="far"}'
        server.page = "".join(
            f"{line} {seconds}.0 {seconds}000\n"
            for line in ("node_cpu_usage_seconds_total", f"container_cpu_usage_seconds_total{labels}")
        )
        await cluster.read_kubelets()
    samples = pod_samples(await read(served, layout, f"{ROOT}/pods"))
    assert samples[("shop", "far")].containers["main"].cpu == 1_000_000_000
    assert len(node_samples(await read(served, layout, f"{ROOT}/nodes"))) == 2


async def test_volumes_are_created_and_deleted(cluster: AddonCluster, server: TableApiserver, layout: Layout) -> None:
    """On watch events the provisioner creates the volume of a new claim, and deletes a released volume."""
    notes = {addons.STORAGE_PROVISIONER: LOWER_PROVISIONER, addons.SELECTED_NODE: "n-1"}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    meta = {"name": "data", "namespace": "shop", "uid": "u", "annotations": notes}
    task = asyncio.create_task(Provisioner(cluster).run())
    try:
        server.events[addons.CLAIMS].put_nowait({"type": "ADDED", "object": {"metadata": meta, "spec": spec}})
        method, path, body = await server.written.get()
        assert (method, path, body["metadata"]["name"]) == ("POST", addons.VOLUMES, "pvc-u")
        assert body["spec"]["hostPath"]["path"] == str(layout.directory / "volumes" / "pvc-u")
        released = {**body, "metadata": {**body["metadata"], "uid": "v"}, "status": {"phase": "Released"}}
        server.events[addons.VOLUMES].put_nowait({"type": "ADDED", "object": released})
        assert (await server.written.get())[:2] == ("DELETE", f"{addons.VOLUMES}/pvc-u")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
