"""The rule for the virtual node: one upper Node for each lower cluster, with the capacity of that cluster.

The node is Ready as long as the engine runs. A lower cluster that cannot be reached, or has no Ready node, is not a
dead node. Its pods keep running, so the node only accepts no new pods and reports why. A Node of that name that is not
ours may belong to a real machine, so neither it nor any pod on it is changed.
"""

from collections.abc import Iterator
from typing import Any

from tensile.kube.cluster import Patch
from tensile.kube.store import Delta
from tensile.kubelet.node.status import (
    SILENT_AFTER,
    architecture,
    as_patch,
    capacity_changed,
    differs,
    has_ready_node,
    is_reachable,
    node_status,
)
from tensile.kubelet.node.status import keys as held_keys
from tensile.names import (
    CLUSTER_ID,
    CORDONED_BY,
    ENGINE_LABELS,
    HOSTNAME,
    LOWER_UID,
    NAMESPACE_MAPPING,
    OWNER,
    PREFIX,
    ROOM,
    TRIED,
    UNREACHABLE_TAINT,
)
from tensile.objects import NODE, UPPER, Manifest, Ref, annotations, labels
from tensile.reconcile.desired import Absent, Decision, Patched, Present, Wanted, Watch
from tensile.reconcile.ownership import is_ours
from tensile.reconcile.world import Key, LowerWorld, World, mapping_note
from tensile.topology import Lower

NAME = "node"
LOWER_REMOVED = "its lower cluster was removed from the topology"
NODE_RENAMED = "its lower cluster has another `node.name` now"
TAINTS = PREFIX + "taints"
HEARTBEAT_SECONDS = 300.0
"""Seconds between status writes of a node without changes, as in a kubelet."""
_SETTLE_SECONDS = 0.5
_NOT_IN_TOPOLOGY = "not-in-topology"
_SECTIONS = ("metadata.labels", "metadata.annotations", "spec.taints", "spec.unschedulable")


def key_of(lower: LowerWorld) -> Key:
    """Return the key of a lower's virtual node."""
    return Key(NAME, lower.name, "", lower.node)


class NodeRule:
    """The rule with one key for each lower."""

    name = NAME

    def watches(self) -> tuple[Watch, ...]:
        """Watch the upper Node, and what changes the lower's capacity; several capacity changes make one decision."""
        return (
            Watch("upper.nodes", _on_upper_node),
            Watch("nodes", _on_capacity, delay=_SETTLE_SECONDS),
            Watch("foreign_pods", _on_capacity, delay=_SETTLE_SECONDS),
            Watch("upper_pods", _on_deletion, facts=()),
            Watch("pods", _on_deletion, facts=()),
            Watch("Service", _on_deletion, facts=()),
            Watch("EndpointSlice", _on_deletion, facts=()),
        )

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Yield the node's key."""
        yield key_of(world.lowers[lower])

    def decide(self, key: Key, world: World) -> Decision:
        """Return what the Node should look like; if its lower left the topology, it is deleted once it is empty."""
        lower = world.lowers[key.lower]
        entry = world.upper.nodes.get("", key.name)
        ref = Ref(UPPER, NODE, "", key.name)
        if not world.upper.nodes.synced:
            return Decision()
        if entry is None:
            return _create(ref, lower, world)
        seen = entry.manifest()
        is_known = lower.was_identified or LOWER_UID not in annotations(seen)
        if not lower.in_topology and is_known and lower.is_empty and is_ours(seen, world.owner):
            return Decision((Absent(ref, entry.uid, _deletion_reason(seen, world)),))
        return _update(ref, seen, lower, world)


def _create(ref: Ref, lower: LowerWorld, world: World) -> Decision:
    """Create the Node, even of a removed lower while pods are bound to it: Kubernetes deletes pods without a Node."""
    if not lower.in_topology and not (lower.connected and lower.is_bound):
        return Decision()
    if not _is_known(lower):
        return Decision()
    manifest = _manifest({}, lower, world)
    manifest["status"] = node_status({}, lower, world)
    reason = f"lower cluster {lower.name} is in the topology" if lower.in_topology else "pods are bound to it"
    return Decision(
        (Present(ref, manifest, reason),), reports_on=held_keys(lower.name), requeue_after=HEARTBEAT_SECONDS
    )


