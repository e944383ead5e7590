"""Finds a node for a pod in a cluster that changes constantly, without examining every node each time.

In a burst, hundreds of pods are alike. A node that did not fit one does not fit the next until something makes room. So
a search continues where the last one stopped, and if no node fits, that result is kept until something changes.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice

from tensile.policy.extender.reservations import NodeCache, kind_of
from tensile.policy.placement.fit import ALONE
from tensile.policy.placement.placement import NodeRefusal, is_curable, message, prepare
from tensile.policy.placement.snapshot import Node, NodeFilter, Pod

_KEPT = 256
_LOOKED_AT = 8
"""How many kinds of pods are examined again at a time when a node may have become free for them."""


@dataclass(slots=True)
class _Search:
    """The search for pods of one kind: nodes left to examine, the next one last, and why none fits, once known.

    `pod` is one of the kind; `curable` is whether other pods keep it from a node. The result holds until `grown` of the
    cluster cache changes (`alone`), or `changed` if nodes depend on each other.
    """

    pod: Pod
    alone: bool
    seen: int
    judges: list[NodeFilter]
    left: list[Node]
    refusals: list[tuple[str, ...]] = field(default_factory=list)
    why: str = ""
    curable: bool = False


class NodeFinder:
    """Searches one lower cluster, and remembers the results for the last few kinds of pods."""

    def __init__(self, ground: NodeCache) -> None:
        self.ground = ground
        self._known: OrderedDict[bytes, _Search] = OrderedDict()

    def find(self, pod: Pod) -> tuple[str, str]:
        """Return a node for a pod and "", or "" and why there is none, in kube-scheduler's words."""
        return self.seek(pod)[:2]

    def seek(self, pod: Pod) -> tuple[str, str, bool]:
        """Return the same, and for a pod without a node whether other pods are the reason."""
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
        """Report whether a kind of pods that had no node at its last search has one now.

        The kinds examined longest ago come first, so that each has its turn however often something changes.
        """
        stale = (one for one in self._known.values() if one.why and one.seen != self._count(alone=one.alone))
        return any(self.find(one.pod)[0] for one in tuple(islice(stale, _LOOKED_AT)))

    def _search(self, pod: Pod) -> _Search:
        """Return the search for pods of this kind; a new one if a relevant change has happened."""
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
        if isinstance(prepared, NodeRefusal):
            total = len(self.ground.snapshot.nodes)
            why = f"0/{total} nodes are available: {', '.join(prepared.reasons)}."
            return _Search(pod, alone=False, seen=self.ground.changed, judges=[], left=[], why=why)
        alone = {name for name, _ in prepared} <= ALONE
        judges = [one.judge for _, one in prepared]
        nodes = list(reversed(self.ground.snapshot.nodes.values()))
        return _Search(pod, alone=alone, seen=self._count(alone=alone), judges=judges, left=nodes)

    def _count(self, *, alone: bool) -> int:
        return self.ground.grown if alone else self.ground.changed


def first_reasons(node: Node, judges: list[NodeFilter]) -> tuple[str, ...]:
    """Return the reasons of the first check that a node fails, empty if it passes all."""
    for judge in judges:
        reasons = judge(node)
        if reasons:
            return reasons
    return ()
