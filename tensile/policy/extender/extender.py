"""What the scheduler extender answers: which virtual nodes have a real node for a pod, and which of them is better.

The upper scheduler asks about one pod at a time and far faster than its decisions become visible, so what was answered
is promised: room is kept in every cluster that was named, until the pod is seen bound to one of them. It is kept there
until the pod has its node below, and given back by the others; what nobody comes for lapses.

The scheduler preempts on what it sees, which is the sum. Where that has room and no real node has, it finds nobody who
would have to go: such pods are wanted, and are seen to by whoever holds the extender (policy/preemptor.py).
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from tensile.objects import Manifest, metadata, uid
from tensile.policy.extender.reservations import Ground, PodName, Promise, kind_of
from tensile.policy.extender.search import Seeker
from tensile.policy.extender.victims import Above, Residents, Wish, is_possible, may_preempt, priority_of
from tensile.policy.placement.placement import asks_too_much
from tensile.policy.placement.reader import pod_of
from tensile.policy.placement.snapshot import Pod

LAPSE = 30.0
"""Seconds after which a promise is given back that no binding has confirmed."""
_KEPT = 256
BEST = 10
"""The highest score that an extender may give."""

Strategy = Literal["spread", "binpack"]
Below = Callable[[Manifest], Manifest | None]
"""Gives the pod as it would be in one lower; None where it is none of ours to place."""


class Site(NamedTuple):
    """One lower cluster: how pods are there, what is known of it, and whether all of that is known.

    `namespace` gives the namespace below for one above; `above` the virtual node with its `residents`, None while
    nothing is known of it.
    """

    below: Below
    ground: Ground
    seeker: Seeker
    is_known: Callable[[], bool]
    namespace: Callable[[str], str] = str
    residents: Residents = Residents()
    above: Callable[[], Above | None] = lambda: None

    def name_of(self, upper_pod: Manifest) -> PodName:
        """Return what an upper pod is called below."""
        meta = metadata(upper_pod)
        return self.namespace(meta.get("namespace") or "default"), meta["name"]


class Want(NamedTuple):
    """A pod that fits nowhere, and the virtual nodes behind which it would if others went; since when, in seconds."""

    pod: Manifest
    names: tuple[str, ...]
    since: float


class Refusal(NamedTuple):
    """Why no node behind a virtual one does: whether other pods are the reason, and whether some of them could go."""

    why: str
    is_curable: bool
    helps: bool = False


@dataclass(frozen=True, slots=True)
class Extender:
    """Answers for the lowers by the names of their virtual nodes; the mapping may change between two questions."""

    sites: Mapping[str, Site]
    strategy: Strategy = "spread"
    wants: dict[str, Want] = field(default_factory=dict)
    """By the pods' UIDs: those for which the scheduler was told of no node, and would find nobody who has to go."""
    _prospects: OrderedDict[tuple[str, bytes, int], tuple[tuple[int, int], bool]] = field(default_factory=OrderedDict)
    """Whether others could go for a kind of pods, and on what that rests."""

    def filter(self, question: Mapping[str, Any], now: float) -> dict[str, Any]:
        """Answer an ExtenderArgs with an ExtenderFilterResult. Nodes that are no lower's always do.

        Where other pods would have to go, a node has failed; where that is no help, it is unresolvable.
        """
        return deque(self.filtered(question, now), maxlen=1)[0]

    def filtered(self, question: Mapping[str, Any], now: float) -> Iterator[dict[str, Any]]:
        """Answer as `filter` does, with what is known after each node: the last answer counts.

        So whoever answers for ten lowers need not do so in one go.
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
                told[name] = f"no node behind {name} takes it ({found.why.rstrip('.')})"
                helping += [name] if found.helps else []
            yield answer
        for name in self.sites.keys() - set(kept):
            self._give_back(name, pod)
        self.wants.pop(uid(pod), None)
        if helping and not kept:
            self.wants[uid(pod)] = Want(pod, tuple(helping), now)
        yield answer

    def prioritize(self, question: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Answer an ExtenderArgs with a HostPriorityList: how full each lower is, or how empty."""
        pod = question["Pod"]
        return [{"Host": name, "Score": self._score(name, pod)} for name in question["NodeNames"]]

    def _promise(self, name: str, upper_pod: Manifest, now: float) -> Refusal | None:
        """Keep room for a pod in one lower; returns why there is none.

        None is kept for a pod that it takes long to find a node for, and nothing is said: the scheduler below decides.
        """
        site = self.sites[name]
        if not site.is_known():
            return None
        site.ground.refresh(now)
        site.ground.lapse(now - LAPSE)
        manifest = site.below(upper_pod)
        if manifest is None:
            return None
        pod, held = seeking(manifest), self.nomination(name, upper_pod)
        site.ground.break_promise((pod.namespace, pod.name))
        if asks_too_much(pod, site.ground.snapshot):
            return None
        node, why, is_curable = site.seeker.seek(pod)
        node = node or _taken_over(site, pod, priority_of(upper_pod))
        if node:
            site.ground.promise(pod, node, now)
            return None
        if held is not None:
            site.ground.promise(pod, held.node, held.since, held.nominee)
            return Refusal(why, is_curable=True)
        return self._refusal(name, upper_pod, pod, why) if is_curable else Refusal(why, is_curable=False)

    def _refusal(self, name: str, upper_pod: Manifest, pod: Pod, why: str) -> Refusal:
        """Return of a pod that others keep from a node whether those that it may have go would do."""
        site, priority = self.sites[name], priority_of(upper_pod)
        above = site.above() if priority > site.residents.lowest and may_preempt(upper_pod) else None
        if above is None:
            return Refusal(why, is_curable=True)
        wish = Wish(seeking(upper_pod), pod, priority)
        kind, now = (name, kind_of(pod), priority), (site.ground.changed, site.residents.changed)
        before, helps = self._prospects.pop(kind, ((-1, -1), False))
        if before != now:
            helps = is_possible(wish, site.ground, above)
        self._prospects[kind] = (now, helps)
        if len(self._prospects) > _KEPT:
            self._prospects.popitem(last=False)
        return Refusal(why, helps, helps)

    def nomination(self, name: str, upper_pod: Manifest) -> Promise | None:
        """Return what is kept for a pod on whose behalf others go in one lower, None where nothing is."""
        nominees = self.sites[name].ground.nominees()
        found = nominees.get(self.sites[name].name_of(upper_pod)) if nominees else None
        nominated = (upper_pod.get("status") or {}).get("nominatedNodeName") or name
        is_its = found is not None and found.nominee is not None and found.nominee.uid == uid(upper_pod)
        return found if is_its and nominated == name else None

    def _give_back(self, name: str, upper_pod: Manifest) -> None:
        """Keep no room where the pod does not come, unless others are going there on its behalf."""
        site = self.sites[name]
        if self.nomination(name, upper_pod) is None:
            site.ground.break_promise(site.name_of(upper_pod))

    def _score(self, name: str, upper_pod: Manifest) -> int:
        """Return from 0 to 10 how good a lower is, by the share that is free of what the pod asks for."""
        site = self.sites.get(name)
        manifest = site.below(upper_pod) if site and site.is_known() else None
        if site is None or manifest is None:
            return 0
        free = free_share(seeking(manifest), site.ground)
        return round(BEST * (free if self.strategy == "spread" else 1 - free))


def _taken_over(site: Site, pod: Pod, priority: int) -> str:
    """Find a node where room is kept for nominees of lower priority, which lose it; returns "" for none."""
    rivals = site.ground.nominees(priority)
    if not rivals:
        return ""
    for name in rivals:
        site.ground.break_promise(name)
    node, _ = site.seeker.find(pod)
    for rival in rivals.values():
        if rival.node != node:
            site.ground.promise(rival.pod, rival.node, rival.since, rival.nominee)
    return node


def seeking(manifest: Manifest) -> Pod:
    """Read a pod that looks for a node; without its claims, as nobody follows volumes below."""
    return replace(pod_of(manifest), claims=(), own_claims={})


def free_share(pod: Pod, ground: Ground) -> float:
    """Return how much of a lower is free of the resource that it has least of, among those that a pod asks for."""
    offered, used = ground.offered, ground.used
    names = [name for name in pod.requests or ("cpu", "memory") if offered[name] > 0]
    return min((max(0.0, 1 - used[name] / offered[name]) for name in names), default=0.0)
