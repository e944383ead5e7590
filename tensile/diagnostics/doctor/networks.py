"""Checks of addresses and ports: overlaps between clusters, the advertised address, open ports, and the webhook's.

Services work across clusters only if pods reach each other by IP, so the pod range of one cluster must not overlap any
range of another one. The webhook has to be registered, and reachable from the upper apiserver.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_address, ip_network
from typing import NamedTuple

from tensile.diagnostics.doctor.facts import (
    ADVERTISED,
    HOOK,
    HOOK_ADDRESS,
    HOOK_CALL,
    HOOK_SLICES,
    NODES,
    RANGES,
    ClusterFacts,
    ContactResult,
    Facts,
    Finding,
    Level,
    QueryAnswer,
    Stage,
    is_loopback,
    local_report,
    shown,
)
from tensile.engine.status.query import not_active
from tensile.kube import net
from tensile.names import CLUSTER_SELECTOR, VIRTUAL_NODE, VIRTUAL_POD
from tensile.objects import UPPER, Manifest, labels
from tensile.policy.webhook.registration import address_of
from tensile.reconcile.pods.scheduling import left_alone
from tensile.topology import Topology

Network = IPv4Network | IPv6Network
PODS, SERVICES = "pods", "Services"
_BY_HAND = {
    PODS: "of pods the network plugin's pools, or --cluster-cidr",
    SERVICES: "of Services --service-cluster-ip-range, or as an administrator kubectl get servicecidrs",
}
_SHOWN = 4
_CALLERS = {
    "kubelet": "the upper's apiserver",
    "webhook": "the upper's apiserver",
    "extender": "the upper's scheduler",
}
_LOOPBACK = "127.0.0.1"
_ALIVE = "ok"
"""The response of the webhook at /healthz."""
_UNREACHED = "error trying to reach service"
"""The beginning of an apiserver's error about a connection that failed."""
_NO_PORT = "webhook cannot listen on port"
"""In what an engine reports about a webhook whose port another program uses."""
_LATE = QueryAnswer(error="no answer in time")


class _Range(NamedTuple):
    """A range of addresses in a cluster, of its pods or its Services."""

    cluster: str
    kind: str
    network: Network


Clash = tuple[_Range, _Range]
"""Two ranges that overlap."""


class _Known(NamedTuple):
    """The known addresses of a cluster; `missing` are the sorts of which not all are known."""

    ranges: Sequence[_Range]
    missing: Sequence[str]


def check_networks(facts: Facts) -> Iterator[Finding]:
    """Yield overlaps of each cluster with previous clusters, and whether pods reach the upper apiserver."""
    known = {cluster.name: _known(cluster) for cluster in facts.clusters()}
    clashes = _clashes(facts.clusters(), {name: one.ranges for name, one in known.items()})
    for cluster in facts.clusters():
        yield from map(_clashing, clashes[cluster.name])
        if cluster.name == UPPER:
            yield from _advertised(cluster)
        if cluster.is_accessible and not clashes[cluster.name]:
            others = [known[one.name] for one in facts.clusters() if one.identity != cluster.identity]
            yield _clear(cluster.name, known[cluster.name], others)
        elif cluster.is_accessible and known[cluster.name].missing:
            what, advice = _unknown_ranges(known[cluster.name].missing)
            yield Finding(cluster.name, "network", Level.SKIP, what, advice)


def _clashing(clash: Clash) -> Finding:
    own, other = clash
    what = (
        f"addresses of {own.kind} here ({own.network}) overlap with those of {other.kind} of {shown(other.cluster)} "
        f"({other.network}): Services do not work between the two"
    )
    advice = "recreate one of the clusters with other addresses: --cluster-cidr or --service-cluster-ip-range"
    return Finding(own.cluster, "network", Level.WARN, what, advice)


def _clear(cluster: str, known: _Known, others: Sequence[_Known]) -> Finding:
    """Return the addresses of a cluster without overlaps, and whether they were compared with those of all others."""
    ranges_text = ", ".join(f"{one.kind} {one.network}" for one in known.ranges[:_SHOWN])
    ranges_text += " and more" * (len(known.ranges) > _SHOWN)
    kinds = {one.kind for one in known.ranges}
    is_compared = not others or any(
        _is_harmful(own, one.kind) for other in others for one in other.ranges for own in kinds
    )
    if not is_compared:
        comparison = "not compared: other clusters do not publish their ranges"
    elif any(other.missing for other in others):
        comparison = "no overlap with the ranges that other clusters publish"
    else:
        comparison = "no overlap with other clusters"
    parts, advice = [f"{ranges_text}: {comparison}"] if ranges_text else [], ""
    if known.missing:
        what, advice = _unknown_ranges(known.missing)
        parts.append(what)
    level = Level.OK if is_compared and not known.missing else Level.SKIP
    return Finding(cluster, "network", level, "; ".join(parts) or comparison, advice)


