"""Which fields of an object differ, as a person would name them.

Elements of lists are told by what names them ("spec.containers[web].image"), not by their place: a taint put in front
changes one line, not all of them. deepdiff takes four hundred times as long, which a plan of 1,000 pods cannot afford.

One value, or one change of a value, in few enough characters for a line that a person reads, and harmless there.

What matters of an object that is going to be made, in two or three lines: never the whole body.

Takes the values out of Secrets, wherever an object or an operation on one carries them.

Names of keys stay, since a person has to see what changes. `kubectl apply` keeps the whole object, values included,
in an annotation, so that goes as well.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import unified_diff
from typing import Any, NamedTuple

from tensile.names import BOOKKEEPING, PREFIX
from tensile.objects import CLAIM, CONFIG_MAP, NAMESPACE, NODE, POD, SECRET, VOLUME, Kind, Manifest, labels, metadata
from tensile.reconcile.diff import Operation, parts
from tensile.text import harmless

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
    """Return the fields in which two forms of an object differ, by path; times of conditions and notes do not count."""
    return tuple(one for one in _walk(old, new, ()) if not _is_beside(one.path))


def _is_beside(path: tuple[str, ...]) -> bool:
    """Report whether a field is no news to a person: the time of a condition, or a note about what else was written."""
    return path[-1] in BOOKKEEPING or (path[0] == "status" and path[-1] in _STAMPS)


def written(manifest: Manifest) -> Manifest:
    """Return the part of an object that its author writes: no status, no book-keeping of the API."""
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
    """Return what a value consists of, by name; None when it is to be told as a whole."""
    if value is None and len(path) in _OPENED:
        return {}
    if isinstance(value, dict):
        return value
    if isinstance(value, list) and all(isinstance(one, dict) for one in value):
        found = {f"[{_name(one)}]": one for one in value if _name(one)}
        return found if len(found) == len(value) else None
    return None


def _name(element: Manifest) -> str:
    """Return what tells an element of a list apart: its name, its type, or a taint's key and effect."""
    if "effect" in element or "operator" in element:
        return f"{element.get('key', '*')}:{element.get('effect', '*')}"
    return str(element.get("name") or element.get("type") or "")


REDACTED = "(redacted)"
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_ROOTS = (("data",), ("stringData",))
_ANNOTATION = ("metadata", "annotations", LAST_APPLIED)

Path = tuple[str, ...]


def redacted(kind: Kind, value: Any, path: Path = ()) -> Any:
    """Return what stands at `path` in an object of that kind, with "(redacted)" for each value of a Secret."""
    return _redacted(value, path) if kind.name == SECRET.name else value


def redacted_operation(kind: Kind, operation: Operation) -> Operation:
    """Return an RFC 6902 operation on an object of that kind without the values of a Secret."""
    if "value" not in operation:
        return operation
    return {**operation, "value": redacted(kind, operation["value"], tuple(parts(operation["path"])))}


def redacted_differences(kind: Kind, found: Iterable[Difference]) -> tuple[Difference, ...]:
    """Return differences of an object of that kind, of a Secret by key and without values."""
    if kind.name != SECRET.name:
        return tuple(found)
    return tuple(
        Difference(
            one.path[:2] if one.path[:1] in _ROOTS else one.path,
            _redacted(one.old, one.path),
            _redacted(one.new, one.path),
        )
        for one in found
    )


def _redacted(value: Any, path: Path) -> Any:
    if value is None:
        return None
    if isinstance(value, dict) and not _is_value(path):
        return {name: _redacted(content, (*path, name)) for name, content in value.items()}
    return REDACTED if _is_value(path) or path[:1] in _ROOTS else value


def _is_value(path: Path) -> bool:
    """Report whether a path leads to a secret value or into one."""
    return (len(path) > 1 and path[:1] in _ROOTS) or path[: len(_ANNOTATION)] == _ANNOTATION


_LONGEST = 100
_LEAD = 20
_LINES_SHOWN = 12
_LINES_COMPARED = 1000


def listed(names: Iterable[str], most: int) -> str:
    """Join names, of more than `most` the first ones and how many more there are."""
    known = list(names)
    more = f" and {len(known) - most} more" if len(known) > most else ""
    return harmless(", ".join(known[:most])) + more


def told(one: Difference) -> list[str]:
    """Return what happens to a field: one line, with further lines below it for a small change of a text."""
    field = harmless(one.field)
    if REDACTED in (one.old, one.new):
        return [f"{field}: {_hidden(one)}"]
    if isinstance(one.old, str) and isinstance(one.new, str) and "\n" in one.old + one.new:
        return _text(field, one.old.split("\n"), one.new.split("\n"))
    if one.new is None:
        return [f"{field}: removed" + (f" (was {shown(one.old)})" if one.old is not None else "")]
    if one.old is None:
        return [f"{field}: set to {shown(one.new)}"]
    return [f"{field}: {_pair(_dumped(one.old), _dumped(one.new))}"]


