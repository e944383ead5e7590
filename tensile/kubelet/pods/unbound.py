"""The rule for pods that asked for a virtual node and have no node yet: what the webhook missed is made good.

A webhook may be off, away, or late, and then creations go on without it. Tolerations may be added to a pod until it is
bound; its selectors may not be changed any more, so where no virtual node has what they ask for, that is said. A pod
that comes to be bound needs nothing of this: what it asks of lower nodes goes down with it as if it had been moved. So
only one is looked at that the scheduler found no node for: most are bound before anybody could write to them.
"""

from collections.abc import Iterator

from tensile.kube.cluster import Patch
from tensile.kube.store import Delta, Entry, Kept, decoded
from tensile.kubelet.pods.conditions import unplaced
from tensile.objects import POD, UPPER, Manifest, Ref, as_read, labels, metadata
from tensile.reconcile.desired import Decision, Patched, Route, Told, Wanted
from tensile.reconcile.pods.cluster_selector import cluster_selector
from tensile.reconcile.pods.scheduling import (
    UPPER_ONLY_KEYS,
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

MISSED = "WebhookMissed"
_NOTHING = Decision()
_UNSCHEDULABLE = "Unschedulable"
_MARK = f'"{_UNSCHEDULABLE}"'.encode()


def digest(raw: bytes) -> Kept:
    """Keep a pod, and whether the scheduler has found no node for it."""
    return Kept(raw, _MARK in raw and unplaced(decoded(raw), (_UNSCHEDULABLE,)) is not None)


class WaitingRule:
    """One key for each pod that asked for a virtual node and waits for one, with the first lower of the topology."""

    name = WAITING

    def routes(self) -> tuple[Route, ...]:
        """Note such pods, and of virtual nodes that come."""
        return (Route("upper.waiting", _changed), Route("upper.nodes", _node_came))

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield the keys of all of them, in the first lower's queue."""
        if lower == world.speaker:
            yield from (key_of(lower, entry) for entry in world.upper.waiting if entry.facts)

    def decide(self, key: Key, world: World) -> Decision:
        """Add what tolerations lack; say what cannot be mended."""
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
        return Decision((*_tolerant(pod, world), *_told(pod, world)))


def key_of(lower: str, entry: Entry) -> Key:
    """Return the key of a waiting pod, in the queue of a lower."""
    return Key(WAITING, lower, entry.namespace, entry.name)


def _tolerant(pod: Manifest, world: World) -> Iterator[Wanted]:
    """Let the pod tolerate the virtual nodes' taints; only while nobody else writes.

    With them come those for nodes whose engine is down; alone, these have time until the pod is bound.
    """
    taints = taints_of(world.topology.lowers)
    if not lacking_for(pod["spec"].get("tolerations") or (), taints):
        return
    tolerations = tolerations_for_upper(pod, taints)
    assert tolerations is not None, "some are lacking"
    meta = metadata(pod)
    patch = Patch("merge-patch", {"metadata": as_read(pod), "spec": {"tolerations": tolerations}})
    yield Patched(_ref(meta), patch, "it asked for a virtual node, and does not tolerate one", shown=True)


def _told(pod: Manifest, world: World) -> Iterator[Wanted]:
    """Describe that a selector should have been moved, where it keeps the pod from every virtual node."""
    nodes = [node for lower in world.lowers.values() if (node := world.upper.nodes.get("", lower.node)) is not None]
    spec = pod["spec"]
    if not nodes or cluster_selector(pod) is not None or not _asks_below(spec, world):
        return
    if any(meets(spec, node.name, labels(node.manifest())) for node in nodes):
        return
    meta = metadata(pod)
    yield Told(_ref(meta), meta["uid"], MISSED, _MISSED)


_MISSED = (
    "no webhook moved what the pod asks of lower nodes (nodeSelector or required node affinity) to annotation "
    "clusterSelector, and no virtual node has that itself: it stays Pending; create it anew while the webhook is "
    "served (webhook.enabled), or give virtual nodes these labels (node.labels)"
)


def _asks_below(spec: Manifest, world: World) -> bool:
    """Report whether a spec asks for more than a virtual node."""
    keys = UPPER_ONLY_KEYS | set(world.topology.webhook.ignore_selector_keys)
    nodes = world.virtual_nodes
    selector: dict[str, str] = spec.get("nodeSelector") or {}
    terms = (required_of(spec) or {}).get("nodeSelectorTerms") or ()
    by_label = any(not is_upper_only(key, [value], keys, nodes) for key, value in selector.items())
    return by_label or any(split_term(term, keys, nodes).below for term in terms)


def _ref(meta: Manifest) -> Ref:
    return Ref(UPPER, POD, meta["namespace"], meta["name"])


def _changed(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    if delta.after is not None and delta.after.facts and lower == world.speaker:
        yield key_of(lower, delta.after)


def _node_came(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """What no virtual node had, a new one may have."""
    if delta.before is None and lower == world.speaker:
        yield from WaitingRule().keys(world, lower)
