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
    MOST,
    EvictionRecord,
    drain_problem,
    is_bare,
    is_emptied,
    kept_for,
    notes_on,
    recent,
    told_lately,
)
from tensile.policy.descheduler.replacement import (
    CLAIMED,
    backup_of,
    forbidden,
    is_backed_up,
    loosed,
    nodes_off,
    obstacle,
    successor_now,
    uses_claims,
)
from tensile.policy.descheduler.targets import StuckPod, Targets, in_flight, is_open, left_by, said_of, settle, stuck_in
from tensile.reconcile.world import LowerWorld, World
from tensile.text import aligned

DEADLOCK: ProblemReason = "NoFeasibleCluster"
"""The descheduler does not move the pod, since it fits in no other lower cluster. Remedy: add nodes, or ask for
less; `tensile simulate` shows what would help."""
_NAMED = 5
_HEAD = ("POD", "GOES TO", "REAL NODE", "WHY")
_NOBODY: frozenset[str] = frozenset()


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
    found = [one for lower in lowers for one in candidates(lower, world)]
    found.sort(key=lambda one: (one.since, one.upper.namespace, one.upper.name))
    turns = {lower.name: _Turn(lower, world) for lower in lowers}
    targets, start = Targets(world), cache(partial(Targets, world))
    for going in in_flight(world):
        settle(going, world, targets)
    moves: list[Move] = []
    stays: list[Skip] = []
    waiting = 0
    for one in found:
        turn = turns[one.lower]
        if one.upper.uid in turn.told_to_go:
            continue
        if turn.left <= 0:
            waiting += 1
            continue
        result = _judged(one, world, targets, start)
        if isinstance(result, Move):
            turn.left -= is_ready(result, world)
            moves.append(result)
        else:
            stays.append(result)
    return PassPlan(tuple(moves), tuple(stays), waiting)


def is_source(lower: LowerWorld, world: World) -> bool:
    """Report whether pods of a lower may leave it now: it is drained, or the descheduler is on."""
    if lower.is_drained and not world.topology.places:
        return is_emptied(lower, world)
    is_asked = is_emptied(lower, world) if lower.is_drained else world.topology.descheduler.enabled
    return is_asked and is_open(lower, world)


def candidates(lower: LowerWorld, world: World) -> Iterator[StuckPod]:
    """Yield the pods that have to leave a lower: those that are stuck in it, or all bare ones if it is drained."""
    if not lower.is_drained:
        yield from stuck_in(lower, world)
        return
    for upper in lower.upper_pods:
        if is_bare(upper) and not upper.facts.terminating:
            made = metadata(upper.manifest()).get("creationTimestamp")
            yield StuckPod(upper, lower.name, moment_of(made) if made else world.now)


def is_ready(move: Move, world: World) -> bool:
    """Report whether a pod may be evicted at once: it has a controller, or a backup of what would be created now."""
    if move.owner:
        return True
    return is_backed_up(move.upper, successor_now(move.upper, world, move.avoided), world)


class _Turn:
    """How many pods may leave a lower cluster now, and the UIDs of those evicted within this interval."""

    def __init__(self, lower: LowerWorld, world: World) -> None:
        policy = world.topology.descheduler
        node = world.upper.nodes.get("", lower.node)
        notes = recent(notes_on(node.manifest()) if node else (), world.now, kept_for(policy))
        lately = told_lately(lower, world)
        self.told_to_go = {note.pod for note in lately}
        most = MOST if lower.is_drained else policy.max_evictions_per_node
        self.left = min(most - len(lately), MOST - len(notes))


def _judged(one: StuckPod, world: World, targets: Targets, start: Callable[[], Targets]) -> Move | Skip:
    """Return where a pod goes, or why it stays; `start` returns the targets as they were before this pass.

    Nodes that only this pass has filled are not avoided: the upper scheduler chooses among them, so one pod may get the
    room that was counted for another.
    """
    pod, source = one.upper.manifest(), world.lowers[one.lower]
    owner = str(controller_of(pod).get("uid") or "")
    claimed = CLAIMED if uses_claims(pod) else None
    problem = forbidden(one.upper) or claimed if owner else obstacle(one.upper, world)
    if problem is not None:
        return Skip(one.upper, one.lower, *problem)
    going, left = one.upper if owner else loosed(one.upper, world), left_by(owner, world)
    fitting, refused = targets.others(going, source.node, left)
    if not fitting:
        return Skip(one.upper, one.lower, DEADLOCK, f"it fits in no other lower cluster: {said_of(refused)}")
    could, never = start().others(going, source.node, left) if refused else (fitting, {})
    node = targets.move(going, source.node, fitting[0])
    others = sorted({*fitting, *could} - {fitting[0]})
    avoided = (source.node, *sorted(refused.keys() & never.keys()))
    if not owner:
        avoided = _as_backed_up(one.upper, source.node, fitting[0], world) or avoided
    return Move(one.upper, one.lower, fitting[0], node, owner, avoided, tuple(others))


