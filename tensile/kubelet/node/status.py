"""The status of a virtual node: what it offers, whether its cluster can be used, and where its kubelet API is.

What the guard holds back in a lower, as its Node tells it.

The Node is also where a hold for a restored store is kept, since an engine that starts afterwards has not seen it
happen. So what the Node says of that stays until it is certain that nothing rests on it any more: not while caches are
filled, nor while the lower is out of reach.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from tensile.kubelet.node.capacity import NodeOffer, capacity, declared_features
from tensile.kubelet.pods import orphans
from tensile.kubelet.pods.conditions import replacing
from tensile.names import DELETIONS_HELD, IN_TOPOLOGY, LOWER_REACHABLE, LOWER_SCHEDULABLE, NOWHERE, STORE_RESTORED
from tensile.objects import Manifest, moment_of, timestamp
from tensile.reconcile import watches
from tensile.reconcile.desired import Absent, Confirmed, Patched, Rule
from tensile.reconcile.guard import noted
from tensile.reconcile.rules import claim_orphans, namespace_cleanup, rbac_orphans
from tensile.reconcile.rules import orphans as strays
from tensile.reconcile.world import Key, LowerWorld, Problem, World
from tensile.resources import parse

RULES: tuple[Rule, ...] = (
    orphans.OrphanRule(),
    strays.StrayRule(),
    namespace_cleanup.VacancyRule(),
    claim_orphans.ClaimOrphanRule(),
    rbac_orphans.RightsOrphanRule(),
)
"""The rules that end what nobody was seen to delete, with one key for each lower."""


def keys(lower: str) -> tuple[Key, ...]:
    """Return the keys whose problems tell what is held back in a lower."""
    return tuple(Key(rule.name, lower, "", "") for rule in RULES)


def held_back(seen: Manifest, lower: LowerWorld, world: World) -> Problem | None:
    """Return what is held back, None for nothing; `seen` is the Node as it is, {} when there is none."""
    found = [world.problems[key] for key in keys(lower.name) if key in world.problems]
    if found:
        return min(found, key=lambda one: one.reason != STORE_RESTORED)
    note = noted(seen)
    if note is None or (_is_certain(lower, world) and not any(_unasked(lower, world))):
        return None
    return Problem(STORE_RESTORED, note["message"])


def _is_certain(lower: LowerWorld, world: World) -> bool:
    """Report whether everything is known that the rules decide by."""
    if lower.silent or not lower.settled:
        return False
    sides = ((world.upper.more, True), (lower.more, False))
    kinds = ((more, kind) for more, above in sides for kind in watches.followed(lower.spec.controllers, above=above))
    return all(more[kind].synced for more, kind in kinds) and all(cache.synced for cache in world.upper.caches())


def _unasked(lower: LowerWorld, world: World) -> Iterator[bool]:
    """Ask the rules for what nobody asked for."""
    for rule in RULES:
        for key in rule.keys(world, lower.name):
            wanted = rule.decide(key, world).wanted
            yield any(isinstance(one, Absent | Confirmed | Patched) and not one.asked for one in wanted)


SILENT_AFTER = 10.0
"""Seconds without an answer after which a lower counts as unreachable: longer than an apiserver's restart."""
_SHOWN_FROM = 0.05
"""A change of what is advertised by more than this share is something that a person wants to see in a plan."""
_NAMED = 3
"""Of so many different kernels or runtimes below the virtual node names each: a person reads it in a line."""
WRONG_CLUSTER = "WrongCluster"
SAME_CLUSTER = "SameCluster"
TOO_LARGE = "LowerTooLarge"
_COMPARED = ("capacity", "allocatable", "addresses", "daemonEndpoints", "nodeInfo", "declaredFeatures")


def node_status(seen: Manifest, lower: LowerWorld, world: World) -> Manifest:
    """Return the node's status; `seen` is the Node as it is, {} when there is none."""
    now = timestamp(world.now)
    old = _said_by_type(seen)
    amounts = _amounts(seen, lower)
    return {
        "capacity": amounts,
        "allocatable": amounts,
        "conditions": [_condition(old, one, now) for one in _conditions(seen, lower, world)],
        "addresses": _addresses(lower, world),
        "daemonEndpoints": {"kubeletEndpoint": {"Port": _port(seen, lower)}},
        "nodeInfo": _node_info(seen, lower),
        "declaredFeatures": _features(seen, lower),
    }


