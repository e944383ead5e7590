"""Tests of chunked bodies: the content does not depend on how the data is split, and invalid chunks are rejected."""

from itertools import pairwise

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensile.kubelet.api.http import ChunkDecoder, chunk

CONTENTS = st.lists(st.binary(min_size=1, max_size=300), max_size=8)


def taken(body: bytes, cuts: list[int]) -> tuple[bytes, bool]:
    """Return the content of a body that is split at these positions, and whether its end was seen."""
    chunks, content = ChunkDecoder(), b""
    edges = [0, *sorted(cut % (len(body) + 1) for cut in cuts), len(body)]
    for begin, end in pairwise(edges):
        content += chunks.take(body[begin:end])
    return content, chunks.ended


def parsed_by_h11(body: bytes) -> bytes:
    """Return the content of a body as parsed by h11."""
    reader = h11.Connection(h11.CLIENT)
    reader.send(h11.Request(method="GET", target="/", headers=[("host", "a")]))
    reader.send(h11.EndOfMessage())
    reader.receive_data(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + body)
    content = b""
    while not isinstance(event := reader.next_event(), h11.EndOfMessage):
        content += bytes(event.data) if isinstance(event, h11.Data) else b""
    return content


@given(CONTENTS, st.lists(st.integers(0, 5000)))
def test_content_is_decoded_however_the_body_is_split(contents: list[bytes], cuts: list[int]) -> None:
    """A size, a chunk or its end may arrive in parts."""
    body = b"".join(map(chunk, contents)) + b"0\r\n\r\n"
    assert taken(body, cuts) == (b"".join(contents), True)


@given(CONTENTS)
def test_encoded_chunks_are_decoded_by_h11(contents: list[bytes]) -> None:
    """Another HTTP parser finds the same content in the chunks that are sent."""
    assert parsed_by_h11(b"".join(map(chunk, contents)) + b"0\r\n\r\n") == b"".join(contents)


def test_the_available_part_of_a_chunk_is_returned_immediately() -> None:
    """The decoder does not wait for the rest of the chunk."""
    chunks = ChunkDecoder()
    assert chunks.take(b"5\r\nab") == b"ab"
    assert chunks.take(b"cd") == b"cd"
    assert chunks.take(b"e") == b"e"
    assert chunks.take(b"\r") == b""
    assert chunks.take(b"\n1\r\nf\r\n") == b"f"
    assert not chunks.ended


@pytest.mark.parametrize("cuts", [[], list(range(100))], ids=["whole", "byte by byte"])
def test_extensions_and_trailers_are_dropped(cuts: list[int]) -> None:
    """They are not part of the content, and neither are bytes after the end of the body."""
    body = b'1;a=b\r\nx\r\nA;c="d"\r\n0123456789\r\n000;e\r\nExpires: 0\r\nX-A:\r\n\r\nmore'
    assert taken(body, cuts) == (b"x0123456789", True)


@pytest.mark.parametrize("cuts", [[], list(range(100))], ids=["whole", "byte by byte"])
def test_a_second_response_behind_the_body_is_ignored(cuts: list[int]) -> None:
    """Its content does not get into the log."""
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    assert taken(b"1\r\na\r\n0\r\n\r\n" + head + b"1\r\nb\r\n0\r\n\r\n", cuts) == (b"a", True)


def test_bytes_between_chunks_are_limited() -> None:
    """Long extensions are accepted between content, but too many bytes without content are an error."""
    line = b"1;" + b"e" * 3000 + b"\r\nx\r\n"
    assert taken(line * 3 + b"0\r\n\r\n", [len(line), 2 * len(line)]) == (b"xxx", True)
    with pytest.raises(h11.RemoteProtocolError, match="too many bytes between or after the chunks"):
        taken(line.replace(b"e", b"ee"), list(range(6000)))


@pytest.mark.parametrize(
    "body", [b"1\r\nx\r\n", b"1\r\nx\r\n0\r\n", b"0\r\nA: b\r\n", b"f\r\nshort", b"1\r\nx\r\n0", b""]
)
def test_a_truncated_body_has_no_end(body: bytes) -> None:
    """A body that breaks off is not mistaken for a complete one."""
    assert not taken(body, [])[1]


@pytest.mark.parametrize("cuts", [[], list(range(6000))], ids=["whole", "byte by byte"])
@pytest.mark.parametrize(
    "body",
    [
        b"x\r\n",
        b"-1\r\n\r\n",
        b"0x1\r\na\r\n",
        b"\r\n",
        b"1\na\r\n",
        b"1\r\nab\r\n",
        b"1\r\na\n1\r\n",
        b"1" * 17 + b"\r\n",
        b"1;" + b"e" * 5000,
        b"0\r\nno trailer\r\n\r\n",
        b"0\r\nA: b\n\r\n",
        b"0\r\nA:" + b"b" * 5000,
        b"0\r\n" + b"A: b\r\n" * 701 + b"\r\n",
    ],
    ids=map(str, range(13)),
)
def test_an_invalid_chunk_raises_an_error(body: bytes, cuts: list[int]) -> None:
    """Invalid or endless sizes, content longer than its size, and invalid or unlimited trailers are rejected."""
    with pytest.raises(h11.RemoteProtocolError):
        taken(body, cuts)
