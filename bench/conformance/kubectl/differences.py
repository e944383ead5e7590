"""Finds the differences between the answers of a real node and of a virtual one, and which of them are expected.

Lines are compared, not documents: a line that only one side has is reported with its text.
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Line(NamedTuple):
    """A line that only one side has: "real" or "virtual"."""

    side: str
    text: str

    def __str__(self) -> str:
        return f"{self.side}: {self.text}"


class Expected(NamedTuple):
    """A difference that is intended: a regular expression of commands, and the lines of each side.

    `real` and `virtual` are regular expressions for whole lines, None for no line.
    """

    commands: str
    what: str
    why: str
    real: str | None = None
    virtual: str | None = None

    def explains(self, command: str, line: Line) -> bool:
        """Report whether a line is this difference."""
        pattern = self.real if line.side == "real" else self.virtual
        return pattern is not None and bool(re.search(self.commands, command) and re.fullmatch(pattern, line.text))


def lines_apart(real: Sequence[str], virtual: Sequence[str]) -> list[Line]:
    """Return the lines that only one side has, in their order."""
    found: list[Line] = []
    for tag, a, b, c, d in difflib.SequenceMatcher(None, real, virtual, autojunk=False).get_opcodes():
        if tag != "equal":
            found += [Line("real", text) for text in real[a:b]]
            found += [Line("virtual", text) for text in virtual[c:d]]
    return found


def explained(command: str, lines: Iterable[Line], expected: Sequence[Expected]) -> tuple[set[int], list[Line]]:
    """Return the indexes of the expected differences that these lines are, and the lines that are not expected."""
    places: set[int] = set()
    strange: list[Line] = []
    for line in lines:
        found = [place for place, one in enumerate(expected) if one.explains(command, line)]
        places.update(found[:1])
        strange += [] if found else [line]
    return places, strange
