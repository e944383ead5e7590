"""The rule that empties a lower cluster whose `maintenance` is `drain`: the pods on its node are evicted above.

As `kubectl drain` does: once the node takes no new pods, by the Eviction API, so that disruption budgets hold and each
pod has its own time to end. What is refused is asked again. A pod of a DaemonSet stays, which would come back at once,
and it is said, unless nothing of it ever ran below. One that no controller would make anew leaves once it is in safe
keeping, which others see to.
"""

from collections.abc import Iterator

from tensile.kube.store import Delta, Entry
from tensile.objects import POD, UPPER, Ref, controller_of
from tensile.policy.descheduler.bare_pods import is_safe
from tensile.policy.descheduler.records import of_pod
from tensile.reconcile.desired import Absent, Decision, Route
from tensile.reconcile.ownership import has_node
from tensile.reconcile.world import Key, LowerWorld, Problem, World

NAME = "drain"
_NOTHING = Decision()


def key_of(lower: str, namespace: str, name: str) -> Key:
    """Return the key of a pod above on the node of a lower that is drained."""
    return Key(NAME, lower, namespace, name)


class DrainRule:
    """One key for each pod that is bound to the node of a lower that is drained."""

    name = NAME

    def routes(self) -> tuple[Route, ...]:
        """Note the pods, those that are safe now, and of the node, which has to take no new ones first."""
        return (Route("upper_pods", _pod), Route("upper.nodes", _every), Route("upper.secrets", _kept))

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield the key of every pod on the node, where the lower is drained, and those that were told to stay."""
        here = world.lowers[lower]
        pods = here.upper_pods if is_drained(here) else ()
        told = {key for key in world.problems if key.rule == NAME and key.lower == lower}
        yield from told.union(key_of(lower, pod.namespace, pod.name) for pod in pods)

    def decide(self, key: Key, world: World) -> Decision:
        """Report whether the pod has to go, and what keeps it."""
        lower = world.lowers[key.lower]
        pod = lower.upper_pods.get(key.namespace, key.name)
        if pod is None or not is_emptied(lower, world) or not _can_leave(pod, world):
            return _NOTHING
        problem = kept(pod)
        return Decision(problem=problem) if problem else Decision((_evicted(pod, lower),))


def is_drained(lower: LowerWorld) -> bool:
    """Report whether the topology wants no pod to stay in a lower."""
    return lower.in_topology and lower.spec.maintenance == "drain"


def is_emptied(lower: LowerWorld, world: World) -> bool:
    """Report whether the pods of a lower are to leave now: its node is ours and takes no new ones, or they came back."""
    node = world.upper.nodes.get("", lower.node) if is_drained(lower) else None
    return node is not None and has_node(lower, world) and bool(node.manifest()["spec"].get("unschedulable"))


def is_bare(pod: Entry) -> bool:
    """Report whether no controller would make a pod again; one that has ended is made anew by nobody anyway."""
    return bool(pod.facts.bare) and not pod.facts.terminal


def _can_leave(pod: Entry, world: World) -> bool:
    """Report whether a pod is there to be asked to leave, and would be made again."""
    if pod.facts.terminating or pod.facts.stays_out:
        return False
    return not is_bare(pod) or is_safe(pod, world)


def kept(pod: Entry) -> Problem | None:
    """Return why a pod that has a controller is left where it is, None for one that goes."""
    if controller_of(pod.manifest()).get("kind") == "DaemonSet":
        return Problem("DaemonSetPod", "its DaemonSet would make it again on the same node: take the DaemonSet off it")
    return None


def _evicted(pod: Entry, lower: LowerWorld) -> Absent:
    """Want a pod gone from a lower that is drained, when its disruption budgets allow it."""
    ref = Ref(UPPER, POD, pod.namespace, pod.name)
    return Absent(ref, pod.uid, f"lower cluster {lower.name} is drained", evicted=True)


def _pod(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    key = key_of(lower, delta.entry.namespace, delta.entry.name)
    if is_drained(world.lowers[lower]) or key in world.problems:
        yield key


def _kept(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    here = world.lowers[lower]
    if is_drained(here):
        yield from (key_of(lower, pod.namespace, pod.name) for pod in of_pod(delta.entry, here))


def _every(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    if delta.entry.name == world.lowers[lower].node:
        yield from DrainRule().keys(world, lower)
