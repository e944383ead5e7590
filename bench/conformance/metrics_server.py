"""Runs a metrics-server in each of a sandbox's clusters, and kwok nodes whose pods report the use in their annotations.

For each pod kwok reports the cpu and memory that its annotations specify. The lower's metrics-server reads kwok, and
the upper's reads the engine's kubelet API as a user with only the rights of a metrics-server in production. The
apiserver finds either by a Service of type ExternalName for this machine, because the sandbox has no pod network.
"""

import os
import subprocess
from typing import NamedTuple, Self

import orjson

from bench.kit import topologies
from bench.kit.sites import Manifest
from tensile.sandbox.binaries import METRICS, Finder
from tensile.sandbox.processes import MARK
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import LOOPBACK

GROUP = "metrics.k8s.io"
USER = "metrics-server"
CPU, MEMORY = "kwok.x-k8s.io/usage-cpu", "kwok.x-k8s.io/usage-memory"
PATH = "/metrics/nodes/{}/metrics/resource"
RESOLUTION = "10s"
LIMIT = 30.0
_LABELS = {"container": "container.name", "namespace": "pod.metadata.namespace", "pod": "pod.metadata.name"}
_RBAC = "rbac.authorization.k8s.io"


class MetricsServer:
    """A metrics-server of one cluster; used with `with`. `flags` set how it reaches nodes."""

    def __init__(self, sandbox: Sandbox, cluster: str, port: int, *flags: str) -> None:
        self._sandbox = sandbox
        self._cluster = cluster
        self._port = port
        self._flags = flags
        self.log = sandbox.directory / f"metrics-server-{cluster}.log"

    def __enter__(self) -> Self:
        folder = self._sandbox.clusters[self._cluster].audit_log.parent
        credential = folder / "metrics-server.kubeconfig"
        credential.write_text(topologies.kubeconfig(self._sandbox.clusters[self._cluster], USER, ()))
        apply(self._sandbox, self._cluster, *_rights(), *_service(self._port))
        program = Finder(os.environ, print).find(METRICS) / METRICS.programs[0]
        command = [
            str(program),
            *(f"--{purpose}kubeconfig={credential}" for purpose in ("", "authentication-", "authorization-")),
            f"--kubelet-certificate-authority={folder / 'pki' / 'ca.crt'}",
            f"--cert-dir={folder / 'metrics-server'}",
            f"--bind-address={LOOPBACK}",
            f"--secure-port={self._port}",
            f"--metric-resolution={RESOLUTION}",
            "--kubelet-request-timeout=8s",
            "--kubelet-preferred-address-types=InternalIP",
            "--v=2",
            *self._flags,
        ]
        variables = {**os.environ, MARK: self._sandbox.state().identity}
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(command, env=variables, stdout=output, stderr=output)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Kill the process; calling it twice is harmless."""
        self._process.kill()
        self._process.wait(LIMIT)

    def remove(self) -> None:
        """Kill the process, and remove its API from the cluster."""
        self.stop()
        done = self._sandbox.kubectl("delete", "apiservice", f"v1beta1.{GROUP}", cluster=self._cluster)
        assert done.returncode == 0, done.stderr


class Used(NamedTuple):
    """What `kubectl top` reports: thousandths of a cpu, and MiB."""

    cpu: int
    memory: int


def top(sandbox: Sandbox, cluster: str, what: str, *arguments: str) -> dict[str, Used]:
    """Run `kubectl top` and return the use by name; rows with unknown values are left out."""
    done = sandbox.kubectl("top", what, "--no-headers", *arguments, cluster=cluster)
    rows = [line.split() for line in done.stdout.splitlines() if "<unknown>" not in line]
    place = 2 if what == "pod" else 3
    return {row[0]: Used(_number(row[1], "m"), _number(row[place], "Mi")) for row in rows}


def set_usage(sandbox: Sandbox, lower: str, port: int) -> None:
    """Let a lower's kwok serve the use of pods on that port, and annotate its nodes with the path."""
    cluster = sandbox.clusters[lower]
    folder = cluster.audit_log.parent
    config = folder / "use.yaml"
    config.write_bytes(b"\n---\n".join(map(orjson.dumps, (_metric(), _use()))))
    stem = folder / "pki" / "kubelet"
    extra = [f"--config={config}", f"--server-address={LOOPBACK}:{port}"]
    extra += [f"--tls-cert-file={stem}.crt", f"--tls-private-key-file={stem}.key"]
    sandbox.restart(lower, "kwok", extra=extra)
    for name in sandbox.state().clusters[lower].layout.node_names:
        annotation = f"{GROUP}/resource-metrics-path={PATH.format(name)}"
        done = sandbox.kubectl("annotate", "--overwrite", "node", name, annotation, cluster=lower)
        assert done.returncode == 0, done.stderr


