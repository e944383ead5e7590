"""Which refusals of a node end once other pods have gone, as the plugins of the kube-scheduler tell them apart.

It says Unschedulable of those and UnschedulableAndUnresolvable of the others, and preempts for the first alone: no pod
has to go for the sake of a node that is cordoned, tainted, too small, or not one of those that are selected.
"""

from tensile.policy.placing import claims, company, nodes, spread, volumes, zones
from tensile.policy.placing.snapshot import Node, Pod

_SHORT = "Insufficient "
_FOR_GOOD = frozenset(
    {
        nodes.UNNAMED,
        nodes.UNSCHEDULABLE,
        nodes.UNTOLERATED,
        nodes.UNSELECTED,
        claims.UNBOUND,
        volumes.ELSEWHERE,
        volumes.UNBINDABLE,
        volumes.NO_SPACE,
        volumes.MISSING,
        zones.CONFLICT,
        spread.UNLABELLED,
        company.NOT_NEAR,
    }
)
"""Reasons that stand whatever pods leave the node."""


def is_curable(pod: Pod, node: Node, reasons: tuple[str, ...]) -> bool:
    """Report whether a node that does not do for these reasons may do once other pods have gone.

    A resource of which the node has less than the pod asks for, were it empty, is as good as a wrong node.
    """
    if not _FOR_GOOD.isdisjoint(reasons):
        return False
    short = (reason.removeprefix(_SHORT) for reason in reasons if reason.startswith(_SHORT))
    return all(pod.requests.get(name, 0) <= node.allocatable.get(name, 0) for name in short)
