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
    encode_records,
    eviction_records,
    is_bare,
    is_being_drained,
    next_opening,
    recent,
    recent_evictions,
    record_retention,
    ref_of_node,
    seconds_until,
)
from tensile.policy.descheduler.moves import (
    DEADLOCK,
    Move,
    PassPlan,
    Skip,
    candidates,
    is_source,
    join_messages,
    may_evict_now,
    one_pass,
    record_of,
)
from tensile.policy.descheduler.replacement import (
    BACKUP,
    CLAIMS_PROBLEM,
    annotation_problem,
    backup,
    backup_of,
    bare_pod_problem,
    is_backed_up,
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
_MIN_INTERVAL = 2.0
"""Minimum seconds between two passes, however short the interval, and between checks for missing data."""
_MARGIN = 0.05


def key_of(lower: str) -> Key:
    """Return the key for the pods of a lower cluster that may have to leave."""
    return Key(NAME, lower, "", "")


class DeschedulerRule:
    """One key per lower cluster: limits apply to all its pods together, and no two of them count on the same room."""

    name = NAME

    def watches(self) -> tuple[Watch, ...]:
        """Watch evicted pods, backups, and the Node, which is cordoned first; the rest is checked once per interval."""
        return (
            Watch("upper_pods", _on_leaving, facts=("terminating",)),
            Watch("upper.secrets", _on_backup),
            Watch("upper.nodes", _on_cordon),
        )

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield the lower's key if pods may have to leave it or a problem of the key is still reported."""
        if _evicts_pods(lower, world) or key_of(lower) in world.problems:
            yield key_of(lower)

    def decide(self, key: Key, world: World) -> Decision:
        """Return the pods to evict from the lower cluster now."""
        policy, lower = world.topology.descheduler, world.lowers[key.lower]
        if not _evicts_pods(key.lower, world):
            return Decision()
        interval = max(policy.interval.total_seconds(), _MIN_INTERVAL)
        if not is_source(lower, world):
            return Decision(requeue_after=_MIN_INTERVAL)  # the informers of placement may have started with this rule
        events = tuple(_eviction_events(lower, world))
        opening = next_opening(world.topology.windows, world.now)
        if opening is not None and not policy.dry_run:
            problem = _window_problem(lower, opening, world)
            return Decision(events, problem=problem, requeue_after=min(interval, seconds_until(opening, world.now)))
        if next(candidates(lower, world), None) is None:
            return Decision(events, requeue_after=interval)
        interval_left = 0.0 if policy.dry_run else _interval_left(lower, world)
        if interval_left > 0 and not _has_new_backup(lower, world):
            return Decision(events, problem=world.problems.get(key), requeue_after=interval_left)
        plan = one_pass(world)
        moves = _moves_from(plan, lower)
        if interval_left > 0:
            backed_up = [move for move in moves if not move.owner and may_evict_now(move, world)]
            evictions = tuple(_evictions(backed_up, lower, world)) if backed_up else ()
            return Decision((*events, *evictions), problem=world.problems.get(key), requeue_after=interval_left)
        skips = _skips_of(plan, lower)
        events += tuple(_deadlock_events(skips, lower))
        if policy.dry_run:
            return Decision(
                events, problem=_dry_run_problem(moves) or _skip_problem(skips, lower), requeue_after=interval
            )
        return Decision(
            (*events, *_evictions_and_backups(moves, lower, world)),
            problem=_skip_problem(skips, lower),
            requeue_after=interval,
        )


def _evicts_pods(lower: str, world: World) -> bool:
    """Report whether the topology has pods leave a lower."""
    return world.topology.descheduler.enabled or world.lowers[lower].drain_requested


def _window_problem(lower: LowerWorld, opening: datetime, world: World) -> Problem | None:
    """Return the problem of the pods that have to leave a lower cluster and wait for a window, None if none has to.

    Pods that would not leave in a window either are only reported if there are no others.
    """
    if lower.drain_requested:
        pods = [pod for pod in lower.upper_pods if not (pod.facts.terminating or pod.facts.stays_out)]
    else:
        pods = [one.upper for one in candidates(lower, world)]
    staying = {pod: problem for pod in pods if (problem := _stay_problem(pod, lower, world)) is not None}
    count = len(pods) - len(staying)
    if staying and not count:
        details = join_messages([f"{pod.namespace}/{pod.name}: {problem.message}" for pod, problem in staying.items()])
        return Problem(next(iter(staying.values())).reason, _drain_message(details, lower))
    actor = "the drain" if lower.drain_requested else "the descheduler"
    opens_at = opening.isoformat(timespec="minutes")
    message = f"{actor} waits for the maintenance window that opens at {opens_at}; pods to move: {count}"
    return Problem(OUTSIDE_WINDOW, message) if count else None


def _stay_problem(pod: Entry, lower: LowerWorld, world: World) -> Problem | None:
    """Return why a pod stays in its lower cluster, whatever room there is elsewhere, None for one that may leave."""
    if is_bare(pod):
        return bare_pod_problem(pod, world)
    if lower.drain_requested:
        return drain_problem(pod)
    return annotation_problem(pod) or (CLAIMS_PROBLEM if uses_claims(pod.manifest()) else None)


def _has_new_backup(lower: LowerWorld, world: World) -> bool:
    """Report whether a pod that was counted in this interval's pass has got its backup since."""
    recorded = {record.pod for record in recent_evictions(lower, world)}
    bare = (one.upper for one in candidates(lower, world) if one.upper.facts.bare)
    return any(pod.uid not in recorded and backup_of(pod, world) is not None for pod in bare)


def _evictions_and_backups(moves: list[Move], lower: LowerWorld, world: World) -> Iterator[Wanted]:
    """Yield the evictions that may be sent now, and the backups of the pods that leave once they have one."""
    ready: list[Move] = []
    unready: list[Move] = []
    for move in moves:
        (ready if may_evict_now(move, world) else unready).append(move)
    if ready:
        yield from _evictions(ready, lower, world)
    for move in unready:
        successor = successor_now(move.upper, world, move.avoided)
        yield backup(successor, move.upper, world.owner, _reason(move, world))


def _moves_from(plan: PassPlan, lower: LowerWorld) -> list[Move]:
    return [move for move in plan.moves if move.source == lower.name]


def _skips_of(plan: PassPlan, lower: LowerWorld) -> list[Skip]:
    return [stay for stay in plan.stays if stay.source == lower.name]


def _interval_left(lower: LowerWorld, world: World) -> float:
    """Return the seconds left of the interval of the last evictions, 0 if there were none.

    Evicted pods must be bound to a node again before others are evicted.
    """
    last = max((record.at for record in recent_evictions(lower, world)), default=None)
    interval = world.topology.descheduler.interval
    return 0.0 if last is None else min(last - world.now + interval, interval).total_seconds() + _MARGIN


def _evictions(moves: list[Move], lower: LowerWorld, world: World) -> Iterator[Wanted]:
    """Yield the patch that records the evictions on the Node, then the evictions, unless the drain sends them."""
    node = _node(lower, world)
    known = recent(eviction_records(node), world.now, record_retention(world.topology.descheduler))
    leaving = {move.upper.uid for move in moves}
    records = [*(record for record in known if record.pod not in leaving), *(record_of(move, world) for move in moves)]
    yield _records_patch(node, records)
    for move in () if lower.drain_requested else moves:
        pod_move = PodMove(lower.node, (move.target, *move.others), move.node)
        ref, reason = _ref(move), _reason(move, world)
        yield Absent(ref, move.upper.uid, reason, evict=True, independent=True, moving=pod_move, cause="descheduled")


def _reason(move: Move, world: World) -> str:
    reason = f"unschedulable in lower cluster {move.source} for longer than "
    reason += write_duration(world.topology.descheduler.pending_longer_than)
    if world.lowers[move.source].drain_requested:
        reason = f"lower cluster {move.source} is being drained"
    return f"{reason}: it fits on node {_destination(move)}"


def _records_patch(node: Manifest, records: list[EvictionRecord]) -> Patched:
    """Return the patch that writes the records, with the Node's resourceVersion as precondition."""
    patch = Patch("merge-patch", {"metadata": {**as_read(node), "annotations": {TRIED: encode_records(records)}}})
    return Patched(ref_of_node(node), patch, "pods are evicted from it")


def _eviction_events(lower: LowerWorld, world: World) -> Iterator[EmitEvent]:
    """Yield an event for each terminating pod that was evicted in this interval."""
    policy = world.topology.descheduler
    for record in recent_evictions(lower, world):
        for upper in lower.upper_pods.select("uid", record.pod):
            if upper.facts.terminating:
                avoided = f"node {', '.join(record.nodes)}"
                consequence = f"the pod that replaces it avoids {avoided}"
                if record.owner and _is_kept_off_by_webhook(upper, world):
                    consequence = f"new pods of its controller avoid {avoided} for {write_duration(policy.cooldown)}"
                elif record.owner:
                    consequence = "its controller creates a new pod"
                cause = (
                    f"lower cluster {lower.name} is being drained"
                    if lower.drain_requested
                    else f"no node of lower cluster {lower.name} fits"
                )
                message = f"{cause}: {consequence}"
                yield EmitEvent(_ref_of(upper.namespace, upper.name), upper.uid, RESCHEDULED, message, warning=False)


def _is_kept_off_by_webhook(upper: Entry, world: World) -> bool:
    """Report whether the webhook keeps new pods like this one off nodes."""
    return world.topology.webhook.enabled and labels(upper.manifest()).get(VIRTUAL_POD) == "true"


def _deadlock_events(skips: list[Skip], lower: LowerWorld) -> Iterator[EmitEvent]:
    """Yield an event for each pod that fits in no lower cluster; the text is constant, so that it is emitted once."""
    cause = (
        f"lower cluster {lower.name} is being drained"
        if lower.drain_requested
        else f"unschedulable in lower cluster {lower.name}"
    )
    message = f"{cause}: the pod is not moved, it fits in no other lower cluster"
    for skip in skips:
        if skip.reason == DEADLOCK:
            yield EmitEvent(_ref(skip), skip.upper.uid, DEADLOCK, message)


def _skip_problem(skips: list[Skip], lower: LowerWorld) -> Problem | None:
    """Return the problem that lists the pods that stay and why."""
    if not skips:
        return None
    details = join_messages([f"{_name(skip)}: {skip.message}" for skip in skips])
    return Problem(skips[0].reason, _drain_message(details, lower))


def _drain_message(details: str, lower: LowerWorld) -> str:
    return f"pods block the drain: {details}" if lower.drain_requested else details


def _dry_run_problem(moves: list[Move]) -> Problem | None:
    """Return the problem that lists the pods that would be evicted."""
    messages = [f"{_name(move)}: from {move.source} to node {_destination(move)}" for move in moves]
    return Problem(DRY_RUN, f"dry run, would be evicted: {join_messages(messages)}") if messages else None


def _destination(move: Move) -> str:
    """Return the virtual node with room for a pod, the lower node behind it, and the other suitable virtual nodes."""
    return " or ".join((f"{move.target} ({move.node})", *move.others))


def _name(item: Move | Skip) -> str:
    return f"{item.upper.namespace}/{item.upper.name}"


def _ref(item: Move | Skip) -> Ref:
    return _ref_of(item.upper.namespace, item.upper.name)


def _ref_of(namespace: str, name: str) -> Ref:
    return Ref(UPPER, POD, namespace, name)


def _node(lower: LowerWorld, world: World) -> Manifest:
    entry = world.upper.nodes.get("", lower.node)
    assert entry is not None
    return entry.manifest()


def _on_backup(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the lower's key when the backup of one of its pods changes: the pod is evicted once it has one."""
    name = delta.entry.name
    is_of_this_lower = name.startswith(BACKUP) and any(
        world.lowers[lower].upper_pods.select("uid", name.removeprefix(BACKUP))
    )
    if is_of_this_lower and _evicts_pods(lower, world):
        yield key_of(lower)


def _on_cordon(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    lower_world = world.lowers[lower]
    cordons = {bool(one.manifest()["spec"].get("unschedulable")) for one in delta if one is not None}
    if (
        delta.entry.name == lower_world.node
        and lower_world.drain_requested
        and (len(cordons) > 1 or delta.before is None)
    ):
        yield key_of(lower)


def _on_leaving(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the lower's key when a pod begins to leave that was evicted, or that the reported problem names.

    An event is emitted for the one, and the problem must not name the other any more.
    """
    pod, before = delta.after, delta.before
    leaves = pod is None or (pod.facts.terminating and not (before and before.facts.terminating))
    if not leaves or not _evicts_pods(lower, world):
        return
    problem = world.problems.get(key_of(lower))
    is_named = problem is not None and f"{delta.entry.namespace}/{delta.entry.name}:" in problem.message
    if is_named or (pod is not None and _is_recorded(pod, world.lowers[lower], world)):
        yield key_of(lower)


def _is_recorded(pod: Entry, lower: LowerWorld, world: World) -> bool:
    return any(record.pod == pod.uid for record in recent_evictions(lower, world))


def drain_key(lower: str, namespace: str, name: str) -> Key:
    """Return the key of an upper pod on the node of a drained lower cluster."""
    return Key(DRAIN, lower, namespace, name)


class DrainRule:
    """One key per pod that is bound to the node of a drained lower cluster."""

    name = DRAIN

    def watches(self) -> tuple[Watch, ...]:
        """Watch the pods, and the node, which must be cordoned first and has the records of those that leave."""
        return (
            Watch("upper_pods", _on_drained_pod, facts=("terminal", "terminating", "daemon", "ran", "bare", "pinned")),
            Watch("upper.nodes", _on_drained_node),
        )

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield the keys of all pods on the node if the lower is drained, and those with a reported problem."""
        lower_world = world.lowers[lower]
        pods = lower_world.upper_pods if lower_world.drain_requested else ()
        reported = {key for key in world.problems if key.rule == DRAIN and key.lower == lower}
        yield from reported.union(drain_key(lower, pod.namespace, pod.name) for pod in pods)

    def decide(self, key: Key, world: World) -> Decision:
        """Return the eviction of the pod, or what prevents it."""
        lower = world.lowers[key.lower]
        pod = lower.upper_pods.get(key.namespace, key.name)
        if pod is None or not is_being_drained(lower, world) or not _can_leave(pod, lower, world):
            return Decision()
        problem = drain_problem(pod)
        if problem is not None:
            return Decision(problem=problem)
        opening = next_opening(world.topology.windows, world.now)
        if opening is not None:  # the rule of the descheduler reports that the drain waits
            return Decision(requeue_after=seconds_until(opening, world.now))
        return Decision((_drain_eviction(pod, lower),))


def _can_leave(pod: Entry, lower: LowerWorld, world: World) -> bool:
    """Report whether a pod can be evicted and will be created again."""
    if pod.facts.terminating or pod.facts.stays_out:
        return False
    return not is_bare(pod) or any(
        record.pod == pod.uid and is_backed_up(pod, successor_now(pod, world, record.nodes), world)
        for record in recent_evictions(lower, world)
    )


def _drain_eviction(pod: Entry, lower: LowerWorld) -> Absent:
    """Return the eviction of a pod from a drained lower cluster."""
    reason = f"lower cluster {lower.name} is being drained"
    return Absent(_ref_of(pod.namespace, pod.name), pod.uid, reason, evict=True, cause="drained")


def _on_drained_pod(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    key = drain_key(lower, delta.entry.namespace, delta.entry.name)
    if world.lowers[lower].drain_requested or key in world.problems:
        yield key


def _on_drained_node(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    if delta.entry.name == world.lowers[lower].node:
        yield from DrainRule().keys(world, lower)
