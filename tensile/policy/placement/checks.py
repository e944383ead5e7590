"""Checks of a pod against single nodes and against other pods, as kube-scheduler's plugins make them.

Of nodes: name, cordon, taints, labels, resources, pod slots and host ports. Of other pods: inter-pod affinity and
anti-affinity, and topology spread constraints.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from tensile.objects import Manifest, tolerates
from tensile.policy.placement.selectors import (
    comparisons,
    is_empty,
    label_test,
    only_nodes,
    required_terms,
    required_test,
    with_keys,
)
from tensile.policy.placement.snapshot import (
    AffinityTerm,
    HostPort,
    Node,
    NodeTaint,
    Pod,
    PreparedCheck,
    Snapshot,
    failing,
)
from tensile.resources import is_binary, render

_CORDON = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
UNSCHEDULABLE = "node(s) were unschedulable"
UNTOLERATED = "node(s) had untolerated taint(s)"
UNSELECTED = "node(s) didn't match Pod's node affinity/selector"
UNNAMED = "node(s) didn't satisfy plugin(s) [NodeAffinity]"
"""If every term of the affinity names nodes, the scheduler considers only these."""
PORTS_TAKEN = "node(s) didn't have free ports for the requested pod ports"
TOO_MANY = "Too many pods"
_ALL_ADDRESSES = "0.0.0.0"  # noqa: S104 - as the API writes all addresses
NOT_NEAR = "node(s) didn't match pod affinity rules"
NOT_APART = "node(s) didn't match pod anti-affinity rules"
KEPT_AWAY = "node(s) didn't satisfy existing pods anti-affinity rules"
SKEWED = "node(s) didn't match pod topology spread constraints"
UNLABELLED = f"{SKEWED} (missing required label)"
_MAX_KINDS = 500
"""Maximum of kinds of pods per namespace whose anti-affinity is considered."""
Domain = tuple[str, str]
"""A label key of nodes and its value."""


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
    reasons = (UNTOLERATED,)
    return PreparedCheck(
        lambda node: reasons if node.taints in found else (), lambda node: f"taint {found[node.taints]}"
    )


def untolerated(pod: Pod, kind: tuple[NodeTaint, ...]) -> NodeTaint | None:
    """Return the first of a node's taints that the pod does not tolerate."""
    tolerations = _tolerations(pod)
    return next((one for one in kind if not any(tolerates(other, one._asdict()) for other in tolerations)), None)


def selected(pod: Pod, _snapshot: Snapshot) -> PreparedCheck | None:
    """Check the pod's nodeSelector and required node affinity."""
    test = required_test(pod.spec)
    if test is None:
        return None
    reasons, wanted = (UNSELECTED,), pod.spec.get("nodeSelector") or {}

    def detail(node: Node) -> str:
        """Return the labels of the nodeSelector that the node lacks."""
        return ", ".join(f"missing label {key}={text}" for key, text in wanted.items() if node.labels.get(key) != text)

    return PreparedCheck(lambda node: () if test(node.name, node.labels) else reasons, detail)


def constraint_count(pod: Pod) -> int:
    """Return the number of a pod's selector labels, tolerations, affinity terms and expressions."""
    selector: Manifest = pod.spec.get("nodeSelector") or {}
    terms = required_terms(pod.spec) or ()
    expressions = sum(len(term.get(field) or ()) for term in terms for field in ("matchExpressions", "matchFields"))
    return len(selector) + len(_tolerations(pod)) + len(terms) + expressions


def _tolerations(pod: Pod) -> list[Manifest]:
    found: list[Manifest] = pod.spec.get("tolerations") or []
    return found


def resources(pod: Pod, _snapshot: Snapshot) -> PreparedCheck:
    """Check the requests; all insufficient resources are reported, not only the first."""
    requests = tuple(pod.requests.items())

    def judge(node: Node) -> tuple[str, ...]:
        """Compare the requests with the free resources."""
        offered, used = node.allocatable.get, node.used.get
        if len(node.pods) < node.pod_slots:
            for name, amount in requests:
                if amount > offered(name, 0) - used(name, 0):
                    return _shortages(node, requests)
            return ()
        return _shortages(node, requests)

    return PreparedCheck(judge, lambda node: _detail(node, requests))


def ports(pod: Pod, _snapshot: Snapshot) -> PreparedCheck | None:
    """Check that the pod's host ports are free."""
    if not pod.ports:
        return None
    wanted, reasons = pod.ports, (PORTS_TAKEN,)
    return PreparedCheck(
        lambda node: reasons if _port_holder(node, wanted) else (), lambda node: _port_holder_text(node, wanted)
    )


def _shortages(node: Node, requests: tuple[tuple[str, int], ...]) -> tuple[str, ...]:
    """Return the reason for each insufficient resource."""
    full = (TOO_MANY,) if len(node.pods) >= node.pod_slots else ()
    return (*full, *(f"Insufficient {name}" for name, amount in requests if amount > free(node, name)))


