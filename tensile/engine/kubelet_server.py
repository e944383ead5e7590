"""The ports of the virtual nodes' kubelet API: which node has which, and the servers on them.

A node's port is chosen once and stays with it: clients and firewalls know it. So it is read from the Node, and lowers
that come or go shift no other one.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import orjson
import structlog
from structlog.typing import FilteringBoundLogger

from tensile.errors import TensileError
from tensile.kube.cluster import Cluster
from tensile.kube.file_watch import FileCache, FileWatcher
from tensile.kube.files import read_regular
from tensile.kube.net import cancel_and_wait, parts, soft_limit, supervised
from tensile.kubelet.api.auth import Authenticator, Authorizer
from tensile.kubelet.api.certificates import CALLERS as _CALLERS_CA
from tensile.kubelet.api.certificates import CALLERS_KEY as _CALLERS_KEY
from tensile.kubelet.api.certificates import ClientCA, ReadFile, ServingCertificate, ServingFiles
from tensile.kubelet.api.connection import ConnectionLimits
from tensile.kubelet.api.csr import CertificateRequester
from tensile.kubelet.api.requests import EmptyPodLister, PodLister
from tensile.kubelet.api.server import KubeletServer, NodeEndpoint
from tensile.kubelet.api.service import RequestAuth
from tensile.kubelet.node.status import noted_port
from tensile.kubelet.stats.collector import StatsCollector
from tensile.reconcile.ownership import is_ours
from tensile.reconcile.world import LowerWorld, World
from tensile.topology import Topology

if TYPE_CHECKING:
    import asyncio

_FIRST_UNPRIVILEGED, _LAST_PORT = 1024, 65535
_log = structlog.get_logger("tensile.kubelet")


def _limits(lowers: int) -> ConnectionLimits:
    """Return the limits of streams, which leave the engine the descriptors that so many lower clusters need."""
    part, defaults = parts(lowers, soft_limit()), ConnectionLimits()
    return defaults._replace(streams=min(defaults.streams, part.streams), waiting=min(defaults.waiting, part.waiting))


class ServedLower(Protocol):
    """A joined lower cluster, as far as serving its virtual node needs it."""

    lower: LowerWorld
    meter: StatsCollector


class KubeletServers:
    """The kubelet API of all virtual nodes at `address`; one port each.

    Certificates are requested as soon as the nodes are served, by a standby too, so that they can be approved before
    they are needed.
    """

    def __init__(self, topology: Topology, directory: Path, upper: Cluster, address: str, watcher: FileWatcher) -> None:
        files = files_of(topology, directory)
        self._files = kept_files(topology, directory, watcher)
        self.address = address
        authority = authority_of(topology, directory, upper, _log, self._files.read)
        self.serving = ServingCertificate(_log, address, files, read=self._files.read)
        self._server = KubeletServer(
            RequestAuth(self.serving, authority, Authenticator(upper, _log), Authorizer(upper, _log)),
            _log,
            _limits(len(topology.lowers)),
        )
        self._requester = None if files else CertificateRequester(upper, self.serving, _log)
        self._request_tasks: dict[str, asyncio.Task[None]] = {}
        self._errors: dict[str, str] = {}

    @property
    def pending(self) -> tuple[str, ...]:
        """Why virtual nodes are not served, one message each."""
        return tuple(self._errors.values())

    async def open(self, endpoints: Mapping[str, NodeEndpoint]) -> None:
        """Serve these nodes; raises TensileError for one that cannot be served."""
        for error in (await self._server.serve(endpoints)).values():
            raise error

    async def serve(self, endpoints: Mapping[str, NodeEndpoint]) -> None:
        """Serve these nodes and no others, and request certificates if no files are given.

        A node that cannot be served is logged, once for each reason; the next call retries.
        """
        for node in self._request_tasks.keys() - endpoints.keys():
            await cancel_and_wait(self._request_tasks.pop(node))
        self.serving.retain(endpoints)
        self._log_changes({node: str(error) for node, error in (await self._server.serve(endpoints)).items()})
        self.request_certificates(endpoints)

    def request_certificates(self, nodes: Iterable[str]) -> None:
        """Request a certificate for each of these nodes, if no files are given and none is requested yet."""
        if self._requester is None:
            return
        for node in nodes:
            if node not in self._request_tasks:
                request = partial(self._requester.run, node)
                self._request_tasks[node] = supervised(f"certificate of {node}", request)

    async def stop(self, node: str) -> None:
        """End all streams of a node; it is served again with the next `serve`."""
        await self._server.stop(node)

    async def close(self) -> None:
        """Stop serving all nodes."""
        for node in tuple(self._request_tasks):
            await cancel_and_wait(self._request_tasks.pop(node))
        await self._server.close()
        self._files.close()

    def expirations(self) -> dict[str, datetime]:
        """Return when the serving certificate of each node expires."""
        return self.serving.expirations()

    def port(self, node: str) -> int:
        """Return the port on which a node is served, 0 for none."""
        return self._server.port(node)

    def _log_changes(self, errors: dict[str, str]) -> None:
        """Log which nodes are served no longer or again; `errors` has the reason for each that is not served."""
        for node, reason in errors.items():
            if self._errors.get(node) != reason:
                _log.error("logs and exec of a virtual node are not served", node=node, error=reason)
        for node in self._errors.keys() - errors.keys():
            if self.port(node):
                _log.info("logs and exec of a virtual node are served again", node=node, port=self.port(node))
        self._errors = errors


class PortClaim(NamedTuple):
    """What determines the kubelet port of a virtual node.

    `place` is the index of its lower in the file, `given` the port in the file, and `kept` the port that it has already
    (0 for none).
    """

    place: int
    given: int | None = None
    kept: int = 0


def choose_ports(claims: Mapping[str, PortClaim], default_ports: range, servers: Collection[int]) -> dict[str, int]:
    """Return the port of each node, all different and none of those of the engine's other servers.

    The file counts first, then what a node has already; of several nodes the first in the file gets a port. All others
    get the first free port of `default_ports` from their place on, beginning again at its end.
    """
    nodes = sorted(claims, key=lambda node: (claims[node].place, node))
    chosen: dict[str, int] = {}
    used = set(servers)

    def assign(node: str, ports: Iterable[int]) -> None:
        port = 0 if node in chosen else next((port for port in ports if port not in used), 0)
        if port:
            chosen[node] = port
            used.add(port)

    for node in nodes:
        assign(node, filter(None, [claims[node].given]))
    for node in nodes:
        assign(node, filter(None, [claims[node].kept]))
    for node in nodes:
        assign(node, chain(default_ports[claims[node].place :], default_ports, range(_FIRST_UNPRIVILEGED, _LAST_PORT)))
    return chosen


def noted_ports(world: World) -> dict[str, int]:
    """Return the ports that our Nodes show; others than the topology chooses from are left out.

    So whoever can write a Node cannot have the engine listen anywhere else, and another `kubelet.port` moves the nodes.
    """
    allowed = world.topology.kubelet_ports
    nodes = ((entry.name, entry.manifest()) for entry in world.upper.nodes)
    found = {name: noted_port(node) for name, node in nodes if is_ours(node, world.owner)}
    return {name: port for name, port in found.items() if port in allowed}


def endpoints_of(
    topology: Topology,
    joined: Mapping[str, ServedLower],
    pods: Callable[[LowerWorld], PodLister],
    noted: Mapping[str, int],
) -> dict[str, NodeEndpoint]:
    """Return the endpoints of the virtual nodes, also of lowers that are not joined yet, and of those that left.

    `pods` returns the pods of a lower; `noted` are the ports that Nodes show. Nodes without a lower keep theirs, so
    that no client that requests their pods reaches another node.
    """
    specs = {spec.name: (place, spec.node.kubelet_port) for place, spec in enumerate(topology.lowers)}
    last = (len(specs), None)
    served: dict[str, tuple[str, ServedLower | None]] = {
        spec.node.name: (spec.name, None) for spec in topology.lowers if spec.name not in joined
    }
    served |= {one.lower.node: (name, one) for name, one in joined.items() if one.lower.connected}
    claims = {node: PortClaim(*last, port) for node, port in noted.items()}
    for node, (name, one) in served.items():
        held = one.lower.port if one else 0
        is_usual = name not in specs or held in topology.kubelet_ports
        claims[node] = PortClaim(*specs.get(name, last), (held if is_usual else 0) or noted.get(node, 0))
    ports = choose_ports(claims, topology.kubelet_ports, topology.server_ports.values())
    bind, empty = topology.kubelet.bind, EmptyPodLister()
    return {
        node: NodeEndpoint((bind, ports[node]), pods(one.lower) if one else empty, one.meter if one else None)
        for node, (_, one) in served.items()
    }


def files_of(topology: Topology, directory: Path) -> ServingFiles | None:
    """Return the files of the serving certificate, None if the topology names none."""
    certificate, key = topology.kubelet.tls_cert_file, topology.kubelet.tls_key_file
    return ServingFiles(directory / certificate, directory / key) if certificate and key else None


def kept_files(
    topology: Topology, directory: Path, watcher: FileWatcher, on_change: Callable[[], None] = lambda: None
) -> FileCache:
    """Return the watched files of the kubelet API; `on_change` is called when they may have changed."""
    kubelet = topology.kubelet
    paths = (kubelet.tls_cert_file, kubelet.tls_key_file, kubelet.client_ca_file)
    return FileCache(watcher, [directory / file for file in paths if file], on_change, read=read_regular)


def authority_of(
    topology: Topology, directory: Path, upper: Cluster, log: FilteringBoundLogger, read: ReadFile
) -> ClientCA:
    """Return the client CA: from a file, or as published by the upper cluster."""
    file = topology.kubelet.client_ca_file

    async def published_ca() -> str:
        """Return the client CA that the upper's apiserver publishes."""
        found: str = (orjson.loads(await upper.read(_CALLERS_CA)).get("data") or {}).get(_CALLERS_KEY, "")
        if not found:
            raise TensileError(f"it has no {_CALLERS_KEY}: the apiserver runs without --client-ca-file")
        return found

    return ClientCA(log, directory / file if file else None, None if file else published_ca, read=read)
