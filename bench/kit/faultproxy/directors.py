"""A director that is configured in advance with the faults of the requests."""

from collections import deque
from collections.abc import Callable

from bench.kit.faultproxy.asked import Asked
from bench.kit.faultproxy.faults import Fault, Passed

Matches = Callable[[Asked], bool]


class Scripted:
    """A director that passes all requests except those with a configured fault; `met` are the requests with a fault."""

    def __init__(self) -> None:
        self.met: list[Asked] = []
        self._laid_out: list[tuple[Matches, deque[Fault]]] = []

    def on(self, matches: Matches, *faults: Fault) -> None:
        """Apply these faults to the next requests that match, one each; requests after them pass."""
        self._laid_out.append((matches, deque(faults)))

    async def meet(self, asked: Asked) -> Fault:
        """Return the first remaining fault for such a request."""
        for matches, faults in self._laid_out:
            if faults and matches(asked):
                self.met.append(asked)
                return faults.popleft()
        return Passed()

    async def carried_out(self, _asked: Asked, _status: int) -> None:
        """Do nothing."""

    async def answered(self, _asked: Asked, _status: int) -> None:
        """Do nothing."""


def writes(resource: str, verb: str = "", subresource: str = "") -> Matches:
    """Match the writes of a resource, or those of one verb."""

    def matches(asked: Asked) -> bool:
        wanted = (resource, subresource, verb or asked.verb)
        return asked.is_write and (asked.resource, asked.subresource, asked.verb) == wanted

    return matches
