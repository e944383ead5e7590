"""The cache of one lower cluster for placement: its nodes and pods, the reservations, and the search for a node.

A snapshot of thousands of nodes cannot be built for each request, and an event changes only one node. A reservation
counts like a pod until the pod is there or the reservation expires. Its node is an estimate: a pod may come to the node
that was reserved for another pod of the same kind. Then the two swap their reservations, because only the number
counts.

In a burst, hundreds of pods are alike. A node that did not fit one does not fit the next until something makes room. So
a search does not examine every node: it continues where the last one stopped, and if no node fits, that result is kept
until something changes.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import Any, NamedTuple

import msgspec

from tensile.policy.placement.placement import NODE_LOCAL, NodeRefusal, is_curable, message, prepare
from tensile.policy.placement.snapshot import Node, NodeFilter, Pod, Snapshot

PodName = tuple[str, str]
"""Namespace and name of a pod in the lower cluster."""
SORTED = msgspec.json.Encoder(order="sorted")
"""Encodes what distinguishes pods; also amounts beyond 64 bits, since any client may request them."""
_FIELDS = ("nodeSelector", "affinity", "tolerations", "topologySpreadConstraints")
_MAX_SEARCHES = 256
_MAX_REEXAMINED = 8
"""How many kinds of pods are examined again at a time when a node may have become free for them."""


class Nominee(NamedTuple):
    """A pod that waits until `victims` (lower names) are gone; `uid` and `priority` are those of the upper pod."""

    uid: str
    priority: int
    victims: frozenset[PodName]


class AssumedPod(NamedTuple):
    """A reservation: room on a node for a pod on its way, since a moment in seconds.

    With a `nominee`, victims must make the room first, and until they are gone the node holds more than its capacity.
    """

    pod: Pod
    node: str
    since: float
    nominee: Nominee | None = None


class NodeCache:
    """One lower cluster.

    `grown` counts changes, other than taken room, that may affect a pod whose fit depends on a single node only.
    `changed` counts all changes that may affect any pod.
    """

    def __init__(self) -> None:
        self.snapshot = Snapshot({})
        self.reservations: dict[PodName, AssumedPod] = {}
        self.grown = 0
        self.changed = 0
        self.offered: Counter[str] = Counter()
        self.used: Counter[str] = Counter()
        """Sums over all nodes, in milli-units."""
        self._nominees: set[PodName] = set()
        self._pods: dict[PodName, Pod] = {}
        self._pods_on_unknown_nodes: dict[str, set[PodName]] = {}
        """Pods on nodes that are not known yet: each kind of object has its own watch."""

    def put_node(self, node: Node) -> None:
        """Add or replace a node; its pods stay."""
        known = self.snapshot.nodes.get(node.name)
        names = set(known.pods) if known else self._pods_on_unknown_nodes.pop(node.name, set())
        if known:
            self._forget_node(node.name)
        self.snapshot.nodes[node.name] = node
        self.offered.update(node.allocatable)
        for name in names:
            self._put_on_node(self._pods.get(name) or self.reservations[name].pod, node.name)
        self._count_growth()

    def remove_node(self, name: str) -> None:
        """Remove a node; pods that are still on it are remembered, in case it comes back."""
        known = self.snapshot.nodes.get(name)
        if known:
            if known.pods:
                self._pods_on_unknown_nodes[name] = set(known.pods)
            self._forget_node(name)
            self._count_growth()

    def put_pod(self, pod: Pod) -> None:
        """Add or replace a pod that has its node; its reservation ends."""
        name = (pod.namespace, pod.name)
        reservation = self._swapped_reservation(name, pod.node)
        if reservation and (reservation.node, reservation.pod.requests) == (pod.node, pod.requests):
            del self.reservations[name]
            self._nominees.discard(name)
            self._take_off_node(name, pod.node)
        self.forget(name)
        known = self._pods.get(name)
        if known and _compared_fields(known) == _compared_fields(pod):
            return
        self.remove_pod(name)
        self._pods[name] = pod
        self._add(pod, pod.node)

    def remove_pod(self, name: PodName) -> None:
        """Remove a pod that was on a node, which makes room."""
        pod = self._pods.pop(name, None)
        if pod is not None:
            self._remove(name, pod.node)
            self._count_growth()

    def has(self, name: PodName) -> bool:
        """Report whether a pod has its node."""
        return name in self._pods

    def place_of(self, name: PodName) -> str:
        """Return the node of a pod, "" if it has none."""
        found = self._pods.get(name)
        return found.node if found else ""

    def assumed(self, node: str) -> list[PodName]:
        """Return the pods that have a reservation on a node."""
        cached = self.snapshot.nodes.get(node)
        names = cached.pods if cached else self._pods_on_unknown_nodes.get(node, ())
        return [name for name in names if name in self.reservations]

    def nominees(self, below: float = inf) -> dict[PodName, AssumedPod]:
        """Return the reservations of nominees with a lower priority than `below`."""
        found = ((name, self.reservations[name]) for name in self._nominees)
        return {name: one for name, one in found if one.nominee is not None and one.nominee.priority < below}

    def is_crowded(self, node: str) -> bool:
        """Report whether the pods and reservations of a node exceed its capacity once all victims are gone."""
        cached = self.snapshot.nodes.get(node)
        if cached is None:
            return True
        leaving = [cached.pods[name] for name in self._victims() if name in cached.pods]
        freed = Counter[str]()
        for pod in leaving:
            freed.update(pod.requests)
        is_over = any(amount - freed[name] > cached.allocatable.get(name, 0) for name, amount in cached.used.items())
        return is_over or len(cached.pods) - len(leaving) > cached.pod_slots

    def is_ready(self, node: str) -> bool:
        """Report whether all victims on a node are gone, and there is room for its reservations."""
        cached = self.snapshot.nodes.get(node)
        return cached is not None and cached.pods.keys().isdisjoint(self._victims()) and not self.is_crowded(node)

    def put_spaces(self, spaces: Mapping[str, Mapping[str, str]]) -> None:
        """Replace the labels of namespaces."""
        self.snapshot.spaces = spaces
        self._count_growth()

    def assume(self, pod: Pod, node: str, now: float, nominee: Nominee | None = None) -> None:
        """Reserve room on a node for a pod; replaces an earlier reservation of that pod."""
        name = (pod.namespace, pod.name)
        if name in self._pods:
            return
        self.forget(name)
        self.reservations[name] = AssumedPod(pod, node, now, nominee)
        if nominee is not None:
            self._nominees.add(name)
        self._add(pod, node)

    def confirm(self, name: PodName) -> None:
        """Keep a pod's reservation until the pod has come or the reservation is released."""
        found = self.reservations.get(name)
        if found:
            self._nominees.discard(name)
            self.reservations[name] = found._replace(since=inf, nominee=None)

    def refresh(self, now: float) -> None:
        """Renew the reservations of nominees whose victims are terminating, however long that takes."""
        for name, one in self.nominees().items():
            assert one.nominee is not None
            victims = (self._pods.get(victim) for victim in one.nominee.victims)
            if any(victim is not None and victim.ending for victim in victims):
                self.reservations[name] = one._replace(since=now)

    def forget(self, name: PodName) -> None:
        """Release a pod's reservation, if there is one."""
        found = self.reservations.pop(name, None)
        self._nominees.discard(name)
        if found:
            self._remove(name, found.node)
            self._count_growth()

    def expire(self, before: float) -> None:
        """Release the reservations made before a moment."""
        for name in [name for name, one in self.reservations.items() if one.since < before]:
            self.forget(name)

    def _victims(self) -> frozenset[PodName]:
        """Return the victims of all nominees."""
        return frozenset[PodName]().union(*(one.nominee.victims for one in self.nominees().values() if one.nominee))

    def _swapped_reservation(self, name: PodName, node: str) -> AssumedPod | None:
        """Return the reservation of a pod that came to a node, swapped with that of a like pod expected there."""
        reservation = self.reservations.get(name)
        if reservation is None or reservation.node == node:
            return reservation
        kind = kind_of(reservation.pod)
        other = next((one for one in self.assumed(node) if kind_of(self.reservations[one].pod) == kind), None)
        if other is None:
            return reservation
        for one, node_name in ((name, reservation.node), (other, node)):
            self._take_off_node(one, node_name)
            self._discard_from_unknown(one, node_name)
        self._move(other, reservation.node)
        return self._move(name, node)

    def _move(self, name: PodName, node: str) -> AssumedPod:
        """Move the reservation of a pod, which is on no node now, to another node."""
        reservation = self.reservations[name] = self.reservations[name]._replace(node=node)
        self._add(reservation.pod, node)
        return reservation

    def _add(self, pod: Pod, node: str) -> None:
        self.changed += 1
        self.grown += bool(pod.apart)  # its anti-affinity repels pods that no other pod repelled before
        if node in self.snapshot.nodes:
            self._put_on_node(pod, node)
        else:
            self._pods_on_unknown_nodes.setdefault(node, set()).add((pod.namespace, pod.name))

    def _remove(self, name: PodName, node: str) -> None:
        self._discard_from_unknown(name, node)
        self._take_off_node(name, node)

    def _discard_from_unknown(self, name: PodName, node: str) -> None:
        """Forget a pod on an unknown node; entries without pods are removed."""
        names = self._pods_on_unknown_nodes.get(node)
        if names is not None:
            names.discard(name)
            if not names:
                del self._pods_on_unknown_nodes[node]

    def _put_on_node(self, pod: Pod, node: str) -> None:
        self._take_off_node((pod.namespace, pod.name), node)
        self.snapshot.add(pod, node)
        self.used.update(pod.requests)

    def _take_off_node(self, name: PodName, node: str) -> None:
        cached = self.snapshot.nodes.get(node)
        known = cached.pods.get(name) if cached else None
        if known:
            self.used.subtract(known.requests)
            self.snapshot.remove(*name, node)

    def _forget_node(self, node: str) -> None:
        known = self.snapshot.forget(node)
        assert known is not None
        self.offered.subtract(known.allocatable)
        self.used.subtract(known.used)

    def _count_growth(self) -> None:
        self.grown += 1
        self.changed += 1


