"""The status of a virtual node: capacity, conditions, addresses and the port of its kubelet API.

One condition reports the deletions that the guard holds back in the lower cluster. It is also the record that a store
was restored, because an engine that starts afterwards has not seen that happen. So the condition stays until it is
certain that no pending deletion rests on it: never while caches are filling or the lower is unreachable.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from tensile.kubelet.node.capacity import NodeOffer, capacity, declared_features
from tensile.kubelet.pods.conditions import replacing
from tensile.kubelet.pods.lost_pods import LostPodRule
from tensile.names import (
    DELETIONS_BLOCKED,
    IN_TOPOLOGY,
    LOWER_REACHABLE,
    LOWER_SCHEDULABLE,
    NOWHERE,
    STORE_RESTORED,
    ConditionReason,
    ConditionType,
)
from tensile.objects import Manifest, moment_of, timestamp
from tensile.reconcile import mirrored_kinds
from tensile.reconcile.desired import Absent, Patched, Rule, VerifyAbsent
from tensile.reconcile.guard import restored_condition
from tensile.reconcile.rules import orphans
from tensile.reconcile.world import Key, LowerWorld, Problem, World
from tensile.resources import parse
from tensile.text import listed

SILENT_AFTER = 10.0
"""Seconds without an answer after which a lower counts as unreachable: longer than an apiserver's restart."""
_MIN_SHOWN_CHANGE = 0.05
"""A plan shows a change of advertised capacity by more than this share."""
NODE_READY: ConditionType = "Ready"
"""On a node: True while the engine runs, whatever the state of the lower cluster; Unknown once no engine renews the
node's Lease. Remedy: while it is not True, start the engine."""
MEMORY_PRESSURE: ConditionType = "MemoryPressure"
"""On a node: always False, since a virtual node does not track it. Remedy: nothing."""
DISK_PRESSURE: ConditionType = "DiskPressure"
"""On a node: always False, since a virtual node does not track it. Remedy: nothing."""
PID_PRESSURE: ConditionType = "PIDPressure"
"""On a node: always False, since a virtual node does not track it. Remedy: nothing."""
KUBELET_READY: ConditionReason = "KubeletReady"
"""`Ready`: the engine runs. Remedy: nothing."""
SUFFICIENT_MEMORY: ConditionReason = "KubeletHasSufficientMemory"
"""`MemoryPressure`: not tracked. Remedy: look at the nodes of the lower cluster."""
NO_DISK_PRESSURE: ConditionReason = "KubeletHasNoDiskPressure"
"""`DiskPressure`: not tracked. Remedy: look at the nodes of the lower cluster."""
SUFFICIENT_PID: ConditionReason = "KubeletHasSufficientPID"
"""`PIDPressure`: not tracked. Remedy: look at the nodes of the lower cluster."""
CLUSTER_REACHABLE: ConditionReason = "ClusterReachable"
"""`LowerReachable`: the lower cluster answers. Remedy: nothing."""
CLUSTER_UNREACHABLE: ConditionReason = "ClusterUnreachable"
"""`LowerReachable`: the lower cluster does not answer, or refuses the credential. Remedy: run `tensile doctor`, and
see the message."""
WRONG_CLUSTER: ConditionReason = "WrongCluster"
"""`LowerReachable`: another cluster than before answers at the address, so the engine leaves it alone. Remedy:
correct the kubeconfig."""
DUPLICATE_CLUSTER: ConditionReason = "DuplicateCluster"
"""`LowerReachable`: the cluster is the upper cluster or that of another lower. Remedy: correct the kubeconfig, or
remove one of the two."""
RESPONSE_TOO_LARGE: ConditionReason = "ResponseTooLarge"
"""`LowerReachable`: the lower cluster sends a larger response than the engine accepts. Remedy: find in the message
what is too large, and delete it or split it."""
NODES_READY: ConditionReason = "NodesReady"
"""`LowerSchedulable`: the lower cluster has a ready node. Remedy: nothing."""
NO_READY_NODES: ConditionReason = "NoReadyNodes"
"""`LowerSchedulable`: no node of the lower cluster is known to be ready and schedulable, so the node takes no new pods.
Remedy: repair or uncordon a node there; if the message says that the nodes are not known, run `tensile doctor`."""
NODES_UNKNOWN: ConditionReason = "NodesUnknown"
"""`LowerSchedulable`: the lower cluster does not count as reachable, so the state of its nodes is Unknown. Remedy: see
condition `LowerReachable`."""
FORBIDDEN: ConditionReason = "Forbidden"
"""`LowerSchedulable`: the lower cluster denies the engine a right that it needs; the message names it. Remedy: grant
the right ([rights](../doctor.md))."""
DECLARED: ConditionReason = "Declared"
"""`InTopology`: the topology has the lower cluster. Remedy: nothing."""
REMOVED: ConditionReason = "Removed"
"""`InTopology`: the lower cluster was removed while pods are bound to its node, so they run on and none is added.
Remedy: put it back with `maintenance: drain`, and remove it once its node has no pods."""
NO_DELETIONS_BLOCKED: ConditionReason = "NoDeletionsBlocked"
"""`DeletionsBlocked`: the guard blocks nothing. Remedy: nothing."""
_NOT_TRACKED = "not tracked on virtual nodes; see the lower cluster's nodes"
_FEATURES = "declaredFeatures"
_OUR_FIELDS = ("capacity", "allocatable", "addresses", "daemonEndpoints", "nodeInfo", _FEATURES)

