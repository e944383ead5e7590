"""The open clusters: their clients, identities and informers, isolated from each other.

A cluster that hangs, refuses or sends invalid data affects only its own tasks and connections. A probe reads each
cluster's identity every few seconds. It detects a hanging apiserver long before a watch does, and another cluster
behind a known address before any decision uses its contents. The files of a credential are watched, so that a rotated
one is in use before the old one expires.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import NamedTuple

import structlog

from tensile.errors import ClusterError, Denied
from tensile.kube.client import HttpCluster, ObserveRequest
from tensile.kube.cluster import Selection, WatchEvent
from tensile.kube.credentials import Access, CredentialsUnavailable
from tensile.kube.file_watch import FileStates, FileWatcher
from tensile.kube.health import NOT_CONTACTED, AccessProblem, Denials, Health, WrongCluster
from tensile.kube.informer import EventWatch, Informer, Random
from tensile.kube.limits import Backoff, InformerTimings
from tensile.kube.net import supervised
from tensile.kube.store import Cache
from tensile.kube.transport import Clock, Sleep
from tensile.objects import NAMESPACE, UPPER, Kind

SLOWEST = 2.0
"""Most seconds between two identity probes of a failing cluster, unless the cluster asks for more."""
ClaimIdentity = Callable[[str, str], AccessProblem | None]
"""Returns, for a cluster's name and UID, why that cluster must not be used under the name, None if it may."""
_log = structlog.get_logger("tensile.kube.fleet")


class InformerSpec(NamedTuple):
    """The specification of an informer: one kind of one cluster, and its cache.

    With `every` it lists at that interval in seconds instead of watching. No caller waits for a `spare` feed: if the
    cluster denies it, the denial is logged and everything else works.
    """

    cluster: str
    kind: Kind
    selection: Selection
    cache: Cache
    every: float = 0.0
    spare: bool = False


class _Open:
    """One open cluster: its client, its informers and its tasks."""

    def __init__(self, cluster: HttpCluster) -> None:
        self.cluster = cluster
        self.identified = asyncio.Event()
        self.tried = asyncio.Event()
        self.trouble: ClusterError | None = ClusterError(NOT_CONTACTED)
        self.stale = ""
        self.touched = False
        self.denials = Denials(cluster.name)
        self.followed: list[tuple[InformerSpec, Informer]] = []
        self.tails: list[EventWatch] = []
        self.following: dict[int, asyncio.Task[None]] = {}
        self.tasks: list[asyncio.Task[None]] = []

    def touch(self) -> None:
        """Request a reload of the credential."""
        self.touched = True
        self.cluster.reread.happened.set()


