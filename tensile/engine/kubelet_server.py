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
from tensile.kube.file_watch import FileCache, FileWatcher
from tensile.kube.files import read_regular
from tensile.kube.net import parts, soft_limit, supervised
from tensile.kubelet.api.auth import Authenticator, Authorizer
from tensile.kubelet.api.client_ca import CALLERS as _CALLERS_CA
from tensile.kubelet.api.client_ca import CALLERS_KEY as _CALLERS_KEY
from tensile.kubelet.api.client_ca import ClientCA
from tensile.kubelet.api.connection import ConnectionLimits
from tensile.kubelet.api.csr import CertificateRequester
from tensile.kubelet.api.pods import EmptyPodLister, Log, PodLister
from tensile.kubelet.api.server import KubeletServer, NodeEndpoint
from tensile.kubelet.api.service import RequestAuth
from tensile.kubelet.api.serving_certificate import ReadFile, ServingCertificate, ServingFiles
from tensile.kubelet.stats.collector import StatsCollector
from tensile.reconcile.world import LowerWorld
from tensile.topology import Topology

_log = structlog.get_logger("tensile.kubelet")


def _limits(lowers: int) -> ConnectionLimits:
    """Return the limits of streams, which leave the engine the descriptors that so many lower clusters need."""
    part, usual = parts(lowers, soft_limit()), ConnectionLimits()
    return usual._replace(streams=min(usual.streams, part.streams), waiting=min(usual.waiting, part.waiting))


class ServedLower(Protocol):
    """A joined lower cluster, as far as serving its virtual node needs it."""

    lower: LowerWorld
    meter: StatsCollector


class KubeletServers:
    """The kubelet API of all virtual nodes; one port each.

    Certificates are requested as soon as the nodes are served, by a standby too, so that they can be approved before
    they are needed.
    """

    def __init__(self, topology: Topology, directory: Path, upper: Cluster, address: str, watcher: FileWatcher) -> None:
        files = files_of(topology, directory)
        self._files = kept_files(topology, directory, watcher)
        authority = authority_of(topology, directory, upper, _log, self._files.read)
        serving = ServingCertificate(_log, address, files, read=self._files.read)
        self._server = KubeletServer(
            RequestAuth(serving, authority, Authenticator(upper, _log), Authorizer(upper, _log)),
            _log,
            _limits(len(topology.lowers)),
        )
        self._enrolment = None if files else CertificateRequester(upper, serving, _log)
        self._enrolling: dict[str, asyncio.Task[None]] = {}
        self._troubles: dict[str, tuple[str, int]] = {}

    async def open(self, seats: Mapping[str, NodeEndpoint]) -> None:
        """Open every port; raises TensileError for one that cannot be opened."""
        for error in (await self._server.arrange(seats)).values():
            raise error

    async def arrange(self, seats: Mapping[str, NodeEndpoint]) -> None:
        """Serve these nodes and no others, and request certificates if no files are given.

        A node that cannot be served on its port is logged, once for each reason and substitute port; the next call
        retries.
        """
        for node in self._enrolling.keys() - seats.keys():
            await _ended(self._enrolling.pop(node))
        troubles = await self._server.arrange(seats)
        self._say({node: (str(error), self.port(node)) for node, error in troubles.items()})
        for node in seats:
            self._enrol(node)

    async def stop(self, node: str) -> None:
        """End all streams of a node; it is served again with the next `arrange`."""
        await self._server.stop(node)

    async def close(self) -> None:
        """Stop serving all nodes."""
        for node in tuple(self._enrolling):
            await _ended(self._enrolling.pop(node))
        await self._server.close()
        self._files.close()

    def port(self, node: str) -> int:
        """Return the port on which a node is served, 0 for none."""
        return self._server.port(node)

    def _say(self, troubles: dict[str, tuple[str, int]]) -> None:
        """Log changes; `troubles` has the reason and the substitute port of each node that is not on its port."""
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
        """Request a certificate if no files are given and none is requested yet."""
        if self._enrolment is not None and node not in self._enrolling:
            work = partial(self._enrolment.run, node)
            self._enrolling[node] = supervised(f"certificate of {node}", work)


def endpoints_of(
    topology: Topology, joined: Mapping[str, ServedLower], pods: Callable[[LowerWorld], PodLister]
) -> dict[str, NodeEndpoint]:
    """Return the endpoints of the virtual nodes as the topology says, also for lowers that are not joined yet.

    A node that left the topology keeps its port until it is empty: its pods stay reachable, and the next owner of the
    port waits. `pods` returns those of a lower.
    """
    bind = topology.kubelet.bind
    ports = {spec.name: spec.node.kubelet_port for spec in topology.lowers}
    alone = [spec.node for spec in topology.lowers if spec.name not in joined]
    found = {node.name: NodeEndpoint((bind, node.kubelet_port), EmptyPodLister()) for node in alone}
    for name, one in joined.items():
        if one.lower.connected:
            port = ports.get(name) or one.lower.port or one.lower.spec.node.kubelet_port
            found[one.lower.node] = NodeEndpoint((bind, port), pods(one.lower), one.meter)
    return found


def files_of(topology: Topology, directory: Path) -> ServingFiles | None:
    """Return the files of the serving certificate, None if the topology names none."""
    certificate, key = topology.kubelet.tls_cert_file, topology.kubelet.tls_key_file
    return ServingFiles(directory / certificate, directory / key) if certificate and key else None


def kept_files(
    topology: Topology, directory: Path, watcher: FileWatcher, hear: Callable[[], None] = lambda: None
) -> FileCache:
    """Return the watched files of the kubelet API; `hear` is called when they may have changed."""
    kubelet = topology.kubelet
    named = (kubelet.tls_cert_file, kubelet.tls_key_file, kubelet.client_ca_file)
    return FileCache(watcher, [directory / file for file in named if file], hear, read=read_regular)


def authority_of(topology: Topology, directory: Path, upper: Cluster, log: Log, read: ReadFile) -> ClientCA:
    """Return the client CA: from a file, or as published by the upper cluster."""
    file = topology.kubelet.client_ca_file

    async def callers() -> str:
        """Return the client CA that the upper's apiserver publishes."""
        found: str = (orjson.loads(await upper.read(_CALLERS_CA)).get("data") or {}).get(_CALLERS_KEY, "")
        if not found:
            raise TensileError(f"it has no {_CALLERS_KEY}: the apiserver runs without --client-ca-file")
        return found

    return ClientCA(log, directory / file if file else None, None if file else callers, read=read)


async def _ended(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
