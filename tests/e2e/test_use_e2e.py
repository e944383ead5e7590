"""Tests of resource metrics that the engine serves for a virtual node whose lower cluster has no metrics API."""

import asyncio
import ssl
from pathlib import Path

import pytest
from enginekit import UPPER, A, EngineHarness, edit_lower

from bench.kit.faultproxy.tls import signer_of
from tensile.sandbox.credentials import ADMINISTRATORS

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

PATIENCE = 30.0


async def request_page(harness: EngineHarness, directory: Path, path: str) -> str:
    """Request a page of lower-a's node as an administrator of the upper cluster, and return the whole response."""
    pki = harness.sandbox.clusters[UPPER].audit_log.parent / "pki"
    pair = signer_of(pki).issue(harness.user, (ADMINISTRATORS,))
    files = directory / "user.crt", directory / "user.key"
    for file, content in zip(files, (pair.certificate, pair.key), strict=True):
        file.write_bytes(content)
    context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
    context.load_cert_chain(*files)
    port = harness.topology().lowers[0].node.kubelet_port
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: node\r\n\r\n".encode())
        answer = (await reader.read()).decode()
        writer.close()
    return answer


@pytest.mark.parametrize("path", ["/metrics/resource", "/stats/summary"])
async def test_a_lower_without_a_metrics_api_is_answered_with_404_and_advice(
    harness: EngineHarness, tmp_path: Path, path: str
) -> None:
    """The lower apiserver responds for a group that it does not have."""
    await harness.run_pod("used")
    answer = await request_page(harness, tmp_path, path)
    assert answer.startswith(f"HTTP/1.1 404 {A} has no metrics API (metrics.k8s.io): ")
    assert answer.endswith("install metrics-server there to measure its pods\n")
    await harness.upper.delete(harness.pod_path("used"), 0)
    await harness.upper.gone(harness.pod_path("used"))


async def test_a_reload_keeps_the_usage_counters(harness: EngineHarness) -> None:
    """A lower that stays in the topology is still measured; otherwise `kubectl top` would be empty after each edit."""
    before = harness.engine.clusters.joined[A].meter
    await harness.reload(edit_lower(A, node={"labels": {"edited": "yes"}}))
    assert harness.engine.clusters.joined[A].meter is before
    served = harness.engine.ports._server._listeners[harness.nodes[A]]
    assert served.node_server.meter is before
