"""Informers, which keep a cache in sync by list and watch, and tails, which only watch from now on.

A watch can end, hang, repeat events, or be served from a store that was restored from a backup. Kubernetes sends
nothing, indefinitely, for a watch from a future version. So a version is only resumed from after the cluster has shown
that it has reached it. A list recovers missed events. An object that a list lacks is gone, but its deletion was not
seen, and the cache distinguishes the two.

A tail is for events that matter while they are new and are not worth a list: a cluster may have 100,000 of them, mostly
outdated. It begins at the present, resumes after a break, and if it cannot, begins at the present again. Events in
between are lost.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import cast

import structlog

from tensile.errors import ClusterError, Denied, Expired, Malformed, Unreachable
from tensile.kube.cluster import Cluster, Listing, Selection, WatchEvent
from tensile.kube.health import Denials
from tensile.kube.limits import Backoff, InformerTimings, LogThrottle
from tensile.kube.responses import NOTHING, ObjectFilter, RequestInfo, refuse_object, version_of
from tensile.kube.store import Cache, CacheTotals, Entry, Meta, version_in
from tensile.kube.transport import Clock, Sleep
from tensile.objects import Kind

Random = Callable[[], float]

_log = structlog.get_logger("tensile.kube.informer")


class HistoryRewound(Expired):
    """The cluster's history went back behind what was seen: its store was restored."""

    title = "resourceVersion went back"