RULES: tuple[Rule, ...] = (LostPodRule(), *orphans.RULES)
"""The rules for deletions that no client is known to have requested, with one key for each lower."""


def node_status(seen: Manifest, lower: LowerWorld, world: World) -> Manifest:
    """Return the node's status; `seen` is the Node as observed, {} when there is none."""
    now = timestamp(world.now)
    old = _conditions_by_type(seen)
    amounts = _advertised(seen, lower)
    return {
        "capacity": amounts,
        "allocatable": amounts,
        "conditions": [_condition(old, one, now) for one in _conditions(seen, lower, world)],
        "addresses": _addresses(lower, world),
        "daemonEndpoints": {"kubeletEndpoint": {"Port": _port(seen, lower)}},
        "nodeInfo": _node_info(seen, lower),
        _FEATURES: _features(seen, lower),
    }


def is_reachable(seen: Manifest, lower: LowerWorld) -> bool:
    """Report whether the lower cluster answers; one without a connection does not.

    If the Node says that it does not, it first has to answer again, also after a restart of the engine.
    """
    if not lower.connected or lower.unreachable_seconds > SILENT_AFTER or lower.is_wrong or lower.is_excessive:
        return False
    return _condition_status(seen, LOWER_REACHABLE) != "False" or (
        lower.unreachable_seconds == 0 and lower.nodes.synced
    )


def has_ready_node(seen: Manifest, lower: LowerWorld) -> bool:
    """Report whether pods can start in the lower cluster.

    While its nodes are not known, the result is what was reported before. It is False while the cluster denies what
    every pod needs.
    """
    if lower.is_withheld:
        return False
    if not lower.nodes.synced:
        return _condition_status(seen, LOWER_SCHEDULABLE) == "True"
    return any(offer.counts for offer in _offers(lower))


def architecture(lower: LowerWorld, default: str) -> str:
    """Return the architecture of most of the lower's nodes, on a tie the first by name; `default` without nodes."""
    found = _by_frequency(offer.architecture for offer in _offers(lower))
    return found[0] if found else default or "amd64"


def differs(seen: Manifest, wanted: Manifest, now: datetime, heartbeat: float) -> bool:
    """Report whether the status has to be written: it changed, or its heartbeat is older than `heartbeat` seconds.

    Features are no reason to write a Node that has none: an apiserver that does not know the field drops it each time.
    """
    status = seen.get("status", {})
    ours = (field for field in _OUR_FIELDS if field != _FEATURES or status.get(_FEATURES))
    if any((status.get(field) or None) != (wanted[field] or None) for field in ours):
        return True
    known = {one["type"]: one for one in status.get("conditions") or ()}
    for one in wanted["conditions"]:
        before = known.get(one["type"], {})
        if any((before.get(field) or "") != one[field] for field in ("status", "reason", "message")):
            return True
        heartbeat_time = before.get("lastHeartbeatTime")
        if not heartbeat_time or now - moment_of(heartbeat_time) >= timedelta(seconds=heartbeat - 1):
            return True
    return False


def as_patch(seen: Manifest, wanted: Manifest) -> Manifest:
    """Return the strategic merge patch that makes a Node's status equal `wanted`.

    Conditions of others stay. All other fields are ours and replaced whole: a resource or an address that the cluster
    no longer has, if merely left out of a patch, would be advertised indefinitely.
    """
    known = seen.get("status") or {}
    return {**wanted, **{field: replacing(field, wanted[field], known.get(field)) for field in _OUR_FIELDS}}


