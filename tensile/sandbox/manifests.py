"""What the sandbox creates in its clusters and writes for its user: nodes, one binding, the topology file.

Nodes are created whole (addresses, kubelet port, capacity), as a kubelet registers itself; kwok then only keeps them
Ready. The topology file is text and not a dump, because it is the first one that many users see.
"""

from collections.abc import Sequence
from typing import Any

from tensile.sandbox.credentials import KUBELET_CLIENT
from tensile.sandbox.layout import LOOPBACK, Layout

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
    """Tell whether that many nodes are there, all Ready and without a taint but a cordon's."""
    return len(nodes) >= wanted and all(map(_usable, nodes))


def _usable(one: Manifest) -> bool:
    """Tell whether pods can run on a node, its cordon aside."""
    conditions = one.get("status", {}).get("conditions", [])
    is_ready = any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)
    return is_ready and all(taint["key"] == CORDONED for taint in one["spec"].get("taints", []))
