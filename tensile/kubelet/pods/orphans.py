"""The rule for what is missing though nobody is known to have deleted it.

A lower pod without its upper one, or an upper pod that ran and has no lower one any more, may be somebody's deletion,
or a wrong kubeconfig, or a store restored from a backup. So each is read at quorum first, and all of one lower are
decided in one plan, which the guard can hold back as a whole. With them goes what Kubernetes itself deletes above
because it takes the node for dead, and what is there below for a pod that has ended above.
"""

from collections.abc import Iterator

from tensile.kube.store import Delta, Entry
from tensile.kubelet.pods.conditions import is_terminal, status_of
from tensile.kubelet.pods.deletion import has_run, last_words
from tensile.kubelet.pods.status import lost as without_lower_pod
from tensile.kubelet.pods.status import status_write, upper_status
from tensile.objects import POD, UPPER, Ref, metadata, timestamp
from tensile.reconcile.adoption import adopts
from tensile.reconcile.copies import bound_as, standing, upper_of
from tensile.reconcile.desired import Absent, Confirmed, Decision, Patched, Route
from tensile.reconcile.guard import is_restored
from tensile.reconcile.ownership import has_node
from tensile.reconcile.pods.index import is_gone_below, is_mirror, was_deleted
from tensile.reconcile.world import Key, LowerWorld, World

NAME = "orphans"
_COLLECT = 0.5
_UNASKED = "its upper pod is gone, and nobody is known to have deleted it"
_Found = Absent | Confirmed | Patched


def key_of(lower: str) -> Key:
    """Return the one key of a lower."""
    return Key(NAME, lower, "", "")


class OrphanRule:
    """One key for each lower."""

    name = NAME

    def routes(self) -> tuple[Route, ...]:
        """Note pods that go, on either side, or come without their other half, or leave a name free."""
        return (
            Route("upper_pods", _above, delay=_COLLECT),
            Route("pods", _below, delay=_COLLECT),
            Route("foreign_pods", _left, delay=_COLLECT),
        )

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield the lower's key."""
        yield key_of(world.lowers[lower].name)

    def decide(self, key: Key, world: World) -> Decision:
        """Want what is certainly orphaned gone, and what is not certain confirmed; nothing from incomplete caches."""
        lower = world.lowers[key.lower]
        if not (lower.settled and world.upper.namespaces.synced) or lower.silent:
            return Decision()
        found = [*_orphans(lower, world), *(_lost(lower, world) if has_node(lower, world) else ())]
        found.sort(key=lambda one: one.ref)
        return Decision(tuple(found))


def _orphans(lower: LowerWorld, world: World) -> Iterator[_Found]:
    """Find our lower pods that should end though nobody deleted their upper pod."""
    for below in lower.placed(lower.pods):
        if not is_mirror(below, world.owner) or below.facts.terminating:
            continue
        upper = upper_of(below, lower)
        if upper is None:
            yield from _orphan(below, lower, world)
        elif upper.uid == below.facts.upper_uid and upper.facts.terminating and upper.facts.unasked:
            grace = metadata(upper.manifest()).get("deletionGracePeriodSeconds")
            yield Absent(_ref(below, lower), below.uid, "Kubernetes deleted its upper pod", grace, asked=False)
        elif _is_afterlife(below, upper):
            reason = "its upper pod has ended, and nothing of it is to run any more"
            yield Absent(_ref(below, lower), below.uid, reason, asked=False, version=str(below.version))
        elif upper.uid != below.facts.upper_uid and is_doubtful(below, upper, lower, world):
            reason = "the upper store was restored, and has an older pod in its upper pod's place"
            yield Absent(_ref(below, lower), below.uid, reason, asked=False, lost=True)


def _is_afterlife(below: Entry, upper: Entry) -> bool:
    """Report whether a lower pod goes on though its upper one has ended, as one made by a write that came late does.

    A kubelet ends such a pod too. Should it have ended meanwhile, as others than we may have told above, it is left.
    """
    facts = below.facts
    return upper.uid == facts.upper_uid and upper.facts.terminal and not (facts.terminal or facts.terminating)


def is_doubtful(below: Entry, upper: Entry, lower: LowerWorld, world: World) -> bool:
    """Report whether the upper store may have forgotten whom a lower pod was made for: `upper` has that one's name."""
    is_forgotten = lower.upper_pods.is_lost(upper.namespace, upper.name, below.facts.upper_uid)
    return is_forgotten or is_restored(lower, world)


