"""Tests of the virtual nodes' ports as the engine opens them, and of their assignment to nodes.

Certificates are requested if no files are configured, and a port that cannot be opened is logged and retried.
"""

import asyncio
import socket
import ssl
from copy import deepcopy
from pathlib import Path
from typing import NamedTuple

import pytest
from answering import FakeCluster, HeldResponse
from cryptography.x509 import load_der_x509_certificate
from filekit import wait_for_watcher
from kubelet_lab import HttpStream, RecordingLogger, leak_watch, request, wait_until
from kubelet_pki import SERVER, Pki
from structlog.testing import capture_logs
from worldkit import OWNER_HERE, add_virtual_node, apply_topology, make_lower, make_object, make_world, put

from bench.kit.spareports import spare_port, spare_ports
from tensile.engine.kubelet_server import KubeletServers, endpoints_of, noted_ports
from tensile.errors import ClusterError, NotFound, TensileError, Unreachable
from tensile.kube.file_watch import FileWatcher
from tensile.kubelet.api.requests import EmptyPodLister
from tensile.kubelet.api.server import NodeEndpoint
from tensile.kubelet.stats.collector import StatsCollector
from tensile.reconcile.world import LowerWorld
from tensile.topology import Topology, parse

ADDRESS = "127.0.0.1"
ASKED = "create CertificateSigningRequest tensile-lower-"


def topology(ports: list[int], files: str = "", name: str = "") -> Topology:
    """Return a topology with a lower for each port; `name` adds the node's name to its settings ("name: x, ")."""
    lowers = "".join(
        f"- {{name: lower-{place}, kubeconfig: none, node: {{{name}kubeletPort: {port}}}}}\n"
        for place, port in enumerate(ports)
    )
    head = "apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: ports\nupper: {kubeconfig: none}\n"
    return parse(f"{head}kubelet: {{bind: {ADDRESS}{files}}}\nlowers:\n{lowers or '  []'}", name="test")


def with_files(directory: Path, pki: Pki, ports: list[int]) -> Topology:
    """Return such a topology with certificate and key files."""
    (directory / "c").write_bytes(pki.serving.certificate)
    (directory / "k").write_bytes(pki.serving.key)
    return topology(ports, ", tlsCertFile: c, tlsKeyFile: k")


class LowerPodLister(EmptyPodLister):
    """The pods of one lower."""

    def __init__(self, lower: LowerWorld) -> None:
        self.lower = lower


def alone(given: Topology) -> dict[str, NodeEndpoint]:
    """Return the endpoints of a topology's nodes if none of its lowers is joined."""
    return endpoints_of(given, {}, LowerPodLister, {})


def requests(upper: FakeCluster) -> list[str]:
    """Return the certificate requests that were created."""
    return [each for each in upper.verbs() if each.startswith(ASKED)]


async def test_each_node_requests_one_certificate(tmp_path: Path) -> None:
    """A node requests a certificate when it is served first, and not when it is served again after a reload.

    A node whose lower joins again does not either: it still waits for the first request.
    """
    async with leak_watch():
        upper, given = FakeCluster(""), topology(spare_ports(2))
        upper.queue_responses("read", HeldResponse(), HeldResponse())
        ports = KubeletServers(given, tmp_path, upper, ADDRESS, FileWatcher())
        await ports.open(alone(given))
        assert requests(upper) == []
        for _ in range(2):
            await ports.serve(alone(given))
            await wait_until(lambda: len(requests(upper)) == 2)
            await ports.stop("lower-0")
        await ports.serve(alone(given))
        await asyncio.sleep(0)
        await ports.close()
        assert [each[: len(ASKED) + 1] for each in requests(upper)] == [f"{ASKED}0", f"{ASKED}1"]


async def test_a_lower_that_joins_later_requests_a_certificate_and_a_removed_one_stops(tmp_path: Path) -> None:
    """The requester of a node that is no longer served ends."""
    async with leak_watch():
        upper, given = FakeCluster(""), topology(spare_ports(2))
        upper.queue_responses("read", HeldResponse(), HeldResponse())
        ports, seats = KubeletServers(given, tmp_path, upper, ADDRESS, FileWatcher()), alone(given)
        later = {"lower-1": seats.pop("lower-1")}
        await ports.serve(seats)
        await wait_until(lambda: len(requests(upper)) == 1)
        tasks = len(asyncio.all_tasks())
        await ports.serve(later)
        await wait_until(lambda: len(requests(upper)) == 2)
        assert len(asyncio.all_tasks()) == tasks
        await ports.close()