def kind_of(pod: Pod) -> bytes:
    """Return what is equal for all pods that fit on the same nodes."""
    spec = {field: pod.spec[field] for field in _FIELDS if field in pod.spec}
    kind: list[Any] = [pod.namespace, pod.labels, pod.requests, pod.ports, pod.claims, pod.disks, spec]
    if pod.own_claims:
        kind.append(pod.name)
    return SORTED.encode(kind)


def _compared_fields(pod: Pod) -> tuple[object, ...]:
    """Return what of a running pod may change and matters to other pods."""
    return pod.uid, pod.node, pod.requests, pod.labels, pod.ending


@dataclass(slots=True)
class _Search:
    """The search for pods of one kind: nodes left to examine, the next one last, and why none fits, once known.

    `pod` is one of the kind; `curable` is whether other pods keep it from a node. The result holds until `grown` of the
    cluster cache changes (`is_node_local`), or `changed` if nodes depend on each other. `refused`: the last
    report to a pod of the kind was that no node fits, whatever others of the kind found since.
    """

    pod: Pod
    is_node_local: bool
    seen: int
    checks: list[NodeFilter]
    remaining: list[Node]
    refusals: list[tuple[str, ...]] = field(default_factory=list)
    message: str = ""
    curable: bool = False
    refused: bool = False


