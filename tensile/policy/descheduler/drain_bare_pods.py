"""The rule that has pods without a controller leave a lower cluster that is drained, where another one takes them.

Each is put into safe keeping first; it is evicted, and made again, by the rule that sees that through. What fits
nowhere else stays, and it is said why: evicted, it would run nowhere.
"""

from collections.abc import Iterator

from tensile.kube.store import Delta, Entry
from tensile.policy.descheduler.bare_pods import is_safe, loosed, successor_now, tie_of
from tensile.policy.descheduler.drain import is_bare, is_drained, is_emptied
from tensile.policy.descheduler.in_progress import settle, underway
from tensile.policy.descheduler.plan import listed
from tensile.policy.descheduler.records import Kept, kept_of, present, withdrawal
from tensile.policy.descheduler.targets import Ground, said_of
from tensile.policy.placement import reader
from tensile.reconcile.desired import Decision, Route, Wanted
from tensile.reconcile.world import Key, LowerWorld, Problem, World

NAME = "clearing"
NO_PLACE = "FitsNowhereElse"
OTHERWISE = "KeptOtherwise"
_OTHERWISE = "the Secret that keeps it holds something else than would be made now: it goes, and the pod is kept anew"
_COLLECT = 5.0
"""Seconds in which what may make room is looked at together: each look is at every node of every lower."""
_SOON = 1.0
_LOOK = 15.0
"""Seconds between two looks for room."""
_NOBODY: frozenset[str] = frozenset()


def key_of(lower: str) -> Key:
    """Return the key of a lower's pods without a controller."""
    return Key(NAME, lower, "", "")


class ClearingRule:
    """One key for each lower: pods that leave together do not count on the same room."""

    name = NAME

    def routes(self) -> tuple[Route, ...]:
        """Note the pods, of the node, which has to take no new ones first, and of nodes that may take some."""
        return (
            Route("upper_pods", _pod, delay=_COLLECT),
            Route("upper.nodes", _own_node),
            Route("upper.nodes", _any_node, delay=_COLLECT),
        )

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield the lower's key, where it is drained or something is still said of it."""
        if is_drained(world.lowers[lower]) or key_of(lower) in world.problems:
            yield key_of(lower)

    def decide(self, key: Key, world: World) -> Decision:
        """Return which pods are to be kept, to leave."""
        lower = world.lowers[key.lower]
        if not is_emptied(lower, world) or not lower.upper_pods.synced:
            return Decision()
        bare = [pod for pod in lower.upper_pods if is_bare(pod) and not pod.facts.terminating]
        if not bare:
            return Decision()
        if any(map(_is_coming, _others(lower, world))):
            return Decision(again=_SOON)
        ground = Ground(world, without=lower.node)
        for going in underway(world, but=lower.name):
            settle(going, world, ground)
        return _sorted_out(bare, lower, world, ground)


def placed(pod: Entry, lower: LowerWorld, world: World, ground: Ground) -> tuple[str, str] | Problem:
    """Return the virtual node that takes a pod without a controller, and the real one behind it, or why it stays."""
    tie = tie_of(pod, world)
    if tie is not None:
        return tie
    going = loosed(pod, world)
    found, refused = ground.others(going, lower.node, _NOBODY)
    if not found:
        words = f"it has no controller, and fits in no other lower cluster: {said_of(refused)}"
        return Problem(NO_PLACE, words)
    return found[0], ground.move(going, lower.node, found[0])


def _sorted_out(pods: list[Entry], lower: LowerWorld, world: World, ground: Ground) -> Decision:
    """Keep those that have a place elsewhere, and tell of the others; what is kept already has its place first.

    It is looked at again for as long as it stands: a budget may hold it up until its place is another's.
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
        return Decision(tuple(wanted), again=_LOOK)
    problem = Problem(stays[0][1].reason, listed([words for words, _ in stays]))
    return Decision(tuple(wanted), problem=problem, again=_LOOK)


def _turn(one: tuple[Entry, Kept | None]) -> tuple[bool, str, str]:
    pod, kept = one
    return kept is None or not kept.is_safe, pod.namespace, pod.name


def _due(
    pod: Entry, kept: Kept | None, place: tuple[str, str] | Problem, lower: LowerWorld, world: World
) -> Iterator[Wanted]:
    """Keep a pod that has a place, and let nobody rely on what is kept of one that stays."""
    if kept is None:
        if not isinstance(place, Problem):
            reason = f"lower cluster {lower.name} is drained, and the pod fits on node {place[0]} ({place[1]})"
            yield present(successor_now(pod, world), pod, world.owner, reason)
    elif kept.withdrawn is None and isinstance(place, Problem):
        yield withdrawal(pod, world, f"the pod stays for now: {place.message}")


def _others(lower: LowerWorld, world: World) -> Iterator[LowerWorld]:
    return (one for one in world.lowers.values() if one is not lower and one.in_topology and one.connected)


def _is_coming(lower: LowerWorld) -> bool:
    """Report whether a lower is about to be wholly known."""
    return not lower.silent and lower.pods.synced and not reader.is_known(lower)


def _pod(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Note pods that come, and of those that go: what they said is looked at again."""
    if (delta.before is None or delta.after is None) and is_drained(world.lowers[lower]):
        yield key_of(lower)


def _own_node(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    if delta.entry.name == world.lowers[lower].node and is_drained(world.lowers[lower]):
        yield key_of(lower)


def _any_node(world: World, lower: str, _delta: Delta) -> Iterator[Key]:
    if is_drained(world.lowers[lower]):
        yield key_of(lower)
