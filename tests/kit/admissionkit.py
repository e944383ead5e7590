"""Pods and mutation terms for the tests of the webhook: two virtual nodes and one upper-only label key."""

from typing import Any

from tensile.names import CLUSTER_SELECTOR, VIRTUAL_POD
from tensile.policy.webhook.admission import MutationTerms
from tensile.reconcile.pods.scheduling import REQUIRED, UPPER_ONLY_KEYS

Manifest = dict[str, Any]

PROVIDER = {"key": "virtual-kubelet.io/provider", "value": "k8s", "effect": "NoSchedule"}
TOLERATED = {"key": "virtual-kubelet.io/provider", "operator": "Equal", "value": "k8s", "effect": "NoSchedule"}
NOT_READY, UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"
UNLIMITED = [{"key": key, "operator": "Exists", "effect": "NoExecute"} for key in (NOT_READY, UNREACHABLE)]
DEFAULTS = [{**one, "tolerationSeconds": 300} for one in UNLIMITED]
VK_A, VK_B = "vk-a", "vk-b"


def terms(*taints: Manifest, keys: tuple[str, ...] = ("clusterID",)) -> MutationTerms:
    """Make mutation terms with these taints to tolerate; with none, those of the first tensile-kube's webhook."""
    return MutationTerms(
        UPPER_ONLY_KEYS | set(keys), frozenset({VK_A, VK_B}), taints, frozenset({"kube-system", "hooks"})
    )


def pod(spec: Manifest | None = None, **meta: Any) -> Manifest:
    """Make a pod labeled for a virtual node; `spec` and `meta` are merged over its defaults."""
    made = {"name": "web", "namespace": "default", "labels": {VIRTUAL_POD: "true"}}
    basis = {"containers": [{"name": "c", "image": "app:1"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": made | meta, "spec": basis | (spec or {})}


def requirement(key: str, *values: str, operator: str = "In") -> Manifest:
    """Make a node selector requirement."""
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def term(*expressions: Manifest, fields: tuple[Manifest, ...] = ()) -> Manifest:
    """Make a node selector term."""
    found = {"matchExpressions": list(expressions), "matchFields": list(fields)}
    return {field: requirements for field, requirements in found.items() if requirements}


def required(*terms_: Manifest) -> Manifest:
    """Make an affinity that requires nodes to match one of the terms."""
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": list(terms_)}}}


def selector_of(found: Manifest) -> str | None:
    """Return the cluster selector annotation of a pod as it is written, None if there is none."""
    text: str | None = (found["metadata"].get("annotations") or {}).get(CLUSTER_SELECTOR)
    return text


def scheduling(found: Manifest) -> Manifest:
    """Return the fields of a pod's spec that the webhook may change."""
    return {
        field: found["spec"][field] for field in ("nodeSelector", "affinity", "tolerations") if field in found["spec"]
    }
