"""The rule for Services: below for each one above whose namespace has pods there, and gone with it.

The Service below has no selector, so that Kubernetes leaves its endpoints alone; they are the rule for slices'. A name
that is taken is said on the Service above, and the Service below that has it is not touched.

The Service below for one above: what of its spec holds in another cluster, field by field.

What a cluster gives out itself (cluster IPs, node ports, load balancers) is that cluster's; what says where traffic
stays (zones, nodes) would be untrue below. There is no selector: the endpoints are those above, wherever they run, and
Kubernetes would make its own of the pods that happen to be below. Annotations are left above, because who reads a
Service's (load balancers, DNS, meshes) acts on it there already.

The Service by which pods below find the upper cluster's apiserver.

Every cluster has a Service `kubernetes` of its own, so this one has another name. An IP address becomes the endpoint
of a slice; a DNS name cannot stand in one, so the Service is then another name for it. An address that means another
machine everywhere, such as 127.0.0.1, leads nowhere, and there is no such Service. The upper's certificate has to be
valid for the name that a client uses: the alias is a convenience.
"""

from collections.abc import Collection, Iterator, Mapping
from ipaddress import ip_address
from typing import Literal
from urllib.parse import urlsplit

from tensile.kube.store import Cache, Delta, Entry
from tensile.names import UPPER_UID, Owner
from tensile.objects import ENDPOINT_SLICE, SERVICE, UPPER, Manifest, Ref, annotations, labels, metadata, uid
from tensile.reconcile import copies
from tensile.reconcile.adoption import claim, conflict
from tensile.reconcile.desired import Absent, Decision, Present, Route, Told, Wanted
from tensile.reconcile.ownership import has_node, node_begins
from tensile.reconcile.rules import namespaces
from tensile.reconcile.rules.service_index import (
    KUBE_SYSTEM,
    MANAGED_BY,
    MANAGER,
    SERVICE_NAME,
    SERVICE_RULE,
    began,
    ended,
    ended_below,
    exposed,
    is_exposed,
    is_kept,
    is_known,
    is_made_for,
    service_key,
)
from tensile.reconcile.world import Key, LowerWorld, Problem, UpperServer, World

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
    """Return what of a Service below is kept in step: what was dropped goes again, should somebody set it there."""
    headless = ("spec.clusterIP",) if is_headless(wanted) else ()
    return ("metadata.labels", "metadata.annotations", *headless, *_COMPARED)


def is_headless(service: Manifest) -> bool:
    """Report whether a Service has no address of its own."""
    return bool(service["spec"].get("clusterIP") == _HEADLESS)


