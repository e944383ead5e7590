"""The port of one virtual node: takes connections and lets none of them hold up the others.

TLS is set up per connection and not by the event loop's server, so that a renewed certificate or authority counts from
the next connection on. Connections that have not yet shown who they are come through one door for all nodes, which
limits their number, because each holds a file descriptor that the rest of the engine may need.
"""

import asyncio
import errno
import socket
from functools import partial
from pathlib import Path
from traceback import extract_tb

from tensile import sockets
from tensile.accepting import accept
from tensile.door import Door, Guest
from tensile.errors import TensileError
from tensile.kubelet.api.seating import Address
from tensile.kubelet.api.service import Service, Site
from tensile.kubelet.api.target import Log


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
        """Give the port listened on: the one asked for, or the one found where that was 0."""
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
        return sockets.listening(bind, port)
    except OSError as error:
        where = f"kubelet API of node {node}: port {port} on {bind}"
        if error.errno == errno.EADDRINUSE:
            advice = "give another kubelet.port, or another node.kubeletPort to this lower"
            raise TensileError(f"{where}: is taken: {advice}") from error
        raise TensileError(f"{where}: {error.strerror}: check kubelet.bind and kubelet.port") from error
