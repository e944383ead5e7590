"""Lines that people read: harmless whoever wrote the words in them, and in columns where they are many.

Names, conditions and messages of events come from whoever runs pods, answers from whoever runs a server: they are not
to write on somebody's terminal, nor to make one line look like two.
"""

import json
from collections.abc import Iterable, Sequence


def harmless(text: str) -> str:
    """Escape all that is not printable: control characters, and marks that turn the direction of writing."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def joined(lines: Iterable[str]) -> str:
    """Put harmless lines together, without a newline at the end."""
    return "\n".join(map(harmless, lines))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay harmless cells out in columns, three spaces apart."""
    cells = [[harmless(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
