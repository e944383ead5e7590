"""The rule for NetworkPolicies of the upper cluster: an event says that one does not apply in a lower cluster.

NetworkPolicies are not mirrored. Their authors rely on them, and nothing else shows that they do not protect pods that
run in a lower cluster.
"""

from collections.abc import Iterator

from tensile.kube.store import Delta
from tensile.names import EventReason
from tensile.objects import NETWORK_POLICY, UPPER, Ref
from tensile.reconcile.copies import first_pod_namespace, has_pods
from tensile.reconcile.desired import Decision, EmitEvent, Watch
from tensile.reconcile.world import Key, World

NAME = "networkpolicy"
REASON: EventReason = "NetworkPolicyNotMirrored"
"""On a NetworkPolicy: pods of its namespace run in a lower cluster, where it does not apply. Remedy: create an
equivalent policy there."""
_MESSAGE = (
    "NetworkPolicies are not mirrored, so this one does not apply to pods of namespace {namespace} in lower cluster "
    "{lower}: create an equivalent policy there"
)


class NetworkPolicyRule:
    """The rule with one key for each NetworkPolicy and lower cluster in which pods of its namespace run."""

    name = NAME

    def watches(self) -> tuple[Watch, ...]:
        """Watch policies, and the first pod of a namespace in each lower."""
        return (Watch("upper.policies", _changed), Watch("upper_pods", _on_first_pod, facts=("terminal", "daemon")))

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield the keys of all policies whose namespace has pods in the lower."""
        lower_world = world.lowers[lower]
        yield from (
            key_of(lower, one.namespace, one.name)
            for one in world.upper.policies
            if has_pods(lower_world, one.namespace, world)
        )

    def decide(self, key: Key, world: World) -> Decision:
        """Return one event on the policy for each lower."""
        entry = world.upper.policies.get(key.namespace, key.name)
        if entry is None or not has_pods(world.lowers[key.lower], key.namespace, world):
            return Decision()
        ref = Ref(UPPER, NETWORK_POLICY, key.namespace, key.name)
        return Decision((EmitEvent(ref, entry.uid, REASON, _MESSAGE.format(namespace=key.namespace, lower=key.lower)),))


def key_of(lower: str, namespace: str, name: str) -> Key:
    """Return the key of one NetworkPolicy in the queue of a lower."""
    return Key(NAME, lower, namespace, name)


def _changed(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    if delta.before is None and has_pods(world.lowers[lower], delta.entry.namespace, world):
        yield key_of(lower, delta.entry.namespace, delta.entry.name)


def _on_first_pod(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    namespace = first_pod_namespace(world.lowers[lower], delta)
    if namespace:
        yield from (key_of(lower, namespace, one.name) for one in world.upper.policies if one.namespace == namespace)
