"""Faults of single events of a watch: each is a `Tamper` that applies to a number of the next events that match."""

from collections.abc import Callable, Sequence

from bench.kit.faultproxy.asked import Asked
from bench.kit.faultproxy.streams import Event

Matches = Callable[[Asked, Event], bool]


class Tampering:
    """Applies a fault to the next `times` matching events, and passes all others on; `done` are the matched ones."""

    def __init__(self, matches: Matches, times: int = 1) -> None:
        self.done: list[Event] = []
        self._matches = matches
        self._times = times

    def __call__(self, asked: Asked, event: Event) -> Sequence[bytes]:
        """Return the lines to be passed on for an event."""
        if len(self.done) < self._times and self._matches(asked, event):
            self.done.append(event)
            return self._met(asked, event)
        return self._others(asked, event)

    def _met(self, _asked: Asked, event: Event) -> Sequence[bytes]:
        return (event.line,)

    def _others(self, _asked: Asked, event: Event) -> Sequence[bytes]:
        return (event.line,)


class Dropping(Tampering):
    """The matched events are never sent."""

    def _met(self, _asked: Asked, _event: Event) -> Sequence[bytes]:
        return ()


class Doubling(Tampering):
    """The matched events are sent twice."""

    def _met(self, _asked: Asked, event: Event) -> Sequence[bytes]:
        return (event.line, event.line)


class Swapping(Tampering):
    """The matched events are sent after the next event of the same watch about another object."""

    def __init__(self, matches: Matches, times: int = 1) -> None:
        super().__init__(matches, times)
        self._kept: dict[Asked, list[Event]] = {}

    def _met(self, asked: Asked, event: Event) -> Sequence[bytes]:
        self._kept.setdefault(asked, []).append(event)
        return ()

    def _others(self, asked: Asked, event: Event) -> Sequence[bytes]:
        kept = self._kept.get(asked, [])
        late = [one.line for one in kept if (one.namespace, one.name) != (event.namespace, event.name)]
        if len(late) < len(kept):
            return self._after(asked, event)
        self._kept.pop(asked, None)
        return (event.line, *late)

    def _after(self, asked: Asked, event: Event) -> Sequence[bytes]:
        """Return all held events and this one in their order, because they are about one object."""
        return (*(one.line for one in self._kept.pop(asked)), event.line)


def about(resource: str, *namespaces: str, sort: str = "") -> Matches:
    """Match events of a resource in these namespaces (all if there are none), and of one type if `sort` is set."""

    def matches(asked: Asked, event: Event) -> bool:
        where = not namespaces or event.namespace in namespaces
        return asked.resource == resource and where and sort in ("", event.type)

    return matches
