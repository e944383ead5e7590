"""TLS over one connection: bytes in, bytes out with back-pressure, and an end that loses nothing.

The standard library's TLS engine works on memory, so that reading, waiting and ending are decided here and are the same
on every event loop. A reader that is slow but alive gets all that was written before the connection closes; one that is
gone does not keep it open.

One TCP connection as a stream that loses nothing: what came is kept in order until it is read.

asyncio's own streams drop what was not read yet when a connection breaks, and its TLS, on some loops, also when the
peer merely ends while reading is paused: the tail of a slow reader's output. So bytes are kept here, below TLS, where
a pause leaves them in the kernel and an end comes after them.
"""

import asyncio
import fcntl
import math
import os
import socket
import ssl
import termios
from array import array
from contextlib import suppress
from typing import NamedTuple, cast

from tensile.kube.cluster import Endpoint
from tensile.kube.dial import connected
from tensile.kube.listener_limits import Guest, Patience, Silence
from tensile.kube.net import keep_alive, take_over

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
        """Return what came since the last time, at least one byte, or b"" when that was all."""
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
        """Return how many bytes were sent that the peer's kernel does not have yet."""
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


_RECORD = 16 * 1024
_PIECE = 16 * _RECORD
_AHEAD_AT_MOST = 64 * 1024


class Portion(NamedTuple):
    """How many of the streams that a user may have open may lead to one node, and to one pod."""

    node: int = 500
    pod: int = 100


class Limits(NamedTuple):
    """How much, and in seconds how long, a connection may take for what.

    `head` bytes of a request's head, or `unknown` of one who showed no certificate, within `asking` seconds after a TLS
    handshake of at most `handshake`; `answering` for a lower apiserver's head, connection included; `leaving` from the
    end of one side to that of the other; `waiting` connections of all nodes that have not said yet who they are, each
    of which may be displaced once it is late by `patience`; `streams` that a user may have open, a `portion` of them to
    one node or pod; `idle` until an exec, attach or port-forward on which nothing is said ends, as long as a kubelet
    lets it.
    """

    head: int = 1024 * 1024
    unknown: int = 64 * 1024
    asking: float = 5.0
    handshake: float = 5.0
    patience: Patience = Patience()
    answering: float = 30.0
    leaving: float = 5.0
    waiting: int = 256
    streams: int = 1000
    portion: Portion = Portion()
    idle: float = 4 * 3600.0


class Wire:
    """One connection with TLS; one reader and one writer at a time. `lost` is set once it is closed."""

    def __init__(self, pipe: Pipe, leaving: float) -> None:
        self.lost = pipe.lost
        self._pipe = pipe
        self._patience = leaving / 2
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ahead = b""

    @property
    def certificate(self) -> dict[str, object]:
        """The peer's verified certificate as `ssl` gives it; {} when it showed none."""
        return dict(self._tls.getpeercert() or {})

    async def shake_hands(self, context: ssl.SSLContext, name: str | None) -> None:
        """Agree on TLS: as the client of the server called `name`, or as the server; OSError when that fails.

        A client's last word goes out with the first that is written: its server need not be woken for it alone.
        """
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=name is None, server_hostname=name)
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._receive()
            except ssl.SSLError:
                self._pipe.write(self._outgoing.read())
                raise
            else:
                break
        if name is None:
            self._pipe.write(self._outgoing.read())

    async def read(self) -> bytes:
        """Return what has come, b"" at the peer's end; OSError when the connection broke."""
        ahead, self._ahead = self._ahead, b""
        return ahead or await self._next()

    async def write(self, data: bytes) -> None:
        """Send, as fast as the peer takes it; OSError when the connection broke."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._tls.write(rest) :]
        self._pipe.write(self._outgoing.read())
        await self._pipe.drain()

    async def left(self, *, dropping: bool = False) -> None:
        """Return when the peer has gone, while nobody else reads; what it sends before is kept for `read`.

        With `dropping` it is not kept, so that a peer's end is seen behind however much it sends.
        """
        with suppress(OSError):
            while len(self._ahead) < _AHEAD_AT_MOST:
                data = await self._next()
                if not data:
                    return
                self._ahead += b"" if dropping else data
            await self.hung_up()

    async def hung_up(self) -> None:
        """Return when the peer has gone, also behind more than we have read from it."""
        await self._pipe.hung_up(self._patience)

    async def close(self) -> None:
        """Let the peer have what was written, then close.

        It may take its time while it has not got everything; then it has half of `leaving` to close its end.
        """
        with suppress(OSError):
            self._say_goodbye()
            await self._linger()
        self.abort()

    def abort(self) -> None:
        """Close at once; what was not sent is dropped."""
        self._pipe.abort()

    async def _next(self) -> bytes:
        while True:
            try:
                return self._decrypted()
            except ssl.SSLWantReadError:
                await self._receive()

    def _decrypted(self) -> bytes:
        """Return what is there, several records at once; an error comes after what came before it."""
        pieces = [self._tls.read(_RECORD)]
        with suppress(ssl.SSLError):
            while pieces[-1] and len(pieces) < _PIECE // _RECORD and (self._incoming.pending or self._tls.pending()):
                pieces.append(self._tls.read(_RECORD))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _receive(self) -> None:
        """Take in what the peer sent, and let go what TLS itself has to say."""
        self._pipe.write(self._outgoing.read())
        data = await self._pipe.read()
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    def _say_goodbye(self) -> None:
        with suppress(ssl.SSLError):
            self._tls.unwrap()
        self._pipe.write(self._outgoing.read())
        self._pipe.end()

    async def _linger(self) -> None:
        """Drop what still comes until the peer ends too, and wait for a slow one to have everything."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._patience):
                while await self._pipe.read():
                    continue
        while self._pipe.undelivered():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._patience):
                    await self.lost.wait()


async def accept(
    connection: socket.socket, context: ssl.SSLContext, limits: Limits, guest: Guest | None = None
) -> Wire:
    """Do the server's part of TLS on a connection just accepted; OSError when it does not come about.

    `guest` is who the connection is at the door, and is told from then on how long it keeps us waiting.
    """
    pipe = Pipe()
    if guest is not None:
        guest.silence = pipe.silence
    await take_over(connection, lambda: pipe)
    return await _secured(pipe, context, None, limits)


async def dial(endpoint: Endpoint, limits: Limits) -> Wire:
    """Connect to an apiserver; OSError when that fails."""
    pipe = Pipe()
    made = await connected(endpoint.address, endpoint.port)
    try:
        await asyncio.get_running_loop().create_connection(lambda: pipe, sock=made)
    except BaseException:
        made.close()
        raise
    return await _secured(pipe, endpoint.tls, endpoint.server_name, limits)


async def _secured(pipe: Pipe, context: ssl.SSLContext, name: str | None, limits: Limits) -> Wire:
    wire = Wire(pipe, limits.leaving)
    try:
        async with asyncio.timeout(limits.handshake):
            await wire.shake_hands(context, name)
    except BaseException:
        pipe.close()
        raise
    return wire
