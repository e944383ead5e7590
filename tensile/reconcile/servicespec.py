"""The Service below for one above: what of its spec holds in another cluster, field by field.

What a cluster gives out itself (cluster IPs, node ports, load balancers) is that cluster's; what says where traffic
stays (zones, nodes) would be untrue below. There is no selector: the endpoints are those above, wherever they run, and
Kubernetes would make its own of the pods that happen to be below. Annotations are left above, because who reads a
Service's (load balancers, DNS, meshes) acts on it there already.
"""

from collections.abc import Collection, Mapping
from typing import Literal

from tensile.names import Owner
from tensile.objects import SERVICE, Manifest, labels, metadata, uid

Verdict = Literal["keep", "drop", "map"]

SPEC: Mapping[str, Verdict] = {
    "allocateLoadBalancerNodePorts": "drop",
    "clusterIP": "map",
    "clusterIPs": "drop",
    "externalIPs": "drop",
    "externalName": "keep",
    "externalTrafficPolicy": "drop",
    "healthCheckNodePort": "drop",
    "internalTrafficPolicy": "map",
    "ipFamilies": "map",
    "ipFamilyPolicy": "map",
    "loadBalancerClass": "drop",
    "loadBalancerIP": "drop",
    "loadBalancerSourceRanges": "drop",
    "ports": "map",
    "publishNotReadyAddresses": "keep",
    "selector": "drop",
    "sessionAffinity": "keep",
    "sessionAffinityConfig": "keep",
    "trafficDistribution": "drop",
    "type": "map",
}
"""What becomes of each field of ServiceSpec; one that is not here is dropped."""

EXTERNAL_NAME = "ExternalName"
_CLUSTER_IP = "ClusterIP"
_HEADLESS = "None"
_ALLOCATED = frozenset({"clusterIP", "clusterIPs", "ipFamilies", "healthCheckNodePort"})
"""Fields that the cluster fills in, or that cannot change: they are not compared."""
_COMPARED = tuple(sorted(f"spec.{field}" for field in SPEC if field not in _ALLOCATED))


def sections(wanted: Manifest) -> tuple[str, ...]:
    """Say what of a Service below is kept in step: what was dropped goes again, should somebody set it there."""
    headless = ("spec.clusterIP",) if is_headless(wanted) else ()
    return ("metadata.labels", "metadata.annotations", *headless, *_COMPARED)


def is_headless(service: Manifest) -> bool:
    """Say whether a Service has no address of its own."""
    return bool(service["spec"].get("clusterIP") == _HEADLESS)


def lower_service(upper: Manifest, owner: Owner, namespace: str, families: Collection[str]) -> Manifest:
    """Give the Service below; `families` ("IPv4", "IPv6") are those that the lower cluster is known to have."""
    meta = {"name": metadata(upper)["name"], "namespace": namespace, "labels": labels(upper)}
    return marked(meta, uid(upper), _spec(upper["spec"], families), owner)


def marked(meta: Manifest, upper_uid: str, spec: Manifest, owner: Owner) -> Manifest:
    """Give a Service with our marks; `meta` has its name, namespace and labels."""
    ours = {
        "labels": meta["labels"] | owner.label,
        "annotations": owner.signed(upper_uid),
    }
    return {"apiVersion": SERVICE.api, "kind": SERVICE.name, "metadata": {**meta, **ours}, "spec": spec}


def cannot_become(seen: Manifest, wanted: Manifest) -> str:
    """Say why a Service below has to be made anew to be as wanted, "" where it can be changed.

    Slices that Kubernetes made for a selector stay when that goes, and go with the Service.
    """
    if seen["spec"].get("selector"):
        return "somebody gave it a selector, by which Kubernetes makes endpoints of its own"
    named = EXTERNAL_NAME in (seen["spec"].get("type"), wanted["spec"]["type"])
    if not named and is_headless(seen) != is_headless(wanted):
        return "it is headless in one cluster only, which cannot be changed"
    return ""


def _spec(upper: Manifest, families: Collection[str]) -> Manifest:
    kept: Manifest = {field: upper[field] for field, verdict in SPEC.items() if verdict == "keep" and field in upper}
    if upper.get("ports"):
        kept["ports"] = [
            {field: value for field, value in one.items() if field != "nodePort"} for one in upper["ports"]
        ]
    if upper.get("type") == EXTERNAL_NAME:
        return {"type": EXTERNAL_NAME, **kept}
    kept |= {"type": _CLUSTER_IP, "internalTrafficPolicy": "Cluster"}
    if upper.get("clusterIP") != _HEADLESS:
        return {**kept, **_stacks(upper, families)}
    stacks: Manifest = {field: upper[field] for field in ("ipFamilyPolicy", "ipFamilies") if field in upper}
    return {**kept, "clusterIP": _HEADLESS, **stacks}


def _stacks(upper: Manifest, families: Collection[str]) -> Manifest:
    """Ask for the same address families where the lower cluster has them, else for what it has."""
    wanted = upper.get("ipFamilies") or []
    policy = "SingleStack" if upper.get("ipFamilyPolicy", "SingleStack") == "SingleStack" else "PreferDualStack"
    known = {"ipFamilies": wanted} if wanted and set(wanted) <= set(families) else {}
    return {"ipFamilyPolicy": policy, **known}
