"""Services: one in the lower cluster for each upper one whose namespace has pods there, and the alias.

A Service is useful only to pods of its namespace, and names in other namespaces stay the lower's own. Services are
created for the pods of their namespace that are bound to this lower. After the last of them, and after `Service` has
left `controllers`, those that exist stay while a lower pod of ours is in the namespace, since it still calls them. They
and their endpoints are kept up to date meanwhile: an address that is gone may be another pod's by then.

The lower Service has no selector: its endpoints are the upper ones, wherever they run (`endpoint_slices.py`). For a
selector, Kubernetes would make endpoints of the pods that are in the lower cluster. What a cluster assigns itself
(cluster IPs, node ports, load balancers) is not copied, nor what keeps traffic local (zones, nodes), which would be
wrong there. Annotations are not copied, because their readers (load balancers, DNS, meshes) already act on them in the
upper cluster. A name conflict is reported on the upper Service; the Service that has the name stays.
"""

from collections.abc import Collection, Iterator, Mapping
from ipaddress import ip_address
from typing import Literal
from urllib.parse import urlsplit

import orjson

from tensile.kube.store import Entry, Transformed, packed
from tensile.names import UPPER_UID, Owner
from tensile.objects import ENDPOINT_SLICE, SERVICE, Kind, Manifest, annotations, labels, metadata, uid
from tensile.reconcile import copies
from tensile.reconcile.desired import Decision, Present
from tensile.reconcile.ownership import adoption_problem, conflict, is_copy, is_copy_of
from tensile.reconcile.pods.index import by_namespace
from tensile.reconcile.rules.mirror_rule import (
    MirroredKind,
    MirrorRule,
    Need,
    Pair,
    follow_deletion,
    names_in,
    pods_of_namespace,
)
from tensile.reconcile.world import Key, LowerWorld, UpperServer, World

NAME = "service"
KUBE_SYSTEM = "kube-system"
API_SERVER = ("default", "kubernetes")
"""The Service by which the pods of a cluster reach its apiserver."""
_KEPT_META = ("name", "namespace", "uid", "resourceVersion")

FieldPolicy = Literal["keep", "drop", "map"]

