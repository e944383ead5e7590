"""Requests to a cluster's servers, the wait until they are ready, and the objects that the sandbox creates.

It uses only the standard library, since a client library would take longer to import than the few requests take. Each
wait watches the processes too: one that ends is reported at once, with its last lines of output, not after a timeout.

Nodes are created complete (addresses, kubelet port, capacity), as a kubelet registers itself; kwok only keeps them
Ready. The topology file is a text template, since it is the first one that many users read.
"""

import http.client
import json
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tensile.names import PROVISIONER
from tensile.sandbox import go_build
from tensile.sandbox.credentials import ADDONS, KUBELET_CLIENT, METRICS_NAMESPACE, METRICS_SERVICE
from tensile.sandbox.go_build import tail
from tensile.sandbox.processes import running
from tensile.sandbox.state import LOOPBACK, Layout, PortTakenError, Process, SandboxCluster, SandboxError

TIMEOUT = 5.0
LIMIT = 120.0
PAUSE = 0.03
NOT_ANSWERING = (OSError, http.client.HTTPException)
PORT_TAKEN = "address already in use"
ACCOUNT = "/api/v1/namespaces/default/serviceaccounts/default"
CORDONED = "node.kubernetes.io/unschedulable"
RESOURCES = {"cpu": "32", "memory": "256Gi", "pods": "500"}
STORAGE_CLASS = "standard"
"""The default StorageClass of each cluster. It has the same name in all, so that no topology needs an entry."""
LOWER_PROVISIONER = "sandbox.tensile-kube.io/folder"
METRICS_GROUP, METRICS_VERSION = "metrics.k8s.io", "v1beta1"
METRICS_SERVICE_PATH = f"/apis/apiregistration.k8s.io/v1/apiservices/{METRICS_VERSION}.{METRICS_GROUP}"
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
JSONObject = dict[str, Any]


