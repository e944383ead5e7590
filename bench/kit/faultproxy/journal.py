"""Every write that came to a proxy: what it asked for, what was done to it, and how it ended.

An audit log tells what an apiserver was asked, but neither the preconditions nor what never arrived there; this does.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.kit.faultproxy.asked import Asked
from bench.kit.faultproxy.faults import Fault

SUCCESSES = range(200, 300)


@dataclass
class Write:
    """One write. `status` is the apiserver's answer, 0 while there is none; `told`: it reached who asked.

    `at` is in monotonic seconds.
    """

    asked: Asked
    fault: Fault
    at: float
    status: int = 0
    told: bool = False

    @property
    def is_done(self) -> bool:
        """Whether the cluster has carried it out, whoever knows."""
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
    """The writes of one proxy, or of several together, in the order in which they came."""

    def __init__(self) -> None:
        self.writes: list[Write] = []

    def note(self, asked: Asked, fault: Fault, at: float) -> Write:
        """Take a write down."""
        self.writes.append(Write(asked, fault, at))
        return self.writes[-1]

    def __len__(self) -> int:
        return len(self.writes)

    def since(self, start: int) -> Iterator[Write]:
        """Yield the writes after the first `start`."""
        yield from self.writes[start:]
