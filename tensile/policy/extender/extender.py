"""The scheduler extender's answers: which virtual nodes have a lower node for a pod, and which is better.

The upper scheduler sends one pod at a time, far faster than its bindings become visible. So room is reserved in every
lower cluster that was named, until the pod is bound to one of them. There it stays reserved until the pod has its lower
node; the others release it. A reservation that no binding confirms expires.

The scheduler preempts by the sum that it sees. If the sum has room but no lower node has, it finds no victims. Such
pods are recorded in `wants`, and the owner of the extender handles them (`Preemptor` in preemption.py).
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from tensile.objects import Manifest, metadata, uid
from tensile.policy.extender.node_cache import AssumedPod, NodeCache, NodeFinder, PodName, kind_of
from tensile.policy.extender.victim_selection import (
    Preemptor,
    Residents,
    VirtualNodeView,
    is_possible,
    may_preempt,
    priority_of,
)
from tensile.policy.placement.placement import is_too_complex
from tensile.policy.placement.snapshot import Pod, pod_of

RESERVATION_SECONDS = 30.0
"""Seconds after which a reservation expires that no binding has confirmed."""
_MAX_RESULTS = 256
MAX_SCORE = 10
"""The highest score of an extender."""

Strategy = Literal["spread", "binpack"]
ProjectPod = Callable[[Manifest], Manifest | None]
"""Returns the pod as it would be in one lower cluster; None if the pod is not mirrored."""


class LowerCandidate(NamedTuple):
    """One lower cluster: how pods are projected into it, its state, and whether all of that state is known.

    `namespace` maps an upper namespace to the lower one. `virtual_node` returns the virtual node with its `residents`,
    None if it is not known.
    """

    project: ProjectPod
    cache: NodeCache
    finder: NodeFinder
    is_known: Callable[[], bool]
    namespace: Callable[[str], str] = str
    residents: Residents = Residents()
    virtual_node: Callable[[], VirtualNodeView | None] = lambda: None

    def name_of(self, upper_pod: Manifest) -> PodName:
        """Return the lower namespace and name of an upper pod."""
        meta = metadata(upper_pod)
        return self.namespace(meta.get("namespace") or "default"), meta["name"]


class UnschedulablePod(NamedTuple):
    """A pod that fits nowhere, the virtual nodes where preemption would help, and since when, in seconds."""

    pod: Manifest
    names: tuple[str, ...]
    since: float


class ClusterRefusal(NamedTuple):
    """Why no lower node fits, whether other pods are the reason, and whether preemption would help."""

    message: str
    is_curable: bool
    helps: bool = False


@dataclass(frozen=True, slots=True)
class SchedulerExtender:
    """Answers for lower clusters, by virtual node name; the mapping may change between two requests."""

    sites: Mapping[str, LowerCandidate]
    strategy: Strategy = "spread"
    wants: dict[str, UnschedulablePod] = field(default_factory=dict)
    """By UID: pods that got no node, and for which the scheduler would find no victims itself."""
    _preemption_results: OrderedDict[tuple[str, bytes, int], tuple[object, bool]] = field(default_factory=OrderedDict)
    """Whether preemption could help a kind of pods, with the state of the caches for which that holds."""

    def filter(self, args: Mapping[str, Any], now: float) -> dict[str, Any]:
        """Return the ExtenderFilterResult for an ExtenderArgs; nodes that are not virtual always fit.

        A node is in FailedNodes if other pods are the reason, and in FailedAndUnresolvableNodes if preemption cannot
        help.
        """
        return deque(self.filtered(args, now), maxlen=1)[0]

    def filtered(self, args: Mapping[str, Any], now: float) -> Iterator[dict[str, Any]]:
        """Yield the answer of `filter` as far as it is known after each node; the last one is complete.

        So a caller can let other tasks run between two lower clusters.
        """
        pod, names = args["Pod"], args["NodeNames"]
        fitting: list[str] = []
        failed: dict[str, str] = {}
        unresolvable: dict[str, str] = {}
        preemptable: list[str] = []
        answer = {"NodeNames": fitting, "FailedNodes": failed, "FailedAndUnresolvableNodes": unresolvable, "Error": ""}
        for name in names:
            refusal = self._reserve(name, pod, now) if name in self.sites else None
            if refusal is None:
                fitting.append(name)
            else:
                failures = failed if refusal.is_curable else unresolvable
                failures[name] = f"no lower node of virtual node {name} fits ({refusal.message.rstrip('.')})"
                preemptable += [name] if refusal.helps else []
            yield answer
        for name in self.sites.keys() - set(fitting):
            self._release(name, pod)
        self.wants.pop(uid(pod), None)
        if preemptable and not fitting:
            self.wants[uid(pod)] = UnschedulablePod(pod, tuple(preemptable), now)
        yield answer

    def prioritize(self, args: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the HostPriorityList for an ExtenderArgs: how full each lower cluster is, or how empty."""
        pod = args["Pod"]
        return [{"Host": name, "Score": self._score(name, pod)} for name in args["NodeNames"]]

    def _reserve(self, name: str, upper_pod: Manifest, now: float) -> ClusterRefusal | None:
        """Reserve room for a pod in one lower cluster; return why there is none, None otherwise.

        For a pod whose search would take too long nothing is reserved or refused: the lower scheduler decides.
        """
        candidate = self.sites[name]
        if not candidate.is_known():
            return None
        candidate.cache.refresh(now)
        candidate.cache.expire(now - RESERVATION_SECONDS)
        manifest = candidate.project(upper_pod)
        if manifest is None:
            return None
        pod, reservation = unbound_pod(manifest), self.nomination(name, upper_pod)
        candidate.cache.forget((pod.namespace, pod.name))
        if is_too_complex(pod, candidate.cache.snapshot):
            return None
        node, message, is_curable = candidate.finder.seek(pod)
        node = node or _take_over_node(candidate, pod, priority_of(upper_pod))
        if node:
            candidate.cache.assume(pod, node, now)
            return None
        if reservation is not None:
            candidate.cache.assume(pod, reservation.node, reservation.since, reservation.nominee)
            return ClusterRefusal(message, is_curable=True)
        return self._refusal(name, upper_pod, pod, message) if is_curable else ClusterRefusal(message, is_curable=False)

    def _refusal(self, name: str, upper_pod: Manifest, pod: Pod, message: str) -> ClusterRefusal:
        """Return the refusal of a pod that other pods keep from a node, with whether preempting them would help."""
        candidate, priority = self.sites[name], priority_of(upper_pod)
        virtual_node = (
            candidate.virtual_node() if priority > candidate.residents.lowest and may_preempt(upper_pod) else None
        )
        if virtual_node is None:
            return ClusterRefusal(message, is_curable=True)
        preemptor = Preemptor(unbound_pod(upper_pod), pod, priority)
        key, node = (name, kind_of(pod), priority), virtual_node.node
        state = (candidate.cache.changed, candidate.residents.changed, node.labels, node.taints, node.allocatable)
        former_state, helps = self._preemption_results.pop(key, (None, False))
        if former_state != state:
            helps = is_possible(preemptor, candidate.cache, virtual_node)
        self._preemption_results[key] = (state, helps)
        if len(self._preemption_results) > _MAX_RESULTS:
            self._preemption_results.popitem(last=False)
        return ClusterRefusal(message, helps, helps)

    def nomination(self, name: str, upper_pod: Manifest) -> AssumedPod | None:
        """Return the reservation of a pod for which others are preempted in one lower cluster, None for none."""
        nominees = self.sites[name].cache.nominees()
        reservation = nominees.get(self.sites[name].name_of(upper_pod)) if nominees else None
        nominated = (upper_pod.get("status") or {}).get("nominatedNodeName") or name
        is_own = (
            reservation is not None and reservation.nominee is not None and reservation.nominee.uid == uid(upper_pod)
        )
        return reservation if is_own and nominated == name else None

    def _release(self, name: str, upper_pod: Manifest) -> None:
        """Release the reservation in a lower that was not named, unless pods are preempted there for this pod."""
        candidate = self.sites[name]
        if self.nomination(name, upper_pod) is None:
            candidate.cache.forget(candidate.name_of(upper_pod))

    def _score(self, name: str, upper_pod: Manifest) -> int:
        """Return the score of a lower cluster, 0 to 10, by its free share of what the pod requests."""
        candidate = self.sites.get(name)
        manifest = candidate.project(upper_pod) if candidate and candidate.is_known() else None
        if candidate is None or manifest is None:
            return 0
        free = free_share(unbound_pod(manifest), candidate.cache)
        return round(MAX_SCORE * (free if self.strategy == "spread" else 1 - free))


def _take_over_node(candidate: LowerCandidate, pod: Pod, priority: int) -> str:
    """Return a node that is reserved for nominees of lower priority, which lose it; "" for none."""
    rivals = candidate.cache.nominees(priority)
    if not rivals:
        return ""
    for name in rivals:
        candidate.cache.forget(name)
    node, _ = candidate.finder.find(pod)
    for rival in rivals.values():
        if rival.node != node:
            candidate.cache.assume(rival.pod, rival.node, rival.since, rival.nominee)
    return node


def unbound_pod(manifest: Manifest) -> Pod:
    """Return a pod to find a node for; without its claims, because volumes of lower clusters are not watched."""
    return replace(pod_of(manifest), claims=(), own_claims={})


def free_share(pod: Pod, cache: NodeCache) -> float:
    """Return the free share of a lower cluster in the scarcest resource that a pod requests."""
    offered, used = cache.offered, cache.used
    names = [name for name in pod.requests or ("cpu", "memory") if offered[name] > 0]
    return min((max(0.0, 1 - used[name] / offered[name]) for name in names), default=0.0)
