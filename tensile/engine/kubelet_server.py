"""The ports on which the virtual nodes' kubelet API is served, as the topology says."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

import orjson
import structlog

from tensile.errors import TensileError
from tensile.kube.cluster import Cluster
from tensile.kube.file_watch import FileWatcher, KeptFiles
from tensile.kube.files import read_regular
from tensile.kube.net import parts, soft_limit, supervised
from tensile.kubelet.api.auth import Authenticator, Authorizer
from tensile.kubelet.api.client_ca import CALLERS as _CALLERS_CA
from tensile.kubelet.api.client_ca import CALLERS_KEY as _CALLERS_KEY
from tensile.kubelet.api.client_ca import ClientAuthority
from tensile.kubelet.api.connection import Limits
from tensile.kubelet.api.csr import Enrolment
from tensile.kubelet.api.pods import Log, NoPods, Pods
from tensile.kubelet.api.server import KubeletServer, Seat
from tensile.kubelet.api.service import Gate
from tensile.kubelet.api.serving_certificate import Read, Serving, ServingFiles
from tensile.kubelet.stats.collector import Meter
from tensile.reconcile.world import LowerWorld
from tensile.topology import Topology

_log = structlog.get_logger("tensile.kubelet")


def _limits(lowers: int) -> Limits:
    """Leave to the engine itself the descriptors that so many lower clusters take."""
    part, usual = parts(lowers, soft_limit()), Limits()
    return usual._replace(streams=min(usual.streams, part.streams), waiting=min(usual.waiting, part.waiting))


class Served(Protocol):
    """A lower cluster that is joined, as far as its virtual node is served."""

    lower: LowerWorld
    meter: Meter


class NodePorts:
    """The kubelet API of all virtual nodes; one port each.

    Their certificates are asked for as soon as they are served, by an engine that stands by too: whoever has to approve
    them can do so before it is needed.
    """

    def __init__(self, topology: Topology, directory: Path, upper: Cluster, address: str, watcher: FileWatcher) -> None:
        files = files_of(topology, directory)
        self._files = kept_files(topology, directory, watcher)
        authority = authority_of(topology, directory, upper, _log, self._files.read)
        serving = Serving(_log, address, files, read=self._files.read)
        self._server = KubeletServer(
            Gate(serving, authority, Authenticator(upper, _log), Authorizer(upper, _log)),
            _log,
            _limits(len(topology.lowers)),
        )
        self._enrolment = None if files else Enrolment(upper, serving, _log)
        self._enrolling: dict[str, asyncio.Task[None]] = {}
        self._troubles: dict[str, tuple[str, int]] = {}

    async def open(self, seats: Mapping[str, Seat]) -> None:
        """Take every port, so that one that cannot be had is known at once: a TensileError says which."""
        for error in (await self._server.arrange(seats)).values():
            raise error

    async def arrange(self, seats: Mapping[str, Seat]) -> None:
        """Serve these nodes and no others, and have certificates asked for where none are given.

        A node that cannot be served where it should be is said, once for each reason and for where it is instead; the
        next call tries again.
        """
        for node in self._enrolling.keys() - seats.keys():
            await _ended(self._enrolling.pop(node))
        troubles = await self._server.arrange(seats)
        self._say({node: (str(error), self.port(node)) for node, error in troubles.items()})
        for node in seats:
            self._enrol(node)

    async def stop(self, node: str) -> None:
        """End what goes on with a node; it is served again when it is arranged anew."""
        await self._server.stop(node)

    async def close(self) -> None:
        """Serve nothing any more."""
        for node in tuple(self._enrolling):
            await _ended(self._enrolling.pop(node))
        await self._server.close()
        self._files.close()

    def port(self, node: str) -> int:
        """Return the port on which a node is served, 0 for none."""
        return self._server.port(node)

    def _say(self, troubles: dict[str, tuple[str, int]]) -> None:
        """Say what is new: `troubles` has why, and the port instead, of nodes that are not where they should be."""
        for node, (why, port) in troubles.items():
            if self._troubles.get(node) == (why, port):
                continue
            if port:
                _log.warning("a virtual node stays on another kubelet port", node=node, port=port, why=why)
            else:
                _log.error("logs and exec of a virtual node are not served", node=node, error=why)
        for node in self._troubles.keys() - troubles.keys():
            if self.port(node):
                _log.info("a virtual node has its kubelet port", node=node, port=self.port(node))
        self._troubles = troubles

    def _enrol(self, node: str) -> None:
        """Have a certificate asked for, where none is given and none is asked for yet."""
        if self._enrolment is not None and node not in self._enrolling:
            work = partial(self._enrolment.run, node)
            self._enrolling[node] = supervised(f"certificate of {node}", work)


def seats_of(topology: Topology, joined: Mapping[str, Served], pods: Callable[[LowerWorld], Pods]) -> dict[str, Seat]:
    """Return where the virtual nodes are to be served: as the topology says, also while its lowers are not joined.

    One that has left the topology stays where it is until it is empty: its pods can be reached so long, and who is to
    have its port waits for it. `pods` gives those of a lower.
    """
    bind = topology.kubelet.bind
    ports = {spec.name: spec.node.kubelet_port for spec in topology.lowers}
    alone = [spec.node for spec in topology.lowers if spec.name not in joined]
    found = {node.name: Seat((bind, node.kubelet_port), NoPods()) for node in alone}
    for name, one in joined.items():
        if one.lower.connected:
            port = ports.get(name) or one.lower.port or one.lower.spec.node.kubelet_port
            found[one.lower.node] = Seat((bind, port), pods(one.lower), one.meter)
    return found


def files_of(topology: Topology, directory: Path) -> ServingFiles | None:
    """Return the files of the serving certificate, None where the topology names none."""
    certificate, key = topology.kubelet.tls_cert_file, topology.kubelet.tls_key_file
    return ServingFiles(directory / certificate, directory / key) if certificate and key else None


def kept_files(
    topology: Topology, directory: Path, watcher: FileWatcher, hear: Callable[[], None] = lambda: None
) -> KeptFiles:
    """Return what the files of the kubelet API hold; `hear` is called when they may have changed."""
    kubelet = topology.kubelet
    named = (kubelet.tls_cert_file, kubelet.tls_key_file, kubelet.client_ca_file)
    return KeptFiles(watcher, [directory / file for file in named if file], hear, read=read_regular)


def authority_of(topology: Topology, directory: Path, upper: Cluster, log: Log, read: Read) -> ClientAuthority:
    """Return who vouches for callers: a file, or what the upper cluster publishes."""
    file = topology.kubelet.client_ca_file

    async def callers() -> str:
        """Read the authority that the upper's apiserver shows itself with."""
        found: str = (orjson.loads(await upper.read(_CALLERS_CA)).get("data") or {}).get(_CALLERS_KEY, "")
        if not found:
            raise TensileError(f"it has no {_CALLERS_KEY}: the apiserver runs without --client-ca-file")
        return found

    return ClientAuthority(log, directory / file if file else None, None if file else callers, read=read)


async def _ended(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
