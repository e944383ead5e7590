"""Objects as YAML text for people to read, keep in Git and apply: as `kubectl get -o yaml` writes it, with reasons.

What is written is read again by kubectl (YAML 1.1) and, in the topology, by us (YAML 1.2): text that either of them
would take for something else stands in quotes.
"""

from collections.abc import Iterable
from textwrap import wrap
from typing import Any, NamedTuple

import yaml

from tensile.objects import Manifest
from tensile.yamlfull import Unaliased
from tensile.yamltree import scalar

_WIDTH = 120


class Piece(NamedTuple):
    """An object to apply, and why it is there ("" where that is plain)."""

    manifest: Manifest
    why: str = ""


class _Dumper(Unaliased):
    """Writes text of several lines as a block."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None if scalar(text) == text else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def document(data: Any) -> str:
    """Write one value, such as an object; its keys in the order that they have."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_WIDTH)


def flow(value: Any) -> str:
    """Write one value on one line."""
    return yaml.dump([value], Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=True, width=1e9)[
        1:-2
    ]


def comment(words: str) -> str:
    """Write a comment; a line that begins with a blank stays as it is, for it is a command."""
    return "".join(f"# {part}".rstrip() + "\n" for line in words.splitlines() for part in _wrapped(line))


def _wrapped(line: str) -> list[str]:
    return [line] if line.startswith(" ") else wrap(line, _WIDTH - 2) or [""]


def stream(pieces: Iterable[Piece], head: str = "") -> str:
    """Write objects as one stream of documents, each below its reason; `head` is a comment before all."""
    written = [comment(piece.why) + document(piece.manifest) for piece in pieces]
    return (comment(head) if head else "") + "---\n".join(written)
