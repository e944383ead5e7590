"""Reading a topology file as it is written, whatever mistakes are in it.

A value is looked up by its path and may be of any type; what is not there, or lies under something of another form, is
None. That lets every check run over every file.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from tensile.yamltree import Path


class Fault(NamedTuple):
    """Something that does not fit: where, and in words what and what would be right."""

    path: Path
    text: str


def get(data: Any, path: Path) -> Any:
    """Give what is written at a path, None when nothing is or when the file has another form."""
    for step in path:
        if isinstance(step, str):
            data = data.get(step) if isinstance(data, dict) else None
        else:
            data = data[step] if isinstance(data, tuple) and step < len(data) else None
    return data


def lowers(data: Any) -> range:
    """Give the places of the lowers."""
    found = get(data, ("lowers",))
    return range(len(found)) if isinstance(found, tuple) else range(0)


def scopes(data: Any) -> Iterator[Path]:
    """Give the paths below which fields of a lower may stand."""
    yield ("lowerDefaults",)
    for place in lowers(data):
        yield "lowers", place


def inherited(data: Any, place: int, path: Path) -> tuple[Any, Path]:
    """Give a lower's value and where it is written: its own, else that of lowerDefaults, else None at its own place."""
    own: Path = ("lowers", place, *path)
    default: Path = ("lowerDefaults", *path)
    container = get(data, own[:-1])
    if isinstance(container, dict) and path[-1] in container:
        return container[path[-1]], own
    found = get(data, default)
    return (found, default) if found is not None else (None, own)
