"""Checks of what a node has left: resources, places for pods, and its own ports."""

from tensile.policy.placing.check import Prepared
from tensile.policy.placing.snapshot import HostPort, Node, Pod, Snapshot
from tensile.quantities import is_binary, render

PORTS_TAKEN = "node(s) didn't have free ports for the requested pod ports"
TOO_MANY = "Too many pods"
_ALL = "0.0.0.0"  # noqa: S104 - as the API writes all addresses


def fits(pod: Pod, _snapshot: Snapshot) -> Prepared:
    """Judge by requests: everything that is short is said, not only the first."""
    asked = tuple(pod.requests.items())

    def judge(node: Node) -> tuple[str, ...]:
        """Compare with what is left."""
        offered, used = node.allocatable.get, node.used.get
        if len(node.pods) < node.room:
            for name, amount in asked:
                if amount > offered(name, 0) - used(name, 0):
                    return _short(node, asked)
            return ()
        return _short(node, asked)

    return Prepared(judge, lambda node: _detail(node, asked))


def ports(pod: Pod, _snapshot: Snapshot) -> Prepared | None:
    """Judge by the node's ports that the pods on it have taken."""
    if not pod.ports:
        return None
    wanted, said = pod.ports, (PORTS_TAKEN,)
    return Prepared(lambda node: said if _taken(node, wanted) else (), lambda node: _who(node, wanted))


def _short(node: Node, asked: tuple[tuple[str, int], ...]) -> tuple[str, ...]:
    """Say everything that is short."""
    full = (TOO_MANY,) if len(node.pods) >= node.room else ()
    return (*full, *(f"Insufficient {name}" for name, amount in asked if amount > _left(node, name)))


def _left(node: Node, name: str) -> int:
    return node.allocatable.get(name, 0) - node.used.get(name, 0)


def _detail(node: Node, asked: tuple[tuple[str, int], ...]) -> str:
    """Say how much is asked and left of what is short."""
    said = [f"{node.room} pods are the most"] if len(node.pods) >= node.room else []
    said += [
        f"{name}: {_written(name, amount)} asked, {_written(name, _left(node, name))} of "
        f"{_written(name, node.allocatable.get(name, 0))} left"
        for name, amount in asked
        if amount > _left(node, name)
    ]
    return "; ".join(said)


def _written(name: str, amount: int) -> str:
    return render(max(amount, 0), binary=is_binary(name))


def _taken(node: Node, wanted: tuple[HostPort, ...]) -> Pod | None:
    """Give a pod on the node that has one of the ports."""
    for pod in node.pods.values():
        if pod.ports and any(collide(one, other) for one in pod.ports for other in wanted):
            return pod
    return None


def collide(one: HostPort, other: HostPort) -> bool:
    """Say whether two ports cannot be on one node: one that is on all addresses is on each."""
    if one.port != other.port or one.protocol != other.protocol:
        return False
    return one.address == other.address or _ALL in (one.address, other.address)


def _who(node: Node, wanted: tuple[HostPort, ...]) -> str:
    """Say who has the port."""
    pod = _taken(node, wanted)
    return f"taken by {pod.namespace}/{pod.name}" if pod else ""
