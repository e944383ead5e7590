"""The rule for Services: one in the lower cluster for each upper one whose namespace has pods there, and the alias.

The lower Service has no selector: its endpoints are the upper ones, wherever they run, and belong to the rule for
slices. For a selector, Kubernetes would make endpoints of the pods that are in the lower cluster. What a cluster
assigns itself (cluster IPs, node ports, load balancers) is not copied, nor what keeps traffic local (zones, nodes),
which would be wrong there. Annotations are not copied, because their readers (load balancers, DNS, meshes) already act
on them in the upper cluster. A name conflict is reported on the upper Service; the Service that has the name stays.
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
from tensile.reconcile.desired import Absent, Decision, EmitEvent, Present, Wanted, Watch
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

NAME = SERVICE_RULE
PAUSE = 5.0
"""Seconds for which Services stay after the last pod of their namespace: often the next one comes soon."""
_API_SERVER = ("default", "kubernetes")

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
_CLUSTER_IP = "ClusterIP"
_HEADLESS = "None"
_ALLOCATED = frozenset({"clusterIP", "clusterIPs", "ipFamilies", "healthCheckNodePort"})
"""Fields that the cluster fills in, or that cannot change: they are not compared."""
_COMPARED = tuple(sorted(f"spec.{field}" for field in SPEC if field not in _ALLOCATED))
_HTTPS = 443
_PORT_NAME = "https"
_LOCAL_NAME = "localhost"


class ServiceRule:
    """The rule with one key for each Service of a namespace with pods, and for each lower copy."""

    name = NAME

    def watches(self) -> tuple[Watch, ...]:
        """Watch Services on both sides, the first and the last pod of a namespace, and the node."""
        return (
            Watch("upper.Service", _above),
            Watch("Service", _below),
            Watch("upper_pods", _first_pod, facts=("terminal", "daemon")),
            Watch("upper_pods", _last_pod, delay=PAUSE, facts=("terminal", "daemon")),
            Watch("pods", _last_pod_below, delay=PAUSE, facts=()),
            Watch("upper.nodes", _node),
        )

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield a key for each Service that is in the lower cluster, or belongs there."""
        here = world.lowers[lower]
        found = {key for namespace in exposed(here, world) for key in _of_namespace(world, lower, namespace)}
        found |= {key for one in here.more[SERVICE] for key in _of_copy(here, one)}
        yield from sorted(found)

    def decide(self, key: Key, world: World) -> Decision:
        """Return the lower Service while its namespace has pods there, and its original or alias exists."""
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
    """Return the upper Service to copy; the apiserver's own is never copied."""
    return None if (namespace, name) == _API_SERVER else world.upper.more[SERVICE].get(namespace, name)


def is_alias(world: World, namespace: str, name: str) -> bool:
    """Report whether a name is the alias in a namespace; an upper Service of that name has priority."""
    return (
        name == world.topology.services.upper_alias
        and namespace != KUBE_SYSTEM
        and original(world, namespace, name) is None
    )


def _unasked(world: World, key: Key, ref: Ref, copy: Entry | None) -> Decision:
    """Delete a Service that no upper pod needs; if a lower pod of ours keeps it, only with its original."""
    if not is_kept(world.lowers[key.lower], key.namespace):
        return _end(world, ref, copy, "no pod of its namespace is here any more")
    return Decision() if original(world, key.namespace, key.name) is not None else _gone(world, key, ref, copy)


def _wanted(world: World, key: Key, namespace: str) -> Manifest | None:
    """Return the Service as it should be in the lower cluster, None where there should be none."""
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
        return Decision(depends_on=(namespaces.key_of(lower.name, key.namespace),))
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
    """Return why a foreign Service is not adopted: it would have to be recreated, and would lose its address."""
    upper_uid = annotations(manifest)[UPPER_UID]
    return claim(ref, copy.manifest(), upper_uid, world, ref.cluster) or conflict(ref, obstacle)


def _said(world: World, key: Key) -> list[Wanted]:
    """Return an event on the upper Service about the problem in the lower cluster."""
    problem, above = world.problems.get(key), original(world, key.namespace, key.name)
    if problem is None or above is None:
        return []
    return [EmitEvent(Ref(UPPER, SERVICE, key.namespace, key.name), above.uid, problem.reason, problem.message)]


def _gone(world: World, key: Key, ref: Ref, copy: Entry | None) -> Decision:
    """Delete the copy of a Service seen deleted, or a former alias; the orphan rule decides about the rest."""
    departed = world.upper.more[SERVICE].tombstone(key.namespace, key.name)
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
    """Yield the keys of all Services when the node appears or becomes ours: without it nothing is created."""
    here = world.lowers[lower]
    if node_begins(here, delta):
        for namespace in exposed(here, world):
            yield from _of_namespace(world, lower, namespace)


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
        return UpperServer(parts.hostname or "", parts.port or _HTTPS)
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
    """Return the slice with the server as its endpoint, in the form of a cached upper slice; None for no endpoint."""
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
    """Return the lower slice for what is kept of an upper one; it is owned by `holder`, the lower Service."""
    meta = {
        "name": found["metadata"]["name"],
        "namespace": namespace,
        "labels": found["metadata"]["labels"] | owner.label,
        "annotations": owner.signed(upper_uid),
        "ownerReferences": [holder],
    }
    content = {field: found[field] for field in ("addressType", "endpoints", "ports")}
    return {"apiVersion": ENDPOINT_SLICE.api, "kind": ENDPOINT_SLICE.name, "metadata": meta, **content}