def _is_known(lower: LowerWorld) -> bool:
    """Report whether a new Node can be created correctly: the lower's capacity is known, or that it is unreachable."""
    is_capacity_known = (lower.nodes.synced and lower.foreign_pods.synced) or lower.is_withheld
    return is_capacity_known or lower.unreachable_seconds > SILENT_AFTER or lower.is_wrong


def _update(ref: Ref, seen: Manifest, lower: LowerWorld, world: World) -> Decision:
    meta, manifest = seen["metadata"], _manifest(seen, lower, world)
    present = Present(
        ref,
        manifest,
        _update_reason(seen, manifest, lower),
        sections=_SECTIONS,
        version=meta["resourceVersion"],
    )
    wanted: list[Wanted] = [present]
    status = node_status(seen, lower, world)
    if differs(seen, status, world.now, HEARTBEAT_SECONDS):
        body = {"metadata": {"uid": meta["uid"]}, "status": as_patch(seen, status)}
        patch = Patch("strategic-merge-patch", body)
        shown = capacity_changed(seen, status)
        wanted.append(Patched(ref, patch, "its capacity or its conditions changed", "status", in_plan=shown))
    return Decision(tuple(wanted), reports_on=held_keys(lower.name), requeue_after=HEARTBEAT_SECONDS)


def _update_reason(seen: Manifest, wanted: Manifest, lower: LowerWorld) -> str:
    """Return why the Node is changed; for a lower that left the topology, that its pods stay and how to move them."""
    if lower.in_topology:
        before, after = (_has_unreachable_taint(one) for one in (seen, wanted))
        if before == after:
            return "the Node differs from the topology"
        return "its lower cluster cannot run pods now" if after else "its lower cluster can run pods again"
    count = sum(not pod.facts.stays_out for pod in lower.upper_pods)
    staying = "1 pod stays" if count == 1 else f"{count} pods stay" if lower.upper_pods.synced else "its pods stay"
    return (
        f"its lower cluster was removed from the topology; {staying} on it until deleted: to evict them, put the lower "
        "back with maintenance: drain"
    )


def _deletion_reason(seen: Manifest, world: World) -> str:
    """Return why a Node has no lower any more: that was removed, or has another Node now."""
    is_renamed = labels(seen).get(CLUSTER_ID) in {spec.name for spec in world.topology.lowers}
    return NODE_RENAMED if is_renamed else LOWER_REMOVED


def _has_unreachable_taint(node: Manifest) -> bool:
    """Report whether a Node has our taint for a lower cluster that cannot run pods."""
    return any(taint["key"] == UNREACHABLE_TAINT for taint in node["spec"].get("taints") or ())


def _manifest(seen: Manifest, lower: LowerWorld, world: World) -> Manifest:
    """Return the desired metadata and spec, merged with what others have set on the Node."""
    if not lower.connected:
        return _cordoned_manifest(seen)
    taints = _taints(seen, lower)
    cordon_reason = _cordon_reason(lower)
    is_marked = CORDONED_BY in annotations(seen)
    unschedulable = bool(cordon_reason) or (bool(seen.get("spec", {}).get("unschedulable")) and not is_marked)
    spec: dict[str, Any] = {"taints": _merged_taints(seen, taints), "providerID": f"tensile-kube://{lower.node}"}
    if unschedulable:
        spec["unschedulable"] = True
    is_our_cordon = cordon_reason and (is_marked or not seen.get("spec", {}).get("unschedulable"))
    return {
        "apiVersion": NODE.api,
        "kind": NODE.name,
        "metadata": {
            "name": lower.node,
            "labels": _labels(seen, lower, world),
            "annotations": _annotations(seen, lower, world, taints, cordon_reason if is_our_cordon else ""),
        },
        "spec": {name: value for name, value in spec.items() if value},
    }


