"""What differs between the answers of a real node and of a virtual one, and which of it is expected.

Lines are compared, not documents: what one side says beyond the other is told in its own words.
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Line(NamedTuple):
    """A line that one side alone says: "real" or "virtual"."""

    side: str
    text: str

    def __str__(self) -> str:
        return f"{self.side}: {self.text}"


class Expected(NamedTuple):
    """A difference that is as it should be: in which commands (a regular expression), and what each side says there.

    `real` and `virtual` are regular expressions for whole lines, None for nothing.
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
    """Return the lines that one side alone says, in their order."""
    found: list[Line] = []
    for tag, a, b, c, d in difflib.SequenceMatcher(None, real, virtual, autojunk=False).get_opcodes():
        if tag != "equal":
            found += [Line("real", text) for text in real[a:b]]
            found += [Line("virtual", text) for text in virtual[c:d]]
    return found


def explained(command: str, lines: Iterable[Line], expected: Sequence[Expected]) -> tuple[set[int], list[Line]]:
    """Return which of the expected differences (by their places) these lines are, and the lines that are none."""
    places: set[int] = set()
    strange: list[Line] = []
    for line in lines:
        found = [place for place, one in enumerate(expected) if one.explains(command, line)]
        places.update(found[:1])
        strange += [] if found else [line]
    return places, strange
