"""Tests that objects which nest deeper than decoders allow can be read from lists, watches and single reads."""

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
"""An encoder fails at 254, one decoder below 1,000, another one at 1,024; an apiserver accepts 10,000."""


def nested(depth: int) -> bytes:
    """Return managed fields of a depth."""
    return b'{"f:a":' * depth + b"{}" + b"}" * depth


def pod(depth: int) -> bytes:
    """Return a pod with managed fields of that depth, between strings that look like JSON."""
    meta = b'"annotations":{"a":"]}\\\\\\"{[["},"managedFields":[{"fieldsV1":' + nested(depth) + b"}]"
    return b'{"metadata":{"name":"p","resourceVersion":"7",' + meta + b'},"spec":{"containers":[{"name":"c"}]}}'


def rest(raw: bytes) -> Any:
    """Return a pod without its managed fields, after decoding, encoding it nested in lists, and decoding again."""
    found = orjson.loads(orjson.dumps([[[[orjson.loads(raw)]]]]))[0][0][0][0]
    del found["metadata"]["managedFields"]
    return found


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_deep_object_is_read_from_a_list_a_watch_and_a_single_read(depth: int) -> None:
    """Everything in it that is not too deep is kept."""
    body = b'{"metadata":{"resourceVersion":"9"},"items":[' + pod(0) + b"," + pod(depth) + b"]}"
    first, second = page_of(DOING, body).items
    (event,) = WatchDecoder(DOING).feed(b'{"type":"ADDED","object":' + pod(depth) + b"}\n")
    assert first == pod(0)
    assert rest(second) == rest(event.raw) == rest(shallow(pod(depth))) == rest(pod(0))


def test_an_object_that_is_not_too_deep_is_unchanged() -> None:
    """This includes an object with many nested objects, none of which is deep."""
    broad = orjson.dumps({"a": {str(number): {"x": {}} for number in range(1_000)}})
    for raw in (pod(50), broad):
        assert shallow(raw) is raw
    assert cut(broad) == broad


@pytest.mark.parametrize("depth", [0, DEEPEST - 2, DEEPEST - 1, DEEPEST, 2 * DEEPEST])
def test_objects_and_lists_below_the_maximum_depth_are_emptied(depth: int) -> None:
    """What follows after them is kept."""
    left = min(depth, DEEPEST - 1)
    assert cut(b'{"x":' + nested(depth) + b',"y":1}') == b'{"x":' + nested(left) + b',"y":1}'
    assert cut(b"[" * depth + b"]" * depth) == b"[" * min(depth, DEEPEST + 1) + b"]" * min(depth, DEEPEST + 1)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=30,
)


@given(JSON, st.booleans())
def test_cut_does_not_change_json_that_is_not_too_deep(value: Any, ascii_only: bool) -> None:  # noqa: FBT001
    """This holds with escaped and with unescaped strings."""
    text = json.dumps(value, ensure_ascii=ascii_only).encode(errors="surrogatepass")
    assert cut(text) == text


@given(st.binary(max_size=60))
def test_cut_does_not_change_text_that_is_no_json(text: bytes) -> None:
    """The decoder reports the error later."""
    assert cut(text) == text
    assert shallow(text) == text


def test_an_unterminated_string_takes_linear_time() -> None:
    """A hostile cluster may send such strings, so each byte is read once."""
    begin = time.process_time()
    cut(b'"' + b'\\"' * 2_000_000)
    assert time.process_time() - begin < 2
