"""Checks of single nodes: name, cordon, taints, labels, resources, pod slots and host ports."""

from tensile.objects import Manifest, tolerates
from tensile.policy.placement.selectors import only_nodes, required_terms, required_test
from tensile.policy.placement.snapshot import HostPort, Node, NodeTaint, Pod, PreparedCheck, Snapshot, failing
from tensile.resources import is_binary, render

_CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
UNSCHEDULABLE = "node(s) were unschedulable"
UNTOLERATED = "node(s) had untolerated taint(s)"
UNSELECTED = "node(s) didn't match Pod's node affinity/selector"
UNNAMED = "node(s) didn't satisfy plugin(s) [NodeAffinity]"
"""If every term of the affinity names nodes, the scheduler considers only these."""
PORTS_TAKEN = "node(s) didn't have free ports for the requested pod ports"
TOO_MANY = "Too many pods"
_ALL = "0.0.0.0"  # noqa: S104 - as the API writes all addresses


def named(pod: Pod, snapshot: Snapshot) -> PreparedCheck | None:
    """Check the node's name, if the pod's affinity names its nodes."""
    only = only_nodes(required_terms(pod.spec))
    return None if only is None else failing(UNNAMED, *(snapshot.nodes.keys() - only))


def unschedulable(pod: Pod, snapshot: Snapshot) -> PreparedCheck | None:
    """Check that the node is not cordoned."""
    cordoned = [node.name for node in snapshot.nodes.values() if node.unschedulable]
    if not cordoned or any(tolerates(one, _CORDON) for one in _tolerations(pod)):
        return None
    return failing(UNSCHEDULABLE, *cordoned)


def taints(pod: Pod, snapshot: Snapshot) -> PreparedCheck | None:
    """Check that the pod tolerates all taints that repel pods."""
    kinds = {node.taints for node in snapshot.nodes.values() if node.taints}
    found = {kind: taint for kind in kinds if (taint := untolerated(pod, kind))}
    if not found:
        return None
    said = (UNTOLERATED,)
    return PreparedCheck(lambda node: said if node.taints in found else (), lambda node: f"taint {found[node.taints]}")


def untolerated(pod: Pod, kind: tuple[NodeTaint, ...]) -> NodeTaint | None:
    """Return the first of a node's taints that the pod does not tolerate."""
    tolerations = _tolerations(pod)
    return next((one for one in kind if not any(tolerates(other, one._asdict()) for other in tolerations)), None)


def selected(pod: Pod, _snapshot: Snapshot) -> PreparedCheck | None:
    """Check the pod's nodeSelector and required node affinity."""
    test = required_test(pod.spec)
    if test is None:
        return None
    said, wanted = (UNSELECTED,), pod.spec.get("nodeSelector") or {}

    def detail(node: Node) -> str:
        """Return the labels of the nodeSelector that the node lacks."""
        return ", ".join(f"missing label {key}={text}" for key, text in wanted.items() if node.labels.get(key) != text)

    return PreparedCheck(lambda node: () if test(node.name, node.labels) else said, detail)


def asked(pod: Pod) -> int:
    """Return the number of a pod's selector labels, tolerations, affinity terms and expressions."""
    selector: Manifest = pod.spec.get("nodeSelector") or {}
    terms = required_terms(pod.spec) or ()
    expressions = sum(len(term.get(field) or ()) for term in terms for field in ("matchExpressions", "matchFields"))
    return len(selector) + len(_tolerations(pod)) + len(terms) + expressions


def _tolerations(pod: Pod) -> list[Manifest]:
    found: list[Manifest] = pod.spec.get("tolerations") or []
    return found


def fits(pod: Pod, _snapshot: Snapshot) -> PreparedCheck:
    """Check the requests; all insufficient resources are reported, not only the first."""
    asked = tuple(pod.requests.items())

    def judge(node: Node) -> tuple[str, ...]:
        """Compare the requests with the free resources."""
        offered, used = node.allocatable.get, node.used.get
        if len(node.pods) < node.room:
            for name, amount in asked:
                if amount > offered(name, 0) - used(name, 0):
                    return _short(node, asked)
            return ()
        return _short(node, asked)

    return PreparedCheck(judge, lambda node: _detail(node, asked))


def ports(pod: Pod, _snapshot: Snapshot) -> PreparedCheck | None:
    """Check that the pod's host ports are free."""
    if not pod.ports:
        return None
    wanted, said = pod.ports, (PORTS_TAKEN,)
    return PreparedCheck(lambda node: said if _taken(node, wanted) else (), lambda node: _who(node, wanted))


def _short(node: Node, asked: tuple[tuple[str, int], ...]) -> tuple[str, ...]:
    """Return the reason for each insufficient resource."""
    full = (TOO_MANY,) if len(node.pods) >= node.room else ()
    return (*full, *(f"Insufficient {name}" for name, amount in asked if amount > free(node, name)))


def free(node: Node, name: str) -> int:
    """Return how much of a resource the pods on a node leave, in milli-units."""
    return node.allocatable.get(name, 0) - node.used.get(name, 0)


def _detail(node: Node, asked: tuple[tuple[str, int], ...]) -> str:
    """Return what is requested and what is left of each insufficient resource."""
    said = [f"at most {node.room} pods"] if len(node.pods) >= node.room else []
    said += [
        f"{name}: requested {_written(name, amount)}, free {_written(name, free(node, name))} of "
        f"{_written(name, node.allocatable.get(name, 0))}"
        for name, amount in asked
        if amount > free(node, name)
    ]
    return "; ".join(said)


def _written(name: str, amount: int) -> str:
    return render(max(amount, 0), binary=is_binary(name))


def _taken(node: Node, wanted: tuple[HostPort, ...]) -> Pod | None:
    """Return a pod on the node that has one of the ports."""
    for pod in node.pods.values():
        if pod.ports and any(collide(one, other) for one in pod.ports for other in wanted):
            return pod
    return None


def collide(one: HostPort, other: HostPort) -> bool:
    """Report whether two ports conflict on one node; one on all addresses conflicts with each address."""
    if one.port != other.port or one.protocol != other.protocol:
        return False
    return one.address == other.address or _ALL in (one.address, other.address)


def _who(node: Node, wanted: tuple[HostPort, ...]) -> str:
    """Return the text that names the pod that has the port."""
    pod = _taken(node, wanted)
    return f"used by {pod.namespace}/{pod.name}" if pod else ""
