"""Plans of the descheduler: one pass for all lower clusters, and the preview of a drain.

The pass tells which pods leave which lower cluster now and where they fit, and which stay and why. It is a function of
the world alone. So the queue of each lower cluster computes the same plan and acts on its own part of it. `targets.py`
says which pods are stuck for long enough, and `rule.py` when a pass runs at all.

The preview tells which pods would leave a lower cluster's node, and where each would fit. Pods leave one after the
other as their disruption budgets allow. Each takes its room in the preview, so that the result for the last pod holds
beside all others. Pods with a controller come first, because they leave in any case; bare pods leave only for the room
that is left.
"""

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple

from tensile.kube.store import Entry
from tensile.names import ProblemReason
from tensile.objects import controller_of, metadata, moment_of
from tensile.policy.descheduler.limits import (
    MAX_RECORDS,
    EvictionRecord,
    drain_problem,
    eviction_records,
    is_bare,
    is_being_drained,
    recent,
    recent_evictions,
    record_retention,
)
from tensile.policy.descheduler.replacement import (
    CLAIMS_PROBLEM,
    annotation_problem,
    avoided_nodes,
    backup_of,
    bare_pod_problem,
    is_backed_up,
    successor_now,
    uses_claims,
    without_expired_avoidance,
)
from tensile.policy.descheduler.targets import (
    LeavingPod,
    Targets,
    in_flight,
    is_open,
    nodes_left_by,
    refusal_message,
    reserve_room,
    stuck_in,
)
from tensile.reconcile.world import LowerWorld, World
from tensile.text import aligned

DEADLOCK: ProblemReason = "NoFeasibleCluster"
"""The descheduler does not move the pod, since it fits in no other lower cluster. Remedy: add nodes, or ask for
less; `tensile simulate` shows what would help."""
_MAX_NAMED = 5
_HEAD = ("POD", "GOES TO", "REAL NODE", "WHY")
_NO_NODES: frozenset[str] = frozenset()


class Move(NamedTuple):
    """A pod that leaves lower cluster `source`; `target` is the virtual node with room, `node` the lower node there.

    `owner` is the UID of its controller, "" for none. `avoided` are the virtual nodes unsuitable now. `others` are as
    suitable as the target, unless pods that leave in the same pass take the room first.
    """

    upper: Entry
    source: str
    target: str
    node: str
    owner: str
    avoided: tuple[str, ...]
    others: tuple[str, ...] = ()


class Skip(NamedTuple):
    """A pod that should leave lower cluster `source` and stays there: a reason in CamelCase, and a message."""

    upper: Entry
    source: str
    reason: str
    message: str


class PassPlan(NamedTuple):
    """The result of one pass; `waiting` is the number of pods that leave later, because of the limit."""

    moves: tuple[Move, ...]
    stays: tuple[Skip, ...]
    waiting: int


def one_pass(world: World) -> PassPlan:
    """Return what to do now with every pod that has to leave its lower; the one that has waited longest comes first.

    A pod without a backup gets one in this pass and takes no turn, so that one whose Secret is refused delays no other.
    """
    lowers = [lower for lower in world.lowers.values() if is_source(lower, world)]
    leaving_pods = [one for lower in lowers for one in candidates(lower, world)]
    leaving_pods.sort(key=lambda one: (one.since, one.upper.namespace, one.upper.name))
    quotas = {lower.name: _EvictionQuota(lower, world) for lower in lowers}
    targets, initial_targets = Targets(world), cache(partial(Targets, world))
    for leaving in in_flight(world):
        reserve_room(leaving, world, targets)
    moves: list[Move] = []
    stays: list[Skip] = []
    waiting = 0
    for one in leaving_pods:
        quota = quotas[one.lower]
        if one.upper.uid in quota.evicted_uids:
            continue
        if quota.remaining <= 0:
            waiting += 1
            continue
        result = _move_or_skip(one, world, targets, initial_targets)
        if isinstance(result, Move):
            if may_evict_now(result, world):
                quota.remaining -= 1
            moves.append(result)
        else:
            stays.append(result)
    return PassPlan(tuple(moves), tuple(stays), waiting)


def is_source(lower: LowerWorld, world: World) -> bool:
    """Report whether pods of a lower may leave it now: it is drained, or the descheduler is on."""
    if lower.drain_requested and not world.topology.places:
        return is_being_drained(lower, world)
    is_enabled = is_being_drained(lower, world) if lower.drain_requested else world.topology.descheduler.enabled
    return is_enabled and is_open(lower, world)


