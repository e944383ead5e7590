"""A value in a YAML text is changed, and the rest stays as it was written."""

from copy import deepcopy
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tensile.deploy.convert import edited
from tensile.yaml_document import Path

KEYS = st.sampled_from(["a", "b", "c", "d"])
SCALARS = st.one_of(st.integers(), st.booleans(), st.none(), st.text("ab: #'\"-\n", max_size=12))
DATA = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=12,
)
FORMS = st.sampled_from([False, None, True])
"""Blocks, blocks with the innermost in braces, all in braces."""


def paths(data: Any, before: Path = ()) -> list[Path]:
    """Return the path of every value that has a key, at any depth."""
    inside = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    found = [path for step, value in inside for path in paths(value, (*before, step))]
    return [*found, *((*before, key) for key in (data if isinstance(data, dict) else ()))]


def with_value(data: Any, path: Path, value: Any) -> Any:
    """Return data with another value at a path that is there."""
    whole = inside = deepcopy(data)
    for step in path[:-1]:
        inside = inside[step]
    inside[path[-1]] = value
    return whole


def without(data: Any, path: Path) -> Any:
    """Return data without what is at a path, and without what is empty for it."""
    whole = inside = deepcopy(data)
    for step in path[:-1]:
        inside = inside[step]
    if len(inside) > 1 or len(path) == 1:
        del inside[path[-1]]
        return whole
    return without(whole, path[:-1]) if isinstance(path[-2], str) else whole


@given(data=st.dictionaries(KEYS, DATA, min_size=1, max_size=4), form=FORMS, value=st.integers(), chance=st.data())
def test_a_value_becomes_another(data: dict[str, Any], form: object, value: int, chance: st.DataObject) -> None:
    """Whatever it was, wherever it stands, and in whatever form; nothing else means something else."""
    text = yaml.safe_dump(data, default_flow_style=form)
    path = chance.draw(st.sampled_from(paths(data)))
    assert yaml.safe_load(edited(text, path, value)) == with_value(data, path, value)


@given(data=st.dictionaries(KEYS, DATA, min_size=2, max_size=4), form=FORMS, chance=st.data())
def test_a_value_goes(data: dict[str, Any], form: object, chance: st.DataObject) -> None:
    """With a mapping in which nothing is left."""
    text = yaml.safe_dump(data, default_flow_style=form)
    mappings = [path for path in paths(data) if all(isinstance(step, str) for step in path)]
    path = chance.draw(st.sampled_from(mappings))
    wanted = without(data, path)
    assert yaml.safe_load(edited(text, path, None)) == (wanted or None)


@pytest.mark.parametrize(
    ("text", "path", "value", "wanted"),
    [
        ("a: 1  # one\nb: 2\n", ("a",), 3, "a: 3  # one\nb: 2\n"),
        ("a: 1  # one\n# two\nb: 2\n", ("a",), None, "# two\nb: 2\n"),
        ("a: 1\nb: 2", ("c",), {"d": "x"}, "a: 1\nb: 2\nc: {d: x}\n"),
        ("a:\n  b: 1  # one\n\nc: 2\n", ("a", "d"), True, "a:\n  b: 1  # one\n  d: true\n\nc: 2\n"),
        ("a:\n- b: 1\n  c: 2\n", ("a", 0, "b"), None, "a:\n- c: 2\n"),
        ("a: {b: 1, c: 2}\n", ("a", "b"), None, "a: {c: 2}\n"),
        ("a: {b: 1, c: 2}\n", ("a", "c"), None, "a: {b: 1}\n"),
        ("a: {}\n", ("a", "b"), 1, "a: {b: 1}\n"),
        ("a:\nb: 2\n", ("a", "c"), 1, "a: {c: 1}\nb: 2\n"),
        ("a:\n  b: 1\nc: 2\n", ("a", "b"), None, "c: 2\n"),
        ("c: 2\n", ("a", "b"), None, "c: 2\n"),
        ("a:\n  - b\n  - c\nd: 1\n", ("a",), "x", "a: x\nd: 1\n"),
    ],
)
def test_what_is_around_it_stays(text: str, path: Path, value: Any, wanted: str) -> None:
    """Comments, blank lines and the form."""
    assert edited(text, path, value) == wanted


def test_a_key_can_take_the_place_of_another() -> None:
    """With its comment."""
    assert edited("a: 1  # one\nb: 2\n", ("a",), {"x": 1}, "c") == "c: {x: 1}  # one\nb: 2\n"
