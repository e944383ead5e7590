"""Has one of several engines of a topology lead, by a Lease in the upper cluster.

Ours, because the election that comes with the `kubernetes` package reckons by the time of day, writes local times as
UTC, lets a request that hangs outlive the lease, and does not give a lease back when its holder ends.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime

import orjson
import structlog

from tensile.cluster import Cluster, Patch
from tensile.errors import AlreadyExists, ClusterError, Conflict, NotFound
from tensile.lease import Pace, given_back, holder, is_free, kept_by, new, renewed, taken
from tensile.names import Owner
from tensile.objects import Manifest, Ref, metadata
from tensile.reconcile.observed import is_ours

_PARTING = 2.0
"""Seconds in which a lease has to be given back; after them it runs out by itself."""
_GLANCE = 2.0
"""Seconds that an engine which takes no turns has for a look at the lease."""
_log = structlog.get_logger("tensile.election")


async def warn_of_leader(upper: Cluster, ref: Ref, now: datetime) -> None:
    """Tell, if it can be seen at once, that another engine leads by this lease while this one drives without it."""
    try:
        async with asyncio.timeout(_GLANCE):
            leader = kept_by(orjson.loads(await upper.read(ref)), now)
    except (ClusterError, TimeoutError):
        return
    if leader:
        words = "another engine of this topology drives too, and they undo each other's work: end one, or run with "
        _log.warning(f"{words}--leader-elect, to stand by", lease=str(ref), leader=leader)


class Election:
    """One engine's part in it: `identity` tells it from all others; `now` gives the time of day, in UTC.

    `owner` says whose the lease is, once that is known. Used in this order: `won`, `lost`, `resign`.
    """

    def __init__(
        self,
        upper: Cluster,
        ref: Ref,
        owner: Callable[[], Owner],
        identity: str,
        now: Callable[[], datetime],
        *,
        pace: Pace | None = None,
    ) -> None:
        self.leads = False
        self._asks = False
        """Whether the lease may have been taken by a write whose answer nobody has seen."""
        self._upper = upper
        self._ref = ref
        self._owner = owner
        self._identity = identity
        self._now = now
        self._pace = pace or Pace()
        self._lease: Manifest | None = None
        self._since = 0.0
        self._gone: float | None = None
        """Since when the lease is missing that somebody was seen to hold."""
        self._fresh = 0.0
        """When the write was sent by which the lease holds: nobody else can have seen it change earlier."""
        self._said = ""

    async def won(self) -> None:
        """Return when this engine leads; whom or what it waits for is told once."""
        while True:
            self.leads = await self._tried()
            if self.leads:
                break
            await asyncio.sleep(self._pace.look)
        _log.info("this engine leads", lease=str(self._ref), identity=self._identity)

    async def lost(self) -> str:
        """Renew the lease for as long as that goes; gives what ended it. From then on nothing may be driven."""
        why = await self._kept()
        self.leads = False
        return why

    async def resign(self) -> None:
        """Leave the lease to another engine, if this one still holds it; called when nothing is driven any more."""
        if not (self.leads or self._asks):
            return
        self.leads = self._asks = False
        try:
            async with asyncio.timeout(_PARTING):
                await self._give_back()
        except NotFound:
            return
        except (ClusterError, TimeoutError) as error:
            _log.warning("the lease could not be given back: it runs out", lease=str(self._ref), error=str(error))

    async def _give_back(self) -> None:
        """Look first: a renewal whose answer nobody waited for may have changed the lease."""
        lease = await self._read()
        if holder(lease) == self._identity:
            await self._upper.patch(self._ref, given_back(lease))

    async def _tried(self) -> bool:
        """Take the lease if it is free; says whether that came about."""
        try:
            async with asyncio.timeout(self._pace.gives_up):
                return await self._taken()
        except (Conflict, AlreadyExists):
            return False
        except TimeoutError:
            self._say("the upper cluster does not answer", _log.warning)
        except ClusterError as error:
            self._say(str(error), _log.warning)
        return False

    async def _taken(self) -> bool:
        self._fresh = self._clock()
        try:
            lease = await self._read()
        except NotFound:
            return await self._made()
        self._see(lease)
        if not is_ours(lease, self._owner()):
            words = f"{self._ref} is not ours, and stays as it is: delete it, or give the topology another name"
            self._say(words, _log.warning)
            return False
        if not self._is_mine(lease) and not is_free(lease, self._clock() - self._since, self._pace):
            self._say(f"{holder(lease)} leads", _log.info)
            return False
        self._asks = True
        self._see(await self._patched(taken(lease, self._identity, self._now(), self._pace)))
        return True

    async def _made(self) -> bool:
        """Make the lease, unless it was taken from under who held it: that one drives until it finds out."""
        leader = holder(self._lease)
        self._gone = self._clock() if self._gone is None else self._gone
        if leader not in ("", self._identity) and self._clock() - self._gone < self._pace.holds:
            self._say(f"{leader} led when the lease was deleted, and may not know yet", _log.warning)
            return False
        body = new(self._ref, self._identity, self._owner(), self._now(), self._pace)
        self._asks = True
        self._see(orjson.loads(await self._upper.create(self._ref, body)))
        return True

    def _is_mine(self, lease: Manifest) -> bool:
        """Report whether a lease is held by a write of this engine whose answer it has not seen."""
        return self._asks and holder(lease) == self._identity

    async def _kept(self) -> str:
        """Renew; a renewal that fails is tried again until the time to give up has come."""
        why = ""
        while (left := self._left()) > 0:
            try:
                async with asyncio.timeout(min(left, self._pace.answer)):
                    begun = self._clock()
                    if not await self._renewed():
                        return f"{holder(self._lease) or 'nobody'} holds it"
                    self._fresh = begun
            except TimeoutError:
                why = why or "the upper cluster does not answer"
            except ClusterError as error:
                why = str(error)
            await asyncio.sleep(max(0.0, min(self._pace.look, self._left())))
        return f"it could not be renewed for {self._pace.gives_up:g} s: {why or 'this engine was stopped meanwhile'}"

    def _left(self) -> float:
        """Give the seconds until it is time to give up."""
        return self._fresh + self._pace.gives_up - self._clock()

    async def _renewed(self) -> bool:
        """Renew once, whoever wrote what else to the lease; says whether this engine still holds it."""
        assert self._lease is not None, "it was won"
        try:
            self._lease = await self._patched(renewed(self._lease, self._now(), self._pace))
        except NotFound:
            self._lease = None
        except Conflict:
            self._lease = await self._read()
            if holder(self._lease) == self._identity:
                self._lease = await self._patched(renewed(self._lease, self._now(), self._pace))
        return holder(self._lease) == self._identity

    async def _read(self) -> Manifest:
        found: Manifest = orjson.loads(await self._upper.read(self._ref))
        return found

    async def _patched(self, patch: Patch) -> Manifest:
        found: Manifest = orjson.loads(await self._upper.patch(self._ref, patch))
        return found

    def _see(self, lease: Manifest) -> None:
        """Take a lease as it is now, and note since when it is so."""
        if self._lease is None or metadata(lease)["resourceVersion"] != metadata(self._lease)["resourceVersion"]:
            self._since = self._clock()
        self._lease, self._gone = lease, None

    def _say(self, why: str, tell: Callable[..., object]) -> None:
        if why != self._said:
            tell("waiting to lead", lease=str(self._ref), why=why)
        self._said = why

    @staticmethod
    def _clock() -> float:
        return asyncio.get_running_loop().time()