def free(node: Node, name: str) -> int:
    """Return how much of a resource the pods on a node leave, in milli-units."""
    return node.allocatable.get(name, 0) - node.used.get(name, 0)


def _detail(node: Node, requests: tuple[tuple[str, int], ...]) -> str:
    """Return what is requested and what is left of each insufficient resource."""
    details = [f"at most {node.pod_slots} pods"] if len(node.pods) >= node.pod_slots else []
    details += [
        f"{name}: requested {_quantity(name, amount)}, free {_quantity(name, free(node, name))} of "
        f"{_quantity(name, node.allocatable.get(name, 0))}"
        for name, amount in requests
        if amount > free(node, name)
    ]
    return "; ".join(details)


def _quantity(name: str, amount: int) -> str:
    return render(max(amount, 0), binary=is_binary(name))


def _port_holder(node: Node, wanted: tuple[HostPort, ...]) -> Pod | None:
    """Return a pod on the node that has one of the ports."""
    for pod in node.pods.values():
        if pod.ports and any(collide(one, other) for one in pod.ports for other in wanted):
            return pod
    return None


def collide(one: HostPort, other: HostPort) -> bool:
    """Report whether two ports conflict on one node; one on all addresses conflicts with each address."""
    if one.port != other.port or one.protocol != other.protocol:
        return False
    return one.address == other.address or _ALL_ADDRESSES in (one.address, other.address)


def _port_holder_text(node: Node, wanted: tuple[HostPort, ...]) -> str:
    """Return the text that names the pod that has the port."""
    pod = _port_holder(node, wanted)
    return f"used by {pod.namespace}/{pod.name}" if pod else ""


class Constraint(NamedTuple):
    """One constraint, with the number of matching pods in each domain."""

    key: str
    allowed: int
    """How many pods the node's domain may have before this pod is added."""
    counts: dict[str, int]


def inter_pod_affinity(pod: Pod, snapshot: Snapshot) -> PreparedCheck | None:
    """Check pod affinity and anti-affinity against the pods in the node's domains."""
    repelling = _repelling_domains(pod, snapshot)
    if not repelling and not pod.near and not pod.apart:
        return None
    affine, anti_affine = _affine_domains(pod, snapshot), _anti_affine_domains(pod, snapshot)
    namespace_labels = snapshot.space(pod.namespace)
    is_first = not affine and bool(pod.near) and all(term.matches(pod, namespace_labels) for term in pod.near)

    def judge(node: Node) -> tuple[str, ...]:
        """Check the domains of the node."""
        if not _is_near(pod.near, node, affine, is_first=is_first):
            return (NOT_NEAR,)
        if any((term.key, node.labels[term.key]) in anti_affine for term in pod.apart if term.key in node.labels):
            return (NOT_APART,)
        return (KEPT_AWAY,) if repelling and not repelling.isdisjoint(node.labels.items()) else ()

    return PreparedCheck(judge)


def _is_near(terms: tuple[AffinityTerm, ...], node: Node, affine: frozenset[Domain], *, is_first: bool) -> bool:
    """Report whether all affinity terms hold in the node's domains, or the pod is the first of its kind."""
    domains = [(term.key, node.labels[term.key]) for term in terms if term.key in node.labels]
    return len(domains) == len(terms) and (is_first or all(domain in affine for domain in domains))


def _repelling_domains(pod: Pod, snapshot: Snapshot) -> frozenset[Domain]:
    """Return the domains from which the anti-affinity of existing pods repels the pod.

    Only a limited number of kinds of pods per namespace counts, so that no namespace can delay all others.
    """
    namespace_labels = snapshot.space(pod.namespace)
    all_groups = (group for groups in snapshot.repelling.values() for group in islice(groups.values(), _MAX_KINDS))
    found = ((term, group.nodes) for group in all_groups for term in group.terms if term.matches(pod, namespace_labels))
    return frozenset(_domains(((term, node) for term, nodes in found for node in nodes), snapshot))


def _affine_domains(pod: Pod, snapshot: Snapshot) -> frozenset[Domain]:
    """Return the domains with a pod that matches all affinity terms; as in Kubernetes, one pod must match all."""
    if not pod.near:
        return frozenset()
    others = _pods(snapshot, pod.near)
    companions = ((term, node) for other, node in others if _all_match(pod.near, other, snapshot) for term in pod.near)
    return frozenset(_domains(companions, snapshot))


def _anti_affine_domains(pod: Pod, snapshot: Snapshot) -> frozenset[Domain]:
    """Return the domains with a pod that matches an anti-affinity term."""
    if not pod.apart:
        return frozenset()
    others = ((other, node, snapshot.spaces.get(other.namespace)) for other, node in _pods(snapshot, pod.apart))
    found = (
        (term, node)
        for other, node, namespace_labels in others
        for term in pod.apart
        if term.matches(other, namespace_labels)
    )
    return frozenset(_domains(found, snapshot))


def _all_match(terms: tuple[AffinityTerm, ...], other: Pod, snapshot: Snapshot) -> bool:
    namespace_labels = snapshot.spaces.get(other.namespace)
    return all(term.matches(other, namespace_labels) for term in terms)


