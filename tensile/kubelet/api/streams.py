"""How many streams, and other requests, each user may have open at a time, over all virtual nodes.

Each stream holds two connections, and an answer that nobody reads holds one. Whoever leaks them, as a dashboard does
that follows logs and forgets them, runs into this and not into the descriptors that the engine needs for its clusters.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from tensile.kubelet.api.refusal import Refused


class Streams:
    """Counts what is open by user; a user over `limit` is told to come again (429). `what` is counted, in words."""

    def __init__(self, limit: int, what: str = "streams open (logs, exec, attach, port-forward)") -> None:
        self._limit = limit
        self._what = what
        self._open: Counter[str] = Counter()

    @contextmanager
    def one(self, user: str) -> Iterator[None]:
        """Count a stream of a user for as long as the context is open; raises Refused when there are too many."""
        if self._open[user] >= self._limit:
            words = f"user {user} has {self._limit} {self._what}: end some first"
            raise Refused(HTTPStatus.TOO_MANY_REQUESTS, words)
        self._open[user] += 1
        try:
            yield
        finally:
            self._open[user] -= 1
            if not self._open[user]:
                del self._open[user]
