"""Watch from now on: hears what happens to one kind of one cluster, and keeps nothing.

For what is worth hearing while it is new and not worth a list: there may be a hundred thousand events in a cluster, and
those of an hour ago say nothing. So it begins at the cluster's present, resumes where it was after a break, and begins
at the present again where that is not possible; what was missed is missed.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import cast

import structlog

from tensile.cluster import Cluster, Selection, WatchEvent
from tensile.errors import ClusterError, Expired, Unreachable
from tensile.kube.answers import Doing, version_of
from tensile.kube.limits import Backoff, Pace
from tensile.kube.screen import NOTHING, unwanted
from tensile.kube.transport import Clock, Sleep
from tensile.objects import Kind

_log = structlog.get_logger("tensile.kube.tail")


class Tail:
    """Tells `hear` of each event of one kind of one cluster. `run` never ends by itself; cancel it.

    `chance` gives random numbers in [0, 1), `clock` monotonic seconds. `listening` is set once nothing that happens
    from then on is missed, or once the cluster has said that it does not let us.
    """

    def __init__(
        self,
        cluster: Cluster,
        kind: Kind,
        selection: Selection,
        hear: Callable[[WatchEvent], None],
        *,
        chance: Callable[[], float],
        pace: Pace | None = None,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._cluster = cluster
        self.kind = kind
        self.selection = selection
        self._hear = hear
        self._chance = chance
        self._pace = pace or Pace()
        self._clock = clock
        self._sleep = sleep
        self._doing = Doing(cluster.name, "watch", kind.name)
        self._backoff = Backoff(self._pace)
        self._position = 0
        self.listening = asyncio.Event()

    async def run(self) -> None:
        """Follow for ever; every error of the cluster is waited out."""
        while True:
            try:
                await self._follow()
            except ClusterError as error:
                if isinstance(error, Expired):
                    self._position = 0
                _log.debug("hearing failed", cluster=self._doing.cluster or "upper", error=str(error))
                answered = not isinstance(error, Unreachable)
                if answered:
                    self.listening.set()
                rest = self._backoff.after_failure(self._chance(), answered=answered, at_least=error.retry_after)
                await self._sleep(rest)

    async def _follow(self) -> None:
        """Watch from where it was, or from now on, until the watch ends.

        A position beyond the cluster's present is one of a history that is gone: it would be answered by silence.
        """
        listing = await self._cluster.list(self.kind, NOTHING, unwanted)
        newest = int(listing.version) if listing.version.isdecimal() else 0
        if not 0 < self._position <= newest:
            self._position = newest
        self.listening.set()
        began = self._clock()
        await self._take_all()
        if self._clock() - began < self._pace.settled:
            raise Unreachable("watches end as soon as they begin", cluster=self._doing.cluster, doing=str(self._doing))
        self._backoff.reset()

    async def _take_all(self) -> None:
        """Watch, and tell of what comes."""
        shortest, longest = self._pace.shortest, self._pace.longest
        seconds = shortest + int(self._chance() * (longest - shortest + 1))
        stream = self._cluster.watch(self.kind, self.selection, str(self._position), seconds)
        async with aclosing(cast("AsyncGenerator[WatchEvent]", stream)) as events:
            async for event in events:
                self._position = version_of(self._doing, event.raw)
                self._hear(event)
