"""What of a lower event is told above: known fields of known form, cut to the sizes that Kubernetes has for them.

Whoever may create events in one namespace below writes into the upper cluster by it. Kubernetes bounds the fields of
newer events only (a message to 1,024 bytes, a reason to 128), and an event of the older form may have megabytes. So
every text is cut here, and what is no text, number or moment where one belongs is left out.
"""

import orjson

from tensile.objects import Manifest
from tensile.telemetry.redaction import cut

LONGEST_MESSAGE = 1024
"""Bytes of a message in UTF-8: Kubernetes' own limit for newer events."""
_LONGEST_WORD = 128
_LONGEST_NAME = 253
_LONGEST_MOMENT = 40
_MOST_REPEATS = (1 << 31) - 1
_TEXTS = {
    "reason": _LONGEST_WORD,
    "message": LONGEST_MESSAGE,
    "action": _LONGEST_WORD,
    "firstTimestamp": _LONGEST_MOMENT,
    "lastTimestamp": _LONGEST_MOMENT,
    "eventTime": _LONGEST_MOMENT,
    "reportingComponent": _LONGEST_NAME,
    "reportingInstance": _LONGEST_WORD,
}
_SOURCE = {"component": _LONGEST_NAME, "host": _LONGEST_NAME}
_SERIES = {"lastObservedTime": _LONGEST_MOMENT}
_SORTS = ("Normal", "Warning")
FIELD_PATH = "fieldPath"
"""Where the part of the involved object stands that an event is about."""


def content(raw: bytes) -> Manifest:
    """Return what an event says, by the API's field names: at most some 4 KB, whatever it holds.

    `fieldPath` stands beside the other fields. Raises orjson.JSONDecodeError for what is no JSON.
    """
    event: Manifest = orjson.loads(raw)
    sort = event.get("type")
    found: Manifest = {**_texts(event, _TEXTS), "type": sort if sort in _SORTS else _SORTS[0]}
    found |= _repeats(event)
    if isinstance(event.get("source"), dict):
        found["source"] = _texts(event["source"], _SOURCE)
    if isinstance(event.get("series"), dict):
        found["series"] = _texts(event["series"], _SERIES) | _repeats(event["series"])
    return found | _texts(event["involvedObject"], {FIELD_PATH: _LONGEST_NAME})


def _texts(given: Manifest, longest: dict[str, int]) -> Manifest:
    """Return the texts among some fields, each on its bytes; an empty one says nothing."""
    found = ((field, given.get(field), most) for field, most in longest.items())
    return {field: cut(value, most) for field, value, most in found if value and isinstance(value, str)}


def _repeats(given: Manifest) -> Manifest:
    """Return the count among some fields, where it is one that the API takes."""
    count = given.get("count")
    return {"count": count} if type(count) is int and 0 <= count <= _MOST_REPEATS else {}
