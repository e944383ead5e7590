"""The rule that prepares pods without a controller to leave a drained lower cluster, if another one takes them.

Each pod gets a backup first; other rules evict it and re-create it. A pod that fits nowhere else stays, because it
would run nowhere after an eviction; the problem says why.
"""

from collections.abc import Iterator

from tensile.kube.store import Delta, Entry
from tensile.policy.descheduler.bare_pods import is_safe, loosed, successor_now, tie_of
from tensile.policy.descheduler.drain import is_bare, is_drained, is_emptied
from tensile.policy.descheduler.in_progress import in_flight, settle
from tensile.policy.descheduler.plan import listed
from tensile.policy.descheduler.records import PodBackup, kept_of, present, withdrawal
from tensile.policy.descheduler.targets import Targets, said_of
from tensile.policy.placement import reader
from tensile.reconcile.desired import Decision, Wanted, Watch
from tensile.reconcile.world import Key, LowerWorld, Problem, World

NAME = "clearing"
NO_PLACE = "FitsNowhereElse"
OTHERWISE = "KeptOtherwise"
_OTHERWISE = "the Secret that keeps it holds something else than would be made now: it goes, and the pod is kept anew"
_COLLECT = 5.0
"""Seconds for which changes that may make room are batched: each check examines every node of every lower cluster."""
_SOON = 1.0
_LOOK = 15.0
"""Seconds between two checks for room."""
_NOBODY: frozenset[str] = frozenset()


def key_of(lower: str) -> Key:
    """Return the key for the bare pods of a lower cluster."""
    return Key(NAME, lower, "", "")


class BarePodDrainRule:
    """One key per lower cluster, so that pods that leave together do not count on the same room."""

    name = NAME

    def watches(self) -> tuple[Watch, ...]:
        """Watch the pods, the own node (which must be cordoned first), and all nodes that may take pods."""
        return (
            Watch("upper_pods", _pod, delay=_COLLECT),
            Watch("upper.nodes", _own_node),
            Watch("upper.nodes", _any_node, delay=_COLLECT),
        )

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield the lower's key if it is drained or a problem of the key is still reported."""
        if is_drained(world.lowers[lower]) or key_of(lower) in world.problems:
            yield key_of(lower)

    def decide(self, key: Key, world: World) -> Decision:
        """Return the backups to write so that pods can leave."""
        lower = world.lowers[key.lower]
        if not is_emptied(lower, world) or not lower.upper_pods.synced:
            return Decision()
        bare = [pod for pod in lower.upper_pods if is_bare(pod) and not pod.facts.terminating]
        if not bare:
            return Decision()
        if any(map(_is_coming, _others(lower, world))):
            return Decision(requeue_after=_SOON)
        ground = Targets(world, without=lower.node)
        for going in in_flight(world, but=lower.name):
            settle(going, world, ground)
        return _sorted_out(bare, lower, world, ground)


def placed(pod: Entry, lower: LowerWorld, world: World, ground: Targets) -> tuple[str, str] | Problem:
    """Return the virtual node that takes a bare pod and the lower node behind it, or why the pod stays."""
    tie = tie_of(pod, world)
    if tie is not None:
        return tie
    going = loosed(pod, world)
    found, refused = ground.others(going, lower.node, _NOBODY)
    if not found:
        words = f"it has no controller, and fits in no other lower cluster: {said_of(refused)}"
        return Problem(NO_PLACE, words)
    return found[0], ground.move(going, lower.node, found[0])


def _sorted_out(pods: list[Entry], lower: LowerWorld, world: World, ground: Targets) -> Decision:
    """Back up the pods that fit elsewhere and report the others; pods with a backup are placed first.

    They are checked again as long as they exist: a disruption budget may delay them until their room is taken.
    """
    wanted: list[Wanted] = []
    stays: list[tuple[str, Problem]] = []
    for pod, kept in sorted(((one, kept_of(one, world)) for one in pods), key=_turn):
        place = placed(pod, lower, world, ground)
        if not isinstance(place, Problem) and kept is not None and not is_safe(pod, world):
            place = Problem(OTHERWISE, _OTHERWISE)
        if isinstance(place, Problem):
            stays.append((f"{pod.namespace}/{pod.name}: {place.message}", place))
        wanted += _due(pod, kept, place, lower, world)
    if not stays:
        return Decision(tuple(wanted), requeue_after=_LOOK)
    problem = Problem(stays[0][1].reason, listed([words for words, _ in stays]))
    return Decision(tuple(wanted), problem=problem, requeue_after=_LOOK)


def _turn(one: tuple[Entry, PodBackup | None]) -> tuple[bool, str, str]:
    pod, kept = one
    return kept is None or not kept.is_safe, pod.namespace, pod.name


def _due(
    pod: Entry, kept: PodBackup | None, place: tuple[str, str] | Problem, lower: LowerWorld, world: World
) -> Iterator[Wanted]:
    """Yield the backup of a pod that has room elsewhere, or the withdrawal of the backup of one that stays."""
    if kept is None:
        if not isinstance(place, Problem):
            reason = f"lower cluster {lower.name} is drained, and the pod fits on node {place[0]} ({place[1]})"
            yield present(successor_now(pod, world), pod, world.owner, reason)
    elif kept.withdrawn is None and isinstance(place, Problem):
        yield withdrawal(pod, world, f"the pod stays for now: {place.message}")


def _others(lower: LowerWorld, world: World) -> Iterator[LowerWorld]:
    return (one for one in world.lowers.values() if one is not lower and one.in_topology and one.connected)


def _is_coming(lower: LowerWorld) -> bool:
    """Report whether a lower cluster's caches for placement are still syncing."""
    return not lower.unreachable_seconds and lower.pods.synced and not reader.is_known(lower)


def _pod(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the lower's key when a pod comes or goes: reports about a pod that left must be revised."""
    if (delta.before is None or delta.after is None) and is_drained(world.lowers[lower]):
        yield key_of(lower)


def _own_node(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    if delta.entry.name == world.lowers[lower].node and is_drained(world.lowers[lower]):
        yield key_of(lower)


def _any_node(world: World, lower: str, _delta: Delta) -> Iterator[Key]:
    if is_drained(world.lowers[lower]):
        yield key_of(lower)
