"""Tests of a serving certificate that a real upper cluster issues: kubectl logs works only after the approval."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from kubelet_lab import NamedPods, RecordingLogger, leak_watch, wait_until
from kubelet_twins import CONTAINER, LOWER, POD, SPDY, TwinPods
from tasks import background

from tensile.kube.client import HttpCluster
from tensile.kube.credentials import from_kubeconfig
from tensile.kubelet.api.auth import Authenticator, Authorizer
from tensile.kubelet.api.certificates import ClientCA, ServingCertificate
from tensile.kubelet.api.csr import CertificateRequester
from tensile.kubelet.api.requests import PodTarget
from tensile.kubelet.api.server import KubeletServer, NodeEndpoint
from tensile.kubelet.api.service import RequestAuth
from tensile.objects import UPPER

pytestmark = pytest.mark.real


class ServedNode:
    """A node that is served without certificate files, and the log about it."""

    def __init__(self, twins: TwinPods, upper: HttpCluster, lower: HttpCluster) -> None:
        self.log = RecordingLogger()
        self.serving = ServingCertificate(self.log, "127.0.0.1")
        authority = ClientCA(self.log, twins.directory / "upper" / "pki" / "ca.crt")
        reviews = Authenticator(upper, self.log), Authorizer(upper, self.log)
        self.server = KubeletServer(RequestAuth(self.serving, authority, *reviews), self.log)
        self.enrolment = CertificateRequester(upper, self.serving, self.log)
        self.pods = NamedPods({(twins.namespace, SPDY): PodTarget(lower, twins.namespace, POD, frozenset({CONTAINER}))})

    def log_entries(self, event: str) -> list[dict[str, object]]:
        """Return the fields of the log entries of an event."""
        return [fields for known, fields in self.log.entries if known == event]


@pytest.fixture
async def served_node(twins: TwinPods) -> AsyncIterator[ServedNode]:
    """Serve the node's kubelet API without certificate files; afterwards no task and no descriptor may be left."""
    async with leak_watch():
        upper = HttpCluster(UPPER, await from_kubeconfig(twins.directory / "upper.kubeconfig"))
        lower = HttpCluster(LOWER, await from_kubeconfig(twins.directory / f"{LOWER}.kubeconfig"))
        made = ServedNode(twins, upper, lower)
        assert (
            await made.server.serve({twins.nodes[SPDY]: NodeEndpoint(("127.0.0.1", twins.ports[SPDY]), made.pods)})
            == {}
        )
        async with background(made.enrolment.run(twins.nodes[SPDY])):
            yield made
        await made.server.close()
        await upper.close()
        await lower.close()


async def test_kubectl_logs_works_after_the_approval_of_the_certificate(
    twins: TwinPods, served_node: ServedNode
) -> None:
    """Before it the apiserver rejects the self-signed certificate; the logged command is all that is needed."""
    refused = await twins.run("logs", SPDY)
    assert (refused.code != 0, "certificate" in refused.err) == (True, True)
    [complaint] = served_node.log_entries("kubelet API request rejected")
    assert "--kubelet-certificate-authority" in str(complaint["advice"])
    await wait_until(lambda: bool(served_node.log_entries("waiting for a serving certificate")))
    command = str(served_node.log_entries("waiting for a serving certificate")[0]["do"]).split()
    assert command[:3] == ["kubectl", "certificate", "approve"]
    approved = await asyncio.to_thread(twins.check_output, "upper", *command[1:])
    assert "approved" in approved
    await wait_until(lambda: served_node.serving.issued(twins.nodes[SPDY]) is not None)
    done = await twins.run("logs", SPDY)
    assert (done.code, done.err) == (0, "")
    twins.check_output("upper", "delete", "csr", command[3])


async def test_a_denied_request_is_logged_with_the_reason(twins: TwinPods, served_node: ServedNode) -> None:
    """The node continues with its self-signed certificate."""
    await wait_until(lambda: bool(served_node.log_entries("waiting for a serving certificate")))
    name = str(served_node.log_entries("waiting for a serving certificate")[0]["do"]).split()[-1]
    await asyncio.to_thread(twins.check_output, "upper", "certificate", "deny", name)
    await wait_until(lambda: bool(served_node.log_entries("no serving certificate was issued")))
    assert "denied" in str(served_node.log_entries("no serving certificate was issued")[0]["why"])
    assert served_node.serving.issued(twins.nodes[SPDY]) is None
    twins.check_output("upper", "delete", "csr", name)
