"""How many streams, and other requests, each user may have open at a time, over all virtual nodes.

Each stream holds two connections, and an answer that nobody reads holds one. Whoever leaks them, as a dashboard does
that follows logs and forgets them, runs into this and not into the descriptors that the engine needs for its clusters.

As a rule there is one user, the upper's apiserver, on behalf of all. So no node and no pod may have all that a user
may: a cluster that lets every stream hang keeps none from the streams of another.
"""

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from http import HTTPStatus

from tensile.kubelet.api.refusal import Refused
from tensile.kubelet.api.wire import Portion

_KEPT = 20
"""One part in so many of what a user may have is there for each node, though others have the rest."""


class Streams:
    """Counts what is open by user; a user over `limit` is told to come again (429). `what` is counted, in words."""

    def __init__(self, limit: int, what: str = "streams open (logs, exec, attach, port-forward)") -> None:
        self._limit = limit
        self._what = what
        self._open: Counter[Hashable] = Counter()

    @contextmanager
    def one(self, user: str) -> Iterator[None]:
        """Count a stream of a user for as long as the context is open; raises Refused when there are too many."""
        if self._open[user] >= self._limit:
            raise self._full(f"user {user}", self._limit)
        with self._counted(user):
            yield

    @contextmanager
    def one_to(self, user: str, node: str, pod: str, most: Portion) -> Iterator[None]:
        """Count a stream of a user to a pod; raises Refused where the pod, the node or the user has too many."""
        own, pods = (user, node), ("", node, pod)
        if self._open[pods] >= most.pod:
            raise self._full(f"pod {pod}", most.pod)
        if self._open[own] >= most.node:
            raise self._full(f"node {node}", most.node)
        if self._open[user] >= self._limit and self._open[own] >= self._limit // _KEPT:
            raise self._full(f"user {user}", self._limit)
        with self._counted(user, own, pods):
            yield

    @contextmanager
    def _counted(self, *keys: Hashable) -> Iterator[None]:
        self._open.update(keys)
        try:
            yield
        finally:
            self._open.subtract(keys)
            for key in keys:
                if not self._open[key]:
                    del self._open[key]

    def _full(self, who: str, most: int) -> Refused:
        return Refused(HTTPStatus.TOO_MANY_REQUESTS, f"{who} has {most} {self._what}: end some first")
