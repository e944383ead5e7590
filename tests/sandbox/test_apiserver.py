"""The sandbox's own requests and its waiting, against a scripted server."""

import http.server
import json
import ssl
import threading
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sandbox_waiting import until

from tensile.sandbox import apiserver, credentials, processes
from tensile.sandbox.apiserver import Api
from tensile.sandbox.state import LOOPBACK, Layout, Ports, PortTakenError, SandboxCluster, SandboxError

OBJECT: dict[str, Any] = {"kind": "Node", "metadata": {"name": "n"}}


class Script(http.server.BaseHTTPRequestHandler):
    """Answers each path with the status and the body that stand in the server's table."""

    table: dict[str, tuple[int, Any]]
    asked: list[tuple[str, str, str | None]]

    def do_GET(self) -> None:
        """Answer a GET."""
        self._answer(None)

    def do_POST(self) -> None:
        """Answer a POST, and remember what was sent."""
        self._answer(self.rfile.read(int(self.headers["Content-Length"])).decode())

    def _answer(self, body: str | None) -> None:
        """Answer from the table."""
        self.asked.append((self.command, self.path, body))
        status, content = self.table.get(self.path, (404, {}))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *_arguments: object) -> None:
        """Log nothing."""


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A cluster with credentials and free ports."""
    (run,) = processes.choose([6])
    made = Layout(str(tmp_path), "lower-a", 1, 1, Ports(*run))
    credentials.write(made, datetime.now(UTC))
    return made


@pytest.fixture
def script(layout: Layout) -> Iterator[type[Script]]:
    """A server in the place of the apiserver that only takes clients with a certificate of the cluster."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(layout.pki / "apiserver.crt", layout.pki / "apiserver.key")
    context.load_verify_locations(layout.pki / "ca.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    scripted = type("Scripted", (Script,), {"table": {}, "asked": []})
    server = http.server.ThreadingHTTPServer((LOOPBACK, layout.ports.apiserver), scripted)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield scripted
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_server_that_says_so_is_healthy(layout: Layout, script: type[Script]) -> None:
    """200 is health, everything else is not."""
    script.table = {"/readyz": (200, "ok"), "/livez": (500, "not ok")}
    api = Api(layout)
    assert api.healthy(layout.ports.apiserver, "/readyz")
    assert not api.healthy(layout.ports.apiserver, "/livez")
    assert not api.healthy(layout.ports.apiserver, "/missing")


def test_a_server_that_is_not_there_is_not_healthy(layout: Layout) -> None:
    """A refused connection is no error while one waits."""
    assert not Api(layout).healthy(layout.ports.apiserver, "/readyz")


def test_a_server_of_another_cluster_is_not_healthy(layout: Layout, script: type[Script], tmp_path: Path) -> None:
    """A stranger on the port is not taken for the cluster, whatever it answers."""
    script.table = {"/readyz": (200, "ok")}
    stranger = Layout(str(tmp_path / "other"), "lower-b", 2, 1, layout.ports)
    credentials.write(stranger, datetime.now(UTC))
    assert not Api(stranger).healthy(layout.ports.apiserver, "/readyz")
    assert script.asked == []


def test_what_is_there_is_got(layout: Layout, script: type[Script]) -> None:
    """An object is returned as it is, a missing one as nothing."""
    script.table = {"/api/v1/nodes/n": (200, OBJECT)}
    assert Api(layout).get("/api/v1/nodes/n") == OBJECT
    assert Api(layout).get("/api/v1/nodes/other") == {}


def test_without_an_answer_nothing_is_got(layout: Layout) -> None:
    """A server that is down has nothing yet."""
    assert Api(layout).get("/api/v1/nodes/n") == {}


@pytest.mark.parametrize("status", [201, 409])
def test_an_object_is_created_once(layout: Layout, script: type[Script], status: int) -> None:
    """Creating is done when the object is there, whoever made it."""
    script.table = {"/api/v1/nodes": (status, {})}
    Api(layout).create("/api/v1/nodes", OBJECT)
    ((verb, path, body),) = script.asked
    assert (verb, path, json.loads(body or "")) == ("POST", "/api/v1/nodes", OBJECT)


def test_a_refusal_is_told_in_the_servers_words(layout: Layout, script: type[Script]) -> None:
    """The error says which object, in which cluster, and why not."""
    script.table = {"/api/v1/nodes": (422, {"message": "bad name"})}
    with pytest.raises(SandboxError, match=r"lower-a: create Node n: 422: .*bad name"):
        Api(layout).create("/api/v1/nodes", OBJECT)


def test_no_answer_to_a_create_is_told(layout: Layout) -> None:
    """The error says where the servers' output is."""
    with pytest.raises(SandboxError, match=r"lower-a: create Node n: no response .*output"):
        Api(layout).create("/api/v1/nodes", OBJECT)


def started(layout: Layout, command: list[str]) -> SandboxCluster:
    """Return a cluster with one process, which runs the command."""
    variables = processes.environment(uuid.uuid4().hex, layout.directory)
    process = processes.spawn(command, variables, layout.output / "etcd.log")
    return SandboxCluster(layout, {"etcd": process})


@pytest.fixture
def sleeping(layout: Layout) -> Iterator[SandboxCluster]:
    """A cluster whose one process sleeps."""
    cluster = started(layout, ["/bin/sleep", "600"])
    yield cluster
    processes.send(cluster.processes["etcd"], processes.signal.SIGKILL)


def test_waiting_ends_when_the_probe_holds(sleeping: SandboxCluster) -> None:
    """The probe is asked until it says yes, and no more."""
    answers = iter([False, False, True])
    apiserver.wait([sleeping], lambda _cluster, _api: next(answers), "it")
    assert list(answers) == []


def test_waiting_for_no_cluster_is_short() -> None:
    """Nothing is ready at once."""
    apiserver.wait([], lambda _cluster, _api: False, "it", limit=0.0)


def test_waiting_has_an_end(sleeping: SandboxCluster) -> None:
    """The error says which cluster, what was waited for, and where to look."""
    with pytest.raises(SandboxError, match=r"lower-a: the moon not ready after 0 s; see .*output"):
        apiserver.wait([sleeping], lambda _cluster, _api: False, "the moon", limit=0.0)


def test_a_process_that_ended_is_told_with_its_last_words(layout: Layout) -> None:
    """Nobody waits for what cannot come any more."""
    cluster = started(layout, ["/bin/sh", "-c", "echo the disk is full; exit 3"])
    with pytest.raises(SandboxError, match=r"lower-a: etcd exited; .*etcd\.log:\nthe disk is full") as caught:
        apiserver.wait([cluster], lambda _cluster, _api: False, "it")
    assert not isinstance(caught.value, PortTakenError)


def test_a_taken_port_is_an_error_of_its_own(layout: Layout) -> None:
    """Whoever starts the servers knows that other ports would do."""
    words = "listen tcp 127.0.0.1:1: bind: address already in use"
    cluster = started(layout, ["/bin/sh", "-c", f"echo '{words}'; exit 1"])
    with pytest.raises(PortTakenError, match="address already in use"):
        apiserver.wait([cluster], lambda _cluster, _api: False, "it")


def test_a_cluster_is_ready_with_its_nodes_and_its_account(
    layout: Layout, sleeping: SandboxCluster, script: type[Script]
) -> None:
    """Pods can run once a node is usable and the default account exists."""
    usable = {"spec": {}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    script.table = {"/api/v1/nodes": (200, {"items": []}), apiserver.ACCOUNT: (200, OBJECT)}
    assert not apiserver.cluster_ready(sleeping, Api(layout))
    script.table["/api/v1/nodes"] = (200, {"items": [usable]})
    assert apiserver.cluster_ready(sleeping, Api(layout))
    del script.table[apiserver.ACCOUNT]
    assert not apiserver.cluster_ready(sleeping, Api(layout))


@pytest.mark.parametrize(
    ("component", "port", "path"),
    [
        ("kube-apiserver", "apiserver", "/readyz"),
        ("kube-controller-manager", "controller_manager", "/healthz"),
        ("kube-scheduler", "scheduler", "/readyz"),
        ("etcd", "apiserver", "/readyz"),
    ],
)
def test_each_component_is_asked_where_it_listens(
    layout: Layout, script: type[Script], component: str, port: str, path: str
) -> None:
    """A component is ready when its own port says so; etcd shows by the apiserver that needs it."""
    script.table = {path: (200, "ok")}
    where = Ports(**dict.fromkeys(Ports.__struct_fields__, 1) | {port: layout.ports.apiserver})
    moved = Layout(layout.root, layout.name, 1, 1, where)
    probe = apiserver.component(component)
    assert probe(SandboxCluster(moved), Api(moved))
    script.table = {}
    assert not probe(SandboxCluster(moved), Api(moved))


def test_a_component_without_a_port_is_ready_once_it_runs(sleeping: SandboxCluster) -> None:
    """Nothing can be asked of kwok."""
    assert apiserver.component("kwok")(sleeping, Api(sleeping.layout))


def test_a_process_that_ends_while_all_is_ready_is_not_missed(layout: Layout) -> None:
    """The check finds a process that ended by itself."""
    cluster = started(layout, ["/bin/true"])
    until(lambda: not processes.running(cluster.processes["etcd"]), "the end of the process")
    with pytest.raises(SandboxError, match="lower-a: etcd exited"):
        apiserver.check_running(cluster)
