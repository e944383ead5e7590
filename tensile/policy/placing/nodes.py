"""Checks of what a node is: cordoned, tainted, or not one of those that the pod selects."""

from tensile.objects import Manifest
from tensile.policy.placing.check import Prepared, failing
from tensile.policy.placing.selectors import only_nodes, required_terms, required_test
from tensile.policy.placing.snapshot import Node, Pod, Snapshot, Taint
from tensile.taints import tolerates

_CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
UNSCHEDULABLE = "node(s) were unschedulable"
UNTOLERATED = "node(s) had untolerated taint(s)"
UNSELECTED = "node(s) didn't match Pod's node affinity/selector"
UNNAMED = "node(s) didn't satisfy plugin(s) [NodeAffinity]"
"""Where every term names nodes, the scheduler looks at no other one."""


def named(pod: Pod, snapshot: Snapshot) -> Prepared | None:
    """Judge by name where the pod's affinity names its nodes."""
    only = only_nodes(required_terms(pod.spec))
    return None if only is None else failing(UNNAMED, *(snapshot.nodes.keys() - only))


def unschedulable(pod: Pod, snapshot: Snapshot) -> Prepared | None:
    """Judge cordoned nodes."""
    cordoned = [node.name for node in snapshot.nodes.values() if node.unschedulable]
    if not cordoned or any(tolerates(one, _CORDON) for one in _tolerations(pod)):
        return None
    return failing(UNSCHEDULABLE, *cordoned)


def taints(pod: Pod, snapshot: Snapshot) -> Prepared | None:
    """Judge by taints: each that keeps pods off has to be tolerated."""
    kinds = {node.taints for node in snapshot.nodes.values() if node.taints}
    found = {kind: taint for kind in kinds if (taint := untolerated(pod, kind))}
    if not found:
        return None
    said = (UNTOLERATED,)
    return Prepared(lambda node: said if node.taints in found else (), lambda node: f"taint {found[node.taints]}")


def untolerated(pod: Pod, kind: tuple[Taint, ...]) -> Taint | None:
    """Give the first of a node's taints that the pod does not tolerate."""
    tolerations = _tolerations(pod)
    return next((one for one in kind if not any(tolerates(other, one._asdict()) for other in tolerations)), None)


def selected(pod: Pod, _snapshot: Snapshot) -> Prepared | None:
    """Judge by the pod's nodeSelector and required node affinity."""
    test = required_test(pod.spec)
    if test is None:
        return None
    said, wanted = (UNSELECTED,), pod.spec.get("nodeSelector") or {}

    def detail(node: Node) -> str:
        """Name the labels that the nodeSelector misses."""
        return ", ".join(f"no {key}={text}" for key, text in wanted.items() if node.labels.get(key) != text)

    return Prepared(lambda node: () if test(node.name, node.labels) else said, detail)


def asked(pod: Pod) -> int:
    """Return how much a pod asks of what a node is."""
    selector: Manifest = pod.spec.get("nodeSelector") or {}
    terms = required_terms(pod.spec) or ()
    expressions = sum(len(term.get(field) or ()) for term in terms for field in ("matchExpressions", "matchFields"))
    return len(selector) + len(_tolerations(pod)) + len(terms) + expressions


def _tolerations(pod: Pod) -> list[Manifest]:
    found: list[Manifest] = pod.spec.get("tolerations") or []
    return found
