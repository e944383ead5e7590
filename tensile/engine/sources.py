"""The topology sources of `tensile run`: a file, or a ConfigMap of the upper cluster.

The ConfigMap is read on a connection of its own, apart from the engine's: it is needed before there is an engine, and
its status is written also while no topology is active.
"""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Protocol

import orjson
import structlog

from tensile.engine import topology_reader
from tensile.engine.clusters import utc_now
from tensile.engine.history import TopologyRecords, file_place, read_records
from tensile.engine.lower import ClusterAccess
from tensile.engine.status.configmap import StatusWriter, status_owner, status_ref
from tensile.engine.status.report import EngineStatus
from tensile.engine.topology_reader import ConfigMapKey, ConfigMapText, TopologyText, TopologyUpdate, parsed
from tensile.errors import ClusterError, NotFound, TensileError, Unreachable
from tensile.kube.client import HttpCluster
from tensile.kube.cluster import Cluster, Selection
from tensile.kube.file_watch import FileWatcher
from tensile.kube.fleet import Fleet, InformerSpec
from tensile.kube.net import cancel_and_wait, insist, supervised
from tensile.kube.store import Cache
from tensile.names import EventReason
from tensile.objects import CONFIG_MAP, UPPER, Ref
from tensile.reconcile.world import World
from tensile.topology import Topology, Upper, decode, parse

_CONNECTIONS = 4
_RETRY_DELAY = 2.0
_TIMEOUT = 5.0
_log = structlog.get_logger("tensile.run")


async def text_at(place: ConfigMapKey, access: ClusterAccess) -> ConfigMapText:
    """Return the text in a ConfigMap of the upper cluster, or why there is none, for a command that runs once.

    Raises TensileError if the upper cluster is unreachable.
    """
    cluster = HttpCluster(UPPER, await access.upper_access(Upper()))
    try:
        async with asyncio.timeout(_TIMEOUT):
            raw = await cluster.read(Ref(UPPER, CONFIG_MAP, place.namespace, place.name))
    except NotFound:
        return topology_reader.document(None, place)
    except TimeoutError:
        raise TensileError(f"upper: no answer in {_TIMEOUT:g} s: check that its apiserver runs") from None
    finally:
        await cluster.close()
    return topology_reader.document(orjson.loads(raw), place)


class TopologySource(Protocol):
    """A topology source."""

    @property
    def name(self) -> str:
        """The name of the source, for people."""
        ...

    @property
    def place(self) -> ConfigMapKey:
        """What the names of the status and the history are made from; known after `first`."""
        ...

    @property
    def options(self) -> str:
        """The options by which other commands find the topology."""
        ...

    async def first(self) -> TopologyUpdate:
        """Return the first topology; raises TensileError if it is bad."""
        ...

    async def records(self) -> TopologyRecords | None:
        """Return what the upper cluster holds of the topology, None if only the engine can read it."""
        ...

    def parse(self, data: bytes) -> Topology:
        """Return the topology in a text; raises TensileError if it is bad."""
        ...

    def attach(self, upper: Cluster, world: World) -> None:
        """Take the engine's connection to the upper cluster, and its caches."""
        ...

    def readings(self, first: Topology) -> AsyncGenerator[TopologyUpdate, None]:
        """Return each state after the first."""
        ...

    def report(self, reading: TopologyUpdate) -> None:
        """Report that a state was processed; the result is in the status."""
        ...

    def emit_event(self, reason: EventReason, message: str) -> None:
        """Emit a warning Event about the topology."""
        ...

    def lead(self) -> None:
        """Begin to write the status: this engine leads."""
        ...

    async def close(self) -> None:
        """Stop following."""
        ...


class FileSource:
    """A topology file. `engine_status` is written to the upper cluster once an edit has to wait for an approval."""

    def __init__(self, path: Path, engine_status: EngineStatus, watcher: FileWatcher) -> None:
        self._path = path
        self._engine_status = engine_status
        self._watcher = watcher
        self._content = b""
        self._topology = ""
        self._status_writer: StatusWriter | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def name(self) -> str:
        """The file's path."""
        return str(self._path)

    @property
    def place(self) -> ConfigMapKey:
        """The place beside the Lease of the topology."""
        return file_place(self._topology)

    @property
    def options(self) -> str:
        """The option that names the file."""
        return f"-f {quote(str(self._path))}"

    async def first(self) -> TopologyUpdate:
        """Return the topology of the file; raises TensileError if it is bad."""
        found = await topology_reader.read_file(self._path)
        self._content = found.data
        if found.topology is not None:
            self._topology = found.topology.name
        return found

    async def records(self) -> None:
        """Return None: a file names the upper cluster, which the engine opens."""

    def parse(self, data: bytes) -> Topology:
        """Return the topology in a text of the file; raises TensileError if it is bad."""
        return parse(decode(data, name=self.name), name=self.name)

    def attach(self, upper: Cluster, world: World) -> None:
        """Prepare to write the status by the engine's connection."""
        owner, cache = status_owner(world.owner.upper, self.place), world.upper.config_maps
        self._status_writer = StatusWriter(
            upper, self.place, owner, cache, self._engine_status, now=utc_now, of_file=True
        )

    def readings(self, first: Topology) -> AsyncGenerator[TopologyUpdate, None]:
        """Return each state of the file after the first."""
        return topology_reader.follow_file(self._path, first, self._watcher, data=self._content)

    def report(self, reading: TopologyUpdate) -> None:
        """Write the result to the status, if there is one."""
        if self._status_writer is not None:
            self._status_writer.report(reading)

    def emit_event(self, reason: EventReason, message: str) -> None:
        """Emit an Event about the status, if there is one."""
        if self._status_writer is not None:
            self._status_writer.emit_event(reason, message)

    def lead(self) -> None:
        """Begin to write the status."""
        if self._status_writer is not None:
            self._tasks.append(supervised("topology status", self._status_writer.run))

    async def close(self) -> None:
        """Stop writing the status."""
        await cancel_and_wait(*self._tasks)


