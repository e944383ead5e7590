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
from tensile.policy.extender.victims import Preemptor, Residents, VirtualNodeView, is_possible, may_preempt, priority_of
from tensile.policy.placement.placement import asks_too_much
from tensile.policy.placement.snapshot import Pod, pod_of

LAPSE = 30.0
"""Seconds after which a reservation expires that no binding has confirmed."""
_KEPT = 256
BEST = 10
"""The highest score of an extender."""

Strategy = Literal["spread", "binpack"]
ProjectPod = Callable[[Manifest], Manifest | None]
"""Returns the pod as it would be in one lower cluster; None if the pod is not mirrored."""


class LowerCandidate(NamedTuple):
    """One lower cluster: how pods look there, its state, and whether all of that state is known.

    `namespace` maps an upper namespace to the lower one. `above` returns the virtual node with its `residents`, None if
    it is not known.
    """

    below: ProjectPod
    ground: NodeCache
    seeker: NodeFinder
    is_known: Callable[[], bool]
    namespace: Callable[[str], str] = str
    residents: Residents = Residents()
    above: Callable[[], VirtualNodeView | None] = lambda: None

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

    why: str
    is_curable: bool
    helps: bool = False


@dataclass(frozen=True, slots=True)
class SchedulerExtender:
    """Answers for lower clusters, by virtual node name; the mapping may change between two requests."""

    sites: Mapping[str, LowerCandidate]
    strategy: Strategy = "spread"
    wants: dict[str, UnschedulablePod] = field(default_factory=dict)
    """By UID: pods that got no node, and for which the scheduler would find no victims itself."""
    _prospects: OrderedDict[tuple[str, bytes, int], tuple[object, bool]] = field(default_factory=OrderedDict)
    """Whether preemption could help a kind of pods, with the state of the caches for which that holds."""

    def filter(self, question: Mapping[str, Any], now: float) -> dict[str, Any]:
        """Return the ExtenderFilterResult for an ExtenderArgs; nodes that are not virtual always fit.

        A node is in FailedNodes if other pods are the reason, and in FailedAndUnresolvableNodes if preemption cannot
        help.
        """
        return deque(self.filtered(question, now), maxlen=1)[0]

    def filtered(self, question: Mapping[str, Any], now: float) -> Iterator[dict[str, Any]]:
        """Yield the answer of `filter` as far as it is known after each node; the last one is complete.

        So a caller can let other tasks run between two lower clusters.
        """
        pod, names = question["Pod"], question["NodeNames"]
        kept: list[str] = []
        failed: dict[str, str] = {}
        for_good: dict[str, str] = {}
        helping: list[str] = []
        answer = {"NodeNames": kept, "FailedNodes": failed, "FailedAndUnresolvableNodes": for_good, "Error": ""}
        for name in names:
            found = self._promise(name, pod, now) if name in self.sites else None
            if found is None:
                kept.append(name)
            else:
                told = failed if found.is_curable else for_good
                told[name] = f"no lower node of virtual node {name} fits ({found.why.rstrip('.')})"
                helping += [name] if found.helps else []
            yield answer
        for name in self.sites.keys() - set(kept):
            self._give_back(name, pod)
        self.wants.pop(uid(pod), None)
        if helping and not kept:
            self.wants[uid(pod)] = UnschedulablePod(pod, tuple(helping), now)
        yield answer

    def prioritize(self, question: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the HostPriorityList for an ExtenderArgs: how full each lower cluster is, or how empty."""
        pod = question["Pod"]
        return [{"Host": name, "Score": self._score(name, pod)} for name in question["NodeNames"]]

    def _promise(self, name: str, upper_pod: Manifest, now: float) -> ClusterRefusal | None:
        """Reserve room for a pod in one lower cluster; return why there is none, None otherwise.

        For a pod whose search would take too long nothing is reserved or refused: the lower scheduler decides.
        """
        site = self.sites[name]
        if not site.is_known():
            return None
        site.ground.refresh(now)
        site.ground.expire(now - LAPSE)
        manifest = site.below(upper_pod)
        if manifest is None:
            return None
        pod, held = seeking(manifest), self.nomination(name, upper_pod)
        site.ground.forget((pod.namespace, pod.name))
        if asks_too_much(pod, site.ground.snapshot):
            return None
        node, why, is_curable = site.seeker.seek(pod)
        node = node or _taken_over(site, pod, priority_of(upper_pod))
        if node:
            site.ground.assume(pod, node, now)
            return None
        if held is not None:
            site.ground.assume(pod, held.node, held.since, held.nominee)
            return ClusterRefusal(why, is_curable=True)
        return self._refusal(name, upper_pod, pod, why) if is_curable else ClusterRefusal(why, is_curable=False)

    def _refusal(self, name: str, upper_pod: Manifest, pod: Pod, why: str) -> ClusterRefusal:
        """Return the refusal of a pod that other pods keep from a node, with whether preempting them would help."""
        site, priority = self.sites[name], priority_of(upper_pod)
        above = site.above() if priority > site.residents.lowest and may_preempt(upper_pod) else None
        if above is None:
            return ClusterRefusal(why, is_curable=True)
        wish = Preemptor(seeking(upper_pod), pod, priority)
        kind, node = (name, kind_of(pod), priority), above.node
        now = (site.ground.changed, site.residents.changed, node.labels, node.taints, node.allocatable)
        before, helps = self._prospects.pop(kind, (None, False))
        if before != now:
            helps = is_possible(wish, site.ground, above)
        self._prospects[kind] = (now, helps)
        if len(self._prospects) > _KEPT:
            self._prospects.popitem(last=False)
        return ClusterRefusal(why, helps, helps)

    def nomination(self, name: str, upper_pod: Manifest) -> AssumedPod | None:
        """Return the reservation of a pod for which others are preempted in one lower cluster, None for none."""
        nominees = self.sites[name].ground.nominees()
        found = nominees.get(self.sites[name].name_of(upper_pod)) if nominees else None
        nominated = (upper_pod.get("status") or {}).get("nominatedNodeName") or name
        is_its = found is not None and found.nominee is not None and found.nominee.uid == uid(upper_pod)
        return found if is_its and nominated == name else None

    def _give_back(self, name: str, upper_pod: Manifest) -> None:
        """Release the reservation in a lower that was not named, unless pods are preempted there for this pod."""
        site = self.sites[name]
        if self.nomination(name, upper_pod) is None:
            site.ground.forget(site.name_of(upper_pod))

    def _score(self, name: str, upper_pod: Manifest) -> int:
        """Return the score of a lower cluster, 0 to 10, by its free share of what the pod requests."""
        site = self.sites.get(name)
        manifest = site.below(upper_pod) if site and site.is_known() else None
        if site is None or manifest is None:
            return 0
        free = free_share(seeking(manifest), site.ground)
        return round(BEST * (free if self.strategy == "spread" else 1 - free))


def _taken_over(site: LowerCandidate, pod: Pod, priority: int) -> str:
    """Return a node that is reserved for nominees of lower priority, which lose it; "" for none."""
    rivals = site.ground.nominees(priority)
    if not rivals:
        return ""
    for name in rivals:
        site.ground.forget(name)
    node, _ = site.seeker.find(pod)
    for rival in rivals.values():
        if rival.node != node:
            site.ground.assume(rival.pod, rival.node, rival.since, rival.nominee)
    return node


def seeking(manifest: Manifest) -> Pod:
    """Return a pod to find a node for; without its claims, because volumes of lower clusters are not watched."""
    return replace(pod_of(manifest), claims=(), own_claims={})


def free_share(pod: Pod, ground: NodeCache) -> float:
    """Return the free share of a lower cluster in the scarcest resource that a pod requests."""
    offered, used = ground.offered, ground.used
    names = [name for name in pod.requests or ("cpu", "memory") if offered[name] > 0]
    return min((max(0.0, 1 - used[name] / offered[name]) for name in names), default=0.0)
