"""How many pods of a kind a cluster takes, and where: the placement of one, again and again.

Where nodes do not depend on each other the number of each is worked out; else, as with topology spread, pod by pod,
each going where most is left, as the kube-scheduler spreads what it has no other wish for.

How many pods of a kind several lower clusters take together, each behind its virtual node.

A pod has to fit twice: above, on the virtual node, and below, on a node of that cluster. What a pod asks of its company
counts on both sides: pods that share no host are one to a virtual node, since that is a host above.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from tensile.policy.placement.placement import Placement, examine, fitting, looked_at
from tensile.policy.placement.snapshot import Node, Pod, Snapshot

MOST = 1_000
"""Pods that are placed one by one where nobody says how many are wanted."""
ALONE = frozenset({"affinity", "unschedulable", "taints", "ports", "resources"})
"""Checks that ask only what is on the node itself."""


class Filling(NamedTuple):
    """How many pods each node took; `more` is whether there may be room for more, `rest` what is said of the next."""

    counts: dict[str, int]
    more: bool
    rest: Placement

    @property
    def total(self) -> int:
        """How many found a place."""
        return sum(self.counts.values())


def fill(pod: Pod, snapshot: Snapshot, most: int | None = None, steps: int = MOST) -> Filling:
    """Put as many pods like this one into a snapshot as it takes, which changes it.

    At most `most`, if given; and `steps`, where they have to be placed one by one.
    """
    alone = looked_at(pod, snapshot) <= ALONE
    bound = steps if most is None else min(most, steps)
    counts = _at_once(pod, snapshot, most) if alone else _one_by_one(pod, snapshot, bound)
    rest = examine(replica(pod, sum(counts.values())), snapshot)
    return Filling(dict(counts), rest.fits, rest)


def replica(pod: Pod, number: int) -> Pod:
    """Return one more pod like this, with a name of its own."""
    return replace(pod, name=f"{pod.name}-{number}")


def put(pod: Pod, snapshot: Snapshot) -> str:
    """Place one pod where most is left; returns the node, "" where it fits on none."""
    node = next(iter(roomiest(pod, snapshot)), None)
    if node is None:
        return ""
    snapshot.add(pod, node.name)
    return node.name


def roomiest(pod: Pod, snapshot: Snapshot) -> list[Node]:
    """Return the nodes that a pod fits on, first those where most is left."""
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
    """Work the numbers out, and put so many there."""
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
    """Return for how many pods like this a node has room that takes one, by resources, places and ports."""
    if pod.ports:
        return 1
    left = (_free(node, name) // amount for name, amount in pod.requests.items())
    return min(node.room - len(node.pods), *left) if pod.requests else node.room - len(node.pods)


def _free(node: Node, name: str) -> int:
    return node.allocatable.get(name, 0) - node.used.get(name, 0)


def _left(node: Node, pod: Pod) -> tuple[float, int]:
    """Return how much of a node is free, of what is scarcest there; where that is equal, fewer pods are more room."""
    names = [name for name in (*pod.requests, "cpu", "memory") if node.allocatable.get(name)]
    return min((_free(node, name) / node.allocatable[name] for name in names), default=1.0), -len(node.pods)


_FULL_ABOVE = "its virtual node offers no more"


class Place(NamedTuple):
    """One lower: the name of its virtual node, the pod as it is below, and the cluster."""

    node: str
    below: Pod
    ground: Snapshot


class Share(NamedTuple):
    """What one lower takes: how many by node, whether there may be room for more, and why there is not."""

    counts: Mapping[str, int]
    more: bool
    why: str


def spread_out(pod: Pod, upper: Snapshot, places: Mapping[str, Place], steps: int) -> dict[str, Share]:
    """Put as many pods like this into the lowers as they take, which changes them; one by one at most so many."""
    alone = looked_at(pod, upper) <= ALONE
    if alone and all(looked_at(place.below, place.ground) <= ALONE for place in places.values()):
        above = examine(pod, upper)
        return {name: _alone(pod, place, upper, above) for name, place in places.items()}
    return _together(pod, upper, places, steps)


def _alone(pod: Pod, place: Place, upper: Snapshot, above: Placement) -> Share:
    """Fill one lower, up to what its virtual node offers."""
    if place.node not in above.fitting:
        return Share({}, more=False, why=_unsent(place.node, above))
    most = room(upper.nodes[place.node], pod)
    found = fill(place.below, place.ground, most)
    return Share(found.counts, more=False, why=_FULL_ABOVE if found.more else found.rest.message)


def _together(pod: Pod, upper: Snapshot, places: Mapping[str, Place], steps: int) -> dict[str, Share]:
    """Place pod after pod, each where most is left above of what has a node for it below."""
    counts: dict[str, Counter[str]] = {name: Counter() for name in places}
    total = 0
    while total < steps and _one_more(pod, total, upper, places, counts):
        total += 1
    above = examine(replica(pod, total), upper)
    more = total == steps
    return {
        name: Share(counts[name], more, "" if more else _why(place, above, total)) for name, place in places.items()
    }


def _one_more(
    pod: Pod, number: int, upper: Snapshot, places: Mapping[str, Place], counts: Mapping[str, Counter[str]]
) -> bool:
    """Place one more; says whether it found a place."""
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


def _why(place: Place, above: Placement, number: int) -> str:
    """Return why a lower takes no more: what its own nodes say first."""
    below = examine(replica(place.below, number), place.ground)
    return _unsent(place.node, above) if below.fits else below.message


def _unsent(node: str, above: Placement) -> str:
    refusal = above.nowhere or above.refused.get(node) or f"there is no node {node}: does the engine run?"
    return f"the upper cluster does not send it there: {refusal}"
