"""A director that is configured in advance with the faults of the requests."""

from collections import deque
from collections.abc import Callable

from bench.kit.faultproxy.faults import Fault, Passed
from bench.kit.faultproxy.requests import ProxiedRequest

RequestFilter = Callable[[ProxiedRequest], bool]


class ScriptedDirector:
    """A director that passes all requests except those with a configured fault, which it keeps in `faulted`."""

    def __init__(self) -> None:
        self.faulted: list[ProxiedRequest] = []
        self._plans: list[tuple[RequestFilter, deque[Fault]]] = []

    def on(self, matches: RequestFilter, *faults: Fault) -> None:
        """Apply these faults to the next requests that match, one each; requests after them pass."""
        self._plans.append((matches, deque(faults)))

    async def fault_for(self, request: ProxiedRequest) -> Fault:
        """Return the first remaining fault for such a request."""
        for matches, faults in self._plans:
            if faults and matches(request):
                self.faulted.append(request)
                return faults.popleft()
        return Passed()

    async def on_executed(self, _request: ProxiedRequest, _status: int) -> None:
        """Do nothing."""

    async def on_responded(self, _request: ProxiedRequest, _status: int) -> None:
        """Do nothing."""


def writes_of(resource: str, verb: str = "", subresource: str = "") -> RequestFilter:
    """Match the writes of a resource, or those of one verb."""

    def matches(request: ProxiedRequest) -> bool:
        wanted = (resource, subresource, verb or request.verb)
        return request.is_write and (request.resource, request.subresource, request.verb) == wanted

    return matches
