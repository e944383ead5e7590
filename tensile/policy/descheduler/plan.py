"""One pass of the descheduler: which pods leave which lower cluster now and where they fit, and which stay and why.

The pass is a function of the world alone. So the queue of each lower cluster computes the same plan and acts on its own
part of it.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

from tensile.kube.store import Entry
from tensile.objects import controller_of
from tensile.policy.descheduler.bare_pods import CLAIMED, is_safe, loosed, tie_of, uses_claims
from tensile.policy.descheduler.in_progress import in_flight, left_by, settle
from tensile.policy.descheduler.records import MOST, EvictionRecord, kept_for, kept_of, notes_on, recent
from tensile.policy.descheduler.replacement import nodes_off
from tensile.policy.descheduler.targets import StuckPod, Targets, is_open, said_of, stuck_in
from tensile.reconcile.world import LowerWorld, World

DEADLOCK = "DeschedulingDeadlock"
_NAMED = 5


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
    """A pod that cannot run in lower cluster `source` and stays there: a reason in CamelCase, and a message."""

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
    """Return what to do now with every pod that cannot run where it is; the pod that has waited longest comes first."""
    lowers = [lower for lower in world.lowers.values() if is_source(lower, world)]
    found = [one for lower in lowers for one in stuck_in(lower, world)]
    found.sort(key=lambda one: (one.since, one.upper.namespace, one.upper.name))
    turns = {lower.name: _Turn(lower, world) for lower in lowers}
    ground, start = Targets(world), cache(partial(Targets, world))
    for going in in_flight(world):
        settle(going, world, ground)
    moves: list[Move] = []
    stays: list[Skip] = []
    waiting = 0
    for one in found:
        turn = turns[one.lower]
        if one.upper.uid in turn.told_to_go:
            continue
        ready = is_ready(one.upper, world)
        if turn.left[ready] <= 0:
            waiting += 1
            continue
        result = _judged(one, world, ground, start)
        if isinstance(result, Move):
            turn.left[ready] -= 1
            moves.append(result)
        else:
            stays.append(result)
    return PassPlan(tuple(moves), tuple(stays), waiting)


def is_ready(upper: Entry, world: World) -> bool:
    """Report whether a pod may be evicted at once: it has a controller, or a backup."""
    kept = kept_of(upper, world) if upper.facts.bare else None
    return not upper.facts.bare or (kept is not None and kept.is_safe)


def is_source(lower: LowerWorld, world: World) -> bool:
    """Report whether a lower's pods are considered; those of a drained one leave anyway."""
    return is_open(lower, world) and lower.spec.maintenance != "drain"


class _Turn:
    """How many pods may leave a lower cluster now, and the UIDs of those evicted within this interval.

    `left` has a separate limit for pods that need a backup first (False), so that a pod whose Secret is refused does
    not use up the turn of another.
    """

    def __init__(self, lower: LowerWorld, world: World) -> None:
        policy = world.topology.descheduler
        node = world.upper.nodes.get("", lower.node)
        notes = recent(notes_on(node.manifest()) if node else (), world.now, kept_for(policy))
        lately = recent(notes, world.now, policy.interval)
        self.told_to_go = {note.pod for note in lately}
        most = policy.max_evictions_per_node
        self.left = {True: min(most - len(lately), MOST - len(notes)), False: most}


def _judged(one: StuckPod, world: World, ground: Targets, start: Callable[[], Targets]) -> Move | Skip:
    """Return where a pod goes, or why it stays; `start` returns the targets as they were before this pass.

    Nodes that only this pass has filled are not avoided: the upper scheduler chooses among them, so one pod may get the
    room that was counted for another.
    """
    pod, source = one.upper.manifest(), world.lowers[one.lower]
    owner = str(controller_of(pod).get("uid") or "")
    tie = (CLAIMED if uses_claims(pod) else None) if owner else tie_of(one.upper, world)
    if tie is not None:
        return Skip(one.upper, one.lower, *tie)
    going, left = one.upper if owner else loosed(one.upper, world), left_by(owner, world)
    targets, refused = ground.others(going, source.node, left)
    if not targets:
        return Skip(one.upper, one.lower, DEADLOCK, f"it fits in no other lower cluster: {said_of(refused)}")
    could, never = start().others(going, source.node, left) if refused else (targets, {})
    node = ground.move(going, source.node, targets[0])
    others = sorted({*targets, *could} - {targets[0]})
    avoided = (source.node, *sorted(refused.keys() & never.keys()))
    return Move(one.upper, one.lower, targets[0], node, owner, avoided, tuple(others))


def is_safe_move(move: Move, world: World) -> bool:
    """Report whether a pod without a controller has a backup that may go to the nodes with room now.

    Other nodes avoided by the backup do not matter, if it avoids the source and not the target.
    """
    kept = None if move.owner else kept_of(move.upper, world)
    if kept is None or kept.pod is None:
        return False
    off = nodes_off(kept.pod)
    return move.avoided[0] in off and move.target not in off and is_safe(move.upper, world, off)


def note_of(move: Move, world: World) -> EvictionRecord:
    """Return the record of a move that is made now."""
    return EvictionRecord(move.owner, move.upper.uid, world.now, move.avoided)


def listed(told: list[str]) -> str:
    """Return the first messages joined into one, with the number of those omitted."""
    more = len(told) - _NAMED
    return "; ".join(told[:_NAMED]) + (f"; and {more} more" if more > 0 else "")
