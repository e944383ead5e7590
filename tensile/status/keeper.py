"""Keeps ConfigMap NAME-status and the topology's Events as the engine's picture of itself is.

Level-based like the rest: what should be told is held against what the cache of that one object shows, so a status that
somebody edits or deletes comes back, and nothing is written while nothing changes. What became of an edit is written at
once; what becomes of the lowers, at most every few seconds.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime

import structlog

from tensile.cache import Cache
from tensile.cluster import Cluster
from tensile.errors import AlreadyExists, ClusterError, Conflict, Denied, NotFound, TensileError
from tensile.names import Owner
from tensile.objects import CONFIG_MAP, UPPER, Manifest, Ref
from tensile.reconcile.desired import Told
from tensile.reconcile.mapsource import Place
from tensile.reconcile.plan import event
from tensile.reconcile.reading import Reading
from tensile.status.standing import Standing
from tensile.status.statusmap import NameTaken, Write, in_force, is_told, resumed, status_ref, write

SELDOM = 5.0
"""Seconds between two looks at the lowers."""

OFTEN = 1.0
"""The same just after an edit, when a lower comes or goes."""

_OFTEN_FOR = 5
_REST = 2.0
_MOST_EVENTS = 20
_log = structlog.get_logger("tensile.status")


class Keeper:
    """Writes what `standing` says; `cache` is fed with the one ConfigMap that it writes.

    Where nothing is in force here, since the program does not start on what it found, another engine may drive: what
    the status tells of that stays. `now` gives the time in UTC.
    """

    def __init__(
        self,
        cluster: Cluster,
        place: Place,
        owner: Owner,
        cache: Cache,
        standing: Standing,
        *,
        now: Callable[[], datetime],
    ) -> None:
        self._cluster = cluster
        self._place = place
        self._ref = status_ref(place)
        self._owner = owner
        self._cache = cache
        self._standing = standing
        self._now = now
        self._uid = ""
        self._events: list[Told] = []
        self._said: Told | None = None
        self._woken = asyncio.Event()
        self._often = 0
        self._troubles: dict[str, str] = {}

    def tell(self, reading: Reading) -> None:
        """Have what became of a text written now, and an Event made of it unless it was told before a restart."""
        told = _told(reading, self._place, self._meanwhile())
        if not self._uid and not self._elsewhere() and is_told(self._seen(), self._owner, reading):
            self._said = told
        self._uid = reading.text.uid or self._uid
        self._say(told)
        self._often = _OFTEN_FOR
        self._woken.set()

    async def run(self) -> None:
        """Keep on for ever."""
        while True:
            self._woken.clear()
            rest = 0.0 if await self.write() else _REST
            await asyncio.sleep(rest)
            self._often = max(self._often - 1, 0)
            with suppress(TimeoutError):
                async with asyncio.timeout(OFTEN if self._often else SELDOM):
                    await self._woken.wait()

    async def write(self) -> bool:
        """Write what has to be written; says whether all of it is. What fails is told once."""
        status = await self._attempted("status", self._write_status)
        return await self._attempted("events", self._write_events) and status

    async def _attempted(self, what: str, job: Callable[[], Awaitable[None]]) -> bool:
        try:
            await job()
        except ClusterError as error:
            self._complain(what, error)
            return False
        except NameTaken as error:
            if self._complain(what, error):
                self._say(Told(_ref(self._place), self._uid, "StatusNameTaken", str(error)))
        else:
            self._troubles.pop(what, None)
        return True

    async def _write_status(self) -> None:
        verdict = self._standing.verdict = resumed(self._standing.verdict, self._seen(), self._owner)
        elsewhere = self._elsewhere()
        if elsewhere and verdict.rejected is not None and verdict.rejected.text.sha256 == elsewhere:
            return
        wanted = write(self._seen(), self._standing.report().data(), self._ref, self._owner, self._uid)
        if wanted is not None and self._uid:
            with suppress(AlreadyExists, Conflict):
                self._cache.absorb(await self._send(wanted))

    async def _write_events(self) -> None:
        while self._events:
            try:
                await self._write_event(self._events[0])
            except (Denied, NotFound):
                self._events = []
                raise
            self._events = self._events[1:]

    async def _send(self, wanted: Write) -> bytes:
        if wanted.patch is not None:
            return await self._cluster.patch(self._ref, wanted.patch)
        return await self._cluster.create(self._ref, wanted.create or {})

    async def _write_event(self, told: Told) -> None:
        step = event(told, self._now())
        with suppress(AlreadyExists):
            await self._cluster.create(step.ref, step.body or {})

    def _say(self, told: Told) -> None:
        """Have an Event made, unless it was the last one; the oldest are given up where they cannot be made."""
        if told != self._said and told.uid:
            self._said = told
            self._events = [*self._events, told][-_MOST_EVENTS:]

    def _meanwhile(self) -> str:
        """Say what is in force while a text is refused."""
        if self._standing.verdict.accepted is not None:
            return "the last good topology stays in force"
        if self._elsewhere():
            return "an engine that is started now ends; one that drives goes on with what is in force"
        return "the engine does not start"

    def _elsewhere(self) -> str:
        """Give the sha256 of what another engine has, or had, in force where none is here; "" for nothing.

        Where that is the text which is refused here, the two differ in their versions, and the status is the other's.
        """
        return "" if self._standing.verdict.accepted is not None else in_force(self._seen(), self._owner)

    def _seen(self) -> Manifest | None:
        entry = self._cache.get(self._ref.namespace, self._ref.name)
        return entry.manifest() if entry is not None else None

    def _complain(self, what: str, error: TensileError) -> bool:
        """Tell what failed; says whether that is news."""
        news = self._troubles.get(what) != str(error)
        if news:
            self._troubles[what] = str(error)
            _log.warning("the topology's status cannot be told", error=str(error))
        return news


def _ref(place: Place) -> Ref:
    return Ref(UPPER, CONFIG_MAP, place.namespace, place.name)


def _told(reading: Reading, place: Place, meanwhile: str) -> Told:
    """Say in an Event what became of a text; the same text of the same version says the same."""
    about, text = _ref(place), reading.text
    if reading.error is not None:
        return Told(
            about, text.uid, "TopologyRejected", f"{meanwhile} (resourceVersion {text.version}): {reading.error}"
        )
    words = f"in force: resourceVersion {text.version}, sha256 {text.sha256}"
    return Told(about, text.uid, "TopologyAccepted", words, warning=False)
