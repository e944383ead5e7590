"""The rule that moves pods out of a lower cluster that has no node for them, while another one has.

A pod leaves by the Eviction API, with its UID; its controller makes another, which is kept off the nodes that will not
do. One that has no controller is put into safe keeping first, and made again by the rule that sees that through.

That it leaves is noted on the Node before: whoever comes next, also after a crash in between, counts it, so that no
more pods leave than the topology allows. A pod that fits nowhere else is told of, once, and stays.
"""

from collections.abc import Iterator

from tensile.kube.cluster import Patch
from tensile.kube.store import Delta, Entry
from tensile.names import TRIED
from tensile.objects import POD, UPPER, Manifest, Ref, as_read
from tensile.policy.descheduler.bare_pods import successor_now
from tensile.policy.descheduler.in_progress import told_lately
from tensile.policy.descheduler.plan import (
    DEADLOCK,
    Move,
    Pass,
    Stay,
    is_ready,
    is_safe_move,
    is_source,
    listed,
    note_of,
    one_pass,
)
from tensile.policy.descheduler.records import (
    Note,
    kept_for,
    kept_of,
    node_ref,
    notes_on,
    of_pod,
    present,
    recent,
    withdrawal,
    written,
)
from tensile.policy.descheduler.targets import stuck_in
from tensile.reconcile.desired import Absent, Decision, Moving, Patched, Route, Told, Wanted
from tensile.reconcile.world import Key, LowerWorld, Problem, World
from tensile.topology.fields import write_duration

NAME = "descheduler"
_SHORTEST = 2.0
"""Seconds between two passes at least, however short the interval is; and between two looks at what is not known."""
_MOMENT = 0.05


def key_of(lower: str) -> Key:
    """Return the key of a lower's pods that may have to leave."""
    return Key(NAME, lower, "", "")


class DeschedulerRule:
    """One key for each lower: limits hold for all that leave it together."""

    name = NAME

    def routes(self) -> tuple[Route, ...]:
        """Note pods that begin to leave, or are safe now; all else is looked at once in an interval."""
        return (Route("upper_pods", _leaving), Route("upper.secrets", _safe))

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield the lower's key, where the descheduler is on or something is still said of it."""
        if world.topology.descheduler.enabled or key_of(lower) in world.problems:
            yield key_of(lower)

    def decide(self, key: Key, world: World) -> Decision:
        """Return who has to leave the lower now."""
        policy, lower = world.topology.descheduler, world.lowers[key.lower]
        if not policy.enabled:
            return Decision()
        again = max(policy.interval.total_seconds(), _SHORTEST)
        if not is_source(lower, world):
            return Decision(again=_SHORTEST)  # what is to be known of it may have begun to come in with this very rule
        told = tuple(_left(lower, world))
        stuck = [one.upper for one in stuck_in(lower, world)]
        if not stuck:
            return Decision(told, again=again)
        rest = _rest(lower, world)
        if rest > 0 and not policy.dry_run:
            wanted = (*told, *_of_the_last_pass(stuck, lower, world))
            return Decision(wanted, problem=world.problems.get(key), again=rest)
        found = one_pass(world)
        moves = _moves(found, lower)
        stays = _stays(found, lower)
        told += tuple(_deadlocked(stays, lower))
        if policy.dry_run:
            return Decision(told, problem=_rehearsed(moves) or _kept(stays), again=again)
        return Decision((*told, *_departures(moves, lower, world)), problem=_kept(stays), again=again)


def _of_the_last_pass(stuck: list[Entry], lower: LowerWorld, world: World) -> Iterator[Wanted]:
    """Let those leave that are safe by now, for which room was counted in this interval; only for them it is looked."""
    told = {note.pod for note in told_lately(lower, world)}
    if any(is_ready(one, world) for one in stuck if one.facts.bare and one.uid not in told):
        safe = [move for move in _moves(one_pass(world), lower) if is_safe_move(move, world)]
        yield from _evictions(safe, lower, world) if safe else ()


def _departures(moves: list[Move], lower: LowerWorld, world: World) -> Iterator[Wanted]:
    """Let those leave who may, and keep those who have to be kept for that: they leave when they are."""
    ready = [move for move in moves if move.owner or is_safe_move(move, world)]
    if ready:
        yield from _evictions(ready, lower, world)
    for move in moves:
        kept = kept_of(move.upper, world)
        if not move.owner and kept is None:
            successor = successor_now(move.upper, world, move.avoided)
            yield present(successor, move.upper, world.owner, _reason(move, world))
        elif kept is not None and kept.withdrawn is None and not is_safe_move(move, world):
            yield withdrawal(move.upper, world, "what it keeps is not what would be made now")


