"""One TCP connection as a stream that loses nothing: what came is kept in order until it is read.

asyncio's own streams drop what was not read yet when a connection breaks, and its TLS, on some loops, also when the
peer merely ends while reading is paused: the tail of a slow reader's output. So bytes are kept here, below TLS, where
a pause leaves them in the kernel and an end comes after them.
"""

import asyncio
import fcntl
import math
import os
import socket
import termios
from array import array
from contextlib import suppress
from typing import cast

from tensile.door import Silence
from tensile.sockets import keep_alive

_HELD_AT_MOST = 256 * 1024
_ESTABLISHED = b"\x01"


class Pipe(asyncio.Protocol):
    """A connection. `ended` is set when the peer has ended its side, `lost` when there is no connection any more."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.lost = asyncio.Event()
        self._heard = False
        self._waits_since = math.inf
        self._held: list[bytes] = []
        self._size = 0
        self._paused = False
        self._news = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport over."""
        self._transport = cast("asyncio.Transport", transport)
        self._socket = transport.get_extra_info("socket")
        keep_alive(self._socket, idle=30, interval=10, count=3)

    def data_received(self, data: bytes) -> None:
        """Keep what came; when nobody reads it, let the rest wait in the kernel."""
        self._held.append(data)
        self._size += len(data)
        self._heard = True
        self._news.set()
        if self._size > _HELD_AT_MOST:
            self._paused = True
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """Note the peer's end; the connection stays open for what is still to be sent."""
        self.ended.set()
        self._news.set()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end of it all; what came before can still be read, also what the kernel has of it."""
        if exc is not None:
            self._rescue()
        for event in (self.ended, self.lost, self._news, self._writable):
            event.set()

    def pause_writing(self) -> None:
        """Have writers wait: the peer is slower than they are."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let writers go on."""
        self._writable.set()

    async def read(self) -> bytes:
        """Give what came since the last time, at least one byte, or b"" when that was all."""
        while not self._held and not self.ended.is_set():
            self._news.clear()
            self._waits_since = asyncio.get_running_loop().time()
            await self._news.wait()
        self._waits_since = math.inf
        data = b"".join(self._held)
        self._held.clear()
        self._size = 0
        if self._paused and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()
        return data

    def write(self, data: bytes) -> None:
        """Send without waiting."""
        if data and not self._transport.is_closing():
            self._transport.write(data)

    async def drain(self) -> None:
        """Wait until more may be sent; ConnectionResetError when nothing can be."""
        await self._writable.wait()
        if self._transport.is_closing():
            raise ConnectionResetError("the connection was lost")

    def end(self) -> None:
        """Tell the peer that nothing more comes, after what was sent."""
        if not self._transport.is_closing():
            self._transport.write_eof()

    def close(self) -> None:
        """Close, after what was sent."""
        self._transport.close()

    def abort(self) -> None:
        """Close at once; what was not sent is dropped."""
        self._transport.abort()

    async def hung_up(self, every: float) -> None:
        """Return when the peer has ended, also while what it sent before is not read; looks each `every` seconds."""
        while not (self.ended.is_set() or self._half_closed()):
            with suppress(TimeoutError):
                async with asyncio.timeout(every):
                    await self.ended.wait()

    def silence(self) -> Silence:
        """Return for how long the peer has been waited for; what the kernel has of it waits for us instead."""
        seconds = max(asyncio.get_running_loop().time() - self._waits_since, 0.0)
        if seconds and not self.lost.is_set() and self._queued(termios.FIONREAD):
            seconds = 0.0
        return Silence(seconds, self._heard)

    def undelivered(self) -> int:
        """Say how many bytes were sent that the peer's kernel does not have yet."""
        if self.lost.is_set():
            return 0
        return self._queued(termios.TIOCOUTQ) + self._transport.get_write_buffer_size()

    def _queued(self, direction: int) -> int:
        """Return how many bytes the kernel holds, one way or the other."""
        count = array("i", [0])
        fcntl.ioctl(self._socket.fileno(), direction, count)
        return count[0]

    def _rescue(self) -> None:
        """Take what had come when sending failed, which the event loop drops: it may be a command's last words."""
        with suppress(OSError):
            while piece := os.read(self._socket.fileno(), _HELD_AT_MOST):
                self._held.append(piece)

    def _half_closed(self) -> bool:
        """Ask the kernel whether the peer has ended: while we do not read, nobody else would tell."""
        if not hasattr(socket, "TCP_INFO"):  # pragma: no cover - not on Linux
            return False
        return bool(self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) != _ESTABLISHED)
