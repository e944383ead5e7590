"""Which fields of an object differ, as a person would name them.

Elements of lists are told by what names them ("spec.containers[web].image"), not by their place: a taint put in front
changes one line, not all of them. deepdiff takes four hundred times as long, which a plan of 1,000 pods cannot afford.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from tensile.names import BOOKKEEPING
from tensile.objects import Manifest, metadata

_STAMPS = ("lastHeartbeatTime", "lastTransitionTime")
_OPENED = (1, 2)
"""Depths at which a section that is missing on one side is told key by key: "data", "metadata.labels"."""


class Difference(NamedTuple):
    """One field: its path, and its value before and after; None where there is none."""

    path: tuple[str, ...]
    old: Any
    new: Any

    @property
    def field(self) -> str:
        """The path in words: "metadata.labels.app", "spec.taints[key:NoSchedule].value"."""
        return "".join(part if part.startswith("[") else f".{part}" for part in self.path).removeprefix(".")


def differences(old: Manifest, new: Manifest) -> tuple[Difference, ...]:
    """Give the fields in which two forms of an object differ, by path; times of conditions and notes do not count."""
    return tuple(one for one in _walk(old, new, ()) if not _is_beside(one.path))


def _is_beside(path: tuple[str, ...]) -> bool:
    """Say whether a field is no news to a person: the time of a condition, or a note about what else was written."""
    return path[-1] in BOOKKEEPING or (path[0] == "status" and path[-1] in _STAMPS)


def written(manifest: Manifest) -> Manifest:
    """Give the part of an object that its author writes: no status, no book-keeping of the API."""
    kept = {name: content for name, content in manifest.items() if name not in ("status", "metadata")}
    meta = {name: metadata(manifest)[name] for name in ("labels", "annotations") if name in metadata(manifest)}
    return {**kept, "metadata": meta}


def _walk(old: Any, new: Any, path: tuple[str, ...]) -> Iterator[Difference]:
    if old == new:
        return
    before, after = _members(old, path), _members(new, path)
    if before is None or after is None:
        yield Difference(path, old, new)
        return
    if before == after and isinstance(old, list):
        yield Difference(path, list(before), list(after))
    for name in sorted({**before, **after}):
        yield from _walk(before.get(name), after.get(name), (*path, name))


def _members(value: Any, path: tuple[str, ...]) -> dict[str, Any] | None:
    """Give what a value consists of, by name; None when it is to be told as a whole."""
    if value is None and len(path) in _OPENED:
        return {}
    if isinstance(value, dict):
        return value
    if isinstance(value, list) and all(isinstance(one, dict) for one in value):
        found = {f"[{_name(one)}]": one for one in value if _name(one)}
        return found if len(found) == len(value) else None
    return None


def _name(element: Manifest) -> str:
    """Give what tells an element of a list apart: its name, its type, or a taint's key and effect."""
    if "effect" in element or "operator" in element:
        return f"{element.get('key', '*')}:{element.get('effect', '*')}"
    return str(element.get("name") or element.get("type") or "")
