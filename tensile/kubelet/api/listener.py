"""The port of one virtual node: takes connections and lets none of them hold up the others.

TLS is set up per connection and not by the event loop's server, so that a renewed certificate or authority counts from
the next connection on. Connections that have not yet shown who they are are limited in number, because each holds a
file descriptor that the rest of the engine may need.
"""

import asyncio
import errno
import socket
from pathlib import Path
from traceback import extract_tb

from tensile.errors import TensileError
from tensile.kubelet.api.service import Service, Site
from tensile.kubelet.api.target import Log

_OUT_OF_RESOURCES_SECONDS = 0.2


class Listener:
    """A port, the task that accepts on it, and the tasks of its connections."""

    def __init__(self, site: Site, service: Service, log: Log, waiting: int) -> None:
        self.site = site
        self.address = ("", 0)
        self._service = service
        self._log = log
        self._door = asyncio.Semaphore(waiting)
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._connections: set[asyncio.Task[None]] = set()

    def port(self) -> int:
        """Give the port listened on: the one asked for, or the one found where that was 0."""
        return int(self._socket.getsockname()[1]) if self._socket else 0

    async def listen(self, bind: str, port: int) -> None:
        """Accept there from now on, and no more where it did before; open connections stay as they are."""
        opened = open_port(self.site.node, bind, port)
        try:
            await self._deafen()
        except asyncio.CancelledError:
            opened.close()
            raise
        self.address = (bind, port)
        self._socket = opened
        self._accepting = asyncio.create_task(self._accept(opened))

    async def close(self) -> None:
        """Stop accepting and end every connection."""
        await self._deafen()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _deafen(self) -> None:
        """Stop accepting; who is cancelled meanwhile leaves no port open either."""
        try:
            if self._accepting is not None:
                self._accepting.cancel()
                await asyncio.gather(self._accepting, return_exceptions=True)
        finally:
            if self._socket is not None:
                self._socket.close()

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            await self._door.acquire()
            try:
                connection, _ = await asyncio.get_running_loop().sock_accept(listening)
            except OSError as error:
                self._door.release()
                self._log.warning("cannot take a connection", node=self.site.node, why=str(error))
                await asyncio.sleep(_OUT_OF_RESOURCES_SECONDS)
                continue
            place = _Place(self._door)
            task = asyncio.create_task(self._service.serve(connection, self.site, place.leave))
            self._connections.add(task)
            task.add_done_callback(self._ended)
            task.add_done_callback(place.left)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Forget a connection; an error that nobody foresaw is noted, and cost that connection only.

        What the error says is left out: it may quote a credential.
        """
        self._connections.discard(task)
        if not task.cancelled() and (error := task.exception()):
            at = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in extract_tb(error.__traceback__)]
            fields = {"node": self.site.node, "why": type(error).__name__, "at": at}
            self._log.warning("a connection to the kubelet API failed", **fields)


class _Place:
    """A place among those who wait at the door; given up once, by whichever comes first."""

    def __init__(self, door: asyncio.Semaphore) -> None:
        self._door: asyncio.Semaphore | None = door

    def leave(self) -> None:
        """Make room for the next."""
        if self._door is not None:
            self._door.release()
        self._door = None

    def left(self, _task: asyncio.Task[None]) -> None:
        """Make room when a connection has ended before it was let in."""
        self.leave()


def open_port(node: str, bind: str, port: int) -> socket.socket:
    """Listen on a TCP port; TensileError when that cannot be, with the fields of the topology that say otherwise."""
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    both = bind == "::" and socket.has_dualstack_ipv6()
    try:
        opened = socket.create_server((bind, port), family=family, backlog=128, dualstack_ipv6=both)
    except OSError as error:
        where = f"kubelet API of node {node}: port {port} on {bind}"
        if error.errno == errno.EADDRINUSE:
            advice = "give another kubelet.port, or another node.kubeletPort to this lower"
            raise TensileError(f"{where}: is taken: {advice}") from error
        raise TensileError(f"{where}: {error.strerror}: check kubelet.bind and kubelet.port") from error
    opened.setblocking(False)
    return opened
