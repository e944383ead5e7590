"""Which of a pod's requirements on nodes go into the annotation, and which stay for the upper scheduler.

A node affinity is a list of terms of which one has to hold. Taking each term apart is right only where every upper
half goes with every lower half; else the pod would have to satisfy halves of different terms. Where it is not, the
terms go into the annotation whole, and the engine leaves out those that ask for another virtual node.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import orjson

from tensile.errors import TensileError
from tensile.objects import Manifest
from tensile.reconcile.cluster_selector import LONGEST, MOST
from tensile.reconcile.nodeterms import LISTS, REQUIRED, Split, has_requirements, is_upper_only, required_of, split_term


class _Rank(dict[str, int]):
    """Where a field stands among others: as in Go's types; those that are not known come last, as they came."""

    def __missing__(self, _field: str) -> int:
        return len(self)


_FIELDS = ("nodeSelectorTerms", "matchExpressions", "matchFields", "key", "operator", "value", "values", "effect")
_RANK = _Rank({field: rank for rank, field in enumerate((*_FIELDS, "tolerationSeconds"))})
_Terms = list[Manifest]


class Unprepared(TensileError):
    """Why a pod cannot be prepared: it is to be created as it is, and its author told."""


class Moved(NamedTuple):
    """What becomes of a spec: its nodeSelector and affinity (None for none), and the content of the annotation."""

    node_selector: Manifest | None
    affinity: Manifest | None
    selector: Manifest


def moved(spec: Manifest, keys: Collection[str], nodes: Collection[str]) -> Moved:
    """Move what a spec asks of lower nodes; `keys` and `nodes` are what exists above only."""
    asked: Mapping[str, str] = spec.get("nodeSelector") or {}
    stays = {key: value for key, value in asked.items() if is_upper_only(key, [value], keys, nodes)}
    goes = {key: asked[key] for key in sorted(asked.keys() - stays.keys())}
    required = required_of(spec) or {}
    above, below = _divided(required.get("nodeSelectorTerms") or [], keys, nodes)
    tolerations = [_plain(one) for one in spec.get("tolerations") or ()]
    selector = {"nodeSelector": goes, "affinity": _affinity(required, below), "tolerations": tolerations}
    return Moved(stays or None, _left(spec, above), {field: value for field, value in selector.items() if value})


def merged(first: Manifest, second: Manifest) -> Manifest:
    """Give a selector that asks for what both ask for; the very first where the second asks for nothing.

    Raises Unprepared where that would be too large.
    """
    if not second:
        return first
    crossed = _crossed(_required(first), _required(second))
    node_selector = {**(first.get("nodeSelector") or {}), **(second.get("nodeSelector") or {})}
    selector = {
        **first,
        "nodeSelector": {key: node_selector[key] for key in sorted(node_selector)},
        "affinity": _over(first.get("affinity") or {}, _affinity({}, crossed)),
        "tolerations": [*(first.get("tolerations") or ()), *map(_plain, second.get("tolerations") or ())],
    }
    return {field: value for field, value in selector.items() if value}


def _divided(terms: _Terms, keys: Collection[str], nodes: Collection[str]) -> tuple[_Terms, _Terms]:
    """Give the terms that stay and those that go; a list without terms asks for nothing."""
    halves = [split_term(term, keys, nodes) for term in terms]
    if all(half.below is None or not has_requirements(half.below) for half in halves):
        return terms, []
    real = [half for half in halves if half.above or has_requirements(half.below or {})]
    above = [half.above for half in real if half.above is not None]
    below = [half.below for half in real if half.below is not None]
    if not _goes_with_each_other(real):
        below = [term for term in terms if has_requirements(term)]
    stays = above if len(above) == len(real) else []
    return stays, [_plain(term) for term in below] if len(below) == len(real) else []


def _goes_with_each_other(halves: list[Split]) -> bool:
    """Say whether any upper half with any lower half is what was asked: all of one side are the same."""
    first = halves[0]
    return all(half.above == first.above for half in halves) or all(half.below == first.below for half in halves)


def _left(spec: Manifest, terms: _Terms) -> Manifest | None:
    """Give the affinity that stays; what came as an empty one goes, and one that was emptied here stays empty.

    That is tensile-kube's form, which means the same.
    """
    affinity: Manifest = spec.get("affinity") or {}
    node: Manifest = affinity.get("nodeAffinity") or {}
    rest = {field: value for field, value in affinity.items() if field != "nodeAffinity"}
    if REQUIRED not in node:
        return {**rest, **({"nodeAffinity": node} if node else {})} or None
    kept = {field: value for field, value in node.items() if field != REQUIRED}
    if terms:
        kept[REQUIRED] = {**(node[REQUIRED] or {}), "nodeSelectorTerms": terms}
    return {**rest, "nodeAffinity": kept}


def _affinity(required: Manifest, terms: _Terms) -> Manifest | None:
    """Give the affinity of the annotation."""
    if not terms:
        return None
    return {"nodeAffinity": {REQUIRED: _plain({**required, "nodeSelectorTerms": terms})}}


def _over(present: Manifest, affinity: Manifest | None) -> Manifest:
    """Lay the affinity of the annotation over what else is in it."""
    if affinity is None:
        return present
    return {**present, "nodeAffinity": {**(present.get("nodeAffinity") or {}), **affinity["nodeAffinity"]}}


def _required(selector: Manifest) -> _Terms:
    found: _Terms = (required_of(selector) or {}).get("nodeSelectorTerms") or []
    return found


def _crossed(first: _Terms, second: _Terms) -> _Terms:
    """Return the terms of which one holds where one of each list does; raises Unprepared beyond the bounds.

    Each of one list goes with each of the other, so a few kilobytes could ask for gigabytes: what comes out is measured
    before it is made.
    """
    if not first or not second:
        return first + second
    count = len(first) * len(second)
    if count > MOST:
        words = f"{len(first):,} node selector terms in annotation clusterSelector times {len(second):,} in the spec"
        raise Unprepared(f"{words} are {count:,}, at most {MOST:,} are taken")
    size = len(first) * len(orjson.dumps(second)) + len(second) * len(orjson.dumps(first))
    if size > LONGEST:
        words = "node selector terms in annotation clusterSelector times those in the spec"
        raise Unprepared(f"{words} are about {size:,} bytes, at most {LONGEST:,} are taken")
    return [_conjunction(one, other) for one in first for other in second]


def _conjunction(one: Manifest, other: Manifest) -> Manifest:
    """Give the term that holds where two hold."""
    both = {field: [*(one.get(field) or ()), *(other.get(field) or ())] for field in LISTS}
    return _plain({**one, **other, **both})


def _plain(content: Manifest) -> Manifest:
    """Write content in the order of Go's fields, without what Go leaves out."""
    kept = ((field, content[field]) for field in sorted(content, key=_RANK.__getitem__))
    return {field: _items(value) if isinstance(value, list) else value for field, value in kept if value or value == 0}


def _items(values: list[object]) -> list[object]:
    return [_plain(value) if isinstance(value, dict) else value for value in values]