@dataclass(frozen=True)
class Api:
    """One cluster's servers; `credential` names the client certificate to use, in the cluster's folder."""

    layout: Layout
    credential: str = "admin"

    def healthy(self, port: int, path: str) -> bool:
        """Report whether the server at a port responds to a path with 200."""
        try:
            return self._request(port, "GET", path)[0] == http.HTTPStatus.OK
        except NOT_ANSWERING:
            return False

    def get(self, path: str) -> dict[str, Any]:
        """Return the object or list at a path of the apiserver; empty if there is none or no response."""
        try:
            status, content = self._request(self.layout.ports.apiserver, "GET", path)
        except NOT_ANSWERING:
            return {}
        return json.loads(content) if status == http.HTTPStatus.OK else {}

    def create(self, path: str, manifest: dict[str, Any]) -> None:
        """Create an object; an existing one of that name is left unchanged.

        Raises:
            SandboxError: the apiserver denies the request or does not respond.
        """
        port = self.layout.ports.apiserver
        description = f"{self.layout.name}: create {manifest['kind']} {manifest['metadata']['name']}"
        try:
            status, content = self._request(port, "POST", path, json.dumps(manifest))
        except NOT_ANSWERING as error:
            raise SandboxError(f"{description}: no response ({error}); see {self.layout.output}") from error
        if status not in (http.HTTPStatus.CREATED, http.HTTPStatus.CONFLICT):
            raise SandboxError(f"{description}: {status}: {content.decode(errors='replace')}")

    def _request(self, port: int, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
        """Send one request on a connection of its own, and return the status and the body."""
        connection = _Connection(port, self._tls)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        """The client certificate to send, and the CA to trust."""
        context = ssl.create_default_context(cafile=str(self.layout.pki / "ca.crt"))
        stem = self.layout.pki / self.credential
        context.load_cert_chain(f"{stem}.crt", f"{stem}.key")
        return context


class _Connection(http.client.HTTPConnection):
    """A TLS connection whose socket can be closed at any moment.

    The standard library wraps a connected socket, and leaks it if the server is killed at that moment.
    """

    def __init__(self, port: int, tls: ssl.SSLContext) -> None:
        super().__init__(LOOPBACK, port, timeout=TIMEOUT)
        self._tls = tls

    def connect(self) -> None:
        """Connect, with the TLS handshake."""
        self.sock = self._tls.wrap_socket(socket.socket(), server_hostname=self.host)
        self.sock.settimeout(TIMEOUT)
        self.sock.connect((self.host, self.port))


Probe = Callable[[SandboxCluster, Api], bool]


def wait(clusters: Sequence[SandboxCluster], probe: Probe, description: str, limit: float = LIMIT) -> None:
    """Wait until the probe succeeds for every cluster.

    Raises:
        PortTakenError: a process ended because another program has its port.
        SandboxError: a process ended for another reason, or the limit (seconds) passed.
    """
    end = time.monotonic() + limit
    pending = [(cluster, Api(cluster.layout)) for cluster in clusters]
    while pending := [(cluster, api) for cluster, api in pending if not probe(cluster, api)]:
        for cluster, _ in pending:
            check_running(cluster)
        if time.monotonic() > end:
            names = ", ".join(cluster.layout.name for cluster, _ in pending)
            raise SandboxError(
                f"{names}: {description} not ready after {limit:.0f} s; see {pending[0][0].layout.output}"
            )
        time.sleep(PAUSE)


def check_running(cluster: SandboxCluster) -> None:
    """Raise SandboxError if a process of the cluster has ended."""
    for name, process in cluster.processes.items():
        if not running(process):
            raise ended_error(f"{cluster.layout.name}: {name}", process)


def ended_error(subject: str, process: Process) -> SandboxError:
    """Return the error that describes why a process ended."""
    output = Path(process.output)
    last_lines = tail(output)
    if PORT_TAKEN not in last_lines and (reason := go_build.of_program(output.read_text(errors="replace"))):
        return SandboxError(f"{subject} exited in {output.parent}: {reason}")
    kind = PortTakenError if PORT_TAKEN in last_lines else SandboxError
    return kind(f"{subject} exited; the last lines of {process.output}:\n{last_lines}")


def component(name: str) -> Probe:
    """Return the probe of one component; a component without a port counts as ready once it runs."""
    return PROBES.get(name, _always)


def cluster_ready(cluster: SandboxCluster, api: Api) -> bool:
    """Report whether pods can run: nodes are usable, and the default service account exists."""
    wanted = len(cluster.layout.node_names)
    nodes = api.get("/api/v1/nodes").get("items", []) if wanted else []
    return ready(nodes, wanted) and bool(api.get(ACCOUNT))


def ready(nodes: Sequence[JSONObject], wanted: int) -> bool:
    """Report whether that many nodes exist, all Ready and without taints other than a cordon's."""
    return len(nodes) >= wanted and all(map(_usable, nodes))


def _usable(manifest: JSONObject) -> bool:
    """Report whether pods can run on a node, ignoring its cordon."""
    conditions = manifest.get("status", {}).get("conditions", [])
    is_ready = any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)
    return is_ready and all(taint["key"] == CORDONED for taint in manifest["spec"].get("taints", []))


def _always(_cluster: SandboxCluster, _api: Api) -> bool:
    """Return True: a component without a port cannot be probed."""
    return True


def _apiserver(cluster: SandboxCluster, api: Api) -> bool:
    """Report whether the apiserver is ready, which includes its etcd and its bootstrap."""
    return api.healthy(cluster.layout.ports.apiserver, "/readyz")


def _controller_manager(cluster: SandboxCluster, api: Api) -> bool:
    """Report whether the controllers have started."""
    return api.healthy(cluster.layout.ports.controller_manager, "/healthz")


def _scheduler(cluster: SandboxCluster, api: Api) -> bool:
    """Report whether the scheduler's caches are in sync."""
    return api.healthy(cluster.layout.ports.scheduler, "/readyz")