def _unknown_ranges(missing: Sequence[str]) -> tuple[str, str]:
    """Return which addresses of a cluster are unknown, and what to compare manually."""
    by_hand = ", and ".join(_BY_HAND[kind] for kind in missing)
    what = f"not checked: the addresses of {' and '.join(missing)}, which the cluster does not publish"
    return what, f"compare them by hand with those of the other clusters: {by_hand}"


def _known(cluster: ClusterFacts) -> _Known:
    """Return the addresses of a cluster as far as it publishes them, merged into the fewest networks."""
    nodes = [node for node in cluster.items(NODES) if cluster.name != UPPER or not _is_virtual(node)]
    pods = [cidr for node in nodes for cidr in _cidrs(node)]
    services = [cidr for one in cluster.items(RANGES) for cidr in (one.get("spec") or {}).get("cidrs") or ()]
    cidrs_by_kind = ((PODS, pods), (SERVICES, services))
    missing = [kind for kind, is_hidden in ((PODS, _hides_pods(cluster, nodes)), (SERVICES, not services)) if is_hidden]
    return _Known(
        [_Range(cluster.name, kind, network) for kind, cidrs in cidrs_by_kind for network in _collapsed(cidrs)], missing
    )


def _hides_pods(cluster: ClusterFacts, nodes: Sequence[Manifest]) -> bool:
    """Report whether a node has no pod CIDR; an upper cluster may have virtual nodes only."""
    if not nodes:
        return cluster.name != UPPER or cluster.value(NODES) is None
    return any(not _cidrs(node) and not _is_virtual(node) for node in nodes)


def _is_virtual(node: Manifest) -> bool:
    key, value = VIRTUAL_NODE
    return labels(node).get(key) == value


def _cidrs(node: Manifest) -> list[str]:
    spec = node.get("spec") or {}
    return list(spec.get("podCIDRs") or filter(None, [spec.get("podCIDR")]))


def _collapsed(cidrs: Iterable[str]) -> list[Network]:
    networks = [ip_network(one, strict=False) for one in cidrs]
    fours = collapse_addresses(one for one in networks if isinstance(one, IPv4Network))
    return [*fours, *collapse_addresses(one for one in networks if isinstance(one, IPv6Network))]


def _clashes(sides: Sequence[ClusterFacts], ranges: Mapping[str, Sequence[_Range]]) -> dict[str, list[Clash]]:
    """Return the first overlap of each sort for each pair of clusters, by the later cluster of the pair."""
    order = {cluster.name: index for index, cluster in enumerate(sides)}
    identity = {cluster.name: cluster.identity for cluster in sides}
    found: dict[tuple[str, str, str, str], Clash] = {}
    for pair in _overlaps(one for each in ranges.values() for one in each):
        earlier, later = sorted(pair, key=lambda one: order[one.cluster])
        if identity[later.cluster] != identity[earlier.cluster] and _is_harmful(later.kind, earlier.kind):
            found.setdefault((later.cluster, earlier.cluster, later.kind, earlier.kind), (later, earlier))
    clashes: dict[str, list[Clash]] = {name: [] for name in order}
    for later, earlier in sorted(found.values(), key=lambda clash: order[clash[1].cluster]):
        clashes[later.cluster].append((later, earlier))
    return clashes


def _is_harmful(kind: str, other: str) -> bool:
    """Report whether an overlap of these sorts causes problems: Service addresses are never used across clusters."""
    return (kind, other) != (SERVICES, SERVICES)


def _overlaps(ranges: Iterable[_Range]) -> Iterator[Clash]:
    """Yield every pair of ranges that overlap.

    Of two networks that overlap, one contains the other, so those that contain the present one form a stack.
    """
    enclosing: list[_Range] = []
    for one in sorted(ranges, key=_begin):
        while enclosing and not _contains(enclosing[-1].network, one.network):
            enclosing.pop()
        yield from ((outer, one) for outer in enclosing)
        enclosing.append(one)


def _begin(one: _Range) -> tuple[int, int, int]:
    return one.network.version, int(one.network.network_address), one.network.prefixlen