def lower_service(upper: Manifest, owner: Owner, namespace: str, families: Collection[str]) -> Manifest:
    """Return the Service below; `families` ("IPv4", "IPv6") are those that the lower cluster is known to have."""
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
    """Return why a Service below has to be made anew to be as wanted, "" where it can be changed.

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


_HTTPS = 443
_PORT_NAME = "https"
_LOCAL_NAME = "localhost"


def server_of(advertised: str | None, address: tuple[str, int] | None) -> UpperServer | None:
    """Return where pods below reach the upper's apiserver: as advertised, else at the `address` that we use, if any.

    `advertised` is a URL, https://HOST:PORT.
    """
    if advertised is not None:
        parts = urlsplit(advertised)
        return UpperServer(parts.hostname or "", parts.port or _HTTPS)
    return None if address is None else UpperServer(*address)


def form(server: UpperServer) -> str:
    """Return how a server is told below: "IPv4" or "IPv6" as an endpoint, "name", or "" where it cannot be."""
    try:
        address = ip_address(server.host)
    except ValueError:
        is_local = server.host == _LOCAL_NAME or server.host.endswith(f".{_LOCAL_NAME}")
        return "" if is_local or not server.host else "name"
    if address.is_loopback or address.is_unspecified or address.is_link_local or address.is_multicast:
        return ""
    return f"IPv{address.version}"


def alias_service(server: UpperServer, name: str, owner: Owner, namespace: str) -> Manifest | None:
    """Return the Service below, marked as made for the upper cluster itself; None where there can be none."""
    kind = form(server)
    port = {"name": _PORT_NAME, "protocol": "TCP"}
    if not kind:
        return None
    if kind == "name":
        spec: Manifest = {"type": EXTERNAL_NAME, "externalName": server.host.lower(), "sessionAffinity": "None"}
        spec["ports"] = [{**port, "port": server.port, "targetPort": server.port}]
    else:
        spec = {"type": "ClusterIP", "internalTrafficPolicy": "Cluster", "sessionAffinity": "None"}
        spec |= {"ipFamilyPolicy": "PreferDualStack"}
        spec["ports"] = [{**port, "port": _HTTPS, "targetPort": server.port}]
    return marked({"name": name, "namespace": namespace, "labels": {}}, owner.upper, spec, owner)


def alias_slice(server: UpperServer, name: str) -> Manifest | None:
    """Return the slice with the server as its endpoint, as one above would be kept; None where there can be none."""
    kind = form(server)
    if kind in ("", "name"):
        return None
    return {
        "metadata": {"name": name, "labels": {SERVICE_NAME: name, MANAGED_BY: MANAGER}},
        "addressType": kind,
        "endpoints": [{"addresses": [server.host], "conditions": {"ready": True}}],
        "ports": [{"name": _PORT_NAME, "protocol": "TCP", "port": server.port}],
    }


def marked_slice(found: Manifest, upper_uid: str, owner: Owner, namespace: str, holder: Manifest) -> Manifest:
    """Return the slice below for what is kept of one above; it goes with `holder`, the Service below."""
    meta = {
        "name": found["metadata"]["name"],
        "namespace": namespace,
        "labels": found["metadata"]["labels"] | owner.label,
        "annotations": owner.signed(upper_uid),
        "ownerReferences": [holder],
    }
    content = {field: found[field] for field in ("addressType", "endpoints", "ports")}
    return {"apiVersion": ENDPOINT_SLICE.api, "kind": ENDPOINT_SLICE.name, "metadata": meta, **content}


NAME = SERVICE_RULE
PAUSE = 5.0
"""Seconds for which Services outlast the last pod of their namespace: often the next one is about to come."""
_API_SERVER = ("default", "kubernetes")


class ServiceRule:
    """One key for each Service of a namespace with pods, and for each that was made below."""

    name = NAME

    def routes(self) -> tuple[Route, ...]:
        """Note Services on both sides, of the first and the last pod of a namespace, and of the node."""
        return (
            Route("upper.Service", _above),
            Route("Service", _below),
            Route("upper_pods", _first_pod),
            Route("upper_pods", _last_pod, delay=PAUSE),
            Route("pods", _last_pod_below, delay=PAUSE),
            Route("upper.nodes", _node),
        )

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield a key for each Service that is below, or belongs there."""
        here = world.lowers[lower]
        found = {key for namespace in exposed(here, world) for key in _of_namespace(world, lower, namespace)}
        found |= {key for one in here.more[SERVICE] for key in _of_copy(here, one)}
        yield from sorted(found)

    def decide(self, key: Key, world: World) -> Decision:
        """Want the Service below while its namespace has pods there, and it exists above or is the alias."""
        lower = world.lowers[key.lower]
        if not is_known(lower, world):
            return Decision()
        ref = Ref(lower.name, SERVICE, lower.namespace(key.namespace), key.name)
        copy = lower.more[SERVICE].get(ref.namespace, key.name)
        if not is_exposed(lower, key.namespace, world):
            return _unasked(world, key, ref, copy)
        wanted = _wanted(world, key, ref.namespace)
        if wanted is None:
            return _gone(world, key, ref, copy)
        return _kept(world, key, ref, copy, wanted)


def original(world: World, namespace: str, name: str) -> Entry | None:
    """Return the Service above that has a copy below; the apiserver's own has none."""
    return None if (namespace, name) == _API_SERVER else world.upper.more[SERVICE].get(namespace, name)


def is_alias(world: World, namespace: str, name: str) -> bool:
    """Report whether a name is the alias' in a namespace: not where the upper cluster has a Service of that name."""
    return (
        name == world.topology.services.upper_alias
        and namespace != KUBE_SYSTEM
        and original(world, namespace, name) is None
    )


def _unasked(world: World, key: Key, ref: Ref, copy: Entry | None) -> Decision:
    """End a Service that no upper pod asks for; one that a lower pod of ours keeps goes only with its original."""
    if not is_kept(world.lowers[key.lower], key.namespace):
        return _end(world, ref, copy, "no pod of its namespace is here any more")
    return Decision() if original(world, key.namespace, key.name) is not None else _gone(world, key, ref, copy)


def _wanted(world: World, key: Key, namespace: str) -> Manifest | None:
    """Return the Service as it should be below, None where there should be none."""
    above = original(world, key.namespace, key.name)
    if above is not None:
        families = frozenset[str]().union(*(node.facts.families for node in world.lowers[key.lower].nodes))
        return lower_service(above.manifest(), world.owner, namespace, families)
    if world.upper_server is None or not is_alias(world, key.namespace, key.name):
        return None
    return alias_service(world.upper_server, key.name, world.owner, namespace)


