"""What an edit of the topology file changes: in words for people, and lower by lower for the engine.

Compared is what the topologies mean, not how they are written: a lower is known by its name wherever it stands, and
what it inherits counts as its own, so a new default is told where it takes effect and nowhere else.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from tensile.topology.models import Lower, Section, Topology
from tensile.yaml_document import Path, scalar, show_path

_FIXED = ("name", "upper")
_BY_LOWER = frozenset(("lowers", "lower_defaults"))
_CLEAR = re.compile(r"[A-Za-z0-9_./:@%+=-]+").fullmatch
_LONGEST = 80


class Lowers(NamedTuple):
    """Which lowers an edit touches, by name; `same` are the ones that it leaves alone.

    `moved` are those of `changed` whose pods would not be found again: another node name, or other namespaces below.
    """

    added: frozenset[str]
    removed: frozenset[str]
    changed: frozenset[str]
    same: frozenset[str]
    moved: frozenset[str]


class Edit(NamedTuple):
    """What lies between two topologies.

    `words` say what comes into force, one change each, `refused` what does not until the engine is started again;
    `topology` is the new one with what is refused put back, which is the one to put in force.
    """

    words: tuple[str, ...]
    refused: tuple[str, ...]
    lowers: Lowers
    topology: Topology


class _Change(NamedTuple):
    """One difference: where, in which lower ("" for none), and in words what."""

    lower: str
    path: Path
    words: str


def edit(old: Topology, new: Topology) -> Edit:
    """Compare the topology in force with the one that is to follow it."""
    lowers = _lowers(old, new)
    found = sorted(_changes(old, new, lowers.changed))
    refused = [change for change in found if change.path[0] in _FIXED]
    words = [f"lower {name} added" for name in sorted(lowers.added)]
    words += [f"lower {name} removed" for name in sorted(lowers.removed)]
    words += _gathered([change for change in found if change not in refused])
    kept = new.model_copy(update={name: getattr(old, name) for name in _FIXED})
    return Edit(tuple(words), tuple(_refusal(change) for change in refused), lowers, kept)


def concerns_all(old: Topology, new: Topology) -> bool:
    """Report whether an edit changes what decisions about every lower rest on, also about those that it leaves alone.

    That is all outside the lowers, and of each lower what decisions about the others ask: its virtual node's name and
    taints, its place in the order, and what it makes the engine follow.
    """
    return _common(old) != _common(new)


def _common(topology: Topology) -> tuple[Any, ...]:
    """Return what decisions about every lower rest on."""
    nodes = [(lower.name, lower.node.name, lower.node.taints) for lower in topology.lowers]
    followed = (topology.enabled, topology.places, topology.evicts)
    return topology.model_dump(exclude=set(_BY_LOWER)), nodes, followed


def _lowers(old: Topology, new: Topology) -> Lowers:
    """Sort the lowers by what happens to them."""
    before, after = ({lower.name: lower for lower in topology.lowers} for topology in (old, new))
    both = before.keys() & after.keys()
    changed = frozenset(name for name in both if before[name] != after[name])
    return Lowers(
        added=frozenset(after.keys() - before.keys()),
        removed=frozenset(before.keys() - after.keys()),
        changed=changed,
        same=frozenset(both - changed),
        moved=frozenset(name for name in changed if _place(before[name]) != _place(after[name])),
    )


def _place(lower: Lower) -> tuple[str, str]:
    """Return what a lower's pods are found by."""
    return lower.node.name, lower.namespaces.mapping


def _changes(old: Topology, new: Topology, changed: frozenset[str]) -> Iterator[_Change]:
    """Yield each difference of two topologies outside their lowers, and of the lowers that changed."""
    if old == new:
        return
    from deepdiff import DeepDiff  # noqa: PLC0415 - a tenth of what it takes to start, and asked for when a file changes

    before, after = ({name: _data(lower) for name, lower in _scopes(one, changed)} for one in (old, new))
    for kind, levels in DeepDiff(before, after, view="tree").items():
        for level in levels:
            lower, *path = (step for step in level.path(output_format="list") if step is not None)
            yield _Change(lower, tuple(path), _words(kind, level.t1, level.t2))


def _scopes(topology: Topology, changed: frozenset[str]) -> Iterator[tuple[str, Section]]:
    """Yield the whole under "" and each lower that changed under its name."""
    yield "", topology
    for lower in topology.lowers:
        if lower.name in changed:
            yield lower.name, lower


def _data(section: Section) -> dict[str, Any]:
    """Return a section as the file writes it, taints as kubectl does; what has no order becomes a set."""
    found = section.model_dump(mode="json", by_alias=True, exclude=set(_BY_LOWER))
    taints = found.get("node", {}).get("taints", ())
    if taints:
        found["node"]["taints"] = [f"{taint['key']}={taint['value']}:{taint['effect']}" for taint in taints]
    return {key: _unordered(value) for key, value in found.items()}


def _unordered(value: Any) -> Any:
    """Turn the lists in some data into sets: each list of the file is one."""
    if isinstance(value, dict):
        return {key: _unordered(content) for key, content in value.items()}
    return set(value) if isinstance(value, list) else value


def _words(kind: str, before: Any, after: Any) -> str:
    """Describe one difference, as it follows its path."""
    if kind.endswith("_added"):
        return f" {_shown(after)} added" if kind.startswith("set_") else f" added, {_shown(after)}"
    if kind.endswith("_removed"):
        return f" {_shown(before)} removed" if kind.startswith("set_") else f" removed, was {_shown(before)}"
    return f" {_shown(before)} -> {_shown(after)}"


def _shown(value: Any) -> str:
    """Write a value as the file could have it, on one line and not too long; control characters are escaped."""
    bare = isinstance(value, str) and _CLEAR(value) and scalar(value) == value
    text = value if bare else json.dumps(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _gathered(changes: list[_Change]) -> Iterator[str]:
    """Write changes, those that are the same for several lowers as one."""
    groups: dict[tuple[Path, str], list[str]] = {}
    for lower, path, words in changes:
        groups.setdefault((path, words), []).append(lower)
    for (path, words), lowers in groups.items():
        named = ", ".join(lower for lower in lowers if lower)
        if "" in lowers:
            yield f"{show_path(path)}:{words}"
        if named:
            yield f"lowers[{named}].{show_path(path)}:{words}"


def _refusal(change: _Change) -> str:
    """Return what a reload cannot change."""
    return f"{show_path(change.path)}:{change.words}: not while running, restart needed"