def capacity_changed(seen: Manifest, wanted: Manifest) -> bool:
    """Report whether advertised capacity changed by enough to be shown in a plan."""
    before = seen.get("status", {}).get("allocatable") or {}
    after = wanted["allocatable"]
    for name in before.keys() | after.keys():
        old, new = parse(before.get(name, "0")), parse(after.get(name, "0"))
        if abs(new - old) > _MIN_SHOWN_CHANGE * max(old, 1):
            return True
    return False


def keys(lower: str) -> tuple[Key, ...]:
    """Return the keys whose problems show what is held back in a lower."""
    return tuple(Key(rule.name, lower, "", "") for rule in RULES)


def held_back(seen: Manifest, lower: LowerWorld, world: World) -> Problem | None:
    """Return what is held back, None for nothing; `seen` is the Node as observed, {} when there is none."""
    blocked = [world.problems[key] for key in keys(lower.name) if key in world.problems]
    if blocked:
        return min(blocked, key=lambda one: one.reason != STORE_RESTORED)
    record = restored_condition(seen)
    if record is None or (_is_certain(lower, world) and not any(_wants_unrequested_changes(lower, world))):
        return None
    return Problem(STORE_RESTORED, record["message"])


def _is_certain(lower: LowerWorld, world: World) -> bool:
    """Report whether everything is known that the rules base their decisions on."""
    if lower.unreachable_seconds or not lower.settled:
        return False
    sides = ((world.upper.more, True), (lower.more, False))
    kinds = (
        (more, kind)
        for more, is_upper in sides
        for kind in mirrored_kinds.watched_kinds(lower.spec.controllers, is_upper=is_upper)
    )
    return all(more[kind].synced for more, kind in kinds) and all(cache.synced for cache in world.upper.caches())


def _wants_unrequested_changes(lower: LowerWorld, world: World) -> Iterator[bool]:
    """Yield, for each rule, whether it wants unrequested changes."""
    for rule in RULES:
        for key in rule.keys(world, lower.name):
            wanted = rule.decide(key, world).wanted
            yield any(isinstance(one, Absent | VerifyAbsent | Patched) and not one.requested for one in wanted)


def _offers(lower: LowerWorld) -> list[NodeOffer]:
    return [entry.facts for entry in lower.nodes]


def _advertised(seen: Manifest, lower: LowerWorld) -> dict[str, str]:
    """Return what to advertise; while the lower's state is not known, what was advertised before."""
    if not (lower.nodes.synced and lower.foreign_pods.synced):
        known: dict[str, str] = seen.get("status", {}).get("allocatable") or {"cpu": "0", "memory": "0", "pods": "0"}
        return known
    spec = lower.spec.capacity
    foreign = (entry.facts for entry in lower.foreign_pods)
    return capacity(_offers(lower), foreign, spec.basis, spec.reserve, spec.limit)


def _conditions(seen: Manifest, lower: LowerWorld, world: World) -> list[tuple[str, bool | None, str, str]]:
    """Return (type, is true, reason, message) of every condition that is ours; `seen` is the Node as observed.

    What is neither true nor false is None: Unknown.
    """
    reachable = is_reachable(seen, lower)
    schedulable = has_ready_node(seen, lower) if reachable or lower.is_withheld else None
    blocked = held_back(seen, lower, world)
    problem = _problem_of(lower)
    with_problem = f"lower cluster {lower.name} counts as reachable, with a problem: {problem}"
    reachable_message = with_problem if problem else f"lower cluster {lower.name} answers"
    state = "does not answer" if lower.connected else "is not in the topology, so the engine does not connect to it"
    unreachable_message = problem or f"lower cluster {lower.name} {state}" + (
        f": {lower.outage_error}" if lower.outage_error else ""
    )
    return [
        (NODE_READY, True, KUBELET_READY, "the engine is running"),
        (MEMORY_PRESSURE, False, SUFFICIENT_MEMORY, _NOT_TRACKED),
        (DISK_PRESSURE, False, NO_DISK_PRESSURE, _NOT_TRACKED),
        (PID_PRESSURE, False, SUFFICIENT_PID, _NOT_TRACKED),
        (
            LOWER_REACHABLE,
            reachable,
            _reachability_reason(lower, reachable=reachable),
            reachable_message if reachable else unreachable_message,
        ),
        (LOWER_SCHEDULABLE, schedulable, *_schedulability(lower, schedulable=schedulable)),
        (IN_TOPOLOGY, lower.in_topology, DECLARED if lower.in_topology else REMOVED, _topology_message(lower)),
        (
            DELETIONS_BLOCKED,
            blocked is not None,
            blocked.reason if blocked else NO_DELETIONS_BLOCKED,
            blocked.message if blocked else "the guard blocks no deletions",
        ),
    ]