class ConfigMapSource:
    """A topology in a ConfigMap of the upper cluster, accessed by `access`; `engine_status` is written beside it."""

    def __init__(
        self, place: ConfigMapKey, access: ClusterAccess, engine_status: EngineStatus, watcher: FileWatcher
    ) -> None:
        self._place = place
        self._access = access
        self._engine_status = engine_status
        self._fleet = Fleet(chance=random.random, watcher=watcher)
        self._topology, self._status = Cache(), Cache()
        self._changed = asyncio.Event()
        self._topology.subscribe(lambda _delta: self._changed.set())
        self._topology.on_sync(self._changed.set)
        self._status_writer: StatusWriter
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def name(self) -> str:
        """The ConfigMap and the key."""
        return self._place.file

    @property
    def place(self) -> ConfigMapKey:
        """The ConfigMap and the key."""
        return self._place

    @property
    def options(self) -> str:
        """The option that names the ConfigMap."""
        return f"--configmap {self._place}"

    async def first(self) -> TopologyUpdate:
        """Wait for the ConfigMap and return its topology; raises TensileError if it is bad, and AccessError."""
        cluster = await self._open()
        found = await self._wait_for_topology(cluster)
        await self._prepare(cluster)
        try:
            topology = await parsed(found.text, lambda: topology_reader.read_configmap(found, self._place))
        except TensileError as error:
            refused = TopologyUpdate(found.text, error=error)
            self._engine_status.record(refused)
            await self._report_refused(refused)
            raise
        return TopologyUpdate(found.text, topology, changed=True, data=found.data)

    async def records(self) -> TopologyRecords:
        """Read what is beside the ConfigMap, as soon as the cluster responds."""
        cluster = self._fleet[UPPER].cluster
        upper = await self._fleet[UPPER].identified()
        return await insist(lambda: read_records(cluster, upper, self._place), ClusterError, lambda: _RETRY_DELAY)

    def parse(self, data: bytes) -> Topology:
        """Return the topology in a text of the ConfigMap; raises TensileError if it is bad."""
        return topology_reader.read_configmap(ConfigMapText(TopologyText(), data), self._place)

    def attach(self, upper: Cluster, world: World) -> None:
        """Do nothing: the status has a connection of its own."""

    def readings(self, first: Topology) -> AsyncGenerator[TopologyUpdate, None]:
        """Return each state of the ConfigMap after the first."""
        return topology_reader.follow_configmap(self._topology, self._place, self._changed, first)

    def report(self, reading: TopologyUpdate) -> None:
        """Write the result beside the ConfigMap."""
        self._status_writer.report(reading)

    def emit_event(self, reason: EventReason, message: str) -> None:
        """Emit an Event about the ConfigMap."""
        self._status_writer.emit_event(reason, message)

    def lead(self) -> None:
        """Begin to write the status; a standby leaves that to the leader."""
        self._tasks.append(supervised("topology status", self._status_writer.run))

    async def close(self) -> None:
        """Stop following."""
        await cancel_and_wait(*self._tasks)
        await self._fleet.close_all()

    async def _open(self) -> Cluster:
        return self._fleet.open(UPPER, await self._access.upper_access(Upper()), connections=_CONNECTIONS)

    async def _prepare(self, cluster: Cluster) -> None:
        """Watch the topology and status ConfigMaps, and determine the owner of the status."""
        for cache, name in ((self._topology, self._place.name), (self._status, status_ref(self._place).name)):
            selection = Selection(self._place.namespace, fields=f"metadata.name={name}")
            self._fleet.follow(InformerSpec(UPPER, CONFIG_MAP, selection, cache))
        owner = status_owner(await self._fleet[UPPER].identified(), self._place)
        self._status_writer = StatusWriter(cluster, self._place, owner, self._status, self._engine_status, now=utc_now)
        with suppress(TimeoutError):
            async with asyncio.timeout(_TIMEOUT):
                await self._fleet.synced()

    async def _wait_for_topology(self, cluster: Cluster) -> ConfigMapText:
        """Return the ConfigMap's content as soon as it exists; the reason for waiting is logged once."""
        ref = Ref(UPPER, CONFIG_MAP, self._place.namespace, self._place.name)
        last_message = ""

        def log(error: ClusterError) -> None:
            nonlocal last_message
            message = _missing_reason(error, self._place)
            if message and message != last_message:
                _log.warning("waiting for the topology", configmap=str(self._place), error=message)
                last_message = message

        async def read() -> ConfigMapText:
            return topology_reader.document(orjson.loads(await cluster.read(ref)), self._place)

        return await insist(read, ClusterError, lambda: _RETRY_DELAY, log)

    async def _report_refused(self, refused: TopologyUpdate) -> None:
        """Report bad first content before the program ends, if that is quick."""
        self._status_writer.report(refused)
        with suppress(TimeoutError):
            async with asyncio.timeout(_TIMEOUT):
                await self._status_writer.write()


def _missing_reason(error: ClusterError, place: ConfigMapKey) -> str:
    """Return why there is no topology yet; "" for an unreachable cluster, which its connection reports."""
    if isinstance(error, NotFound):
        return topology_reader.document(None, place).problem
    return "" if isinstance(error, Unreachable) else str(error)
