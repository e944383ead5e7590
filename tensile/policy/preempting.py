"""Who goes for a pod that only real nodes refuse: the answer to a kube-scheduler that asks, and to whoever sees to it.

A kube-scheduler that preempts offers virtual nodes with the pods that would have to go by the sum. It is told instead
of those after whose end a real node has room, and of no virtual node behind which there are none. Of several the best
is told alone, and its room is kept from then on: the next pod would have it, which may be a victim's successor.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from tensile.objects import Manifest, metadata, uid
from tensile.policy.extender import Extender, Site, seeking
from tensile.policy.ground import Nominee
from tensile.policy.placement import asks_too_much
from tensile.policy.placing.snapshot import Pod
from tensile.policy.residents import may_preempt, priority_of
from tensile.policy.victims import Above, Budget, Choice, Wish, choices, counted

_FIELD = "NodeNameToMetaVictims"


class Best(NamedTuple):
    """The virtual node on which a pod costs others least, and who goes; `pod` is the one that comes, as below."""

    name: str
    pod: Pod
    choice: Choice


class Preempting:
    """Chooses for the pods that an extender is asked about."""

    def __init__(self, extender: Extender) -> None:
        self._extender = extender

    def answer(
        self, question: Mapping[str, Any], budgets: Collection[Budget] | None, now: float
    ) -> Iterator[dict[str, Any]]:
        """Answer an ExtenderPreemptionArgs with an ExtenderPreemptionResult: the last answer counts.

        Nodes that are no lower's stay as they are. Without `budgets`, which are not known then, no lower's does. Where
        others cost less behind a virtual node that is not offered, as its sum has room, none is: they go without this.
        """
        pod, offered = question["Pod"], question[_FIELD]
        told = {name: one for name, one in offered.items() if name not in self._extender.sites}
        answer = {_FIELD: told}
        if self._is_under_way(pod, offered):
            yield {_FIELD: {}}
            return
        best = None
        if budgets is not None:
            uids = {name: {one["UID"] for one in victims.get("Pods") or ()} for name, victims in offered.items()}
            want = None if told else self._extender.wants.get(uid(pod))
            uids = {**{name: set[str]() for name in (want.names if want is not None else ())}, **uids}
            for best in self.best(pod, uids, budgets):  # noqa: B007 - the last one counts
                yield answer
        if best is not None and best.name in offered and self.nominate(pod, best, now):
            gone = [{"UID": one.pod.uid} for one in best.choice.victims]
            told[best.name] = {"Pods": gone, "NumPDBViolations": best.choice.violations}
        if told:
            self._extender.wants.pop(uid(pod), None)
        yield answer

    def best(
        self, pod: Manifest, offered: Mapping[str, Collection[str]], budgets: Collection[Budget]
    ) -> Iterator[Best | None]:
        """Return the best of some virtual nodes, as far as it is known after each real node: the last one counts.

        `offered` has by virtual node the UIDs of the pods that would have to go by the sum.
        """
        best = None
        for name, uids in offered.items():
            site = self._extender.sites.get(name)
            wish, above = wish_of(pod, site) if site is not None else None, site.above() if site is not None else None
            if site is None or wish is None or above is None or not may_preempt(pod):
                continue
            for choice in choices(wish, site.ground, above, budgets, counted(wish, above, uids)):
                if choice is not None and (best is None or choice.cost < best.choice.cost):
                    best = Best(name, wish.below, choice)
                yield best

    def nominate(self, pod: Manifest, best: Best, now: float) -> bool:
        """Keep the room that others make for a pod; reports whether they are all still there.

        Nominees of lower priority that were to come to that node have to look for another.
        """
        site = self._extender.sites.get(best.name)
        above = site.above() if site is not None else None
        if site is None or above is None or not _are_there(best.choice, above):
            return False
        priority = priority_of(pod)
        for name, one in site.ground.nominees(priority).items():
            if one.node == best.choice.node:
                site.ground.break_promise(name)
        nominee = Nominee(uid(pod), priority, best.choice.names)
        site.ground.promise(best.pod, best.choice.node, now, nominee)
        return True

    def release(self, pod: Manifest, best: Best) -> None:
        """Keep that room no longer."""
        site = self._extender.sites.get(best.name)
        if site is not None:
            site.ground.break_promise(site.name_of(pod))

    def _is_under_way(self, pod: Manifest, offered: Collection[str]) -> bool:
        """Report whether others are going for a pod already, where it is not offered to have any go."""
        sites = self._extender.sites
        return any(self._extender.nomination(name, pod) is not None for name in sites if name not in offered)


def wish_of(pod: Manifest, site: Site) -> Wish | None:
    """Return what a pod looks for in a lower; None where nobody can say whether it would find it."""
    manifest = site.below(pod) if site.is_known() and metadata(pod).get("name") else None
    below = seeking(manifest) if manifest is not None else None
    if below is None or asks_too_much(below, site.ground.snapshot):
        return None
    return Wish(seeking(pod), below, priority_of(pod))


def _are_there(choice: Choice, above: Above) -> bool:
    """Report whether all who are to go are still bound to the virtual node: a scheduler takes no others."""
    there = (above.residents.get(name) for name in choice.names)
    uids = {one.pod.uid for one in there if one is not None}
    return uids == {one.pod.uid for one in choice.victims}
