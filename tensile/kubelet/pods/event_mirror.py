"""Copy events of lower pods and claims to the upper cluster, at low priority.

A pod's readiness is more important than its events, so events wait until their lower's queue is idle, and are then sent
one at a time. An event that repeats while it waits is sent once; beyond a limit the oldest are dropped. If the queue is
never idle, one event is sent now and then all the same.

Each copy is a write to the upper cluster's etcd, where it stays for an hour. Anyone who may create events in a lower
namespace can create as many as they like. So there is a rate limit for each object, each namespace and the lower
cluster. Each namespace has a queue, the queues take turns, and the longest one loses its oldest event when there is no
room. So a tenant with thousands of events delays and displaces only its own.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Generic, NamedTuple, TypeVar

import orjson

from tensile.errors import AlreadyExists, ClusterError, Conflict, NotFound, Throttled, Unreachable
from tensile.kube.cluster import Cluster, WatchEvent
from tensile.kube.limits import KeyedTokenBuckets
from tensile.kubelet.pods.events import (
    CarriedEvent,
    EventHeader,
    EventSubject,
    carried_event,
    content,
    copy_of,
    event_header,
    is_copy,
    is_up_to_date,
    may_become_ours,
    ref_of,
    repeat_of,
    subject_of,
    uid_of_copy,
)
from tensile.objects import Manifest, Ref
from tensile.reconcile.world import LowerWorld, World

MOST_WAITING = 2_000
"""Maximum number of waiting events of one lower."""
MOST_KEPT = 200
"""Maximum number of events of one lower that are kept to be shown, after they were copied."""
PAUSE_SECONDS = 0.1
"""Seconds between two rounds, in which repetitions are combined."""
MAX_WAIT_SECONDS = 1.0
"""Seconds after which one event is sent even though the engine is busy."""
OBJECT_RATE = (50, 60.0)
"""Events about one pod or claim: the burst, and the seconds for one more.

A kubelet sends 25 at once and then one in five minutes, and so does each other program: client-go enforces it.
"""
NAMESPACE_RATE = (2_000, 0.2)
LOWER_RATE = (5_000, 0.1)
_RETRY = 5.0
_BATCH = 25
_MAX_COPIES = 4_000

Item = TypeVar("Item")


class EventKey(NamedTuple):
    """Where an event waits: its namespace, and its UID there."""

    namespace: str
    uid: str


class FairQueue(Generic[Item]):
    """A queue of at most `limit` items; an item put under the place of a waiting one replaces it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queues: OrderedDict[str, OrderedDict[str, Item]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, key: EventKey) -> bool:
        return key.uid in self._queues.get(key.namespace, ())

    def put(self, key: EventKey, item: Item) -> bool:
        """Put an item at the end of its namespace's queue; report whether another one was dropped for it."""
        queue = self._queues.setdefault(key.namespace, OrderedDict())
        self._size += key.uid not in queue
        queue[key.uid] = item
        if self._size <= self._limit:
            return False
        self._drop(max(self._queues, key=lambda namespace: len(self._queues[namespace])))
        return True

    def put_back(self, key: EventKey, item: Item) -> None:
        """Put a taken item back at the head of its namespace's queue, unless a newer one is there, or no room."""
        if key not in self and self._size < self._limit:
            self.put(key, item)
            self._queues[key.namespace].move_to_end(key.uid, last=False)

    def take(self, is_allowed: Callable[[str], bool]) -> tuple[EventKey, Item] | None:
        """Take the oldest item of the namespace whose turn it is, of those that `is_allowed`; None for none."""
        namespace = next((one for one in self._queues if is_allowed(one)), None)
        if namespace is None:
            return None
        self._queues.move_to_end(namespace)
        return self._drop(namespace)

    def of(self, namespace: str) -> tuple[Item, ...]:
        """Return the items of a namespace."""
        return tuple(self._queues.get(namespace, {}).values())

    def _drop(self, namespace: str) -> tuple[EventKey, Item]:
        """Remove and return the oldest item of a namespace's queue."""
        uid, item = self._queues[namespace].popitem(last=False)
        self._size -= 1
        if not self._queues[namespace]:
            del self._queues[namespace]
        return EventKey(namespace, uid), item


class _Waiting(NamedTuple):
    """A waiting event: what it is about, and its content."""

    header: EventHeader
    content: Manifest


