"""The rule for pods: what becomes of each pod that is bound to a virtual node, from its first sight to its last.

A pod above has at most one pod below, told by its UID. While it lives, the lower pod is made, kept in step and
reflected; once it is deleted, the lower pod goes first and the object above last, so that nothing runs that nobody
sees. What is missing without having been deleted is not decided here: `orphans.py` does that, within the guard.
"""

from collections.abc import Iterator

from tensile.cache import Delta, Entry
from tensile.kubelet.adopting import adopt
from tensile.kubelet.eviction import or_evicted
from tensile.kubelet.exclusion import excluded, is_kept_out
from tensile.kubelet.farewell import finalise, has_run, last_words, withdraw
from tensile.kubelet.mirroring import arrive, keep, out_of_reach, report
from tensile.kubelet.node import key_of as node_key
from tensile.kubelet.orphans import is_doubtful
from tensile.kubelet.ownstatus import forgotten
from tensile.kubelet.statuswrite import status_write
from tensile.objects import POD, UPPER, Manifest, Ref, controller_of, timestamp
from tensile.reconcile.adoption import adopts, conflict
from tensile.reconcile.desired import Absent, Confirmed, Decision, Route
from tensile.reconcile.observed import has_node
from tensile.reconcile.podfacts import (
    differ,
    is_gone_below,
    is_mirror,
    lives_below,
    mirror_of,
    mirrors,
    standing,
    upper_namespace_of,
    was_deleted,
)
from tensile.world import Key, LowerWorld, Problem, World

NAME = "pod"
UNREACHABLE_AFTER = 40.0
"""Seconds of silence after which pods are no longer called ready, as Kubernetes does for a node."""
_SOON = 1.5
"""Seconds until it is looked again whether all lowers have told what runs there: more than what `plan` waits for."""
_RENAMING = frozenset({"ReplicaSet", "ReplicationController", "Job", "DaemonSet"})
"""Controllers that give each pod a name by chance: none of another pod of that name is anywhere."""
_BRIEFLY = 5.0
"""Seconds for which a lower that answers is waited for, to tell what runs there."""
_NOTHING = Decision()


def key_of(lower: str, upper_namespace: str, name: str) -> Key:
    """Give the key of a pod bound to the virtual node of `lower`, by its upper namespace and name."""
    return Key(NAME, lower, upper_namespace, name)


class PodRule:
    """One key for each pod bound to a virtual node, by its upper namespace and name."""

    name = NAME

    def routes(self) -> tuple[Route, ...]:
        """Hear of the pod, of its lower pod, and of what stands in that one's place."""
        return (Route("upper_pods", _above), Route("pods", _below), Route("foreign_pods", _in_the_way))

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Give the keys of every pod above and of every pod of ours below; first those whose status is an old one.

        There are none while the lower's pods are being listed: nothing could be decided, and another look follows.
        """
        here = world.lowers[lower]
        if not here.pods.synced and here.silent <= UNREACHABLE_AFTER:
            return
        found = {(entry.namespace, entry.name) for entry in here.upper_pods}
        found |= {(upper_namespace_of(entry, here), entry.name) for entry in here.pods}

        def urgency(name: tuple[str, str]) -> tuple[bool, tuple[str, str]]:
            """Have what is in step come last: after a restart of the engine that is nearly everything."""
            below = here.pods.get(here.namespace(name[0]), name[1])
            return not differ(here.upper_pods.get(*name), below), name

        yield from (key_of(lower, *name) for name in sorted(found, key=urgency))

    def decide(self, key: Key, world: World) -> Decision:
        """Say what should become of the pod."""
        lower = world.lowers[key.lower]
        if not (lower.upper_pods.synced and lower.connected):
            return _NOTHING
        upper = lower.upper_pods.get(key.namespace, key.name)
        if upper is None:
            lower.in_step.pop((key.namespace, key.name), None)
            return _deleted_above(key, lower, world)
        below = standing(upper, lower, world.owner)
        if not has_node(lower, world):
            return Decision(waits=(node_key(lower),))
        if upper.facts.terminating:
            return _terminating(key, upper, below, lower, world)
        if below is not None and _is_older_twin(below, upper, lower, world):
            return _older_twin(key, below, lower)
        return _NOTHING if upper.facts.terminal else _living(key, upper, below, lower, world)


def _deleted_above(key: Key, lower: LowerWorld, world: World) -> Decision:
    """End the lower pod of one that was seen deleted, unless Kubernetes itself had ended it for its node's sake."""
    departure = lower.upper_pods.departed(key.namespace, key.name)
    below = mirror_of(departure.uid, lower, world.owner) if departure else None
    if departure is None or below is None or below.facts.terminating:
        return _NOTHING
    if not was_deleted(departure, below.facts.upper_uid):
        return _NOTHING
    return Decision((Absent(_ref_of(below, lower), below.uid, "the upper pod was deleted"),))