def _schedulability(lower: LowerWorld, *, schedulable: bool | None) -> tuple[str, str]:
    """Return the reason and the message for why pods can or cannot start in the lower cluster."""
    if lower.is_withheld:
        return FORBIDDEN, lower.denied
    if schedulable is None:
        return NODES_UNKNOWN, f"the state of the nodes of {lower.name} is not known: see condition {LOWER_REACHABLE}"
    if schedulable:
        return NODES_READY, f"lower cluster {lower.name} has nodes that are ready and schedulable"
    if not lower.nodes.synced:
        return NO_READY_NODES, f"the nodes of lower cluster {lower.name} are not known"
    return NO_READY_NODES, f"lower cluster {lower.name} has no node that is ready and schedulable"


def _reachability_reason(lower: LowerWorld, *, reachable: bool) -> str:
    """Return the CamelCase reason for why the lower cluster counts as reachable or not."""
    if lower.is_wrong:
        return DUPLICATE_CLUSTER if lower.is_shared else WRONG_CLUSTER
    if lower.is_excessive:
        return RESPONSE_TOO_LARGE
    return CLUSTER_REACHABLE if reachable else CLUSTER_UNREACHABLE


def _conditions_by_type(seen: Manifest) -> dict[str, Any]:
    return {one["type"]: one for one in seen.get("status", {}).get("conditions") or ()}


def _condition_status(seen: Manifest, kind: str) -> str:
    return str(_conditions_by_type(seen).get(kind, {}).get("status", ""))


def _features(seen: Manifest, lower: LowerWorld) -> list[str]:
    """Return what every lower node declares; while the nodes are not known, what was declared before."""
    if not lower.nodes.synced:
        known: list[str] = seen.get("status", {}).get("declaredFeatures") or []
        return known
    return sorted(declared_features(_offers(lower)))


def _problem_of(lower: LowerWorld) -> str:
    return lower.access_error or lower.warning or lower.denied


def _topology_message(lower: LowerWorld) -> str:
    if lower.in_topology:
        return f"lower cluster {lower.name} is in the topology"
    return (
        "the lower cluster was removed from the topology while pods are bound to this node: to evict them, put it back "
        "with maintenance: drain"
    )


def _condition(old: dict[str, Any], wanted: tuple[str, bool | None, str, str], now: str) -> Manifest:
    kind, is_true, reason, message = wanted
    status = "Unknown" if is_true is None else "True" if is_true else "False"
    before = old.get(kind, {})
    since = before.get("lastTransitionTime") if before.get("status") == status else None
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": now,
        "lastTransitionTime": since or now,
    }


def _addresses(lower: LowerWorld, world: World) -> list[Manifest]:
    """Return the node's address.

    Apiservers prefer a Hostname by default (--kubelet-preferred-address-types), and no DNS knows the name of the node.
    """
    if world.node_address:
        return [{"type": "InternalIP", "address": world.node_address}]
    return [{"type": "Hostname", "address": lower.node}]


def _port(seen: Manifest, lower: LowerWorld) -> int:
    """Return the port of the node's kubelet API, NOWHERE where it is not served.

    A command that serves nothing keeps the port that an engine reported.
    """
    return (noted_port(seen) if lower.port is None else lower.port) or NOWHERE


def noted_port(node: Manifest) -> int:
    """Return the port of the kubelet API that a Node shows, 0 for none."""
    endpoints = (node.get("status") or {}).get("daemonEndpoints") or {}
    return int((endpoints.get("kubeletEndpoint") or {}).get("Port") or 0)


def _node_info(seen: Manifest, lower: LowerWorld) -> Manifest:
    """Return what the lower's nodes run; fields that identify a single machine stay empty."""
    known = seen.get("status", {}).get("nodeInfo") or {}
    offers = _offers(lower)
    machines = {
        "kernelVersion": (offer.kernel_version for offer in offers),
        "osImage": (offer.os_image for offer in offers),
        "containerRuntimeVersion": (offer.container_runtime for offer in offers),
    }
    return {
        **dict.fromkeys(("machineID", "systemUUID", "bootID", "kubeProxyVersion"), ""),
        **{field: listed(_by_frequency(values)) or known.get(field, "") for field, values in machines.items()},
        "kubeletVersion": lower.version or known.get("kubeletVersion", ""),
        "operatingSystem": "linux",
        "architecture": architecture(lower, known.get("architecture", "")),
    }


def _by_frequency(values: Iterable[str]) -> list[str]:
    """Return each value once, the most frequent first, then by name; empty values are left out."""
    counts = Counter(filter(None, values))
    return sorted(counts, key=lambda value: (-counts[value], value))
