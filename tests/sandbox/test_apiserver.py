"""Tests of the sandbox's own requests and waits, against a scripted server."""

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


class TableHandler(http.server.BaseHTTPRequestHandler):
    """Answers each path with the status and the body in the server's table."""

    table: dict[str, tuple[int, Any]]
    requests: list[tuple[str, str, str | None]]

    def do_GET(self) -> None:
        """Answer a GET."""
        self._answer(None)

    def do_POST(self) -> None:
        """Answer a POST, and record its body."""
        self._answer(self.rfile.read(int(self.headers["Content-Length"])).decode())

    def _answer(self, body: str | None) -> None:
        """Answer from the table."""
        self.requests.append((self.command, self.path, body))
        status, content = self.table.get(self.path, (404, {}))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *_arguments: object) -> None:
        """Log nothing."""


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """Return the layout of a cluster with credentials and free ports."""
    (run,) = processes.choose([6])
    made = Layout(str(tmp_path), "lower-a", 1, 1, Ports(*run))
    credentials.write(made, datetime.now(UTC))
    return made


@pytest.fixture
def script(layout: Layout) -> Iterator[type[TableHandler]]:
    """A server in the place of the apiserver that accepts only clients with a certificate of the cluster."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(layout.pki / "apiserver.crt", layout.pki / "apiserver.key")
    context.load_verify_locations(layout.pki / "ca.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    scripted = type("Scripted", (TableHandler,), {"table": {}, "requests": []})
    server = http.server.ThreadingHTTPServer((LOOPBACK, layout.ports.apiserver), scripted)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield scripted
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_server_is_healthy_if_it_answers_200(layout: Layout, script: type[TableHandler]) -> None:
    """Any other status means that the server is not healthy."""
    script.table = {"/readyz": (200, "ok"), "/livez": (500, "not ok")}
    api = Api(layout)
    assert api.healthy(layout.ports.apiserver, "/readyz")
    assert not api.healthy(layout.ports.apiserver, "/livez")
    assert not api.healthy(layout.ports.apiserver, "/missing")


def test_a_server_that_does_not_exist_is_not_healthy(layout: Layout) -> None:
    """A refused connection is no error, because the server may still start."""
    assert not Api(layout).healthy(layout.ports.apiserver, "/readyz")


def test_a_server_of_another_cluster_is_not_healthy(layout: Layout, script: type[TableHandler], tmp_path: Path) -> None:
    """A server of another cluster on the port is not mistaken for this cluster's, even if it would answer 200."""
    script.table = {"/readyz": (200, "ok")}
    stranger = Layout(str(tmp_path / "other"), "lower-b", 2, 1, layout.ports)
    credentials.write(stranger, datetime.now(UTC))
    assert not Api(stranger).healthy(layout.ports.apiserver, "/readyz")
    assert script.requests == []


def test_get_returns_an_object_or_an_empty_one_if_it_is_missing(layout: Layout, script: type[TableHandler]) -> None:
    """An existing object is returned unchanged, a missing one as an empty object."""
    script.table = {"/api/v1/nodes/n": (200, OBJECT)}
    assert Api(layout).get("/api/v1/nodes/n") == OBJECT
    assert Api(layout).get("/api/v1/nodes/other") == {}


def test_get_returns_an_empty_object_if_the_server_does_not_answer(layout: Layout) -> None:
    """A server that is down is treated as one that has no objects yet."""
    assert Api(layout).get("/api/v1/nodes/n") == {}


@pytest.mark.parametrize("status", [201, 409])
def test_create_succeeds_if_the_object_is_new_or_exists(
    layout: Layout, script: type[TableHandler], status: int
) -> None:
    """One POST is enough in both cases, whoever created the object."""
    script.table = {"/api/v1/nodes": (status, {})}
    Api(layout).create("/api/v1/nodes", OBJECT)
    ((verb, path, body),) = script.requests
    assert (verb, path, json.loads(body or "")) == ("POST", "/api/v1/nodes", OBJECT)