def _terminating(key: Key, upper: Entry, below: Entry | None, lower: LowerWorld, world: World) -> Decision:
    """Have the lower pod end, and let the upper one go once that is certain."""
    if below is not None and mirrors(below, upper, world.owner):
        return withdraw(upper.manifest(), below, _ref_of(below, lower), asked=not upper.facts.unasked)
    ref, pod = _below_ref(key, lower), upper.manifest()
    certain = (below is not None and not is_mirror(below, world.owner)) or is_gone_below(upper, lower)
    if not certain and not is_kept_out(pod, world.topology.exclude_namespaces):
        return Decision((Confirmed(ref, upper.uid, "the lower pod has to be gone before the upper one goes"),))
    rival = _older_twin(key, below, lower) if below and _is_older_twin(below, upper, lower, world) else _NOTHING
    ended = finalise(pod, last_words(upper, lower), Ref(UPPER, POD, key.namespace, key.name), world.now)
    return Decision((*rival.wanted, *ended.wanted))


def _living(key: Key, upper: Entry, below: Entry | None, lower: LowerWorld, world: World) -> Decision:
    """Make, keep in step, or say why not."""
    ours = below is not None and mirrors(below, upper, world.owner)
    objection = None if ours else _objection(upper, lower, world)
    if objection is not None or lower.silent > UNREACHABLE_AFTER:
        return _kept_apart(upper, objection, lower, world)
    if not lower.pods.synced:
        return _NOTHING
    if below is not None and ours:
        return keep(key, upper.manifest(), below, lower, world)
    return _missing(key, upper, below, lower, world)


def _kept_apart(upper: Entry, objection: Problem | None, lower: LowerWorld, world: World) -> Decision:
    """Say what keeps a pod from its lower cluster; one that is to be there may have waited for too long by now."""
    pod = upper.manifest()
    said = report(pod, objection, world.now) if objection else out_of_reach(pod, lower, world)
    is_away = lower.silent > UNREACHABLE_AFTER and lives_below(upper, world.topology.exclude_namespaces)
    return or_evicted(said, pod, lower, world) if is_away else said


def _objection(upper: Entry, lower: LowerWorld, world: World) -> Problem | None:
    """Say why a pod that has no lower pod gets none, whatever is below."""
    objection = excluded(upper.manifest(), world.topology.exclude_namespaces)
    if objection is not None or upper.facts.ran:
        return objection
    if not lower.in_topology:
        gone = f"lower cluster {lower.name} was removed from the topology: it takes no new pods"
        return Problem("NotInTopology", gone)
    if lower.silent > UNREACHABLE_AFTER:
        return Problem("LowerUnreachable", f"lower cluster {lower.name} does not answer")
    return None


def _is_older_twin(below: Entry, upper: Entry, lower: LowerWorld, world: World) -> bool:
    """Say whether a lower pod is ours, for another upper pod of that name than the one there is now.

    Where the upper store was restored that one may be the older, and which is to run is not decided here.
    """
    if not is_mirror(below, world.owner) or below.facts.upper_uid in ("", upper.uid):
        return False
    certain = lower.pods.synced and lower.silent <= UNREACHABLE_AFTER
    return certain and not is_doubtful(below, upper, lower, world)


def _older_twin(key: Key, below: Entry, lower: LowerWorld) -> Decision:
    """End the lower pod of an older upper pod of that name, whose place is needed.

    That it is the older one is read at quorum: with another engine at work, it may be for one that is yet to be told
    of here.
    """
    if below.facts.terminating:
        return _NOTHING
    if not lower.upper_pods.is_gone(key.namespace, key.name, below.facts.upper_uid):
        above = Ref(UPPER, POD, key.namespace, key.name)
        return Decision((Confirmed(above, below.facts.upper_uid, "its lower pod is in the way of another"),))
    return Decision((Absent(_ref_of(below, lower), below.uid, "its upper pod was replaced by another of that name"),))


