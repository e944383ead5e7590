"""The rule that empties a lower cluster with `maintenance: drain`: it evicts the upper pods on its node.

It works like `kubectl drain`: once the node is cordoned, pods are evicted by the Eviction API, so that disruption
budgets and grace periods hold. A refused eviction is retried. A DaemonSet's pod stays, because it would come back at
once, and is reported unless it was never mirrored. A pod without a controller is evicted once the rule of the
descheduler has found room for it, backed it up, and recorded that it leaves.
"""

from collections.abc import Iterator

from tensile.kube.store import Delta, Entry
from tensile.names import ProblemReason
from tensile.objects import POD, UPPER, Ref, controller_of
from tensile.policy.descheduler.limits import next_opening, seconds_until, told_lately
from tensile.policy.descheduler.replacement import forbidden, is_backed_up, successor_now
from tensile.reconcile.desired import Absent, Decision, Watch
from tensile.reconcile.ownership import has_node
from tensile.reconcile.world import Key, LowerWorld, Problem, World

MANAGED_BY_DAEMON_SET: ProblemReason = "ManagedByDaemonSet"
"""The drain waits for a pod of a DaemonSet that tolerates the node, and would come back to it. Remedy: change the
node selection of the DaemonSet."""
NAME = "drain"
_NOTHING = Decision()


def key_of(lower: str, namespace: str, name: str) -> Key:
    """Return the key of an upper pod on the node of a drained lower cluster."""
    return Key(NAME, lower, namespace, name)


class DrainRule:
    """One key per pod that is bound to the node of a drained lower cluster."""

    name = NAME

    def watches(self) -> tuple[Watch, ...]:
        """Watch the pods, and the node, which must be cordoned first and has the records of those that leave."""
        return (
            Watch("upper_pods", _pod, facts=("terminal", "terminating", "daemon", "ran", "bare", "pinned")),
            Watch("upper.nodes", _every),
        )

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield the keys of all pods on the node if the lower is drained, and those with a reported problem."""
        here = world.lowers[lower]
        pods = here.upper_pods if is_drained(here) else ()
        told = {key for key in world.problems if key.rule == NAME and key.lower == lower}
        yield from told.union(key_of(lower, pod.namespace, pod.name) for pod in pods)

    def decide(self, key: Key, world: World) -> Decision:
        """Return the eviction of the pod, or what prevents it."""
        lower = world.lowers[key.lower]
        pod = lower.upper_pods.get(key.namespace, key.name)
        if pod is None or not is_emptied(lower, world) or not _can_leave(pod, lower, world):
            return _NOTHING
        problem = kept(pod)
        if problem is not None:
            return Decision(problem=problem)
        opening = next_opening(world.topology.windows, world.now)
        if opening is not None:  # the rule of the descheduler reports that the drain waits
            return Decision(requeue_after=seconds_until(opening, world.now))
        return Decision((_evicted(pod, lower),))


def is_drained(lower: LowerWorld) -> bool:
    """Report whether the topology drains a lower cluster."""
    return lower.in_topology and lower.spec.maintenance == "drain"


def is_emptied(lower: LowerWorld, world: World) -> bool:
    """Report whether the pods of a drained lower are evicted now: its Node is ours and cordoned.

    If it were not cordoned, pods would come back.
    """
    node = world.upper.nodes.get("", lower.node) if is_drained(lower) else None
    return node is not None and has_node(lower, world) and bool(node.manifest()["spec"].get("unschedulable"))


def is_bare(pod: Entry) -> bool:
    """Report whether a pod has no controller to create it again.

    False for a pod in a terminal phase, which is not created again anyway.
    """
    return bool(pod.facts.bare) and not pod.facts.terminal


def _can_leave(pod: Entry, lower: LowerWorld, world: World) -> bool:
    """Report whether a pod can be evicted and will be created again."""
    if pod.facts.terminating or pod.facts.stays_out:
        return False
    return not is_bare(pod) or any(
        note.pod == pod.uid and is_backed_up(pod, successor_now(pod, world, note.nodes), world)
        for note in told_lately(lower, world)
    )


def kept(pod: Entry) -> Problem | None:
    """Return why a pod with a controller stays, None for one that goes."""
    if controller_of(pod.manifest()).get("kind") == "DaemonSet":
        return Problem(
            MANAGED_BY_DAEMON_SET,
            "managed by a DaemonSet that tolerates this node; change the DaemonSet's node selection first",
        )
    return forbidden(pod)


def _evicted(pod: Entry, lower: LowerWorld) -> Absent:
    """Return the eviction of a pod from a drained lower cluster."""
    ref = Ref(UPPER, POD, pod.namespace, pod.name)
    return Absent(ref, pod.uid, f"lower cluster {lower.name} is being drained", evict=True, cause="drained")


def _pod(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    key = key_of(lower, delta.entry.namespace, delta.entry.name)
    if is_drained(world.lowers[lower]) or key in world.problems:
        yield key


def _every(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    if delta.entry.name == world.lowers[lower].node:
        yield from DrainRule().keys(world, lower)