async def test_no_certificate_is_requested_if_files_are_configured(tmp_path: Path, pki: Pki) -> None:
    """A topology with certificate and key files sends no request to the upper cluster."""
    async with leak_watch():
        upper, given = FakeCluster(""), with_files(tmp_path, pki, spare_ports(1))
        ports = KubeletServers(given, tmp_path, upper, ADDRESS, FileWatcher())
        await ports.open(alone(given))
        await ports.serve(alone(given))
        await asyncio.sleep(0)
        await ports.close()
        assert upper.verbs() == []


async def test_a_port_in_use_fails_the_start(tmp_path: Path, pki: Pki) -> None:
    """The error names the port, and no port that was opened before stays open."""
    async with leak_watch():
        with socket.create_server((ADDRESS, 0)) as foreign:
            free, taken = spare_port(), int(foreign.getsockname()[1])
            given = with_files(tmp_path, pki, [free, taken])
            ports = KubeletServers(given, tmp_path, FakeCluster(""), ADDRESS, FileWatcher())
            with pytest.raises(
                TensileError, match=f"node lower-1 cannot listen on port {taken} .*another program uses the port"
            ):
                await ports.open(alone(given))
            await ports.close()
        with socket.create_server((ADDRESS, free)):
            assert ports.port("lower-0") == 0


async def test_a_port_in_use_is_logged_once_and_opened_when_it_is_free(tmp_path: Path, pki: Pki) -> None:
    """The error names the port however often it is tried, and other nodes are served."""
    async with leak_watch():
        with capture_logs() as logs:
            with socket.create_server((ADDRESS, 0)) as foreign:
                free, taken = spare_port(), int(foreign.getsockname()[1])
                given = with_files(tmp_path, pki, [taken, free])
                ports = KubeletServers(given, tmp_path, FakeCluster(""), ADDRESS, FileWatcher())
                for _ in range(3):
                    await ports.serve(alone(given))
                assert (ports.port("lower-0"), ports.port("lower-1")) == (0, free)
            for _ in range(2):
                await ports.serve(alone(given))
            assert ports.port("lower-0") == taken
            await ports.close()
        error, info = logs
        assert (error["log_level"], error["node"]) == ("error", "lower-0")
        assert f"port {taken}" in error["error"]
        assert "node.kubeletPort" in error["error"]
        assert (info["log_level"], info["node"], info["port"]) == ("info", "lower-0", taken)


