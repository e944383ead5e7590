"""The rule for the virtual node: one Node above for each lower cluster, with what that cluster has to offer.

The node is Ready as long as the engine runs. A lower cluster that cannot be reached, or has no Ready node, is not a
dead node: its pods go on running, so the node only takes no new ones and says why. A Node of that name that is not
ours may belong to a real machine; neither it nor any pod on it is touched.
"""

from collections.abc import Iterator
from typing import Any

from tensile.cache import Delta
from tensile.cluster import Patch
from tensile.kubelet.nodestatus import differs, moved, node_status
from tensile.names import CLUSTER_ID, CORDONED_BY, KUBELET_PORT, OWNER, OWNER_NAME, PREFIX, UNREACHABLE_TAINT, UPPER_UID
from tensile.objects import NODE, UPPER, Manifest, Ref, annotations, labels
from tensile.reconcile.desired import Absent, Decision, Patched, Present, Route, Wanted
from tensile.world import Key, LowerWorld, World

NAME = "node"
TAINTS = PREFIX + "taints"
HEARTBEAT = 300.0
"""Seconds between status writes of a node on which nothing changed, as a kubelet does."""
SILENT_AFTER = 10.0
"""Seconds without an answer after which a lower counts as unreachable: longer than an apiserver's restart."""
_SETTLE = 0.5
_SECTIONS = ("metadata.labels", "metadata.annotations", "spec.taints", "spec.unschedulable")


def key_of(lower: LowerWorld) -> Key:
    """Give the key of a lower's virtual node."""
    return Key(NAME, lower.name, "", lower.node)


class NodeRule:
    """One key for each lower."""

    name = NAME

    def routes(self) -> tuple[Route, ...]:
        """Hear of the node above, and of what changes the lower's capacity, several changes at a time."""
        return (
            Route("upper.nodes", _same_name),
            Route("nodes", _node, delay=_SETTLE),
            Route("foreign_pods", _node, delay=_SETTLE),
            Route("upper_pods", _leaving),
            Route("pods", _leaving),
        )

    def keys(self, world: World, lower: str) -> Iterator[Key]:
        """Give the node's key."""
        yield key_of(world.lowers[lower])

    def decide(self, key: Key, world: World) -> Decision:
        """Say what the Node should look like; one whose lower left the topology goes when it is empty."""
        lower = world.lowers[key.lower]
        entry = world.upper.nodes.get("", key.name)
        ref = Ref(UPPER, NODE, "", key.name)
        if not world.upper.nodes.synced:
            return Decision()
        if not lower.in_topology and _is_empty(lower):
            return Decision((Absent(ref, entry.uid, "its lower cluster left the topology"),) if entry else ())
        if entry is None:
            return _missing(ref, lower, world)
        return _kept(ref, entry.manifest(), lower, world)


def _missing(ref: Ref, lower: LowerWorld, world: World) -> Decision:
    if not lower.in_topology:
        return Decision()
    manifest = _manifest({}, lower, world)
    manifest["status"] = node_status({}, lower, world)
    return Decision((Present(ref, manifest, f"lower cluster {lower.name} is in the topology"),), again=HEARTBEAT)


def _kept(ref: Ref, seen: Manifest, lower: LowerWorld, world: World) -> Decision:
    meta = seen["metadata"]
    present = Present(
        ref,
        _manifest(seen, lower, world),
        "differs from the topology",
        sections=_SECTIONS,
        version=meta["resourceVersion"],
    )
    wanted: list[Wanted] = [present]
    status = node_status(seen, lower, world)
    if differs(seen, status, world.now, HEARTBEAT):
        patch = Patch("strategic-merge-patch", {"metadata": {"uid": meta["uid"]}, "status": status})
        shown = moved(seen, status)
        wanted.append(Patched(ref, patch, "what the lower cluster offers changed", "status", shown=shown))
    return Decision(tuple(wanted), again=HEARTBEAT)


def _is_empty(lower: LowerWorld) -> bool:
    return lower.upper_pods.synced and lower.pods.synced and not len(lower.upper_pods) and not len(lower.pods)


