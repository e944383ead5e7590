"""Where a pod fits in a cluster and why not elsewhere, as its kube-scheduler would say; and how many like it fit.

A virtual node is the sum of its lower nodes, so the upper scheduler sends it pods that no single lower node can hold.
The checks are those of kube-scheduler, in its order and with its messages, so that users can look them up. Preferences
are left out, because they never prevent a pod from running.

`is_curable` tells which refusals end once other pods are gone. kube-scheduler calls these Unschedulable and the others
UnschedulableAndUnresolvable, and preempts for the first only: no pod must go for a node that is cordoned, tainted, too
small or not selected.

For many pods that are alike: if nodes do not depend on each other, the number for each node is computed. Otherwise, as
with topology spread, pods are placed one by one on the node with most room, as kube-scheduler spreads pods without
other preferences. A pod must fit twice: on the virtual node in the upper cluster, and on a node in the lower cluster.
Pod affinity and anti-affinity count in both. Pods that share no host have one pod per virtual node, because that is one
host.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from tensile.policy.placement import checks, volume_checks
from tensile.policy.placement.checks import free
from tensile.policy.placement.snapshot import Check, Node, NoNodeFits, Pod, PreparedCheck, Snapshot

CHECKS = (
    Check("affinity", checks.named),
    Check("unschedulable", checks.unschedulable),
    Check("taints", checks.taints),
    Check("affinity", checks.selected),
    Check("ports", checks.ports),
    Check("resources", checks.resources),
    Check("volumes", volume_checks.restricted),
    Check("attach limits", volume_checks.limits),
    Check("volumes", volume_checks.volumes),
    Check("zones", volume_checks.zones),
    Check("spread", checks.spread),
    Check("pod affinity", checks.inter_pod_affinity),
)
"""In kube-scheduler's order: the first check that fails for a node is reported."""
_ALWAYS_ACCEPTED = (50, 16, 16)
"""Requirements of a pod on nodes, in pod affinity and in topology spread that are accepted for clusters of any size.

Real pods have fewer; each label and each expression counts.
"""
_MAX_COMPARISONS = 25_000
"""Maximum of comparisons for a pod with more requirements: about ten milliseconds of blocking work."""
TOO_COMPLEX = "it has too many scheduling constraints to check"
_SHORT = "Insufficient "
_UNRESOLVABLE = frozenset(
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
MOST = 1_000
"""Maximum of pods placed one by one if no number is given."""
NODE_LOCAL = frozenset({"affinity", "unschedulable", "taints", "ports", "resources"})
"""Checks that depend only on the node itself."""
_VIRTUAL_NODE_FULL = "its virtual node has no free capacity"


class NodeRefusal(NamedTuple):
    """Why a node does not fit: the name of the check, the scheduler's reasons, and details for a user."""

    check: str
    reasons: tuple[str, ...]
    detail: str = ""

    def __str__(self) -> str:
        reasons = ", ".join(self.reasons)
        return f"{reasons} ({self.detail})" if self.detail else reasons


@dataclass(frozen=True, slots=True)
class FitResult:
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


def is_too_complex(pod: Pod, snapshot: Snapshot) -> bool:
    """Report whether it would take too long to judge every node for a pod.

    Callers that answer for many pods leave such a pod to the scheduler, which must judge it anyway.
    """
    node_constraints = len(pod.requests) + len(pod.ports) + checks.constraint_count(pod)
    counts = (node_constraints, checks.affinity_terms(pod), checks.spread_terms(pod))
    efforts = (
        node_constraints * len(snapshot.nodes),
        checks.affinity_cost(pod, snapshot),
        checks.spread_cost(pod, snapshot),
    )
    return any(
        number > accepted and effort > _MAX_COMPARISONS
        for accepted, number, effort in zip(_ALWAYS_ACCEPTED, counts, efforts, strict=True)
    )


def examine(pod: Pod, snapshot: Snapshot) -> FitResult:
    """Judge every node for a pod."""
    prepared = prepare(pod, snapshot)
    if isinstance(prepared, NodeRefusal):
        return FitResult((), dict.fromkeys(snapshot.nodes, prepared), prepared)
    fitting, refused = [], {}
    for node in snapshot.nodes.values():
        refusal = _judge(node, prepared)
        if refusal is None:
            fitting.append(node.name)
        else:
            refused[node.name] = refusal
    return FitResult(tuple(fitting), refused)


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


def applied_checks(pod: Pod, snapshot: Snapshot) -> frozenset[str]:
    """Return the names of the checks that apply to a pod."""
    prepared = prepare(pod, snapshot)
    return frozenset({prepared.check} if isinstance(prepared, NodeRefusal) else (name for name, _ in prepared))


def prepare(pod: Pod, snapshot: Snapshot) -> list[tuple[str, PreparedCheck]] | NodeRefusal:
    """Return the prepared checks that apply to a pod; a NodeRefusal if no node can fit."""
    found = []
    for name, prepare_check in CHECKS:
        prepared = prepare_check(pod, snapshot)
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
    if not _UNRESOLVABLE.isdisjoint(reasons):
        return False
    short_resources = (reason.removeprefix(_SHORT) for reason in reasons if reason.startswith(_SHORT))
    return all(pod.requests.get(name, 0) <= node.allocatable.get(name, 0) for name in short_resources)


class Estimate(NamedTuple):
    """How many pods each node took, whether there may be room for more, and the result for the next pod."""

    counts: dict[str, int]
    more: bool
    next_result: FitResult

    @property
    def total(self) -> int:
        """How many pods fit."""
        return sum(self.counts.values())


class ClusterSpace(NamedTuple):
    """One lower cluster: its virtual node's name, the pod in its lower form, and the cluster's snapshot."""

    node: str
    pod: Pod
    snapshot: Snapshot


class ClusterShare(NamedTuple):
    """What one lower cluster takes: the number by node, whether there may be room for more, and why there is not."""

    counts: Mapping[str, int]
    more: bool
    refusal: str


def fill(pod: Pod, snapshot: Snapshot, most: int | None = None, steps: int = MOST) -> Estimate:
    """Put as many pods like this one into a snapshot as it takes; the snapshot is changed.

    At most `most`, if given, and at most `steps` if they must be placed one by one.
    """
    is_node_local = applied_checks(pod, snapshot) <= NODE_LOCAL
    bound = steps if most is None else min(most, steps)
    counts = _fill_by_count(pod, snapshot, most) if is_node_local else _one_by_one(pod, snapshot, bound)
    next_result = examine(replica(pod, sum(counts.values())), snapshot)
    return Estimate(dict(counts), next_result.fits, next_result)


def replica(pod: Pod, number: int) -> Pod:
    """Return another pod like this one, with its own name."""
    return replace(pod, name=replica_name(pod.name, number))


def replica_name(name: str, number: int) -> str:
    """Return a name that no pod of a cluster can have, so that a simulated pod never takes the place of a real one."""
    return f"{name}#{number}"


def put(pod: Pod, snapshot: Snapshot) -> str:
    """Place one pod on the node with most room; return the node's name, "" if it fits on none."""
    node = next(iter(roomiest(pod, snapshot)), None)
    if node is None:
        return ""
    snapshot.add(pod, node.name)
    return node.name


def roomiest(pod: Pod, snapshot: Snapshot) -> list[Node]:
    """Return the nodes that a pod fits on, those with most room first."""
    return sorted(fitting(pod, snapshot), key=lambda one: _left(one, pod), reverse=True)


def _one_by_one(pod: Pod, snapshot: Snapshot, most: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    for number in range(most):
        node = put(replica(pod, number), snapshot)
        if not node:
            break
        counts[node] += 1
    return counts


def _fill_by_count(pod: Pod, snapshot: Snapshot, most: int | None) -> Counter[str]:
    """Compute the number for each node, and place that many pods."""
    counts: Counter[str] = Counter()
    for node in list(fitting(pod, snapshot)):
        wanted = capacity_for(node, pod)
        if most is not None:
            wanted = min(wanted, most - counts.total())
        for _ in range(wanted):
            snapshot.add(replica(pod, counts.total()), node.name)
            counts[node.name] += 1
    return counts


def capacity_for(node: Node, pod: Pod) -> int:
    """Return how many such pods a node has room for, if it takes one: by resources, pod slots and host ports."""
    if pod.ports:
        return 1
    left = (free(node, name) // amount for name, amount in pod.requests.items())
    return min(node.pod_slots - len(node.pods), *left) if pod.requests else node.pod_slots - len(node.pods)


def _left(node: Node, pod: Pod) -> tuple[float, int]:
    """Return the free share of a node's scarcest resource, and for equal shares the fewer pods."""
    names = [name for name in (*pod.requests, "cpu", "memory") if node.allocatable.get(name)]
    return min((free(node, name) / node.allocatable[name] for name in names), default=1.0), -len(node.pods)


def fill_clusters(pod: Pod, upper: Snapshot, places: Mapping[str, ClusterSpace], steps: int) -> dict[str, ClusterShare]:
    """Put as many pods like this one into the lower clusters as they take; at most `steps` one by one.

    The snapshots are changed.
    """
    is_node_local = applied_checks(pod, upper) <= NODE_LOCAL
    if is_node_local and all(applied_checks(place.pod, place.snapshot) <= NODE_LOCAL for place in places.values()):
        upper_placement = examine(pod, upper)
        return {name: _fill_cluster(pod, place, upper, upper_placement) for name, place in places.items()}
    return _fill_one_by_one(pod, upper, places, steps)


def _fill_cluster(pod: Pod, cluster: ClusterSpace, upper: Snapshot, upper_placement: FitResult) -> ClusterShare:
    """Fill one lower cluster, up to what its virtual node offers."""
    if cluster.node not in upper_placement.fitting:
        return ClusterShare({}, more=False, refusal=_upper_refusal_message(cluster.node, upper_placement))
    most = capacity_for(upper.nodes[cluster.node], pod)
    found = fill(cluster.pod, cluster.snapshot, most)
    return ClusterShare(
        found.counts, more=False, refusal=_VIRTUAL_NODE_FULL if found.more else found.next_result.message
    )


def _fill_one_by_one(
    pod: Pod, upper: Snapshot, places: Mapping[str, ClusterSpace], steps: int
) -> dict[str, ClusterShare]:
    """Place pods one by one, each on the virtual node with most room that has a fitting lower node."""
    counts: dict[str, Counter[str]] = {name: Counter() for name in places}
    total = 0
    while total < steps and _place_one_more(pod, total, upper, places, counts):
        total += 1
    upper_placement = examine(replica(pod, total), upper)
    more = total == steps
    return {
        name: ClusterShare(counts[name], more, "" if more else _refusal_message(place, upper_placement, total))
        for name, place in places.items()
    }


def _place_one_more(
    pod: Pod, number: int, upper: Snapshot, places: Mapping[str, ClusterSpace], counts: Mapping[str, Counter[str]]
) -> bool:
    """Place one more pod; report whether it fits."""
    cluster_by_node = {place.node: name for name, place in places.items()}
    wanted = replica(pod, number)
    for node in roomiest(wanted, upper):
        name = cluster_by_node.get(node.name)
        found = put(replica(places[name].pod, number), places[name].snapshot) if name else ""
        if name and found:
            upper.add(wanted, node.name)
            counts[name][found] += 1
            return True
    return False


def _refusal_message(cluster: ClusterSpace, upper_placement: FitResult, number: int) -> str:
    """Return why a lower cluster takes no more pods; the reasons of its own nodes come first."""
    lower_placement = examine(replica(cluster.pod, number), cluster.snapshot)
    return _upper_refusal_message(cluster.node, upper_placement) if lower_placement.fits else lower_placement.message


def _upper_refusal_message(node: str, upper_placement: FitResult) -> str:
    refusal = (
        upper_placement.nowhere
        or upper_placement.refused.get(node)
        or f"node {node} does not exist: check that the engine is running"
    )
    return f"the upper scheduler does not bind it there: {refusal}"