async def presented_serial(port: int) -> str:
    """Return the serial number of the certificate that a port presents."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection(ADDRESS, port, ssl=trusting)
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return str(load_der_x509_certificate(found).serial_number)


async def test_a_renewed_certificate_is_presented_after_the_change_event(tmp_path: Path, pki: Pki) -> None:
    """A pair of which only one file is replaced changes nothing."""
    async with leak_watch():
        watcher, given = FileWatcher(), with_files(tmp_path, pki, spare_ports(1))
        ports = KubeletServers(given, tmp_path, FakeCluster(""), ADDRESS, watcher)
        await ports.open(alone(given))
        port = ports.port("lower-0")
        first = await presented_serial(port)
        renewed = pki.servers.issue("renewed", usage=SERVER)
        async with wait_for_watcher(watcher, tmp_path / "c"):
            (tmp_path / "c").write_bytes(renewed.certificate)
        assert await presented_serial(port) == first
        async with wait_for_watcher(watcher, tmp_path / "k"):
            (tmp_path / "k").write_bytes(renewed.key)
        assert await presented_serial(port) != first
        await ports.close()
        await watcher.close()


# Assignment of ports.


class JoinedLower(NamedTuple):
    """A joined lower."""

    lower: LowerWorld
    meter: StatsCollector


def joined(given: Topology, **ports: int | None) -> dict[str, JoinedLower]:
    """Return joined lowers of a topology, with the port at which each is served."""
    specs = {spec.name: spec for spec in given.lowers}
    found = {}
    for name, port in ports.items():
        lower = make_lower(specs[name.replace("_", "-")])
        lower.port = port
        found[lower.name] = JoinedLower(lower, StatsCollector(lower, OWNER_HERE, lambda: None, RecordingLogger()))
    return found


def whose(seats: dict[str, NodeEndpoint]) -> dict[str, tuple[int, str]]:
    """Return the port of each node, and the lower whose pods it serves."""
    return {
        node: (seat.address[1], seat.pods.lower.name if isinstance(seat.pods, LowerPodLister) else "")
        for node, seat in seats.items()
    }


AUTO = "apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: ports\nupper: {kubeconfig: none}\n"


def automatic(*names: str, base: int = 10350, more: str = "") -> Topology:
    """Return a topology whose lowers have no ports of their own in the file."""
    lowers = "".join(f"- {{name: {name}, kubeconfig: none}}\n" for name in names)
    return parse(f"{AUTO}kubelet: {{port: {base}}}\n{more}lowers:{'' if names else ' []'}\n{lowers}", name="test")


def test_new_nodes_get_ports_from_kubelet_port_on_in_order() -> None:
    """The ports are known before the lowers are joined, as for an engine in standby."""
    given = automatic("lower-0", "lower-1")
    assert whose(endpoints_of(given, {}, LowerPodLister, {})) == {"lower-0": (10350, ""), "lower-1": (10351, "")}
    there = joined(given, lower_1=None)
    assert whose(endpoints_of(given, there, LowerPodLister, {}))["lower-1"] == (10351, "lower-1")


def test_adding_or_removing_a_lower_does_not_change_other_ports() -> None:
    """This holds for ports that this engine serves and for ports read from Nodes."""
    before, now = automatic("lower-0", "lower-1"), automatic("new", "lower-1")
    for there, noted in ((joined(before, lower_1=10351), {}), ({}, {"lower-1": 10351})):
        found = endpoints_of(now, there, LowerPodLister, noted)
        assert {node: one.address[1] for node, one in found.items()} == {"new": 10350, "lower-1": 10351}
    added = automatic("new", "lower-0", "lower-1")
    found = endpoints_of(added, joined(before, lower_0=10350, lower_1=10351), LowerPodLister, {})
    assert {node: one.address[1] for node, one in found.items()} == {
        "new": 10352,
        "lower-0": 10350,
        "lower-1": 10351,
    }


def test_a_configured_port_overrides_a_nodes_current_port() -> None:
    """An edit of the file moves the node immediately, and its former port is free for other nodes."""
    before, now = topology([1, 2]), topology([2, 1])
    found = whose(endpoints_of(now, joined(before, lower_0=1, lower_1=2), LowerPodLister, {}))
    assert found == {"lower-0": (2, "lower-0"), "lower-1": (1, "lower-1")}


def test_a_port_removed_from_the_file_is_released() -> None:
    """As after a restart, only a port in the automatic range is kept without the file."""
    before = topology([77])
    found = whose(endpoints_of(automatic("lower-0"), joined(before, lower_0=77), LowerPodLister, {}))
    assert found == {"lower-0": (10350, "lower-0")}


def test_a_removed_lower_keeps_its_port_and_stats_collector() -> None:
    """Its pods are reached there until it is empty, unless the file gives the port to another node."""
    before = topology([77, 2])
    there = joined(before, lower_0=77)
    found = endpoints_of(automatic("new"), there, LowerPodLister, {})
    assert whose(found) == {"new": (10350, ""), "lower-0": (77, "lower-0")}
    assert found["lower-0"].meter is there["lower-0"].meter
    given = parse(f"{AUTO}lowers: [{{name: new, kubeconfig: none, node: {{kubeletPort: 77}}}}]\n", name="test")
    assert whose(endpoints_of(given, there, LowerPodLister, {})) == {"new": (77, ""), "lower-0": (10351, "lower-0")}


def test_a_disconnected_removed_node_is_not_served_and_its_port_is_reserved() -> None:
    """Its pods cannot be reached, and no other node gets requests for them."""
    there = joined(topology([1]), lower_0=None)
    there["lower-0"].lower.connected = False
    found = endpoints_of(automatic("new"), there, LowerPodLister, {"lower-0": 10350})
    assert whose(found) == {"new": (10351, "")}


def test_a_renamed_node_keeps_its_port_until_the_old_node_is_removed() -> None:
    """No port is opened for the new name before that."""
    before = topology([1])
    now = topology([1], name="name: new, ")
    assert whose(endpoints_of(now, joined(before, lower_0=1), LowerPodLister, {})) == {"lower-0": (1, "lower-0")}
    assert whose(endpoints_of(now, {}, LowerPodLister, {})) == {"new": (1, "")}


def test_only_ports_of_this_topologys_nodes_from_kubelet_port_on_are_reused() -> None:
    """A user who edits a Node's status cannot make the engine listen on any other port."""
    world = make_world()
    for name, port, is_ours in (("lower-a", 10361, True), ("lower-b", 22, True), ("edge", 10362, False)):
        node = deepcopy(add_virtual_node(world, name).manifest()) if is_ours else make_object("Node", name, "")
        node["status"] = {**node.get("status", {}), "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}
        put(world.upper.nodes, node)
    assert noted_ports(world) == {"lower-a": 10361}
    apply_topology(world, more="kubelet: {port: 20000}\n")
    assert noted_ports(world) == {}


@pytest.mark.parametrize(
    ("published", "advice"),
    [
        ({"data": {}}, "kubelet.clientCAFile"),
        ({}, "kubelet.clientCAFile"),
        ({"data": {"client-ca-file": ""}}, "kubelet.clientCAFile"),
        (NotFound("no", status=404), "kubelet.clientCAFile"),
        (Unreachable("gone"), "it is read as soon as the upper cluster answers"),
    ],
)
async def test_a_missing_client_ca_of_the_upper_is_logged_with_advice(
    tmp_path: Path, pki: Pki, published: dict[str, object] | ClusterError, advice: str
) -> None:
    """Without the ConfigMap, its key or an answer each request is 401, and the log gives the place and remedy."""
    async with leak_watch():
        upper, given = FakeCluster(""), with_files(tmp_path, pki, spare_ports(1))
        upper.queue_responses("read", published)
        ports = KubeletServers(given, tmp_path, upper, ADDRESS, FileWatcher())
        with capture_logs() as logs:
            await ports.open(alone(given))
            port = given.lowers[0].node.kubelet_port
            tls = pki.client_context(pki.apiserver)
            stream = HttpStream(*await asyncio.open_connection(ADDRESS, port, ssl=tls))
            await stream.send(request("GET /healthz"))
            assert (await stream.head()).status == 401
            await stream.close()
            await ports.close()
        [log_line] = [each for each in logs if each["event"] == "the client CA cannot be used"]
        assert "extension-apiserver-authentication" in log_line["why"]
        assert advice in log_line["why"]
        assert log_line["effect"] == "every request is rejected"


# Other files or another client CA while nodes are served.


def renewed(before: KubeletServers, given: Topology, directory: Path, upper: FakeCluster) -> KubeletServers:
    """Return the servers for an edited topology, with the certificates of the previous servers."""
    found = KubeletServers(given, directory, upper, ADDRESS, FileWatcher())
    found.serving.resume(before.serving.held())
    return found


async def test_unreadable_certificate_files_after_an_edit_keep_the_last_certificate(tmp_path: Path, pki: Pki) -> None:
    """Nodes are still served, and client certificates are verified by the current CA."""
    async with leak_watch():
        ports, upper = spare_ports(1), FakeCluster("")
        before = KubeletServers(with_files(tmp_path, pki, ports), tmp_path, upper, ADDRESS, FileWatcher())
        await before.serve(alone(topology(ports)))
        wrong = topology(ports, ", tlsCertFile: typo, tlsKeyFile: k")
        after = renewed(before, wrong, tmp_path, upper)
        await before.close()
        with capture_logs() as logs:
            await after.serve(alone(wrong))
        assert (after.port("lower-0"), after.pending) == (ports[0], ())
        assert "typo" in logs[0]["why"]
        served = after.serving.context("lower-0", "")
        assert after.serving.context("lower-0", pki.clients.pem) is not served
        await after.close()


async def test_the_certificate_of_a_node_removed_by_an_edit_is_dropped(tmp_path: Path, pki: Pki) -> None:
    """Otherwise its expiration would be reported until the engine ends."""
    async with leak_watch():
        given, upper = topology(spare_ports(2)), FakeCluster("")
        before = KubeletServers(given, tmp_path, upper, ADDRESS, FileWatcher())
        for node in ("lower-0", "lower-1"):
            before.serving.context(node, "")
        after = renewed(before, given, tmp_path, upper)
        await before.close()
        assert set(after.expirations()) == {"lower-0", "lower-1"}
        await after.serve({"lower-0": alone(given)["lower-0"]})
        assert set(after.expirations()) == {"lower-0"}
        await after.close()


async def test_an_issued_certificate_is_kept_after_an_edit_of_the_client_ca(tmp_path: Path, pki: Pki) -> None:
    """No second CertificateSigningRequest has to be approved; only another address needs a new certificate."""
    async with leak_watch():
        given, upper = topology(spare_ports(1)), FakeCluster("")
        before = KubeletServers(given, tmp_path, upper, ADDRESS, FileWatcher())
        before.serving.take("lower-0", pki.serving)
        assert renewed(before, given, tmp_path, upper).serving.issued("lower-0") == pki.serving
        elsewhere = KubeletServers(given, tmp_path, upper, "192.0.2.1", FileWatcher())
        elsewhere.serving.resume(before.serving.held())
        assert elsewhere.serving.issued("lower-0") is None
        await before.close()
