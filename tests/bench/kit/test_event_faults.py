"""Tests of tampering with single watch events: which lines are sent instead, and in which order."""

from collections.abc import Iterable

from proxykit import WATCH, event

from bench.kit.faultproxy.event_faults import DropEvents, DuplicateEvents, ReorderEvents, events_of
from bench.kit.faultproxy.watch_streams import Event, Tamper, expired_event, parse_event, unchanged


def told(tamper: Tamper, events: Iterable[Event]) -> list[str]:
    """Return all lines that are passed on."""
    return [line.decode() for one in events for line in tamper(WATCH, one)]


EVENTS = (event("a", 1), event("b", 2), event("a", 3), event("c", 4))
IS_A = lambda _asked, one: one.name == "a"  # noqa: E731


def test_untouched_events_are_passed_on() -> None:
    """Each event is one line."""
    assert told(unchanged, EVENTS) == ["a@1", "b@2", "a@3", "c@4"]


def test_a_dropped_event_is_not_sent() -> None:
    """The next event of the object is sent, unless more than one is to be dropped."""
    assert told(DropEvents(IS_A), EVENTS) == ["b@2", "a@3", "c@4"]
    assert told(DropEvents(IS_A, times=5), EVENTS) == ["b@2", "c@4"]


def test_a_doubled_event_is_sent_twice() -> None:
    """The copies follow each other, and the tamper records which event it was."""
    tamper = DuplicateEvents(IS_A)
    assert told(tamper, EVENTS) == ["a@1", "a@1", "b@2", "a@3", "c@4"]
    assert [one.version for one in tamper.matched] == ["1"]


def test_a_swapped_event_is_sent_after_an_event_of_another_object() -> None:
    """An apiserver never does that."""
    assert told(ReorderEvents(IS_A), EVENTS) == ["b@2", "a@1", "a@3", "c@4"]


def test_events_of_one_object_keep_their_order() -> None:
    """An event that is held back for a swap is sent before the next one of its object."""
    assert told(ReorderEvents(IS_A), (event("a", 1), event("a", 2), event("b", 3))) == ["a@1", "a@2", "b@3"]


def test_each_watch_is_swapped_separately() -> None:
    """An event of another watch does not release the one that is held back."""
    other = WATCH._replace(cluster="lower-a")
    tamper = ReorderEvents(IS_A)
    assert list(tamper(WATCH, event("a", 1))) == []
    assert list(tamper(other, event("b", 2))) == [b"b@2"]
    assert list(tamper(WATCH, event("b", 3))) == [b"b@3", b"a@1"]


def test_events_are_selected_by_resource_namespace_and_type() -> None:
    """A filter that is not set matches all of them."""
    deleted = event("a", 1, "DELETED", "shop")
    assert events_of("pods")(WATCH, deleted)
    assert events_of("pods", "shop", sort="DELETED")(WATCH, deleted)
    assert not events_of("pods", "shop", sort="ADDED")(WATCH, deleted)
    assert not events_of("pods", "home")(WATCH, deleted)
    assert not events_of("nodes")(WATCH, deleted)


def test_a_line_of_a_watch_is_parsed() -> None:
    """The result has type, namespace, name, UID and version; an ERROR has none of the latter."""
    line = b'{"type":"ADDED","object":{"metadata":{"namespace":"n","name":"a","uid":"u","resourceVersion":"5"}}}\n'
    assert parse_event(line) == ("ADDED", "n", "a", "u", "5", line)
    assert parse_event(expired_event())[:5] == ("ERROR", "", "", "", "")