def _endpoint(cluster: SandboxCluster, _api: Api) -> bool:
    """Report whether the endpoint accepts the apiserver's client certificate."""
    return Api(cluster.layout, "kubelet-client").healthy(cluster.layout.ports.endpoint, "/healthz")


def _addons(cluster: SandboxCluster, _api: Api) -> bool:
    """Report whether the metrics APIs are served; they accept the apiserver's front proxy only."""
    return Api(cluster.layout, "front-proxy").healthy(cluster.layout.ports.addons, "/healthz")


def metrics_available(_cluster: SandboxCluster, api: Api) -> bool:
    """Report whether the apiserver has found its metrics API."""
    conditions = api.get(METRICS_SERVICE_PATH).get("status", {}).get("conditions", [])
    return any(one["type"] == "Available" and one["status"] == "True" for one in conditions)


PROBES: dict[str, Probe] = {
    "etcd": _apiserver,
    "kube-apiserver": _apiserver,
    "kube-controller-manager": _controller_manager,
    "kube-scheduler": _scheduler,
    "endpoint": _endpoint,
    ADDONS: _addons,
}


def node(name: str, layout: Layout, version: str) -> JSONObject:
    """Return a node whose kubelet API is the cluster's endpoint; a node of the upper cluster is cordoned.

    `version` is the release that its kubelet reports.
    """
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
            "nodeInfo": node_info(version),
        },
    }


def node_info(version: str) -> dict[str, str]:
    """Return the nodeInfo of a node; the API requires every field."""
    empty = dict.fromkeys(("bootID", "machineID", "systemUUID", "kubeProxyVersion"), "")
    return {
        **empty,
        "architecture": "amd64",
        "operatingSystem": "linux",
        "osImage": "sandbox",
        "kernelVersion": "sandbox",
        "containerRuntimeVersion": "sandbox://1",
        "kubeletVersion": version,
    }


def kubelet_binding() -> JSONObject:
    """Return the ClusterRoleBinding that lets the apiserver call kubelets."""
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": KUBELET_CLIENT},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "system:kubelet-api-admin"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": KUBELET_CLIENT}],
    }


def addons(layout: Layout) -> list[tuple[str, JSONObject]]:
    """Return the objects of the addons of a cluster, each with the path of its collection."""
    service_key = {"name": METRICS_SERVICE, "namespace": METRICS_NAMESPACE}
    port = layout.ports.addons
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": service_key,
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
    }
    registration = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"{METRICS_VERSION}.{METRICS_GROUP}"},
        "spec": {
            "group": METRICS_GROUP,
            "version": METRICS_VERSION,
            "service": {**service_key, "port": port},
            "caBundle": b64encode((layout.pki / "ca.crt").read_bytes()).decode(),
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
        },
    }
    return [
        ("/apis/storage.k8s.io/v1/storageclasses", storage_class(layout)),
        (f"/api/v1/namespaces/{METRICS_NAMESPACE}/services", service),
        (METRICS_SERVICE_PATH.rpartition("/")[0], registration),
    ]


def storage_class(layout: Layout) -> JSONObject:
    """Return the default StorageClass of a cluster; that of the upper cluster leads to the lower clusters."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": STORAGE_CLASS,
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": LOWER_PROVISIONER if layout.place else PROVISIONER,
        "volumeBindingMode": "WaitForFirstConsumer",
        "reclaimPolicy": "Delete",
        "allowVolumeExpansion": True,
    }


def topology(lowers: Sequence[str], kubelet_port: int, telemetry_port: int, extender_port: int = 0) -> str:
    """Return a topology file for these lowers, with relative paths; extender port 0 means no extender."""
    return (TOPOLOGY + (EXTENDER if extender_port else "")).format(
        lowers="".join(LOWER.format(name=name) for name in lowers) or " []",
        address=LOOPBACK,
        kubelet=kubelet_port,
        telemetry=telemetry_port,
        extender=extender_port,
    )
