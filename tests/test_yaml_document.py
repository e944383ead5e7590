"""Tests of parsing YAML with positions and limits, with the C and the Python loader."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from tensile.yaml_document import (
    MAX_ALIASES,
    MAX_DEPTH,
    MAX_DOCUMENTS,
    MAX_ENTRIES,
    MAX_NODES,
    Position,
    YAMLNode,
    advise,
    compose,
    documents,
    find,
    locate,
    plain,
    scalar,
    show_key,
    show_path,
)

LOADERS = [pytest.param(yaml.SafeLoader, id="python")]
if hasattr(yaml, "CSafeLoader"):
    LOADERS.append(pytest.param(yaml.CSafeLoader, id="c"))

TEXT = """a: 1
b:
  c: [x, {d: y}]
  "e":
    - f
    -
      g: h
"""


def read(text: str) -> YAMLNode:
    """Parse a text that has no flaws."""
    document = compose(text)
    assert not document.flaws
    assert document.root is not None
    return document.root


def flaws(text: str, loader: Any = yaml.SafeLoader) -> list[tuple[int, int, str]]:
    """Return line, column and path of each flaw."""
    found = compose(text, loader=loader).flaws
    return [(*flaw.position, show_path(flaw.path)) for flaw in found]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("~", None),
        ("null", None),
        ("Null", None),
        ("NULL", None),
        ("nULL", "nULL"),
        ("true", True),
        ("True", True),
        ("FALSE", False),
        ("yes", "yes"),
        ("no", "no"),
        ("No", "No"),
        ("on", "on"),
        ("off", "off"),
        ("y", "y"),
        ("n", "n"),
        ("0", 0),
        ("12", 12),
        ("+12", 12),
        ("-12", -12),
        ("012", 12),
        ("0o17", 15),
        ("0o18", "0o18"),
        ("0x1F", 31),
        ("0X1F", "0X1F"),
        ("0b11", "0b11"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("190:20:30", "190:20:30"),
        ("1.5", 1.5),
        (".5", 0.5),
        ("5.", 5.0),
        ("1e3", 1000.0),
        ("1e", "1e"),
        (".", "."),
        ("-", "-"),
        ("1.2.3", "1.2.3"),
        ("127.0.0.1", "127.0.0.1"),
        (".inf", float("inf")),
        ("-.INF", float("-inf")),
        (".infinity", ".infinity"),
        ("2024-01-01", "2024-01-01"),
        ("\u0663", "\u0663"),
        ("=", "="),
    ],
)
def test_a_plain_scalar_has_its_value_of_yaml_1_2(text: str, value: object) -> None:
    """YAML 1.1 has other values for texts such as no, 012 and 1:30."""
    found = scalar(text)
    assert found == value
    assert type(found) is type(value)


def test_nan_is_a_float() -> None:
    """It is not equal to itself."""
    found = scalar(".nan")
    assert isinstance(found, float)
    assert found != found  # noqa: PLR0124 - this is what it is known by


def test_a_number_with_more_than_40_digits_is_a_float() -> None:
    """Python would need seconds for an integer with millions of digits, or reject it."""
    assert scalar("9" * 40) == int("9" * 40)
    assert isinstance(scalar("9" * 41), float)
    assert scalar("1" * 1_000_000) == float("inf")
    assert scalar("0x" + "f" * 1000) == "0x" + "f" * 1000


def test_quoted_and_block_scalars_are_text() -> None:
    """This does not depend on their content."""
    assert plain(read("a: '1'\nb: \"true\"\nc: |\n  ~\nd: >-\n  no\n  more\ne: ''\nf: ! 5\n")) == {
        "a": "1",
        "b": "true",
        "c": "~\n",
        "d": "no more",
        "e": "",
        "f": "5",
    }


def test_plain_data_has_tuples_for_lists() -> None:
    """Several readers may share the data, so none may change them."""
    assert plain(read(TEXT)) == {"a": 1, "b": {"c": ("x", {"d": "y"}), "e": ("f", {"g": "h"})}}


@pytest.mark.parametrize(
    ("path", "value", "key"),
    [
        ((), (1, 1), (1, 1)),
        (("a",), (1, 4), (1, 1)),
        (("b",), (2, 1), (2, 1)),
        (("b", "c"), (3, 6), (3, 3)),
        (("b", "c", 0), (3, 7), (3, 7)),
        (("b", "c", 1), (3, 10), (3, 10)),
        (("b", "c", 1, "d"), (3, 14), (3, 11)),
        (("b", "e"), (4, 3), (4, 3)),
        (("b", "e", 0), (5, 7), (5, 7)),
        (("b", "e", 1), (7, 7), (7, 7)),
        (("b", "e", 1, "g"), (7, 10), (7, 7)),
    ],
)
def test_every_value_and_key_has_a_position(path: Any, value: tuple[int, int], key: tuple[int, int]) -> None:
    """A value on the line of its key has its own position, and any other has that of its key."""
    root = read(TEXT)
    assert locate(root, path) == Position(*value)
    assert locate(root, path, key=True) == Position(*key)


@pytest.mark.parametrize(
    ("path", "place"),
    [(("x",), (1, 1)), (("b", "x"), (2, 1)), (("b", "c", 7), (3, 3)), (("a", "x"), (1, 1))],
)
def test_an_absent_path_has_the_position_of_its_nearest_parent(path: Any, place: tuple[int, int]) -> None:
    """That is the nearest key or item that exists."""
    assert locate(read(TEXT), path) == Position(*place)


def test_a_node_is_found_by_its_path() -> None:
    """The result is None for a path that does not exist."""
    root = read(TEXT)
    found = find(root, ("b", "c", 1, "d"))
    assert found is not None
    assert found.value == "y"
    assert find(root, ("b", "c", "d")) is None
    assert find(root, ("b", 0)) is None
    assert find(root, ("a", "b")) is None


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ((), "(file)"),
        (("a",), "a"),
        (("a", 0, "b-c", 12), "a[0].b-c[12]"),
        ((0, "a"), "[0].a"),
        (("a", "b.c/d"), 'a["b.c/d"]'),
        (("", ""), '[""][""]'),
        (("a", "\x1b[31m\r\n"), 'a["\\u001b[31m\\r\\n"]'),
        (("\u202eevil",), '["\\u202eevil"]'),
        (("k" * 63,), "k" * 63),
        (("k" * 64,), '["' + "k" * 60 + '..."]'),
    ],
)
def test_a_path_is_formatted_for_a_terminal(path: Any, text: str) -> None:
    """Plain keys have no quotes; others are quoted, escaped and truncated."""
    assert show_path(path) == text


def test_a_key_is_formatted_as_in_a_path() -> None:
    """Messages that name a key use it."""
    assert (show_key("a_B-1"), show_key("1a"), show_key('"')) == ("a_B-1", '"1a"', '"\\""')


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [1", [(1, 4, "a")]),
        ("a:\n- {b: 1\nc: d\n", [(2, 3, "a[0]")]),
        ("a: 'x\nb: c\n", [(1, 4, "a")]),
        ("a:\n\tb: c\n", [(2, 1, "a")]),
        ("a:\n b: 1\n c\n d: 1\n", [(3, 2, "a")]),
        ("a: b: c\n", [(1, 5, "(file)")]),
        ("a: *b\n", [(1, 4, "a")]),
        ("a: 1\na: 2\n", [(2, 1, "a")]),
        ("a: 1\n---\nb: 2\n", [(2, 1, "(file)")]),
        ("a: {1: 2, 1: 3, 2: 4}\n", [(1, 5, 'a["1"]'), (1, 11, 'a["1"]'), (1, 17, 'a["2"]')]),
        ("[" * 40, [(1, MAX_DEPTH + 1, "[0]" * MAX_DEPTH)]),
        ("a: \x07\n", [(1, 4, "(file)")]),
        ("a: 1\r\nb: \x07\n", [(2, 4, "(file)")]),
    ],
)
def test_flaws_have_the_same_position_with_both_loaders(
    loader: Any, text: str, expected: list[tuple[int, int, str]]
) -> None:
    """The loaders are that in C and that in Python."""
    assert flaws(text, loader) == expected


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("text", ['a: "\\U00110000"', 'a: "\\UFFFFFFFF"', 'a: "\\x"', "a: &"])
def test_invalid_escapes_are_flaws_with_both_loaders(loader: Any, text: str) -> None:
    """The Python loader raises an exception for some of them that is no YAML error."""
    document = compose(text, loader=loader)
    assert document.root is None
    assert document.flaws[0].text.startswith("not valid YAML: ")


@pytest.mark.parametrize("loader", LOADERS)
def test_valid_text_has_the_same_result_with_both_loaders(loader: Any) -> None:
    """Values, keys and positions are the same."""
    assert compose(TEXT, loader=loader).root == read(TEXT)


def test_the_rest_of_a_document_with_a_flaw_can_be_read() -> None:
    """Other errors can then be reported with it; of duplicate keys, the first one counts."""
    document = compose("a: !t 1\nb: 2\nb: 3\n<<: {d: 4}\nc: 5\n? [e]\n: f\n")
    assert document.root is not None
    assert plain(document.root) == {"a": "1", "b": 2, "c": 5}
    assert [flaw.position.line for flaw in document.flaws] == [1, 3, 4, 6]


def test_documents_within_the_limits_are_accepted_and_others_are_not() -> None:
    """The limits are those of depth, aliases and entries."""
    assert compose("[" * (MAX_DEPTH - 1) + "v" + "]" * (MAX_DEPTH - 1)).flaws == ()
    assert flaws("[" * MAX_DEPTH + "v" + "]" * MAX_DEPTH) != []
    assert compose("a: &a v\nb: [" + "*a, " * MAX_ALIASES + "]\n").flaws == ()
    assert compose("[" + "v, " * MAX_ENTRIES + "]").flaws == ()
    assert flaws("[" + "v, " * MAX_ENTRIES + "v]") != []


def test_the_size_of_a_document_includes_the_values_of_aliases() -> None:
    """A mapping with a list of one value, and a list of that list, has six values on four levels."""
    root = read("a: &a [x]\nb: [*a]\n")
    assert (root.size, root.height) == (6, 4)
    within, beyond = (
        f"a: &a [{'v, ' * (MAX_NODES // (MAX_ALIASES + 1) + more)}]\nb: [{'*a, ' * MAX_ALIASES}]\n" for more in (-2, -1)
    )
    assert compose(within).flaws == ()
    assert flaws(beyond) == [(2, 5 + 4 * (MAX_ALIASES - 1), f"b[{MAX_ALIASES - 1}]")]


def test_an_anchor_can_be_used_several_times_and_defined_again() -> None:
    """The last definition before an alias counts, and keys can have anchors too."""
    assert plain(read("&k a: &x 1\nb: *x\nc: &x 2\nd: *x\ne: *k\n")) == {
        "a": 1,
        "b": 1,
        "c": 2,
        "d": 2,
        "e": "a",
    }


def test_a_problem_without_a_known_message_keeps_that_of_the_loader() -> None:
    """A message of the loader is better than none."""
    assert advise("found something odd").message == "found something odd"
    assert not advise("found something odd").opened


@examples(150, derandomize=True)
@given(st.text(st.sampled_from("ab:-[]{},&*!|>'\"\n \t#?%@`~<.0\\"), max_size=60))
def test_any_text_is_parsed_to_a_tree_or_to_flaws(text: str) -> None:
    """Neither loader raises an exception."""
    for loader in (yaml.SafeLoader, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        document = compose(text, loader=loader)
        assert document.root is not None or document.flaws
        lines = len(text.splitlines()) + 1
        assert all(1 <= flaw.position.line <= lines for flaw in document.flaws)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (r'{"a": "\ud83d\ude00!", "b": "\u00e9"}', {"a": "\U0001f600!", "b": "é"}),
        (r'{"a": "\\ud83d\\ude00", "\uD83D\uDE00": 1}', {"a": r"\ud83d\ude00", "\U0001f600": 1}),
        (r"a: '\ud83d\ude00'", {"a": r"\ud83d\ude00"}),
        (r"a: \ud83d\ude00", {"a": r"\ud83d\ude00"}),
    ],
)
def test_a_surrogate_pair_in_json_is_one_character(text: str, wanted: object) -> None:
    """In YAML, the same text outside of double quotes is not an escape."""
    assert plain(read(text)) == wanted


def test_half_a_surrogate_pair_is_a_flaw() -> None:
    """It is no character."""
    assert compose(r'{"a": "\ud83d"}').flaws


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a: 1", [{"a": 1}]),
        ("# first\n---\na: 1\n---\nb: 2\n", [{"a": 1}, {"b": 2}]),
        ("%YAML 1.2\n---\na: 1\n...\n---\n# none\n---\n\n", [{"a": 1}]),
        ("--- {a: 1}\n--- [2]\n", [{"a": 1}, (2,)]),
        ("a: |\n  x\n  ---\n  y\n---\nb: '---'\r\n---\r\nc: 3", [{"a": "x\n---\ny\n"}, {"b": "---"}, {"c": 3}]),
        ("", [None]),
        ("---\n---\n", [None]),
    ],
)
def test_a_text_is_split_into_its_yaml_documents(text: str, values: list[object]) -> None:
    """Only a marker at the start of a line begins a document, and empty documents are left out."""
    parts = [compose(part) for part in documents(text)]
    if values != [None]:
        assert [part.flaws for part in parts] == [()] * len(parts)
    assert [plain(part.root) for part in parts if part.root] == (values if values != [None] else [None] * (text == ""))


def test_positions_in_a_document_count_from_the_start_of_the_whole_text() -> None:
    """The lines of earlier documents count."""
    _, second = documents("a: 1\n---\nb:\n  c: 2\n")
    root = compose(second).root
    assert root is not None
    assert locate(root, ("b", "c")) == (4, 6)


def test_the_number_and_size_of_split_documents_is_limited() -> None:
    """A text that is too large is not split."""
    assert len(documents("---\na: 1\n" * 5 * MAX_DOCUMENTS)) == MAX_DOCUMENTS + 1
    text = "a: 1\n" + "---\n" * 200_000
    assert documents(text) == ["a: 1\n"]
    large = "---\na: 1\n" * 200_000
    assert documents(large) == [large]
