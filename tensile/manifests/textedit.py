"""Changes values in a YAML text and leaves the rest as it was written: order, comments, blank lines.

One change at a time, each by the places that the YAML reader gives. Whoever asks holds the result against what it is to
say, since anchors, or a form that is not met here, can make another thing of it.
"""

from typing import Any

import yaml

from tensile.yamlfull import flow
from tensile.yamltree import Path


def edited(text: str, path: Path, value: Any, key: str = "") -> str:
    """Have another value stand at a path of keys and places, or none for None; what is around it is made as needed.

    A mapping that nothing is left in goes with its last value. With a `key` that takes the place of the path's last.
    """
    parent = _at(text, path[:-1])
    if not isinstance(parent, yaml.MappingNode):
        return text if value is None else edited(text, path[:-1], {path[-1]: value})
    known = next((pair for pair in parent.value if pair[0].value == path[-1]), None)
    if known is None:
        return text if value is None else _added(text, parent, f"{path[-1]}: {flow(value)}")
    if value is not None:
        return text[: known[0].start_mark.index] + f"{key or path[-1]}: {flow(value)}" + text[_end(known[1]) :]
    if len(parent.value) == 1 and len(path) > 1:
        return edited(text, path[:-1], None)
    return _removed(text, parent, known)


def _at(text: str, path: Path) -> yaml.Node | None:
    """Find what stands at a path, None for nothing."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    for step in path:
        if isinstance(node, yaml.MappingNode):
            node = next((value for key, value in node.value if key.value == step), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
        else:
            return None
    return node


def _added(text: str, parent: yaml.MappingNode, entry: str) -> str:
    """Put one entry more into a mapping: first in braces, else below the last one."""
    start = parent.start_mark
    if parent.flow_style:
        more = ", " if parent.value else ""
        return text[: start.index + 1] + entry + more + text[start.index + 1 :]
    if start.column == 0:
        return text.rstrip("\n") + f"\n{entry}\n"
    end = text.find("\n", _end(parent))
    end = len(text) if end < 0 else end
    return text[:end] + f"\n{' ' * start.column}{entry}" + text[end:]


def _removed(text: str, parent: yaml.MappingNode, known: tuple[yaml.Node, yaml.Node]) -> str:
    """Take one of several entries out of a mapping, a line with all that is on it."""
    place = parent.value.index(known)
    start, end = known[0].start_mark.index, _end(known[1])
    if parent.flow_style and place:
        return text[: _end(parent.value[place - 1][1])] + text[end:]
    if parent.flow_style or _is_first_of_item(text, start):
        return text[:start] + text[parent.value[place + 1][0].start_mark.index :]
    return text[: text.rfind("\n", 0, start) + 1] + text[(text.find("\n", end) + 1) or len(text) :]


def _is_first_of_item(text: str, start: int) -> bool:
    """Say whether something else, such as the dash of a list, stands before a key in its line."""
    return bool(text[text.rfind("\n", 0, start) + 1 : start].strip())


def _end(node: yaml.Node) -> int:
    """Give the place behind a value: a block ends with what is last in it, not where the next thing begins."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)
