"""Every write that a proxy received: its request, the fault that was applied to it, and its outcome.

An audit log records the requests that an apiserver received, but neither their preconditions nor requests that never
arrived there; this journal does.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.kit.faultproxy.faults import Fault
from bench.kit.faultproxy.requests import ProxiedRequest

SUCCESSES = range(200, 300)


@dataclass
class Write:
    """One write; `status` is that of the apiserver's answer, 0 while there is none.

    `at` is in monotonic seconds; `is_answered` is True once the client has received the answer.
    """

    request: ProxiedRequest
    fault: Fault
    at: float
    status: int = 0
    is_answered: bool = False

    @property
    def is_done(self) -> bool:
        """Whether the cluster has carried it out, even if the client did not learn of it."""
        return self.status in SUCCESSES

    def record(self) -> dict[str, Any]:
        """Return it in the form of an audit record."""
        about = {"resource": self.request.resource, "namespace": self.request.namespace, "name": self.request.name}
        about |= {"subresource": self.request.subresource} if self.request.subresource else {}
        return {
            "verb": self.request.verb,
            "user": {"username": self.request.user},
            "userAgent": self.request.agent,
            "objectRef": about,
            "responseStatus": {"code": self.status},
        }


class Journal:
    """The writes of one proxy, or of several together, in the order of their arrival."""

    def __init__(self) -> None:
        self.writes: list[Write] = []

    def add(self, request: ProxiedRequest, fault: Fault, at: float) -> Write:
        """Record a write."""
        self.writes.append(Write(request, fault, at))
        return self.writes[-1]

    def __len__(self) -> int:
        return len(self.writes)

    def since(self, start: int) -> Iterator[Write]:
        """Yield the writes after the first `start`."""
        yield from self.writes[start:]
