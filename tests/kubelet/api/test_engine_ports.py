"""The virtual nodes' ports as the engine opens them, and who is to have which.

Certificates are asked for where none are given, and what cannot be had is said and tried again.
"""

import asyncio
import socket
import ssl
from copy import deepcopy
from pathlib import Path
from typing import NamedTuple

import pytest
from answering import Answering, Held
from cryptography.x509 import load_der_x509_certificate
from filekit import heard
from kubelet_lab import Notes, Stream, leak_watch, request, until
from kubelet_pki import SERVER, Pki
from structlog.testing import capture_logs
from worldkit import OWNER_HERE, opened, put, raised, reload, thing, world

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
    """Return a topology with a lower for each port; `name` is what its node has, beside that ("name: x, ")."""
    lowers = "".join(
        f"- {{name: lower-{place}, kubeconfig: none, node: {{{name}kubeletPort: {port}}}}}\n"
        for place, port in enumerate(ports)
    )
    head = "apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: ports\nupper: {kubeconfig: none}\n"
    return parse(f"{head}kubelet: {{bind: {ADDRESS}{files}}}\nlowers:\n{lowers or '  []'}", name="test")


def with_files(directory: Path, pki: Pki, ports: list[int]) -> Topology:
    """Return such a topology that has certificate and key."""
    (directory / "c").write_bytes(pki.serving.certificate)
    (directory / "k").write_bytes(pki.serving.key)
    return topology(ports, ", tlsCertFile: c, tlsKeyFile: k")


class Known(EmptyPodLister):
    """The pods of one lower."""

    def __init__(self, lower: LowerWorld) -> None:
        self.lower = lower


def alone(given: Topology) -> dict[str, NodeEndpoint]:
    """Return the places of a topology's nodes, of whose pods nothing is known yet."""
    return endpoints_of(given, {}, Known, {})


def requests(upper: Answering) -> list[str]:
    """Return the certificates that were asked for."""
    return [each for each in upper.verbs() if each.startswith(ASKED)]


async def test_each_node_asks_for_a_certificate_once(tmp_path: Path) -> None:
    """One request for each node when it is served first; serving it again, as a reload does, asks for none.

    Nor does a node whose lower is joined anew: what was asked for before is still awaited.
    """
    async with leak_watch():
        upper, given = Answering(""), topology(spare_ports(2))
        upper.answer("read", Held(), Held())
        ports = KubeletServers(given, tmp_path, upper, ADDRESS, FileWatcher())
        await ports.open(alone(given))
        assert requests(upper) == []
        for _ in range(2):
            await ports.serve(alone(given))
            await until(lambda: len(requests(upper)) == 2)
            await ports.stop("lower-0")
        await ports.serve(alone(given))
        await asyncio.sleep(0)
        await ports.close()
        assert [each[: len(ASKED) + 1] for each in requests(upper)] == [f"{ASKED}0", f"{ASKED}1"]


async def test_a_node_that_comes_later_asks_too_and_one_that_left_no_more(tmp_path: Path) -> None:
    """A lower that joins while the engine runs gets a certificate like the others; nobody waits for one of old."""
    async with leak_watch():
        upper, given = Answering(""), topology(spare_ports(2))
        upper.answer("read", Held(), Held())
        ports, seats = KubeletServers(given, tmp_path, upper, ADDRESS, FileWatcher()), alone(given)
        later = {"lower-1": seats.pop("lower-1")}
        await ports.serve(seats)
        await until(lambda: len(requests(upper)) == 1)
        tasks = len(asyncio.all_tasks())
        await ports.serve(later)
        await until(lambda: len(requests(upper)) == 2)
        assert len(asyncio.all_tasks()) == tasks
        await ports.close()


