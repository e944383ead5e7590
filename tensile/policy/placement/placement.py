"""Where a pod fits in a cluster and why not elsewhere, as that cluster's kube-scheduler would say.

A virtual node is the sum of its lower nodes, so the upper scheduler sends it pods that no single lower node can hold.
The checks are those of kube-scheduler, in its order and with its messages, so that users can look them up. Preferences
are left out, because they never prevent a pod from running.

`is_curable` tells which refusals end once other pods are gone. kube-scheduler calls these Unschedulable and the others
UnschedulableAndUnresolvable, and preempts for the first only: no pod must go for a node that is cordoned, tainted, too
small or not selected.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tensile.policy.placement import checks, volume_checks
from tensile.policy.placement.snapshot import Check, Node, NoNodeFits, Pod, PreparedCheck, Snapshot

CHECKS = (
    Check("affinity", checks.named),
    Check("unschedulable", checks.unschedulable),
    Check("taints", checks.taints),
    Check("affinity", checks.selected),
    Check("ports", checks.ports),
    Check("resources", checks.fits),
    Check("volumes", volume_checks.restricted),
    Check("attach limits", volume_checks.limits),
    Check("volumes", volume_checks.volumes),
    Check("zones", volume_checks.zones),
    Check("spread", checks.spread),
    Check("pod affinity", checks.company),
)
"""In kube-scheduler's order: the first check that fails for a node is reported."""
_FEW = (50, 16, 16)
"""Requirements of a pod on nodes, in pod affinity and in topology spread that are accepted for clusters of any size.

Real pods have fewer; each label and each expression counts.
"""
_MOST = 25_000
"""Maximum of comparisons for a pod with more requirements: about ten milliseconds of blocking work."""
TOO_MUCH = "it has too many scheduling constraints to check"
_SHORT = "Insufficient "
_FOR_GOOD = frozenset(
    {
        checks.UNNAMED,
        checks.UNSCHEDULABLE,
        checks.UNTOLERATED,
        checks.UNSELECTED,
        volume_checks.UNBOUND,
        volume_checks.ELSEWHERE,
        volume_checks.UNBINDABLE,
        volume_checks.NO_SPACE,
        volume_checks.MISSING,
        volume_checks.CONFLICT,
        checks.UNLABELLED,
        checks.NOT_NEAR,
    }
)
"""Reasons that hold whatever pods leave the node."""


class NodeRefusal(NamedTuple):
    """Why a node does not fit: the name of the check, the scheduler's reasons, and details for a user."""

    check: str
    reasons: tuple[str, ...]
    detail: str = ""

    def __str__(self) -> str:
        told = ", ".join(self.reasons)
        return f"{told} ({self.detail})" if self.detail else told


@dataclass(frozen=True, slots=True)
class Placement:
    """The nodes that a pod fits on, and why the others do not; `nowhere` is why no node can fit, whatever its state."""

    fitting: tuple[str, ...]
    refused: Mapping[str, NodeRefusal]
    nowhere: NodeRefusal | None = None

    @property
    def fits(self) -> bool:
        """Whether a node fits."""
        return bool(self.fitting)

    @property
    def message(self) -> str:
        """Return how many nodes do not fit and why, in kube-scheduler's words."""
        total = len(self.fitting) + len(self.refused)
        if self.nowhere:
            return f"{len(self.fitting)}/{total} nodes are available: {', '.join(self.nowhere.reasons)}."
        return message(len(self.fitting), total, (one.reasons for one in self.refused.values()))


def message(fitting: int, total: int, refusals: Iterable[tuple[str, ...]]) -> str:
    """Return how many nodes fit, with a count for each reason of the others, in kube-scheduler's words."""
    counts = Counter(reason for reasons in refusals for reason in reasons)
    found = ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items()))
    return f"{fitting}/{total} nodes are available: {found}." if found else f"{fitting}/{total} nodes are available."


def asks_too_much(pod: Pod, snapshot: Snapshot) -> bool:
    """Report whether it would take too long to judge every node for a pod.

    Callers that answer for many pods leave such a pod to the scheduler, which must judge it anyway.
    """
    things = len(pod.requests) + len(pod.ports) + checks.asked(pod)
    rules = (things, checks.affinity_terms(pod), checks.spread_terms(pod))
    every = (
        things * len(snapshot.nodes),
        checks.affinity_cost(pod, snapshot),
        checks.spread_cost(pod, snapshot),
    )
    return any(asked > few and effort > _MOST for few, asked, effort in zip(_FEW, rules, every, strict=True))


def examine(pod: Pod, snapshot: Snapshot) -> Placement:
    """Judge every node for a pod."""
    prepared = prepare(pod, snapshot)
    if isinstance(prepared, NodeRefusal):
        return Placement((), dict.fromkeys(snapshot.nodes, prepared), prepared)
    fitting, refused = [], {}
    for node in snapshot.nodes.values():
        refusal = _judge(node, prepared)
        if refusal is None:
            fitting.append(node.name)
        else:
            refused[node.name] = refusal
    return Placement(tuple(fitting), refused)


def fitting(pod: Pod, snapshot: Snapshot) -> Iterator[Node]:
    """Yield the nodes that a pod fits on, lazily, for callers that need only the first."""
    prepared = prepare(pod, snapshot)
    if isinstance(prepared, NodeRefusal):
        return
    judges = [one.judge for _, one in prepared]
    for node in snapshot.nodes.values():
        for judge in judges:
            if judge(node):
                break
        else:
            yield node


def looked_at(pod: Pod, snapshot: Snapshot) -> frozenset[str]:
    """Return the names of the checks that apply to a pod."""
    prepared = prepare(pod, snapshot)
    return frozenset({prepared.check} if isinstance(prepared, NodeRefusal) else (name for name, _ in prepared))


def prepare(pod: Pod, snapshot: Snapshot) -> list[tuple[str, PreparedCheck]] | NodeRefusal:
    """Return the prepared checks that apply to a pod; a Refusal if no node can fit."""
    found = []
    for name, prepare in CHECKS:
        prepared = prepare(pod, snapshot)
        if isinstance(prepared, NoNodeFits):
            return NodeRefusal(name, (prepared.reason,))
        if prepared is not None:
            found.append((name, prepared))
    return found


def _judge(node: Node, prepared: list[tuple[str, PreparedCheck]]) -> NodeRefusal | None:
    for name, (judge, detail) in prepared:
        reasons = judge(node)
        if reasons:
            return NodeRefusal(name, reasons, detail(node))
    return None


def is_curable(pod: Pod, node: Node, reasons: tuple[str, ...]) -> bool:
    """Report whether a node that was refused for these reasons may fit once other pods are gone.

    Not if an empty node would still have less of a resource than the pod requests.
    """
    if not _FOR_GOOD.isdisjoint(reasons):
        return False
    short = (reason.removeprefix(_SHORT) for reason in reasons if reason.startswith(_SHORT))
    return all(pod.requests.get(name, 0) <= node.allocatable.get(name, 0) for name in short)
