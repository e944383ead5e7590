"""Finds a node for a pod in a cluster that changes all the time, without looking at every node each time.

A burst is hundreds of pods that are alike. A node that did not do for one does not do for the next while nothing has
made room, so the search goes on where the last one stopped; and where none does, that is known until something has.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice

from tensile.policy.extender.reservations import Ground, kind_of
from tensile.policy.placement.fit import ALONE
from tensile.policy.placement.placement import Refusal, is_curable, message, prepare
from tensile.policy.placement.snapshot import Judge, Node, Pod

_KEPT = 256
_LOOKED_AT = 8
"""Kinds that are looked at again at a time, where a node may have come for one of them."""


@dataclass(slots=True)
class _Search:
    """What is known of pods of one kind: nodes that may do, the next one last, and why none does once that is known.

    `pod` is one of them; `curable` is whether it is other pods that keep it from a node. It holds until the ground's
    `grown` is another one (`alone`), or its `changed`, where nodes depend on each other.
    """

    pod: Pod
    alone: bool
    seen: int
    judges: list[Judge]
    left: list[Node]
    refusals: list[tuple[str, ...]] = field(default_factory=list)
    why: str = ""
    curable: bool = False


class Seeker:
    """Searches one ground, and remembers the last few kinds of pods."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self._known: OrderedDict[bytes, _Search] = OrderedDict()

    def find(self, pod: Pod) -> tuple[str, str]:
        """Return a node for a pod and "", or "" and why there is none, as the kube-scheduler would say it."""
        return self.seek(pod)[:2]

    def seek(self, pod: Pod) -> tuple[str, str, bool]:
        """Return the same, and whether it is other pods that keep one that has no node from one of them."""
        search = self._search(pod)
        known: tuple[str, ...] = ()
        while search.left:
            reasons = first_reasons(search.left[-1], search.judges)
            if not reasons:
                return search.left[-1].name, "", False
            search.refusals.append(reasons)
            if not search.curable and reasons is not known:
                known = reasons
                search.curable = is_curable(search.pod, search.left[-1], reasons)
            search.left.pop()
        if not search.why:
            search.why = message(0, len(search.refusals), search.refusals)
        return "", search.why, search.curable

    def relieved(self) -> bool:
        """Report whether there is a node now for a kind of pods that had none when somebody asked last.

        Those that were looked at longest ago come first, so that each has its turn however often something changes.
        """
        stale = (one for one in self._known.values() if one.why and one.seen != self._count(alone=one.alone))
        return any(self.find(one.pod)[0] for one in tuple(islice(stale, _LOOKED_AT)))

    def _search(self, pod: Pod) -> _Search:
        """Return the search for pods of this kind, begun anew where something has happened that matters to them."""
        kind = kind_of(pod)
        known = self._known.pop(kind, None)
        if known is None or known.seen != self._count(alone=known.alone):
            known = self._begin(pod)
        self._known[kind] = known
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return known

    def _begin(self, pod: Pod) -> _Search:
        prepared = prepare(pod, self.ground.snapshot)
        if isinstance(prepared, Refusal):
            total = len(self.ground.snapshot.nodes)
            why = f"0/{total} nodes are available: {', '.join(prepared.reasons)}."
            return _Search(pod, alone=False, seen=self.ground.changed, judges=[], left=[], why=why)
        alone = {name for name, _ in prepared} <= ALONE
        judges = [one.judge for _, one in prepared]
        nodes = list(reversed(self.ground.snapshot.nodes.values()))
        return _Search(pod, alone=alone, seen=self._count(alone=alone), judges=judges, left=nodes)

    def _count(self, *, alone: bool) -> int:
        return self.ground.grown if alone else self.ground.changed


def first_reasons(node: Node, judges: list[Judge]) -> tuple[str, ...]:
    """Return the reasons of the first check that a node does not pass."""
    for judge in judges:
        reasons = judge(node)
        if reasons:
            return reasons
    return ()
