"""The open clusters: their clients, identities and informers, isolated from each other.

A cluster that hangs, refuses or sends invalid data affects only its own tasks and connections. A probe reads each
cluster's identity every few seconds. It detects a hanging apiserver long before a watch does, and another cluster
behind a known address before any decision uses its contents. The files of a credential are watched, so that a rotated
one is in use before the old one expires.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import structlog

from tensile.errors import ClusterError, Denied
from tensile.kube.client import HttpCluster, ObserveRequest
from tensile.kube.cluster import Selection, WatchEvent
from tensile.kube.credentials import Access, CredentialsUnavailable
from tensile.kube.file_watch import FileStates, FileWatcher
from tensile.kube.health import NOT_CONTACTED, AccessProblem, Denials, Health, WrongCluster
from tensile.kube.informer import EventTail, Informer, Random
from tensile.kube.limits import Backoff, InformerTimings
from tensile.kube.measures import RequestMetrics
from tensile.kube.net import cancel_and_wait, supervised
from tensile.kube.store import Cache
from tensile.kube.transport import Clock, Sleep
from tensile.objects import NAMESPACE, UPPER, Kind

SLOWEST = 2.0
"""Most seconds between two identity probes of a failing cluster, unless the cluster asks for more."""
IdentityObjection = Callable[[str, str], AccessProblem | None]
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


class _Settings(NamedTuple):
    """What all clusters of a fleet have in common, as in `Fleet`."""

    chance: Random
    pace: InformerTimings
    probe: float
    patience: float
    watcher: FileWatcher
    again: float
    clock: Clock
    sleep: Sleep


class _Followed(NamedTuple):
    """A running informer, and its task."""

    spec: InformerSpec
    informer: Informer
    task: asyncio.Task[None]


class OpenCluster:
    """One open cluster: its client, its informers, and the tasks that keep identity and credential up to date.

    It stays readable when it is closed. `denials` has what the cluster does not allow us to watch. `is_identified` is
    true once it has proven its identity, and `attempted` is set by the first try, or at the end.
    """

    def __init__(self, cluster: HttpCluster, settings: _Settings) -> None:
        self.cluster = cluster
        self.denials = Denials(cluster.name)
        self.is_identified = False
        self.attempted = asyncio.Event()
        self._answered = asyncio.Event()
        self._settings = settings
        self._error: ClusterError | None = ClusterError(NOT_CONTACTED)
        self._credential = _CredentialFiles(cluster, settings, self._reconnected)
        self._followed: dict[Cache, _Followed] = {}
        self._event_watches: list[EventTail] = []
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def health(self) -> Health:
        """The health of the connection."""
        return self.cluster.health

    @property
    def unreachable_seconds(self) -> float:
        """The seconds for which the cluster has not responded, 0 if it responds."""
        return self.health.unreachable_for(self._settings.clock())

    @property
    def access_age(self) -> float:
        """The seconds for which the present access has been in use."""
        return self.health.tried_for(self._settings.clock())

    @property
    def credential_error(self) -> str:
        """What a user has to correct about the cluster's credential or address, "" for nothing."""
        return self.cluster.credential_error

    @property
    def denied(self) -> str:
        """What the cluster does not allow us to watch, with its name, "" for nothing."""
        return self.denials.text

    @property
    def identity(self) -> str:
        """The UID of its kube-system, "" while none is required and it has not responded."""
        return self.cluster.identity.pin

    @property
    def informers(self) -> tuple[tuple[InformerSpec, Informer], ...]:
        """Its informers, each with its specification."""
        return tuple((one.spec, one.informer) for one in self._followed.values())

    async def identified(self) -> str:
        """Wait until it has proven its identity or is closed. Return its `identity`."""
        await self._answered.wait()
        return self.identity

    async def listed(self, cache: Cache) -> None:
        """Wait until a cache has had its first list. Raises Denied if the cluster denies it."""
        if cache in self._followed:
            await self._followed[cache].informer.wait_first_list()

    async def synced(self) -> None:
        """Wait until every cache has had its first list, and tails listen."""
        lists = [informer.listed for spec, informer in self.informers if not spec.spare]
        for event in (*lists, *(one.listening for one in self._event_watches)):
            await event.wait()

    async def replace(self, access: Access) -> None:
        """Use another access. Requests in progress end on the old one.

        The new access is only used after the cluster proved the same identity there.
        """
        await self._credential.record_result(self.cluster.take(access))

    def start(self, wait_turn: Callable[[], Awaitable[None]]) -> None:
        """Start the tasks. The cluster is not probed before `wait_turn` returns."""
        self._supervise("probe", lambda: self._keep_identified(wait_turn))
        self._supervise("credential", self._credential.run)

    def follow(self, spec: InformerSpec) -> Informer:
        """Start an informer for a cache once the identity is known, unless the cache has one. Return the informer."""
        if spec.cache in self._followed:
            return self._followed[spec.cache].informer
        informer = Informer(
            self.cluster,
            spec.kind,
            spec.selection,
            spec.cache,
            chance=self._settings.chance,
            every=spec.every,
            pace=self._settings.pace,
            clock=self._settings.clock,
            denials=Denials(self.cluster.name) if spec.spare else self.denials,
        )
        if self.cluster.name != UPPER:
            spec.cache.tally = self.cluster.tally
        self.cluster.followers.setdefault(spec.kind, []).append(informer)
        task = self._supervise(f"informer {spec.kind.name}", lambda: self._once_identified(informer.run))
        self._followed[spec.cache] = _Followed(spec, informer, task)
        return informer

    def tail(self, kind: Kind, selection: Selection, on_event: Callable[[WatchEvent], None]) -> None:
        """Call `on_event` for events, from when the identity is known until the cluster is closed.

        A kind and selection that already has a tail gets no second one.
        """
        if any((one.kind, one.selection) == (kind, selection) for one in self._event_watches):
            return
        tail = EventTail(
            self.cluster, kind, selection, on_event, chance=self._settings.chance, pace=self._settings.pace
        )
        self._event_watches.append(tail)
        self._supervise(f"tail {kind.name}", lambda: self._once_identified(tail.run))

    async def leave(self, cache: Cache) -> None:
        """Stop the informer of a cache, if it has one. The cache keeps its contents and is marked stale."""
        removed = self._followed.pop(cache, None)
        if removed is None:
            return
        await cancel_and_wait(removed.task)
        self._tasks.remove(removed.task)
        self.cluster.followers[removed.spec.kind].remove(removed.informer)
        removed.informer.release_waiters()
        if cache.tally is not None:
            cache.tally.add(-len(cache), -sum(entry.weight for entry in cache))
            cache.tally = None
        cache.mark_stale()

    def cancel(self) -> None:
        """Cancel all tasks."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """Wait for the cancelled tasks, release all waiters and close the connections."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._answered.set()
        self.attempted.set()
        for spec, informer in self.informers:
            spec.cache.mark_stale()
            informer.release_waiters()
        for tail in self._event_watches:
            tail.listening.set()
        await self.cluster.close()

    def _supervise(self, what: str, job: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Run a job in a task of its own, and restart it after errors."""
        backoff, settings = Backoff(self._settings.pace), self._settings
        task = supervised(
            what,
            job,
            lambda: backoff.after_failure(settings.chance()),
            sleep=settings.sleep,
            cluster=self.cluster.name,
        )
        self._tasks.append(task)
        return task

    async def _once_identified(self, job: Callable[[], Awaitable[None]]) -> None:
        """Wait for the identity, then run a job."""
        await self._answered.wait()
        await job()

    async def _keep_identified(self, wait_turn: Callable[[], Awaitable[None]]) -> None:
        """Read the identity every few seconds, indefinitely, and sooner while that fails."""
        backoff, settings = Backoff(self._settings.pace), self._settings
        await wait_turn()
        while True:
            error = await self._try_to_identify()
            if error is None:
                backoff.reset()
                wait = settings.probe
            else:
                wait = min(backoff.after_failure(settings.chance(), reachable=True), SLOWEST)
            await settings.sleep(max(wait, error.retry_after if error else 0.0))

    async def _try_to_identify(self) -> ClusterError | None:
        """Read the identity once, with a time-out. Return and record the error if it fails."""
        patience = self._settings.patience
        try:
            async with asyncio.timeout(patience):
                uid = await self.cluster.identify()
        except TimeoutError:
            return self._failed(self.cluster.identity.record_hang(f"no response within {patience:g} s"))
        except ClusterError as error:
            return self._failed(error)
        finally:
            self.attempted.set()
        self.is_identified = True
        self._answered.set()
        self.denials.end(self, NAMESPACE)
        if self._error is not None:
            if not isinstance(self._error, Denied):
                _log.info("cluster reachable", cluster=self.cluster.name or "upper", kube_system=uid)
            self._error = None
            self._wake_informers()
        return None

    def _failed(self, error: ClusterError) -> ClusterError:
        """Record that the cluster does not prove its identity, and return the error. Logged if its type changed."""
        if isinstance(error, WrongCluster) and not isinstance(self._error, WrongCluster):
            for _, informer in self.informers:
                informer.mark_stale()
        if isinstance(error, Denied):
            self.denials.record(self, NAMESPACE, error)
        elif type(error) is not type(self._error):
            event = "wrong cluster" if isinstance(error, WrongCluster) else "cluster unreachable"
            _log.warning(event, cluster=self.cluster.name or "upper", error=str(error))
        self._error, before = error, self._error
        if before is None:
            self._wake_informers()
        return error

    async def _reconnected(self) -> None:
        """Check the identity at once, as another access is used, and wake the informers."""
        if await self._try_to_identify() is None:
            self._wake_informers()

    def _wake_informers(self) -> None:
        for _, informer in self.informers:
            informer.wake()


class _CredentialFiles:
    """Watches the files of one cluster's credential, and reloads them after a change.

    `changed` is awaited when another access is used from then on.
    """

    def __init__(self, cluster: HttpCluster, settings: _Settings, changed: Callable[[], Awaitable[None]]) -> None:
        self._cluster = cluster
        self._settings = settings
        self._changed = changed
        self._reload_requested = False
        self._stale = ""

    async def run(self) -> None:
        """Watch the files indefinitely."""
        reread = self._cluster.reread
        with self._settings.watcher.watch(self._cluster.access.files, self._request_reload) as watch:
            while True:
                await reread.happened.wait()
                reread.happened.clear()
                requested, self._reload_requested = self._reload_requested, False
                if requested:
                    problem = await self._cluster.refresh()
                    if isinstance(reread.refused, CredentialsUnavailable) and reread.refused.uses_plugin:
                        asyncio.get_running_loop().call_later(self._settings.again, self._request_reload)
                    await self.record_result(problem)
                self._log_stale()
                watch.follow(self._files())

    async def record_result(self, problem: str) -> None:
        """Record the result of a change of access: "" if another one is used now, else why not."""
        self._log_stale()
        if problem:
            return
        cluster = self._cluster
        _log.info("credential reloaded", cluster=cluster.name or "upper", file=cluster.access.origin)
        await self._changed()

    def _request_reload(self) -> None:
        """Request a reload."""
        self._reload_requested = True
        self._cluster.reread.happened.set()

    def _log_stale(self) -> None:
        """Log once per reason that the files cannot be used, and when they can again."""
        known, self._stale = self._stale, self._cluster.reread.stale
        name = self._cluster.name or "upper"
        if self._stale and self._stale != known:
            _log.error("credential cannot be reloaded, the previous one stays in use", cluster=name, error=self._stale)
        elif known and not self._stale:
            _log.info("credential can be loaded again", cluster=name)

    def _files(self) -> FileStates:
        """Return the files of the credential: those that were read, or those that could not be read."""
        refused = self._cluster.reread.refused
        return refused.files if isinstance(refused, CredentialsUnavailable) else self._cluster.access.files


class Fleet(Mapping[str, OpenCluster]):
    """All open clusters by name. Used inside one event loop, closed with `close_all`.

    `chance` returns random numbers in [0, 1). `probe` is the time between two reads of a cluster's identity, `patience`
    the time-out of one, both in seconds. `observe(name)` returns the observer of a cluster's writes, and `requests`
    counts the requests to all clusters. `watcher` watches the files of credentials (None: the fleet creates one).
    `again` is the seconds until an exec plugin is retried that failed after its files changed.
    """

    def __init__(
        self,
        *,
        chance: Random,
        pace: InformerTimings | None = None,
        probe: float = 10.0,
        patience: float = 10.0,
        observe: Callable[[str], ObserveRequest] | None = None,
        requests: RequestMetrics | None = None,
        watcher: FileWatcher | None = None,
        again: float = 5.0,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.watcher = watcher or FileWatcher()
        self._owns_watcher = watcher is None
        self._settings = _Settings(
            chance, pace or InformerTimings(), probe, patience, self.watcher, again, clock, sleep
        )
        self._observe = observe
        self._requests = requests or RequestMetrics()
        self._open: dict[str, OpenCluster] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._identity_objection: IdentityObjection = lambda _name, _uid: None

    def __getitem__(self, name: str) -> OpenCluster:
        return self._open[name]

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._open))

    def __len__(self) -> int:
        return len(self._open)

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
            raise ValueError(f"cluster {name!r} is already open")
        cluster = HttpCluster(
            name,
            access,
            qps=qps,
            burst=burst,
            connections=connections,
            anchored=anchored,
            pin=pin,
            observe=self._observe(name) if self._observe else None,
            requests=self._requests,
            admit=partial(self._objection, name),
            clock=self._settings.clock,
            sleep=self._settings.sleep,
        )
        opened = self._open[name] = OpenCluster(cluster, self._settings)
        opened.start(lambda: self._wait_for_earlier(opened))
        for feed in feeds:
            opened.follow(feed)
        return cluster

    def follow(self, feed: InformerSpec) -> Informer:
        """Start an informer for a cache of an open cluster, unless the cache has one. Return the informer."""
        return self._open[feed.cluster].follow(feed)

    async def leave(self, cluster: str, cache: Cache) -> None:
        """Stop the informer of a cache, if it has one. The cache keeps its contents and is marked stale."""
        if cluster in self._open:
            await self._open[cluster].leave(cache)

    async def close(self, name: str) -> None:
        """Stop watching a cluster and close its connections. Its caches keep their contents and are marked stale.

        Callers that wait in `synced` or `identified` for it continue. If this call is cancelled, closing goes on and
        `close_all` waits for it: no other object refers to the cluster by then.
        """
        opened = self._open.pop(name)
        opened.cancel()
        closing = asyncio.create_task(opened.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        await asyncio.shield(closing)

    async def close_all(self) -> None:
        """Close every cluster."""
        await asyncio.gather(*self._closing, *(self.close(name) for name in self))
        if self._owns_watcher:
            await self.watcher.close()

    async def synced(self, *names: str) -> None:
        """Wait until every cache of these clusters (none given: of all) has had its first list, and tails listen."""
        for opened in [self._open[name] for name in names or self]:
            await opened.synced()

    def skipped(self) -> dict[tuple[str, str], int]:
        """Return how many objects were left out, by the names of the open cluster and of the kind."""
        found: Counter[tuple[str, str]] = Counter()
        for name, opened in self._open.items():
            for spec, informer in opened.informers:
                found[name, spec.kind.name] += informer.skipped
        return dict(found)

    def set_identity_check(self, objection: IdentityObjection) -> None:
        """Also refuse a cluster, by its name and UID, for which `objection` returns a problem."""
        self._identity_objection = objection

    def _objection(self, name: str, uid: str) -> AccessProblem | None:
        """Return the conflict with another name under which the cluster of that UID is open, None for none.

        Of two names for one cluster, the one under which it has responded keeps it. Otherwise the name for which this
        UID is pinned at this server has precedence, then the name opened first. A name for which another UID is pinned
        has no precedence. A cluster that is being closed has no conflict.
        """
        opening = self._open.get(name)
        if opening is None:
            return None
        objection = self._identity_objection(name, uid)
        if objection is not None:
            return objection
        is_earlier = True
        for other, opened in self._open.items():
            if opened is opening:
                is_earlier = False
                continue
            other_is_pinned_here = opening.identity != uid and _server(opened) == _server(opening)
            other_has_precedence = is_earlier or other_is_pinned_here or opening.identity not in ("", uid)
            if opened.identity == uid and (other_has_precedence or opened.is_identified):
                return AccessProblem(f"the same cluster as lower {other}" if other else "the upper cluster itself")
        return None

    async def _wait_for_earlier(self, own: OpenCluster) -> None:
        """Wait until clusters opened earlier at the same server were tried, so that their order decides conflicts."""
        for other in tuple(self._open.values()):
            if other is own:
                return
            if _server(other) == _server(own):
                await other.attempted.wait()


def _server(opened: OpenCluster) -> tuple[str, int, str]:
    access = opened.cluster.access
    return access.address, access.port, access.prefix
