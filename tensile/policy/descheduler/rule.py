"""The rules that evict pods: from a lower cluster that has no node for them, and from a drained lower cluster.

A pod is evicted by the Eviction API, with its UID, so that disruption budgets and grace periods hold. A refused
eviction is retried. Its controller creates another pod, which is kept off the unsuitable nodes. A pod without a
controller gets a backup first, and another rule re-creates it from there. The descheduler finds room for it, also if it
only leaves because of a drain, and whether it is enabled or not; the rule of the drain evicts it once it is recorded.

Evictions are recorded on the Node before they are sent. Another engine, or this one after a crash, counts them, so that
no more pods leave than the topology allows. A pod that fits in no other lower cluster stays, with one event.

A drain works like `kubectl drain`, once the node is cordoned. A DaemonSet's pod is reported unless it was never
mirrored.
"""

from collections.abc import Iterator
from datetime import datetime

from tensile.kube.cluster import Patch
from tensile.kube.store import Delta, Entry
from tensile.names import TRIED, VIRTUAL_POD, EventReason, ProblemReason
from tensile.objects import POD, UPPER, Manifest, Ref, as_read, labels
from tensile.policy.descheduler.limits import (
    EvictionRecord,
    drain_problem,
    is_bare,
    is_emptied,
    kept_for,
    next_opening,
    node_ref,
    notes_on,
    recent,
    seconds_until,
    told_lately,
    written,
)
from tensile.policy.descheduler.plan import (
    DEADLOCK,
    Move,
    PassPlan,
    Skip,
    candidates,
    is_ready,
    is_source,
    listed,
    note_of,
    one_pass,
)
from tensile.policy.descheduler.replacement import (
    BACKUP,
    CLAIMED,
    backup,
    backup_of,
    forbidden,
    is_backed_up,
    obstacle,
    successor_now,
    uses_claims,
)
from tensile.reconcile.desired import Absent, Decision, EmitEvent, Patched, PodMove, Wanted, Watch
from tensile.reconcile.world import Key, LowerWorld, Problem, World
from tensile.topology.fields import write_duration

RESCHEDULED: EventReason = "Rescheduled"
"""On a pod: it is evicted, to be created again on another node. Remedy: nothing."""
DRY_RUN: ProblemReason = "DryRun"
"""The descheduler would evict the pods in the message, if `descheduler.dryRun` were false. Remedy: set it to false
once you agree."""
OUTSIDE_WINDOW: ProblemReason = "OutsideWindow"
"""Pods wait until a window of `windows` opens, to be moved or drained. Remedy: wait, or change `windows`."""
NAME, DRAIN = "descheduler", "drain"
_SHORTEST = 2.0
"""Minimum seconds between two passes, however short the interval, and between checks for missing data."""
_MOMENT = 0.05


def key_of(lower: str) -> Key:
    """Return the key for the pods of a lower cluster that may have to leave."""
    return Key(NAME, lower, "", "")


class DeschedulerRule:
    """One key per lower cluster: limits apply to all its pods together, and no two of them count on the same room."""

    name = NAME

    def watches(self) -> tuple[Watch, ...]:
        """Watch evicted pods, backups, and the Node, which is cordoned first; the rest is checked once per interval."""
        return (
            Watch("upper_pods", _leaving, facts=("terminating",)),
            Watch("upper.secrets", _backed_up),
            Watch("upper.nodes", _cordoned),
        )

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield the lower's key if pods may have to leave it or a problem of the key is still reported."""
        if _is_asked(lower, world) or key_of(lower) in world.problems:
            yield key_of(lower)

    def decide(self, key: Key, world: World) -> Decision:
        """Return the pods to evict from the lower cluster now."""
        policy, lower = world.topology.descheduler, world.lowers[key.lower]
        if not _is_asked(key.lower, world):
            return Decision()
        again = max(policy.interval.total_seconds(), _SHORTEST)
        if not is_source(lower, world):
            return Decision(requeue_after=_SHORTEST)  # the informers of placement may have started with this rule
        told = tuple(_left(lower, world))
        opening = next_opening(world.topology.windows, world.now)
        if opening is not None and not policy.dry_run:
            problem = _waiting(lower, opening, world)
            return Decision(told, problem=problem, requeue_after=min(again, seconds_until(opening, world.now)))
        if next(candidates(lower, world), None) is None:
            return Decision(told, requeue_after=again)
        rest = 0.0 if policy.dry_run else _rest(lower, world)
        if rest > 0 and not _has_new_backup(lower, world):
            return Decision(told, problem=world.problems.get(key), requeue_after=rest)
        found = one_pass(world)
        moves = _moves(found, lower)
        if rest > 0:
            late = [move for move in moves if not move.owner and is_ready(move, world)]
            evictions = tuple(_evictions(late, lower, world)) if late else ()
            return Decision((*told, *evictions), problem=world.problems.get(key), requeue_after=rest)
        stays = _stays(found, lower)
        told += tuple(_deadlocked(stays, lower))
        if policy.dry_run:
            return Decision(told, problem=_rehearsed(moves) or _kept(stays, lower), requeue_after=again)
        return Decision((*told, *_departures(moves, lower, world)), problem=_kept(stays, lower), requeue_after=again)


