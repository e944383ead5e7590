"""YAML as people read it and every program understands it: nothing stands for something elsewhere, and text stays text.

What is written is read again by kubectl and PyYAML, which follow YAML 1.1 each in its own way, and by us (1.2). A text
that any of them would take for something else (`y`, `no`, `1e3`, `0x1F`, `12:30`, `2026-1-2`) stands in quotes.
"""

import re
from typing import Any

import yaml

from tensile.yamltree import scalar

_WORDS = frozenset(("y", "Y", "n", "N"))
"""True and false for kubectl, though not for PyYAML, which finds the other words of YAML 1.1 itself."""
_OTHER_BASE = re.compile(r"[-+]?0([bB][01]+|[oO][0-7]+|[xX][0-9a-fA-F]+)")
_DATE = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}")


class FullDumper(yaml.SafeDumper):
    """Writes in full what several places share, and text of several lines as a block."""

    def ignore_aliases(self, _data: Any) -> bool:
        """Have nothing written as an alias."""
        return True


def is_plainly_text(text: str) -> bool:
    """Say whether every reader takes a text for one where it stands without quotes, as far as PyYAML does."""
    digits = text.replace("_", "")
    return not (
        text in _WORDS
        or scalar(text) != text
        or scalar(digits) != digits
        or _OTHER_BASE.fullmatch(digits)
        or _DATE.match(text)
    )


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None if is_plainly_text(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


FullDumper.add_representer(str, _text)


def document(data: Any, width: float = 120) -> str:
    """Write one value, such as an object; its keys in the order that they have."""
    return yaml.dump(data, Dumper=FullDumper, sort_keys=False, allow_unicode=True, width=width)


def flow(value: Any) -> str:
    """Write one value on one line."""
    return yaml.dump(
        [value], Dumper=FullDumper, sort_keys=False, allow_unicode=True, default_flow_style=True, width=1e9
    )[1:-2]
