"""Where a pod fits in a lower cluster, and why it does not elsewhere, as that cluster's own kube-scheduler would say.

The virtual node sums over all nodes, so the upper scheduler sends it pods that no single node below can hold. These
checks are those of the kube-scheduler, in its order and in its words: what a user reads here they can look up.
Preferences are left out, since they never keep a pod from running.

Which refusals of a node end once other pods have gone, as the plugins of the kube-scheduler tell them apart.

It says Unschedulable of those and UnschedulableAndUnresolvable of the others, and preempts for the first alone: no pod
has to go for the sake of a node that is cordoned, tainted, too small, or not one of those that are selected.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tensile.policy.placement import node_checks, pod_checks, volume_checks
from tensile.policy.placement import node_checks as resources
from tensile.policy.placement import pod_checks as spread
from tensile.policy.placement import volume_checks as volumes
from tensile.policy.placement import volume_checks as zones
from tensile.policy.placement.snapshot import Check, Node, Nowhere, Pod, Prepared, Snapshot

CHECKS = (
    Check("affinity", node_checks.named),
    Check("unschedulable", node_checks.unschedulable),
    Check("taints", node_checks.taints),
    Check("affinity", node_checks.selected),
    Check("ports", resources.ports),
    Check("resources", resources.fits),
    Check("volumes", volume_checks.restricted),
    Check("attach limits", volume_checks.limits),
    Check("volumes", volumes.volumes),
    Check("zones", zones.zones),
    Check("spread", spread.spread),
    Check("pod affinity", pod_checks.company),
)
"""In the kube-scheduler's order: the first check that fails for a node is the one that is told."""


_FEW = (50, 16, 16)
"""What a pod may ask of nodes, of its company, and of its spread, however many nodes and pods that is compared with.

It is more than pods are seen to ask; each label and each expression counts.
"""
_MOST = 25_000
"""Comparisons that are made of what is more than that: some ten milliseconds, in which nothing else is done."""
TOO_MUCH = "it asks for more than is compared with nodes and pods here"


class Refusal(NamedTuple):
    """Why a node does not do: the name of the check, the scheduler's reasons, and what a person would ask next."""

    check: str
    reasons: tuple[str, ...]
    detail: str = ""

    def __str__(self) -> str:
        told = ", ".join(self.reasons)
        return f"{told} ({self.detail})" if self.detail else told


@dataclass(frozen=True, slots=True)
class Placement:
    """The nodes that a pod fits on, and why the others do not do; `nowhere` is why none can, whatever it is like."""

    fitting: tuple[str, ...]
    refused: Mapping[str, Refusal]
    nowhere: Refusal | None = None

    @property
    def fits(self) -> bool:
        """Whether there is a node for it."""
        return bool(self.fitting)

    @property
    def message(self) -> str:
        """Return how many nodes do not do, and why, as the kube-scheduler says it."""
        total = len(self.fitting) + len(self.refused)
        if self.nowhere:
            return f"{len(self.fitting)}/{total} nodes are available: {', '.join(self.nowhere.reasons)}."
        return message(len(self.fitting), total, (one.reasons for one in self.refused.values()))


def message(fitting: int, total: int, refusals: Iterable[tuple[str, ...]]) -> str:
    """Return how many nodes do, and count why the others do not, as the kube-scheduler says it."""
    counts = Counter(reason for reasons in refusals for reason in reasons)
    found = ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items()))
    return f"{fitting}/{total} nodes are available: {found}." if found else f"{fitting}/{total} nodes are available."


def asks_too_much(pod: Pod, snapshot: Snapshot) -> bool:
    """Report whether it would take long to judge every node for a pod.

    Who answers for many pods leaves such a one to the scheduler that has to judge it anyway.
    """
    things = len(pod.requests) + len(pod.ports) + node_checks.asked(pod)
    rules = (things, pod_checks.affinity_terms(pod), spread.spread_terms(pod))
    every = (things * len(snapshot.nodes), pod_checks.affinity_cost(pod, snapshot), spread.spread_cost(pod, snapshot))
    return any(asked > few and effort > _MOST for few, asked, effort in zip(_FEW, rules, every, strict=True))


def examine(pod: Pod, snapshot: Snapshot) -> Placement:
    """Judge every node for a pod."""
    prepared = prepare(pod, snapshot)
    if isinstance(prepared, Refusal):
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
    """Yield the nodes that a pod fits on, one by one: whoever needs only the first stops there."""
    prepared = prepare(pod, snapshot)
    if isinstance(prepared, Refusal):
        return
    judges = [one.judge for _, one in prepared]
    for node in snapshot.nodes.values():
        for judge in judges:
            if judge(node):
                break
        else:
            yield node


def looked_at(pod: Pod, snapshot: Snapshot) -> frozenset[str]:
    """Name the checks that have something to judge for a pod."""
    prepared = prepare(pod, snapshot)
    return frozenset({prepared.check} if isinstance(prepared, Refusal) else (name for name, _ in prepared))


def prepare(pod: Pod, snapshot: Snapshot) -> list[tuple[str, Prepared]] | Refusal:
    """Prepare the checks that the pod asks for; a Refusal where no node would do."""
    found = []
    for name, prepare in CHECKS:
        prepared = prepare(pod, snapshot)
        if isinstance(prepared, Nowhere):
            return Refusal(name, (prepared.reason,))
        if prepared is not None:
            found.append((name, prepared))
    return found


def _judge(node: Node, prepared: list[tuple[str, Prepared]]) -> Refusal | None:
    for name, (judge, detail) in prepared:
        reasons = judge(node)
        if reasons:
            return Refusal(name, reasons, detail(node))
    return None


_SHORT = "Insufficient "
_FOR_GOOD = frozenset(
    {
        node_checks.UNNAMED,
        node_checks.UNSCHEDULABLE,
        node_checks.UNTOLERATED,
        node_checks.UNSELECTED,
        volume_checks.UNBOUND,
        volumes.ELSEWHERE,
        volumes.UNBINDABLE,
        volumes.NO_SPACE,
        volumes.MISSING,
        zones.CONFLICT,
        spread.UNLABELLED,
        pod_checks.NOT_NEAR,
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