def _is_asked(lower: str, world: World) -> bool:
    """Report whether the topology has pods leave a lower."""
    return world.topology.descheduler.enabled or world.lowers[lower].is_drained


def _waiting(lower: LowerWorld, opening: datetime, world: World) -> Problem | None:
    """Return the problem of the pods that have to leave a lower cluster and wait for a window, None if none has to.

    Pods that would not leave in a window either are only reported if there are no others.
    """
    if lower.is_drained:
        pods = [pod for pod in lower.upper_pods if not (pod.facts.terminating or pod.facts.stays_out)]
    else:
        pods = [one.upper for one in candidates(lower, world)]
    kept = {pod: problem for pod in pods if (problem := _obstacle(pod, lower, world)) is not None}
    count = len(pods) - len(kept)
    if kept and not count:
        said = listed([f"{pod.namespace}/{pod.name}: {problem.message}" for pod, problem in kept.items()])
        return Problem(next(iter(kept.values())).reason, _blocking(said, lower))
    what = "the drain" if lower.is_drained else "the descheduler"
    when = opening.isoformat(timespec="minutes")
    words = f"{what} waits for the maintenance window that opens at {when}; pods to move: {count}"
    return Problem(OUTSIDE_WINDOW, words) if count else None


def _obstacle(pod: Entry, lower: LowerWorld, world: World) -> Problem | None:
    """Return why a pod stays in its lower cluster, whatever room there is elsewhere, None for one that may leave."""
    if is_bare(pod):
        return obstacle(pod, world)
    if lower.is_drained:
        return drain_problem(pod)
    return forbidden(pod) or (CLAIMED if uses_claims(pod.manifest()) else None)


def _has_new_backup(lower: LowerWorld, world: World) -> bool:
    """Report whether a pod that was counted in this interval's pass has got its backup since."""
    told = {note.pod for note in told_lately(lower, world)}
    bare = (one.upper for one in candidates(lower, world) if one.upper.facts.bare)
    return any(pod.uid not in told and backup_of(pod, world) is not None for pod in bare)


def _departures(moves: list[Move], lower: LowerWorld, world: World) -> Iterator[Wanted]:
    """Yield the evictions that may be sent now, and the backups of the pods that leave once they have one."""
    ready: list[Move] = []
    others: list[Move] = []
    for move in moves:
        (ready if is_ready(move, world) else others).append(move)
    if ready:
        yield from _evictions(ready, lower, world)
    for move in others:
        successor = successor_now(move.upper, world, move.avoided)
        yield backup(successor, move.upper, world.owner, _reason(move, world))


def _moves(found: PassPlan, lower: LowerWorld) -> list[Move]:
    return [move for move in found.moves if move.source == lower.name]


def _stays(found: PassPlan, lower: LowerWorld) -> list[Skip]:
    return [stay for stay in found.stays if stay.source == lower.name]


def _rest(lower: LowerWorld, world: World) -> float:
    """Return the seconds left of the interval of the last evictions, 0 if there were none.

    Evicted pods must be bound to a node again before others are evicted.
    """
    last = max((note.at for note in told_lately(lower, world)), default=None)
    interval = world.topology.descheduler.interval
    return 0.0 if last is None else min(last - world.now + interval, interval).total_seconds() + _MOMENT


