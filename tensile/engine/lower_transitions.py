"""The transitions of lower clusters after an edit: which join, continue or wait, and which of their fields must wait.

A Node belongs to one lower at a time, because two that manage it would undo each other's writes indefinitely. The
node's name and the namespace mapping, by which pods are found, do not change while there are pods. Nothing is rejected
permanently: what waits is checked repeatedly, and becomes active once it can.

Every mapped name depends on the namespace mapping, so a change while pods run would lose them all: by a reload, a
restart with another file, or a renamed topology. So the virtual node records the active mapping, which stays until
nothing is left that would be looked up under the wrong name.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, auto
from typing import NamedTuple

from tensile.kube.store import Entry
from tensile.names import CLUSTER_ID, IN_TOPOLOGY, NAMESPACE_MAPPING, OWNER, VIRTUAL_NODE
from tensile.objects import VOLUME, Manifest, annotations, labels, metadata
from tensile.reconcile.ownership import is_copy, is_ours
from tensile.reconcile.pods.index import is_lower_pod_of
from tensile.reconcile.rules.claims import is_enabled
from tensile.reconcile.rules.services import KUBE_SYSTEM
from tensile.reconcile.world import LowerWorld, NamespaceNaming, World, mapping_note
from tensile.topology import WAY, Lower, Topology

_CONNECTION_FIELDS = ("name", *WAY)
"""Fields that take effect only when a lower is joined again."""

LowersByName = Mapping[str, Lower]
_MAPPING_RECORD = re.compile(r"same|prefix=([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)")


class Action(Enum):
    """The action for a lower of the topology."""

    JOIN = auto()
    """Join it, replacing the lower before, if any."""
    KEEP = auto()
    """Continue the lower before with these fields."""
    LEAVE = auto()
    """Remove the lower before, including its Node; the new one joins afterwards."""
    WAIT = auto()
    """Do nothing yet."""


class Transition(NamedTuple):
    """The transition of one lower of the topology.

    `spec` are the fields that can be active now. `before` is the joined lower that continues or is replaced. `waits`
    are messages about what is not active yet, and `objection` is what is wrong with new credentials ("" for nothing).
    `remaps` is whether its namespaces are mapped to other names from now on.
    """

    action: Action
    spec: Lower
    before: LowerWorld | None = None
    waits: tuple[str, ...] = ()
    objection: str = ""
    remaps: bool = False


def plan_transition(spec: Lower, topology: Topology, world: World) -> Transition:
    """Return the transition of a lower of a topology."""
    wanted = {one.name: one for one in topology.lowers}
    known, holder = world.lowers.get(spec.name), _holder(spec.node.name, world)
    if known is not None:
        other = holder if holder is not known else None
        if other is not None and not known.was_identified and not _obstacle(spec, other, wanted, world):
            # nothing was written under this name: continue as the other
            reason = f"waits until node {known.node} is deleted"
            return Transition(
                Action.LEAVE, spec, known, (_change_message(spec, "node.name", known.node, spec.node.name, reason),)
            )
        return _continued(spec, known, world, _fixed_nodes(wanted, world).get(spec.name, ""))
    if holder is None:
        stray = next((lower for lower in world.lowers.values() if lower.node == spec.node.name), None)
        return Transition(Action.JOIN, spec, stray)
    obstacle = _obstacle(spec, holder, wanted, world)
    if obstacle:
        return Transition(
            Action.WAIT, spec, waits=(f"lowers[{spec.name}]: not connected: {_holder_message(spec, holder)}{obstacle}",)
        )
    return _continued(spec, holder, world)


def removed_lowers(topology: Topology, world: World) -> Iterator[LowerWorld]:
    """Yield the lowers that left a topology: no lower of it continues them, under their name or another."""
    continued = [plan_transition(spec, topology, world).before for spec in topology.lowers]
    continuing = {before.name for before in continued if before is not None}
    yield from (lower for name, lower in world.lowers.items() if name not in continuing)


def defer(found: Transition, objection: str) -> Transition:
    """Return a transition that keeps the open connection and the fields that need a new one; other fields apply."""
    before, spec = found.before, found.spec
    assert before is not None, "only an open connection is kept"
    reason = f"{objection}; the last good connection is kept"
    fields = [field for field in _CONNECTION_FIELDS if getattr(spec, field) != getattr(before.spec, field)]
    keys = ", ".join(Lower.model_fields[field].alias or field for field in fields) or "namespaces.mapping"
    deferred = spec.model_copy(update={field: getattr(before.spec, field) for field in fields})
    return Transition(Action.KEEP, deferred, before, (*found.waits, f"lowers[{spec.name}].{keys}: {reason}"), reason)


def _obstacle(spec: Lower, holder: LowerWorld, wanted: LowersByName, world: World) -> str:
    """Return why a lower cannot continue as the one that has its node, "" if it can, as a mere rename."""
    if holder.name in wanted:
        return ", which still uses it"
    if spec.way != holder.spec.way:
        return " until that one is empty: to only rename a lower, keep its kubeconfig, context or kubeconfigSecret"
    return ", whose name is recorded in volumes: restore that name" if _may_have_volumes(holder, world) else ""


def _continued(spec: Lower, known: LowerWorld, world: World, fixed: str = "") -> Transition:
    """Return how a joined lower continues with other fields; `fixed` is why its node must keep its name, else ""."""
    before, waits = known.spec, []
    is_mapped = not has_to_map(known, spec, world)
    if not is_mapped and not may_change_mapping(known, world):
        waits.append(_waiting_mapping(spec, known, world))
        is_mapped = True
    if spec.node.name != before.node.name:
        reason = fixed or f"waits until node {before.node.name} is deleted"
        waits.append(_change_message(spec, "node.name", before.node.name, spec.node.name, reason))
        if not fixed:
            return Transition(Action.LEAVE, spec, known, tuple(waits))
        spec = spec.model_copy(update={"node": spec.node.model_copy(update={"name": before.node.name})})
    is_same = is_mapped and all(getattr(spec, field) == getattr(before, field) for field in _CONNECTION_FIELDS)
    return Transition(Action.KEEP if is_same else Action.JOIN, spec, known, tuple(waits), remaps=not is_mapped)


def _waiting_mapping(spec: Lower, lower: LowerWorld, world: World) -> str:
    notes = (mapping_note(one) for one in (lower.naming, requested_mapping(spec, world)))
    before, after = (note.removesuffix(f"={world.topology.name}") for note in notes)
    return _change_message(spec, "namespaces.mapping", before, after, _mapping_obstacle(lower, world))


def waiting_mappings(world: World) -> list[str]:
    """Return which namespace mappings of the topology wait, and for what, in a world that was read only once."""
    pairs = ((spec, world.lowers.get(spec.name)) for spec in world.topology.lowers)
    return [
        _waiting_mapping(spec, lower, world)
        for spec, lower in pairs
        if lower is not None and has_to_map(lower, spec, world) and not may_change_mapping(lower, world)
    ]


def leaving_nodes(world: World) -> list[str]:
    """Return which Nodes of removed lowers stay, as the engine has reported on them already, and what removes them."""
    return [
        f"node {lower.node}, whose lower was removed, stays until its pods are deleted; to evict them, put the lower "
        "back with maintenance: drain"
        for lower in world.lowers.values()
        if not lower.in_topology and _is_marked_removed(world.upper.nodes.get("", lower.node))
    ]


def _is_marked_removed(node: Entry | None) -> bool:
    conditions = (node.manifest().get("status") or {}).get("conditions") or () if node is not None else ()
    return any((one["type"], one["status"]) == (IN_TOPOLOGY, "False") for one in conditions)


def former_node(spec: Lower, topology: Topology, nodes: Iterable[Manifest]) -> str:
    """Return the Node of ours that a lower had before its `node.name` was changed, "" for none."""
    found = {metadata(node)["name"]: labels(node).get(CLUSTER_ID) for node in nodes}
    taken = {one.node.name for one in topology.lowers}
    former = (name for name, cluster_id in found.items() if cluster_id == spec.name and name not in taken)
    return "" if spec.node.name in found else next(former, "")


def on_former_node(spec: Lower, node: str) -> tuple[Lower, str]:
    """Return a lower that keeps the name of its former Node, whose pods hold it there, and what waits for that."""
    renamed = spec.model_copy(update={"node": spec.node.model_copy(update={"name": node})})
    return renamed, _change_message(spec, "node.name", node, spec.node.name, _until_empty(spec.name))


def has_to_map(lower: LowerWorld, spec: Lower, world: World) -> bool:
    """Report whether a lower uses another namespace mapping than a topology wants."""
    return lower.connected and lower.mapping_known and lower.naming != requested_mapping(spec, world)


def _fixed_nodes(wanted: LowersByName, world: World) -> dict[str, str]:
    """Return by name the lowers that cannot move to another node yet, and why.

    Either their own node has pods, or the other node belongs to a lower that stays there, perhaps because that cannot
    move itself.
    """
    lowers = world.lowers
    moving = {name: spec for name, spec in wanted.items() if name in lowers and spec.node.name != lowers[name].node}
    fixed = {name: _mapping_obstacle(lowers[name], world) for name in moving if not _is_free(lowers[name])}
    while True:
        holders = {name: _holder(spec.node.name, world) for name, spec in moving.items() if name not in fixed}
        blocked = {
            name: _holder_message(wanted[name], holder)
            for name, holder in holders.items()
            if holder is not None and not _releases_node(holder, wanted, fixed)
        }
        if not blocked:
            return fixed
        fixed |= blocked


def _releases_node(lower: LowerWorld, wanted: LowersByName, fixed: Mapping[str, str]) -> bool:
    """Report whether a lower is about to release its node."""
    spec = wanted.get(lower.name)
    moves = spec is None or (spec.node.name != lower.node and lower.name not in fixed)
    return moves and _is_free(lower)


def _holder(node: str, world: World) -> LowerWorld | None:
    """Return the connected lower that has a node; an orphaned one only keeps the Node until a lower claims it."""
    return next((lower for lower in world.lowers.values() if lower.node == node and lower.connected), None)


def _is_free(lower: LowerWorld) -> bool:
    """Report whether it is certain that no pods are mirrored, so that names may change."""
    return lower.is_read and not _is_mirrored(lower)


def _is_mirrored(lower: LowerWorld) -> bool:
    return lower.is_bound or lower.has_lower_pods


def _mapping_obstacle(lower: LowerWorld, world: World) -> str:
    """Return why pods and claims cannot get other names."""
    if not lower.is_read:
        return "waits until it is certain that no pods are mirrored"
    if _is_mirrored(lower):
        return _until_empty(lower.name)
    if _has_volumes(lower, world):
        return "waits until no claims have volumes there"
    return "waits until the Services of its last pods are deleted"


def _until_empty(name: str) -> str:
    return f"waits until no pods are mirrored to {name}; `maintenance: drain` lets them leave"


def _may_have_volumes(lower: LowerWorld, world: World) -> bool:
    """Report whether upper volumes may exist for claims of a lower: they contain its name, and are found by it."""
    volumes = world.upper.more[VOLUME]
    ours = (one.facts for one in volumes if one.facts.owner == world.owner.mark)
    return any(facts.lower == lower.name for facts in ours) or (is_enabled(lower) and not volumes.synced)


def _holder_message(spec: Lower, holder: LowerWorld) -> str:
    return f"node {spec.node.name} belongs to lower {holder.name}"


def _change_message(spec: Lower, field: str, before: str, after: str, reason: str) -> str:
    return f"lowers[{spec.name}].{field}: {before} -> {after}: {reason}"


def requested_mapping(spec: Lower, world: World) -> NamespaceNaming | None:
    """Return the mapping that the topology requests for a lower, None for the same names."""
    return NamespaceNaming(world.topology.name, world.owner.mark) if spec.namespaces.mapping == "prefix" else None


def learn_mapping(lower: LowerWorld, world: World) -> bool:
    """Activate the mapping once it is certain. Report whether that happened now."""
    if lower.mapping_known or not world.upper.nodes.synced:
        return False
    wanted, recorded = requested_mapping(lower.spec, world), _recorded_mapping(lower, world)
    if recorded != mapping_note(wanted):
        if not _is_listed(lower, world):
            return False
        keeps = _has_to_keep(lower, wanted, recorded, world)
        lower.naming = _alternative_mapping(wanted, recorded, world) if keeps else wanted
    lower.mapping_known = True
    return True


def adopt_noted_mapping(lower: LowerWorld, world: World) -> None:
    """Activate the mapping that the virtual node records, if any: for callers that only read.

    The label alone shows that the Node is ours: a snapshot has no managedFields.
    """
    entry = world.upper.nodes.get("", lower.node)
    node: Manifest = entry.manifest() if entry is not None else {}
    recorded = annotations(node).get(NAMESPACE_MAPPING, "") if labels(node).get(OWNER) == world.owner.mark else ""
    recorded = recorded if _MAPPING_RECORD.fullmatch(recorded) else ""
    lower.naming = _mapping_of(recorded, world) if recorded else requested_mapping(lower.spec, world)


def may_change_mapping(lower: LowerWorld, world: World) -> bool:
    """Report whether nothing is left in a lower that another mapping would look up under the wrong name."""
    is_used = lower.is_bound or lower.has_lower_pods or _has_volumes(lower, world) or _has_services(lower, world)
    return _is_listed(lower, world) and not is_used


def _has_to_keep(lower: LowerWorld, wanted: NamespaceNaming | None, recorded: str, world: World) -> bool:
    """Report whether another mapping than the requested one has to stay active.

    Without a record it is the one of the running pods.
    """
    lower.naming = _alternative_mapping(wanted, recorded, world)
    return not may_change_mapping(lower, world) if recorded else _has_copies(lower, world)


def _alternative_mapping(wanted: NamespaceNaming | None, recorded: str, world: World) -> NamespaceNaming | None:
    """Return the recorded mapping. Without a record, return the one that is not requested."""
    if recorded:
        return _mapping_of(recorded, world)
    return NamespaceNaming(world.topology.name, world.owner.mark) if wanted is None else None


def _recorded_mapping(lower: LowerWorld, world: World) -> str:
    """Return the record on the virtual node, "" if none counts. With onConflict: adopt, another owner's Node counts."""
    entry = world.upper.nodes.get("", lower.node)
    node: Manifest = entry.manifest() if entry is not None else {}
    kind, value = VIRTUAL_NODE
    counts = bool(node) and (
        is_ours(node, world.owner) or ((lower.spec.on_conflict == "adopt") and labels(node).get(kind) == value)
    )
    recorded = annotations(node).get(NAMESPACE_MAPPING, "") if counts else ""
    return recorded if _MAPPING_RECORD.fullmatch(recorded) else ""


