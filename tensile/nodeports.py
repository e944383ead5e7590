"""The ports on which the virtual nodes' kubelet API is served, as the topology says."""

import asyncio
import resource
from functools import partial
from pathlib import Path

import orjson
import structlog

from tensile.cluster import Cluster
from tensile.errors import TensileError
from tensile.kubelet.api.authentication import Authenticator
from tensile.kubelet.api.authority import CALLERS as _CALLERS_CA
from tensile.kubelet.api.authority import CALLERS_KEY as _CALLERS_KEY
from tensile.kubelet.api.authority import ClientAuthority
from tensile.kubelet.api.authorization import Authorizer
from tensile.kubelet.api.certs import Serving, ServingFiles
from tensile.kubelet.api.enrolment import Enrolment
from tensile.kubelet.api.meter import Meter
from tensile.kubelet.api.server import KubeletServer
from tensile.kubelet.api.service import Gate
from tensile.kubelet.api.target import Log, Pods
from tensile.kubelet.api.wire import Limits
from tensile.kubelet.mirrored import NoPods
from tensile.supervision import supervised
from tensile.topology import Topology

_log = structlog.get_logger("tensile.kubelet")


def _streams_of_a_user() -> int:
    """Leave half of the descriptors that this process may have to the engine itself: a stream takes two."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Limits().streams if most == resource.RLIM_INFINITY else min(Limits().streams, most // 4)


class NodePorts:
    """The kubelet API of all virtual nodes; one port each."""

    def __init__(self, topology: Topology, directory: Path, upper: Cluster, address: str) -> None:
        files = files_of(topology, directory)
        authority = authority_of(topology, directory, upper, _log)
        serving = Serving(_log, address, files)
        self._server = KubeletServer(
            Gate(serving, authority, Authenticator(upper, _log), Authorizer(upper, _log)),
            _log,
            Limits(streams=_streams_of_a_user()),
        )
        self._enrolment = None if files else Enrolment(upper, serving, _log)
        self._enrolling: dict[str, asyncio.Task[None]] = {}

    async def open(self, topology: Topology) -> None:
        """Take every port, so that one that cannot be had is known at once: a TensileError says which."""
        for lower in topology.lowers:
            await self._server.start(lower.node.name, topology.kubelet.bind, lower.node.kubelet_port, NoPods())

    async def serve(self, topology: Topology, node: str, port: int, pods: Pods, meter: Meter | None = None) -> None:
        """Serve a node's pods; one whose port cannot be had is said and goes without logs and exec."""
        try:
            await self._server.start(node, topology.kubelet.bind, port, pods, meter)
            self._enrol(node)
        except TensileError as error:
            _log.error("logs and exec of a virtual node are not served", node=node, error=str(error))

    async def stop(self, node: str) -> None:
        """Serve a node no more."""
        await _ended(self._enrolling.pop(node, None))
        await self._server.stop(node)

    async def close(self) -> None:
        """Serve nothing any more."""
        for node in tuple(self._enrolling):
            await _ended(self._enrolling.pop(node))
        await self._server.close()

    def _enrol(self, node: str) -> None:
        """Have a certificate asked for, where none is given and none is asked for yet."""
        if self._enrolment is not None and node not in self._enrolling:
            work = partial(self._enrolment.run, node)
            self._enrolling[node] = supervised(f"certificate of {node}", work)


def files_of(topology: Topology, directory: Path) -> ServingFiles | None:
    """Give the files of the serving certificate, None where the topology names none."""
    certificate, key = topology.kubelet.tls_cert_file, topology.kubelet.tls_key_file
    return ServingFiles(directory / certificate, directory / key) if certificate and key else None


def authority_of(topology: Topology, directory: Path, upper: Cluster, log: Log) -> ClientAuthority:
    """Give who vouches for callers: a file, or what the upper cluster publishes."""
    file = topology.kubelet.client_ca_file

    async def callers() -> str:
        """Read the authority that the upper's apiserver shows itself with."""
        found: str = (orjson.loads(await upper.read(_CALLERS_CA)).get("data") or {}).get(_CALLERS_KEY, "")
        if not found:
            raise TensileError(f"it has no {_CALLERS_KEY}: the apiserver runs without --client-ca-file")
        return found

    return ClientAuthority(log, directory / file if file else None, None if file else callers)


async def _ended(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
