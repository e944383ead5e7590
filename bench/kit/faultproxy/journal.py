"""Every write that a proxy received: its request, the fault that was applied to it, and its outcome.

An audit log records the requests that an apiserver received, but neither their preconditions nor requests that never
arrived there; this journal does.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.kit.faultproxy.asked import Asked
from bench.kit.faultproxy.faults import Fault

SUCCESSES = range(200, 300)


@dataclass
class Write:
    """One write; `status` is that of the apiserver's answer, 0 while there is none.

    `at` is in monotonic seconds; the last field is True once the client has received the answer.
    """

    asked: Asked
    fault: Fault
    at: float
    status: int = 0
    told: bool = False

    @property
    def is_done(self) -> bool:
        """Whether the cluster has carried it out, even if the client did not learn of it."""
        return self.status in SUCCESSES

    def record(self) -> dict[str, Any]:
        """Return it in the form of an audit record."""
        about = {"resource": self.asked.resource, "namespace": self.asked.namespace, "name": self.asked.name}
        about |= {"subresource": self.asked.subresource} if self.asked.subresource else {}
        return {
            "verb": self.asked.verb,
            "user": {"username": self.asked.user},
            "userAgent": self.asked.agent,
            "objectRef": about,
            "responseStatus": {"code": self.status},
        }


class Journal:
    """The writes of one proxy, or of several together, in the order of their arrival."""

    def __init__(self) -> None:
        self.writes: list[Write] = []

    def note(self, asked: Asked, fault: Fault, at: float) -> Write:
        """Record a write."""
        self.writes.append(Write(asked, fault, at))
        return self.writes[-1]

    def __len__(self) -> int:
        return len(self.writes)

    def since(self, start: int) -> Iterator[Write]:
        """Yield the writes after the first `start`."""
        yield from self.writes[start:]
