"""List, then watch from there: keeps one cache true, or says that it is not.

A watch can end, hang, repeat itself, or be answered by a store that was restored from a backup and knows less than we
do. Kubernetes answers a watch from a version that lies in its future with silence for ever, so a version is resumed
from only after the cluster has shown that it has got that far. What was missed comes back with a list; an object that
a list lacks is gone, but nobody saw it go, which the cache tells apart.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import cast

import structlog

from tensile.cache import Cache
from tensile.cluster import Cluster, Selection, WatchEvent
from tensile.errors import ClusterError, Denied, Expired, Unreachable
from tensile.kube.answers import Doing, version_of
from tensile.kube.denials import Denials
from tensile.kube.limits import Backoff, Pace
from tensile.kube.transport import Clock
from tensile.objects import Kind

Chance = Callable[[], float]

_NOTHING = "metadata.name=-"
_log = structlog.get_logger("tensile.kube.informer")


class Rewound(Expired):
    """The cluster's history went back behind what was seen: its store was restored."""

    title = "history was rewound"


class Informer:
    """Feeds one cache with one kind of one cluster. `run` never ends by itself; cancel it.

    With `every` it lists again after so many seconds, and watches nothing: what most objects pass through within a
    moment costs more to hear of than to look for.

    `chance` gives random numbers in [0, 1), `clock` monotonic seconds. `denials` hears of what the cluster does not let
    it do. `relists` and `rewinds` count what happened.
    """

    def __init__(
        self,
        cluster: Cluster,
        kind: Kind,
        selection: Selection,
        cache: Cache,
        *,
        chance: Chance,
        every: float = 0.0,
        pace: Pace | None = None,
        clock: Clock = time.monotonic,
        denials: Denials | None = None,
    ) -> None:
        self.relists = 0
        self.rewinds = 0
        self.listed = asyncio.Event()
        self._answered = asyncio.Event()
        self._denials = denials or Denials(cluster.name)
        self._cluster = cluster
        self._kind = kind
        self._selection = selection
        self._cache = cache
        self._chance = chance
        self._every = every
        self._pace = pace or Pace()
        self._clock = clock
        self._doing = Doing(cluster.name, "watch", kind.name)
        self._backoff = Backoff(self._pace)
        self._awake = asyncio.Event()
        self._position = 0
        self._furthest = 0
        self._resumable = False
        self._failing_since: float | None = None
        self._audit_at = 0.0
        self._scope: asyncio.Timeout | None = None

    @property
    def newest(self) -> int:
        """The newest resourceVersion that the list or the watch has shown."""
        return self._position

    def note_created(self, version: int, since: int) -> None:
        """Hear that an object created after `since` was seen got `version`; an older one means a rewound history."""
        if 0 < version <= since <= self._position:
            self._rewind(version)
            self._cut()

    def distrust(self) -> None:
        """Note that what is cached may be another cluster's: list afresh, as soon as that is possible."""
        self._cache.distrust()
        self._position = self._furthest = 0
        self._resumable = False
        self._cut()

    def wake(self) -> None:
        """Try again now: the cluster is known to answer."""
        self._awake.set()

    async def first(self) -> None:
        """Wait for the first list; raises Denied where the cluster does not let it be had."""
        await self._answered.wait()
        denied = self._denials.of(self)
        if denied is not None and not self.listed.is_set():
            raise denied

    def end(self) -> None:
        """Let go who waits for the first list: nobody follows any more."""
        self._denials.forget(self)
        self._have_listed()

    async def run(self) -> None:
        """Follow for ever; every error of the cluster is waited out.

        Anything else that goes wrong is raised, and the next run begins with a list.
        """
        while True:
            try:
                await self._follow()
            except ClusterError as error:
                self._note(error)
                await self._rest(self._wait(error))
            except Exception:
                self._resumable = False
                raise

    async def _follow(self) -> None:
        """List if need be, then watch until the watch ends, or until it is time to list again."""
        if self._every:
            await self._list()
            self._backoff.reset()
            self._denials.end(self, self._kind)
            await self._rest(self._every)
            return
        if self._failing_since is not None and self._clock() - self._failing_since >= self._pace.outage:
            self._resumable = False
        if not self._resumable or self._until_audit() == 0:
            await self._list()
        elif self._failing_since is not None:
            await self._check()
        await self._watch()

    async def _list(self) -> None:
        """List everything and take it over; a list that is behind what was seen proves that its store was restored."""
        listing = await self._cluster.list(self._kind, self._selection, self._cache.read)
        version = _number(listing.version)
        if version < self._position:
            self._rewind(version)
        self._audit_at = self._clock() + self._pace.audit * (0.75 + self._chance() / 2)
        self.relists += 1
        self._position = version
        self._resumable = True
        self._failing_since = None
        rewound, self._furthest = version < self._furthest, version
        self._cache.take_over(listing.items, version, rewound=rewound)
        self._have_listed()

    def _have_listed(self) -> None:
        self.listed.set()
        self._answered.set()

    async def _check(self) -> None:
        """Make sure that the cluster has got as far as we have seen; a list of nothing shows how far it is."""
        listing = await self._cluster.list(self._kind, self._selection._replace(labels="", fields=_NOTHING))
        version = _number(listing.version)
        if version < self._position:
            raise self._rewind(version)

    def _rewind(self, version: int) -> Rewound:
        """Note that history went back to `version`."""
        _log.warning(
            "history was rewound",
            cluster=self._doing.cluster or "upper",
            kind=self._kind.name,
            now=version,
            seen=self._position,
        )
        message = f"resourceVersion {version} after {self._position}: the store was restored; everything is listed anew"
        self.rewinds += 1
        self._position = 0
        self._resumable = False
        self._cache.distrust()
        return Rewound(message, cluster=self._doing.cluster, doing=str(self._doing))

    async def _watch(self) -> None:
        """Watch until the server ends it, or until it is cut off from here."""
        began = self._clock()
        start = self._position
        try:
            async with asyncio.timeout(self._until_audit()) as self._scope:
                await self._take_all(self._position)
        except TimeoutError:
            self._resumable = False
        finally:
            self._scope = None
            if self._position != start or self._clock() - began >= self._pace.settled:
                self._failing_since = None
                self._backoff.reset()
        if self._resumable and self._position == start and self._clock() - began < self._pace.settled:
            raise Unreachable("watches end as soon as they begin", cluster=self._doing.cluster, doing=str(self._doing))

    def _until_audit(self) -> float | None:
        """Give the seconds until everything is to be compared, however many watches that takes; None: never."""
        if not self._pace.audit:
            return None
        return max(self._audit_at - self._clock(), 0.0)

    async def _take_all(self, version: int) -> None:
        """Watch from `version` on and take over what comes."""
        shortest, longest = self._pace.shortest, self._pace.longest
        seconds = shortest + int(self._chance() * (longest - shortest + 1))
        stream = self._cluster.watch(self._kind, self._selection, str(version), seconds)
        async with aclosing(cast("AsyncGenerator[WatchEvent]", stream)) as events:
            async for event in events:
                self._take(event)

    def _take(self, event: WatchEvent) -> None:
        """Take over one event, unless it goes back in history."""
        version = version_of(self._doing, event.raw)
        if version < self._position:
            raise self._rewind(version)
        self._denials.end(self, self._kind)
        if event.type == "DELETED":
            self._cache.remove(event.raw)
        elif event.type in ("ADDED", "MODIFIED"):
            self._cache.put(event.raw)
        self._position = version
        self._furthest = max(self._furthest, version)

    def _cut(self) -> None:
        """End the watch that is open, if one is."""
        if self._scope is not None:
            self._scope.reschedule(asyncio.get_running_loop().time())

    def _note(self, error: ClusterError) -> None:
        """Remember what an error means for the next try."""
        if isinstance(error, Expired):
            self._resumable = False
        if isinstance(error, Denied):
            self._denials.meet(self, self._kind, error)
            self._answered.set()
        if self._failing_since is None:
            self._failing_since = self._clock()
        _log.debug("following failed", cluster=self._doing.cluster or "upper", kind=self._kind.name, error=str(error))

    async def _rest(self, seconds: float) -> None:
        """Wait, or be woken."""
        self._awake.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._awake.wait()

    def _wait(self, error: ClusterError) -> float:
        """Give the seconds to wait after an error."""
        return self._backoff.after_failure(
            self._chance(), answered=not isinstance(error, Unreachable), at_least=error.retry_after
        )


def _number(version: str) -> int:
    """Give a resourceVersion as a number, 0 when it is none."""
    return int(version) if version.isdecimal() else 0