def test_a_refused_create_is_reported_with_the_servers_message(layout: Layout, script: type[TableHandler]) -> None:
    """The error names the object and the cluster, and includes the server's reason."""
    script.table = {"/api/v1/nodes": (422, {"message": "bad name"})}
    with pytest.raises(SandboxError, match=r"lower-a: create Node n: 422: .*bad name"):
        Api(layout).create("/api/v1/nodes", OBJECT)


def test_a_create_without_an_answer_is_reported(layout: Layout) -> None:
    """The error names the object, the cluster, and the folder of the servers' output."""
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


def test_wait_returns_as_soon_as_the_probe_holds(sleeping: SandboxCluster) -> None:
    """The probe is called until it returns true, and not again."""
    answers = iter([False, False, True])
    apiserver.wait([sleeping], lambda _cluster, _api: next(answers), "it")
    assert list(answers) == []


def test_wait_for_no_cluster_returns_immediately() -> None:
    """Without clusters the probe is not needed, even if it never holds."""
    apiserver.wait([], lambda _cluster, _api: False, "it", limit=0.0)


def test_wait_fails_after_its_limit(sleeping: SandboxCluster) -> None:
    """The error names the cluster, the awaited condition, and the folder of the output."""
    with pytest.raises(SandboxError, match=r"lower-a: the moon not ready after 0 s; see .*output"):
        apiserver.wait([sleeping], lambda _cluster, _api: False, "the moon", limit=0.0)


def test_wait_reports_a_process_that_exited_with_its_last_output(layout: Layout) -> None:
    """The wait fails early, because the condition cannot hold any more."""
    cluster = started(layout, ["/bin/sh", "-c", "echo the disk is full; exit 3"])
    with pytest.raises(SandboxError, match=r"lower-a: etcd exited; .*etcd\.log:\nthe disk is full") as caught:
        apiserver.wait([cluster], lambda _cluster, _api: False, "it")
    assert not isinstance(caught.value, PortTakenError)


def test_wait_raises_port_taken_error_if_a_port_is_taken(layout: Layout) -> None:
    """The error has its own class, so that the caller can try other ports."""
    message = "listen tcp 127.0.0.1:1: bind: address already in use"
    cluster = started(layout, ["/bin/sh", "-c", f"echo '{message}'; exit 1"])
    with pytest.raises(PortTakenError, match="address already in use"):
        apiserver.wait([cluster], lambda _cluster, _api: False, "it")


def test_a_cluster_is_ready_with_a_usable_node_and_the_default_account(
    layout: Layout, sleeping: SandboxCluster, script: type[TableHandler]
) -> None:
    """Pods can run only if a node is usable and the default service account exists."""
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
def test_each_component_is_probed_at_its_own_port(
    layout: Layout, script: type[TableHandler], component: str, port: str, path: str
) -> None:
    """A component is ready if its own port answers so; etcd is probed through the apiserver, which needs it."""
    script.table = {path: (200, "ok")}
    where = Ports(**dict.fromkeys(Ports.__struct_fields__, 1) | {port: layout.ports.apiserver})
    moved = Layout(layout.root, layout.name, 1, 1, where)
    probe = apiserver.component(component)
    assert probe(SandboxCluster(moved), Api(moved))
    script.table = {}
    assert not probe(SandboxCluster(moved), Api(moved))


def test_a_component_without_a_port_is_ready_once_it_runs(sleeping: SandboxCluster) -> None:
    """Kwok has no endpoint that could be probed."""
    assert apiserver.component("kwok")(sleeping, Api(sleeping.layout))


def test_check_running_reports_a_process_that_exited(layout: Layout) -> None:
    """A process that exited by itself is an error of its cluster."""
    cluster = started(layout, ["/bin/true"])
    until(lambda: not processes.running(cluster.processes["etcd"]), "the end of the process")
    with pytest.raises(SandboxError, match="lower-a: etcd exited"):
        apiserver.check_running(cluster)
