"""From bytes to text: sizes and encodings."""

import pytest
from corpus_form import EMPTY

from tensile.topology import TopologyErrors, decode, parse


def refused(data: bytes) -> str:
    """Return the words with which bytes are refused."""
    with pytest.raises(TopologyErrors) as caught:
        decode(data, name="t.yaml")
    return str(caught.value)


def test_utf8_is_taken_with_and_without_a_byte_order_mark() -> None:
    """Editors on Windows write one."""
    assert decode("n\u00fc".encode()) == "n\u00fc"
    assert parse(decode(EMPTY.encode("utf-8-sig"))) == parse(EMPTY)


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b"\xff", "1:1"),
        (b"a: \xe9", "1:4"),
        (b"a: b\nc: \x80", "2:4"),
        ("a: \u00fc".encode() + b"\xfc", "1:5"),
        (b"a: \xc3", "1:4"),
        (b"a\r\nb\r\n\xf8", "3:1"),
        (b"a: \xed\xa0\x80", "1:4"),
    ],
)
def test_bytes_that_are_not_utf8_are_refused_where_they_are(data: bytes, place: str) -> None:
    """Columns count characters, as editors do."""
    assert refused(data) == (f"t.yaml:{place}: (file): this byte is not valid UTF-8; save the file as UTF-8")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_utf16_is_refused_by_name(encoding: str) -> None:
    """It is what some editors call Unicode."""
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    assert refused((mark + EMPTY).encode(encoding)).endswith("the file is UTF-16 text; save it as UTF-8")


def test_more_than_a_mebibyte_is_refused_before_it_is_decoded() -> None:
    """Whatever the bytes are."""
    assert "larger than 1048576 bytes" in refused(b"\xff" * (1048576 + 1))
    assert decode(b"a" * 1048576) == "a" * 1048576