class Fleet:
    """All open clusters by name. Used inside one event loop, closed with `close_all`.

    `chance` returns random numbers in [0, 1). `probe` is the time between two reads of a cluster's identity, `patience`
    the time-out of one, both in seconds. `observe(name)` returns the observer of a cluster's writes. `notify(name)` is
    called when a cluster starts or stops responding as itself. `watcher` watches the files of credentials (None: the
    fleet creates one). `again` is the seconds until an exec plugin is retried that failed after its files changed.
    """

    def __init__(
        self,
        *,
        chance: Random,
        pace: InformerTimings | None = None,
        probe: float = 10.0,
        patience: float = 10.0,
        observe: Callable[[str], ObserveRequest] | None = None,
        notify: Callable[[str], None] | None = None,
        watcher: FileWatcher | None = None,
        again: float = 5.0,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.watcher = watcher or FileWatcher()
        self._owns_watcher = watcher is None
        self._again = again
        self._chance = chance
        self._pace = pace or InformerTimings()
        self._probe = probe
        self._patience = patience
        self._observe = observe
        self._notify = notify
        self._clock = clock
        self._sleep = sleep
        self._open: dict[str, _Open] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._claim: ClaimIdentity = lambda _name, _uid: None

    def open(
        self,
        name: str,
        access: Access,
        feeds: Iterable[InformerSpec] = (),
        *,
        qps: float = 0,
        burst: int = 1000,
        connections: int = 64,
        anchored: bool = False,
        pin: str = "",
    ) -> HttpCluster:
        """Open a cluster and start its tasks. Returns at once, whether the cluster responds or not.

        It must not be open already. `qps`, `burst` and `connections` limit its requests, `anchored` fixes its server,
        and `pin` is its required identity, as in HttpCluster.
        """
        if name in self._open:
            raise ValueError(f"cluster {name!r} is open already")
        cluster = HttpCluster(
            name,
            access,
            qps=qps,
            burst=burst,
            connections=connections,
            anchored=anchored,
            pin=pin,
            observe=self._observe(name) if self._observe else None,
            admit=partial(self._objection, name),
            clock=self._clock,
            sleep=self._sleep,
        )
        entry = self._open[name] = _Open(cluster)
        self._supervise(entry, "probe", lambda: self._keep_identified(entry))
        self._supervise(entry, "credential", lambda: self._keep_fresh(entry))
        for feed in feeds:
            self.follow(feed)
        return cluster

    async def replace(self, name: str, access: Access) -> None:
        """Use another access for an open cluster. Requests in progress end on the old one.

        The new access is only used after the cluster proved the same identity there.
        """
        entry = self._open[name]
        problem = entry.cluster.take(access)
        await self._took(entry, problem)

    def follow(self, feed: InformerSpec) -> Informer:
        """Start an informer for one more cache of an open cluster, once its identity is known."""
        entry = self._open[feed.cluster]
        informer = Informer(
            entry.cluster,
            feed.kind,
            feed.selection,
            feed.cache,
            chance=self._chance,
            every=feed.every,
            pace=self._pace,
            clock=self._clock,
            denials=Denials(feed.cluster) if feed.spare else entry.denials,
        )
        if feed.cluster != UPPER:
            feed.cache.tally = entry.cluster.tally
        entry.followed.append((feed, informer))
        entry.cluster.followers.setdefault(feed.kind, []).append(informer)

        async def follow() -> None:
            """Wait for the identity, then run the informer indefinitely."""
            await entry.identified.wait()
            await informer.run()

        entry.following[id(feed.cache)] = self._supervise(entry, f"informer {feed.kind.name}", follow)
        return informer

    def ensure(self, feed: InformerSpec) -> None:
        """Start an informer for a cache of an open cluster, unless it has one."""
        if id(feed.cache) not in self._open[feed.cluster].following:
            self.follow(feed)

    def tail(self, cluster: str, kind: Kind, selection: Selection, hear: Callable[[WatchEvent], None]) -> None:
        """Call `hear` for events in an open cluster, from when its identity is known until it is closed.

        A kind and selection that already has a tail gets no second one.
        """
        entry = self._open[cluster]
        if any((one.kind, one.selection) == (kind, selection) for one in entry.tails):
            return
        told = EventWatch(entry.cluster, kind, selection, hear, chance=self._chance, pace=self._pace)
        entry.tails.append(told)

        async def follow() -> None:
            """Wait for the identity, then run the tail indefinitely."""
            await entry.identified.wait()
            await told.run()

        self._supervise(entry, f"tail {kind.name}", follow)

    async def leave(self, cluster: str, cache: Cache) -> None:
        """Stop the informer of a cache, if it has one. The cache keeps its contents and is marked stale."""
        entry = self._open.get(cluster)
        task = entry.following.pop(id(cache), None) if entry else None
        if entry is None or task is None:
            return
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        entry.tasks.remove(task)
        for feed, informer in [one for one in entry.followed if one[0].cache is cache]:
            entry.followed.remove((feed, informer))
            entry.cluster.followers[feed.kind].remove(informer)
            informer.end()
        cache.mark_stale()

    async def close(self, name: str) -> None:
        """Stop watching a cluster and close its connections. Its caches keep their contents and are marked stale.

        Callers that wait in `synced` or `identified` for it continue. If this call is cancelled, closing goes on and
        `close_all` waits for it: no other object refers to the cluster by then.
        """
        entry = self._open.pop(name)
        for task in entry.tasks:
            task.cancel()
        closing = asyncio.create_task(_closed(entry))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        await asyncio.shield(closing)

    async def close_all(self) -> None:
        """Close every cluster."""
        await asyncio.gather(*self._closing, *(self.close(name) for name in tuple(self._open)))
        if self._owns_watcher:
            await self.watcher.close()

    def names(self) -> tuple[str, ...]:
        """Return the names of the open clusters."""
        return tuple(self._open)

    def cluster(self, name: str) -> HttpCluster:
        """Return an open cluster. Raises KeyError if it is not open."""
        return self._open[name].cluster

    def health(self, name: str) -> Health:
        """Return the health of an open cluster."""
        return self._open[name].cluster.health

    def silent(self, name: str) -> float:
        """Return the seconds for which an open cluster has not responded, 0 if it responds."""
        return self.health(name).unreachable_for(self._clock())

    def tried(self, name: str) -> float:
        """Return the seconds for which the present access to an open cluster has been in use."""
        return self.health(name).tried_for(self._clock())

    def credential_error(self, name: str) -> str:
        """Return what a user has to correct about an open cluster's credential or address, "" for nothing."""
        return self._open[name].cluster.credential_error

    def skipped(self) -> dict[tuple[str, str], int]:
        """Return how many objects were left out, by the names of the open cluster and of the kind."""
        found: Counter[tuple[str, str]] = Counter()
        for name, entry in self._open.items():
            for feed, informer in entry.followed:
                found[name, feed.kind.name] += informer.skipped
        return dict(found)

    def denied(self, name: str, *, named: bool = True) -> str:
        """Return what an open cluster does not allow us to watch, "" for nothing. `named`: with the cluster's name."""
        denials = self._open[name].denials
        return denials.words if named else denials.unnamed

    def identity(self, name: str) -> str:
        """Return the UID of an open cluster's kube-system, "" before its first response."""
        return self._open[name].cluster.identity.pin

    def is_identified(self, name: str) -> bool:
        """Report whether an open cluster has proven its identity at least once."""
        return self._open[name].identified.is_set()

    async def listed(self, name: str, cache: Cache) -> None:
        """Wait until a cache of an open cluster has had its first list. Raises Denied if the cluster denies it."""
        for feed, informer in tuple(self._open[name].followed):
            if feed.cache is cache:
                await informer.first()

    async def identified(self, name: str) -> str:
        """Wait for an open cluster's first response. Return the UID of its kube-system, "" if it is closed before."""
        entry = self._open[name]
        await entry.identified.wait()
        return entry.cluster.identity.pin

    async def synced(self, *names: str) -> None:
        """Wait until every cache of these clusters (none given: of all) has had its first list, and tails listen."""
        for name in names or self.names():
            entry = self._open[name]
            lists = [informer.listed for feed, informer in entry.followed if not feed.spare]
            for event in (*lists, *(one.listening for one in entry.tails)):
                await event.wait()

    def _supervise(self, entry: _Open, what: str, job: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Run a job of a cluster in a task of its own, and restart it after errors."""
        backoff = Backoff(self._pace)
        task = supervised(
            what, job, lambda: backoff.after_failure(self._chance()), sleep=self._sleep, cluster=entry.cluster.name
        )
        entry.tasks.append(task)
        return task

    def heed(self, claim: ClaimIdentity) -> None:
        """Also ask `claim` whether the cluster with a UID may be used under a name."""
        self._claim = claim

    def _objection(self, name: str, uid: str) -> AccessProblem | None:
        """Return the conflict with another name under which the cluster of that UID is open, None for none.

        Of two names for one cluster, the one under which it has responded keeps it. Otherwise the name for which this
        UID is pinned at this server has precedence, then the name opened first.
        """
        claimed = self._claim(name, uid)
        if claimed is not None:
            return claimed
        names, own = list(self._open), self._open[name].cluster
        for place, (other, entry) in enumerate(self._open.items()):
            is_first = place < names.index(name) or entry.identified.is_set()
            if own.identity.pin != uid and _server(entry.cluster.access) == _server(own.access):
                is_first = True
            if other != name and entry.cluster.identity.pin == uid and is_first:
                return AccessProblem(f"the same cluster as lower {other}" if other else "the upper cluster itself")
        return None

    async def _let_first(self, entry: _Open) -> None:
        """Wait until clusters opened earlier at the same server were tried, so that their order decides conflicts."""
        for other in tuple(self._open.values()):
            if other is entry:
                return
            if _server(other.cluster.access) == _server(entry.cluster.access):
                await other.tried.wait()

    async def _keep_identified(self, entry: _Open) -> None:
        """Read the identity every few seconds, indefinitely, and sooner while that fails."""
        backoff = Backoff(self._pace)
        await self._let_first(entry)
        while True:
            error = await self._try_to_identify(entry)
            if error is None:
                backoff.reset()
                wait = self._probe
            else:
                wait = min(backoff.after_failure(self._chance(), answered=True), SLOWEST)
            await self._sleep(max(wait, error.retry_after if error else 0.0))

    async def _try_to_identify(self, entry: _Open) -> ClusterError | None:
        """Read the identity once. Return and record the error if it fails."""
        try:
            await self._identify(entry)
        except ClusterError as error:
            self._doubt(entry, error)
            return error
        finally:
            entry.tried.set()
        return None

    async def _keep_fresh(self, entry: _Open) -> None:
        """Watch the credential's files indefinitely, and reload them after a change."""
        cluster = entry.cluster
        with self.watcher.watch(cluster.access.files, entry.touch) as watch:
            while True:
                await cluster.reread.happened.wait()
                cluster.reread.happened.clear()
                touched, entry.touched = entry.touched, False
                if touched:
                    problem = await cluster.refresh()
                    refused = cluster.reread.refused
                    if isinstance(refused, CredentialsUnavailable) and refused.asked:
                        asyncio.get_running_loop().call_later(self._again, entry.touch)
                    await self._took(entry, problem)
                self._tell_stale(entry)
                watch.follow(_files(cluster))

    async def _took(self, entry: _Open, problem: str) -> None:
        """If another access is used now, check the identity at once and wake the informers."""
        self._tell_stale(entry)
        if problem:
            return
        _log.info("credential was read anew", cluster=entry.cluster.name or "upper", file=entry.cluster.access.origin)
        if await self._try_to_identify(entry) is None:
            self._tell(entry)

    def _tell_stale(self, entry: _Open) -> None:
        """Log once per reason that the credential's files cannot be used, and when they can again."""
        known, entry.stale = entry.stale, entry.cluster.reread.stale
        name = entry.cluster.name or "upper"
        if entry.stale and entry.stale != known:
            _log.error(
                "credential cannot be read anew: what was read before stays in use", cluster=name, error=entry.stale
            )
        elif known and not entry.stale:
            _log.info("credential can be read again", cluster=name)

    async def _identify(self, entry: _Open) -> None:
        """Read the identity once, with a time-out."""
        try:
            async with asyncio.timeout(self._patience):
                uid = await entry.cluster.identify()
        except TimeoutError:
            raise entry.cluster.identity.suspect(f"no answer in {self._patience:g} s") from None
        entry.identified.set()
        entry.denials.end(entry, NAMESPACE)
        if entry.trouble is not None:
            _log.info("cluster answers", cluster=entry.cluster.name or "upper", kube_system=uid)
            entry.trouble = None
            self._tell(entry)

    def _doubt(self, entry: _Open, error: ClusterError) -> None:
        """Record that a cluster does not prove its identity. Logged once for each type of error."""
        if isinstance(error, Denied):
            entry.denials.meet(entry, NAMESPACE, error)
        if isinstance(error, WrongCluster) and not isinstance(entry.trouble, WrongCluster):
            for _, informer in entry.followed:
                informer.mark_stale()
        if type(error) is not type(entry.trouble):
            _log.warning("cluster does not answer", cluster=entry.cluster.name or "upper", error=str(error))
        entry.trouble, before = error, entry.trouble
        if before is None:
            self._tell(entry)

    def _tell(self, entry: _Open) -> None:
        """Wake the informers and call `notify`: the cluster started or stopped responding."""
        for _, informer in entry.followed:
            informer.wake()
        if self._notify:
            self._notify(entry.cluster.name)


def _files(cluster: HttpCluster) -> FileStates:
    """Return the files of a cluster's credential: those that were read, or those that could not be read."""
    refused = cluster.reread.refused
    return refused.files if isinstance(refused, CredentialsUnavailable) else cluster.access.files


def _server(access: Access) -> tuple[str, int, str]:
    return access.address, access.port, access.prefix


async def _closed(entry: _Open) -> None:
    """Wait for the cancelled tasks of a cluster, release its waiters and close its connections."""
    await asyncio.gather(*entry.tasks, return_exceptions=True)
    entry.identified.set()
    entry.tried.set()
    for feed, informer in entry.followed:
        feed.cache.mark_stale()
        informer.end()
    for tail in entry.tails:
        tail.listening.set()
    await entry.cluster.close()
