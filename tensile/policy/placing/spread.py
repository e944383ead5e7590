"""Check of topology spread constraints: no domain of nodes may have too many of a kind more than another."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tensile.objects import Manifest
from tensile.policy.placing.check import Prepared
from tensile.policy.placing.nodes import untolerated
from tensile.policy.placing.selectors import comparisons, is_empty, label_test, required_test, with_keys
from tensile.policy.placing.snapshot import Node, Pod, Snapshot

SKEWED = "node(s) didn't match pod topology spread constraints"
UNLABELLED = f"{SKEWED} (missing required label)"


class Constraint(NamedTuple):
    """One constraint, with what counts of the pods that are there: how many it allows in each domain."""

    key: str
    allowed: int
    """How many may be in the node's domain before the pod comes."""
    counts: dict[str, int]


def spread(pod: Pod, snapshot: Snapshot) -> Prepared | None:
    """Judge by how many of the pods that a constraint selects are in the node's domain, and in the emptiest one."""
    constraints: list[Manifest] = pod.spec.get("topologySpreadConstraints") or []
    hard = [one for one in constraints if one.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule"]
    if not hard:
        return None
    keys = {one["topologyKey"] for one in hard}
    labelled = [node for node in snapshot.nodes.values() if keys <= node.labels.keys()]
    own = {
        node.name: [one for one in node.pods.values() if one.namespace == pod.namespace and not one.ending]
        for node in labelled
    }
    found = [_constraint(one, pod, labelled, own) for one in hard]

    def judge(node: Node) -> tuple[str, ...]:
        """Compare with what each constraint allows, in turn."""
        for key, allowed, counts in found:
            if key not in node.labels:
                return (UNLABELLED,)
            if counts.get(node.labels[key], 0) > allowed:
                return (SKEWED,)
        return ()

    return Prepared(judge, lambda node: _detail(node, found))


def _constraint(constraint: Manifest, pod: Pod, labelled: list[Node], own: Mapping[str, list[Pod]]) -> Constraint:
    """Count what a constraint is about, on the nodes that it counts: some of those with the labels of all constraints.

    `own` are the pods of the namespace by node; one that is being deleted is as good as gone.
    """
    selector = with_keys(constraint.get("labelSelector"), pod.labels, constraint.get("matchLabelKeys") or ())
    test = label_test(selector)
    counts: dict[str, int] = {}
    for node in _eligible(constraint, pod, labelled):
        domain = node.labels[constraint["topologyKey"]]
        number = 0 if is_empty(selector) else sum(test(one.labels) for one in own[node.name])
        counts[domain] = counts.get(domain, 0) + number
    fewest = min(counts.values(), default=0)
    if len(counts) < (constraint.get("minDomains") or 1):
        fewest = 0
    return Constraint(constraint["topologyKey"], constraint["maxSkew"] + fewest - test(pod.labels), counts)


def _eligible(constraint: Manifest, pod: Pod, nodes: list[Node]) -> list[Node]:
    """Give the nodes that the pod could be on, as far as a constraint asks for that."""
    test = required_test(pod.spec)
    if test and constraint.get("nodeAffinityPolicy", "Honor") == "Honor":
        nodes = [node for node in nodes if test(node.name, node.labels)]
    if constraint.get("nodeTaintsPolicy", "Ignore") == "Honor":
        nodes = [node for node in nodes if not untolerated(pod, node.taints)]
    return nodes


def asked(pod: Pod) -> int:
    """Return how much a pod's constraints ask of another's labels."""
    constraints: list[Manifest] = pod.spec.get("topologySpreadConstraints") or []
    return sum(1 + comparisons(one.get("labelSelector")) for one in constraints)


def effort(pod: Pod, snapshot: Snapshot) -> int:
    """Return about how many comparisons it takes to count what a pod's constraints are about."""
    return asked(pod) * (len(snapshot.nodes) + snapshot.population[pod.namespace])


def _detail(node: Node, constraints: Sequence[Constraint]) -> str:
    """Say which constraint it is."""
    for key, allowed, counts in constraints:
        if key not in node.labels:
            return f"no label {key}"
        number = counts.get(node.labels[key], 0)
        if number > allowed:
            return f"{key}={node.labels[key]} has {number}, {max(allowed, 0)} are the most"
    return ""
