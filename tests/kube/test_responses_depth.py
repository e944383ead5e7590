"""Objects that nest deeper than can be decoded are read all the same: on a list, on a watch, and by themselves."""

import json
import time
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensile.kube.responses import DEEPEST, RequestInfo, WatchDecoder, cut, page_of, shallow

DOING = RequestInfo("lower-a", "list", "Pod")
DEPTHS = (150, 253, 300, 1_100, 9_000)
"""An encoder ends at 254, one decoder somewhere below a thousand, another at 1,024; an apiserver at ten thousand."""


def nested(depth: int) -> bytes:
    """Write book-keeping of a depth."""
    return b'{"f:a":' * depth + b"{}" + b"}" * depth


def pod(depth: int) -> bytes:
    """Write a pod with such book-keeping, between strings that look like JSON."""
    meta = b'"annotations":{"a":"]}\\\\\\"{[["},"managedFields":[{"fieldsV1":' + nested(depth) + b"}]"
    return b'{"metadata":{"name":"p","resourceVersion":"7",' + meta + b'},"spec":{"containers":[{"name":"c"}]}}'


def rest(raw: bytes) -> Any:
    """Return a pod without its book-keeping; it has to be possible to decode it, and to encode it in something else."""
    found = orjson.loads(orjson.dumps([[[[orjson.loads(raw)]]]]))[0][0][0][0]
    del found["metadata"]["managedFields"]
    return found


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_deep_object_is_read_wherever_it_comes_from(depth: int) -> None:
    """With all that is not deep, whatever stands beside it."""
    body = b'{"metadata":{"resourceVersion":"9"},"items":[' + pod(0) + b"," + pod(depth) + b"]}"
    first, second = page_of(DOING, body).items
    (event,) = WatchDecoder(DOING).feed(b'{"type":"ADDED","object":' + pod(depth) + b"}\n")
    assert first == pod(0)
    assert rest(second) == rest(event.raw) == rest(shallow(pod(depth))) == rest(pod(0))


def test_what_is_not_deep_comes_as_it_is() -> None:
    """Also what has many objects in it, none deep."""
    broad = orjson.dumps({"a": {str(number): {"x": {}} for number in range(1_000)}})
    for raw in (pod(50), broad):
        assert shallow(raw) is raw
    assert cut(broad) == broad


@pytest.mark.parametrize("depth", [0, DEEPEST - 2, DEEPEST - 1, DEEPEST, 2 * DEEPEST])
def test_what_lies_deeper_is_taken_out(depth: int) -> None:
    """Objects are left empty at a depth, and lists; what comes after them stays."""
    left = min(depth, DEEPEST - 1)
    assert cut(b'{"x":' + nested(depth) + b',"y":1}') == b'{"x":' + nested(left) + b',"y":1}'
    assert cut(b"[" * depth + b"]" * depth) == b"[" * min(depth, DEEPEST + 1) + b"]" * min(depth, DEEPEST + 1)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=30,
)


@given(JSON, st.booleans())
def test_cutting_changes_nothing_that_is_not_deep(value: Any, ascii_only: bool) -> None:  # noqa: FBT001
    """However its strings are written."""
    text = json.dumps(value, ensure_ascii=ascii_only).encode(errors="surrogatepass")
    assert cut(text) == text


@given(st.binary(max_size=60))
def test_what_is_no_json_is_no_trouble(text: bytes) -> None:
    """It stays none, and the decoder says so."""
    assert cut(text) == text
    assert shallow(text) == text


def test_strings_without_an_end_cost_no_more_than_their_length() -> None:
    """A cluster of somebody's own may send them; each byte is looked at once."""
    begin = time.process_time()
    cut(b'"' + b'\\"' * 2_000_000)
    assert time.process_time() - begin < 2
