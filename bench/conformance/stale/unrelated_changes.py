"""Changes that must not make a saved plan stale: those that happen by themselves, and those it does not depend on.

Each is made between the plan and `apply`, which then applies the step of the plan: the label of lower-a's Node.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from bench.conformance.stale.other_changes import SPACES
from bench.conformance.stale.setup import A, B, PlanClusters
from bench.kit.sites import NODES, Manifest, Refused
from tensile.objects import timestamp
from tensile.sandbox.state import UPPER

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
Change = Callable[[PlanClusters], Awaitable[Any]]
SHOP = "harmless"


def patch(cluster: str, path: str, body: Manifest) -> Change:
    """Return the change by a merge patch."""
    return lambda clusters: clusters.patch(cluster, path, body)


def create(cluster: str, collection: str, name: str, body: Manifest) -> Change:
    """Return the creation of an object."""
    return lambda clusters: clusters.create(cluster, collection, name, body)


def _condition(kind: str, status: str) -> Manifest:
    now = timestamp(_now())
    return {"type": kind, "status": status, "reason": "Later", "message": "said later", "lastTransitionTime": now}


def _now() -> datetime:
    return datetime.now(UTC)


async def _heartbeat(clusters: PlanClusters) -> None:
    """Renew the heartbeats of lower-a's virtual node, as an engine does."""
    found = await clusters.upper.call("GET", f"{NODES}/{A}")
    conditions = [{**one, "lastHeartbeatTime": timestamp(_now())} for one in found["status"]["conditions"]]
    await clusters.patch(UPPER, f"{NODES}/{A}/status", {"status": {"conditions": conditions}})


async def _node_condition(clusters: PlanClusters) -> None:
    """Add a condition of another client to lower-b's virtual node, beside those of the engine."""
    found = await clusters.upper.call("GET", f"{NODES}/{B}")
    conditions = [*found["status"]["conditions"], _condition("example.com/Seen", "True")]
    await clusters.patch(UPPER, f"{NODES}/{B}/status", {"status": {"conditions": conditions}})


async def _lease(clusters: PlanClusters) -> None:
    """Renew the lease of lower-a's virtual node."""
    now = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())
    with suppress(Refused):
        await clusters.create(UPPER, LEASES, A, {"spec": {"holderIdentity": A, "leaseDurationSeconds": 40}})
    await clusters.patch(UPPER, f"{LEASES}/{A}", {"spec": {"renewTime": now}})


async def _touched(clusters: PlanClusters) -> None:
    """Rewrite the topology file with the same content and another modification time."""
    await asyncio.to_thread(clusters.file.write_bytes, clusters.file.read_bytes())
    os.utime(clusters.file, (1, 1))


async def _credential(clusters: PlanClusters) -> None:
    """Rewrite the kubeconfig of lower-a with a comment."""
    path = clusters.kubeconfig(A)
    await asyncio.to_thread(path.write_text, f"# renewed\n{path.read_text()}")


async def _silent(clusters: PlanClusters) -> None:
    """Wait until Kubernetes has tainted lower-a's virtual node, whose engine is down, as unreachable, after 40 s."""
    await clusters.upper.until(
        f"{NODES}/{A}",
        lambda one: any(taint["key"] == "node.kubernetes.io/unreachable" for taint in one["spec"].get("taints") or ()),
        limit=120,
    )


UNRELATED_CHANGES: Mapping[str, Change] = {
    "nodes-marked": _silent,
    "time": lambda _stage: asyncio.sleep(5),
    "heartbeat": _heartbeat,
    "lease": _lease,
    "node-condition": _node_condition,
    "capacity-percent": lambda clusters: clusters.scale(A, 0.99),
    "capacity-four-percent": lambda clusters: clusters.scale(B, 0.96),
    "upper-pod-status": patch(
        UPPER,
        f"{SPACES}/{SHOP}/pods/first/status",
        {"status": {"conditions": [_condition("example.com/Seen", "True")]}},
    ),
    "lower-pod-status": patch(
        A, f"{SPACES}/{SHOP}/pods/first/status", {"status": {"conditions": [_condition("example.com/Seen", "True")]}}
    ),
    "waiting-pod": create(
        UPPER, f"{SPACES}/{SHOP}/pods", "unbound", {"spec": {"containers": [{"name": "a", "image": "b"}]}}
    ),
    "unreferenced-config-map": create(UPPER, f"{SPACES}/{SHOP}/configmaps", "unused", {"data": {"a": "b"}}),
    "unreferenced-secret": create(UPPER, f"{SPACES}/{SHOP}/secrets", "unused", {"data": {"a": "Yg=="}}),
    "other-namespace": create(UPPER, SPACES, "harmless-other", {}),
    "excluded-pod": create(
        UPPER,
        f"{SPACES}/kube-system/pods",
        "excluded",
        {"spec": {"nodeName": A, "containers": [{"name": "a", "image": "b"}], "tolerations": [{"operator": "Exists"}]}},
    ),
    "event": create(
        UPPER,
        f"{SPACES}/{SHOP}/events",
        "said",
        {"involvedObject": {"kind": "Pod", "namespace": SHOP, "name": "first"}, "reason": "Said", "type": "Normal"},
    ),
    "lower-stranger": create(A, f"{SPACES}/default/configmaps", "strange", {"data": {"a": "b"}}),
    "lower-namespace": create(B, SPACES, "strange", {}),
    "last-applied": patch(
        UPPER,
        f"{SPACES}/{SHOP}/configmaps/settings",
        {"metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}}},
    ),
    "file-touched": _touched,
    "kubeconfig-again": _credential,
}
"""The twenty changes by name."""


async def prepare(clusters: PlanClusters) -> None:
    """Create a namespace with a pod and its ConfigMap."""
    await clusters.namespace(SHOP)
    await clusters.create(UPPER, f"{SPACES}/{SHOP}/configmaps", "settings", {"data": {"level": "1"}})
    env = {"container": {"envFrom": [{"configMapRef": {"name": "settings"}}]}}
    await clusters.run_in(SHOP, "first", A, **env)
