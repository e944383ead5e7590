"""How many pods of a kind several lower clusters take together, each behind its virtual node.

A pod has to fit twice: above, on the virtual node, and below, on a node of that cluster. What a pod asks of its company
counts on both sides: pods that share no host are one to a virtual node, since that is a host above.
"""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from tensile.policy.filling import ALONE, fill, put, replica, room, roomiest
from tensile.policy.placement import Placement, examine, looked_at
from tensile.policy.placing.snapshot import Pod, Snapshot

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
    """Say why a lower takes no more: what its own nodes say first."""
    below = examine(replica(place.below, number), place.ground)
    return _unsent(place.node, above) if below.fits else below.message


def _unsent(node: str, above: Placement) -> str:
    refusal = above.nowhere or above.refused.get(node) or f"there is no node {node}: does the engine run?"
    return f"the upper cluster does not send it there: {refusal}"
