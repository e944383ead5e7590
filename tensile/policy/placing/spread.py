"""Check of topology spread constraints: no domain of nodes may have too many of a kind more than another."""

from collections.abc import Sequence
from typing import NamedTuple

from tensile.objects import Manifest
from tensile.policy.placing.check import Prepared
from tensile.policy.placing.nodes import untolerated
from tensile.policy.placing.selectors import Test, is_empty, label_test, required_test, with_keys
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
    keys = [one["topologyKey"] for one in hard]
    found = [_constraint(one, keys, pod, snapshot) for one in hard]

    def judge(node: Node) -> tuple[str, ...]:
        """Compare with what each constraint allows, in turn."""
        for key, allowed, counts in found:
            if key not in node.labels:
                return (UNLABELLED,)
            if counts.get(node.labels[key], 0) > allowed:
                return (SKEWED,)
        return ()

    return Prepared(judge, lambda node: _detail(node, found))


def _constraint(constraint: Manifest, keys: Sequence[str], pod: Pod, snapshot: Snapshot) -> Constraint:
    """Count what a constraint is about, on the nodes that it counts."""
    selector = with_keys(constraint.get("labelSelector"), pod.labels, constraint.get("matchLabelKeys") or ())
    test = label_test(selector)
    counts: dict[str, int] = {}
    for node in _eligible(constraint, keys, pod, snapshot):
        domain = node.labels[constraint["topologyKey"]]
        number = 0 if is_empty(selector) else _count(node, test, pod.namespace)
        counts[domain] = counts.get(domain, 0) + number
    fewest = min(counts.values(), default=0)
    if len(counts) < (constraint.get("minDomains") or 1):
        fewest = 0
    return Constraint(constraint["topologyKey"], constraint["maxSkew"] + fewest - test(pod.labels), counts)


def _eligible(constraint: Manifest, keys: Sequence[str], pod: Pod, snapshot: Snapshot) -> list[Node]:
    """Give the nodes that count: with the labels of all constraints, and those that the pod could be on, as asked."""
    nodes = [node for node in snapshot.nodes.values() if all(key in node.labels for key in keys)]
    test = required_test(pod.spec)
    if test and constraint.get("nodeAffinityPolicy", "Honor") == "Honor":
        nodes = [node for node in nodes if test(node.name, node.labels)]
    if constraint.get("nodeTaintsPolicy", "Ignore") == "Honor":
        nodes = [node for node in nodes if not untolerated(pod, node.taints)]
    return nodes


def _count(node: Node, test: Test, namespace: str) -> int:
    """Count the selected pods of a namespace on a node; one that is being deleted is as good as gone."""
    return sum(not one.ending and one.namespace == namespace and test(one.labels) for one in node.pods.values())


def _detail(node: Node, constraints: Sequence[Constraint]) -> str:
    """Say which constraint it is."""
    for key, allowed, counts in constraints:
        if key not in node.labels:
            return f"no label {key}"
        number = counts.get(node.labels[key], 0)
        if number > allowed:
            return f"{key}={node.labels[key]} has {number}, {max(allowed, 0)} are the most"
    return ""