def _evictions(moves: list[Move], lower: LowerWorld, world: World) -> Iterator[Wanted]:
    """Yield the patch that records the evictions on the Node, then the evictions, unless the drain sends them."""
    node = _node(lower, world)
    known = recent(notes_on(node), world.now, kept_for(world.topology.descheduler))
    leaving = {move.upper.uid for move in moves}
    notes = [*(note for note in known if note.pod not in leaving), *(note_of(move, world) for move in moves)]
    yield _noted(node, notes)
    for move in () if lower.is_drained else moves:
        told = PodMove(lower.node, (move.target, *move.others), move.node)
        ref, why = _ref(move), _reason(move, world)
        yield Absent(ref, move.upper.uid, why, evict=True, independent=True, moving=told, cause="descheduled")


def _reason(move: Move, world: World) -> str:
    why = f"unschedulable in lower cluster {move.source} for longer than "
    why += write_duration(world.topology.descheduler.pending_longer_than)
    if world.lowers[move.source].is_drained:
        why = f"lower cluster {move.source} is being drained"
    return f"{why}: it fits on node {_where(move)}"


def _noted(node: Manifest, notes: list[EvictionRecord]) -> Patched:
    """Return the patch that writes the records, with the Node's resourceVersion as precondition."""
    patch = Patch("merge-patch", {"metadata": {**as_read(node), "annotations": {TRIED: written(notes)}}})
    return Patched(node_ref(node), patch, "pods are evicted from it")


def _left(lower: LowerWorld, world: World) -> Iterator[EmitEvent]:
    """Yield an event for each terminating pod that was evicted in this interval."""
    policy = world.topology.descheduler
    for note in told_lately(lower, world):
        for upper in lower.upper_pods.select("uid", note.pod):
            if upper.facts.terminating:
                off = f"node {', '.join(note.nodes)}"
                kept = f"the pod that replaces it avoids {off}"
                if note.owner and _is_mutated(upper, world):
                    kept = f"new pods of its controller avoid {off} for {write_duration(policy.cooldown)}"
                elif note.owner:
                    kept = "its controller creates a new pod"
                why = (
                    f"lower cluster {lower.name} is being drained"
                    if lower.is_drained
                    else f"no node of lower cluster {lower.name} fits"
                )
                words = f"{why}: {kept}"
                yield EmitEvent(_ref_of(upper.namespace, upper.name), upper.uid, RESCHEDULED, words, warning=False)


def _is_mutated(upper: Entry, world: World) -> bool:
    """Report whether the webhook keeps new pods like this one off nodes."""
    return world.topology.webhook.enabled and labels(upper.manifest()).get(VIRTUAL_POD) == "true"


def _deadlocked(stays: list[Skip], lower: LowerWorld) -> Iterator[EmitEvent]:
    """Yield an event for each pod that fits in no lower cluster; the text is constant, so that it is emitted once."""
    why = (
        f"lower cluster {lower.name} is being drained"
        if lower.is_drained
        else f"unschedulable in lower cluster {lower.name}"
    )
    words = f"{why}: the pod is not moved, it fits in no other lower cluster"
    for stay in stays:
        if stay.reason == DEADLOCK:
            yield EmitEvent(_ref(stay), stay.upper.uid, DEADLOCK, words)


def _kept(stays: list[Skip], lower: LowerWorld) -> Problem | None:
    """Return the problem that lists the pods that stay and why."""
    if not stays:
        return None
    said = listed([f"{_name(stay)}: {stay.message}" for stay in stays])
    return Problem(stays[0].reason, _blocking(said, lower))


def _blocking(said: str, lower: LowerWorld) -> str:
    return f"pods block the drain: {said}" if lower.is_drained else said


def _rehearsed(moves: list[Move]) -> Problem | None:
    """Return the problem that lists the pods that would be evicted."""
    told = [f"{_name(move)}: from {move.source} to node {_where(move)}" for move in moves]
    return Problem(DRY_RUN, f"dry run, would be evicted: {listed(told)}") if told else None


def _where(move: Move) -> str:
    """Return the virtual node with room for a pod, the lower node behind it, and the other suitable virtual nodes."""
    return " or ".join((f"{move.target} ({move.node})", *move.others))


def _name(of: Move | Skip) -> str:
    return f"{of.upper.namespace}/{of.upper.name}"


def _ref(of: Move | Skip) -> Ref:
    return _ref_of(of.upper.namespace, of.upper.name)