def _manifest(seen: Manifest, lower: LowerWorld, world: World) -> Manifest:
    """Give metadata and spec as they should be, laid over what others have put on the node."""
    taints = _taints(lower)
    cordon = _cordon(lower)
    marked = CORDONED_BY in annotations(seen)
    unschedulable = bool(cordon) or (bool(seen.get("spec", {}).get("unschedulable")) and not marked)
    others = _others(seen, taints)
    spec: dict[str, Any] = {"taints": taints + others, "providerID": f"tensile-kube://{lower.node}"}
    if unschedulable:
        spec["unschedulable"] = True
    mine = cordon and (marked or not seen.get("spec", {}).get("unschedulable"))
    return {
        "apiVersion": NODE.api,
        "kind": NODE.name,
        "metadata": {
            "name": lower.node,
            "labels": _labels(seen, lower, world),
            "annotations": _annotations(lower, world, taints, cordon if mine else ""),
        },
        "spec": {name: value for name, value in spec.items() if value},
    }


def _labels(seen: Manifest, lower: LowerWorld, world: World) -> dict[str, str]:
    architecture = next((entry.facts.architecture for entry in lower.nodes if entry.facts.architecture), "")
    architecture = architecture or labels(seen).get("kubernetes.io/arch", "amd64")
    return {
        "kubernetes.io/arch": architecture,
        "kubernetes.io/os": "linux",
        "beta.kubernetes.io/os": "linux",
        CLUSTER_ID: lower.name,
        "node.kubernetes.io/exclude-from-external-load-balancers": "",
        **lower.spec.node.labels,
        "type": "virtual-kubelet",
        "kubernetes.io/role": "agent",
        "kubernetes.io/hostname": lower.node,
        OWNER: world.owner.mark,
    }


def _annotations(lower: LowerWorld, world: World, taints: list[dict[str, str]], cordon: str) -> dict[str, str]:
    ours = {
        OWNER_NAME: world.owner.name,
        UPPER_UID: world.owner.upper,
        KUBELET_PORT: str(lower.spec.node.kubelet_port),
        TAINTS: ",".join(sorted(_identity(taint) for taint in taints)),
    }
    return {**lower.spec.node.annotations, **ours, **({CORDONED_BY: cordon} if cordon else {})}


def _cordon(lower: LowerWorld) -> str:
    """Say why the engine itself wants no new pods there, "" when it does want them."""
    if not lower.in_topology:
        return "not-in-topology"
    return "" if lower.spec.maintenance == "none" else f"maintenance-{lower.spec.maintenance}"


def _taints(lower: LowerWorld) -> list[dict[str, str]]:
    found = [
        {"key": taint.key, "value": taint.value, "effect": taint.effect}
        if taint.value
        else {"key": taint.key, "effect": taint.effect}
        for taint in lower.spec.node.taints
    ]
    if lower.silent > SILENT_AFTER:
        found.append({"key": UNREACHABLE_TAINT, "effect": "NoSchedule"})
    return found


def _others(seen: Manifest, ours: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Give the taints that somebody else put there: neither wanted by us now nor set by us before."""
    before = set(annotations(seen).get(TAINTS, "").split(","))
    known = before | {_identity(taint) for taint in ours}
    return [taint for taint in seen.get("spec", {}).get("taints") or () if _identity(taint) not in known]


def _identity(taint: dict[str, str]) -> str:
    return f"{taint['key']}:{taint['effect']}"


def _same_name(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    entry = delta.after or delta.before
    if entry is not None and entry.name == world.lowers[lower].node:
        yield key_of(world.lowers[lower])


def _node(world: World, lower: str, _delta: Delta) -> Iterator[Key]:
    yield key_of(world.lowers[lower])


def _leaving(world: World, lower: str, delta: Delta) -> Iterator[Key]:
    """A lower that left waits for its last pod."""
    if delta.after is None and not world.lowers[lower].in_topology:
        yield key_of(world.lowers[lower])
