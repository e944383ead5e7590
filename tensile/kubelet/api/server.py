"""The kubelet API of the virtual nodes: one HTTPS port for each, so that the port identifies the node.

Routes such as /pods carry no node name, and rights are checked per node. With one port for all nodes, neither could be
answered correctly. TLS is set up per connection and not by the event loop's server, so that a renewed certificate or
client CA is used from the next connection on. The number of connections that are not authenticated yet is limited for
all nodes together, because each holds a file descriptor that the rest of the engine may need.
"""

import asyncio
import errno
import socket
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from traceback import extract_tb
from typing import NamedTuple

from tensile.errors import TensileError
from tensile.kube import net
from tensile.kube.listener_limits import ClientConnection, ConnectionLimiter
from tensile.kube.net import accept
from tensile.kubelet.api.connection import ConnectionLimits
from tensile.kubelet.api.pods import Log, PodLister
from tensile.kubelet.api.service import NodeServer, RequestAuth, Service
from tensile.kubelet.stats.collector import StatsCollector

_ADVICE = "it is had once that node is gone or elsewhere; else give another node.kubeletPort to this lower"

Address = tuple[str, int]
"""Where a server listens: an IP address of this machine, and a port."""


class NodeEndpoint(NamedTuple):
    """Where a virtual node is to be served, and from what; without a `meter` its usage is unknown."""

    address: Address
    pods: PodLister
    meter: StatsCollector | None = None


def assign_ports(
    held: Mapping[str, Address], wanted: Mapping[str, Address], barred: Collection[str] = ()
) -> dict[str, Address]:
    """Return the new address of each node; a node that gets none is left out.

    `held` are the present addresses, all of nodes that are in `wanted`; `barred` are nodes whose wanted address is not
    available at all. A node moves to its wanted address if that is free, or if the node there moves away itself or is
    barred. Otherwise it stays where it is. Of several nodes that want one address, the present holder keeps it, else
    the first gets it.
    """
    holders = {address: node for node, address in held.items()}
    heirs = {address: node for node, address in reversed(list(wanted.items()))}
    going = set(heirs.values()).difference(barred)
    while stuck := {node for node in going if holders.get(wanted[node], node) not in going.union(barred)}:
        going -= stuck
    arrived = {node: wanted[node] for node in going}
    taken = set(arrived.values())
    return arrived | {node: address for node, address in held.items() if node not in going and address not in taken}


class NodeListener:
    """A port and the task that accepts on it, for one virtual node at a time."""

    def __init__(self, site: NodeServer, address: Address, service: Service, log: Log, door: ConnectionLimiter) -> None:
        """Start to accept connections for a site; raise TensileError when the port is not available."""
        self.site = site
        self.address = address
        self._service = service
        self._log = log
        self._socket = open_port(site.node, *address)
        self._accepting = asyncio.create_task(accept(self._socket, door, self._serve, self._failed))
        self._accepting.add_done_callback(lambda _: self._socket.close())

    def port(self) -> int:
        """Return the port that is listened on, which the system chose if 0 was requested."""
        return int(self._socket.getsockname()[1])

    def shut(self) -> asyncio.Task[None]:
        """Stop accepting; open connections stay. The port is closed when the returned task ends, awaited or not."""
        self._accepting.cancel()
        return self._accepting

    def _serve(self, connection: socket.socket, guest: ClientConnection) -> None:
        site = self.site
        task = asyncio.create_task(self._service.serve(connection, site, guest))
        guest.drop = task.cancel
        site.connections.add(task)
        task.add_done_callback(partial(self._ended, site))
        task.add_done_callback(partial(_left, connection, guest))

    def _failed(self, error: OSError) -> None:
        self._log.warning("cannot take a connection", node=self.site.node, why=str(error))

    def _ended(self, site: NodeServer, task: asyncio.Task[None]) -> None:
        """Remove a connection; log an unexpected error, which ends only this connection.

        The error's message is left out, because it may quote a credential.
        """
        site.connections.discard(task)
        if not task.cancelled() and (error := task.exception()):
            at = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in extract_tb(error.__traceback__)]
            fields = {"node": site.node, "why": type(error).__name__, "at": at}
            self._log.warning("a connection to the kubelet API failed", **fields)


def _left(connection: socket.socket, guest: ClientConnection, _task: asyncio.Task[None]) -> None:
    """Close a connection that may have been cancelled before anything took it over."""
    connection.close()
    guest.leave()


