"""Faults of single events of a watch: each is a `Tamper` that changes a number of the next events that match."""

from collections.abc import Callable, Sequence

from bench.kit.faultproxy.requests import ProxiedRequest
from bench.kit.faultproxy.watch_streams import Event

EventFilter = Callable[[ProxiedRequest, Event], bool]


class EventFault:
    """Applies a fault to the next `times` matching events, and passes all others on; `matched` holds those events."""

    def __init__(self, matches: EventFilter, times: int = 1) -> None:
        self.matched: list[Event] = []
        self._matches = matches
        self._times = times

    def __call__(self, request: ProxiedRequest, event: Event) -> Sequence[bytes]:
        """Return the lines to be passed on for an event."""
        if len(self.matched) < self._times and self._matches(request, event):
            self.matched.append(event)
            return self._on_match(request, event)
        return self._on_other(request, event)

    def _on_match(self, _request: ProxiedRequest, event: Event) -> Sequence[bytes]:
        return (event.line,)

    def _on_other(self, _request: ProxiedRequest, event: Event) -> Sequence[bytes]:
        return (event.line,)


class DropEvents(EventFault):
    """The matched events are never sent."""

    def _on_match(self, _request: ProxiedRequest, _event: Event) -> Sequence[bytes]:
        return ()


class DuplicateEvents(EventFault):
    """The matched events are sent twice."""

    def _on_match(self, _request: ProxiedRequest, event: Event) -> Sequence[bytes]:
        return (event.line, event.line)


class ReorderEvents(EventFault):
    """The matched events are sent after the next event of the same watch about another object."""

    def __init__(self, matches: EventFilter, times: int = 1) -> None:
        super().__init__(matches, times)
        self._kept: dict[ProxiedRequest, list[Event]] = {}

    def _on_match(self, request: ProxiedRequest, event: Event) -> Sequence[bytes]:
        self._kept.setdefault(request, []).append(event)
        return ()

    def _on_other(self, request: ProxiedRequest, event: Event) -> Sequence[bytes]:
        kept = self._kept.get(request, [])
        late = [one.line for one in kept if (one.namespace, one.name) != (event.namespace, event.name)]
        if len(late) < len(kept):
            return self._in_order(request, event)
        self._kept.pop(request, None)
        return (event.line, *late)

    def _in_order(self, request: ProxiedRequest, event: Event) -> Sequence[bytes]:
        """Return all held events and this one in their order, because they are about one object."""
        return (*(one.line for one in self._kept.pop(request)), event.line)


def events_of(resource: str, *namespaces: str, sort: str = "") -> EventFilter:
    """Match events of a resource in these namespaces (all if there are none), and of one type if `sort` is set."""

    def matches(request: ProxiedRequest, event: Event) -> bool:
        where = not namespaces or event.namespace in namespaces
        return request.resource == resource and where and sort in ("", event.type)

    return matches
