"""Reading YAML with places and limits, with and without the library in C."""

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
    """Read a text without flaws."""
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
def test_a_plain_scalar_is_what_yaml_1_2_says(text: str, value: object) -> None:
    """Not what YAML 1.1 made of no, 012 and 1:30."""
    found = scalar(text)
    assert found == value
    assert type(found) is type(value)


def test_not_a_number_is_a_float() -> None:
    """And equal to nothing."""
    found = scalar(".nan")
    assert isinstance(found, float)
    assert found != found  # noqa: PLR0124 - this is what it is known by


def test_a_number_of_many_digits_is_a_float() -> None:
    """Python would take seconds over millions of digits, or refuse."""
    assert scalar("9" * 40) == int("9" * 40)
    assert isinstance(scalar("9" * 41), float)
    assert scalar("1" * 1_000_000) == float("inf")
    assert scalar("0x" + "f" * 1000) == "0x" + "f" * 1000


def test_quotes_and_blocks_make_text() -> None:
    """Whatever is in them."""
    assert plain(read("a: '1'\nb: \"true\"\nc: |\n  ~\nd: >-\n  no\n  more\ne: ''\nf: ! 5\n")) == {
        "a": "1",
        "b": "true",
        "c": "~\n",
        "d": "no more",
        "e": "",
        "f": "5",
    }


def test_plain_data_has_tuples_for_lists() -> None:
    """So that nobody changes what others read."""
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
def test_everything_has_a_place(path: Any, value: tuple[int, int], key: tuple[int, int]) -> None:
    """A value on its key's line is pointed at itself, any other by its key."""
    root = read(TEXT)
    assert locate(root, path) == Position(*value)
    assert locate(root, path, key=True) == Position(*key)


@pytest.mark.parametrize(
    ("path", "place"),
    [(("x",), (1, 1)), (("b", "x"), (2, 1)), (("b", "c", 7), (3, 3)), (("a", "x"), (1, 1))],
)
def test_what_is_not_there_is_pointed_at_by_what_is_around_it(path: Any, place: tuple[int, int]) -> None:
    """The nearest key or item above it."""
    assert locate(read(TEXT), path) == Position(*place)


def test_a_node_is_found_by_its_path() -> None:
    """Or is None."""
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
def test_a_path_is_shown_in_a_way_that_a_terminal_can_take(path: Any, text: str) -> None:
    """Plain keys bare, others quoted, escaped and cut."""
    assert show_path(path) == text


def test_a_key_is_shown_as_in_a_path() -> None:
    """For messages that name one."""
    assert (show_key("a_B-1"), show_key("1a"), show_key('"')) == ("a_B-1", '"1a"', '"\\""')


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    ("text", "told"),
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
def test_flaws_have_the_same_place_with_either_reader(loader: Any, text: str, told: list[tuple[int, int, str]]) -> None:
    """The one in C and the one in Python."""
    assert flaws(text, loader) == told


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("text", ['a: "\\U00110000"', 'a: "\\UFFFFFFFF"', 'a: "\\x"', "a: &"])
def test_bad_escapes_are_flaws_with_either_reader(loader: Any, text: str) -> None:
    """Even where the reader in Python raises what is no YAML error."""
    document = compose(text, loader=loader)
    assert document.root is None
    assert document.flaws[0].text.startswith("not valid YAML: ")


@pytest.mark.parametrize("loader", LOADERS)
def test_good_text_is_the_same_with_either_reader(loader: Any) -> None:
    """Values, keys and places."""
    assert compose(TEXT, loader=loader).root == read(TEXT)


def test_a_flaw_beside_the_rest_leaves_the_rest_readable() -> None:
    """So that other errors can be told with it; the first of two keys counts."""
    document = compose("a: !t 1\nb: 2\nb: 3\n<<: {d: 4}\nc: 5\n? [e]\n: f\n")
    assert document.root is not None
    assert plain(document.root) == {"a": "1", "b": 2, "c": 5}
    assert [flaw.position.line for flaw in document.flaws] == [1, 3, 4, 6]


def test_limits_are_reached_and_not_passed() -> None:
    """What is just within them is read."""
    assert compose("[" * (MAX_DEPTH - 1) + "v" + "]" * (MAX_DEPTH - 1)).flaws == ()
    assert flaws("[" * MAX_DEPTH + "v" + "]" * MAX_DEPTH) != []
    assert compose("a: &a v\nb: [" + "*a, " * MAX_ALIASES + "]\n").flaws == ()
    assert compose("[" + "v, " * MAX_ENTRIES + "]").flaws == ()
    assert flaws("[" + "v, " * MAX_ENTRIES + "v]") != []


def test_values_are_counted_with_aliases_followed() -> None:
    """The mapping, a list of one value, and a list of such a list are six values on four levels."""
    root = read("a: &a [x]\nb: [*a]\n")
    assert (root.size, root.height) == (6, 4)
    within, beyond = (
        f"a: &a [{'v, ' * (MAX_NODES // (MAX_ALIASES + 1) + more)}]\nb: [{'*a, ' * MAX_ALIASES}]\n" for more in (-2, -1)
    )
    assert compose(within).flaws == ()
    assert flaws(beyond) == [(2, 5 + 4 * (MAX_ALIASES - 1), f"b[{MAX_ALIASES - 1}]")]


def test_an_anchor_can_be_used_again_and_anew() -> None:
    """The last one before the alias counts, keys can have one too."""
    assert plain(read("&k a: &x 1\nb: *x\nc: &x 2\nd: *x\ne: *k\n")) == {
        "a": 1,
        "b": 1,
        "c": 2,
        "d": 2,
        "e": "a",
    }


def test_a_problem_without_words_of_ours_keeps_the_readers() -> None:
    """It is better than nothing."""
    assert advise("found something odd").words == "found something odd"
    assert not advise("found something odd").opened


@examples(150, derandomize=True)
@given(st.text(st.sampled_from("ab:-[]{},&*!|>'\"\n \t#?%@`~<.0\\"), max_size=60))
def test_any_text_gives_a_tree_or_flaws(text: str) -> None:
    """Reading never raises, whichever reader reads."""
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
def test_a_character_that_json_writes_as_two_is_one(text: str, wanted: object) -> None:
    """JSON is read as JSON; in YAML the same signs outside of double quotes are text as they are."""
    assert plain(read(text)) == wanted


def test_half_a_character_is_refused() -> None:
    """There is none that it could be."""
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
def test_a_text_is_split_into_its_documents(text: str, values: list[object]) -> None:
    """Only a marker at the start of a line begins one; those without content are left out."""
    parts = [compose(part) for part in documents(text)]
    if values != [None]:
        assert [part.flaws for part in parts] == [()] * len(parts)
    assert [plain(part.root) for part in parts if part.root] == (values if values != [None] else [None] * (text == ""))


def test_a_document_of_several_has_the_positions_of_the_text() -> None:
    """Lines before it count."""
    _, second = documents("a: 1\n---\nb:\n  c: 2\n")
    root = compose(second).root
    assert root is not None
    assert locate(root, ("b", "c")) == (4, 6)


def test_documents_are_split_within_limits() -> None:
    """However many there are, and however large the text."""
    assert len(documents("---\na: 1\n" * 5 * MAX_DOCUMENTS)) == MAX_DOCUMENTS + 1
    text = "a: 1\n" + "---\n" * 200_000
    assert documents(text) == ["a: 1\n"]
    large = "---\na: 1\n" * 200_000
    assert documents(large) == [large]