SPEC: Mapping[str, FieldPolicy] = {
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
"""What happens to each field of ServiceSpec; a field that is not listed is dropped."""

EXTERNAL_NAME = "ExternalName"
_HEADLESS = "None"
_ALLOCATED = frozenset({"clusterIP", "clusterIPs", "ipFamilies", "healthCheckNodePort"})
"""Fields that the cluster fills in, or that cannot change: they are not compared."""
_COMPARED = tuple(sorted(f"spec.{field}" for field in SPEC if field not in _ALLOCATED))
HTTPS = 443
PORT_NAME = "https"
_LOCAL_NAME = "localhost"


def service_key(lower: str, namespace: str, name: str) -> Key:
    """Return the key of one Service, by its upper namespace and name."""
    return Key(NAME, lower, namespace, name)


def upper_service(raw: bytes) -> Transformed:
    """Transform an upper Service to its name, labels and spec."""
    found: Manifest = orjson.loads(raw)
    return Transformed(packed({"metadata": kept_metadata(found, labels(found)), "spec": found.get("spec") or {}}), None)


def kept_metadata(found: Manifest, given: Manifest) -> Manifest:
    """Return what is kept of the metadata of an upper object: what identifies it, and the `given` labels."""
    meta = metadata(found)
    return {**{field: meta[field] for field in _KEPT_META if field in meta}, "labels": given}


def is_known(world: World, lower: LowerWorld) -> bool:
    """Report whether everything that decides about Services has been listed."""
    upper_caches, lower_caches = world.upper.more, lower.more
    is_listed = upper_caches[SERVICE].synced and upper_caches[ENDPOINT_SLICE].synced
    return is_listed and lower_caches[SERVICE].synced and lower_caches[ENDPOINT_SLICE].synced and lower.settled


def is_exposed(lower: LowerWorld, namespace: str, world: World) -> bool:
    """Report whether the Services of an upper namespace belong in a lower; kube-system's only on request."""
    if "Service" not in lower.spec.controllers:
        return False
    if namespace == KUBE_SYSTEM:
        return world.topology.services.kube_system and lower.in_topology
    return copies.has_pods(lower, namespace, world)


def is_kept(lower: LowerWorld, namespace: str) -> bool:
    """Report whether the existing lower Services of an upper namespace stay for pods that run there."""
    return namespace != KUBE_SYSTEM and copies.has_lower_pods(lower, namespace)


def is_served(lower: LowerWorld, namespace: str, world: World) -> bool:
    """Report whether the Services of an upper namespace belong in a lower, or stay there."""
    return is_exposed(lower, namespace, world) or is_kept(lower, namespace)


def served(lower: LowerWorld, world: World) -> Iterator[str]:
    """Yield the upper namespaces whose Services belong in a lower, or stay there, in order."""
    lower_names = (
        name for namespace in lower.pods.values("namespace") for name in lower.upper_namespaces_of(str(namespace))
    )
    found = {KUBE_SYSTEM, *map(str, lower.upper_pods.values("living")), *lower_names}
    yield from sorted(name for name in found if is_served(lower, name, world))


def original(world: World, namespace: str, name: str) -> Entry | None:
    """Return the upper Service to copy; the apiserver's own is never copied."""
    return None if (namespace, name) == API_SERVER else world.upper.more[SERVICE].get(namespace, name)


def is_alias(world: World, namespace: str, name: str) -> bool:
    """Report whether a name is the alias in a namespace; an upper Service of that name has priority."""
    return (
        name == world.topology.services.upper_alias
        and namespace != KUBE_SYSTEM
        and original(world, namespace, name) is None
    )


def _need(pair: Pair) -> Need:
    if is_exposed(pair.lower, pair.key.namespace, pair.world):
        return Need.ASKED
    return Need.KEPT if is_kept(pair.lower, pair.key.namespace) else Need.NONE


def _present(pair: Pair, _: Entry | None = None) -> Decision:
    """Return the lower Service, made from its original or the alias; the end of one that is neither any more."""
    manifest = _wanted(pair)
    if manifest is None:
        return gone(pair)
    ref, copy, world, namespace = pair.ref, pair.copy, pair.world, pair.key.namespace
    obstacle = pair.obstacle(None if namespace == KUBE_SYSTEM else pair.lower.upper_pods.select("living", namespace))
    if obstacle is not None:
        return obstacle
    fault = "" if copy is None else cannot_become(copy.manifest(), manifest)
    if copy is not None and fault:
        if is_copy(copy, world.owner):
            return pair.end(fault)
        # A foreign one is not adopted: it would have to be recreated, and would lose its address.
        upper_uid = annotations(manifest)[UPPER_UID]
        problem = adoption_problem(ref, copy.manifest(), upper_uid, world, ref.cluster) or conflict(ref, fault)
        return Decision(tuple(pair.report_problem()), problem=problem)
    reason = f"pods of namespace {namespace} are in lower cluster {pair.lower.name}"
    wanted = Present(ref, manifest, reason, sections=sections(manifest), replaceable=True)
    return Decision((*pair.report_problem(), wanted))


def _wanted(pair: Pair) -> Manifest | None:
    """Return the Service as it should be in the lower cluster, None where there should be none."""
    world, namespace, name = pair.world, pair.key.namespace, pair.ref.name
    upper_entry = original(world, namespace, name)
    if upper_entry is not None:
        families = frozenset[str]().union(*(node.facts.families for node in pair.lower.nodes))
        return lower_service(upper_entry.manifest(), world.owner, pair.ref.namespace, families)
    if world.upper_server is None or not is_alias(world, namespace, name):
        return None
    return alias_service(world.upper_server, name, world.owner, pair.ref.namespace)


def _kept(pair: Pair, _: Entry | None = None) -> Decision:
    """Return the lower Service that only lower pods need, kept up to date but never created again.

    It goes with its original: one that was created in its place is another Service, and has no copy.
    """
    manifest, copy, owner = _wanted(pair), pair.copy, pair.world.owner
    if manifest is None or copy is None:
        return gone(pair)
    if not is_copy_of(copy, owner, annotations(manifest)[UPPER_UID]):
        return pair.end("the upper Service was deleted")
    return Decision() if cannot_become(copy.manifest(), manifest) else _present(pair)


def _missing(pair: Pair, need: Need) -> Decision:
    return _present(pair) if need is Need.ASKED else _kept(pair)


def gone(pair: Pair) -> Decision:
    """Delete a former alias, or a copy whose original was seen deleted; the orphan rule decides about the rest."""
    if is_copy_of(pair.copy, pair.world.owner, pair.world.owner.upper):
        return pair.end("it does not point to the upper cluster any more")
    return follow_deletion(pair, guarded=True)


def _of_namespace(world: World, lower: LowerWorld, namespace: str) -> Iterator[Key]:
    """Yield the keys of every Service of an upper namespace, on either side, and of the alias."""
    for name in sorted(names_in(SERVICE, world, lower, namespace) | {world.topology.services.upper_alias}):
        yield service_key(lower.name, namespace, name)


def concerns(world: World, lower: LowerWorld, _: Kind, upper: Entry) -> bool:
    """Report whether an upper Service or slice belongs in a lower, or changes what stays there."""
    return is_served(lower, upper.namespace, world)


def sections(wanted: Manifest) -> tuple[str, ...]:
    """Return the sections of a lower Service to keep in sync: fields we drop are removed again if set there."""
    headless = ("spec.clusterIP",) if is_headless(wanted) else ()
    return ("metadata.labels", "metadata.annotations", *headless, *_COMPARED)


def is_headless(service: Manifest) -> bool:
    """Report whether a Service has no address of its own."""
    return bool(service["spec"].get("clusterIP") == _HEADLESS)


def lower_service(upper: Manifest, owner: Owner, namespace: str, families: Collection[str]) -> Manifest:
    """Return the lower Service; `families` ("IPv4", "IPv6") are those that the lower cluster is known to have."""
    meta = {"name": metadata(upper)["name"], "namespace": namespace, "labels": labels(upper)}
    return marked(meta, uid(upper), _spec(upper["spec"], families), owner)


def marked(meta: Manifest, upper_uid: str, spec: Manifest, owner: Owner) -> Manifest:
    """Return a Service with our marks; `meta` has its name, namespace and labels."""
    ours = {
        "labels": meta["labels"] | owner.label,
        "annotations": owner.signed(upper_uid),
    }
    return {"apiVersion": SERVICE.api, "kind": SERVICE.name, "metadata": {**meta, **ours}, "spec": spec}


def cannot_become(seen: Manifest, wanted: Manifest) -> str:
    """Return why a lower Service must be recreated to be as wanted, "" where it can be changed.

    Slices that Kubernetes made for a selector remain when the selector is removed, and are deleted with the Service.
    """
    if seen["spec"].get("selector"):
        return "another client added a selector, so Kubernetes creates its own endpoints"
    named = EXTERNAL_NAME in (seen["spec"].get("type"), wanted["spec"]["type"])
    if not named and is_headless(seen) != is_headless(wanted):
        return "it is headless in one cluster only, and clusterIP cannot be changed"
    return ""


def _spec(upper: Manifest, families: Collection[str]) -> Manifest:
    kept: Manifest = {field: upper[field] for field, verdict in SPEC.items() if verdict == "keep" and field in upper}
    if upper.get("ports"):
        kept["ports"] = [
            {field: value for field, value in one.items() if field != "nodePort"} for one in upper["ports"]
        ]
    if upper.get("type") == EXTERNAL_NAME:
        return {"type": EXTERNAL_NAME, **kept}
    kept |= {"type": "ClusterIP", "internalTrafficPolicy": "Cluster"}
    if upper.get("clusterIP") != _HEADLESS:
        return {**kept, **_stacks(upper, families)}
    stacks: Manifest = {field: upper[field] for field in ("ipFamilyPolicy", "ipFamilies") if field in upper}
    return {**kept, "clusterIP": _HEADLESS, **stacks}


def _stacks(upper: Manifest, families: Collection[str]) -> Manifest:
    """Return the IP family policy, and the upper Service's families if the lower cluster has them."""
    wanted = upper.get("ipFamilies") or []
    policy = "SingleStack" if upper.get("ipFamilyPolicy", "SingleStack") == "SingleStack" else "PreferDualStack"
    known = {"ipFamilies": wanted} if wanted and set(wanted) <= set(families) else {}
    return {"ipFamilyPolicy": policy, **known}


def server_of(advertised: str | None, address: tuple[str, int] | None) -> UpperServer | None:
    """Return where lower pods reach the upper apiserver: as advertised, else at the `address` that we use, if any.

    `advertised` is a URL, https://HOST:PORT.
    """
    if advertised is not None:
        parts = urlsplit(advertised)
        return UpperServer(parts.hostname or "", parts.port or HTTPS)
    return None if address is None else UpperServer(*address)


def form(server: UpperServer) -> str:
    """Return how a server can be represented: "IPv4" or "IPv6" as an endpoint, "name", or "" where it cannot."""
    try:
        address = ip_address(server.host)
    except ValueError:
        is_local = server.host == _LOCAL_NAME or server.host.endswith(f".{_LOCAL_NAME}")
        return "" if is_local or not server.host else "name"
    if address.is_loopback or address.is_unspecified or address.is_link_local or address.is_multicast:
        return ""
    return f"IPv{address.version}"


def alias_service(server: UpperServer, name: str, owner: Owner, namespace: str) -> Manifest | None:
    """Return the Service by which lower pods find the upper apiserver, marked as the upper cluster's, or None.

    Every cluster has its own Service `kubernetes`, so the alias has another name. An IP address becomes the endpoint of
    a slice; a slice cannot hold a DNS name, so the Service is then an ExternalName. For an address that is another
    machine everywhere, such as 127.0.0.1, there is no alias. The upper's certificate must be valid for the name that a
    client uses: the alias is a convenience.
    """
    kind = form(server)
    port = {"name": PORT_NAME, "protocol": "TCP"}
    if not kind:
        return None
    if kind == "name":
        spec: Manifest = {"type": EXTERNAL_NAME, "externalName": server.host.lower(), "sessionAffinity": "None"}
        spec["ports"] = [{**port, "port": server.port, "targetPort": server.port}]
    else:
        spec = {"type": "ClusterIP", "internalTrafficPolicy": "Cluster", "sessionAffinity": "None"}
        spec |= {"ipFamilyPolicy": "PreferDualStack"}
        spec["ports"] = [{**port, "port": HTTPS, "targetPort": server.port}]
    return marked({"name": name, "namespace": namespace, "labels": {}}, owner.upper, spec, owner)


RULE = MirrorRule(
    name=NAME,
    kinds=(
        MirroredKind(
            kind=SERVICE,
            need=_need,
            present=_present,
            kept=_kept,
            missing=_missing,
            unneeded="no pod of its namespace is in this cluster any more",
            concerns=concerns,
            transform_upper=upper_service,
            upper_indexes={"namespace": by_namespace},
            lower_indexes={"namespace": by_namespace},
        ),
    ),
    controller="Service",
    users=pods_of_namespace(_of_namespace, served),
    is_known=is_known,
)
"""One key for each Service of a namespace with pods, and for each lower copy."""
