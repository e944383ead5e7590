"""The open clusters of a topology: their caches as one `World`, their connections, and checks of new credentials.

Both the engine and the commands that run once (`plan`, `apply`) use it; each decides what to do with the world.

The virtual nodes' address is the IP at which the upper apiserver calls the engine. A program that serves nothing, on
whatever machine, reads it from the Nodes.

New credentials of a lower are read before the present ones are given up. An exec plugin may take long, and nothing may
wait for it. So each reading is a task, and the caller gets the result at once or with a later call. Files that could
not be used are read again when they change.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tensile.engine.caches import lower_feeds, place_caches, upper_feeds, upper_world
from tensile.engine.lower import ClusterAccess, LowerConnection, placeholder_spec
from tensile.kube.cluster import Cluster
from tensile.kube.credentials import SERVICE_ACCOUNT, CredentialsUnavailable, account_namespace
from tensile.kube.file_watch import FileStates, FileWatch, FileWatcher
from tensile.kube.fleet import Fleet
from tensile.kube.health import AccessProblem
from tensile.kube.net import cancel_and_wait, parts, soft_limit
from tensile.names import LOWER_UID, owner_of
from tensile.objects import UPPER, annotations
from tensile.reconcile.ownership import is_ours
from tensile.reconcile.rules.services import server_of
from tensile.reconcile.world import World
from tensile.topology import Lower, Topology

if TYPE_CHECKING:
    from tensile.kube.credentials import Access

PATIENCE = 1.0
"""Seconds to wait for files to be read, so that most edits are active at once."""
RETRY = 5.0
"""Seconds after which a failed reading is repeated, unless it failed because of files that have not changed."""
_ADDRESS_VARIABLES = ("POD_IP", "VKUBELET_POD_IP")


class Connections(Mapping[str, Cluster]):
    """The open connections by cluster name, including UPPER; a live view."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def __getitem__(self, name: str) -> Cluster:
        return self._fleet[name].cluster

    def __iter__(self) -> Iterator[str]:
        return iter(self._fleet)

    def __len__(self) -> int:
        return len(self._fleet)


def utc_now() -> datetime:
    """Return the present time in UTC."""
    return datetime.now(UTC)


