"""Compares the predicted moves of pods with what happened.

The prediction names the pods that leave, so the two sets have to be equal. The upper scheduler chooses the node of each
replacement, and it is unknown which of an owner's new pods replaces which old one. So an owner's new pods have to be on
the nodes that were predicted for its old ones, one for each.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations
from typing import Any, NamedTuple

Manifest = dict[str, Any]
NOWHERE = ""
"""The node of a pod that has none."""


class PredictedMove(NamedTuple):
    """The prediction for one pod that leaves: its owner, its virtual node, and the nodes that it may move to."""

    owner: str
    source: str
    targets: frozenset[str]
    is_placed: bool = True
    """Whether capacity for it was predicted."""


class ObservedPod(NamedTuple):
    """One upper pod at a moment: its owner, its virtual node, and whether it is Ready."""

    owner: str
    node: str
    is_ready: bool


def of_plan(document: Manifest, owners: Mapping[str, ObservedPod]) -> dict[str, PredictedMove]:
    """Return the moves in the output of `tensile plan -o json`, by the pods' names."""
    moves = {one["name"]: one["move"] for one in document["changes"] if "move" in one}
    return {
        name: PredictedMove(owners[name].owner, move["from"], frozenset(move["to"]))
        for name, move in moves.items()
        if name in owners
    }


def deadlocks(document: Manifest, namespace: str) -> set[str]:
    """Return the pods of a namespace that fit no other lower cluster, according to a plan."""
    messages = (one["message"] for one in document["problems"] if one["rule"] == "descheduler")
    return {name for message in messages for name in re.findall(rf"{namespace}/([^:;]+): it fits in no other", message)}


def of_drain(document: Manifest, owners: Mapping[str, ObservedPod]) -> dict[str, PredictedMove]:
    """Return the pods that leave, by name, according to the one drain of `tensile plan --drain NAME -o json`."""
    (drain,) = document["drains"]
    return {
        one["name"]: PredictedMove(
            owners[one["name"]].owner,
            drain["lower"],
            frozenset({one["target"] or NOWHERE, *one["others"], *one["full"]}),
            is_placed=bool(one["target"]),
        )
        for one in drain["pods"]
        if one["leaves"] and one["name"] in owners
    }


def differences(
    predicted: Mapping[str, PredictedMove],
    before: Mapping[str, ObservedPod],
    after: Mapping[str, ObservedPod],
    *,
    loose: bool = False,
) -> list[str]:
    """Return what differs from the prediction; `before` and `after` are the pods by name/UID.

    With `loose`, a pod may have moved to a lower in which it was predicted to wait.
    """
    left = {name.partition("/")[0]: one for name, one in before.items() if name not in after}
    found = [f"{name} left {left[name].node}, which was not said" for name in sorted(left.keys() - predicted.keys())]
    found += [f"{name} was predicted to leave, and stayed" for name in sorted(predicted.keys() - left.keys())]
    found += [
        f"{name} was predicted to leave {predicted[name].source}, and left {left[name].node}"
        for name in sorted(left.keys() & predicted.keys())
        if left[name].node != predicted[name].source
    ]
    come = {name: one for name, one in after.items() if name not in before}
    for owner in sorted({one.owner for one in (*predicted.values(), *come.values())}):
        nodes = [one.node for one in come.values() if one.owner == owner]
        sets = [one.targets for one in predicted.values() if one.owner == owner]
        if not goes_together(nodes, sets):
            allowed = [" or ".join(sorted(one or "nowhere" for one in each)) for each in sets]
            found.append(f"the new pods of {owner} went to {sorted(nodes)}, and were predicted to go to {allowed}")
    placed, ready = sum(one.is_placed for one in predicted.values()), sum(one.is_ready for one in come.values())
    if ready != placed and not (loose and ready < placed):
        found.append(f"{ready} new pods run, and {placed} were said to have room")
    return found


def goes_together(nodes: Sequence[str], sets: Iterable[frozenset[str]]) -> bool:
    """Report whether each of some nodes can be paired with one of as many sets that contains it."""
    allowed = list(sets)
    if len(nodes) != len(allowed):
        return False
    return any(all(node in one for node, one in zip(order, allowed, strict=True)) for order in permutations(nodes))
