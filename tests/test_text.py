"""Tests of text for printing: it has no secret, no control character and a limited length."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensile.text import HIDDEN, LONGEST_PRINTED, clean, cut, human_duration, printable

MARKER = "aHVudGVyMg=="


@pytest.mark.parametrize(
    "key",
    ["data", "stringData", "binaryData", "token", "Authorization", "authorization", "password", "client-key-data"],
)
def test_values_of_secret_keys_are_hidden(key: str) -> None:
    """This applies to any value at any depth; the key and the other keys are still shown."""
    for value in (MARKER, {"password": MARKER}, [MARKER]):
        shown = printable({"items": [{"kind": "Secret", key: value}]})
        assert shown == {"items": [{"kind": "Secret", key: HIDDEN}]}


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "Basic"])
def test_a_credential_in_a_text_is_hidden(scheme: str) -> None:
    """A library may print a header that contains one."""
    assert clean(f"sent {scheme} {MARKER} to it") == f"sent {scheme} {HIDDEN} to it"


@pytest.mark.parametrize("text", ["the bearer of it", "basic auth", "", "pod default/web: 3 of 4"])
def test_a_text_without_credentials_is_unchanged(text: str) -> None:
    """This includes words that only look like the start of a credential."""
    assert clean(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb", "a\\nb"),
        ("a\r\tb", "a\\r\\tb"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\x9b2J", "\\x9b2J"),
        ("\u202egpj.exe", "\\u202egpj.exe"),
        ("\u2028", "\\u2028"),
        ("\ud800", "\\ud800"),
        ("Größe 5", "Größe 5"),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    """They could start a line, control a terminal or change the reading order; letters of other languages are kept."""
    assert clean(text) == shown
    assert printable([text]) == [shown]


def test_a_long_text_is_truncated() -> None:
    """Some errors contain a whole object."""
    assert clean("x" * LONGEST_PRINTED) == "x" * LONGEST_PRINTED
    assert clean("x" * (LONGEST_PRINTED + 1)) == "x" * (LONGEST_PRINTED - 3) + "..."


def test_deep_and_wide_values_are_truncated() -> None:
    """A value may be a whole list of objects, or contain itself."""
    circle: list[Any] = []
    circle.append(circle)
    assert "..." in repr(printable(circle))
    assert len(printable(list(range(10**5)))) == 100
    assert len(printable(dict.fromkeys(range(10**5)))) == 100


@given(st.recursive(st.none() | st.integers() | st.floats() | st.text() | st.binary(), st.lists, max_leaves=20))
def test_any_value_can_be_printed(value: Any) -> None:
    """The result has only printable characters."""
    shown = repr(printable(value))
    assert all(character.isprintable() for character in shown)


@given(
    st.recursive(
        st.just(MARKER),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["data", "token", "spec", "x"]), inner),
        max_leaves=10,
    )
)
def test_no_value_under_a_secret_key_is_printed(value: Any) -> None:
    """The key may be at any level above the value."""
    assert MARKER not in repr(printable({"stringData": value}))
    assert MARKER not in repr(printable([{"spec": {"Token": value}}]))


@given(st.text(max_size=300), st.integers(3, 200))
def test_a_text_for_an_event_is_truncated_to_a_number_of_bytes(text: str, most: int) -> None:
    """No character is split, and a text that is short enough is unchanged."""
    found = cut(text, most)
    assert len(found.encode()) <= most
    assert cut(found, most) == found


def test_line_breaks_in_a_text_for_an_event_are_kept() -> None:
    """The output of a probe has several lines.

    Escape sequences are escaped, and a truncated text ends with dots.
    """
    assert cut("a\tb\n\x1b[2Jc\r\n", 100) == "a\tb\n\\x1b[2Jc\\r\n"
    assert cut("x" * 20, 10) == "xxxxxxx..."
    assert cut("\ud800", 100) == "\\ud800"


@pytest.mark.parametrize(
    ("seconds", "formatted"),
    [
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (130, "2m10s"),
        (10 * 60 + 30, "10m"),
        (179 * 60, "179m"),
        (180 * 60, "3h"),
        (185 * 60, "3h5m"),
        (8 * 3600 + 60, "8h"),
        (47 * 3600, "47h"),
        (52 * 3600, "2d4h"),
        (8 * 86_400 + 3600, "8d"),
    ],
)
def test_a_duration_is_formatted_as_in_kubectl(seconds: int, formatted: str) -> None:
    """A second unit is shown only if the first number is small."""
    assert human_duration(seconds) == formatted
