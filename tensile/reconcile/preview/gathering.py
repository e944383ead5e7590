"""From all that was recorded to a preview: object by object, cluster by cluster, in an order that a person likes.

The order depends on nothing but the names, so two plans of one state are the same text.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tensile.objects import CONFIG_MAP, NAMESPACE, NODE, POD, SECRET, UPPER, Manifest, Ref
from tensile.reconcile.preview.changes import Change, Preview
from tensile.reconcile.preview.folding import fold
from tensile.reconcile.preview.recorder import Recorded
from tensile.world import Key, Problem, World

if TYPE_CHECKING:
    from tensile.reconcile.plan import Step

Before = Callable[[Ref], Manifest | None]

_RANKS = {NAMESPACE.name: 0, CONFIG_MAP.name: 1, SECRET.name: 2, POD.name: 4, NODE.name: 5}
_OTHER_RANK = 3
_DIGITS = re.compile(r"([0-9]+)")


def preview(
    recorded: Iterable[Recorded],
    problems: Mapping[Key, Problem],
    before: Before,
    *,
    topology: str,
    lowers: Sequence[str],
    unreached: Mapping[str, str],
) -> Preview:
    """Fold recorded steps into one change for each object.

    `before` gives an object as it was observed before the first step, None when there was none. `topology` is the
    topology's name, `lowers` the names of its lowers in the file's order; one that left the file comes after them.
    `unreached` says why some of them could not be looked at.
    """
    steps: dict[Ref, list[Step]] = {}
    for one in recorded:
        steps.setdefault(one.step.ref, []).append(one.step)
    folded = (fold(ref, group, before(ref)) for ref, group in sorted(steps.items(), key=lambda item: _order(item[0])))
    found = [change for change in folded if change is not None]
    left = sorted({change.ref.cluster for change in found} - {UPPER, *lowers})
    looked_at = [name for name in lowers if name not in unreached]
    clusters = {cluster: _of(cluster, found) for cluster in (UPPER, *looked_at, *left)}
    places = {cluster: place for place, cluster in enumerate(clusters)}
    stuck = sorted(problems.items(), key=lambda item: (places.get(item[0].lower, len(places)), _key_order(item[0])))
    return Preview(topology, clusters, tuple(stuck), unreached)


def observed(world: World) -> Before:
    """Look objects up in a world's caches: in one that does not change while a copy of it is rehearsed on."""

    def find(ref: Ref) -> Manifest | None:
        above = ref.cluster == UPPER and ref.kind == POD
        caches = [world.cache(ref.cluster, ref.kind, lower) for lower in (world.lowers if above else (ref.cluster,))]
        caches += [world.upper.waiting] if above else []
        entries = (cache.get(ref.namespace, ref.name) for cache in caches if cache is not None)
        return next((entry.manifest() for entry in entries if entry is not None and entry.raw), None)

    return find


def _of(cluster: str, changes: Iterable[Change]) -> tuple[Change, ...]:
    return tuple(change for change in changes if change.ref.cluster == cluster)


def _order(ref: Ref) -> tuple[Any, ...]:
    """Put namespaces first, then configuration, pods, nodes."""
    return (_RANKS.get(ref.kind.name, _OTHER_RANK), ref.kind.name, _counted(ref.namespace), _counted(ref.name))


def _key_order(key: Key) -> tuple[Any, ...]:
    return (key.lower, key.rule, _counted(key.namespace), _counted(key.name))


def _counted(name: str) -> list[tuple[int, str]]:
    """Sort names as a person counts: web-2 before web-10."""
    return [(int(part) if part.isdecimal() else -1, part) for part in _DIGITS.split(name) if part]
