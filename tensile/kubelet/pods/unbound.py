"""The rule for pods that request a virtual node and are not bound yet: it repairs what the webhook missed.

A webhook may be disabled, unreachable or late, and then pods are created without it. Tolerations may be added to a pod
until it is bound, but its selectors may not change any more. So where no virtual node meets them, an event says so. A
pod that gets bound needs none of this: its constraints on lower nodes are copied to the lower pod as if the webhook had
moved them. So only pods that the scheduler found no node for are considered: most are bound before they could be
patched.
"""

from collections.abc import Iterator

from tensile.kube.cluster import Patch
from tensile.kube.store import Delta, Entry, Transformed, decoded
from tensile.kubelet.pods.conditions import unschedulable_condition
from tensile.names import EventReason
from tensile.objects import POD, UPPER, Manifest, Ref, as_read, labels, metadata
from tensile.reconcile.desired import Decision, EmitEvent, Patched, Wanted, Watch
from tensile.reconcile.pods.scheduling import (
    UPPER_ONLY_KEYS,
    cluster_selector,
    is_upper_only,
    lacking_for,
    left_alone,
    meets,
    required_of,
    split_term,
    taints_of,
    tolerations_for_upper,
)
from tensile.reconcile.world import WAITING, Key, World

MISSED: EventReason = "WebhookBypassed"
"""On a Pending pod: it selects labels of lower nodes, and the webhook did not move the selector to an annotation.
Remedy: enable the [webhook](../webhook.md) and create the pod again, or give the labels to the virtual nodes
(`node.labels`)."""
_NOTHING = Decision()
_UNSCHEDULABLE = "Unschedulable"
_MARK = f'"{_UNSCHEDULABLE}"'.encode()
_BYPASSED_MESSAGE = (
    "no virtual node matches the node affinity/selector, and no webhook moved it to annotation clusterSelector: "
)
_ADVICE_ENABLE = "set webhook.enabled and recreate the pod, or set node.labels"
_ADVICE_DOCTOR = "run `tensile doctor`, which checks the webhook, and recreate the pod, or set node.labels"


def transform(raw: bytes) -> Transformed:
    """Transform a pod: keep its bytes, and whether the scheduler has found no node for it."""
    return Transformed(raw, _MARK in raw and unschedulable_condition(decoded(raw), (_UNSCHEDULABLE,)) is not None)


class UnboundPodRule:
    """The rule with one key for each pod that waits for a virtual node, in the queue of the topology's first lower."""

    name = WAITING

    def watches(self) -> tuple[Watch, ...]:
        """Watch such pods, and virtual nodes that appear."""
        return (Watch("upper.waiting", _on_pod), Watch("upper.nodes", _on_node))

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield the keys of all of them, for the first lower."""
        if lower == world.speaker:
            yield from (key_of(lower, entry) for entry in world.upper.waiting if entry.facts)

    def decide(self, key: Key, world: World) -> Decision:
        """Add missing tolerations; report what cannot be repaired."""
        entry = world.upper.waiting.get(key.namespace, key.name)
        if (
            entry is None
            or not entry.facts
            or not world.upper.nodes.synced
            or key.namespace in left_alone(world.topology)
        ):
            return _NOTHING
        pod = entry.manifest()
        if pod["spec"].get("nodeName") or "deletionTimestamp" in metadata(pod):
            return _NOTHING
        return Decision((*_toleration_steps(pod, world), *_bypass_events(pod, world)))


def key_of(lower: str, entry: Entry) -> Key:
    """Return the key of a waiting pod, in the queue of a lower."""
    return Key(WAITING, lower, entry.namespace, entry.name)


def _toleration_steps(pod: Manifest, world: World) -> Iterator[Wanted]:
    """Yield the patch that makes the pod tolerate the virtual nodes' taints; it fails if the pod changed.

    It also adds the tolerations for nodes whose engine is down; those alone can wait until the pod is bound.
    """
    taints = taints_of(world.topology.lowers)
    if not lacking_for(pod["spec"].get("tolerations") or (), taints):
        return
    tolerations = tolerations_for_upper(pod, taints)
    assert tolerations is not None, "some are lacking"
    meta = metadata(pod)
    patch = Patch("merge-patch", {"metadata": as_read(pod), "spec": {"tolerations": tolerations}})
    yield Patched(_ref(meta), patch, "it selects virtual nodes but does not tolerate their taints", in_plan=True)


def _bypass_events(pod: Manifest, world: World) -> Iterator[Wanted]:
    """Yield an event that a selector should have been moved, if it keeps the pod from every virtual node."""
    nodes = [node for lower in world.lowers.values() if (node := world.upper.nodes.get("", lower.node)) is not None]
    spec = pod["spec"]
    if not nodes or cluster_selector(pod) is not None or not _constrains_lower_nodes(spec, world):
        return
    if any(meets(spec, node.name, labels(node.manifest())) for node in nodes):
        return
    meta = metadata(pod)
    advice = _ADVICE_DOCTOR if world.topology.webhook.enabled else _ADVICE_ENABLE
    yield EmitEvent(_ref(meta), meta["uid"], MISSED, f"{_BYPASSED_MESSAGE}{advice}")


def _constrains_lower_nodes(spec: Manifest, world: World) -> bool:
    """Report whether a spec constrains lower nodes, and not only virtual ones."""
    keys = UPPER_ONLY_KEYS | set(world.topology.webhook.ignore_selector_keys)
    nodes = world.virtual_nodes
    selector: dict[str, str] = spec.get("nodeSelector") or {}
    terms = (required_of(spec) or {}).get("nodeSelectorTerms") or ()
    by_label = any(not is_upper_only(key, [value], keys, nodes) for key, value in selector.items())
    return by_label or any(split_term(term, keys, nodes).lower for term in terms)


def _ref(meta: Manifest) -> Ref:
    return Ref(UPPER, POD, meta["namespace"], meta["name"])


def _on_pod(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    if delta.after is not None and delta.after.facts and lower == world.speaker:
        yield key_of(lower, delta.after)


def _on_node(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield all keys when a virtual node appears: it may have what no other had."""
    if delta.before is None and lower == world.speaker:
        yield from UnboundPodRule().keys(world, lower)