def _kept(world: World, key: Key, ref: Ref, copy: Entry | None, manifest: Manifest) -> Decision:
    lower = world.lowers[key.lower]
    if not has_node(lower, world) or (copy is None and not _may_be_made(lower, key.namespace)):
        return Decision()
    if not namespaces.ready(lower, key.namespace):
        return Decision(waits=(namespaces.key_of(lower.name, key.namespace),))
    obstacle = "" if copy is None else cannot_become(copy.manifest(), manifest)
    if copy is not None and obstacle:
        if copy.facts.owner == world.owner.mark:
            return _end(world, ref, copy, obstacle)
        return Decision(tuple(_said(world, key)), problem=_refused(ref, copy, obstacle, manifest, world))
    reason = f"pods of namespace {key.namespace} are in {lower.name}"
    wanted = Present(ref, manifest, reason, sections=sections(manifest), replaceable=True)
    return Decision((*_said(world, key), wanted))


def _may_be_made(lower: LowerWorld, namespace: str) -> bool:
    return namespace == KUBE_SYSTEM or copies.may_be_made(iter(lower.upper_pods.select("living", namespace)))


def _refused(ref: Ref, copy: Entry, obstacle: str, manifest: Manifest, world: World) -> Problem:
    """Return why somebody's Service is not taken over: it would have to be made anew, and would lose its address."""
    upper_uid = annotations(manifest)[UPPER_UID]
    return claim(ref, copy.manifest(), upper_uid, world, ref.cluster) or conflict(ref, obstacle)


def _said(world: World, key: Key) -> list[Wanted]:
    """Tell on the Service above what stands in its way below."""
    problem, above = world.problems.get(key), original(world, key.namespace, key.name)
    if problem is None or above is None:
        return []
    return [Told(Ref(UPPER, SERVICE, key.namespace, key.name), above.uid, problem.reason, problem.message)]


def _gone(world: World, key: Key, ref: Ref, copy: Entry | None) -> Decision:
    """Follow a deletion that was seen, and an alias that has another name now; the rest has to be looked into."""
    departed = world.upper.more[SERVICE].departed(key.namespace, key.name)
    if copy is None:
        return Decision()
    if is_made_for(copy, world.owner, world.owner.upper):
        return _end(world, ref, copy, "it does not lead to the upper cluster any more")
    if departed is not None and departed.seen and is_made_for(copy, world.owner, departed.uid):
        return _end(world, ref, copy, "the upper Service was deleted")
    return Decision()


def _end(world: World, ref: Ref, copy: Entry | None, reason: str) -> Decision:
    if copy is None or copy.facts.owner != world.owner.mark:
        return Decision()
    return Decision((Absent(ref, copy.uid, reason),))


def _of_namespace(world: World, lower: str, namespace: str) -> Iterator[Key]:
    """Yield the keys of every Service of an upper namespace, on either side, and of the alias."""
    here = world.lowers[lower]
    below: Cache = here.more[SERVICE]
    names = {entry.name for entry in world.upper.more[SERVICE].select("namespace", namespace)}
    names |= {entry.name for entry in below.select("namespace", here.namespace(namespace))}
    for name in sorted(names | {world.topology.services.upper_alias}):
        yield service_key(lower, namespace, name)


def _above(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    here, entry = world.lowers[lower], delta.entry
    is_below = here.more[SERVICE].get(here.namespace(entry.namespace), entry.name) is not None
    if is_below or is_exposed(here, entry.namespace, world):
        yield service_key(lower, entry.namespace, entry.name)


def _below(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    yield from _of_copy(world.lowers[lower], delta.entry)


def _of_copy(lower: LowerWorld, copy: Entry) -> Iterator[Key]:
    for namespace in lower.above(copy.namespace):
        yield service_key(lower.name, namespace, copy.name)


def _first_pod(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    namespace = began(world.lowers[lower], delta)
    if namespace:
        yield from _of_namespace(world, lower, namespace)


def _last_pod(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    namespace = ended(world.lowers[lower], delta)
    if namespace:
        yield from _of_namespace(world, lower, namespace)


def _last_pod_below(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    namespace = ended_below(world.lowers[lower], delta)
    if namespace:
        yield from _of_namespace(world, lower, namespace)


def _node(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Note the node when it comes, or becomes ours: without it nothing was made."""
    here = world.lowers[lower]
    if node_begins(here, delta):
        for namespace in exposed(here, world):
            yield from _of_namespace(world, lower, namespace)