def shown(value: Any) -> str:
    """Write a value as JSON, a text of several lines as their number; what is too long is cut."""
    if isinstance(value, str) and "\n" in value:
        return f"{len(value.splitlines())} lines"
    return _cut(_dumped(value), 0)


def _hidden(one: Difference) -> str:
    if one.old is None:
        return "(set)"
    return "(removed)" if one.new is None else "(changed)"


def _dumped(value: Any) -> str:
    return harmless(json.dumps(value, ensure_ascii=False, sort_keys=True))


def _pair(old: str, new: str) -> str:
    """Write two values; where they are too long, from a little before the place where they part."""
    same = next((place for place, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    start = max(0, same - _LEAD) if max(len(old), len(new)) > _LONGEST else 0
    return f"{_cut(old, start)} -> {_cut(new, start)}"


def _cut(text: str, start: int) -> str:
    if len(text) <= _LONGEST:
        return text
    end = start + _LONGEST
    return ("..." if start else "") + text[start:end] + ("..." if end < len(text) else "")


def _text(field: str, old: Sequence[str], new: Sequence[str]) -> list[str]:
    """Show a small difference of two texts line by line, and count the lines of a large one."""
    if len(old) + len(new) > _LINES_COMPARED:
        return [f"{field}: {len(old)} lines -> {len(new)} lines"]
    lines = list(unified_diff(old, new, n=1, lineterm=""))[2:]
    fresh, gone = (sum(line.startswith(sign) for line in lines) for sign in "+-")
    head = f"{field}: +{fresh} -{gone} lines"
    return [head, *(f"  {_cut(harmless(line), 0)}" for line in lines)] if len(lines) <= _LINES_SHOWN else [head]


_MOST = 12
_OWN_NAME = "kubernetes.io/metadata.name"
"""The label that Kubernetes gives to each namespace."""
_PAYLOADS = ("data", "binaryData", "stringData")


def summary(kind: Kind, manifest: Manifest) -> list[str]:
    """Return the lines for an object; none for a kind that has no more to tell than its name."""
    about = _ABOUT.get(kind.name)
    return [f"{title}: {text}" for title, text in about(manifest) if text] if about else []


def _pod(manifest: Manifest) -> Iterator[tuple[str, str]]:
    spec = manifest.get("spec", {})
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    yield "images", listed(dict.fromkeys(one.get("image", "") for one in containers), _MOST)


def _keys(manifest: Manifest) -> Iterator[tuple[str, str]]:
    yield "keys", listed(sorted(key for section in _PAYLOADS for key in manifest.get(section) or ()), _MOST)


def _secret(manifest: Manifest) -> Iterator[tuple[str, str]]:
    yield "type", harmless(manifest.get("type", ""))
    yield from _keys(manifest)


def _namespace(manifest: Manifest) -> Iterator[tuple[str, str]]:
    yield "labels", listed(_labels(manifest), _MOST)


def _node(manifest: Manifest) -> Iterator[tuple[str, str]]:
    spec, offered = manifest.get("spec", {}), manifest.get("status", {}).get("allocatable") or {}
    yield "capacity", listed((f"{name} {amount}" for name, amount in sorted(offered.items())), _MOST)
    yield "labels", listed(_labels(manifest), _MOST)
    yield "taints", listed((_taint(taint) for taint in spec.get("taints") or ()), _MOST)
    yield "unschedulable", "true" if spec.get("unschedulable") else ""


def _claim(manifest: Manifest) -> Iterator[tuple[str, str]]:
    spec = manifest.get("spec", {})
    yield "storage", harmless(((spec.get("resources") or {}).get("requests") or {}).get("storage", ""))
    yield "class", harmless(spec.get("storageClassName") or "")


def _volume(manifest: Manifest) -> Iterator[tuple[str, str]]:
    spec = manifest.get("spec", {})
    holder = spec.get("claimRef") or {}
    yield "storage", harmless((spec.get("capacity") or {}).get("storage", ""))
    yield "claim", harmless(f"{holder.get('namespace')}/{holder.get('name')}" if holder else "")
    yield "policy", harmless(spec.get("persistentVolumeReclaimPolicy") or "")


def _labels(manifest: Manifest) -> Iterator[str]:
    """Return the labels that say more than the name and that it is ours, as kubectl writes them."""
    found = sorted(labels(manifest).items())
    return (f"{key}={value}" for key, value in found if key != _OWN_NAME and not key.startswith(PREFIX))


def _taint(taint: Mapping[str, Any]) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint.get('key', '')}{value}:{taint.get('effect', '')}"


_ABOUT: Mapping[str, Callable[[Manifest], Iterator[tuple[str, str]]]] = {
    CLAIM.name: _claim,
    CONFIG_MAP.name: _keys,
    NAMESPACE.name: _namespace,
    NODE.name: _node,
    POD.name: _pod,
    SECRET.name: _secret,
    VOLUME.name: _volume,
}
