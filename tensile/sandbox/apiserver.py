"""Asks a cluster's servers, with the standard library alone.

The sandbox needs a handful of requests while it starts; a client library would cost more to import than they take.

Waits until what was started answers, and says why when it does not.

Each wait watches the processes too: one that ended is reported at once with its last words instead of after a time-out.

What the sandbox creates in its clusters and writes for its user: nodes, one binding, the topology file.

Nodes are created whole (addresses, kubelet port, capacity), as a kubelet registers itself; kwok then only keeps them
Ready. The topology file is text and not a dump, because it is the first one that many users see.
"""

import http.client
import json
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tensile.sandbox import go_build
from tensile.sandbox.credentials import KUBELET_CLIENT
from tensile.sandbox.go_build import tail
from tensile.sandbox.layout import LOOPBACK, Layout, PortTakenError, SandboxError
from tensile.sandbox.processes import running
from tensile.sandbox.state import Cluster, Process

TIMEOUT = 5.0
NOT_ANSWERING = (OSError, http.client.HTTPException)


@dataclass(frozen=True)
class Api:
    """One cluster's servers; `credential` names the certificate (in the cluster's folder) to show."""

    layout: Layout
    credential: str = "admin"

    def healthy(self, port: int, path: str) -> bool:
        """Report whether the server at that port answers the path with 200."""
        try:
            return self._request(port, "GET", path)[0] == http.HTTPStatus.OK
        except NOT_ANSWERING:
            return False

    def get(self, path: str) -> dict[str, Any]:
        """Return the object or list at that path of the apiserver; empty when there is none or no answer."""
        try:
            status, content = self._request(self.layout.ports.apiserver, "GET", path)
        except NOT_ANSWERING:
            return {}
        return json.loads(content) if status == http.HTTPStatus.OK else {}

    def create(self, path: str, manifest: dict[str, Any]) -> None:
        """Create an object; one of that name that exists is taken as it is.

        Raises:
            SandboxError: the apiserver says no, or nothing.
        """
        port = self.layout.ports.apiserver
        what = f"{self.layout.name}: create {manifest['kind']} {manifest['metadata']['name']}"
        try:
            status, content = self._request(port, "POST", path, json.dumps(manifest))
        except NOT_ANSWERING as error:
            raise SandboxError(f"{what}: no answer ({error}); see {self.layout.output}") from error
        if status not in (http.HTTPStatus.CREATED, http.HTTPStatus.CONFLICT):
            raise SandboxError(f"{what}: {status}: {content.decode(errors='replace')}")

    def _request(self, port: int, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
        """Ask once, on a connection of its own; return the status and the body."""
        connection = _Connection(port, self._tls)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        """What this side shows, and whom it believes."""
        context = ssl.create_default_context(cafile=str(self.layout.pki / "ca.crt"))
        stem = self.layout.pki / self.credential
        context.load_cert_chain(f"{stem}.crt", f"{stem}.key")
        return context


class _Connection(http.client.HTTPConnection):
    """One connection by TLS, whose socket can be closed at every moment.

    The standard library wraps a socket that is connected already, and loses it where the server is killed just then.
    """

    def __init__(self, port: int, tls: ssl.SSLContext) -> None:
        super().__init__(LOOPBACK, port, timeout=TIMEOUT)
        self._tls = tls

    def connect(self) -> None:
        """Connect and shake hands."""
        self.sock = self._tls.wrap_socket(socket.socket(), server_hostname=self.host)
        self.sock.settimeout(TIMEOUT)
        self.sock.connect((self.host, self.port))


Manifest = dict[str, Any]

RESOURCES = {"cpu": "32", "memory": "256Gi", "pods": "500"}
CORDONED = "node.kubernetes.io/unschedulable"
KUBELET_VERSION = "v1.36.3"

TOPOLOGY = """\
# Made by `tensile sandbox up`; `tensile sandbox down` removes it. `tensile run` reloads it when it changes.
apiVersion: tensile-kube.io/v1alpha1
kind: Topology
name: sandbox
upper:
  kubeconfig: upper.kubeconfig
lowers:{lowers}
kubelet:
  bind: {address}
  port: {kubelet}
  nodeAddress: {address}
  tlsCertFile: kubelet.crt
  tlsKeyFile: kubelet.key
telemetry:
  bind: {address}
  port: {telemetry}
"""
EXTENDER = """\
extender:
  enabled: true
  bind: {address}
  port: {extender}
"""
LOWER = """
- name: {name}
  kubeconfig: {name}.kubeconfig"""


def node(name: str, layout: Layout) -> Manifest:
    """Return a node whose kubelet API is the cluster's endpoint; one of the upper cluster is cordoned."""
    labels = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "kubernetes.io/hostname": name}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": {"kwok.x-k8s.io/node": "fake"}},
        "spec": {"unschedulable": layout.place == 0},
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": LOOPBACK},
                {"type": "Hostname", "address": name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": layout.ports.endpoint}},
            "capacity": RESOURCES,
            "allocatable": RESOURCES,
            "nodeInfo": node_info(),
        },
    }


