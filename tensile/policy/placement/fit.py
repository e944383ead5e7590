"""How many like pods a cluster takes, and how many several lower clusters take together behind their virtual nodes.

If nodes do not depend on each other, the number for each node is computed. Otherwise, as with topology spread, pods are
placed one by one on the node with most room, as kube-scheduler spreads pods without other preferences.

A pod must fit twice: on the virtual node in the upper cluster, and on a node in the lower cluster. Pod affinity and
anti-affinity count in both. Pods that share no host have one pod per virtual node, because that is one host.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from tensile.policy.placement.checks import free
from tensile.policy.placement.placement import Placement, examine, fitting, looked_at
from tensile.policy.placement.snapshot import Node, Pod, Snapshot

MOST = 1_000
"""Maximum of pods placed one by one if no number is given."""
ALONE = frozenset({"affinity", "unschedulable", "taints", "ports", "resources"})
"""Checks that depend only on the node itself."""
_FULL_ABOVE = "its virtual node has no free capacity"


class Estimate(NamedTuple):
    """How many pods each node took; `more` is whether there may be room for more, `rest` the next pod's result."""

    counts: dict[str, int]
    more: bool
    rest: Placement

    @property
    def total(self) -> int:
        """How many pods fit."""
        return sum(self.counts.values())


class ClusterSpace(NamedTuple):
    """One lower cluster: its virtual node's name, the pod in its lower form, and the cluster's snapshot."""

    node: str
    below: Pod
    ground: Snapshot


class ClusterShare(NamedTuple):
    """What one lower cluster takes: the number by node, whether there may be room for more, and why there is not."""

    counts: Mapping[str, int]
    more: bool
    why: str


def fill(pod: Pod, snapshot: Snapshot, most: int | None = None, steps: int = MOST) -> Estimate:
    """Put as many pods like this one into a snapshot as it takes; the snapshot is changed.

    At most `most`, if given, and at most `steps` if they must be placed one by one.
    """
    alone = looked_at(pod, snapshot) <= ALONE
    bound = steps if most is None else min(most, steps)
    counts = _at_once(pod, snapshot, most) if alone else _one_by_one(pod, snapshot, bound)
    rest = examine(replica(pod, sum(counts.values())), snapshot)
    return Estimate(dict(counts), rest.fits, rest)


def replica(pod: Pod, number: int) -> Pod:
    """Return another pod like this one, with its own name."""
    return replace(pod, name=f"{pod.name}-{number}")


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


def _at_once(pod: Pod, snapshot: Snapshot, most: int | None) -> Counter[str]:
    """Compute the number for each node, and place that many pods."""
    counts: Counter[str] = Counter()
    for node in list(fitting(pod, snapshot)):
        wanted = room(node, pod)
        if most is not None:
            wanted = min(wanted, most - counts.total())
        for _ in range(wanted):
            snapshot.add(replica(pod, counts.total()), node.name)
            counts[node.name] += 1
    return counts


def room(node: Node, pod: Pod) -> int:
    """Return how many such pods a node has room for, if it takes one: by resources, pod slots and host ports."""
    if pod.ports:
        return 1
    left = (free(node, name) // amount for name, amount in pod.requests.items())
    return min(node.room - len(node.pods), *left) if pod.requests else node.room - len(node.pods)


def _left(node: Node, pod: Pod) -> tuple[float, int]:
    """Return the free share of a node's scarcest resource, and for equal shares the fewer pods."""
    names = [name for name in (*pod.requests, "cpu", "memory") if node.allocatable.get(name)]
    return min((free(node, name) / node.allocatable[name] for name in names), default=1.0), -len(node.pods)


def spread_out(pod: Pod, upper: Snapshot, places: Mapping[str, ClusterSpace], steps: int) -> dict[str, ClusterShare]:
    """Put as many pods like this one into the lower clusters as they take; at most `steps` one by one.

    The snapshots are changed.
    """
    alone = looked_at(pod, upper) <= ALONE
    if alone and all(looked_at(place.below, place.ground) <= ALONE for place in places.values()):
        above = examine(pod, upper)
        return {name: _alone(pod, place, upper, above) for name, place in places.items()}
    return _together(pod, upper, places, steps)


def _alone(pod: Pod, place: ClusterSpace, upper: Snapshot, above: Placement) -> ClusterShare:
    """Fill one lower cluster, up to what its virtual node offers."""
    if place.node not in above.fitting:
        return ClusterShare({}, more=False, why=_unsent(place.node, above))
    most = room(upper.nodes[place.node], pod)
    found = fill(place.below, place.ground, most)
    return ClusterShare(found.counts, more=False, why=_FULL_ABOVE if found.more else found.rest.message)


def _together(pod: Pod, upper: Snapshot, places: Mapping[str, ClusterSpace], steps: int) -> dict[str, ClusterShare]:
    """Place pods one by one, each on the virtual node with most room that has a fitting lower node."""
    counts: dict[str, Counter[str]] = {name: Counter() for name in places}
    total = 0
    while total < steps and _one_more(pod, total, upper, places, counts):
        total += 1
    above = examine(replica(pod, total), upper)
    more = total == steps
    return {
        name: ClusterShare(counts[name], more, "" if more else _why(place, above, total))
        for name, place in places.items()
    }


def _one_more(
    pod: Pod, number: int, upper: Snapshot, places: Mapping[str, ClusterSpace], counts: Mapping[str, Counter[str]]
) -> bool:
    """Place one more pod; report whether it fits."""
    behind = {place.node: name for name, place in places.items()}
    wanted = replica(pod, number)
    for node in roomiest(wanted, upper):
        name = behind.get(node.name)
        found = put(replica(places[name].below, number), places[name].ground) if name else ""
        if name and found:
            upper.add(wanted, node.name)
            counts[name][found] += 1
            return True
    return False


def _why(place: ClusterSpace, above: Placement, number: int) -> str:
    """Return why a lower cluster takes no more pods; the reasons of its own nodes come first."""
    below = examine(replica(place.below, number), place.ground)
    return _unsent(place.node, above) if below.fits else below.message


def _unsent(node: str, above: Placement) -> str:
    refusal = (
        above.nowhere or above.refused.get(node) or f"node {node} does not exist: check that the engine is running"
    )
    return f"the upper scheduler does not bind it there: {refusal}"