def open_port(node: str, bind: str, port: int) -> socket.socket:
    """Return a listening TCP socket; raise TensileError, naming the fields of the topology to change, if that fails."""
    try:
        return net.listening(bind, port)
    except OSError as error:
        where = f"kubelet API of node {node}: port {port} on {bind}"
        if error.errno == errno.EADDRINUSE:
            advice = "give another kubelet.port, or another node.kubeletPort to this lower"
            raise TensileError(f"{where}: is taken: {advice}") from error
        raise TensileError(f"{where}: {error.strerror}: check kubelet.bind and kubelet.port") from error


class KubeletServer:
    """The listeners of all virtual nodes.

    Ports are added, moved and removed while the engine runs, without effect on open connections of other ports. They
    are arranged together, because nodes pass ports on to each other: a lower that is removed from the topology, or
    moved in it, changes the ports of others. A port that goes from one node to another is never closed. A node that
    cannot have its new port yet keeps the old one, so that it stays reachable.
    """

    def __init__(self, gate: RequestAuth, log: Log, limits: ConnectionLimits | None = None) -> None:
        self._gate = gate
        self._log = log
        self._limits = limits or ConnectionLimits()
        self._service = Service(gate, log, self._limits)
        self._door = ConnectionLimiter(self._limits.waiting, self._limits.patience)
        self._sites: dict[str, NodeServer] = {}
        self._listeners: dict[str, NodeListener] = {}

    async def arrange(self, seats: Mapping[str, NodeEndpoint]) -> dict[str, TensileError]:
        """Serve these virtual nodes and no others, each at its address; open streams go on.

        Return the errors of nodes whose address is not available now, or whose certificate files are unusable. Such a
        node stays where it is, unless another node is to be there.
        """
        for node in self._sites.keys() - seats.keys():
            await self.stop(node)
        troubles = self._furnish(seats)
        wanted = {node: seat.address for node, seat in seats.items() if node in self._sites}
        doors = {listener.address: listener for listener in self._listeners.values()}
        doors |= self._opened(wanted, doors, troubles)
        held = {node: listener.address for node, listener in self._listeners.items()}
        now = assign_ports(held, wanted, troubles.keys())
        self._listeners = {node: doors.pop(address) for node, address in now.items()}
        for node, listener in self._listeners.items():
            listener.site = self._sites[node]
        await asyncio.gather(*[listener.shut() for listener in doors.values()], return_exceptions=True)
        return troubles | self._waiting(wanted.keys() - troubles.keys(), wanted)

    async def stop(self, node: str) -> None:
        """Stop serving a virtual node; its streams end."""
        listener, site = self._listeners.pop(node, None), self._sites.pop(node, None)
        self._gate.serving.forget(node)
        if listener is not None:
            await asyncio.gather(listener.shut(), return_exceptions=True)
        if site is not None:
            await site.close()

    async def close(self) -> None:
        """Stop serving every virtual node."""
        for node in tuple(self._sites):
            await self.stop(node)

    def port(self, node: str) -> int:
        """Return the port on which a node is served, 0 for none."""
        return self._listeners[node].port() if node in self._listeners else 0

    def streams(self) -> dict[str, int]:
        """Return the number of open streams (logs, exec, attach, port-forward) of each virtual node."""
        return {node: site.streams for node, site in self._sites.items()}

    def _furnish(self, seats: Mapping[str, NodeEndpoint]) -> dict[str, TensileError]:
        """Create or update the site of each node that has a certificate; return the errors of the others."""
        troubles = {}
        for node, seat in seats.items():
            try:
                if node not in self._sites:
                    self._gate.serving.context(node, "")
                    self._sites[node] = NodeServer(node, seat.pods)
                self._sites[node].pods, self._sites[node].meter = seat.pods, seat.meter
            except TensileError as error:
                troubles[node] = error
        return troubles

    def _opened(
        self, wanted: Mapping[str, Address], doors: Mapping[Address, NodeListener], troubles: dict[str, TensileError]
    ) -> dict[Address, NodeListener]:
        """Open the wanted addresses that are not open yet; add failures to `troubles`."""
        opened: dict[Address, NodeListener] = {}
        for node, address in wanted.items():
            if address not in doors and address not in opened:
                try:
                    site = self._sites[node]
                    opened[address] = NodeListener(site, address, self._service, self._log, self._door)
                except TensileError as error:
                    troubles[node] = error
        return opened

    def _waiting(self, nodes: set[str], wanted: Mapping[str, Address]) -> dict[str, TensileError]:
        """Return an error for each of these nodes whose wanted address another node still has."""
        present = {listener.address: node for node, listener in self._listeners.items()}
        return {
            node: TensileError(f"port {wanted[node][1]} is that of node {present[wanted[node]]} as yet: {_ADVICE}")
            for node in nodes
            if present[wanted[node]] != node
        }
