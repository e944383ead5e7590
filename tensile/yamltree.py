"""What a YAML text says, with the place of everything in it: nodes, scalars of YAML 1.2, paths.

The standard loaders forget lines and read `no` as False and `012` as 10, which is how mistakes in a configuration pass
unseen; here a scalar is what YAML 1.2's core schema says, and every error can point at its cause.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Path = tuple[str | int, ...]
"""Where in a document: keys of mappings and places in lists, from the top."""

_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_OTHER_BASE = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_NUMBER_START = frozenset("+-.0123456789")
_MOST_DIGITS = 40
_BARE_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_LONGEST_KEY = 63


class Position(NamedTuple):
    """A place in a text: line and column, both counted from 1, columns in characters."""

    line: int
    column: int


@dataclass(slots=True)
class Node:
    """One value of a document and where it starts.

    `value` is a scalar (str, int, float, bool, None), a list of nodes, or a dict of nodes by key; `keys` says where
    each key of a dict stands. `size` and `height` count the nodes in it and its levels, aliases followed.
    """

    start: Position
    value: Any
    keys: dict[str, Position] = field(default_factory=dict)
    size: int = 1
    height: int = 1

    def grow(self, content: "Node") -> None:
        """Count a node that is now inside this one."""
        self.size += content.size
        self.height = max(self.height, content.height + 1)


def scalar(text: str) -> Any:
    """Read a plain (unquoted) scalar by the core schema of YAML 1.2: null, bool, int, float or text.

    An integer of more than 40 digits is given as a float: nothing that it could be meant for is that large.
    """
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMBER_START:
        return text
    if _INTEGER.fullmatch(text) and len(text) <= _MOST_DIGITS:
        return int(text)
    if _OTHER_BASE.fullmatch(text) and len(text) <= _MOST_DIGITS:
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    return float(text.replace(".", "")) if _NOT_FINITE.fullmatch(text) else text


def plain(node: Node) -> Any:
    """Give the data alone: dicts, tuples for lists, and scalars."""
    if isinstance(node.value, dict):
        return {key: plain(content) for key, content in node.value.items()}
    if isinstance(node.value, list):
        return tuple(plain(content) for content in node.value)
    return node.value


def _inside(node: Node, step: str | int) -> tuple[Position, Node] | None:
    """Go one step down: where it starts, which is a mapping's key or a list's item, and what is there."""
    if isinstance(node.value, dict) and isinstance(step, str) and step in node.value:
        return node.keys[step], node.value[step]
    if isinstance(node.value, list) and isinstance(step, int) and step < len(node.value):
        return node.value[step].start, node.value[step]
    return None


def locate(root: Node, path: Path, *, key: bool = False) -> Position:
    """Find where a path is written, or the nearest thing around it that is.

    A value that stands on its key's line is pointed at itself, any other by its key; `key` asks for the key always.
    """
    here, node = root.start, root
    for step in path:
        found = _inside(node, step)
        if found is None:
            return here
        here, node = found
    return node.start if not key and node.start.line == here.line else here


def find(root: Node, path: Path) -> Node | None:
    """Give the node at a path, None when nothing is written there."""
    node = root
    for step in path:
        found = _inside(node, step)
        if found is None:
            return None
        node = found[1]
    return node


def show_key(key: str) -> str:
    """Write a key for people: bare where that is clear, else quoted; control characters escaped, and not too long."""
    short = key if len(key) <= _LONGEST_KEY else key[: _LONGEST_KEY - 3] + "..."
    return short if _BARE_KEY.fullmatch(short) else json.dumps(short)


def show_path(path: Path) -> str:
    """Write a path for people, such as lowers[0].capacity.limit["nvidia.com/gpu"]; "(file)" for the whole."""
    parts: list[str] = []
    for step in path:
        shown = f"[{step}]" if isinstance(step, int) else show_key(step)
        parts.append(shown if isinstance(step, int) else f"[{shown}]" if shown[0] == '"' else "." + shown)
    return "".join(parts).removeprefix(".") or "(file)"