def _contains(outer: Network, inner: Network) -> bool:
    return outer.version == inner.version and int(inner.network_address) <= int(outer.broadcast_address)


def _advertised(upper: ClusterFacts) -> Iterator[Finding]:
    """Yield a warning if the advertised address of the upper apiserver, which pods in lower clusters use, fails."""
    contact: ContactResult | None = upper.value(ADVERTISED)
    if contact is None or contact.stage == Stage.DONE:
        return
    address_text = f"{contact.endpoint.host_and_port}, which does not work from here ({contact.error})"
    what = f"lower pods get the upper apiserver's address {address_text}"
    advice = (
        f"set upper.advertiseURL to an address that lower pods reach, and include in the apiserver's certificate "
        f"{contact.endpoint.host} (--apiserver-cert-extra-sans with kubeadm)"
    )
    yield Finding(UPPER, "network", Level.WARN, what, advice)


def check_ports(cluster: ClusterFacts, facts: Facts) -> Iterator[Finding]:
    """Yield ports that listen on every address of a machine without need.

    In a pod there is no narrower address. Elsewhere telemetry, which has no authentication, is for the local machine
    unless configured otherwise. If the upper apiserver runs on this machine, so do the callers of the other ports.
    """
    if cluster.name != UPPER or not cluster.is_accessible or facts.in_configmap:
        return
    topology = facts.topology
    telemetry_finding = [
        _finding(
            "telemetry", "anybody who reaches this machine can read names, health and capacity of all lower clusters"
        )
    ]
    found = telemetry_finding if _is_any(topology.telemetry.bind) else []
    is_local = cluster.contact is not None and is_loopback(cluster.contact.endpoint.host)
    enabled = {"kubelet": True, "webhook": topology.webhook.enabled, "extender": topology.extender.enabled}
    for section, caller in _CALLERS.items() if is_local else ():
        if enabled[section] and _is_any(getattr(topology, section).bind):
            found.append(_finding(section, f"{caller}, its only caller, is on this machine"))
    if (shortage := net.missing(len(topology.lowers), facts.descriptors)) is not None:
        found.append(Finding(UPPER, "ports", Level.WARN, shortage.what, shortage.advice))
    yield from found
    if not found:
        yield Finding(UPPER, "ports", Level.OK, "no known port is open to others than its callers")


def _finding(section: str, why: str) -> Finding:
    setting = f"{section}.bind: {_LOOPBACK}"
    advice = f"set {setting}" + (", or the address at which Prometheus calls it" if section == "telemetry" else "")
    return Finding(UPPER, "ports", Level.WARN, f"{section}.bind is every address of this machine: {why}", advice)


def _is_any(bind: str) -> bool:
    try:
        return ip_address(bind).is_unspecified
    except ValueError:
        return False


def check_webhook(cluster: ClusterFacts, facts: Facts) -> Iterator[Finding]:
    """Yield a finding on whether the webhook is registered, and reachable at its address."""
    webhook = facts.topology.webhook
    if cluster.name != UPPER or not webhook.enabled or not cluster.is_accessible:
        return
    if not webhook.is_reachable:
        what = "the webhook is enabled, but has no address for the upper apiserver: it is never registered"
        yield Finding(UPPER, "webhook", Level.FAIL, what, "set webhook.service or webhook.url in the topology")
        return
    yield from _service(cluster, facts) if webhook.service else _url(cluster, facts)
    if cluster.answers.get(HOOK, QueryAnswer()).status == HTTPStatus.NOT_FOUND:
        what = "it is not registered yet: the engine first calls itself at that address"
        advice = "`tensile status` and the engine's log say why; if no engine runs, start it"
        yield Finding(UPPER, "webhook", Level.WARN, what, advice)


def _url(upper: ClusterFacts, facts: Facts) -> Iterator[Finding]:
    address = address_of(facts.topology.webhook)
    contact: ContactResult | None = upper.value(HOOK_ADDRESS)
    advice = (
        f"webhook.url has to lead to webhook.port ({facts.topology.webhook.port}) of the engine: correct it, or start "
        "or restart the engine, or let the upper's apiserver through to that port"
    )
    if port_conflict := next(
        (message for message in not_active(local_report(upper, facts.topology)) if _NO_PORT in message), ""
    ):
        what, _, advice = port_conflict.rpartition(": ")
        yield Finding(UPPER, "webhook", Level.FAIL, what, advice)
        return
    if contact is None or contact.stage != Stage.DONE:
        why = contact.error if contact else "not checked in time"
        yield Finding(UPPER, "webhook", Level.FAIL, f"no webhook answers at {address} ({why})", advice)
        return
    call = upper.answers.get(HOOK_CALL)
    if call is not None and call.error:
        advice = "check whether another program listens there, and the engine's log"
        yield Finding(UPPER, "webhook", Level.FAIL, f"a call like the apiserver's fails: {call.error}", advice)
    elif call is not None:
        yield Finding(UPPER, "webhook", Level.OK, f"it answers at {address}, called from here")