def candidates(lower: LowerWorld, world: World) -> Iterator[LeavingPod]:
    """Yield the pods that have to leave a lower: those that are stuck in it, or all bare ones if it is drained."""
    if not lower.drain_requested:
        yield from stuck_in(lower, world)
        return
    for upper in lower.upper_pods:
        if is_bare(upper) and not upper.facts.terminating:
            created = metadata(upper.manifest()).get("creationTimestamp")
            yield LeavingPod(upper, lower.name, moment_of(created) if created else world.now)


def may_evict_now(move: Move, world: World) -> bool:
    """Report whether a pod may be evicted at once: it has a controller, or a backup of what would be created now."""
    if move.owner:
        return True
    return is_backed_up(move.upper, successor_now(move.upper, world, move.avoided), world)


class _EvictionQuota:
    """How many pods may leave a lower cluster now, and the UIDs of those evicted within this interval."""

    def __init__(self, lower: LowerWorld, world: World) -> None:
        policy = world.topology.descheduler
        node = world.upper.nodes.get("", lower.node)
        records = recent(eviction_records(node.manifest()) if node else (), world.now, record_retention(policy))
        recent_records = recent_evictions(lower, world)
        self.evicted_uids = {record.pod for record in recent_records}
        limit = MAX_RECORDS if lower.drain_requested else policy.max_evictions_per_node
        self.remaining = min(limit - len(recent_records), MAX_RECORDS - len(records))


def _move_or_skip(
    leaving: LeavingPod, world: World, targets: Targets, initial_targets: Callable[[], Targets]
) -> Move | Skip:
    """Return where a pod goes, or why it stays; `initial_targets` returns the targets as they were before this pass.

    Nodes that only this pass has filled are not avoided: the upper scheduler chooses among them, so one pod may get the
    room that was counted for another.
    """
    pod, source = leaving.upper.manifest(), world.lowers[leaving.lower]
    owner = str(controller_of(pod).get("uid") or "")
    claims_problem = CLAIMS_PROBLEM if uses_claims(pod) else None
    problem = annotation_problem(leaving.upper) or claims_problem if owner else bare_pod_problem(leaving.upper, world)
    if problem is not None:
        return Skip(leaving.upper, leaving.lower, *problem)
    moving = leaving.upper if owner else without_expired_avoidance(leaving.upper, world)
    left_nodes = nodes_left_by(owner, world)
    fitting, refused = targets.others(moving, source.node, left_nodes)
    if not fitting:
        return Skip(
            leaving.upper, leaving.lower, DEADLOCK, f"it fits in no other lower cluster: {refusal_message(refused)}"
        )
    fitting_at_start, refused_at_start = (
        initial_targets().others(moving, source.node, left_nodes) if refused else (fitting, {})
    )
    node = targets.move(moving, source.node, fitting[0])
    others = sorted({*fitting, *fitting_at_start} - {fitting[0]})
    avoided = (source.node, *sorted(refused.keys() & refused_at_start.keys()))
    if not owner:
        avoided = _nodes_avoided_by_backup(leaving.upper, source.node, fitting[0], world) or avoided
    return Move(leaving.upper, leaving.lower, fitting[0], node, owner, avoided, tuple(others))


def _nodes_avoided_by_backup(pod: Entry, source: str, target: str, world: World) -> tuple[str, ...]:
    """Return the nodes that a pod's backup avoids, if they do for this move: room may have changed elsewhere since."""
    backup = backup_of(pod, world)
    avoided = avoided_nodes(backup.pod) if backup is not None and backup.pod is not None else []
    return tuple(avoided) if source in avoided and target not in avoided else ()


def record_of(move: Move, world: World) -> EvictionRecord:
    """Return the record of a move that is made now."""
    return EvictionRecord(move.owner, move.upper.uid, world.now, move.avoided)


def join_messages(messages: list[str]) -> str:
    """Return the first messages joined into one, with the number of those omitted."""
    more = len(messages) - _MAX_NAMED
    return "; ".join(messages[:_MAX_NAMED]) + (f"; and {more} more" if more > 0 else "")


class DrainPreview(NamedTuple):
    """One pod: whether it `leaves`, the virtual node with room for it and the lower node behind ("" for none).

    `why` is what prevents it from leaving, or keeps it Pending afterwards, else "". `others` are virtual nodes that
    have room too, unless other pods come first. `full` are virtual nodes that the upper scheduler may choose although
    no lower node has room now: the pod would wait there.
    """

    namespace: str
    name: str
    leaves: bool
    target: str = ""
    node: str = ""
    why: str = ""
    others: tuple[str, ...] = ()
    full: tuple[str, ...] = ()

    @property
    def is_lost(self) -> bool:
        """Whether the pod's replacement would stay Pending."""
        return self.leaves and not self.target and bool(self.why)


