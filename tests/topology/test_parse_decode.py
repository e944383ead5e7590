"""Tests of decoding a topology file: sizes and encodings."""

import pytest
from corpus_form import EMPTY

from tensile.topology import TopologyErrors, decode, parse


def refused(data: bytes) -> str:
    """Return the message with which bytes are rejected."""
    with pytest.raises(TopologyErrors) as caught:
        decode(data, name="t.yaml")
    return str(caught.value)


def test_utf8_is_accepted_with_and_without_a_byte_order_mark() -> None:
    """Some editors on Windows write one."""
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
def test_the_error_for_invalid_utf8_has_its_line_and_column(data: bytes, place: str) -> None:
    """Columns count characters, as in editors."""
    assert refused(data) == (f"t.yaml:{place}: (file): this byte is not valid UTF-8; save the file as UTF-8")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_the_error_for_utf16_names_the_encoding(encoding: str) -> None:
    """Some editors call it Unicode."""
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    assert refused((mark + EMPTY).encode(encoding)).endswith("the file is UTF-16 text; save it as UTF-8")


def test_a_file_of_more_than_one_mebibyte_is_rejected_before_it_is_decoded() -> None:
    """Here the bytes are not even valid UTF-8."""
    assert "larger than 1048576 bytes" in refused(b"\xff" * (1048576 + 1))
    assert decode(b"a" * 1048576) == "a" * 1048576
