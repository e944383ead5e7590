"""One value, or one change of a value, in few enough characters for a line that a person reads, and harmless there."""

import json
from collections.abc import Iterable, Sequence
from difflib import unified_diff
from typing import Any

from tensile.legible import harmless
from tensile.reconcile.preview.differences import Difference
from tensile.reconcile.preview.secrecy import REDACTED

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
    """Say what happens to a field: one line, with further lines below it for a small change of a text."""
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