def _moves(found: Pass, lower: LowerWorld) -> list[Move]:
    return [move for move in found.moves if move.source == lower.name]


def _stays(found: Pass, lower: LowerWorld) -> list[Stay]:
    return [stay for stay in found.stays if stay.source == lower.name]


def _rest(lower: LowerWorld, world: World) -> float:
    """Return how many seconds are left of the interval in which pods left: they have to come somewhere before others go.

    0 where none did.
    """
    last = max((note.at for note in told_lately(lower, world)), default=None)
    interval = world.topology.descheduler.interval
    return 0.0 if last is None else min(last - world.now + interval, interval).total_seconds() + _MOMENT


def _evictions(moves: list[Move], lower: LowerWorld, world: World) -> Iterator[Wanted]:
    """Note who leaves, then let them."""
    node = _node(lower, world)
    known = recent(notes_on(node), world.now, kept_for(world.topology.descheduler))
    leaving = {move.upper.uid for move in moves}
    notes = [*(note for note in known if note.pod not in leaving), *(note_of(move, world) for move in moves)]
    yield _noted(node, notes)
    for move in moves:
        told = Moving(lower.node, (move.target, *move.others), move.node)
        yield Absent(_ref(move), move.upper.uid, _reason(move, world), evicted=True, apart=True, moving=told)


def _reason(move: Move, world: World) -> str:
    patience = write_duration(world.topology.descheduler.pending_longer_than)
    return f"unschedulable in {move.source} for longer than {patience}: it fits on node {_where(move)}"


def _noted(node: Manifest, notes: list[Note]) -> Patched:
    """Write the notes, unless somebody else has written the Node since it was read."""
    patch = Patch("merge-patch", {"metadata": {**as_read(node), "annotations": {TRIED: written(notes)}}})
    return Patched(node_ref(node), patch, "pods leave it")


def _left(lower: LowerWorld, world: World) -> Iterator[Told]:
    """Tell of the pods that leave."""
    policy = world.topology.descheduler
    for note in told_lately(lower, world):
        for upper in lower.upper_pods.select("uid", note.pod):
            if upper.facts.terminating:
                off = f"kept off {', '.join(note.nodes)}"
                kept = f"its controller's pods are {off} for {write_duration(policy.cooldown)}"
                kept = kept if note.owner else f"the pod that is made in its place is {off}"
                words = f"no node of {lower.name} takes it: {kept}"
                yield Told(_ref_of(upper.namespace, upper.name), upper.uid, "Rescheduled", words, warning=False)


def _deadlocked(stays: list[Stay], lower: LowerWorld) -> Iterator[Told]:
    """Tell of the pods that fit nowhere, always in the same words, so that they are told of once."""
    words = f"unschedulable in {lower.name}, and it fits in no other lower cluster: it stays"
    for stay in stays:
        if stay.reason == DEADLOCK:
            yield Told(_ref(stay), stay.upper.uid, DEADLOCK, words)


def _kept(stays: list[Stay]) -> Problem | None:
    """Return who stays and why."""
    if not stays:
        return None
    return Problem(stays[0].reason, listed([f"{_name(stay)}: {stay.message}" for stay in stays]))


def _rehearsed(moves: list[Move]) -> Problem | None:
    """Return who would leave."""
    told = [f"{_name(move)}: from {move.source} to node {_where(move)}" for move in moves]
    return Problem("DryRun", f"would be evicted: {listed(told)}") if told else None


def _where(move: Move) -> str:
    """Name the node that has room for a pod, the real one behind it, and the nodes that will do as well."""
    return " or ".join((f"{move.target} ({move.node})", *move.others))


def _name(of: Move | Stay) -> str:
    return f"{of.upper.namespace}/{of.upper.name}"


def _ref(of: Move | Stay) -> Ref:
    return _ref_of(of.upper.namespace, of.upper.name)


def _ref_of(namespace: str, name: str) -> Ref:
    return Ref(UPPER, POD, namespace, name)


def _node(lower: LowerWorld, world: World) -> Manifest:
    entry = world.upper.nodes.get("", lower.node)
    assert entry is not None
    return entry.manifest()


def _safe(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    if world.topology.descheduler.enabled and any(of_pod(delta.entry, world.lowers[lower])):
        yield key_of(lower)


def _leaving(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Note those that begin to end, having been told to leave: it is said of them."""
    pod, before = delta.after, delta.before
    begins = pod is not None and pod.facts.terminating and not (before and before.facts.terminating)
    if begins and world.topology.descheduler.enabled and _was_told(delta.entry, world.lowers[lower], world):
        yield key_of(lower)


def _was_told(pod: Entry, lower: LowerWorld, world: World) -> bool:
    return any(note.pod == pod.uid for note in told_lately(lower, world))
