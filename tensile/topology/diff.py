"""What an edit of the topology file changes: as messages for people, and by name which lower clusters it affects.

The engine decides what to do about each lower cluster from its present state, in `engine/lower_transitions.py`. The
meaning of the topologies is compared, not their text. A lower is identified by its name at any position, and
inherited values count as its own. So a changed default is reported only for the lowers that it affects.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from tensile.topology.models import Section, Topology
from tensile.yaml_document import Path, scalar, show_path

_FIXED = ("name", "upper")
_SERVERS, _LISTENER_FIELDS = ("kubelet", "webhook", "extender", "telemetry"), ("bind", "port")
_BY_LOWER = frozenset(("lowers", "lower_defaults"))
_UNQUOTED = re.compile(r"[A-Za-z0-9_./:@%+=-]+").fullmatch
_LONGEST = 80


class Lowers(NamedTuple):
    """The lowers that an edit affects, by name."""

    added: frozenset[str]
    removed: frozenset[str]
    changed: frozenset[str]


class Edit(NamedTuple):
    """The difference between two topologies.

    `changes` describe what is activated, one change each. `refused` is what needs a restart. `topology` is the new
    topology with the refused changes undone, which is the one to activate.
    """

    changes: tuple[str, ...]
    refused: tuple[str, ...]
    lowers: Lowers
    topology: Topology


class _Change(NamedTuple):
    """One difference: its path, its lower ("" for none), and its description."""

    lower: str
    path: Path
    description: str


def edit(old: Topology, new: Topology) -> Edit:
    """Compare the active topology with the next one."""
    lowers = _lowers(old, new)
    found = sorted(_changes(old, new, lowers.changed))
    listening = _listening(old, new)
    refused = [change for change in found if not change.lower and _is_fixed(change.path, listening)]
    messages = [f"lower {name} added" for name in sorted(lowers.added)]
    messages += [f"lower {name} removed" for name in sorted(lowers.removed)]
    messages += _gathered([change for change in found if change not in refused])
    return Edit(tuple(messages), tuple(_refusal(change) for change in refused), lowers, _kept(old, new, listening))


def _listening(old: Topology, new: Topology) -> list[str]:
    """Return the sections of the servers that listen before and after; one that is enabled may choose its port."""
    pairs = [(section, getattr(old, section), getattr(new, section)) for section in _SERVERS]
    return [section for section, *pair in pairs if all(getattr(one, "enabled", True) for one in pair)]


def _is_fixed(path: Path, listening: list[str]) -> bool:
    """Report whether a change outside the lowers needs a restart."""
    return path[0] in _FIXED or (path[0] in listening and path[1] in _LISTENER_FIELDS)


def _kept(old: Topology, new: Topology, listening: list[str]) -> Topology:
    """Return the new topology with the old values of what needs a restart."""
    kept: dict[str, object] = {name: getattr(old, name) for name in _FIXED}
    for section in listening:
        values = {field: getattr(getattr(old, section), field) for field in _LISTENER_FIELDS}
        kept[section] = getattr(new, section).model_copy(update=values)
    return new.model_copy(update=kept)


def concerns_all(old: Topology, new: Topology) -> bool:
    """Report whether an edit changes the input of decisions about every lower, including the unchanged ones.

    That is everything outside the lowers. Of each lower it is what decisions about the others need: the name and taints
    of its virtual node, its position, and what it makes the engine watch.
    """
    return _common(old) != _common(new)


def _common(topology: Topology) -> tuple[Any, ...]:
    """Return the input of decisions about every lower."""
    nodes = [(lower.name, lower.node.name, lower.node.taints) for lower in topology.lowers]
    watched = (topology.enabled, topology.places, topology.evicts)
    return topology.model_dump(exclude=set(_BY_LOWER)), nodes, watched


def _lowers(old: Topology, new: Topology) -> Lowers:
    """Classify the lowers by their change."""
    before, after = ({lower.name: lower for lower in topology.lowers} for topology in (old, new))
    return Lowers(
        added=frozenset(after.keys() - before.keys()),
        removed=frozenset(before.keys() - after.keys()),
        changed=frozenset(name for name in before.keys() & after.keys() if before[name] != after[name]),
    )


def _changes(old: Topology, new: Topology, changed: frozenset[str]) -> Iterator[_Change]:
    """Yield the differences of two topologies outside their lowers, and of each changed lower."""
    if old == new:
        return
    from deepdiff import DeepDiff  # noqa: PLC0415 - a tenth of the start-up time, and only needed when a file changes

    before, after = ({name: _data(lower) for name, lower in _scopes(one, changed)} for one in (old, new))
    for kind, levels in DeepDiff(before, after, view="tree").items():
        for level in levels:
            lower, *path = (step for step in level.path(output_format="list") if step is not None)
            yield _Change(lower, tuple(path), _described(kind, level.t1, level.t2))


def _scopes(topology: Topology, changed: frozenset[str]) -> Iterator[tuple[str, Section]]:
    """Yield the whole topology under "", and each changed lower under its name."""
    yield "", topology
    for lower in topology.lowers:
        if lower.name in changed:
            yield lower.name, lower


def _data(section: Section) -> dict[str, Any]:
    """Return a section as in the file, with taints as in kubectl, windows as text, and unordered lists as sets."""
    found = section.model_dump(mode="json", by_alias=True, exclude=set(_BY_LOWER))
    taints = found.get("node", {}).get("taints", ())
    if taints:
        found["node"]["taints"] = [f"{taint['key']}={taint['value']}:{taint['effect']}" for taint in taints]
    if windows := found.get("windows"):
        found["windows"] = [f"{one['schedule']} {one['timeZone']} for {one['duration']}" for one in windows]
    return {key: _unordered(value) for key, value in found.items()}


def _unordered(value: Any) -> Any:
    """Convert all lists in the data to sets: every list of the file is a set."""
    if isinstance(value, dict):
        return {key: _unordered(content) for key, content in value.items()}
    return set(value) if isinstance(value, list) else value


def _described(kind: str, before: Any, after: Any) -> str:
    """Describe one difference, to be appended to its path."""
    if kind.endswith("_added"):
        return f" {_shown(after)} added" if kind.startswith("set_") else f" added, {_shown(after)}"
    if kind.endswith("_removed"):
        return f" {_shown(before)} removed" if kind.startswith("set_") else f" removed, was {_shown(before)}"
    return f" {_shown(before)} -> {_shown(after)}"


def _shown(value: Any) -> str:
    """Format a value as in the file, on one line, truncated, with control characters escaped."""
    bare = isinstance(value, str) and _UNQUOTED(value) and scalar(value) == value
    text = value if bare else json.dumps(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _gathered(changes: list[_Change]) -> Iterator[str]:
    """Format changes. Equal changes of several lowers become one."""
    groups: dict[tuple[Path, str], list[str]] = {}
    for lower, path, description in changes:
        groups.setdefault((path, description), []).append(lower)
    for (path, description), lowers in groups.items():
        named = ", ".join(lower for lower in lowers if lower)
        if "" in lowers:
            yield f"{show_path(path)}:{description}"
        if named:
            yield f"lowers[{named}].{show_path(path)}:{description}"


def _refusal(change: _Change) -> str:
    """Describe a change that a reload cannot make."""
    effect = ", which then owns only what was created under that name" if change.path == ("name",) else ""
    return f"{show_path(change.path)}:{change.description}: this change requires a restart of the engine{effect}"