def is_reachable(seen: Manifest, lower: LowerWorld) -> bool:
    """Report whether the lower cluster answers; one that was said not to has to answer first, also after a restart."""
    if lower.silent > SILENT_AFTER or lower.is_wrong or lower.is_excessive:
        return False
    return _said(seen, LOWER_REACHABLE) != "False" or (lower.silent == 0 and lower.nodes.synced)


def has_ready_node(seen: Manifest, lower: LowerWorld) -> bool:
    """Report whether pods can start there; while that is not known, what was said before, unless we are not let know."""
    if lower.is_withheld:
        return False
    if not lower.nodes.synced:
        return _said(seen, LOWER_SCHEDULABLE) == "True"
    return any(offer.counts for offer in _offers(lower))


def architecture(lower: LowerWorld, otherwise: str) -> str:
    """Return the architecture of most of the lower's nodes, the first by name of several; `otherwise` without nodes."""
    found = _most_first(offer.architecture for offer in _offers(lower))
    return found[0] if found else otherwise or "amd64"


def differs(seen: Manifest, wanted: Manifest, now: datetime, heartbeat: float) -> bool:
    """Report whether the status has to be written: it changed, or the last heartbeat is too long ago (seconds)."""
    status = seen.get("status", {})
    if any((status.get(field) or None) != (wanted[field] or None) for field in _COMPARED):
        return True
    known = {one["type"]: one for one in status.get("conditions") or ()}
    for one in wanted["conditions"]:
        before = known.get(one["type"], {})
        if any((before.get(field) or "") != one[field] for field in ("status", "reason", "message")):
            return True
        beat = before.get("lastHeartbeatTime")
        if not beat or now - moment_of(beat) >= timedelta(seconds=heartbeat - 1):
            return True
    return False


def as_patch(seen: Manifest, wanted: Manifest) -> Manifest:
    """Return what to send so that a Node's status says that, by a strategic merge patch.

    Conditions of others stay. The rest is ours as a whole: a resource or an address that the cluster has no more, and
    that is only left out, would be offered for ever.
    """
    known = seen.get("status") or {}
    return {**wanted, **{field: replacing(field, wanted[field], known.get(field)) for field in _COMPARED}}


def moved(seen: Manifest, wanted: Manifest) -> bool:
    """Report whether what is advertised changed by so much that a person wants to know."""
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
    """Return what to advertise; while the lower's state is not known, what was advertised before."""
    if not (lower.nodes.synced and lower.foreign_pods.synced):
        known: dict[str, str] = seen.get("status", {}).get("allocatable") or {"cpu": "0", "memory": "0", "pods": "0"}
        return known
    spec = lower.spec.capacity
    foreign = (entry.facts for entry in lower.foreign_pods)
    return capacity(_offers(lower), foreign, spec.basis, spec.reserve, spec.limit)


def _conditions(seen: Manifest, lower: LowerWorld, world: World) -> list[tuple[str, bool, str, str]]:
    """Return (type, true, reason, message) of every condition that is ours; `seen` is the Node as it is."""
    reachable, schedulable = is_reachable(seen, lower), has_ready_node(seen, lower)
    held = held_back(seen, lower, world)
    what = f"lower cluster {lower.name}"
    return [
        ("Ready", True, "KubeletReady", "the engine runs"),
        ("MemoryPressure", False, "KubeletHasSufficientMemory", "of the lower's nodes' own concern"),
        ("DiskPressure", False, "KubeletHasNoDiskPressure", "of the lower's nodes' own concern"),
        ("PIDPressure", False, "KubeletHasSufficientPID", "of the lower's nodes' own concern"),
        (LOWER_REACHABLE, reachable, _reach(lower, reachable=reachable), _trouble(lower) or what),
        (LOWER_SCHEDULABLE, schedulable, *_room(lower, schedulable=schedulable)),
        (IN_TOPOLOGY, lower.in_topology, "Declared" if lower.in_topology else "Removed", _why(lower)),
        (DELETIONS_HELD, held is not None, held.reason if held else "NothingHeld", held.message if held else ""),
    ]


