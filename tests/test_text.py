"""What may be printed: no secret, no control character, nothing without end."""

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
def test_what_is_kept_under_the_key_of_a_secret_is_hidden(key: str) -> None:
    """At any depth, whatever it is; the key is still told, and what stands beside it."""
    for value in (MARKER, {"password": MARKER}, [MARKER]):
        shown = printable({"items": [{"kind": "Secret", key: value}]})
        assert shown == {"items": [{"kind": "Secret", key: HIDDEN}]}


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "Basic"])
def test_a_credential_in_a_text_is_hidden(scheme: str) -> None:
    """As it stands in a header that some library prints."""
    assert clean(f"sent {scheme} {MARKER} to it") == f"sent {scheme} {HIDDEN} to it"


@pytest.mark.parametrize("text", ["the bearer of it", "basic auth", "", "pod default/web: 3 of 4"])
def test_a_plain_text_stays(text: str) -> None:
    """Words that only look like the start of a credential too."""
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
    """They can neither begin a line nor steer a terminal nor turn the reading order; other languages stay."""
    assert clean(text) == shown
    assert printable([text]) == [shown]


def test_a_long_text_is_cut() -> None:
    """Some errors carry a whole object."""
    assert clean("x" * LONGEST_PRINTED) == "x" * LONGEST_PRINTED
    assert clean("x" * (LONGEST_PRINTED + 1)) == "x" * (LONGEST_PRINTED - 3) + "..."


def test_deep_and_wide_values_are_cut() -> None:
    """A value may be a whole list of objects, or hold itself."""
    circle: list[Any] = []
    circle.append(circle)
    assert "..." in repr(printable(circle))
    assert len(printable(list(range(10**5)))) == 100
    assert len(printable(dict.fromkeys(range(10**5)))) == 100


@given(st.recursive(st.none() | st.integers() | st.floats() | st.text() | st.binary(), st.lists, max_leaves=20))
def test_any_value_can_be_printed(value: Any) -> None:
    """And no character of it that is not plain."""
    shown = repr(printable(value))
    assert all(character.isprintable() for character in shown)


@given(
    st.recursive(
        st.just(MARKER),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["data", "token", "spec", "x"]), inner),
        max_leaves=10,
    )
)
def test_no_secret_comes_through(value: Any) -> None:
    """Wherever the key stands over it."""
    assert MARKER not in repr(printable({"stringData": value}))
    assert MARKER not in repr(printable([{"spec": {"Token": value}}]))


@given(st.text(max_size=300), st.integers(3, 200))
def test_a_text_for_an_event_is_cut_within_its_bytes(text: str, most: int) -> None:
    """No character is torn, and what is short enough stays as it is."""
    found = cut(text, most)
    assert len(found.encode()) <= most
    assert cut(found, most) == found


def test_the_lines_of_a_text_for_an_event_stay() -> None:
    """What a probe prints has several; an escape sequence among them is written out, and a long end is marked."""
    assert cut("a\tb\n\x1b[2Jc\r\n", 100) == "a\tb\n\\x1b[2Jc\\r\n"
    assert cut("x" * 20, 10) == "xxxxxxx..."
    assert cut("\ud800", 100) == "\\ud800"


@pytest.mark.parametrize(
    ("seconds", "words"),
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
def test_a_time_span_is_printed_as_kubectl_does(seconds: int, words: str) -> None:
    """A second unit only where the first is small."""
    assert human_duration(seconds) == words
