"""What the scheduler extender answers: which virtual nodes have a real node for a pod, and which of them is better.

The upper scheduler asks about one pod at a time and far faster than its decisions become visible, so what was answered
is promised: room is kept in every cluster that was named, until the pod is seen bound to one of them. It is kept there
until the pod has its node below, and given back by the others; what nobody comes for lapses.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from tensile.objects import Manifest, metadata
from tensile.policy.ground import Ground
from tensile.policy.placement import asks_too_much
from tensile.policy.placing.reading import pod_of
from tensile.policy.placing.snapshot import Pod
from tensile.policy.seeking import Seeker

LAPSE = 30.0
"""Seconds after which a promise is given back that no binding has confirmed."""
BEST = 10
"""The highest score that an extender may give."""

Strategy = Literal["spread", "binpack"]
Below = Callable[[Manifest], Manifest | None]
"""Gives the pod as it would be in one lower; None where it is none of ours to place."""


class Site(NamedTuple):
    """One lower cluster: how pods are there, what is known of it, and whether all of that is known.

    `namespace` gives the namespace below for one above.
    """

    below: Below
    ground: Ground
    seeker: Seeker
    is_known: Callable[[], bool]
    namespace: Callable[[str], str] = str


@dataclass(frozen=True, slots=True)
class Extender:
    """Answers for the lowers by the names of their virtual nodes; the mapping may change between two questions."""

    sites: Mapping[str, Site]
    strategy: Strategy = "spread"

    def filter(self, question: Mapping[str, Any], now: float) -> dict[str, Any]:
        """Answer an ExtenderArgs with an ExtenderFilterResult. Nodes that are no lower's always do.

        What does not fit is unresolvable: no pod has to go above for the sake of a node below.
        """
        return deque(self.filtered(question, now), maxlen=1)[0]

    def filtered(self, question: Mapping[str, Any], now: float) -> Iterator[dict[str, Any]]:
        """Answer as `filter` does, with what is known after each node: the last answer counts.

        So whoever answers for ten lowers need not do so in one go.
        """
        pod, names = question["Pod"], question["NodeNames"]
        kept: list[str] = []
        refused: dict[str, str] = {}
        answer = {"NodeNames": kept, "FailedNodes": {}, "FailedAndUnresolvableNodes": refused, "Error": ""}
        for name in names:
            why = self._promise(name, pod, now) if name in self.sites else ""
            if why:
                refused[name] = f"no node behind {name} takes it ({why.rstrip('.')})"
            else:
                kept.append(name)
            yield answer
        for name in self.sites.keys() - set(kept):
            self._give_back(name, pod)
        yield answer

    def prioritize(self, question: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Answer an ExtenderArgs with a HostPriorityList: how full each lower is, or how empty."""
        pod = question["Pod"]
        return [{"Host": name, "Score": self._score(name, pod)} for name in question["NodeNames"]]

    def _promise(self, name: str, upper_pod: Manifest, now: float) -> str:
        """Keep room for a pod in one lower; gives why there is none.

        None is kept for a pod that it takes long to find a node for, and nothing is said: the scheduler below decides.
        """
        site = self.sites[name]
        if not site.is_known():
            return ""
        site.ground.lapse(now - LAPSE)
        manifest = site.below(upper_pod)
        if manifest is None:
            return ""
        pod = seeking(manifest)
        site.ground.break_promise((pod.namespace, pod.name))
        if asks_too_much(pod, site.ground.snapshot):
            return ""
        node, why = site.seeker.find(pod)
        if node:
            site.ground.promise(pod, node, now)
        return why

    def _give_back(self, name: str, upper_pod: Manifest) -> None:
        """Keep no room where the pod does not come."""
        site, meta = self.sites[name], metadata(upper_pod)
        site.ground.break_promise((site.namespace(meta.get("namespace") or "default"), meta["name"]))

    def _score(self, name: str, upper_pod: Manifest) -> int:
        """Say from 0 to 10 how good a lower is, by the share that is free of what the pod asks for."""
        site = self.sites.get(name)
        manifest = site.below(upper_pod) if site and site.is_known() else None
        if site is None or manifest is None:
            return 0
        free = free_share(seeking(manifest), site.ground)
        return round(BEST * (free if self.strategy == "spread" else 1 - free))


def seeking(manifest: Manifest) -> Pod:
    """Read a pod that looks for a node; without its claims, as nobody follows volumes below."""
    return replace(pod_of(manifest), claims=(), own_claims={})


def free_share(pod: Pod, ground: Ground) -> float:
    """Give how much of a lower is free of the resource that it has least of, among those that a pod asks for."""
    offered, used = ground.offered, ground.used
    names = [name for name in pod.requests or ("cpu", "memory") if offered[name] > 0]
    return min((max(0.0, 1 - used[name] / offered[name]) for name in names), default=0.0)