class Informer:
    """Keeps one cache in sync with one kind of one cluster. `run` does not return; cancel it.

    With `every` it lists at that interval in seconds and does not watch. That is cheaper for kinds whose objects mostly
    exist for a moment.

    `chance` returns random numbers in [0, 1), `clock` monotonic seconds. `denials` records what the cluster denies.
    `relists` and `rewinds` count what happened, `skipped` counts objects that were invalid or not requested, and so
    left out.
    """

    def __init__(
        self,
        cluster: Cluster,
        kind: Kind,
        selection: Selection,
        cache: Cache,
        *,
        chance: Random,
        every: float = 0.0,
        pace: InformerTimings | None = None,
        clock: Clock = time.monotonic,
        denials: Denials | None = None,
    ) -> None:
        self.relists = 0
        self.rewinds = 0
        self.skipped = 0
        self.listed = asyncio.Event()
        self._first_list_settled = asyncio.Event()
        self._denials = denials or Denials(cluster.name)
        self._cluster = cluster
        self._kind = kind
        self._selection = selection
        self._cache = cache
        self._chance = chance
        self._every = every
        self._pace = pace or InformerTimings()
        self._clock = clock
        self._doing = RequestInfo(cluster.name, "watch", kind.name)
        self._filter = ObjectFilter(kind, selection)
        self._throttle = LogThrottle(clock)
        self._backoff = Backoff(self._pace)
        self._relisting = Backoff(self._pace)
        self._relisted_at = 0.0
        self._woken = asyncio.Event()
        self._position = 0
        self._highest_version = 0
        self._resumable = False
        self._failing_since: float | None = None
        self._relist_at = 0.0
        self._scope: asyncio.Timeout | None = None

    @property
    def resume_version(self) -> int:
        """The resourceVersion at which the watch goes on: that of the last list or event, 0 after a rewind."""
        return self._position

    def note_created(self, version: int, since: int) -> None:
        """Record that an object created after `since` was seen has resourceVersion `version`.

        An older version means that the cluster's history went back.
        """
        if 0 < version <= since <= self._position:
            self._rewind(version)
            self._end_watch()

    def mark_stale(self) -> None:
        """List again as soon as possible, as the cache may hold another cluster's objects."""
        self._cache.mark_stale()
        self._position = self._highest_version = 0
        self._resumable = False
        self._end_watch()

    def wake(self) -> None:
        """Retry now: the cluster is known to respond."""
        self._woken.set()

    async def wait_first_list(self) -> None:
        """Wait for the first list. Raises Denied if the cluster denies it."""
        await self._first_list_settled.wait()
        denied = self._denials.of(self)
        if denied is not None and not self.listed.is_set():
            raise denied

    def release_waiters(self) -> None:
        """Release the callers that wait for the first list, as the informer has ended."""
        self._denials.forget(self)
        self._mark_listed()

    async def run(self) -> None:
        """List and watch indefinitely, with a back-off after errors of the cluster.

        Any other error is raised, and the next run begins with a list.
        """
        while True:
            try:
                await self._follow()
            except ClusterError as error:
                self._record_error(error)
                await self._sleep_until_woken(self._wait(error))
            except Exception:
                self._resumable = False
                raise

    async def _follow(self) -> None:
        """List if needed, then watch until the watch ends or the next list is due."""
        if self._every:
            await self._list()
            self._backoff.reset()
            self._denials.end(self, self._kind)
            await self._sleep_until_woken(self._every)
            return
        if self._failing_since is not None and self._clock() - self._failing_since >= self._pace.outage:
            self._resumable = False
        if not self._resumable or self._until_relist() == 0:
            await self._list()
        elif self._failing_since is not None:
            await self._check()
        await self._watch()

    async def _list(self) -> None:
        """List everything and replace the cache. A list older than what was seen proves that the store was restored."""
        listing = await self._listing()
        version = _number(listing.version)
        if version < self._position:
            self._rewind(version)
        self._relisted_at = self._clock()
        self._relist_at = self._clock() + self._pace.relist * (0.75 + self._chance() / 2)
        self.relists += 1
        self._position = version
        self._resumable = True
        self._failing_since = None
        rewound, self._highest_version = version < self._highest_version, version
        self._cache.take_over(listing.items, version, rewound=rewound)
        self._mark_listed()

    async def _listing(self) -> Listing:
        """List, and count new objects before they are cached, as the old ones stay until the list is complete."""
        added, totals = CacheTotals(), self._cache.tally or CacheTotals()

        def read(raw: bytes) -> Entry | None:
            """Read one object, None for one that is left out. An unchanged known object is not read again."""
            try:
                meta = self._filter.meta(raw)
                known = self._known(meta)
                entry = known or self._cache.read(raw, meta)
            except Malformed as error:
                self._skip(error)
                return None
            if known is None:
                added.add(1, entry.weight)
                totals.add(1, entry.weight)
            return entry

        try:
            return await self._cluster.list(self._kind, self._selection, read)
        finally:
            totals.add(-added.objects, -added.content)

    def _known(self, meta: Meta) -> Entry | None:
        """Return the cached object of that UID and version, None for none or while the cache is not in sync."""
        known = self._cache.get(meta.namespace, meta.name) if self._cache.synced else None
        if known is None or (known.uid, known.version) != (meta.uid, version_in(meta)):
            return None
        return known

    def _skip(self, error: Malformed) -> None:
        """Leave an object out. Logged at a limited rate."""
        self.skipped += 1
        fields = {"cluster": self._doing.cluster or "upper", "kind": self._kind.name}
        self._throttle.log(
            "skipped", lambda more: _log.warning("object skipped", **fields, error=error.message, **more)
        )

    def _mark_listed(self) -> None:
        self.listed.set()
        self._first_list_settled.set()

    async def _check(self) -> None:
        """Check that the cluster has reached the version seen so far. An empty list shows its present version."""
        nothing = NOTHING._replace(namespace=self._selection.namespace or NOTHING.namespace)
        listing = await self._cluster.list(self._kind, nothing, refuse_object)
        version = _number(listing.version)
        if version < self._position:
            raise self._rewind(version)

    def _rewind(self, version: int) -> HistoryRewound:
        """Record that the history went back to `version`, and return the error."""
        fields = {"cluster": self._doing.cluster or "upper", "kind": self._kind.name}
        positions = {"now": version, "seen": self._position}
        self._throttle.log(
            "rewound",
            lambda more: _log.warning("resourceVersion went back, listing again", **fields, **positions, **more),
        )
        message = (
            f"it is {version} now and was {self._position}: etcd was restored from a backup; objects are listed again"
        )
        self.rewinds += 1
        self._position = 0
        self._resumable = False
        self._cache.mark_stale()
        return HistoryRewound(message, cluster=self._doing.cluster, doing=str(self._doing))

    async def _watch(self) -> None:
        """Watch until the server, an audit or this informer ends the watch."""
        began = self._clock()
        start = self._position
        try:
            async with asyncio.timeout(self._until_relist()) as self._scope:
                await self._apply_events(self._position)
        except TimeoutError:
            self._resumable = False
        finally:
            self._scope = None
            is_settled = self._clock() - began >= self._pace.settled
            if is_settled or self._position != start:
                self._failing_since = None
            if is_settled:
                self._backoff.reset()
        if self._resumable and self._position == start and self._clock() - began < self._pace.settled:
            raise _ends_at_once(self._doing)

    def _until_relist(self) -> float | None:
        """Return the seconds until the next full comparison, across watches. None: never."""
        if not self._pace.relist:
            return None
        return max(self._relist_at - self._clock(), 0.0)

    async def _apply_events(self, version: int) -> None:
        """Watch from `version` on and apply the events."""
        seconds = self._pace.duration(self._chance())
        stream = self._cluster.watch(self._kind, self._selection, str(version), seconds, self._on_accepted)
        async with aclosing(cast("AsyncGenerator[WatchEvent]", stream)) as events:
            async for event in events:
                self._apply(event)

    def _on_accepted(self) -> None:
        """Record that the kind may be watched; the first event may come a minute later."""
        self._denials.end(self, self._kind)

    def _apply(self, event: WatchEvent) -> None:
        """Apply one event, unless it goes back in history. An invalid object is left out."""
        try:
            meta = (
                None if event.type == "BOOKMARK" else self._filter.meta(event.raw, is_leaving=event.type == "DELETED")
            )
            version = version_of(self._doing, event.raw) if meta is None else version_in(meta)
        except Malformed as error:
            self._skip(error)
            return
        if version < self._position:
            raise self._rewind(version)
        self._file(event, meta)
        self._position = version
        self._highest_version = max(self._highest_version, version)

    def _file(self, event: WatchEvent, meta: Meta | None) -> None:
        try:
            if event.type == "DELETED":
                self._cache.remove(event.raw, meta)
            elif event.type in ("ADDED", "MODIFIED"):
                self._cache.put(event.raw, meta)
        except Malformed as error:
            self._skip(error)

    def _end_watch(self) -> None:
        """End the open watch, if any."""
        if self._scope is not None:
            self._scope.reschedule(asyncio.get_running_loop().time())

    def _record_error(self, error: ClusterError) -> None:
        """Record what an error means for the next try."""
        if isinstance(error, Expired):
            self._resumable = False
        if isinstance(error, Denied):
            self._denials.record(self, self._kind, error)
            self._first_list_settled.set()
        if self._failing_since is None:
            self._failing_since = self._clock()
        _log.debug(
            "list or watch failed", cluster=self._doing.cluster or "upper", kind=self._kind.name, error=str(error)
        )

    async def _sleep_until_woken(self, seconds: float) -> None:
        """Wait, or be woken."""
        self._woken.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()

    def _wait(self, error: ClusterError) -> float:
        """Return the seconds to wait after an error. Repeated relists back off further each time."""
        if not isinstance(error, Expired):
            reachable = not isinstance(error, Unreachable)
            return self._backoff.after_failure(self._chance(), reachable=reachable, at_least=error.retry_after)
        if self._clock() - self._relisted_at >= self._pace.outage:
            self._relisting.reset()
        return self._relisting.after_failure(self._chance())