def _service(upper: ClusterFacts, facts: Facts) -> Iterator[Finding]:
    service = facts.topology.webhook.service
    assert service is not None
    name = f"Service {service.namespace}/{service.name}"
    answer, slices = (upper.answers.get(one, _LATE) for one in (HOOK_ADDRESS, HOOK_SLICES))
    if answer.status == HTTPStatus.NOT_FOUND:
        advice = "create it, with port 443 leading to webhook.port of the engine, or correct webhook.service"
        yield Finding(UPPER, "webhook", Level.FAIL, f"{name} does not exist", advice)
    elif not (answer.error or slices.error or _ready(slices.value)):
        advice = f"check that the engine's pods are Ready, and the selector: kubectl -n {service.namespace} get pods"
        yield Finding(UPPER, "webhook", Level.FAIL, f"{name} has no ready endpoint", advice)
    else:
        yield _service_finding(
            name, _untested_service(name, answer, slices), upper.answers.get(HOOK_CALL), facts.topology
        )


def _untested_service(name: str, answer: QueryAnswer, slices: QueryAnswer) -> str:
    """Return what is known of a Service that could not be called."""
    if answer.error:
        return f"not checked: {name} cannot be read ({answer.error})"
    if slices.error:
        return f"not checked: the endpoints of {name} cannot be read ({slices.error})"
    return f"{name} has ready endpoints, but the call from the upper apiserver was not tested"


def _service_finding(name: str, untested: str, call: QueryAnswer | None, topology: Topology) -> Finding:
    """Return the finding on a call to the Service through the upper apiserver (None: the apiserver does not permit it).

    The apiserver proxies calls to pods only, and to no endpoints that a user wrote by hand: not every refusal is an
    error.
    """
    if call is None:
        what = f"{untested}: this needs the permission to get services/proxy, which the engine does not need"
        return Finding(UPPER, "webhook", Level.SKIP, what, dry_run_command(topology))
    if call.value and call.error == _ALIVE:
        return Finding(UPPER, "webhook", Level.OK, f"the upper's apiserver reaches {name}")
    response = f"HTTP {call.status or '-'}: {call.error}"
    if call.value:
        advice = "check that the targetPort of the Service's port 443 is the engine's webhook.port"
        return Finding(UPPER, "webhook", Level.WARN, f"something else answers at {name} ({response})", advice)
    if call.status == 0 or _UNREACHED in call.error:
        advice = (
            f"let the upper's apiserver through to port {topology.webhook.port} of the engine's pods (the firewall "
            "between control plane and nodes, NetworkPolicy): until then pods are not mutated, without any error"
        )
        what = f"the upper's apiserver does not reach {name} ({response})"
        return Finding(UPPER, "webhook", Level.FAIL, what, advice)
    return Finding(
        UPPER,
        "webhook",
        Level.SKIP,
        f"{untested}: the apiserver does not forward the call ({response})",
        dry_run_command(topology),
    )


def dry_run_command(topology: Topology) -> str:
    """Return a command that makes the upper apiserver call the webhook for a pod that is not stored.

    The pod selects a label besides its virtual node, which the webhook moves to an annotation under any topology.
    """
    namespace = "NAMESPACE" if "default" in left_alone(topology) else "default"
    overrides = '{"spec":{"nodeSelector":{"probe":"probe"}}}'
    return (
        "as an administrator of the upper cluster, have it ask about a pod that is not stored; it is reached if this "
        "prints a selector:\n"
        f"kubectl -n {namespace} run probe --image=probe --labels={VIRTUAL_POD}=true --dry-run=server "
        f"--overrides='{overrides}' -o jsonpath='{{.metadata.annotations.{CLUSTER_SELECTOR}}}'"
    )


def _ready(slices: Sequence[Manifest]) -> bool:
    endpoints = [endpoint for one in slices for endpoint in one.get("endpoints") or ()]
    return any((endpoint.get("conditions") or {}).get("ready", True) for endpoint in endpoints)
