"""Events that wait, a queue for each namespace: whose turn it is, and what goes when there is no more room.

Each namespace has its turn, and where there are too many events the longest queue loses its oldest. So a tenant that
makes thousands of events delays and displaces its own, and those of others find room and their turn at once.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")


class Place(NamedTuple):
    """Where an event waits: the namespace that it is in, and what tells it from the others there."""

    namespace: str
    uid: str


class FairQueue(Generic[Item]):
    """At most `limit` items in all, each in one place; an item put where one is takes its place in the row."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queues: OrderedDict[str, OrderedDict[str, Item]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, place: Place) -> bool:
        return place.uid in self._queues.get(place.namespace, ())

    def put(self, place: Place, item: Item) -> bool:
        """Put an item at the end of its namespace's queue; report whether another one had to go for it."""
        queue = self._queues.setdefault(place.namespace, OrderedDict())
        self._size += place.uid not in queue
        queue[place.uid] = item
        if self._size <= self._limit:
            return False
        self._drop(max(self._queues, key=lambda namespace: len(self._queues[namespace])))
        return True

    def put_back(self, place: Place, item: Item) -> None:
        """Put an item that was taken at the head of its namespace's queue, unless a newer one is there, or no room."""
        if place not in self and self._size < self._limit:
            self.put(place, item)
            self._queues[place.namespace].move_to_end(place.uid, last=False)

    def take(self, may: Callable[[str], bool]) -> tuple[Place, Item] | None:
        """Take the oldest item of the namespace whose turn it is, among those that `may`; None where none may."""
        namespace = next((one for one in self._queues if may(one)), None)
        if namespace is None:
            return None
        self._queues.move_to_end(namespace)
        return self._drop(namespace)

    def _drop(self, namespace: str) -> tuple[Place, Item]:
        """Take the oldest item out of a namespace's queue."""
        uid, item = self._queues[namespace].popitem(last=False)
        self._size -= 1
        if not self._queues[namespace]:
            del self._queues[namespace]
        return Place(namespace, uid), item
