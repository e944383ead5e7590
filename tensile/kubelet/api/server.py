"""The kubelet API of the virtual nodes: one HTTPS port for each, so that the node follows from the port.

Routes such as /pods carry no node's name, and rights are asked for by node: with one port for all, neither could be
answered truly. Ports come, move and go while the engine runs; what is open on the others is not touched. They are
arranged all at once, because nodes pass ports on to each other: a port that goes from one to another is never closed.

The port of one virtual node: takes connections and lets none of them hold up the others.

TLS is set up per connection and not by the event loop's server, so that a renewed certificate or authority counts from
the next connection on. Connections that have not yet shown who they are come through one door for all nodes, which
limits their number, because each holds a file descriptor that the rest of the engine may need.

Which virtual node gets which port, where some have ports that others are to have.

A lower cluster that is taken out of a topology, or put in another place of it, passes ports on among nodes that are
served. One that cannot have its port yet stays where it is, so that it can be reached all the same.
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
from tensile.kube.listener_limits import Door, Guest
from tensile.kube.net import accept
from tensile.kubelet.api.connection import Limits
from tensile.kubelet.api.pods import Log, Pods
from tensile.kubelet.api.service import Gate, Service, Site
from tensile.kubelet.stats.collector import Meter

Address = tuple[str, int]
"""What is listened on: an IP address of this machine, and a port."""


class Seat(NamedTuple):
    """Where a virtual node is to be served, and what with; without a `meter` nobody knows what it uses."""

    address: Address
    pods: Pods
    meter: Meter | None = None


def seated(
    held: Mapping[str, Address], wanted: Mapping[str, Address], barred: Collection[str] = ()
) -> dict[str, Address]:
    """Return the address of each node from now on; one that gets none is left out.

    `held` says where nodes are served now, all of them in `wanted`; `barred` are those whose address is not to be had
    at all. A node gets what it wants if nobody has that, or if who has it goes where it wants itself, or is barred and
    makes way. Otherwise it stays where it is. Of several that want the same, the one that has it keeps it, else the
    first gets it.
    """
    holders = {address: node for node, address in held.items()}
    heirs = {address: node for node, address in reversed(list(wanted.items()))}
    going = set(heirs.values()).difference(barred)
    while stuck := {node for node in going if holders.get(wanted[node], node) not in going.union(barred)}:
        going -= stuck
    arrived = {node: wanted[node] for node in going}
    taken = set(arrived.values())
    return arrived | {node: address for node, address in held.items() if node not in going and address not in taken}


class Listener:
    """A port, and the task that accepts on it, for one virtual node and then perhaps for another."""

    def __init__(self, site: Site, address: Address, service: Service, log: Log, door: Door) -> None:
        """Accept for a site from now on; TensileError when the port cannot be had."""
        self.site = site
        self.address = address
        self._service = service
        self._log = log
        self._socket = open_port(site.node, *address)
        self._accepting = asyncio.create_task(accept(self._socket, door, self._serve, self._failed))
        self._accepting.add_done_callback(lambda _: self._socket.close())

    def port(self) -> int:
        """Return the port listened on: the one asked for, or the one found where that was 0."""
        return int(self._socket.getsockname()[1])

    def shut(self) -> asyncio.Task[None]:
        """Stop accepting; open connections stay. The port is closed when the task given has ended, awaited or not."""
        self._accepting.cancel()
        return self._accepting

    def _serve(self, connection: socket.socket, guest: Guest) -> None:
        site = self.site
        task = asyncio.create_task(self._service.serve(connection, site, guest))
        guest.drop = task.cancel
        site.connections.add(task)
        task.add_done_callback(partial(self._ended, site))
        task.add_done_callback(partial(_left, connection, guest))

    def _failed(self, error: OSError) -> None:
        self._log.warning("cannot take a connection", node=self.site.node, why=str(error))

    def _ended(self, site: Site, task: asyncio.Task[None]) -> None:
        """Forget a connection; an error that nobody foresaw is noted, and cost that connection only.

        What the error says is left out: it may quote a credential.
        """
        site.connections.discard(task)
        if not task.cancelled() and (error := task.exception()):
            at = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in extract_tb(error.__traceback__)]
            fields = {"node": site.node, "why": type(error).__name__, "at": at}
            self._log.warning("a connection to the kubelet API failed", **fields)


def _left(connection: socket.socket, guest: Guest, _task: asyncio.Task[None]) -> None:
    """Close a connection that may have been dropped before anything took it over."""
    connection.close()
    guest.leave()


def open_port(node: str, bind: str, port: int) -> socket.socket:
    """Listen on a TCP port; TensileError when that cannot be, with the fields of the topology that say otherwise."""
    try:
        return net.listening(bind, port)
    except OSError as error:
        where = f"kubelet API of node {node}: port {port} on {bind}"
        if error.errno == errno.EADDRINUSE:
            advice = "give another kubelet.port, or another node.kubeletPort to this lower"
            raise TensileError(f"{where}: is taken: {advice}") from error
        raise TensileError(f"{where}: {error.strerror}: check kubelet.bind and kubelet.port") from error


_ADVICE = "it is had once that node is gone or elsewhere; else give another node.kubeletPort to this lower"


class KubeletServer:
    """The listeners of all virtual nodes."""

    def __init__(self, gate: Gate, log: Log, limits: Limits | None = None) -> None:
        self._gate = gate
        self._log = log
        self._limits = limits or Limits()
        self._service = Service(gate, log, self._limits)
        self._door = Door(self._limits.waiting, self._limits.patience)
        self._sites: dict[str, Site] = {}
        self._listeners: dict[str, Listener] = {}

    async def arrange(self, seats: Mapping[str, Seat]) -> dict[str, TensileError]:
        """Serve these virtual nodes and no others, each at its address; streams that are open go on.

        Gives why not, for those of which the address cannot be had now, or the certificate's files are no good. Such a
        node stays where it is, unless another one is to be there.
        """
        for node in self._sites.keys() - seats.keys():
            await self.stop(node)
        troubles = self._furnish(seats)
        wanted = {node: seat.address for node, seat in seats.items() if node in self._sites}
        doors = {listener.address: listener for listener in self._listeners.values()}
        doors |= self._opened(wanted, doors, troubles)
        held = {node: listener.address for node, listener in self._listeners.items()}
        now = seated(held, wanted, troubles.keys())
        self._listeners = {node: doors.pop(address) for node, address in now.items()}
        for node, listener in self._listeners.items():
            listener.site = self._sites[node]
        await asyncio.gather(*[listener.shut() for listener in doors.values()], return_exceptions=True)
        return troubles | self._waiting(wanted.keys() - troubles.keys(), wanted)

    async def stop(self, node: str) -> None:
        """Serve a virtual node no more; its streams end."""
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
        """Count the open streams (logs, exec, attach, port-forward) of each virtual node."""
        return {node: site.streams for node, site in self._sites.items()}

    def _furnish(self, seats: Mapping[str, Seat]) -> dict[str, TensileError]:
        """Have a site for each node that a certificate can be shown for; returns why not for the others."""
        troubles = {}
        for node, seat in seats.items():
            try:
                if node not in self._sites:
                    self._gate.serving.context(node, "")
                    self._sites[node] = Site(node, seat.pods)
                self._sites[node].pods, self._sites[node].meter = seat.pods, seat.meter
            except TensileError as error:
                troubles[node] = error
        return troubles

    def _opened(
        self, wanted: Mapping[str, Address], doors: Mapping[Address, Listener], troubles: dict[str, TensileError]
    ) -> dict[Address, Listener]:
        """Open what is wanted and not open yet; what cannot be had is noted in `troubles`."""
        opened: dict[Address, Listener] = {}
        for node, address in wanted.items():
            if address not in doors and address not in opened:
                try:
                    site = self._sites[node]
                    opened[address] = Listener(site, address, self._service, self._log, self._door)
                except TensileError as error:
                    troubles[node] = error
        return opened

    def _waiting(self, nodes: set[str], wanted: Mapping[str, Address]) -> dict[str, TensileError]:
        """Return of each of these nodes that is not where it wants to be who is there."""
        present = {listener.address: node for node, listener in self._listeners.items()}
        return {
            node: TensileError(f"port {wanted[node][1]} is that of node {present[wanted[node]]} as yet: {_ADVICE}")
            for node in nodes
            if present[wanted[node]] != node
        }
