"""The differences between two objects by field, as short lines for people, without control characters or secrets.

List elements are identified by name ("spec.containers[web].image"), not by index: a taint added in front changes one
line, not all of them. deepdiff takes four hundred times as long, which is too slow for a plan of 1,000 pods.

A new object is summarized in two or three lines. What may be secret is removed before (`reconcile/redaction.py`).
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import unified_diff
from typing import Any

from tensile.names import BOOKKEEPING, PREFIX
from tensile.objects import CLAIM, CONFIG_MAP, NAMESPACE, NODE, POD, SECRET, VOLUME, Kind, Manifest, labels, metadata
from tensile.reconcile.diff import Difference
from tensile.reconcile.redaction import PAYLOADS, REDACTED
from tensile.text import harmless, listed

_KUBERNETES = "node.kubernetes.io/"
_STAMPS = ("lastHeartbeatTime", "lastTransitionTime")
_OPENED = (1, 2)
"""Depths at which a section that one side lacks is compared key by key: "data", "metadata.labels"."""

_LONGEST = 100
_LEAD = 20
_LINES_SHOWN = 12
_LINES_COMPARED = 1000

_MOST = 12
_OWN_NAME = "kubernetes.io/metadata.name"
"""The label that Kubernetes sets on each namespace."""


def differences(old: Manifest, new: Manifest) -> tuple[Difference, ...]:
    """Return the fields in which two objects differ. Times of conditions and bookkeeping annotations do not count."""
    return tuple(one for one in _walk(old, new, ()) if not _is_beside(one.path))


def _is_beside(path: tuple[str, ...]) -> bool:
    """Report whether a field is of no interest: the time of a condition, or a bookkeeping annotation."""
    return path[-1] in BOOKKEEPING or (path[0] == "status" and path[-1] in _STAMPS)


def unmarked(taints: Iterable[Any]) -> list[Any]:
    """Return the taints of a Node without those by which Kubernetes itself marks it, as when its engine is away."""
    return [one for one in taints if not (isinstance(one, dict) and str(one.get("key")).startswith(_KUBERNETES))]


def written(manifest: Manifest) -> Manifest:
    """Return the part of an object that its author writes: no status, no managed metadata."""
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
    """Return the parts of a value by name, None if it is compared as a whole."""
    if value is None and len(path) in _OPENED:
        return {}
    if isinstance(value, dict):
        return value
    if isinstance(value, list) and all(isinstance(one, dict) for one in value):
        found = {f"[{_name(one)}]": one for one in value if _name(one)}
        return found if len(found) == len(value) else None
    return None


def _name(element: Manifest) -> str:
    """Return what identifies an element of a list: its name, its type, or a taint's key and effect."""
    if "effect" in element or "operator" in element:
        return f"{element.get('key', '*')}:{element.get('effect', '*')}"
    return str(element.get("name") or element.get("type") or "")


def shown_values(one: Difference) -> list[str]:
    """Return the change of a field: one line, followed by more lines for a small change of a text."""
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
    """Format a value as JSON, truncated. For a text of several lines, return their number."""
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
    """Format two values. If they are too long, begin shortly before they differ."""
    same = next((place for place, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    start = max(0, same - _LEAD) if max(len(old), len(new)) > _LONGEST else 0
    return f"{_cut(old, start)} -> {_cut(new, start)}"


def _cut(text: str, start: int) -> str:
    if len(text) <= _LONGEST:
        return text
    end = start + _LONGEST
    return ("..." if start else "") + text[start:end] + ("..." if end < len(text) else "")


def _text(field: str, old: Sequence[str], new: Sequence[str]) -> list[str]:
    """Return a small difference of two texts line by line, only the number of lines for a large one."""
    if len(old) + len(new) > _LINES_COMPARED:
        return [f"{field}: {len(old)} lines -> {len(new)} lines"]
    lines = list(unified_diff(old, new, n=1, lineterm=""))[2:]
    fresh, gone = (sum(line.startswith(sign) for line in lines) for sign in "+-")
    head = f"{field}: +{fresh} -{gone} lines"
    return [head, *(f"  {_cut(harmless(line), 0)}" for line in lines)] if len(lines) <= _LINES_SHOWN else [head]


def summary(kind: Kind, manifest: Manifest) -> list[str]:
    """Return the summary of an object, no lines for a kind whose name says enough."""
    about = _ABOUT.get(kind.name)
    return [f"{title}: {text}" for title, text in about(manifest) if text] if about else []


def _pod(manifest: Manifest) -> Iterator[tuple[str, str]]:
    spec = manifest.get("spec", {})
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    yield "images", listed(dict.fromkeys(one.get("image", "") for one in containers), _MOST)


def _keys(manifest: Manifest) -> Iterator[tuple[str, str]]:
    yield "keys", listed(sorted(key for section in PAYLOADS for key in manifest.get(section) or ()), _MOST)


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
    """Return the labels as kubectl writes them, without those that only repeat the name or the owner."""
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