async def test_with_files_nothing_is_asked_for(tmp_path: Path, pki: Pki) -> None:
    """A topology that gives certificate and key has no use for another."""
    async with leak_watch():
        upper, given = Answering(""), with_files(tmp_path, pki, spare_ports(1))
        ports = KubeletServers(given, tmp_path, upper, ADDRESS, FileWatcher())
        await ports.open(alone(given))
        await ports.serve(alone(given))
        await asyncio.sleep(0)
        await ports.close()
        assert upper.verbs() == []


async def test_a_port_that_cannot_be_had_ends_the_start(tmp_path: Path, pki: Pki) -> None:
    """It is raised with the port, and nothing that was opened before it stays open."""
    async with leak_watch():
        with socket.create_server((ADDRESS, 0)) as foreign:
            free, taken = spare_port(), int(foreign.getsockname()[1])
            given = with_files(tmp_path, pki, [free, taken])
            ports = KubeletServers(given, tmp_path, Answering(""), ADDRESS, FileWatcher())
            with pytest.raises(
                TensileError, match=f"node lower-1 cannot listen on port {taken} .*another program uses the port"
            ):
                await ports.open(alone(given))
            await ports.close()
        with socket.create_server((ADDRESS, free)):
            assert ports.port("lower-0") == 0


async def test_a_port_is_had_when_it_comes_free_and_both_is_said_once(tmp_path: Path, pki: Pki) -> None:
    """What another program has is an error that names it, however often it is tried, and holds up no other node."""
    async with leak_watch():
        with capture_logs() as logs:
            with socket.create_server((ADDRESS, 0)) as foreign:
                free, taken = spare_port(), int(foreign.getsockname()[1])
                given = with_files(tmp_path, pki, [taken, free])
                ports = KubeletServers(given, tmp_path, Answering(""), ADDRESS, FileWatcher())
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


