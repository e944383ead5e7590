"""Tests of rights that other tests do not need: streams, certificates, tokens of callers, and metrics.

They run on clusters of their own, because a metrics API is created in a lower cluster.
"""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest
import pytest_asyncio
from enginekit import A, EngineHarness
from sitekit import LIMIT, Manifest, Site, is_true

from tensile.names import OWNER
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import Options

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
METRICS = "/apis/metrics.k8s.io/v1beta1"
LINE = "2026-01-01T00:00:00Z stdout F hello\n"
PAGE = b"a page"
PROTOCOL = "v4.channel.k8s.io"


class CsrEngineHarness(EngineHarness):
    """A harness whose engine has no serving certificate and requests certificates from the upper cluster."""

    def file(self, *edits: object) -> Manifest:
        """Return the topology without the serving certificate."""
        return super().file(_keyless, *edits)  # type: ignore[arg-type]

    async def approve(self) -> None:
        """Approve the requests of the virtual nodes, as an administrator does."""
        for node in self.nodes.values():
            found = await self.upper.until_all(REQUESTS, lambda all_, node=node: _asked(all_, node))
            assert (await self.kubectl("certificate", "approve", _asked(found, node)[0])).code == 0


def _keyless(file: Manifest) -> None:
    for key in ("tlsCertFile", "tlsKeyFile"):
        file["kubelet"].pop(key, None)


def _asked(found: dict[str, Manifest], node: str) -> list[str]:
    return [name for name in found if name.startswith(f"tensile-{node}")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[CsrEngineHarness]:
    """Start clusters whose apiservers accept only certificates of their own authority, an engine, and a pod."""
    with Sandbox.start(tmp_path_factory.mktemp("rights") / "sandbox", Options(nodes=1)) as own:
        harness = CsrEngineHarness(own, tmp_path_factory.mktemp("keyless"))
        try:
            await harness.open()
            await measurable(harness.sites[A])
            await harness.start()
            await harness.approve()
            await harness.run_pod("web")
            log_of(harness).parent.mkdir(parents=True, exist_ok=True)
            log_of(harness).write_text(LINE)
            yield harness
            await harness.clear()
        finally:
            await harness.close()
        assert harness.loop_recorder.defects == []


async def measurable(site: Site) -> None:
    """Create a metrics API in a lower cluster: its kinds are custom resources, without a metrics-server."""
    for plural, kind, scope in (("nodes", "NodeMetrics", "Cluster"), ("pods", "PodMetrics", "Namespaced")):
        meta = {"name": f"{plural}.metrics.k8s.io"}
        meta["annotations"] = {"api-approved.kubernetes.io": "unapproved, stands in for a metrics-server"}
        schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        version = {"name": "v1beta1", "served": True, "storage": True, "schema": schema}
        names = {"plural": plural, "kind": kind}
        spec = {"group": "metrics.k8s.io", "names": names, "scope": scope, "versions": [version]}
        await site.create(CRDS, {"metadata": meta, "spec": spec})
        await site.until(f"{CRDS}/{meta['name']}", _is_established)


def _is_established(one: Manifest) -> bool:
    return is_true(one, "Established")


def log_of(harness: CsrEngineHarness) -> Path:
    """Return the path of the pod's log."""
    return harness.sites[A].logs / harness.namespace / "web" / "main.log"


@pytest_asyncio.fixture(loop_scope="module")
async def reached(harness: CsrEngineHarness) -> CsrEngineHarness:
    """Wait until the apiserver accepts the certificate of the nodes."""
    async with asyncio.timeout(LIMIT):
        while (await harness.kubectl("logs", "web", "--tail=1")).code != 0:  # noqa: ASYNC110 - no watch reports it
            await asyncio.sleep(0.1)
    return harness


async def test_logs_are_served_with_a_certificate_that_the_upper_cluster_issued(reached: CsrEngineHarness) -> None:
    """The apiserver connects to no kubelet port with another certificate."""
    result = await reached.kubectl("logs", "web")
    assert result.out.startswith("hello\n"), result


async def test_attach_streams_the_new_output_of_a_container(reached: CsrEngineHarness) -> None:
    """Lines that are written after the attachment are received."""
    log, harness = log_of(reached), reached
    command = harness.sandbox.kubectl_command("-n", harness.namespace, "attach", "--quiet", "web")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    try:
        assert process.stdout
        async with asyncio.timeout(LIMIT):
            next_line = asyncio.ensure_future(process.stdout.readline())
            while not next_line.done() and process.returncode is None:
                with log.open("a") as file:
                    file.write(LINE.replace("hello", "again"))
                await asyncio.sleep(0.2)
            assert await next_line == b"again\n"
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_a_port_is_forwarded(reached: CsrEngineHarness) -> None:
    """The forwarded port is connected to the server that listens in the pod."""

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(PAGE)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    command = ("-n", reached.namespace, "port-forward", "--address=127.0.0.1", "pod/web", f":{port}")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*reached.sandbox.kubectl_command(*command), stdout=pipe, stderr=pipe)
    try:
        assert process.stdout
        async with asyncio.timeout(LIMIT):
            line = (await process.stdout.readline()).decode()
            found = re.search(r"127\.0\.0\.1:(\d+)", line)
            assert found, line
            reader, writer = await asyncio.open_connection("127.0.0.1", int(found[1]))
            assert await reader.read() == PAGE
            writer.close()
    finally:
        process.kill()
        await process.communicate()
        server.close()