def node_info() -> dict[str, str]:
    """Return the node's description; the API requires every field."""
    empty = dict.fromkeys(("bootID", "machineID", "systemUUID", "kubeProxyVersion"), "")
    return {
        **empty,
        "architecture": "amd64",
        "operatingSystem": "linux",
        "osImage": "sandbox",
        "kernelVersion": "sandbox",
        "containerRuntimeVersion": "sandbox://1",
        "kubeletVersion": KUBELET_VERSION,
    }


def kubelet_binding() -> Manifest:
    """Return the binding that lets the apiserver's own certificate call kubelets."""
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": KUBELET_CLIENT},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "system:kubelet-api-admin"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": KUBELET_CLIENT}],
    }


def topology(lowers: Sequence[str], kubelet_port: int, telemetry_port: int, extender_port: int = 0) -> str:
    """Return a topology file for these lowers, with paths relative to its own place; without an extender for port 0."""
    return (TOPOLOGY + (EXTENDER if extender_port else "")).format(
        lowers="".join(LOWER.format(name=name) for name in lowers) or " []",
        address=LOOPBACK,
        kubelet=kubelet_port,
        telemetry=telemetry_port,
        extender=extender_port,
    )


def ready(nodes: Sequence[Manifest], wanted: int) -> bool:
    """Report whether that many nodes are there, all Ready and without a taint but a cordon's."""
    return len(nodes) >= wanted and all(map(_usable, nodes))


def _usable(one: Manifest) -> bool:
    """Report whether pods can run on a node, its cordon aside."""
    conditions = one.get("status", {}).get("conditions", [])
    is_ready = any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)
    return is_ready and all(taint["key"] == CORDONED for taint in one["spec"].get("taints", []))


LIMIT = 120.0
PAUSE = 0.03
PORT_TAKEN = "address already in use"
ACCOUNT = "/api/v1/namespaces/default/serviceaccounts/default"

Probe = Callable[[Cluster, Api], bool]


def component(name: str) -> Probe:
    """Return the probe of one component; those without a port of their own count as ready once they run."""
    return PROBES.get(name, _always)


def cluster_ready(cluster: Cluster, api: Api) -> bool:
    """Report whether pods can run: nodes are usable, and the default namespace has its service account."""
    wanted = len(cluster.layout.node_names)
    nodes = api.get("/api/v1/nodes").get("items", []) if wanted else []
    return ready(nodes, wanted) and bool(api.get(ACCOUNT))


def wait(clusters: Sequence[Cluster], probe: Probe, what: str, limit: float = LIMIT) -> None:
    """Wait until the probe holds for every cluster.

    Raises:
        PortTakenError: a process ended because another program has its port.
        SandboxError: a process ended for another reason, or the limit (seconds) passed.
    """
    end = time.monotonic() + limit
    left = [(cluster, Api(cluster.layout)) for cluster in clusters]
    while left := [(cluster, api) for cluster, api in left if not probe(cluster, api)]:
        for cluster, _ in left:
            check_running(cluster)
        if time.monotonic() > end:
            names = ", ".join(cluster.layout.name for cluster, _ in left)
            raise SandboxError(f"{names}: {what} not ready after {limit:.0f} s; see {left[0][0].layout.output}")
        time.sleep(PAUSE)


def check_running(cluster: Cluster) -> None:
    """Raise when a process of the cluster ended."""
    for name, process in cluster.processes.items():
        if not running(process):
            raise ended(f"{cluster.layout.name}: {name}", process)


def ended(what: str, process: Process) -> SandboxError:
    """Return the error that tells why a process ended."""
    output = Path(process.output)
    words = tail(output)
    if PORT_TAKEN not in words and (why := go_build.of_program(output.read_text(errors="replace"))):
        return SandboxError(f"{what} ended in {output.parent}: {why}")
    kind = PortTakenError if PORT_TAKEN in words else SandboxError
    return kind(f"{what} ended; the last lines of {process.output}:\n{words}")


def _always(_cluster: Cluster, _api: Api) -> bool:
    """What has no port of its own cannot be asked."""
    return True


def _apiserver(cluster: Cluster, api: Api) -> bool:
    """The apiserver says so itself, its etcd and its bootstrap included."""
    return api.healthy(cluster.layout.ports.apiserver, "/readyz")


def _controller_manager(cluster: Cluster, api: Api) -> bool:
    """Its controllers have started."""
    return api.healthy(cluster.layout.ports.controller_manager, "/healthz")


def _scheduler(cluster: Cluster, api: Api) -> bool:
    """Its caches are in sync."""
    return api.healthy(cluster.layout.ports.scheduler, "/readyz")


def _endpoint(cluster: Cluster, _api: Api) -> bool:
    """It answers the certificate that the apiserver shows."""
    return Api(cluster.layout, "kubelet-client").healthy(cluster.layout.ports.endpoint, "/healthz")


PROBES: dict[str, Probe] = {
    "etcd": _apiserver,
    "kube-apiserver": _apiserver,
    "kube-controller-manager": _controller_manager,
    "kube-scheduler": _scheduler,
    "endpoint": _endpoint,
}