class Clusters:
    """The upper cluster and the lowers joined to it; `wake` enqueues all keys of a lower.

    With `engine`, the identity of an engine, the leases of virtual nodes are renewed. With `busy`, which reports
    whether a lower has other work, events are mirrored to the upper cluster while it has none.
    """

    def __init__(
        self,
        fleet: Fleet,
        cluster_access: ClusterAccess,
        wake: Callable[[str], None],
        *,
        engine: str = "",
        busy: Callable[[str], bool] | None = None,
    ) -> None:
        self.fleet = fleet
        self.connections = Connections(fleet)
        self.joined: dict[str, LowerConnection] = {}
        self.cluster_access = cluster_access
        self._wake = wake
        self._engine = engine
        self._busy = busy
        self._access: Access
        fleet.set_identity_check(self._check_identity)

    async def open_upper(self, topology: Topology) -> Cluster:
        """Open the upper cluster, whether it responds or not; raises AccessError for bad credentials."""
        upper = topology.upper
        self._access = await self.cluster_access.upper_access(upper)
        calls = parts(len(topology.lowers), soft_limit()).upper_calls
        return self.fleet.open(UPPER, self._access, qps=upper.qps, burst=upper.burst, connections=calls, anchored=True)

    @property
    def upper_address(self) -> tuple[str, int]:
        """Host and port of the upper apiserver."""
        return self._access.address, self._access.port

    async def make_world(self, topology: Topology, node_address: str) -> World:
        """Wait for the upper cluster and return the world, without lowers yet."""
        owner = owner_of(await self.fleet[UPPER].identified(), topology.name)
        upper = upper_world()
        upper.account = account_namespace(self._access)
        inside = self.cluster_access.is_inside(topology.upper)
        server = server_of(topology.upper.advertise_url, None if inside else self.upper_address)
        self.world = World(topology, owner, upper, utc_now(), node_address, server)
        self.follow_controllers()
        return self.world

    def follow_controllers(self) -> None:
        """Start the informers that the topology's controllers need; none is stopped.

        A controller that was disabled must still delete what it created.
        """
        world = self.world
        for feed in upper_feeds(world.upper, world.owner, world.topology.enabled):
            self.fleet.follow(feed)
        for lower in world.lowers.values():
            if lower.name in self.fleet:
                for feed in lower_feeds(lower, world.owner, places=world.topology.places):
                    self.fleet.follow(feed)
        for joined in self.joined.values():
            joined.watch_events()

    async def leave_places(self) -> None:
        """Stop the informers of placement and drop their caches, if no part of the topology needs placement."""
        for lower in () if self.world.topology.places else self.world.lowers.values():
            for cache in lower.place_caches():
                await self.fleet.leave(lower.name, cache)
            lower.place_nodes, lower.place_pods = place_caches()

    def join(self, spec: Lower, *, connect: bool = True, remaps: bool = False) -> LowerConnection:
        """Join a lower, whether it responds or not; without `connect`, one that was left behind.

        One that `remaps` is empty, and takes the namespace mapping that its topology wants.
        """
        joined = LowerConnection(self.world, self.fleet, self.cluster_access, utc_now, self._wake)
        self.joined[spec.name] = joined
        joined.begin(spec, engine=self._engine, connect=connect, remaps=remaps, busy=self._busy)
        return joined

    def strays(self) -> list[Lower]:
        """Return a lower for each Node of ours without a joined lower: left behind by an engine that no longer runs."""
        known = {joined.lower.node for joined in self.joined.values()}
        nodes = [entry.manifest() for entry in self.world.upper.nodes if entry.name not in known]
        return [placeholder_spec(node) for node in nodes if is_ours(node, self.world.owner)]

    def _check_identity(self, name: str, identity: str) -> AccessProblem | None:
        """Return why a cluster must not be used as this lower: one that left the topology still has pods there.

        The Node of that lower records the cluster's identity, whichever engine joined it.
        """
        if name == UPPER:  # there is no world before it answers
            return None
        world = self.world
        for entry in world.upper.nodes:
            holder = next((lower for lower in world.lowers.values() if lower.node == entry.name), None)
            if holder is not None and (holder.in_topology or holder.name == name or holder.is_vacant):
                continue
            node = entry.manifest()
            if annotations(node).get(LOWER_UID) != identity or not is_ours(node, world.owner):
                continue
            cluster = f"the cluster of removed node {entry.name}, which still has pods"
            return AccessProblem(cluster, f"to keep them, write node: {{name: {entry.name}}} for lower {name}")
        return None

    async def leave(self, name: str) -> None:
        """Leave a lower."""
        await self.joined.pop(name).end()

    async def close(self) -> None:
        """Leave every lower and close every connection."""
        for name in tuple(self.joined):
            await self.leave(name)
        await self.fleet.close_all()


def node_address(topology: Topology, upper: tuple[str, int]) -> str:
    """Return the virtual nodes' IP address: the topology's, the pod's, or the local one of calls to the upper."""
    given = [topology.kubelet.node_address, *(os.environ.get(name) for name in _ADDRESS_VARIABLES)]
    return next((str(address) for address in given if address), "") or _local_address(upper)


def own_namespace(account: Path = SERVICE_ACCOUNT) -> str:
    """Return the namespace that this process runs in, "" outside a cluster; `account` is its ServiceAccount."""
    with suppress(OSError):
        return (account / "namespace").read_text().strip()
    return ""


def published_node_address(world: World) -> str:
    """Return the virtual nodes' address that an engine has published, or the detected one if none has."""
    manifests = (entry.manifest() for entry in world.upper.nodes)
    ours = (one for one in manifests if is_ours(one, world.owner))
    published = (one for node in ours for one in node.get("status", {}).get("addresses", ()))
    published_address = next((str(one["address"]) for one in published if one["type"] == "InternalIP"), "")
    return str(world.topology.kubelet.node_address or published_address or world.node_address)