def _pods(snapshot: Snapshot, terms: tuple[AffinityTerm, ...]) -> Iterator[tuple[Pod, str]]:
    """Return the pods that terms may match, judged by namespace, each with its node."""
    names = frozenset[str]().union(*(term.namespaces for term in terms))
    if any(term.everywhere for term in terms):
        names |= snapshot.population.keys()
    nodes = snapshot.nodes.values()
    return ((pod, node.name) for node in nodes for pod in node.pods.values() if pod.namespace in names)


def affinity_terms(pod: Pod) -> int:
    """Return the number of comparisons in a pod's affinity and anti-affinity terms."""
    return sum(term.weight for term in (*pod.near, *pod.apart))


def affinity_cost(pod: Pod, snapshot: Snapshot) -> int:
    """Return roughly how many comparisons a pod's affinity and anti-affinity take in a cluster."""
    population = snapshot.population
    return sum(
        term.weight * (population.total() if term.everywhere else sum(population[name] for name in term.namespaces))
        for term in (*pod.near, *pod.apart)
    )


def _domains(found: Iterable[tuple[AffinityTerm, str]], snapshot: Snapshot) -> Iterator[Domain]:
    """Yield the domains of terms on nodes; a node without the label is in none."""
    for term, name in found:
        value = snapshot.nodes[name].labels.get(term.key)
        if value is not None:
            yield term.key, value


def spread(pod: Pod, snapshot: Snapshot) -> PreparedCheck | None:
    """Check the number of matching pods in the node's domain against the domain with the fewest."""
    constraints: list[Manifest] = pod.spec.get("topologySpreadConstraints") or []
    required = [one for one in constraints if one.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule"]
    if not required:
        return None
    keys = {one["topologyKey"] for one in required}
    labelled = [node for node in snapshot.nodes.values() if keys <= node.labels.keys()]
    own_pods = {
        node.name: [one for one in node.pods.values() if one.namespace == pod.namespace and not one.ending]
        for node in labelled
    }
    found = [_constraint(one, pod, labelled, own_pods) for one in required]

    def judge(node: Node) -> tuple[str, ...]:
        """Check each constraint in turn."""
        for key, allowed, counts in found:
            if key not in node.labels:
                return (UNLABELLED,)
            if counts.get(node.labels[key], 0) > allowed:
                return (SKEWED,)
        return ()

    return PreparedCheck(judge, lambda node: _constraint_detail(node, found))


def _constraint(constraint: Manifest, pod: Pod, labelled: list[Node], own_pods: Mapping[str, list[Pod]]) -> Constraint:
    """Return a constraint with its counts over the eligible nodes that have the labels of all constraints.

    `own_pods` are the pods of the namespace by node, without those being deleted.
    """
    selector = with_keys(constraint.get("labelSelector"), pod.labels, constraint.get("matchLabelKeys") or ())
    test = label_test(selector)
    counts: dict[str, int] = {}
    for node in _eligible(constraint, pod, labelled):
        domain = node.labels[constraint["topologyKey"]]
        number = 0 if is_empty(selector) else sum(test(one.labels) for one in own_pods[node.name])
        counts[domain] = counts.get(domain, 0) + number
    fewest = min(counts.values(), default=0)
    if len(counts) < (constraint.get("minDomains") or 1):
        fewest = 0
    return Constraint(constraint["topologyKey"], constraint["maxSkew"] + fewest - test(pod.labels), counts)


def _eligible(constraint: Manifest, pod: Pod, nodes: list[Node]) -> list[Node]:
    """Return the nodes that a constraint counts: those that the pod could run on, as its policies say."""
    test = required_test(pod.spec)
    if test and constraint.get("nodeAffinityPolicy", "Honor") == "Honor":
        nodes = [node for node in nodes if test(node.name, node.labels)]
    if constraint.get("nodeTaintsPolicy", "Ignore") == "Honor":
        nodes = [node for node in nodes if not untolerated(pod, node.taints)]
    return nodes


def spread_terms(pod: Pod) -> int:
    """Return the number of comparisons in a pod's constraints."""
    constraints: list[Manifest] = pod.spec.get("topologySpreadConstraints") or []
    return sum(1 + comparisons(one.get("labelSelector")) for one in constraints)


def spread_cost(pod: Pod, snapshot: Snapshot) -> int:
    """Return roughly how many comparisons a pod's constraints take in a cluster."""
    return spread_terms(pod) * (len(snapshot.nodes) + snapshot.population[pod.namespace])


def _constraint_detail(node: Node, constraints: Sequence[Constraint]) -> str:
    """Return the text of the constraint that fails."""
    for key, allowed, counts in constraints:
        if key not in node.labels:
            return f"missing label {key}"
        number = counts.get(node.labels[key], 0)
        if number > allowed:
            return f"{key}={node.labels[key]}: matching pods {number}, allowed {max(allowed, 0)}"
    return ""