def _ref_of(namespace: str, name: str) -> Ref:
    return Ref(UPPER, POD, namespace, name)


def _node(lower: LowerWorld, world: World) -> Manifest:
    entry = world.upper.nodes.get("", lower.node)
    assert entry is not None
    return entry.manifest()


def _backed_up(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the lower's key when the backup of one of its pods changes: the pod is evicted once it has one."""
    name = delta.entry.name
    is_here = name.startswith(BACKUP) and any(world.lowers[lower].upper_pods.select("uid", name.removeprefix(BACKUP)))
    if is_here and _is_asked(lower, world):
        yield key_of(lower)


def _cordoned(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    here = world.lowers[lower]
    states = {bool(one.manifest()["spec"].get("unschedulable")) for one in delta if one is not None}
    if delta.entry.name == here.node and here.is_drained and (len(states) > 1 or delta.before is None):
        yield key_of(lower)


def _leaving(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the lower's key when a pod begins to leave that was evicted, or that the reported problem names.

    An event is emitted for the one, and the problem must not name the other any more.
    """
    pod, before = delta.after, delta.before
    leaves = pod is None or (pod.facts.terminating and not (before and before.facts.terminating))
    if not leaves or not _is_asked(lower, world):
        return
    problem = world.problems.get(key_of(lower))
    is_named = problem is not None and f"{delta.entry.namespace}/{delta.entry.name}:" in problem.message
    if is_named or (pod is not None and _was_told(pod, world.lowers[lower], world)):
        yield key_of(lower)


def _was_told(pod: Entry, lower: LowerWorld, world: World) -> bool:
    return any(note.pod == pod.uid for note in told_lately(lower, world))


def drain_key(lower: str, namespace: str, name: str) -> Key:
    """Return the key of an upper pod on the node of a drained lower cluster."""
    return Key(DRAIN, lower, namespace, name)


class DrainRule:
    """One key per pod that is bound to the node of a drained lower cluster."""

    name = DRAIN

    def watches(self) -> tuple[Watch, ...]:
        """Watch the pods, and the node, which must be cordoned first and has the records of those that leave."""
        return (
            Watch("upper_pods", _drained_pod, facts=("terminal", "terminating", "daemon", "ran", "bare", "pinned")),
            Watch("upper.nodes", _drained_node),
        )

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield the keys of all pods on the node if the lower is drained, and those with a reported problem."""
        here = world.lowers[lower]
        pods = here.upper_pods if here.is_drained else ()
        told = {key for key in world.problems if key.rule == DRAIN and key.lower == lower}
        yield from told.union(drain_key(lower, pod.namespace, pod.name) for pod in pods)

    def decide(self, key: Key, world: World) -> Decision:
        """Return the eviction of the pod, or what prevents it."""
        lower = world.lowers[key.lower]
        pod = lower.upper_pods.get(key.namespace, key.name)
        if pod is None or not is_emptied(lower, world) or not _can_leave(pod, lower, world):
            return Decision()
        problem = drain_problem(pod)
        if problem is not None:
            return Decision(problem=problem)
        opening = next_opening(world.topology.windows, world.now)
        if opening is not None:  # the rule of the descheduler reports that the drain waits
            return Decision(requeue_after=seconds_until(opening, world.now))
        return Decision((_drained(pod, lower),))


def _can_leave(pod: Entry, lower: LowerWorld, world: World) -> bool:
    """Report whether a pod can be evicted and will be created again."""
    if pod.facts.terminating or pod.facts.stays_out:
        return False
    return not is_bare(pod) or any(
        note.pod == pod.uid and is_backed_up(pod, successor_now(pod, world, note.nodes), world)
        for note in told_lately(lower, world)
    )


def _drained(pod: Entry, lower: LowerWorld) -> Absent:
    """Return the eviction of a pod from a drained lower cluster."""
    why = f"lower cluster {lower.name} is being drained"
    return Absent(_ref_of(pod.namespace, pod.name), pod.uid, why, evict=True, cause="drained")


def _drained_pod(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    key = drain_key(lower, delta.entry.namespace, delta.entry.name)
    if world.lowers[lower].is_drained or key in world.problems:
        yield key


def _drained_node(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    if delta.entry.name == world.lowers[lower].node:
        yield from DrainRule().keys(world, lower)
