"""The preview of a drain: which pods would leave a lower cluster's node, and where each would fit.

Pods leave one after the other as their disruption budgets allow. Each takes its room in the preview, so that the result
for the last pod holds beside all others. Pods with a controller come first, because they leave in any case; bare pods
leave only for the room that is left.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from tensile.kube.store import Entry
from tensile.policy.descheduler.drain import is_bare, kept
from tensile.policy.descheduler.replacement import loosed, obstacle, uses_claims
from tensile.policy.descheduler.targets import Targets, in_flight, said_of, settle
from tensile.reconcile.world import LowerWorld, World
from tensile.text import aligned

_HEAD = ("POD", "GOES TO", "REAL NODE", "WHY")
_NOBODY: frozenset[str] = frozenset()


class Eviction(NamedTuple):
    """One pod: whether it `leaves`, the virtual node with room for it and the lower node behind ("" for none).

    `why` is what prevents it from leaving, or keeps it Pending afterwards, else "". `others` are virtual nodes that
    have room too, unless other pods come first. `full` are virtual nodes that the upper scheduler may choose although
    no lower node has room now: the pod would wait there.
    """

    namespace: str
    name: str
    leaves: bool
    target: str = ""
    node: str = ""
    why: str = ""
    others: tuple[str, ...] = ()
    full: tuple[str, ...] = ()

    @property
    def is_lost(self) -> bool:
        """Whether the pod's replacement would stay Pending."""
        return self.leaves and not self.target and bool(self.why)


def evictions(world: World, name: str) -> list[Eviction]:
    """Return the preview for every pod on a lower's node, by namespace and name.

    Raises KeyError for an unknown lower.
    """
    lower = world.lowers[name]
    ground, start = Targets(world, without=lower.node), Targets(world, without=lower.node)
    for going in in_flight(world):
        if going.node != lower.node:
            settle(going, world, ground)
    pods = sorted(lower.upper_pods, key=lambda one: (_goes_alone(one), one.namespace, one.name))
    is_asked = world.topology.extender.enabled
    found = [_departure(one, lower, world, ground, start, is_asked=is_asked) for one in pods]
    return sorted(found, key=lambda one: (one.namespace, one.name))


def _goes_alone(upper: Entry) -> bool:
    """Report whether a pod leaves only if it fits elsewhere, because no controller would create it again."""
    return is_bare(upper) and not upper.facts.terminating


def _full(upper: Entry, lower: LowerWorld, start: Targets, could: list[str], *, is_asked: bool) -> tuple[str, ...]:
    """Return the virtual nodes that the upper scheduler may choose although no lower node has room."""
    return () if is_asked else tuple(sorted({*start.open_to(upper, lower.node)}.difference(could)))


def _departure(
    upper: Entry, lower: LowerWorld, world: World, ground: Targets, start: Targets, *, is_asked: bool
) -> Eviction:
    """Return the preview for one pod; `start` are the targets before any pod left.

    `is_asked` is whether schedulers call the extender.
    """
    whose = (upper.namespace, upper.name)
    is_alone = _goes_alone(upper)
    problem = obstacle(upper, world) if is_alone else kept(upper)
    if problem is not None:
        return Eviction(*whose, leaves=False, why=problem.message)
    if upper.facts.terminating or upper.facts.terminal:
        return Eviction(*whose, leaves=True)
    if uses_claims(upper.manifest()):
        return Eviction(*whose, leaves=True, why=f"its volumes are in {lower.name}: it would stay Pending")
    going = loosed(upper, world) if is_alone else upper
    found, refused = ground.others(going, lower.node, _NOBODY)
    could = start.others(going, lower.node, _NOBODY)[0] if refused else found
    if not found and is_alone:
        return Eviction(*whose, leaves=False, why=f"it fits in no other lower cluster: {said_of(refused)}")
    full = _full(going, lower, start, could, is_asked=is_asked)
    if not found:
        why = f"it would stay Pending: {said_of(refused)}"
        return Eviction(*whose, leaves=True, why=why, others=tuple(could), full=full)
    target, node = found[0], ground.move(going, lower.node, found[0])
    others = tuple(sorted({*found, *could}.difference((target,))))
    return Eviction(*whose, leaves=True, target=target, node=node, others=others, full=full)


def as_document(name: str, found: list[Eviction]) -> dict[str, Any]:
    """Return the preview as plain data: `lower`, and `pods` with the fields of an `Eviction`."""
    return {"lower": name, "pods": [one._asdict() for one in found]}


def as_text(name: str, found: list[Eviction]) -> str:
    """Return the preview as text: a table, and a last line with totals."""
    rows = [_HEAD, *map(_row, found)] if found else []
    lines = aligned(rows)
    return "\n".join([*lines, *([""] if lines else []), f"Drain of {name}: {', '.join(_counts(found))}."])


def _row(one: Eviction) -> tuple[str, str, str, str]:
    where = " or ".join((one.target, *one.others)) if one.target else ("nowhere" if one.leaves else "stays")
    full = f"the upper scheduler may bind it to {' or '.join(one.full)}, which has no free capacity" if one.full else ""
    return f"{one.namespace}/{one.name}", where, one.node or "-", "; ".join(filter(None, (one.why, full)))


def _counts(found: list[Eviction]) -> Iterator[str]:
    yield f"{sum(one.leaves for one in found)} to evict"
    yield f"{sum(one.is_lost for one in found)} of them fit in no other lower cluster"
    yield f"{sum(not one.leaves for one in found)} to stay"
