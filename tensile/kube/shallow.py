"""Objects that nest deeper than can be decoded, cut down to what anybody looks at.

An apiserver bounds how deep a pod is, and not the book-keeping (managedFields) that whoever may write an object may
write with it: it takes ten thousand objects within each other. Decoders here end at a tenth of that, encoders before,
with an error that would keep the whole list from being read. What lies deeper than any field of an object is taken
out; nothing of that is ever asked for.
"""

import re
from collections.abc import Iterator
from contextlib import suppress

import orjson

DEEPEST = 64
"""Objects and lists within each other that are left: no field lies half as deep."""
_ENCODED = 200
"""Objects within each other that can be encoded again, as part of something else."""
_MOST_TOKENS = 1_000_000
"""Strings, objects and lists: the two largest objects of which the smallest page consists have fewer."""
_NESTING = b'":{'
_TOKENS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
"""Strings, of which the last may have no end, so that none is looked at twice; and what begins and ends a value."""
_EMPTY = {b"{": b"{}", b"[": b"[]"}


def shallow(raw: bytes) -> bytes:
    """Return an object as it came if it can be decoded and encoded again, else what `cut` leaves of it.

    One that cannot be cut stays as it came: whoever decodes it will say that it is malformed.

    As an apiserver writes JSON, what nests deep enough for that has as many objects that are values. To count objects
    alone takes a third of the time, and few objects have so many.
    """
    if raw.count(b"{") < _ENCODED or raw.count(_NESTING) < _ENCODED:
        return raw
    try:
        orjson.dumps(orjson.loads(raw))
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        with suppress(RecursionError):
            return cut(raw)
    return raw


def cut(text: bytes) -> bytes:
    """Return JSON with nothing in the objects and lists that lie deeper than `DEEPEST`; what is no JSON stays none.

    Raises RecursionError for a text that would take the event loop's time for more than half a second.
    """
    if text.count(b'"') // 2 + text.count(b"{") + text.count(b"[") > _MOST_TOKENS:
        raise RecursionError(f"more than {_MOST_TOKENS:,} parts, and nested without end")
    return b"".join(_left(text))


def _left(text: bytes) -> Iterator[bytes]:
    """Yield what is left, piece by piece."""
    depth = done = 0
    for token in _TOKENS.finditer(text):
        sign = text[token.start()]
        if sign in b"{[":
            depth += 1
            if depth == DEEPEST + 1:
                yield text[done : token.start()]
                done = token.start()
        elif sign in b"}]":
            if depth == DEEPEST + 1:
                yield _EMPTY[text[done : done + 1]]
                done = token.end()
            depth -= 1
    yield text[done:]
