"""Objects as a hostile apiserver invents them: small and valid, or wrong in one respect."""

from itertools import count
from typing import Any
from urllib.parse import parse_qs

from bench.kit.faultproxy.requests import ProxiedRequest

Manifest = dict[str, Any]
KINDS = {
    "pods": ("v1", "Pod"),
    "nodes": ("v1", "Node"),
    "namespaces": ("v1", "Namespace"),
    "secrets": ("v1", "Secret"),
    "configmaps": ("v1", "ConfigMap"),
    "serviceaccounts": ("v1", "ServiceAccount"),
    "services": ("v1", "Service"),
    "endpointslices": ("discovery.k8s.io/v1", "EndpointSlice"),
    "persistentvolumeclaims": ("v1", "PersistentVolumeClaim"),
    "persistentvolumes": ("v1", "PersistentVolume"),
    "events": ("v1", "Event"),
}
CLUSTER_WIDE = frozenset({"nodes", "namespaces", "persistentvolumes"})
HUGE = "7" * 5_000
"""A number that Python refuses to parse."""
_numbers = count(1)


def selected(request: ProxiedRequest) -> dict[str, str]:
    """Return the labels that the request's selector requires by equality."""
    words = parse_qs(request.query).get("labelSelector", [""])[0].split(",")
    pairs = (word.split("=", 1) for word in words if "=" in word and "!=" not in word)
    return dict(pairs)


def invented(request: ProxiedRequest, number: int, *, version: int = 0, labelled: bool = True) -> Manifest:
    """Return a valid object of the requested kind that matches the selector."""
    api, kind = KINDS.get(request.resource, ("v1", "Pod"))
    meta: Manifest = {
        "name": f"invented-{number}",
        "uid": f"00000000-0000-0000-0000-{number:012x}",
        "resourceVersion": str(version or number),
        "labels": selected(request) if labelled else {},
    }
    if request.resource not in CLUSTER_WIDE:
        meta["namespace"] = request.namespace or "default"
    made: Manifest = {"apiVersion": api, "kind": kind, "metadata": meta}
    if kind == "Pod":
        made["spec"] = {"containers": [{"name": "c", "image": "i"}]}
        made["status"] = {"phase": "Running"}
    return made


def kind_of(request: ProxiedRequest) -> str:
    """Return the kind of the requested collection."""
    return KINDS.get(request.resource, ("v1", "Pod"))[1]


def listing(request: ProxiedRequest, *items: Manifest, version: str = "100", more: str = "") -> Manifest:
    """Return the answer to a LIST."""
    api, kind = KINDS.get(request.resource, ("v1", "Pod"))
    meta = {"resourceVersion": version, **({"continue": more} if more else {})}
    return {"kind": f"{kind}List", "apiVersion": api, "metadata": meta, "items": list(items)}


def fresh() -> int:
    """Return a number that was not returned before."""
    return next(_numbers)
