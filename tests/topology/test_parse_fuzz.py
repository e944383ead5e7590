"""Tests that parsing any file returns a topology or errors with positions, and raises nothing else."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from corpus_form import EMPTY, HEAD, ONE
from hypothesis import example, given
from hypothesis import strategies as st
from properties import examples

from tensile.topology import Topology, TopologyErrors, decode, parse
from tensile.yaml_document import compose, plain, show_path

EXAMPLE = (Path(__file__).parents[2] / "topology.example.yaml").read_text()

SMALL = """# small, with a bit of everything
apiVersion: "tensile-kube.io/v1alpha1"
kind: Topology
name: 'demo'
upper: {kubeconfig: ../upper, qps: 0x10, burst: 1000}
lowerDefaults: &defaults
  node: {taints: [{key: a/b, effect: NoExecute}]}
lowers:
- name: a
  kubeconfig: >-
    kubeconfigs/a
  capacity: &capacity
    reserve:
      cpu: "2"
- {name: b, kubeconfig: k, capacity: *capacity, node: {annotations: {z: "\u00fc \\u00fc"}}}
- name: c
  kubeconfig: "k"
  unreachable:
    evictAfter: 1h30m
controllers: [PV,
  RBAC]
"""

WRONG: tuple[Any, ...] = (None, True, -1, 0.5, 99999, "", "!", "\u0000", [], [[]], {}, {"x": {}})
"""Values of all types; none is valid everywhere, some are valid somewhere."""

FREE = {"labels", "annotations", "reserve", "limit", "storageClasses"}
"""Mappings whose keys are the user's own."""


def outcome(text: str, *, configmap: bool = False) -> Topology | TopologyErrors:
    """Parse a text; any exception but TopologyErrors fails the test."""
    try:
        return parse(text, configmap_mode=configmap)
    except TopologyErrors as errors:
        return errors


def text_of(data: bytes) -> str:
    """Decode some bytes, "" if they are rejected; any exception but TopologyErrors fails the test."""
    try:
        return decode(data)
    except TopologyErrors:
        return ""


def data_of(text: str) -> Any:
    """Return the data of a file as JSON has it."""
    root = compose(text).root
    assert root is not None
    return json.loads(json.dumps(plain(root)))