def _cordoned_manifest(seen: Manifest) -> Manifest:
    """Cordon a node that the topology no longer mentions, and change nothing else of it."""
    cordoned = seen["spec"].get("unschedulable") and CORDONED_BY not in annotations(seen)
    mark = {} if cordoned else {CORDONED_BY: _NOT_IN_TOPOLOGY}
    meta = {"name": seen["metadata"]["name"], "labels": labels(seen), "annotations": annotations(seen) | mark}
    return {"metadata": meta, "spec": {**seen["spec"], "unschedulable": True}}


def _labels(seen: Manifest, lower: LowerWorld, world: World) -> dict[str, str]:
    return {
        "kubernetes.io/arch": architecture(lower, labels(seen).get("kubernetes.io/arch", "")),
        "kubernetes.io/os": "linux",
        "beta.kubernetes.io/os": "linux",
        **own_labels(lower.spec),
        OWNER: world.owner.mark,
    }


def own_labels(spec: Lower) -> dict[str, str]:
    """Return the labels of a virtual node that follow from the topology alone."""
    return {
        CLUSTER_ID: spec.name,
        "node.kubernetes.io/exclude-from-external-load-balancers": "",
        **spec.node.labels,
        **ENGINE_LABELS,
        HOSTNAME: spec.node.name,
    }


def _annotations(
    seen: Manifest, lower: LowerWorld, world: World, taints: list[dict[str, str]], cordon_reason: str
) -> dict[str, str]:
    lower_uid = lower.identity or (annotations(seen).get(LOWER_UID, "") if seen else "")
    ours = {
        **world.owner.signed(world.owner.upper),
        TAINTS: ",".join(sorted(_identity(taint) for taint in taints)),
    }
    mapping = mapping_note(lower.naming) if lower.mapping_known else annotations(seen).get(NAMESPACE_MAPPING, "")
    kept = {TRIED: annotations(seen).get(TRIED, ""), ROOM: lower.capacity_freed_at or annotations(seen).get(ROOM, "")}
    optional = {LOWER_UID: lower_uid, CORDONED_BY: cordon_reason, NAMESPACE_MAPPING: mapping, **kept}
    return {**lower.spec.node.annotations, **ours, **{name: text for name, text in optional.items() if text}}


def _cordon_reason(lower: LowerWorld) -> str:
    """Return the engine's own reason to cordon the node, "" for none."""
    if not lower.in_topology:
        return _NOT_IN_TOPOLOGY
    return "" if lower.spec.maintenance == "none" else f"maintenance-{lower.spec.maintenance}"


def _taints(seen: Manifest, lower: LowerWorld) -> list[dict[str, str]]:
    """Return the taints that are ours: those of the topology, and one while the lower cluster cannot run pods."""
    found = [
        {"key": taint.key, "value": taint.value, "effect": taint.effect}
        if taint.value
        else {"key": taint.key, "effect": taint.effect}
        for taint in lower.spec.node.taints
    ]
    if not (is_reachable(seen, lower) and has_ready_node(seen, lower)):
        found.append({"key": UNREACHABLE_TAINT, "effect": "NoSchedule"})
    return found


def _merged_taints(seen: Manifest, ours: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Merge our taints into the present ones: others' taints and the order stay, our former taints are removed."""
    before = set(annotations(seen).get(TAINTS, "").split(","))
    wanted = {_identity(taint): taint for taint in ours}
    found: list[dict[str, Any]] = []
    for taint in seen.get("spec", {}).get("taints") or ():
        own = wanted.pop(_identity(taint), None)
        if own is not None:
            found.append(taint if taint.get("value") == own.get("value") else own)
        elif _identity(taint) not in before:
            found.append(taint)
    return [*found, *wanted.values()]


def _identity(taint: dict[str, str]) -> str:
    return f"{taint['key']}:{taint['effect']}"


def _on_upper_node(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    if delta.entry.name == world.lowers[lower].node:
        yield key_of(world.lowers[lower])


def _on_capacity(world: World, lower: str, _delta: Delta) -> Iterator[Key]:
    yield key_of(world.lowers[lower])


def _on_deletion(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """Yield the node's key when an object is deleted: a lower that left the topology waits for its last pod."""
    if delta.after is None and not world.lowers[lower].in_topology:
        yield key_of(world.lowers[lower])