def _local_address(upper: tuple[str, int]) -> str:
    """Return the local address that the system would use to call the upper; nothing is sent."""
    with suppress(OSError), socket.socket(_family(upper), socket.SOCK_DGRAM) as probe:
        probe.connect(upper)
        return str(probe.getsockname()[0])
    return ""


def _family(upper: tuple[str, int]) -> socket.AddressFamily:
    return socket.getaddrinfo(*upper, type=socket.SOCK_DGRAM)[0][0]


class _Outcome(NamedTuple):
    """The result of a reading: the error ("" for none), when, and the files that must change before a retry, if any."""

    error: str
    at: float
    files: FileStates | None = None


class _Attempt(NamedTuple):
    """One reading: of which credentials, its task, and the result of the reading before it ("" for the first)."""

    way: tuple[object, ...]
    task: asyncio.Task[_Outcome]
    before: str

    def is_over(self, now: float) -> bool:
        """Report whether it ended, waits for no file, and is old enough to be repeated."""
        return self.task.done() and self.task.result().files is None and now >= self.task.result().at + RETRY


class CredentialChecks:
    """Readings of credentials, by lower; `read` reads those of one lower, and raises TensileError if it cannot."""

    def __init__(self, read: Callable[[Lower], Awaitable[object]], watcher: FileWatcher) -> None:
        self._read = read
        self._watcher = watcher
        self._attempts: dict[str, _Attempt] = {}
        self._watches: dict[str, FileWatch] = {}

    async def error(self, spec: Lower) -> str:
        """Return why the credentials of a lower cannot be read, "" if they can.

        The first reading is awaited for at most PATIENCE. While a reading is repeated, the last result counts: the
        message does not alternate, and no caller waits again.
        """
        attempt = self._attempts.get(spec.name)
        if attempt is None or attempt.way != spec.way:
            attempt = await self._start(spec)
            await asyncio.wait({attempt.task}, timeout=PATIENCE)
        elif attempt.is_over(_now()):
            attempt = self._retry(spec, attempt)
        if not attempt.task.done():
            return attempt.before or "the new credentials are still being read"
        outcome = attempt.task.result()
        if not outcome.error:
            del self._attempts[spec.name]
        elif outcome.files is not None and spec.name not in self._watches:
            retry = partial(self._retry, spec, attempt)
            self._watches[spec.name] = self._watcher.watch(outcome.files, retry)
        return outcome.error

    async def close(self) -> None:
        """Cancel the readings in progress."""
        for name in tuple(self._attempts):
            await self._cancel(name)

    async def _start(self, spec: Lower) -> _Attempt:
        await self._cancel(spec.name)
        self._attempts[spec.name] = attempt = _Attempt(spec.way, asyncio.create_task(self._read_credentials(spec)), "")
        return attempt

    def _retry(self, spec: Lower, failed: _Attempt) -> _Attempt:
        """Repeat a failed reading; its last result counts meanwhile."""
        self._stop_watching(spec.name)
        task = asyncio.create_task(self._read_credentials(spec))
        self._attempts[spec.name] = attempt = _Attempt(failed.way, task, failed.task.result().error)
        return attempt

    def _stop_watching(self, name: str) -> None:
        watch = self._watches.pop(name, None)
        if watch is not None:
            watch.close()

    async def _cancel(self, name: str) -> None:
        self._stop_watching(name)
        attempt = self._attempts.pop(name, None)
        if attempt is not None:
            await cancel_and_wait(attempt.task)

    async def _read_credentials(self, spec: Lower) -> _Outcome:
        try:
            await self._read(spec)
        except CredentialsUnavailable as error:
            return _Outcome(str(error), _now(), None if error.uses_plugin else error.files)
        except Exception as error:  # noqa: BLE001 - one lower's error must not keep the others from being checked
            return _Outcome(str(error) or type(error).__name__, _now())
        return _Outcome("", _now())


def _now() -> float:
    return asyncio.get_running_loop().time()