class NodeFinder:
    """Searches one lower cluster, and remembers the results for the last few kinds of pods."""

    def __init__(self, cache: NodeCache) -> None:
        self.cache = cache
        self._searches: OrderedDict[bytes, _Search] = OrderedDict()

    def find(self, pod: Pod) -> tuple[str, str]:
        """Return a node for a pod and "", or "" and why there is none, in kube-scheduler's words."""
        return self.seek(pod)[:2]

    def seek(self, pod: Pod) -> tuple[str, str, bool]:
        """Return the same, and for a pod without a node whether other pods are the reason."""
        search = self._search(pod)
        known: tuple[str, ...] = ()
        while search.remaining:
            reasons = first_reasons(search.remaining[-1], search.checks)
            if not reasons:
                return search.remaining[-1].name, "", False
            search.refusals.append(reasons)
            if not search.curable and reasons is not known:
                known = reasons
                search.curable = is_curable(search.pod, search.remaining[-1], reasons)
            search.remaining.pop()
        search.refused = True
        if not search.message:
            search.message = message(0, len(search.refusals), search.refusals)
        return "", search.message, search.curable

    def relieved(self) -> bool:
        """Report whether a kind of pods of which some were refused has a node now. Each time is reported once.

        The kinds examined longest ago come first, so that each has its turn however often something changes.
        """
        refused = (one for one in self._searches.values() if one.refused)
        changed = (
            one for one in refused if not one.message or one.seen != self._version(is_node_local=one.is_node_local)
        )
        for one in tuple(islice(changed, _MAX_REEXAMINED)):
            if self.find(one.pod)[0]:
                self._search(one.pod).refused = False
                return True
        return False

    def _search(self, pod: Pod) -> _Search:
        """Return the search for pods of this kind; a new one if a relevant change has happened."""
        kind = kind_of(pod)
        known = self._searches.pop(kind, None)
        if known is None or known.seen != self._version(is_node_local=known.is_node_local):
            was_refused = known is not None and known.refused
            known = self._begin(pod)
            known.refused = was_refused
        self._searches[kind] = known
        if len(self._searches) > _MAX_SEARCHES:
            self._searches.popitem(last=False)
        return known

    def _begin(self, pod: Pod) -> _Search:
        prepared = prepare(pod, self.cache.snapshot)
        if isinstance(prepared, NodeRefusal):
            total = len(self.cache.snapshot.nodes)
            reason = f"0/{total} nodes are available: {', '.join(prepared.reasons)}."
            return _Search(pod, is_node_local=False, seen=self.cache.changed, checks=[], remaining=[], message=reason)
        is_node_local = {name for name, _ in prepared} <= NODE_LOCAL
        checks = [one.judge for _, one in prepared]
        nodes = list(reversed(self.cache.snapshot.nodes.values()))
        return _Search(
            pod,
            is_node_local=is_node_local,
            seen=self._version(is_node_local=is_node_local),
            checks=checks,
            remaining=nodes,
        )

    def _version(self, *, is_node_local: bool) -> int:
        return self.cache.grown if is_node_local else self.cache.changed


def first_reasons(node: Node, checks: list[NodeFilter]) -> tuple[str, ...]:
    """Return the reasons of the first check that a node fails, empty if it passes all."""
    for check in checks:
        reasons = check(node)
        if reasons:
            return reasons
    return ()