@pytest.mark.parametrize("call", ["exec?command=true&stdout=1", "attach?stdout=1", "portforward?ports=80"])
async def test_a_stream_by_websocket_is_opened(reached: CsrEngineHarness, call: str) -> None:
    """Client libraries of Kubernetes use WebSocket, which the apiserver forwards unchanged, as a GET.

    Streams of kubectl become POSTs of SPDY, for which one right fewer is checked.
    """
    async with reached.upper.websocket(f"{reached.pod_path('web')}/{call}", PROTOCOL) as opened:
        assert opened.protocol == PROTOCOL


async def test_a_token_authenticates_a_caller_and_its_rights_are_checked(harness: CsrEngineHarness) -> None:
    """An account without rights gets 403, and one with the rights of a kubelet's client gets 200."""
    nobody = await token_of(harness, "nobody")
    assert (await answered(harness, "/pods", nobody)).startswith("HTTP/1.1 403 ")
    async with monitoring(harness) as monitor:
        assert (await answered(harness, "/pods", monitor)).startswith("HTTP/1.1 200 ")


async def token_of(harness: CsrEngineHarness, name: str) -> str:
    """Create an upper account, and return a token of it."""
    await harness.upper.create(harness.path("serviceaccounts"), {"metadata": {"name": name}})
    made = await harness.upper.create(f"{harness.path('serviceaccounts', name)}/token", {"spec": {}})
    return str(made["status"]["token"])


@asynccontextmanager
async def monitoring(harness: CsrEngineHarness) -> AsyncIterator[str]:
    """Return the token of an account that may request everything of kubelets."""
    account = name = f"monitor-{uuid4().hex[:8]}"
    token = await token_of(harness, account)
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:kubelet-api-admin"}
    subject = {"kind": "ServiceAccount", "name": account, "namespace": harness.namespace}
    await harness.upper.create(BINDINGS, {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]})
    try:
        yield token
    finally:
        await harness.upper.delete(f"{BINDINGS}/{name}")


async def answered(harness: CsrEngineHarness, path: str, token: str) -> str:
    """Request a page of the first lower's node, and return the whole response."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    port = harness.topology().lowers[0].node.kubelet_port
    async with asyncio.timeout(LIMIT):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        head = f"GET {path} HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode())
        answer = (await reader.read()).decode()
        writer.close()
    return answer


async def test_resource_metrics_contain_the_usage_that_the_lower_cluster_measures(harness: CsrEngineHarness) -> None:
    """The memory of the node is that of the lower metrics API, and the pod has a value too."""
    site = harness.sites[A]
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    usage = {"cpu": "250m", "memory": "64Mi"}
    measured = {"timestamp": now, "window": "10s"}
    (node,) = (await site.read("/api/v1/nodes"))["items"]
    name = node["metadata"]["name"]
    await site.create(f"{METRICS}/nodes", {**_metrics("NodeMetrics", name), **measured, "usage": usage})
    containers = [{"name": "main", "usage": usage}]
    pods = f"{METRICS}/namespaces/{harness.namespace}/pods"
    labels = {OWNER: harness.owner.mark}
    await site.create(pods, {**_metrics("PodMetrics", "web", labels=labels), **measured, "containers": containers})
    metrics = ""
    async with monitoring(harness) as monitor, asyncio.timeout(LIMIT):
        while "pod_memory_working_set_bytes{" not in metrics:
            metrics = await answered(harness, "/metrics/resource", monitor)
            await asyncio.sleep(0.1)
    (held,) = re.findall(r"^node_memory_working_set_bytes (\S+)", metrics, re.MULTILINE)
    assert float(held) == 64 * 1024 * 1024


def _metrics(kind: str, name: str, **meta: object) -> Manifest:
    return {"apiVersion": "metrics.k8s.io/v1beta1", "kind": kind, "metadata": {"name": name, **meta}}