def drain_preview(world: World, name: str) -> list[DrainPreview]:
    """Return the preview for every pod on a lower's node, by namespace and name.

    Raises KeyError for an unknown lower.
    """
    return sorted(departures(world, name), key=lambda one: (one.namespace, one.name))


def departures(world: World, name: str) -> Iterator[DrainPreview]:
    """Yield the same, one pod after the other in the order in which they leave, so that a caller can pause."""
    lower = world.lowers[name]
    targets, initial_targets = Targets(world, without=lower.node), Targets(world, without=lower.node)
    for leaving in in_flight(world):
        if leaving.node != lower.node:
            reserve_room(leaving, world, targets)
    pods = sorted(lower.upper_pods, key=lambda one: (_leaves_only_if_it_fits(one), one.namespace, one.name))
    uses_extender = world.topology.extender.enabled
    yield from (_departure(one, lower, world, targets, initial_targets, uses_extender=uses_extender) for one in pods)


def _leaves_only_if_it_fits(upper: Entry) -> bool:
    """Report whether a pod leaves only if it fits elsewhere, because no controller would create it again."""
    return is_bare(upper) and not upper.facts.terminating


def _full_nodes(
    upper: Entry, lower: LowerWorld, initial_targets: Targets, fitting: list[str], *, uses_extender: bool
) -> tuple[str, ...]:
    """Return the virtual nodes that the upper scheduler may choose although no lower node has room."""
    return () if uses_extender else tuple(sorted({*initial_targets.open_to(upper, lower.node)}.difference(fitting)))


def _departure(
    upper: Entry, lower: LowerWorld, world: World, targets: Targets, initial_targets: Targets, *, uses_extender: bool
) -> DrainPreview:
    """Return the preview for one pod; `initial_targets` are the targets before any pod left.

    `uses_extender` is whether schedulers call the extender.
    """
    name = (upper.namespace, upper.name)
    needs_room = _leaves_only_if_it_fits(upper)
    problem = bare_pod_problem(upper, world) if needs_room else drain_problem(upper)
    if problem is not None:
        return DrainPreview(*name, leaves=False, why=problem.message)
    if upper.facts.terminating or upper.facts.terminal:
        return DrainPreview(*name, leaves=True)
    if uses_claims(upper.manifest()):
        return DrainPreview(*name, leaves=True, why=f"its volumes are in {lower.name}: it would stay Pending")
    moving = without_expired_avoidance(upper, world) if needs_room else upper
    fitting, refused = targets.others(moving, lower.node, _NO_NODES)
    fitting_at_start = initial_targets.others(moving, lower.node, _NO_NODES)[0] if refused else fitting
    if not fitting and needs_room:
        return DrainPreview(*name, leaves=False, why=f"it fits in no other lower cluster: {refusal_message(refused)}")
    full = _full_nodes(moving, lower, initial_targets, fitting_at_start, uses_extender=uses_extender)
    if not fitting:
        why = f"it would stay Pending: {refusal_message(refused)}"
        return DrainPreview(*name, leaves=True, why=why, others=tuple(fitting_at_start), full=full)
    target, node = fitting[0], targets.move(moving, lower.node, fitting[0])
    others = tuple(sorted({*fitting, *fitting_at_start}.difference((target,))))
    return DrainPreview(*name, leaves=True, target=target, node=node, others=others, full=full)


def as_document(name: str, previews: list[DrainPreview]) -> dict[str, Any]:
    """Return the preview as plain data: `lower`, and `pods` with the fields of an `DrainPreview`."""
    return {"lower": name, "pods": [one._asdict() for one in previews]}


def as_text(name: str, previews: list[DrainPreview]) -> str:
    """Return the preview as text: a table, and a last line with totals."""
    rows = [_HEAD, *map(_row, previews)] if previews else []
    lines = aligned(rows)
    return "\n".join([*lines, *([""] if lines else []), f"Drain of {name}: {', '.join(_counts(previews))}."])


def _row(one: DrainPreview) -> tuple[str, str, str, str]:
    where = " or ".join((one.target, *one.others)) if one.target else ("nowhere" if one.leaves else "stays")
    full = f"the upper scheduler may bind it to {' or '.join(one.full)}, which has no free capacity" if one.full else ""
    return f"{one.namespace}/{one.name}", where, one.node or "-", "; ".join(filter(None, (one.why, full)))


def _counts(previews: list[DrainPreview]) -> Iterator[str]:
    yield f"{sum(one.leaves for one in previews)} to evict"
    yield f"{sum(one.is_lost for one in previews)} of them fit in no other lower cluster"
    yield f"{sum(not one.leaves for one in previews)} to stay"
