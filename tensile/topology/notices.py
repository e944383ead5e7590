"""Fields that are accepted and not in effect yet, said where they are set.

The format is whole from the start, so that files stay valid; what does not work yet must not look as if it did. A
feature that comes takes its row out of the table.
"""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, NamedTuple

from tensile.topology.problems import Notice
from tensile.topology.resolved import Topology
from tensile.topology.syntax import duration
from tensile.topology.written import get
from tensile.yamltree import Path, find, locate, plain


class Row(NamedTuple):
    """A field without effect: its path, the values that ask for nothing, and what will bring the rest."""

    path: Path
    harmless: tuple[Any, ...]
    coming: str


NOT_YET: tuple[Row, ...] = ()
"""Every field is in effect now."""


def _is_harmless(value: Any, row: Row) -> bool:
    """Tell whether a value that is written asks for nothing; durations are compared by length, not by spelling."""
    if isinstance(row.harmless[0], timedelta):
        return duration(value) in row.harmless
    return value in row.harmless


def not_yet(topology: Topology, rows: Iterable[Row] = NOT_YET) -> list[Notice]:
    """Give a notice for each field of the rows that is set and has no effect yet, in the order of the file."""
    name, root = topology.source.name, topology.source.root
    if root is None:
        return []
    data = plain(root)
    notices = []
    for row in rows:
        if find(root, row.path) and not _is_harmless(get(data, row.path), row):
            words = f"accepted, not in effect yet: {row.coming}"
            notices.append(Notice(name, locate(root, row.path, key=True), row.path, words))
    return sorted(notices, key=lambda notice: notice.position)