class EventMirror:
    """The events of one lower: `on_event` receives them, `run` copies them to the upper cluster until it is cancelled.

    `busy` reports whether the engine has other work for that lower. `counts` counts events: "copied", "dropped" where
    there are too many, "failed" where the upper cluster refused.
    """

    def __init__(self, lower: LowerWorld, world: World, upper: Cluster, busy: Callable[[], bool]) -> None:
        self.counts: Counter[str] = Counter(copied=0, dropped=0, failed=0)
        self._lower = lower
        self._world = world
        self._upper = upper
        self._busy = busy
        self._queue: FairQueue[_Waiting] = FairQueue(MOST_WAITING)
        self._recent: FairQueue[CarriedEvent] = FairQueue(MOST_KEPT)
        self._awake = asyncio.Event()
        self._copies: OrderedDict[str, str] = OrderedDict()
        self._last_progress = 0.0
        self._object_buckets: KeyedTokenBuckets[str] = KeyedTokenBuckets(*OBJECT_RATE, limit=_MAX_COPIES)
        self._namespace_buckets: KeyedTokenBuckets[str] = KeyedTokenBuckets(*NAMESPACE_RATE, limit=_MAX_COPIES)
        self._total_bucket: KeyedTokenBuckets[str] = KeyedTokenBuckets(*LOWER_RATE, limit=1)
        self._paused_until: dict[str, float] = {}
        """Until when namespaces pause because the upper cluster failed to store one of their events."""

    def __len__(self) -> int:
        return len(self._queue)

    def last(self, namespace: str, uid: str) -> list[CarriedEvent]:
        """Return the last events about the upper object of that namespace and UID, the latest first."""
        return sorted((one for one in self._recent.of(namespace) if one.about == uid), key=_time_of, reverse=True)

    def on_event(self, event: WatchEvent) -> None:
        """Receive an event of the lower cluster about a pod or claim of ours; it replaces its former state."""
        header = event_header(event.raw) if event.type in ("ADDED", "MODIFIED") else None
        if header is None or not self._is_relevant(header):
            return
        now = asyncio.get_running_loop().time()
        key = EventKey(header.involvedObject.namespace, header.metadata.uid)
        if key not in self._queue and not self._object_buckets.take(header.involvedObject.uid, now):
            self.counts["dropped"] += 1
            return
        try:
            waiting = _Waiting(header, content(event.raw))
        except orjson.JSONDecodeError:
            return
        if not self._queue:
            self._last_progress = now
        self.counts["dropped"] += self._queue.put(key, waiting)
        self._awake.set()

    def _is_relevant(self, header: EventHeader) -> bool:
        """Report whether an event is worth keeping; its object is determined again when it is copied."""
        is_ours = subject_of(header, self._lower, self._world) is not None
        return is_ours or may_become_ours(header, self._lower)

    async def run(self) -> None:
        """Copy events until cancelled."""
        while True:
            await self._awake.wait()
            await asyncio.sleep(PAUSE_SECONDS)
            await self._copy_batch()
            if not self._queue:
                self._awake.clear()

    async def _copy_batch(self) -> None:
        """Copy a batch of events; none while the engine is busy, unless one has waited long."""
        now = asyncio.get_running_loop().time()
        for _ in range(_BATCH):
            if self._busy() and now - self._last_progress < MAX_WAIT_SECONDS:
                return
            taken = self._queue.take(partial(self._may_copy, now=now))
            if taken is None:
                return
            key, waiting = taken
            subject = subject_of(waiting.header, self._lower, self._world)
            if subject is not None:
                self._recent.put(EventKey(subject.namespace, key.uid), carried_event(waiting.content, subject))
                await self._try_copy(key, waiting, subject)
            self._last_progress = now = asyncio.get_running_loop().time()

    def _may_copy(self, namespace: str, now: float) -> bool:
        """Report whether an event of a namespace may be copied now."""
        is_paused = now < self._paused_until.get(namespace, now)
        return not (is_paused or self._total_bucket.left("", now) or self._namespace_buckets.left(namespace, now))

    async def _try_copy(self, key: EventKey, waiting: _Waiting, subject: EventSubject) -> None:
        """Copy one event; one that may succeed later goes back to the head of its namespace's queue.

        If the upper cluster answers that it failed, as for a webhook of that namespace, only the namespace pauses.
        """
        now = asyncio.get_running_loop().time()
        self._total_bucket.take("", now)
        self._namespace_buckets.take(key.namespace, now)
        self._paused_until.pop(key.namespace, None)
        try:
            await self._copy_event(waiting, subject)
        except (Unreachable, Throttled) as error:
            self._queue.put_back(key, waiting)
            if error.status and isinstance(error, Unreachable):
                self._paused_until[key.namespace] = asyncio.get_running_loop().time() + _RETRY
            else:
                await asyncio.sleep(max(error.retry_after, _RETRY))
        except ClusterError:
            self.counts["failed"] += 1

    async def _copy_event(self, waiting: _Waiting, subject: EventSubject) -> None:
        """Create the copy, or update the existing one."""
        ref = ref_of(waiting.header, subject)
        copy = copy_of(waiting.content, ref, subject, self._lower.name, self._world.owner)
        known = self._copies.get(waiting.header.metadata.uid)
        stored = await self._update(ref, copy, known) if known else None
        if stored is None:
            stored = await self._create(ref, copy)
        self._remember(waiting.header.metadata.uid, stored)
        self.counts["copied"] += 1

    async def _create(self, ref: Ref, copy: Manifest) -> str:
        """Create the copy and return its UID; a copy made before a restart is updated."""
        try:
            return uid_of_copy(orjson.loads(await self._upper.create(ref, copy)))
        except AlreadyExists:
            found: Manifest = orjson.loads(await self._upper.read(ref))
            if not is_copy(found, copy):
                raise
            if not is_up_to_date(found, copy):
                await self._upper.patch(ref, repeat_of(copy, uid_of_copy(found)))
            return uid_of_copy(found)

    async def _update(self, ref: Ref, copy: Manifest, uid: str) -> str | None:
        """Update the copy of that UID and return it; None where it is gone, as events are after a while."""
        try:
            await self._upper.patch(ref, repeat_of(copy, uid))
        except (NotFound, Conflict):
            return None
        return uid

    def _remember(self, uid: str, copy: str) -> None:
        """Record which copy an event has; the oldest records are dropped."""
        self._copies[uid] = copy
        self._copies.move_to_end(uid)
        if len(self._copies) > _MAX_COPIES:
            self._copies.popitem(last=False)


def _time_of(event: CarriedEvent) -> str:
    return event.time
