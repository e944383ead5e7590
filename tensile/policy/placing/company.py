"""Check of the company of pods: who has to be near, and who keeps whom away (inter-pod affinity and anti-affinity)."""

from collections.abc import Iterable, Iterator

from tensile.policy.placing.check import Prepared
from tensile.policy.placing.snapshot import Node, Pod, Snapshot, Term

NOT_NEAR = "node(s) didn't match pod affinity rules"
NOT_APART = "node(s) didn't match pod anti-affinity rules"
KEPT_AWAY = "node(s) didn't satisfy existing pods anti-affinity rules"
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
    """Give the domains that pods which are there keep the pod out of."""
    space = snapshot.spaces.get(pod.namespace, {})
    found = ((term, node) for other, node in snapshot.guarded for term in other.apart if term.matches(pod, space))
    return frozenset(_domains(found, snapshot))


def _near(pod: Pod, snapshot: Snapshot) -> frozenset[Domain]:
    """Give the domains in which somebody is that meets all terms: as in Kubernetes, one for all of them."""
    if not pod.near:
        return frozenset()
    companions = (
        (term, node) for other, node in _pods(snapshot) if _all_match(pod.near, other, snapshot) for term in pod.near
    )
    return frozenset(_domains(companions, snapshot))


def _apart(pod: Pod, snapshot: Snapshot) -> frozenset[Domain]:
    """Give the domains in which somebody is that the pod keeps away from."""
    if not pod.apart:
        return frozenset()
    others = ((other, node, snapshot.spaces.get(other.namespace)) for other, node in _pods(snapshot))
    found = ((term, node) for other, node, space in others for term in pod.apart if term.matches(other, space))
    return frozenset(_domains(found, snapshot))


def _all_match(terms: tuple[Term, ...], other: Pod, snapshot: Snapshot) -> bool:
    space = snapshot.spaces.get(other.namespace)
    return all(term.matches(other, space) for term in terms)


def _pods(snapshot: Snapshot) -> Iterator[tuple[Pod, str]]:
    return ((pod, node.name) for node in snapshot.nodes.values() for pod in node.pods.values())


def _domains(found: Iterable[tuple[Term, str]], snapshot: Snapshot) -> Iterator[Domain]:
    """Give the domains of terms on nodes; a node without the label is in none."""
    for term, name in found:
        value = snapshot.nodes[name].labels.get(term.key)
        if value is not None:
            yield term.key, value