def _mapping_of(recorded: str, world: World) -> NamespaceNaming | None:
    name = recorded.partition("=")[2]
    return NamespaceNaming(name, world.owner.mark) if name else None


def _is_listed(lower: LowerWorld, world: World) -> bool:
    """Report whether all caches that a change of the mapping depends on are synced."""
    caches = [lower.upper_pods, lower.pods, lower.namespaces, world.upper.namespaces]
    caches += [world.upper.more[VOLUME]] if is_enabled(lower) else []
    return all(cache.synced for cache in caches)


def _has_copies(lower: LowerWorld, world: World) -> bool:
    """Report whether there are copies of upper pods that have run."""
    for upper in lower.upper_pods:
        lower_pod = lower.pods.get(lower.namespace(upper.namespace), upper.name) if upper.facts.ran else None
        if lower_pod is not None and is_lower_pod_of(lower_pod, upper, world.owner):
            return True
    return False


def _has_services(lower: LowerWorld, world: World) -> bool:
    """Report whether Services or slices of the last pods are there; they go some seconds later.

    Those of kube-system need no pods, and stay.
    """
    if "Service" not in lower.spec.controllers:
        return False
    copies = (one for one in lower.serving() if is_copy(one, world.owner))
    return any(lower.upper_namespace(one.namespace) != KUBE_SYSTEM for one in copies)


def _has_volumes(lower: LowerWorld, world: World) -> bool:
    """Report whether there are placeholders of ours for volumes of a lower."""
    ours = (one.facts for one in world.upper.more[VOLUME])
    return any(facts.owner == world.owner.mark and facts.lower == lower.name for facts in ours)