def _room(lower: LowerWorld, *, schedulable: bool) -> tuple[str, str]:
    """Return the reason and the words why pods can start there, or not."""
    if lower.is_withheld:
        return "NotAllowed", lower.denied
    return "NodesReady" if schedulable else "NoReadyNode", f"lower cluster {lower.name}"


def _reach(lower: LowerWorld, *, reachable: bool) -> str:
    """Return the reason in CamelCase why the lower cluster counts as reachable, or not."""
    if lower.is_wrong:
        return SAME_CLUSTER if lower.is_shared else WRONG_CLUSTER
    if lower.is_excessive:
        return TOO_LARGE
    return "Answers" if reachable else "NoAnswer"


def _said_by_type(seen: Manifest) -> dict[str, Any]:
    return {one["type"]: one for one in seen.get("status", {}).get("conditions") or ()}


def _said(seen: Manifest, kind: str) -> str:
    return str(_said_by_type(seen).get(kind, {}).get("status", ""))


def _features(seen: Manifest, lower: LowerWorld) -> list[str]:
    """Return what every node below declares; while they are not known, what was declared before."""
    if not lower.nodes.synced:
        known: list[str] = seen.get("status", {}).get("declaredFeatures") or []
        return known
    return sorted(declared_features(_offers(lower)))


def _trouble(lower: LowerWorld) -> str:
    return lower.refusal or lower.warning or lower.denied


def _why(lower: LowerWorld) -> str:
    if lower.in_topology:
        return "the topology declares it"
    return "removed from the topology while pods are bound to it: to empty it, put it back with maintenance: drain"


def _condition(old: dict[str, Any], wanted: tuple[str, bool, str, str], now: str) -> Manifest:
    kind, true, reason, message = wanted
    status = "True" if true else "False"
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
    internal = [{"type": "InternalIP", "address": world.node_address}] if world.node_address else []
    return [*internal, {"type": "Hostname", "address": lower.node}]


def _port(seen: Manifest, lower: LowerWorld) -> int:
    """Return at which port the node's kubelet API is, NOWHERE where it is not served.

    Never one that it is only to have: another node may still be there, and would answer in its place. A command that
    serves nothing leaves what an engine said.
    """
    if lower.port is not None:
        return lower.port or NOWHERE
    said = seen.get("status", {}).get("daemonEndpoints", {}).get("kubeletEndpoint", {}).get("Port")
    return lower.spec.node.kubelet_port if said is None else int(said)


def _node_info(seen: Manifest, lower: LowerWorld) -> Manifest:
    """Return what the lower's nodes run; what is of one machine alone stays empty."""
    known = seen.get("status", {}).get("nodeInfo") or {}
    offers = _offers(lower)
    machines = {
        "kernelVersion": (offer.kernel_version for offer in offers),
        "osImage": (offer.os_image for offer in offers),
        "containerRuntimeVersion": (offer.container_runtime for offer in offers),
    }
    return {
        **dict.fromkeys(("machineID", "systemUUID", "bootID", "kubeProxyVersion"), ""),
        **{field: _together(values) or known.get(field, "") for field, values in machines.items()},
        "kubeletVersion": lower.version or known.get("kubeletVersion", ""),
        "operatingSystem": "linux",
        "architecture": architecture(lower, known.get("architecture", "")),
    }


def _together(values: Iterable[str]) -> str:
    """Return what all nodes say; where they differ what most say first, and of many only the first few."""
    found = _most_first(values)
    rest = len(found) - _NAMED
    return ", ".join([*found[:_NAMED], *([f"and {rest} more"] if rest > 0 else [])])


def _most_first(values: Iterable[str]) -> list[str]:
    """Return each value once, that of most nodes first, else by name; what says nothing does not count."""
    counts = Counter(filter(None, values))
    return sorted(counts, key=lambda value: (-counts[value], value))