async def shown(port: int) -> str:
    """Return the serial number of the certificate that is shown at a port."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection(ADDRESS, port, ssl=trusting)
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return str(load_der_x509_certificate(found).serial_number)


async def test_a_renewed_pair_is_shown_once_its_change_is_heard_of(tmp_path: Path, pki: Pki) -> None:
    """One that is half written changes nothing."""
    async with leak_watch():
        watcher, given = FileWatcher(), with_files(tmp_path, pki, spare_ports(1))
        ports = KubeletServers(given, tmp_path, Answering(""), ADDRESS, watcher)
        await ports.open(alone(given))
        port = ports.port("lower-0")
        first = await shown(port)
        renewed = pki.servers.issue("renewed", usage=SERVER)
        async with heard(watcher, tmp_path / "c"):
            (tmp_path / "c").write_bytes(renewed.certificate)
        assert await shown(port) == first
        async with heard(watcher, tmp_path / "k"):
            (tmp_path / "k").write_bytes(renewed.key)
        assert await shown(port) != first
        await ports.close()
        await watcher.close()


# Who is to be where.


class Member(NamedTuple):
    """A lower as it is joined."""

    lower: LowerWorld
    meter: StatsCollector


def joined(given: Topology, **ports: int | None) -> dict[str, Member]:
    """Return lowers of a topology as they are joined, with the port at which each is served."""
    specs = {spec.name: spec for spec in given.lowers}
    found = {}
    for name, port in ports.items():
        lower = opened(specs[name.replace("_", "-")])
        lower.port = port
        found[lower.name] = Member(lower, StatsCollector(lower, OWNER_HERE, lambda: None, Notes()))
    return found


def whose(seats: dict[str, NodeEndpoint]) -> dict[str, tuple[int, str]]:
    """Return the port of each node, and the lower whose pods it has."""
    return {
        node: (seat.address[1], seat.pods.lower.name if isinstance(seat.pods, Known) else "")
        for node, seat in seats.items()
    }


AUTO = "apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: ports\nupper: {kubeconfig: none}\n"


def automatic(*names: str, base: int = 10350, more: str = "") -> Topology:
    """Return a topology whose lowers have no ports of their own in the file."""
    lowers = "".join(f"- {{name: {name}, kubeconfig: none}}\n" for name in names)
    return parse(f"{AUTO}kubelet: {{port: {base}}}\n{more}lowers:{'' if names else ' []'}\n{lowers}", name="test")


def test_nodes_follow_kubelet_port_where_no_node_is_yet() -> None:
    """Also before their lowers are joined, as for an engine that stands by."""
    given = automatic("lower-0", "lower-1")
    assert whose(endpoints_of(given, {}, Known, {})) == {"lower-0": (10350, ""), "lower-1": (10351, "")}
    there = joined(given, lower_1=None)
    assert whose(endpoints_of(given, there, Known, {}))["lower-1"] == (10351, "lower-1")


def test_a_lower_that_is_taken_out_or_put_in_before_others_shifts_nobody() -> None:
    """Whether this engine serves them already, or reads from their Nodes where they were."""
    before, now = automatic("lower-0", "lower-1"), automatic("new", "lower-1")
    for there, noted in ((joined(before, lower_1=10351), {}), ({}, {"lower-1": 10351})):
        found = endpoints_of(now, there, Known, noted)
        assert {node: one.address[1] for node, one in found.items()} == {"new": 10350, "lower-1": 10351}
    added = automatic("new", "lower-0", "lower-1")
    found = endpoints_of(added, joined(before, lower_0=10350, lower_1=10351), Known, {})
    assert {node: one.address[1] for node, one in found.items()} == {
        "new": 10352,
        "lower-0": 10350,
        "lower-1": 10351,
    }


def test_a_port_of_the_file_goes_before_that_of_a_node() -> None:
    """At once: an edit of it moves the node; what it had is free for others."""
    before, now = topology([1, 2]), topology([2, 1])
    found = whose(endpoints_of(now, joined(before, lower_0=1, lower_1=2), Known, {}))
    assert found == {"lower-0": (2, "lower-0"), "lower-1": (1, "lower-1")}


def test_a_port_that_is_taken_out_of_the_file_is_given_up() -> None:
    """At once, as with a restart: only a port of the usual ones is kept without the file."""
    before = topology([77])
    found = whose(endpoints_of(automatic("lower-0"), joined(before, lower_0=77), Known, {}))
    assert found == {"lower-0": (10350, "lower-0")}


def test_a_lower_that_left_keeps_its_port_and_its_meter() -> None:
    """Until it is empty its pods are reached there; a port that the file gives to another is that one's, though."""
    before = topology([77, 2])
    there = joined(before, lower_0=77)
    found = endpoints_of(automatic("new"), there, Known, {})
    assert whose(found) == {"new": (10350, ""), "lower-0": (77, "lower-0")}
    assert found["lower-0"].meter is there["lower-0"].meter
    given = parse(f"{AUTO}lowers: [{{name: new, kubeconfig: none, node: {{kubeletPort: 77}}}}]\n", name="test")
    assert whose(endpoints_of(given, there, Known, {})) == {"new": (77, ""), "lower-0": (10351, "lower-0")}


def test_a_node_that_was_left_behind_is_not_served_and_keeps_its_port() -> None:
    """Nobody can reach its pods, and nobody else is asked for them."""
    there = joined(topology([1]), lower_0=None)
    there["lower-0"].lower.connected = False
    found = endpoints_of(automatic("new"), there, Known, {"lower-0": 10350})
    assert whose(found) == {"new": (10351, "")}


def test_a_node_that_gets_another_name_has_its_port_until_it_is_gone() -> None:
    """Nothing is opened for the new name before."""
    before = topology([1])
    now = topology([1], name="name: new, ")
    assert whose(endpoints_of(now, joined(before, lower_0=1), Known, {})) == {"lower-0": (1, "lower-0")}
    assert whose(endpoints_of(now, {}, Known, {})) == {"new": (1, "")}


