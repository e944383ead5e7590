"""Tests of a serving certificate that a real upper cluster issues: kubectl logs works only after the approval."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from kubelet_lab import NamedPods, Notes, leak_watch, until
from kubelet_twins import CONTAINER, LOWER, POD, SPDY, Twins
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


class Site:
    """A node that is served without certificate files, and the log about it."""

    def __init__(self, twins: Twins, upper: HttpCluster, lower: HttpCluster) -> None:
        self.log = Notes()
        self.serving = ServingCertificate(self.log, "127.0.0.1")
        authority = ClientCA(self.log, twins.directory / "upper" / "pki" / "ca.crt")
        reviews = Authenticator(upper, self.log), Authorizer(upper, self.log)
        self.server = KubeletServer(RequestAuth(self.serving, authority, *reviews), self.log)
        self.enrolment = CertificateRequester(upper, self.serving, self.log)
        self.pods = NamedPods({(twins.namespace, SPDY): PodTarget(lower, twins.namespace, POD, frozenset({CONTAINER}))})

    def said(self, event: str) -> list[dict[str, object]]:
        """Return the fields of the log entries of an event."""
        return [fields for known, fields in self.log.entries if known == event]


@pytest.fixture
async def site(twins: Twins) -> AsyncIterator[Site]:
    """Serve the node's kubelet API without certificate files; afterwards no task and no descriptor may be left."""
    async with leak_watch():
        upper = HttpCluster(UPPER, await from_kubeconfig(twins.directory / "upper.kubeconfig"))
        lower = HttpCluster(LOWER, await from_kubeconfig(twins.directory / f"{LOWER}.kubeconfig"))
        made = Site(twins, upper, lower)
        assert (
            await made.server.serve({twins.nodes[SPDY]: NodeEndpoint(("127.0.0.1", twins.ports[SPDY]), made.pods)})
            == {}
        )
        async with background(made.enrolment.run(twins.nodes[SPDY])):
            yield made
        await made.server.close()
        await upper.close()
        await lower.close()


async def test_kubectl_logs_works_after_the_approval_of_the_certificate(twins: Twins, site: Site) -> None:
    """Before it the apiserver rejects the self-signed certificate; the logged command is all that is needed."""
    refused = await twins.run("logs", SPDY)
    assert (refused.code != 0, "certificate" in refused.err) == (True, True)
    [complaint] = site.said("kubelet API request rejected")
    assert "--kubelet-certificate-authority" in str(complaint["advice"])
    await until(lambda: bool(site.said("waiting for a serving certificate")))
    command = str(site.said("waiting for a serving certificate")[0]["do"]).split()
    assert command[:3] == ["kubectl", "certificate", "approve"]
    approved = await asyncio.to_thread(twins.must, "upper", *command[1:])
    assert "approved" in approved
    await until(lambda: site.serving.issued(twins.nodes[SPDY]) is not None)
    done = await twins.run("logs", SPDY)
    assert (done.code, done.err) == (0, "")
    twins.must("upper", "delete", "csr", command[3])


async def test_a_denied_request_is_logged_with_the_reason(twins: Twins, site: Site) -> None:
    """The node continues with its self-signed certificate."""
    await until(lambda: bool(site.said("waiting for a serving certificate")))
    name = str(site.said("waiting for a serving certificate")[0]["do"]).split()[-1]
    await asyncio.to_thread(twins.must, "upper", "certificate", "deny", name)
    await until(lambda: bool(site.said("no serving certificate was issued")))
    assert "denied" in str(site.said("no serving certificate was issued")[0]["why"])
    assert site.serving.issued(twins.nodes[SPDY]) is None
    twins.must("upper", "delete", "csr", name)