def apply(sandbox: Sandbox, cluster: str, *manifests: Manifest) -> None:
    """Apply objects to a cluster."""
    text = orjson.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}).decode()
    done = sandbox.kubectl("apply", "-f", "-", cluster=cluster, stdin=text)
    assert done.returncode == 0, done.stderr


def _number(text: str, unit: str) -> int:
    assert text.endswith(unit), text
    return int(text.removesuffix(unit))


def _metric() -> Manifest:
    """Return the metrics that kwok serves for a node, as a kubelet would."""
    metrics = [
        _one("container_cpu_usage_seconds_total", "counter", 'pod.CumulativeUsage("cpu", container.name)'),
        _one("container_memory_working_set_bytes", "gauge", 'pod.Usage("memory", container.name)'),
        _one("node_cpu_usage_seconds_total", "counter", 'node.CumulativeUsage("cpu")'),
        _one("node_memory_working_set_bytes", "gauge", 'node.Usage("memory")'),
    ]
    return _kwok("Metric", {"path": PATH.format("{nodeName}"), "metrics": metrics})


def _one(name: str, kind: str, value: str) -> Manifest:
    dimension = name.partition("_")[0]
    labels = _LABELS if dimension == "container" else {}
    shown = [{"name": key, "value": expression} for key, expression in labels.items()]
    return {"name": name, "kind": kind, "dimension": dimension, "help": name, "labels": shown, "value": value}


def _use() -> Manifest:
    """Return the usage of pods: what their annotations specify, and next to nothing without them."""
    usage = {
        resource: {
            "expression": f'"{key}" in pod.metadata.annotations '
            f'? Quantity(pod.metadata.annotations["{key}"]) : Quantity("{least}")'
        }
        for resource, key, least in (("cpu", CPU, "1m"), ("memory", MEMORY, "1Mi"))
    }
    return _kwok("ClusterResourceUsage", {"usages": [{"usage": usage}]})


def _kwok(kind: str, spec: Manifest) -> Manifest:
    return {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": kind, "metadata": {"name": "use"}, "spec": spec}


def _rights() -> list[Manifest]:
    """Return the rights that a metrics-server has in production."""
    rules = [
        {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]},
    ]
    role = {"apiVersion": f"{_RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": USER}, "rules": rules}
    reader = _binding("RoleBinding", f"{USER}-reader", "Role", "extension-apiserver-authentication-reader")
    reader["metadata"]["namespace"] = "kube-system"
    delegator = _binding("ClusterRoleBinding", f"{USER}-delegator", "ClusterRole", "system:auth-delegator")
    return [role, _binding("ClusterRoleBinding", USER, "ClusterRole", USER), delegator, reader]


def _binding(kind: str, name: str, role_kind: str, role: str) -> Manifest:
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": kind,
        "metadata": {"name": name},
        "roleRef": {"apiGroup": _RBAC, "kind": role_kind, "name": role},
        "subjects": [{"apiGroup": _RBAC, "kind": "User", "name": USER}],
    }


def _service(port: int) -> list[Manifest]:
    """Return the Service and the APIService by which the apiserver finds the API."""
    where = {"name": USER, "namespace": "kube-system"}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": where,
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
    }
    spec = {
        "group": GROUP,
        "version": "v1beta1",
        "service": {**where, "port": port},
        "insecureSkipTLSVerify": True,
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
    }
    api = {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": f"v1beta1.{GROUP}"}}
    return [service, {**api, "spec": spec}]