def _ends_at_once(doing: RequestInfo) -> Unreachable:
    """Return the error of watches that a server ends as soon as they start."""
    return Unreachable("watches end immediately after they start", cluster=doing.cluster, doing=str(doing))


def _number(version: str) -> int:
    """Return a resourceVersion as a number, 0 if it is none."""
    return int(version) if version.isdecimal() else 0


class EventTail:
    """Calls `on_event` for each event of one kind of one cluster. `run` does not return; cancel it.

    `chance` returns random numbers in [0, 1), `clock` monotonic seconds. `listening` is set once no later event is
    missed, or once the cluster has denied the watch.
    """

    def __init__(
        self,
        cluster: Cluster,
        kind: Kind,
        selection: Selection,
        on_event: Callable[[WatchEvent], None],
        *,
        chance: Callable[[], float],
        pace: InformerTimings | None = None,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._cluster = cluster
        self.kind = kind
        self.selection = selection
        self._on_event = on_event
        self._chance = chance
        self._pace = pace or InformerTimings()
        self._clock = clock
        self._sleep = sleep
        self._doing = RequestInfo(cluster.name, "watch", kind.name)
        self._backoff = Backoff(self._pace)
        self._position = 0
        self.listening = asyncio.Event()

    async def run(self) -> None:
        """Watch indefinitely, with a back-off after errors of the cluster."""
        while True:
            try:
                await self._follow()
            except ClusterError as error:
                if isinstance(error, Expired):
                    self._position = 0
                _log.debug("event watch failed", cluster=self._doing.cluster or "upper", error=str(error))
                reachable = not isinstance(error, Unreachable)
                if reachable:
                    self.listening.set()
                delay = self._backoff.after_failure(self._chance(), reachable=reachable, at_least=error.retry_after)
                await self._sleep(delay)

    async def _follow(self) -> None:
        """Watch from the last position, or from now on, until the watch ends.

        A position beyond the cluster's present belongs to a lost history: such a watch would deliver nothing.
        """
        listing = await self._cluster.list(self.kind, NOTHING, refuse_object)
        newest = _number(listing.version)
        if not 0 < self._position <= newest:
            self._position = newest
        self.listening.set()
        began = self._clock()
        await self._apply_events()
        if self._clock() - began < self._pace.settled:
            raise _ends_at_once(self._doing)
        self._backoff.reset()

    async def _apply_events(self) -> None:
        """Watch, and pass on the events."""
        seconds = self._pace.duration(self._chance())
        stream = self._cluster.watch(self.kind, self.selection, str(self._position), seconds)
        async with aclosing(cast("AsyncGenerator[WatchEvent]", stream)) as events:
            async for event in events:
                self._position = version_of(self._doing, event.raw)
                self._on_event(event)