def _as_backed_up(pod: Entry, source: str, target: str, world: World) -> tuple[str, ...]:
    """Return the nodes that a pod's backup avoids, if they do for this move: room may have changed elsewhere since."""
    kept = backup_of(pod, world)
    off = nodes_off(kept.pod) if kept is not None and kept.pod is not None else []
    return tuple(off) if source in off and target not in off else ()


def note_of(move: Move, world: World) -> EvictionRecord:
    """Return the record of a move that is made now."""
    return EvictionRecord(move.owner, move.upper.uid, world.now, move.avoided)


def listed(told: list[str]) -> str:
    """Return the first messages joined into one, with the number of those omitted."""
    more = len(told) - _NAMED
    return "; ".join(told[:_NAMED]) + (f"; and {more} more" if more > 0 else "")


class Eviction(NamedTuple):
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


def evictions(world: World, name: str) -> list[Eviction]:
    """Return the preview for every pod on a lower's node, by namespace and name.

    Raises KeyError for an unknown lower.
    """
    return sorted(departures(world, name), key=lambda one: (one.namespace, one.name))


def departures(world: World, name: str) -> Iterator[Eviction]:
    """Yield the same, one pod after the other in the order in which they leave, so that a caller can pause."""
    lower = world.lowers[name]
    targets, start = Targets(world, without=lower.node), Targets(world, without=lower.node)
    for going in in_flight(world):
        if going.node != lower.node:
            settle(going, world, targets)
    pods = sorted(lower.upper_pods, key=lambda one: (_goes_alone(one), one.namespace, one.name))
    is_asked = world.topology.extender.enabled
    yield from (_departure(one, lower, world, targets, start, is_asked=is_asked) for one in pods)


def _goes_alone(upper: Entry) -> bool:
    """Report whether a pod leaves only if it fits elsewhere, because no controller would create it again."""
    return is_bare(upper) and not upper.facts.terminating


def _full(upper: Entry, lower: LowerWorld, start: Targets, could: list[str], *, is_asked: bool) -> tuple[str, ...]:
    """Return the virtual nodes that the upper scheduler may choose although no lower node has room."""
    return () if is_asked else tuple(sorted({*start.open_to(upper, lower.node)}.difference(could)))


def _departure(
    upper: Entry, lower: LowerWorld, world: World, targets: Targets, start: Targets, *, is_asked: bool
) -> Eviction:
    """Return the preview for one pod; `start` are the targets before any pod left.

    `is_asked` is whether schedulers call the extender.
    """
    whose = (upper.namespace, upper.name)
    is_alone = _goes_alone(upper)
    problem = obstacle(upper, world) if is_alone else drain_problem(upper)
    if problem is not None:
        return Eviction(*whose, leaves=False, why=problem.message)
    if upper.facts.terminating or upper.facts.terminal:
        return Eviction(*whose, leaves=True)
    if uses_claims(upper.manifest()):
        return Eviction(*whose, leaves=True, why=f"its volumes are in {lower.name}: it would stay Pending")
    going = loosed(upper, world) if is_alone else upper
    found, refused = targets.others(going, lower.node, _NOBODY)
    could = start.others(going, lower.node, _NOBODY)[0] if refused else found
    if not found and is_alone:
        return Eviction(*whose, leaves=False, why=f"it fits in no other lower cluster: {said_of(refused)}")
    full = _full(going, lower, start, could, is_asked=is_asked)
    if not found:
        why = f"it would stay Pending: {said_of(refused)}"
        return Eviction(*whose, leaves=True, why=why, others=tuple(could), full=full)
    target, node = found[0], targets.move(going, lower.node, found[0])
    others = tuple(sorted({*found, *could}.difference((target,))))
    return Eviction(*whose, leaves=True, target=target, node=node, others=others, full=full)


def as_document(name: str, found: list[Eviction]) -> dict[str, Any]:
    """Return the preview as plain data: `lower`, and `pods` with the fields of an `Eviction`."""
    return {"lower": name, "pods": [one._asdict() for one in found]}


def as_text(name: str, found: list[Eviction]) -> str:
    """Return the preview as text: a table, and a last line with totals."""
    rows = [_HEAD, *map(_row, found)] if found else []
    lines = aligned(rows)
    return "\n".join([*lines, *([""] if lines else []), f"Drain of {name}: {', '.join(_counts(found))}."])


def _row(one: Eviction) -> tuple[str, str, str, str]:
    where = " or ".join((one.target, *one.others)) if one.target else ("nowhere" if one.leaves else "stays")
    full = f"the upper scheduler may bind it to {' or '.join(one.full)}, which has no free capacity" if one.full else ""
    return f"{one.namespace}/{one.name}", where, one.node or "-", "; ".join(filter(None, (one.why, full)))


def _counts(found: list[Eviction]) -> Iterator[str]:
    yield f"{sum(one.leaves for one in found)} to evict"
    yield f"{sum(one.is_lost for one in found)} of them fit in no other lower cluster"
    yield f"{sum(not one.leaves for one in found)} to stay"