def _orphan(below: Entry, lower: LowerWorld, world: World) -> Iterator[_Found]:
    """Have the upper pod's absence confirmed, or the lower pod end.

    The rule for pods decides about one whose upper pod was seen deleted, or that is in the way of another of its name.
    """
    above = Ref(UPPER, POD, lower.upper_namespace(below.namespace), below.name)
    successor = bound_as(above.namespace, above.name, world)
    if successor is not None and not (below.facts.terminal or is_doubtful(below, successor.pod, lower, world)):
        return
    departure = lower.upper_pods.departed(above.namespace, above.name)
    if not lower.upper_pods.is_gone(above.namespace, above.name, below.facts.upper_uid):
        yield Confirmed(above, below.facts.upper_uid, "its lower pod still runs", asked=False)
        return
    is_back = lower.pods.came_back(below)
    is_doubted = is_back or is_restored(lower, world)
    if is_doubted or departure is None or not was_deleted(departure, below.facts.upper_uid):
        lost = is_back or lower.upper_pods.is_lost(above.namespace, above.name, below.facts.upper_uid)
        yield Absent(_ref(below, lower), below.uid, _UNASKED, asked=False, lost=lost)


def _ref(below: Entry, lower: LowerWorld) -> Ref:
    return Ref(lower.name, POD, below.namespace, below.name)


def _lost(lower: LowerWorld, world: World) -> Iterator[_Found]:
    """Find upper pods that ran and have no lower pod any more; those on a Node that is not ours run somewhere else."""
    for upper in lower.upper_pods:
        facts = upper.facts
        namespace = lower.namespace(upper.namespace)
        if (
            facts.terminal
            or facts.terminating
            or not has_run(upper, lower)
            or standing(upper, lower) is not None
            or _may_be_adopted(upper, lower, world)
        ):
            continue
        if not is_gone_below(upper, lower):
            ref = Ref(lower.name, POD, namespace, upper.name)
            yield Confirmed(ref, upper.uid, "its upper pod ran and is not deleted", asked=False)
            continue
        if _runs_unmarked(lower, namespace, upper.name):
            continue
        yield from _ended(upper, lower, world)


def _may_be_adopted(upper: Entry, lower: LowerWorld, world: World) -> bool:
    """Report whether a pod below that lost its owner may be this one's: the rule for pods decides about it."""
    foreign = lower.foreign_pods.get(lower.namespace(upper.namespace), upper.name)
    if foreign is None or not adopts(world, lower.name):
        return False
    return bool(foreign.raw) or foreign.facts.made_for == upper.uid


def _ended(upper: Entry, lower: LowerWorld, world: World) -> Iterator[_Found]:
    """Yield how a pod ended, where its lower pod said so before it went; else that it is lost."""
    pod, last = upper.manifest(), last_words(upper, lower)
    if last is not None and is_terminal(status_of(last).get("phase")):
        body = upper_status(pod, last, generation=status_of(pod).get("observedGeneration") or 0)
        yield from [status_write(pod, body, "the lower pod said so last")] if body else ()
        return
    body = without_lower_pod(pod, timestamp(world.now))
    if body is not None:
        lost = lower.pods.is_lost(lower.namespace(upper.namespace), upper.name)
        yield status_write(pod, body, "its lower pod is gone, and nobody above deleted it", asked=False, lost=lost)


def _runs_unmarked(lower: LowerWorld, namespace: str, name: str) -> bool:
    """Report whether a lower pod left our sight only because somebody took our label off it."""
    foreign, departure = lower.foreign_pods.get(namespace, name), lower.pods.departed(namespace, name)
    return foreign is not None and departure is not None and foreign.uid == departure.uid


def _above(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Note a pod that goes, makes room for another of its name, is deleted by Kubernetes itself, or ends alone."""
    before, after = delta
    is_another = before is not None and after is not None and before.uid != after.uid
    if after is None or is_another or (after.facts.terminating and after.facts.unasked):
        yield key_of(lower)
    elif after.facts.terminal:
        here = world.lowers[lower]
        below = here.pods.get(here.namespace(after.namespace), after.name)
        if below is not None and _is_afterlife(below, after):
            yield key_of(lower)


def _below(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Note a pod that goes, has none above, or has one that has ended."""
    here, after = world.lowers[lower], delta.after
    upper = upper_of(after, here) if after is not None else None
    if after is None or upper is None or upper.uid != after.facts.upper_uid or _is_afterlife(after, upper):
        yield key_of(lower)


def _left(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """A pod that is not ours matters when it goes and a pod above has its name."""
    here, before = world.lowers[lower], delta.before
    if before is None or delta.after is not None:
        return
    if upper_of(before, here) is not None:
        yield key_of(lower)
