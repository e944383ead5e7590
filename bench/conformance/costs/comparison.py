"""Compares the cost that a plan predicts for an edit with what happened.

The plan names the pods that restart, move or end, so these sets have to be equal. The node of a pod that replaces
another is chosen by the upper scheduler: an owner's new pods have to be on nodes that the plan allows, one for each
pod.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import permutations
from typing import Any, NamedTuple

Manifest = dict[str, Any]
Names = frozenset[str]
Object = tuple[str, str, str]
"""A lower, an upper namespace and a name."""
ANYWHERE: Names = frozenset({"*"})
NOWHERE: Names = frozenset({""})
LEAVING = ("moved", "stranded", "evicted")


class SeenPod(NamedTuple):
    """One upper pod at a moment; `runs` are the UIDs and images of its lower pods, one unless there is a defect."""

    uid: str
    owner: str
    labels: Mapping[str, str]
    node: str
    runs: tuple[tuple[str, str], ...]
    is_ready: bool
    is_ending: bool


class State(NamedTuple):
    """The state at a moment: pods and Services by namespace/name; `cut` are the pods whose log stream ended.

    `endpoints` are the ready endpoints of each upper Service; `copies` are the objects of this topology in the lowers,
    by kind: claims, services, ServiceAccounts, ConfigMaps, Secrets.
    """

    pods: Mapping[str, SeenPod]
    endpoints: Mapping[str, Names]
    cut: Names
    copies: Mapping[str, frozenset[Object]]


class Effects(NamedTuple):
    """What happened to the pods that ran: their names as namespace/name."""

    restarted: Names
    left: Names
    ended: Names


def effects(before: State, after: State, evicted: Iterable[str]) -> Effects:
    """Return what happened to the pods that ran; `evicted` are those that the Eviction API removed."""
    ran = {name: pod for name, pod in before.pods.items() if pod.is_ready and not pod.is_ending}
    gone = {name for name, pod in ran.items() if name not in after.pods or after.pods[name].uid != pod.uid}
    there = {name: (pod, after.pods[name]) for name, pod in ran.items() if name not in gone}
    ended = {name for name, (_, now) in there.items() if not now.runs or now.is_ending}
    restarted = {name for name, (pod, now) in there.items() if name not in ended and now.runs != pod.runs}
    left = gone & set(evicted)
    return Effects(frozenset(restarted), frozenset(left), frozenset(ended | gone - left))


def differences(
    cost: Manifest, before: State, after: State, evicted: Iterable[str], budgets: Iterable[Manifest]
) -> list[str]:
    """Return what happened otherwise than the `cost` of `tensile plan -o json` predicted."""
    happened, known = effects(before, after, evicted), list(budgets)
    predicted = {
        word: {f"{one['namespace']}/{one['name']}": one for one in cost[word]}
        for word in (*LEAVING, "restarted", "ended")
    }
    leaving = {name: one for word in LEAVING for name, one in predicted[word].items()}
    blocked = {name for name in leaving if name in before.pods and _is_blocked(name, before.pods[name], known)}
    found = [
        *_compared("restarted", set(predicted["restarted"]), happened.restarted),
        *_compared("ended", set(predicted["ended"]), happened.ended),
        *_compared("left", set(leaving) - blocked, happened.left - blocked),
        *(f"{name} left, which its budget does not allow" for name in sorted(blocked & happened.left)),
        *_places(predicted, before, after, happened.left),
        *_budgets(cost, before, set(leaving), known),
        *_compared("claims lost", _objects(cost["claims"]), _lost("claims", before, after)),
        *_services(_objects(cost["services"]), before, after),
        *_lost_objects(before, after),
        *_endpoints(cost, before, after, blocked),
    ]
    touched = happened.restarted | happened.left | happened.ended
    cut = {before.pods[name].node for name in after.cut - touched if name in before.pods}
    return [*found, *_compared("streams cut", {one["node"] for one in cost["streams"]}, cut)]


def _compared(what: str, predicted: Iterable[Any], happened: Iterable[Any]) -> Iterator[str]:
    expected, real = set(predicted), set(happened)
    if expected - real:
        yield f"{what}: predicted and not happened: {sorted(expected - real)}"
    if real - expected:
        yield f"{what}: happened and not predicted: {sorted(real - expected)}"


def _places(predicted: Mapping[str, Mapping[str, Manifest]], before: State, after: State, left: Names) -> Iterator[str]:
    """Yield the owners whose new pods are on other nodes than predicted."""
    old = {pod.uid for pod in before.pods.values()}
    come = [pod for pod in after.pods.values() if pod.uid not in old]
    allowed: dict[str, list[Names]] = {}
    for word in LEAVING:
        for name, one in predicted[word].items():
            if name in left:
                where = {"moved": frozenset(one.get("targets", ())), "stranded": NOWHERE, "evicted": ANYWHERE}[word]
                allowed.setdefault(before.pods[name].owner, []).append(where)
    for owner, sets in allowed.items():
        nodes = [pod.node for pod in come if pod.owner == owner]
        if not goes_together(nodes, sets):
            predicted_nodes = [sorted(one) for one in sets]
            yield f"the new pods of {owner} went to {sorted(nodes)}, and were predicted to go to {predicted_nodes}"


def goes_together(nodes: list[str], sets: list[Names]) -> bool:
    """Report whether each of some nodes can be paired with one of as many sets that contains it."""
    if len(nodes) != len(sets):
        return False
    return any(
        all(one == ANYWHERE or node in one for node, one in zip(order, sets, strict=True))
        for order in permutations(nodes)
    )


def _is_blocked(name: str, pod: SeenPod, budgets: Iterable[Manifest]) -> bool:
    """Report whether a budget allows no disruption of a pod at all."""
    return any(_covers(one, name, pod) and not one["status"].get("disruptionsAllowed") for one in budgets)


def _covers(budget: Manifest, name: str, pod: SeenPod) -> bool:
    wanted = budget["spec"]["selector"]["matchLabels"]
    return name.startswith(f"{budget['metadata']['namespace']}/") and wanted.items() <= pod.labels.items()


def _budgets(cost: Manifest, before: State, leaving: set[str], budgets: Iterable[Manifest]) -> Iterator[str]:
    """Yield how the budgets that cover the leaving pods differ from those in the plan."""
    expected = set()
    for one in budgets:
        pods = sum(_covers(one, name, before.pods[name]) for name in leaving if name in before.pods)
        if pods:
            meta = one["metadata"]
            expected.add((meta["namespace"], meta["name"], pods, one["status"].get("disruptionsAllowed", 0)))
    predicted = {(one["namespace"], one["name"], one["pods"], one["allowed"]) for one in cost["budgets"]}
    yield from _compared("budgets", predicted, expected)
    if cost["unknownBudgets"]:
        yield f"budgets unknown: {cost['unknownBudgets']}"


def _endpoints(cost: Manifest, before: State, after: State, blocked: set[str]) -> Iterator[str]:
    """Yield how the endpoints that Services lost differ from the prediction; not compared if a pod is blocked."""
    predicted = {(f"{one['namespace']}/{one['name']}", one["lost"], one["ready"]) for one in cost["endpoints"]}
    lost = {
        (name, len(ready - after.endpoints.get(name, frozenset())), len(ready))
        for name, ready in before.endpoints.items()
        if ready - after.endpoints.get(name, frozenset())
    }
    if not blocked:
        yield from _compared("endpoints (Service, lost, ready)", predicted, lost)


def _lost(kind: str, before: State, after: State) -> frozenset[Object]:
    """Return the copies of a kind that were removed."""
    return before.copies.get(kind, frozenset()) - after.copies.get(kind, frozenset())


def _namespaces_with_pods(before: State, after: State) -> set[tuple[str, str]]:
    """Return the nodes and namespaces where pods still run as before, and would miss a removed object."""
    return {
        (pod.node, name.partition("/")[0])
        for name, pod in before.pods.items()
        if name in after.pods and pod.runs and after.pods[name].runs == pod.runs
    }


def _services(predicted: set[Object], before: State, after: State) -> Iterator[str]:
    """Yield how lost Services differ from the prediction; one that is removed after the last pod costs nothing."""
    lost, there = _lost("services", before, after), _namespaces_with_pods(before, after)
    yield from _compared("Services lost", predicted, {one for one in lost if one in predicted or one[:2] in there})


def _lost_objects(before: State, after: State) -> Iterator[str]:
    """Yield the copies that were removed although pods of their namespace still run: no plan predicts that."""
    there = _namespaces_with_pods(before, after)
    for kind in ("ServiceAccounts", "ConfigMaps", "Secrets"):
        lost = [one for one in _lost(kind, before, after) if one[:2] in there]
        yield from _compared(f"{kind} lost by running pods", (), lost)


def _objects(found: Iterable[Manifest]) -> set[Object]:
    return {(one["lower"], one["namespace"], one["name"]) for one in found}
