"""The objects that the benches create, as plain data.

The pods request minimal resources, and most stop immediately, so that the measured time is that of the engine and the
control planes.
"""

from typing import Any

from tensile.names import CLUSTER_ID, VIRTUAL_POD

Manifest = dict[str, Any]
PROVIDER = {"key": "virtual-kubelet.io/provider", "operator": "Exists"}


def pod_spec(lower: str = "", grace: int = 0) -> Manifest:
    """Return a pod's spec; `lower` binds it to that lower's virtual node, `grace` is in seconds.

    With a grace period of 0 the upper apiserver removes a pod immediately, without waiting for a kubelet.
    """
    spec: Manifest = {
        "tolerations": [PROVIDER],
        "terminationGracePeriodSeconds": grace,
        "containers": [
            {"name": "c", "image": "nginx", "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}}},
        ],
    }
    return {**spec, "nodeSelector": {CLUSTER_ID: lower}} if lower else spec


def deployment(name: str, replicas: int, lower: str = "", grace: int = 0) -> Manifest:
    """Return a Deployment; its pods carry the label `app` with its name."""
    labels = {"app": name, VIRTUAL_POD: "true"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": labels}, "spec": pod_spec(lower, grace)},
        },
    }


def pod(name: str, group: str) -> Manifest:
    """Return a pod without an owner; `group` is its label `app`."""
    labels = {"app": group, VIRTUAL_POD: "true"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": pod_spec()}
