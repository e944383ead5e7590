"""Tests of the content that is copied from a lower event: its size and form, whoever created it."""

from typing import Any

import orjson
import pytest
from eventkit import MOMENT, lower_event
from hypothesis import given
from hypothesis import strategies as st

from tensile.kubelet.pods.events import LONGEST_MESSAGE, content
from tensile.objects import Manifest

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=400),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=20), inner, max_size=4),
    max_leaves=8,
)
FIELDS = ("reason", "message", "type", "count", "series", "source", "action", "lastTimestamp", "reportingComponent")


def event_content(**fields: Any) -> Manifest:
    """Return the content of a kubelet's event with some fields replaced."""
    return content(lower_event(**fields))


def test_an_ordinary_event_is_copied_completely() -> None:
    """Each field that kubectl shows is copied unchanged, and so is the part of the pod that it refers to."""
    event = orjson.loads(lower_event(message="Liveness probe failed: a\tb\n"))
    fields = ("reason", "message", "type", "source", "firstTimestamp", "lastTimestamp", "count")
    assert event_content(message="Liveness probe failed: a\tb\n") == {
        **{field: event[field] for field in (*fields, "reportingComponent", "reportingInstance")},
        "fieldPath": "spec.containers{main}",
    }


def test_a_long_message_is_truncated_to_the_limit_of_kubernetes() -> None:
    """A message of 60 KB becomes 1,024 bytes that end with dots."""
    message = event_content(message="x" * 60_000)["message"]
    assert len(message) == LONGEST_MESSAGE
    assert message.endswith("x...")


@pytest.mark.parametrize("before", range(4))
def test_a_truncated_message_contains_only_whole_characters(before: int) -> None:
    """The cut may be at any byte of a character of four bytes."""
    message = event_content(message="x" * before + "\U0001f680" * 400)["message"]
    assert len(message.encode()) <= LONGEST_MESSAGE
    assert set(message) <= {"x", "\U0001f680", "."}


@pytest.mark.parametrize("bad", ["\x1b[2J", "\r", "\x00", "\x9b1m", "\u202e", "\u2028"])
def test_control_characters_are_escaped(bad: str) -> None:
    """A copied event cannot move a terminal's cursor or change the direction of text."""
    message = event_content(message=f"a{bad}b", reason=f"a{bad}b")
    assert bad[0] not in message["message"]
    assert bad[0] not in message["reason"]
    assert message["message"].startswith("a\\")


def test_a_credential_in_a_message_is_hidden() -> None:
    """A probe's output may contain a request, whose token must not reach the other cluster."""
    assert "abcdefgh12345678" not in event_content(message="GET / Authorization: Bearer abcdefgh12345678")["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("count", -1),
        ("count", 1 << 31),
        ("count", "3"),
        ("count", True),
        ("message", {"a": "b"}),
        ("reason", ["x"]),
        ("series", "often"),
        ("source", ["kubelet"]),
        ("lastTimestamp", 12),
    ],
)
def test_a_field_of_a_wrong_type_is_left_out(field: str, value: object) -> None:
    """A hostile apiserver can send anything; the other fields of the event are copied."""
    found = event_content(**{field: value})
    assert field not in found
    assert {"message", "reason"} & found.keys()


def test_unknown_parts_of_series_and_source_are_left_out() -> None:
    """Only the fields that the API defines are copied, with limited length."""
    series = {"count": 3, "lastObservedTime": MOMENT, "state": "x" * 10_000}
    found = event_content(series=series, source={"component": "c", "host": "h" * 10_000, "more": ["x"] * 1000})
    assert found["series"] == {"count": 3, "lastObservedTime": MOMENT}
    assert found["source"] == {"component": "c", "host": "h" * 250 + "..."}


@pytest.mark.parametrize("sort", ["", "Alarm", None, "x" * 10_000])
def test_an_unknown_event_type_becomes_normal(sort: object) -> None:
    """Kubernetes has only two types."""
    assert event_content(type=sort)["type"] == "Normal"
    assert event_content()["type"] == "Warning"


@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=5), st.text(max_size=4000))
def test_the_size_of_a_copied_event_is_limited(fields: dict[str, Any], message: str) -> None:
    """Any event is copied with at most 12 KB in total, and its message with at most the limit of the API."""
    found = event_content(**{"message": message, **fields})
    assert len(orjson.dumps(found)) <= 3 * 4096
    assert len(str(found.get("message", "")).encode()) <= LONGEST_MESSAGE
