"""Check of the company of pods: who has to be near, and who keeps whom away (inter-pod affinity and anti-affinity)."""

from collections.abc import Iterable, Iterator
from itertools import islice

from tensile.policy.placing.check import Prepared
from tensile.policy.placing.snapshot import Node, Pod, Snapshot, Term

NOT_NEAR = "node(s) didn't match pod affinity rules"
NOT_APART = "node(s) didn't match pod anti-affinity rules"
KEPT_AWAY = "node(s) didn't satisfy existing pods anti-affinity rules"
_MOST_KINDS = 500
"""Kinds of pods of one namespace that keep others away."""
Domain = tuple[str, str]
"""A label key of nodes and its value."""


def company(pod: Pod, snapshot: Snapshot) -> Prepared | None:
    """Judge by the pods that run in the same domain."""
    guarded = _guarded(pod, snapshot)
    if not guarded and not pod.near and not pod.apart:
        return None
    near, apart = _near(pod, snapshot), _apart(pod, snapshot)
    is_first = not near and bool(pod.near) and _all_match(pod.near, pod, snapshot)

    def judge(node: Node) -> tuple[str, ...]:
        """Look at the domains that the node is in."""
        if not _is_near(pod.near, node, near, is_first=is_first):
            return (NOT_NEAR,)
        if any((term.key, node.labels[term.key]) in apart for term in pod.apart if term.key in node.labels):
            return (NOT_APART,)
        return (KEPT_AWAY,) if guarded and not guarded.isdisjoint(node.labels.items()) else ()

    return Prepared(judge)


def _is_near(terms: tuple[Term, ...], node: Node, near: frozenset[Domain], *, is_first: bool) -> bool:
    """Say whether whoever has to be near is, or the pod is the first of its kind."""
    domains = [(term.key, node.labels[term.key]) for term in terms if term.key in node.labels]
    return len(domains) == len(terms) and (is_first or all(domain in near for domain in domains))


def _guarded(pod: Pod, snapshot: Snapshot) -> frozenset[Domain]:
    """Give the domains that pods which are there keep the pod out of.

    Of each namespace so many kinds of pods have a say: nobody's can make all others wait.
    """
    space = snapshot.spaces.get(pod.namespace, {})
    every = (guard for guards in snapshot.guarded.values() for guard in islice(guards.values(), _MOST_KINDS))
    found = ((term, guard.nodes) for guard in every for term in guard.terms if term.matches(pod, space))
    return frozenset(_domains(((term, node) for term, nodes in found for node in nodes), snapshot))


def _near(pod: Pod, snapshot: Snapshot) -> frozenset[Domain]:
    """Give the domains in which somebody is that meets all terms: as in Kubernetes, one for all of them."""
    if not pod.near:
        return frozenset()
    others = _pods(snapshot, pod.near)
    companions = ((term, node) for other, node in others if _all_match(pod.near, other, snapshot) for term in pod.near)
    return frozenset(_domains(companions, snapshot))


def _apart(pod: Pod, snapshot: Snapshot) -> frozenset[Domain]:
    """Give the domains in which somebody is that the pod keeps away from."""
    if not pod.apart:
        return frozenset()
    others = ((other, node, snapshot.spaces.get(other.namespace)) for other, node in _pods(snapshot, pod.apart))
    found = ((term, node) for other, node, space in others for term in pod.apart if term.matches(other, space))
    return frozenset(_domains(found, snapshot))


def _all_match(terms: tuple[Term, ...], other: Pod, snapshot: Snapshot) -> bool:
    space = snapshot.spaces.get(other.namespace)
    return all(term.matches(other, space) for term in terms)


def _pods(snapshot: Snapshot, terms: tuple[Term, ...]) -> Iterator[tuple[Pod, str]]:
    """Give the pods that terms may mean, by their namespaces, each with its node."""
    names = frozenset[str]().union(*(term.namespaces for term in terms))
    if any(term.everywhere for term in terms):
        names |= snapshot.population.keys()
    nodes = snapshot.nodes.values()
    return ((pod, node.name) for node in nodes for pod in node.pods.values() if pod.namespace in names)


def asked(pod: Pod) -> int:
    """Return how much a pod asks of another's labels, to be near it or apart."""
    return sum(term.weight for term in (*pod.near, *pod.apart))


def effort(pod: Pod, snapshot: Snapshot) -> int:
    """Return about how many comparisons it takes to find out whom a pod has to be near, and whom apart from."""
    population = snapshot.population
    return sum(
        term.weight * (population.total() if term.everywhere else sum(population[name] for name in term.namespaces))
        for term in (*pod.near, *pod.apart)
    )


def _domains(found: Iterable[tuple[Term, str]], snapshot: Snapshot) -> Iterator[Domain]:
    """Give the domains of terms on nodes; a node without the label is in none."""
    for term, name in found:
        value = snapshot.nodes[name].labels.get(term.key)
        if value is not None:
            yield term.key, value
