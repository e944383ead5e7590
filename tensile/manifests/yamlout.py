"""Objects as YAML text for people to read, keep in Git and apply: as `kubectl get -o yaml` writes it, with reasons."""

from collections.abc import Iterable
from textwrap import wrap
from typing import NamedTuple

from tensile.objects import Manifest
from tensile.yamlfull import document

_WIDTH = 120


class Piece(NamedTuple):
    """An object to apply, and why it is there ("" where that is plain)."""

    manifest: Manifest
    why: str = ""


def comment(words: str) -> str:
    """Write a comment; a line that begins with a blank stays as it is, for it is a command."""
    return "".join(f"# {part}".rstrip() + "\n" for line in words.splitlines() for part in _wrapped(line))


def _wrapped(line: str) -> list[str]:
    return [line] if line.startswith(" ") else wrap(line, _WIDTH - 2) or [""]


def stream(pieces: Iterable[Piece], head: str = "") -> str:
    """Write objects as one stream of documents, each below its reason; `head` is a comment before all."""
    written = [comment(piece.why) + document(piece.manifest) for piece in pieces]
    return (comment(head) if head else "") + "---\n".join(written)
