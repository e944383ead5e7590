"""From what pydantic finds wrong with a file to words that say what would be right.

Its own words speak of Python ("Input should be a valid tuple"); the reader of these knows YAML and Kubernetes.

What is said about a topology file: errors, each with its place.

One form for all, FILE:LINE:COLUMN: path.to.key: words, because editors and CI systems jump to it.
"""

import difflib
import re
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from tensile.errors import TensileError
from tensile.topology.fields import show
from tensile.topology.models import Section, TopologyFile
from tensile.yaml_document import Path, Position, show_key, show_path

_LISTED = 12
_QUOTED = re.compile(r"'([^']*)'")


def closest(word: object, known: Iterable[str]) -> str:
    """Return `; did you mean "..."?` for the known word that is most like this one, "" when none is."""
    spellings = {name.lower(): name for name in known}
    sought = "none" if word is None else str(word).lower()
    found = difflib.get_close_matches(sought[:64], spellings, n=1, cutoff=0.7)
    return f"; did you mean {show_key(spellings[found[0]])}?" if found else ""


def _section(annotation: Any) -> type[Section] | None:
    """Find the section that a field's type holds, through lists and null."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    found = (_section(part) for part in get_args(annotation))
    return next((section for section in found if section), None)


def _fields(section: type[Section] | None) -> dict[str, FieldInfo]:
    """Return a section's fields by the keys that they have in the file."""
    found = section.model_fields.values() if section else ()
    return {str(field.alias): field for field in found}


def fields_at(whole: type[Section], path: Path) -> dict[str, FieldInfo]:
    """Return the fields at a place of a section, by their keys; none where keys are the user's own."""
    section: type[Section] | None = whole
    for step in path:
        if isinstance(step, str):
            field = _fields(section).get(step)
            section = _section(field.annotation) if field else None
    return _fields(section)


def _unknown(_: ErrorDetails, path: Path) -> str:
    """Return which key was likely meant."""
    known = fields_at(TopologyFile, path[:-1])
    guess = closest(path[-1], known)
    return f"unknown key{guess}" if guess else f"unknown key; known here: {', '.join(known)}"


def _missing(_: ErrorDetails, path: Path) -> str:
    """Return what must be given."""
    field = fields_at(TopologyFile, path[:-1]).get(str(path[-1]))
    only = get_args(field.annotation) if field and get_origin(field.annotation) is Literal else ()
    return f"missing; write {path[-1]}: {only[0]}" if len(only) == 1 else "missing; it must be given"


def _choice(error: ErrorDetails, _: Path) -> str:
    """Return which values there are."""
    choices = _QUOTED.findall(str(error.get("ctx", {}).get("expected", "")))
    value = error["input"]
    guess = closest(value, choices) if isinstance(value, str | None) else ""
    return f"is {show(value)}; must be {' or '.join(choices)}{guess}"


def _text(error: ErrorDetails, _: Path) -> str:
    """Describe that text is wanted, and how a number or truth value becomes one."""
    value = error["input"]
    if isinstance(value, bool | int | float):
        return f"is {show(value)}, must be text; put it in quotes"
    return f"is {show(value)}, must be text"


def _whole(error: ErrorDetails, _: Path) -> str:
    """Describe that a whole number is wanted."""
    value = error["input"]
    hint = "; write it without quotes" if isinstance(value, str) and value.isdecimal() else ""
    return f"is {show(value)}, must be a whole number{hint}"


def _truth(error: ErrorDetails, _: Path) -> str:
    """Describe that true or false is wanted."""
    return f"is {show(error['input'])}, must be true or false"


def _mapping(error: ErrorDetails, path: Path) -> str:
    """Describe that a mapping is wanted, and of what."""
    known = fields_at(TopologyFile, path)
    of = f" with keys out of {', '.join(known)}" if 0 < len(known) <= _LISTED else ""
    return f"is {show(error['input'])}, must be a mapping{of}"


def _list(error: ErrorDetails, _: Path) -> str:
    """Describe that a list is wanted."""
    return f"is {show(error['input'])}, must be a list: [...], or one line with - for each"


def _bound(error: ErrorDetails, _: Path) -> str:
    """Return how far a number may go."""
    context = error.get("ctx", {})
    bound = f"at least {context['ge']}" if "ge" in context else f"at most {context.get('le')}"
    return f"is {show(error['input'])}, must be {bound}"


def _own(error: ErrorDetails, _: Path) -> str:
    """Return the words of our own checks."""
    return str(error.get("ctx", {}).get("error", error["msg"]))


_WORDS: dict[str, Callable[[ErrorDetails, Path], str]] = {
    "extra_forbidden": _unknown,
    "missing": _missing,
    "literal_error": _choice,
    "string_type": _text,
    "int_type": _whole,
    "bool_type": _truth,
    "model_type": _mapping,
    "mapping_type": _mapping,
    "dict_type": _mapping,
    "tuple_type": _list,
    "greater_than_equal": _bound,
    "less_than_equal": _bound,
    "value_error": _own,
}


def explain(error: ErrorDetails, path: Path) -> str:
    """Describe an error in words; `path` is its place in the file."""
    words = _WORDS.get(error["type"], _own)(error, path)
    field = fields_at(TopologyFile, path[:-1]).get(str(path[-1])) if path else None
    is_null = error["input"] is None and field is not None and not field.is_required()
    return f"{words}; leave the key out for its default" if is_null else words


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
