"""Bodies in chunks: whatever the pieces in which they come, the content is the same; what is no chunk is refused."""

from itertools import pairwise

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensile.kubelet.api.http import ChunkDecoder, chunk

CONTENTS = st.lists(st.binary(min_size=1, max_size=300), max_size=8)


def taken(body: bytes, cuts: list[int]) -> tuple[bytes, bool]:
    """Return the content of a body that comes in pieces, cut at these places, and whether its end was seen."""
    chunks, content = ChunkDecoder(), b""
    edges = [0, *sorted(cut % (len(body) + 1) for cut in cuts), len(body)]
    for begin, end in pairwise(edges):
        content += chunks.take(body[begin:end])
    return content, chunks.ended


def told(body: bytes) -> bytes:
    """Return the content of a body as h11 reads it."""
    reader = h11.Connection(h11.CLIENT)
    reader.send(h11.Request(method="GET", target="/", headers=[("host", "a")]))
    reader.send(h11.EndOfMessage())
    reader.receive_data(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + body)
    content = b""
    while not isinstance(event := reader.next_event(), h11.EndOfMessage):
        content += bytes(event.data) if isinstance(event, h11.Data) else b""
    return content


@given(CONTENTS, st.lists(st.integers(0, 5000)))
def test_content_comes_through_whatever_the_pieces(contents: list[bytes], cuts: list[int]) -> None:
    """Also where a size, a chunk or its end comes in parts."""
    body = b"".join(map(chunk, contents)) + b"0\r\n\r\n"
    assert taken(body, cuts) == (b"".join(contents), True)


@given(CONTENTS)
def test_what_is_sent_is_what_http_means(contents: list[bytes]) -> None:
    """Another reader of HTTP finds the same content in our chunks."""
    assert told(b"".join(map(chunk, contents)) + b"0\r\n\r\n") == b"".join(contents)


def test_content_is_not_held_back() -> None:
    """What is there of a chunk is given before the rest of it comes."""
    chunks = ChunkDecoder()
    assert chunks.take(b"5\r\nab") == b"ab"
    assert chunks.take(b"cd") == b"cd"
    assert chunks.take(b"e") == b"e"
    assert chunks.take(b"\r") == b""
    assert chunks.take(b"\n1\r\nf\r\n") == b"f"
    assert not chunks.ended


@pytest.mark.parametrize("cuts", [[], list(range(100))], ids=["whole", "byte by byte"])
def test_extensions_and_trailers_are_read_and_left_out(cuts: list[int]) -> None:
    """They are the lower's; what comes after the end belongs to nothing."""
    body = b'1;a=b\r\nx\r\nA;c="d"\r\n0123456789\r\n000;e\r\nExpires: 0\r\nX-A:\r\n\r\nmore'
    assert taken(body, cuts) == (b"x0123456789", True)


@pytest.mark.parametrize("cuts", [[], list(range(100))], ids=["whole", "byte by byte"])
def test_an_answer_behind_the_body_is_none(cuts: list[int]) -> None:
    """A lower that sends another one, which nobody asked for, does not put its content into the log."""
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    assert taken(b"1\r\na\r\n0\r\n\r\n" + head + b"1\r\nb\r\n0\r\n\r\n", cuts) == (b"a", True)


def test_content_between_long_extensions_comes_through_and_silence_does_not() -> None:
    """What no reader ever sees has a bound, however it is cut."""
    line = b"1;" + b"e" * 3000 + b"\r\nx\r\n"
    assert taken(line * 3 + b"0\r\n\r\n", [len(line), 2 * len(line)]) == (b"xxx", True)
    with pytest.raises(h11.RemoteProtocolError, match="too many bytes between or after the chunks"):
        taken(line.replace(b"e", b"ee"), list(range(6000)))


@pytest.mark.parametrize(
    "body", [b"1\r\nx\r\n", b"1\r\nx\r\n0\r\n", b"0\r\nA: b\r\n", b"f\r\nshort", b"1\r\nx\r\n0", b""]
)
def test_an_end_that_did_not_come_is_none(body: bytes) -> None:
    """A body that breaks off is not taken for a whole one."""
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
def test_what_is_no_chunk_is_an_error(body: bytes, cuts: list[int]) -> None:
    """A size that is none or has no end, content that is longer than it says, trailers without measure."""
    with pytest.raises(h11.RemoteProtocolError):
        taken(body, cuts)
