"""What is said about a topology file: errors, each with its place.

One form for all, FILE:LINE:COLUMN: path.to.key: words, because editors and CI systems jump to it.
"""

from typing import NamedTuple

from tensile.errors import TensileError
from tensile.yamltree import Path, Position, show_path

MOST_SHOWN = 200
"""So many errors of one file are told; whoever has more has the wrong file."""


class Problem(NamedTuple):
    """An error at a place of the file: what is wrong there, and what would be right."""

    position: Position
    path: Path
    text: str

    def line(self, name: str) -> str:
        """Write it as one line, for the file of that name."""
        return f"{name}:{self.position.line}:{self.position.column}: {show_path(self.path)}: {self.text}"


class TopologyErrors(TensileError):
    """A topology file is refused: `problems` has every error, in the order of the file, `name` is the file's."""

    def __init__(self, name: str, problems: tuple[Problem, ...]) -> None:
        lines = [problem.line(name) for problem in problems[:MOST_SHOWN]]
        more = len(problems) - MOST_SHOWN
        super().__init__("\n".join([*lines, f"{name}: and {more} more errors"] if more > 0 else lines))
        self.name = name
        self.problems = problems
