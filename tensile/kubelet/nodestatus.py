"""The status of a virtual node: what it offers, whether its cluster can be used, and where its kubelet API is."""

from datetime import datetime, timedelta
from typing import Any

from tensile.kubelet.capacity import NodeOffer, capacity, declared_features
from tensile.names import IN_TOPOLOGY, LOWER_REACHABLE, LOWER_SCHEDULABLE, PREFIX
from tensile.objects import Manifest
from tensile.quantities import parse
from tensile.world import Key, LowerWorld, World

_TIME = "%Y-%m-%dT%H:%M:%SZ"
_SILENT_AFTER = 10.0
_SHOWN_FROM = 0.05
"""A change of what is advertised by more than this share is something that a person wants to see in a plan."""
DELETIONS_HELD = PREFIX + "DeletionsHeld"
_COMPARED = ("capacity", "allocatable", "addresses", "daemonEndpoints", "nodeInfo", "declaredFeatures")


def node_status(seen: Manifest, lower: LowerWorld, world: World) -> Manifest:
    """Give the node's status; `seen` is the Node as it is, {} when there is none."""
    now = world.now.strftime(_TIME)
    old: dict[str, Any] = {one["type"]: one for one in seen.get("status", {}).get("conditions") or ()}
    amounts = _amounts(seen, lower)
    return {
        "capacity": amounts,
        "allocatable": amounts,
        "conditions": [_condition(old, one, now) for one in _conditions(lower, world)],
        "addresses": _addresses(lower, world),
        "daemonEndpoints": {"kubeletEndpoint": {"Port": lower.spec.node.kubelet_port}},
        "nodeInfo": _node_info(seen, lower),
        "declaredFeatures": sorted(declared_features(_offers(lower))),
    }


def differs(seen: Manifest, wanted: Manifest, now: datetime, heartbeat: float) -> bool:
    """Say whether the status has to be written: it changed, or the last heartbeat is too long ago (seconds)."""
    status = seen.get("status", {})
    if any((status.get(field) or None) != (wanted[field] or None) for field in _COMPARED):
        return True
    known = {one["type"]: one for one in status.get("conditions") or ()}
    for one in wanted["conditions"]:
        before = known.get(one["type"], {})
        if any(before.get(field) != one[field] for field in ("status", "reason", "message")):
            return True
        beat = datetime.strptime(before["lastHeartbeatTime"], _TIME).replace(tzinfo=now.tzinfo)
        if now - beat >= timedelta(seconds=heartbeat - 1):
            return True
    return False


def moved(seen: Manifest, wanted: Manifest) -> bool:
    """Say whether what is advertised changed by so much that a person wants to know."""
    before = seen.get("status", {}).get("allocatable") or {}
    after = wanted["allocatable"]
    for name in before.keys() | after.keys():
        old, new = parse(before.get(name, "0")), parse(after.get(name, "0"))
        if abs(new - old) > _SHOWN_FROM * max(old, 1):
            return True
    return False


def _offers(lower: LowerWorld) -> list[NodeOffer]:
    return [entry.facts for entry in lower.nodes]


def _amounts(seen: Manifest, lower: LowerWorld) -> dict[str, str]:
    """Give what to advertise; while the lower's state is not known, what was advertised before."""
    if not (lower.nodes.synced and lower.foreign_pods.synced):
        known: dict[str, str] = seen.get("status", {}).get("allocatable") or {"cpu": "0", "memory": "0", "pods": "0"}
        return known
    spec = lower.spec.capacity
    foreign = (entry.facts for entry in lower.foreign_pods)
    return capacity(_offers(lower), foreign, spec.basis, spec.reserve, spec.limit)


def _conditions(lower: LowerWorld, world: World) -> list[tuple[str, bool, str, str]]:
    """Give (type, true, reason, message) of every condition that is ours."""
    reachable = lower.silent <= _SILENT_AFTER
    schedulable = any(offer.counts for offer in _offers(lower))
    held = world.problems.get(Key("orphans", lower.name, "", ""))
    what = f"lower cluster {lower.name}"
    return [
        ("Ready", True, "KubeletReady", "the engine runs"),
        ("MemoryPressure", False, "KubeletHasSufficientMemory", "of the lower's nodes' own concern"),
        ("DiskPressure", False, "KubeletHasNoDiskPressure", "of the lower's nodes' own concern"),
        ("PIDPressure", False, "KubeletHasSufficientPID", "of the lower's nodes' own concern"),
        (LOWER_REACHABLE, reachable, "Answers" if reachable else "NoAnswer", lower.refusal or what),
        (LOWER_SCHEDULABLE, schedulable, "NodesReady" if schedulable else "NoReadyNode", what),
        (IN_TOPOLOGY, lower.in_topology, "Declared" if lower.in_topology else "Removed", _why(lower)),
        (DELETIONS_HELD, held is not None, held.reason if held else "NothingHeld", held.message if held else ""),
    ]


def _why(lower: LowerWorld) -> str:
    if lower.in_topology:
        return "the topology declares it"
    return "removed from the topology while pods are bound to it: to empty it, put it back with maintenance: drain"


def _condition(old: dict[str, Any], wanted: tuple[str, bool, str, str], now: str) -> Manifest:
    kind, true, reason, message = wanted
    status = "True" if true else "False"
    before = old.get(kind, {})
    since = before["lastTransitionTime"] if before.get("status") == status else now
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": now,
        "lastTransitionTime": since,
    }


def _addresses(lower: LowerWorld, world: World) -> list[Manifest]:
    internal = [{"type": "InternalIP", "address": world.node_address}] if world.node_address else []
    return [*internal, {"type": "Hostname", "address": lower.node}]


def _node_info(seen: Manifest, lower: LowerWorld) -> Manifest:
    known = seen.get("status", {}).get("nodeInfo") or {}
    offers = _offers(lower)
    architecture = offers[0].architecture if offers else known.get("architecture", "amd64")
    empty = dict.fromkeys(("machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "kubeProxyVersion"), "")
    return {
        **empty,
        "containerRuntimeVersion": "",
        "kubeletVersion": lower.version or known.get("kubeletVersion", ""),
        "operatingSystem": "linux",
        "architecture": architecture,
    }
