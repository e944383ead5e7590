"""The kubelet API of the virtual nodes: one HTTPS port for each, so that the port identifies the node.

Routes such as /pods carry no node name, and rights are checked per node. With one port for all nodes, neither could be
answered correctly. TLS is set up per connection and not by the event loop's server, so that a renewed certificate or
client CA is used from the next connection on. The number of connections that are not authenticated yet is limited for
all nodes together, because each holds a file descriptor that the rest of the engine may need.
"""

import asyncio
import errno
import socket
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from traceback import extract_tb
from typing import NamedTuple

from structlog.typing import FilteringBoundLogger

from tensile.errors import TensileError
from tensile.kube import net
from tensile.kube.listener_limits import ClientConnection, ConnectionLimiter
from tensile.kube.net import accept, cancel_and_wait
from tensile.kubelet.api.connection import ConnectionLimits
from tensile.kubelet.api.requests import PodLister
from tensile.kubelet.api.service import NodeServer, RequestAuth, Service
from tensile.kubelet.stats.collector import StatsCollector

Address = tuple[str, int]
"""Where a server listens: an IP address of this machine, and a port."""


class NodeEndpoint(NamedTuple):
    """Where a virtual node is to be served, and from what; without a `meter` its usage is unknown."""

    address: Address
    pods: PodLister
    meter: StatsCollector | None = None


class NodeListener:
    """The port of a virtual node and the task that accepts on it."""

    def __init__(
        self,
        node_server: NodeServer,
        address: Address,
        service: Service,
        log: FilteringBoundLogger,
        limiter: ConnectionLimiter,
    ) -> None:
        """Start to accept connections for a node; raise TensileError when the port is not available."""
        self.node_server = node_server
        self.address = address
        self._service = service
        self._log = log
        self._socket = open_port(node_server.node, *address)
        self._accepting = asyncio.create_task(accept(self._socket, limiter, self._serve, self._failed))
        self._accepting.add_done_callback(lambda _: self._socket.close())

    def port(self) -> int:
        """Return the port that is listened on, which the system chose if 0 was requested."""
        return int(self._socket.getsockname()[1])

    async def close(self) -> None:
        """Close the port and end every connection."""
        await cancel_and_wait(self._accepting)
        await self.node_server.close()

    def _serve(self, connection: socket.socket, client: ClientConnection) -> None:
        node_server = self.node_server
        task = asyncio.create_task(self._service.serve(connection, node_server, client))
        client.drop = task.cancel
        node_server.connections.add(task)
        task.add_done_callback(partial(self._ended, node_server))
        task.add_done_callback(partial(_on_connection_done, connection, client))

    def _failed(self, error: OSError) -> None:
        self._log.warning("cannot accept connections", node=self.node_server.node, why=str(error))

    def _ended(self, node_server: NodeServer, task: asyncio.Task[None]) -> None:
        """Remove a connection; log an unexpected error, which ends only this connection.

        The error's message is left out, because it may quote a credential.
        """
        node_server.connections.discard(task)
        if not task.cancelled() and (error := task.exception()):
            at = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in extract_tb(error.__traceback__)]
            fields = {"node": node_server.node, "why": type(error).__name__, "at": at}
            self._log.warning("a connection to the kubelet API failed", **fields)


def _on_connection_done(connection: socket.socket, client: ClientConnection, _task: asyncio.Task[None]) -> None:
    """Close a connection that may have been cancelled before anything took it over."""
    connection.close()
    client.leave()


def open_port(node: str, bind: str, port: int) -> socket.socket:
    """Return a listening TCP socket; raise TensileError, naming the fields of the topology to change, if that fails."""
    try:
        return net.listening(bind, port)
    except OSError as error:
        where = f"kubelet API of node {node} cannot listen on port {port} of {bind}"
        if error.errno == errno.EADDRINUSE:
            advice = "stop that program, or, unless it is an engine of this topology, set another node.kubeletPort"
            raise TensileError(f"{where}: another program uses the port: {advice}") from error
        raise TensileError(f"{where}: {error.strerror}: check kubelet.bind and kubelet.port") from error


class KubeletServer:
    """The listeners of all virtual nodes; they come and go without effect on open connections of other nodes."""

    def __init__(self, auth: RequestAuth, log: FilteringBoundLogger, limits: ConnectionLimits | None = None) -> None:
        self._auth = auth
        self._log = log
        self._limits = limits or ConnectionLimits()
        self._service = Service(auth, log, self._limits)
        self._limiter = ConnectionLimiter(self._limits.waiting, self._limits.patience)
        self._listeners: dict[str, NodeListener] = {}

    async def serve(self, endpoints: Mapping[str, NodeEndpoint]) -> dict[str, TensileError]:
        """Serve these virtual nodes and no others, each at its address; open streams of a node that stays go on.

        Return the errors of nodes that are not served: their address is not available, or their certificate files are
        unusable. The next call tries again.
        """
        for node, listener in tuple(self._listeners.items()):
            if node not in endpoints or listener.address != endpoints[node].address:
                await self.stop(node)
        errors = {}
        for node, endpoint in endpoints.items():
            try:
                listener = self._listeners.get(node) or self._listener(node, endpoint)
            except TensileError as error:
                errors[node] = error
            else:
                listener.node_server.pods, listener.node_server.meter = endpoint.pods, endpoint.meter
                self._listeners[node] = listener
        return errors

    async def stop(self, node: str) -> None:
        """Stop serving a virtual node; its streams end."""
        self._auth.serving.forget(node)
        listener = self._listeners.pop(node, None)
        if listener is not None:
            await listener.close()

    async def close(self) -> None:
        """Stop serving every virtual node."""
        for node in tuple(self._listeners):
            await self.stop(node)

    def port(self, node: str) -> int:
        """Return the port on which a node is served, 0 for none."""
        return self._listeners[node].port() if node in self._listeners else 0

    def streams(self) -> dict[str, int]:
        """Return the number of open streams (logs, exec, attach, port-forward) of each virtual node."""
        return {node: self._service.streams(node) for node in self._listeners}

    def _listener(self, node: str, endpoint: NodeEndpoint) -> NodeListener:
        """Return a new listener of a node; raises TensileError without a certificate or a free port."""
        self._auth.serving.context(node, "")
        node_server = NodeServer(node, endpoint.pods)
        return NodeListener(node_server, endpoint.address, self._service, self._log, self._limiter)
