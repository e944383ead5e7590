"""The virtual nodes' ports as the engine opens them: certificates are asked for where none are given."""

import asyncio
from pathlib import Path

import pytest
from answering import Answering, Held
from kubelet_lab import Stream, leak_watch, request, until
from kubelet_pki import Pki
from portkit import spare_ports
from structlog.testing import capture_logs

from tensile.errors import NotFound
from tensile.kubelet.mirrored import NoPods
from tensile.nodeports import NodePorts
from tensile.topology import Topology, parse

ADDRESS = "127.0.0.1"
ASKED = "create CertificateSigningRequest tensile-lower-"


def topology(ports: list[int], files: str = "") -> Topology:
    """Give a topology with a lower for each port."""
    lowers = "".join(
        f"- {{name: lower-{place}, kubeconfig: none, node: {{kubeletPort: {port}}}}}\n"
        for place, port in enumerate(ports)
    )
    head = "apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: ports\nupper: {kubeconfig: none}\n"
    return parse(f"{head}kubelet: {{bind: {ADDRESS}{files}}}\nlowers:\n{lowers}", name="test")


def requests(upper: Answering) -> list[str]:
    """Give the certificates that were asked for."""
    return [each for each in upper.verbs() if each.startswith(ASKED)]


async def test_each_node_asks_for_a_certificate_once(tmp_path: Path) -> None:
    """One request for each node when it is served first; serving it again, as a reload does, asks for none."""
    async with leak_watch():
        upper, given = Answering(""), topology(spare_ports(2))
        upper.answer("read", Held(), Held())
        ports = NodePorts(given, tmp_path, upper, ADDRESS)
        await ports.open(given)
        for _ in range(2):
            for lower in given.lowers:
                await ports.serve(given, lower.node.name, lower.node.kubelet_port, NoPods())
            await until(lambda: len(requests(upper)) == 2)
        await ports.stop("lower-0")
        await ports.close()
        assert [each[: len(ASKED) + 1] for each in requests(upper)] == [f"{ASKED}0", f"{ASKED}1"]


async def test_a_node_that_comes_later_asks_too(tmp_path: Path) -> None:
    """A lower that joins while the engine runs gets a certificate like the others."""
    async with leak_watch():
        upper, given = Answering(""), topology(spare_ports(1))
        upper.answer("read", Held())
        ports = NodePorts(given, tmp_path, upper, ADDRESS)
        await ports.serve(given, "lower-9", given.lowers[0].node.kubelet_port, NoPods())
        await until(lambda: len(requests(upper)) == 1)
        await ports.close()


async def test_with_files_nothing_is_asked_for(tmp_path: Path, pki: Pki) -> None:
    """A topology that gives certificate and key has no use for another."""
    async with leak_watch():
        (tmp_path / "c").write_bytes(pki.serving.certificate)
        (tmp_path / "k").write_bytes(pki.serving.key)
        upper, given = Answering(""), topology(spare_ports(1), ", tlsCertFile: c, tlsKeyFile: k")
        ports = NodePorts(given, tmp_path, upper, ADDRESS)
        await ports.open(given)
        await ports.serve(given, "lower-0", given.lowers[0].node.kubelet_port, NoPods())
        await asyncio.sleep(0)
        await ports.close()
        assert upper.verbs() == []


@pytest.mark.parametrize("published", [{"data": {}}, {}, {"data": {"client-ca-file": ""}}, NotFound("no", status=404)])
async def test_an_upper_without_a_published_authority_is_told(
    tmp_path: Path, pki: Pki, published: dict[str, object] | NotFound
) -> None:
    """Where the ConfigMap or its key is missing every request is 401, and the log says where to look and what to do."""
    async with leak_watch():
        (tmp_path / "c").write_bytes(pki.serving.certificate)
        (tmp_path / "k").write_bytes(pki.serving.key)
        upper, given = Answering(""), topology(spare_ports(1), ", tlsCertFile: c, tlsKeyFile: k")
        upper.answer("read", published)
        ports = NodePorts(given, tmp_path, upper, ADDRESS)
        with capture_logs() as logs:
            await ports.open(given)
            port = given.lowers[0].node.kubelet_port
            tls = pki.client_context(pki.apiserver)
            stream = Stream(*await asyncio.open_connection(ADDRESS, port, ssl=tls))
            await stream.send(request("GET /healthz"))
            assert (await stream.head()).status == 401
            await stream.close()
            await ports.close()
        [said] = [each for each in logs if each["event"] == "the authority of client certificates cannot be used"]
        assert "extension-apiserver-authentication" in said["why"]
        assert "kubelet.clientCAFile" in said["why"]
        assert said["effect"] == "every request is refused"