def test_only_ports_of_our_own_nodes_from_kubelet_port_on_are_kept() -> None:
    """A person who writes another into a Node's status has the engine listen nowhere else."""
    here = world()
    for name, port, is_ours in (("lower-a", 10361, True), ("lower-b", 22, True), ("edge", 10362, False)):
        node = deepcopy(raised(here, name).manifest()) if is_ours else thing("Node", name, "")
        node["status"] = {**node.get("status", {}), "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}
        put(here.upper.nodes, node)
    assert noted_ports(here) == {"lower-a": 10361}
    reload(here, more="kubelet: {port: 20000}\n")
    assert noted_ports(here) == {}


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
async def test_an_upper_without_a_published_authority_is_told(
    tmp_path: Path, pki: Pki, published: dict[str, object] | ClusterError, advice: str
) -> None:
    """Where the ConfigMap or its key is missing every request is 401, and the log says where to look and what to do."""
    async with leak_watch():
        upper, given = Answering(""), with_files(tmp_path, pki, spare_ports(1))
        upper.answer("read", published)
        ports = KubeletServers(given, tmp_path, upper, ADDRESS, FileWatcher())
        with capture_logs() as logs:
            await ports.open(alone(given))
            port = given.lowers[0].node.kubelet_port
            tls = pki.client_context(pki.apiserver)
            stream = Stream(*await asyncio.open_connection(ADDRESS, port, ssl=tls))
            await stream.send(request("GET /healthz"))
            assert (await stream.head()).status == 401
            await stream.close()
            await ports.close()
        [said] = [each for each in logs if each["event"] == "the client CA cannot be used"]
        assert "extension-apiserver-authentication" in said["why"]
        assert advice in said["why"]
        assert said["effect"] == "every request is rejected"


# Other files or another authority while nodes are served.


def renewed(before: KubeletServers, given: Topology, directory: Path, upper: Answering) -> KubeletServers:
    """Return the servers for an edited topology, with what the ones before were serving."""
    found = KubeletServers(given, directory, upper, ADDRESS, FileWatcher())
    found.serving.resume(before.serving.held())
    return found


async def test_files_that_cannot_be_read_after_an_edit_end_no_logs_and_exec(tmp_path: Path, pki: Pki) -> None:
    """The last good certificate stays in use, as if the files had become unreadable; other callers are verified."""
    async with leak_watch():
        ports, upper = spare_ports(1), Answering("")
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


async def test_a_node_that_left_with_an_edit_has_no_certificate_any_more(tmp_path: Path, pki: Pki) -> None:
    """Else its expiry would be reported until the engine ends."""
    async with leak_watch():
        given, upper = topology(spare_ports(2)), Answering("")
        before = KubeletServers(given, tmp_path, upper, ADDRESS, FileWatcher())
        for node in ("lower-0", "lower-1"):
            before.serving.context(node, "")
        after = renewed(before, given, tmp_path, upper)
        await before.close()
        assert set(after.expirations()) == {"lower-0", "lower-1"}
        await after.serve({"lower-0": alone(given)["lower-0"]})
        assert set(after.expirations()) == {"lower-0"}
        await after.close()


async def test_an_issued_certificate_outlasts_an_edit_of_the_client_authority(tmp_path: Path, pki: Pki) -> None:
    """Nobody has to approve another request; for another address, another one is needed."""
    async with leak_watch():
        given, upper = topology(spare_ports(1)), Answering("")
        before = KubeletServers(given, tmp_path, upper, ADDRESS, FileWatcher())
        before.serving.take("lower-0", pki.serving)
        assert renewed(before, given, tmp_path, upper).serving.issued("lower-0") == pki.serving
        elsewhere = KubeletServers(given, tmp_path, upper, "192.0.2.1", FileWatcher())
        elsewhere.serving.resume(before.serving.held())
        assert elsewhere.serving.issued("lower-0") is None
        await before.close()
