"""Error messages for topology files: pydantic's errors in the terms of YAML and Kubernetes, with their positions.

Pydantic's messages use Python terms ("Input should be a valid tuple"), which users of the file need not know. All
errors have the form FILE:LINE:COLUMN: path.to.key: message, which editors and CI systems recognize.
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

MOST_SHOWN = 200
"""The most errors of one file that are shown. A file with more is probably not a topology."""

_LISTED = 12
_QUOTED = re.compile(r"'([^']*)'")


class TopologyProblem(NamedTuple):
    """An error at a position of the file, with what is wrong and what would be right."""

    position: Position
    path: Path
    text: str

    def line(self, name: str) -> str:
        """Format it as one line, for the file of that name."""
        return f"{name}:{self.position.line}:{self.position.column}: {show_path(self.path)}: {self.text}"


class TopologyErrors(TensileError):
    """A topology file is invalid. `problems` holds every error in the order of the file, `name` is the file's."""

    def __init__(self, name: str, problems: tuple[TopologyProblem, ...]) -> None:
        lines = [problem.line(name) for problem in problems[:MOST_SHOWN]]
        more = len(problems) - MOST_SHOWN
        super().__init__("\n".join([*lines, f"{name}: and {more} more errors"] if more > 0 else lines))
        self.name = name
        self.problems = problems


def closest(word: object, known: Iterable[str]) -> str:
    """Return `; did you mean "..."?` for the most similar known word, "" if none is similar."""
    spellings = {name.lower(): name for name in known}
    spelled = "none" if word is None else str(word).lower()
    found = difflib.get_close_matches(spelled[:64], spellings, n=1, cutoff=0.7)
    return f"; did you mean {show_key(spellings[found[0]])}?" if found else ""


def _section(annotation: Any) -> type[Section] | None:
    """Return the section in a field's type, through lists and null."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    found = (_section(part) for part in get_args(annotation))
    return next((section for section in found if section), None)


def _fields(section: type[Section] | None) -> dict[str, FieldInfo]:
    """Return a section's fields by their keys in the file."""
    found = section.model_fields.values() if section else ()
    return {str(field.alias): field for field in found}


def fields_at(whole: type[Section], path: Path) -> dict[str, FieldInfo]:
    """Return the fields at a path of a section, by their keys. Empty where users choose the keys."""
    section: type[Section] | None = whole
    for step in path:
        if isinstance(step, str):
            field = _fields(section).get(step)
            section = _section(field.annotation) if field else None
    return _fields(section)


def _unknown(_: ErrorDetails, path: Path) -> str:
    """Return the key that was probably meant."""
    known = fields_at(TopologyFile, path[:-1])
    guess = closest(path[-1], known)
    return f"unknown key{guess}" if guess else f"unknown key; known keys: {', '.join(known)}"


def _missing(_: ErrorDetails, path: Path) -> str:
    """Describe a missing key."""
    field = fields_at(TopologyFile, path[:-1]).get(str(path[-1]))
    only = get_args(field.annotation) if field and get_origin(field.annotation) is Literal else ()
    return f"required key is missing; write {path[-1]}: {only[0]}" if len(only) == 1 else "required key is missing"


def _choice(error: ErrorDetails, _: Path) -> str:
    """Return the allowed values."""
    choices = _QUOTED.findall(str(error.get("ctx", {}).get("expected", "")))
    value = error["input"]
    guess = closest(value, choices) if isinstance(value, str | None) else ""
    return f"is {show(value)}; must be {' or '.join(choices)}{guess}"


def _text(error: ErrorDetails, _: Path) -> str:
    """Require text, with a hint for numbers and booleans."""
    value = error["input"]
    if isinstance(value, bool | int | float):
        return f"is {show(value)}; must be text: put it in quotes"
    return f"is {show(value)}; must be text"


def _integer(error: ErrorDetails, _: Path) -> str:
    """Require a whole number."""
    value = error["input"]
    hint = ": write it without quotes" if isinstance(value, str) and value.isdecimal() else ""
    return f"is {show(value)}; must be a whole number{hint}"


def _boolean(error: ErrorDetails, _: Path) -> str:
    """Require true or false."""
    return f"is {show(error['input'])}; must be true or false"


def _mapping(error: ErrorDetails, path: Path) -> str:
    """Require a mapping, with its keys."""
    known = fields_at(TopologyFile, path)
    hint = f", known keys: {', '.join(known)}" if 0 < len(known) <= _LISTED else ""
    return f"is {show(error['input'])}; must be a mapping{hint}"


def _list(error: ErrorDetails, _: Path) -> str:
    """Require a list."""
    return f"is {show(error['input'])}; must be a list: [...], or one line with - per item"


def _bound(error: ErrorDetails, _: Path) -> str:
    """Return the limit of a number."""
    context = error.get("ctx", {})
    bound = f"at least {context['ge']}" if "ge" in context else f"at most {context.get('le')}"
    return f"is {show(error['input'])}; must be {bound}"


def _custom(error: ErrorDetails, _: Path) -> str:
    """Return the message of a custom check."""
    return str(error.get("ctx", {}).get("error", error["msg"]))


_MESSAGES: dict[str, Callable[[ErrorDetails, Path], str]] = {
    "extra_forbidden": _unknown,
    "missing": _missing,
    "literal_error": _choice,
    "string_type": _text,
    "int_type": _integer,
    "bool_type": _boolean,
    "model_type": _mapping,
    "mapping_type": _mapping,
    "dict_type": _mapping,
    "tuple_type": _list,
    "greater_than_equal": _bound,
    "less_than_equal": _bound,
    "value_error": _custom,
}


def explain(error: ErrorDetails, path: Path) -> str:
    """Return the message for an error. `path` is its path in the file."""
    message = _MESSAGES.get(error["type"], _custom)(error, path)
    field = fields_at(TopologyFile, path[:-1]).get(str(path[-1])) if path else None
    is_null = error["input"] is None and field is not None and not field.is_required()
    return f"{message}; remove the key to use its default" if is_null else message