def paths_in(data: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of every value in some data."""
    yield path
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for step, value in items:
        yield from paths_in(value, (*path, step))


def changed(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a copy of the data with another value at a path."""
    copy = json.loads(json.dumps(data))
    inner = copy
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return copy


def renamed(data: Any, path: tuple[Any, ...], key: str) -> Any:
    """Return a copy of the data with another key at a path."""
    copy = json.loads(json.dumps(data))
    inner = copy
    for step in path[:-1]:
        inner = inner[step]
    inner[key] = inner.pop(path[-1])
    return copy


PATHS = [path for path in paths_in(data_of(EXAMPLE)) if path]
KEYS = [path for path in PATHS if isinstance(path[-1], str) and len(path[-1]) > 4 and not FREE.intersection(path[:-1])]


def check(found: Topology | TopologyErrors, text: str) -> None:
    """Check that errors have a position in the text and a message."""
    lines = len(text.splitlines()) + 1
    for problem in found.problems if isinstance(found, TopologyErrors) else ():
        assert 1 <= problem.position.line <= lines
        assert problem.position.column >= 1
        assert problem.text


def test_the_small_topology_is_valid() -> None:
    """The tests of truncated files start from it."""
    assert isinstance(outcome(SMALL), Topology)


def test_a_file_truncated_at_any_byte_is_parsed_or_rejected() -> None:
    """The engine may see a partly written file; most of these are rejected."""
    whole = SMALL.encode()
    refused = 0
    for end in range(len(whole)):
        text = text_of(whole[:end])
        found = outcome(text)
        check(found, text)
        refused += isinstance(found, TopologyErrors)
    assert refused > len(whole) / 2


def test_the_example_truncated_at_any_line_is_parsed_or_rejected() -> None:
    """It is valid only if all required keys are included."""
    lines = EXAMPLE.splitlines(keepends=True)
    found = [outcome("".join(lines[:end])) for end in range(len(lines) + 1)]
    assert isinstance(found[0], TopologyErrors)
    assert isinstance(found[-1], Topology)
    first = next(at for at, one in enumerate(found) if isinstance(one, Topology))
    assert "lowers:" in "".join(lines[:first])


@pytest.mark.parametrize("path", PATHS, ids=show_path)
def test_an_invalid_value_anywhere_has_an_error_in_its_section(path: tuple[Any, ...]) -> None:
    """Values of all types replace each value of the example, and at least three of them are invalid."""
    data = data_of(EXAMPLE)
    refused = 0
    for value in WRONG:
        text = json.dumps(changed(data, path, value))
        found = outcome(text)
        check(found, text)
        if isinstance(found, TopologyErrors):
            refused += 1
            assert any(problem.path[:1] == path[:1] for problem in found.problems)
    assert refused >= 3


@pytest.mark.parametrize("path", KEYS, ids=show_path)
def test_the_error_for_a_misspelled_key_suggests_the_right_key(path: tuple[Any, ...]) -> None:
    """One letter is missing in each key of the example in turn."""
    key = path[-1][:2] + path[-1][3:]
    found = outcome(json.dumps(renamed(data_of(EXAMPLE), path, key)))
    assert isinstance(found, TopologyErrors)
    texts = {problem.path: problem.text for problem in found.problems}
    assert texts[(*path[:-1], key)] == f"unknown key; did you mean {path[-1]}?"


@examples(300, derandomize=True)
@given(st.text(max_size=80), st.booleans())
@example("\ud800", False)
@example("\x00", True)
def test_any_text_is_parsed_or_rejected(text: str, configmap: bool) -> None:  # noqa: FBT001
    """The text may have any characters."""
    check(outcome(text, configmap=configmap), text)


@examples(300, derandomize=True)
@given(st.lists(st.sampled_from(EXAMPLE.splitlines(keepends=True)), max_size=25))
def test_any_lines_of_the_example_are_parsed_or_rejected(lines: list[str]) -> None:
    """They may have any order and number."""
    text = HEAD + "".join(lines)
    check(outcome(text), text)


@examples(300, derandomize=True)
@given(
    st.integers(min_value=0, max_value=len(SMALL) - 1),
    st.sampled_from("{}[]:,-&*!|>'\"#%@`\n\t ~?<.0\x00\u00fc"),
    st.booleans(),
)
def test_a_file_with_any_character_changed_is_parsed_or_rejected(
    at: int,
    character: str,
    insert: bool,  # noqa: FBT001
) -> None:
    """A special character replaces another one or is inserted."""
    text = SMALL[:at] + character + SMALL[at + (not insert) :]
    check(outcome(text), text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@examples(200, derandomize=True)
@given(JSON, st.sampled_from(["lowers", "lowerDefaults", "upper", "kubelet", "webhook", "controllers"]))
def test_any_data_for_a_top_level_key_is_parsed_or_rejected(data: Any, key: str) -> None:
    """This includes the checks of several keys together."""
    text = (HEAD if key == "lowers" else EMPTY) + f"{key}: {json.dumps(data)}\n"
    check(outcome(text), text)


@examples(200, derandomize=True)
@given(JSON, st.sampled_from(["node", "capacity", "kubeconfigSecret", "controllers", "burst"]))
def test_any_data_for_a_key_of_a_lower_is_parsed_or_rejected(data: Any, key: str) -> None:
    """The file has a valid lower beside it."""
    text = ONE + f"- {{name: b, kubeconfig: k, {key}: {json.dumps(data)}}}\n"
    check(outcome(text), text)


@examples(200, derandomize=True)
@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_rejected(data: bytes) -> None:
    """Decoding raises no exception but TopologyErrors."""
    text = text_of(data)
    check(outcome(text), text)