def _missing(key: Key, upper: Entry, below: Entry | None, lower: LowerWorld, world: World) -> Decision:
    """Make the lower pod, unless its name is taken, it has run before, or its predecessor runs or may run elsewhere."""
    ref = _below_ref(key, lower)
    foreign = lower.foreign_pods.get(ref.namespace, ref.name)
    in_the_way = foreign or below
    if in_the_way is not None and adopts(world, lower.name):
        return adopt(upper, in_the_way, lower, world)
    if in_the_way is not None:
        return report(upper.manifest(), conflict(ref), world.now)
    if has_run(upper, lower):
        return _forgotten(upper, ref, lower, world)
    other = _elsewhere(key, upper, world)
    if other is None and _may_be_elsewhere(upper.manifest(), lower, world):
        return Decision(again=_SOON)
    if other is None:
        return arrive(key, upper.manifest(), upper.facts.references, lower, world)
    awaited = key_of(other.name, key.namespace, key.name)
    if other.silent <= UNREACHABLE_AFTER:
        return Decision(waits=(awaited,))
    unknown = f"an older pod of this name may still run in lower cluster {other.name}, which does not answer"
    return report(upper.manifest(), Problem("PredecessorUnreachable", unknown), world.now, (awaited,))


def _forgotten(upper: Entry, ref: Ref, lower: LowerWorld, world: World) -> Decision:
    """Call a pod unready whose lower pod went missing with the history of its store; its end is not decided here."""
    body = forgotten(upper.manifest(), timestamp(world.now)) if lower.pods.is_lost(ref.namespace, ref.name) else None
    return Decision((status_write(upper.manifest(), body, "its lower pod is missing"),)) if body else _NOTHING


def _elsewhere(key: Key, upper: Entry, world: World) -> LowerWorld | None:
    """Find the other lower where the pod of an older pod of that name runs, as far as is known: two never run."""
    for other in world.lowers.values():
        twin = other.pods.get(other.namespace(key.namespace), key.name) if other.name != key.lower else None
        if (
            twin is not None
            and is_mirror(twin, world.owner)
            and twin.facts.upper_uid != upper.uid
            and not twin.facts.terminal
        ):
            return other
    return None


def _patience(upper_pod: Manifest) -> float:
    """Give for how many seconds a lower that is silent is waited for: there may have been an older pod of that name.

    A StatefulSet promises that no two of one name run; of other names that may come again, as of a person's pods, a
    lower that does not answer delays none.
    """
    kind = controller_of(upper_pod).get("kind")
    if kind in _RENAMING:
        return 0.0
    return UNREACHABLE_AFTER if kind == "StatefulSet" else _BRIEFLY


def _may_be_elsewhere(upper_pod: Manifest, here: LowerWorld, world: World) -> bool:
    """Say whether another lower may tell any moment of a pod that runs there: they are opened one after the other."""
    patience = _patience(upper_pod)
    names = {spec.name for spec in world.topology.lowers} | world.lowers.keys() if patience else ()
    return any(_is_unread(world.lowers.get(name), here, world, patience) for name in names)


def _is_unread(other: LowerWorld | None, here: LowerWorld, world: World, patience: float) -> bool:
    """Say whether a lower is yet to tell of its pods, None for one that is yet to be opened.

    One that has not told for too long, whether it is silent or forbids it, holds up the others no more. What it told
    before counts as long as nothing newer is known.
    """
    if other is not None and (other.pods.synced or not other.connected):
        return False
    since = (other or here).since
    return since is None or (world.now - since).total_seconds() <= patience


def _ref_of(below: Entry, lower: LowerWorld) -> Ref:
    return Ref(lower.name, POD, below.namespace, below.name)


def _below_ref(key: Key, lower: LowerWorld) -> Ref:
    return Ref(lower.name, POD, lower.namespace(key.namespace), key.name)


def _above(_world: World, lower: str, delta: Delta) -> Iterator[Key]:
    entry = delta.entry
    yield key_of(lower, entry.namespace, entry.name)


def _below(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    entry = delta.entry
    yield key_of(lower, upper_namespace_of(entry, world.lowers[lower]), entry.name)


def _in_the_way(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """A pod that is not ours matters only where it takes, or leaves, the name of one above, or is another's now."""
    if delta.before is not None and delta.after is not None and _whose(delta.before) == _whose(delta.after):
        return
    here, entry = world.lowers[lower], delta.entry
    namespace = here.upper_namespace(entry.namespace)
    if here.upper_pods.get(namespace, entry.name) is not None:
        yield key_of(lower, namespace, entry.name)


def _whose(foreign: Entry) -> tuple[str, str, bool, bool]:
    """Tell by what a pod that is not ours may be taken over."""
    facts = foreign.facts
    return facts.mark, facts.made_for, facts.ending, bool(foreign.raw)
