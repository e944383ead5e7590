"""TLS over one TCP connection: a byte stream with back-pressure that loses nothing at its end.

asyncio's streams drop unread data when a connection breaks. Its TLS, on some event loops, does so also when the peer
merely ends while reading is paused: the tail of a slow reader's output. So received bytes are kept here in order, below
TLS, where a pause leaves them in the kernel and an end comes after them.

The standard library's TLS engine works in memory, so that reading, waiting and closing are decided here and are the
same on every event loop. A slow but live reader gets all that was written before the connection closes; a reader that
is gone does not keep it open.
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
from tensile.kube.listener_limits import ClientConnection, ClientTimeouts, IdleTime
from tensile.kube.net import keep_alive, take_over

_MAX_RECEIVED = 256 * 1024
_ESTABLISHED = b"\x01"
_RECORD = 16 * 1024
_PIECE = 16 * _RECORD
_MAX_PUT_BACK = 64 * 1024


class StreamShares(NamedTuple):
    """How many of a user's streams may lead to one node, and to one pod."""

    node: int = 500
    pod: int = 100


class ConnectionLimits(NamedTuple):
    """Limits of a connection, in bytes, seconds or numbers.

    - `head`: bytes of a request's head; `unknown`: the same for a caller without a certificate.
    - `asking`: seconds for the request after the TLS handshake; `handshake`: seconds for that.
    - `answering`: seconds for a lower apiserver's response head, connecting included.
    - `leaving`: seconds from the end of one side to that of the other.
    - `waiting`: connections of all nodes that are not authenticated yet; `patience`: when each may be displaced.
    - `streams`: streams that a user may have open; `portion`: how many of them to one node or pod.
    - `idle`: seconds until an exec, attach or port-forward without traffic ends, as in a kubelet.
    """

    head: int = 1024 * 1024
    unknown: int = 64 * 1024
    asking: float = 5.0
    handshake: float = 5.0
    patience: ClientTimeouts = ClientTimeouts()
    answering: float = 30.0
    leaving: float = 5.0
    waiting: int = 256
    streams: int = 1000
    portion: StreamShares = StreamShares()
    idle: float = 4 * 3600.0


class Connection(asyncio.Protocol):
    """A connection. `ended` is set when the peer has ended its side, `lost` when the connection is closed."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.lost = asyncio.Event()
        self._has_received = False
        self._waiting_since = math.inf
        self._received: list[bytes] = []
        self._size = 0
        self._paused = False
        self._data_ready = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over the transport."""
        self._transport = cast("asyncio.Transport", transport)
        self._socket = transport.get_extra_info("socket")
        keep_alive(self._socket, idle=30, interval=10)

    def data_received(self, data: bytes) -> None:
        """Keep received data; while it is not read, leave further data in the kernel."""
        self._received.append(data)
        self._size += len(data)
        self._has_received = True
        self._data_ready.set()
        if self._size > _MAX_RECEIVED:
            self._paused = True
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """Record the peer's end; the connection stays open for what is still to be sent."""
        self.ended.set()
        self._data_ready.set()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Record the end of the connection; received data can still be read, including what the kernel holds."""
        if exc is not None:
            self._read_remaining()
        for event in (self.ended, self.lost, self._data_ready, self._writable):
            event.set()

    def pause_writing(self) -> None:
        """Make writers wait: the peer is slower than they are."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Resume writers."""
        self._writable.set()

    async def read(self) -> bytes:
        """Return the data received since the last call, at least one byte, or b"" at the end."""
        while not self._received and not self.ended.is_set():
            self._data_ready.clear()
            self._waiting_since = asyncio.get_running_loop().time()
            await self._data_ready.wait()
        self._waiting_since = math.inf
        data = b"".join(self._received)
        self._received.clear()
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
        """Wait until more may be sent; raise ConnectionResetError when the connection is lost."""
        await self._writable.wait()
        if self._transport.is_closing():
            raise ConnectionResetError("the connection was lost")

    def end(self) -> None:
        """Send the end of our side, after all data."""
        if not self._transport.is_closing():
            self._transport.write_eof()

    def close(self) -> None:
        """Close, after all data is sent."""
        self._transport.close()

    def abort(self) -> None:
        """Close at once; unsent data is dropped."""
        self._transport.abort()

    async def wait_for_peer_end(self, every: float) -> None:
        """Wait until the peer has ended, even if its earlier data is not read; check each `every` seconds."""
        while not (self.ended.is_set() or self._half_closed()):
            with suppress(TimeoutError):
                async with asyncio.timeout(every):
                    await self.ended.wait()

    def silence(self) -> IdleTime:
        """Return for how long we have waited for the peer; 0 while the kernel holds unread data of it."""
        seconds = max(asyncio.get_running_loop().time() - self._waiting_since, 0.0)
        if seconds and not self.lost.is_set() and self._queued(termios.FIONREAD):
            seconds = 0.0
        return IdleTime(seconds, self._has_received)

    def undelivered(self) -> int:
        """Return how many sent bytes the peer's kernel does not have yet."""
        if self.lost.is_set():
            return 0
        return self._queued(termios.TIOCOUTQ) + self._transport.get_write_buffer_size()

    def _queued(self, direction: int) -> int:
        """Return how many bytes the kernel holds in one direction."""
        count = array("i", [0])
        fcntl.ioctl(self._socket.fileno(), direction, count)
        return count[0]

    def _read_remaining(self) -> None:
        """Read what had arrived when sending failed and the event loop drops: it may be the end of an output."""
        with suppress(OSError):
            while piece := os.read(self._socket.fileno(), _MAX_RECEIVED):
                self._received.append(piece)

    def _half_closed(self) -> bool:
        """Report whether the kernel says that the peer has ended: while we do not read, there is no other sign."""
        if not hasattr(socket, "TCP_INFO"):  # pragma: no cover - not on Linux
            return False
        return bool(self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) != _ESTABLISHED)


class TLSConnection:
    """One connection with TLS; one reader and one writer at a time. `lost` is set once it is closed."""

    def __init__(self, pipe: Connection, leaving: float) -> None:
        self.lost = pipe.lost
        self._pipe = pipe
        self._patience = leaving / 2
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._put_back_data = b""

    @property
    def certificate(self) -> dict[str, object]:
        """The peer's verified certificate in the form of `ssl`; {} if it sent none."""
        return dict(self._tls.getpeercert() or {})

    async def handshake(self, context: ssl.SSLContext, name: str | None) -> None:
        """Do the TLS handshake, as client of the server called `name` or as server; raise OSError when it fails.

        A client's last handshake message is sent with its first data, so that the server does not wake up for it alone.
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
        """Return received data, b"" at the peer's end; raise OSError when the connection broke."""
        data, self._put_back_data = self._put_back_data, b""
        return data or await self._next()

    def put_back(self, data: bytes) -> None:
        """Put received data back, so that the next `read` returns it first."""
        self._put_back_data = data + self._put_back_data

    async def write(self, data: bytes) -> None:
        """Send as fast as the peer reads; raise OSError when the connection broke."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._tls.write(rest) :]
        self._pipe.write(self._outgoing.read())
        await self._pipe.drain()

    async def wait_until_left(self, *, dropping: bool = False) -> None:
        """Wait until the peer has gone, while nothing else reads; what it sends before is kept for `read`.

        With `dropping` it is not kept, so that the peer's end is noticed however much it sends.
        """
        with suppress(OSError):
            while len(self._put_back_data) < _MAX_PUT_BACK:
                data = await self._next()
                if not data:
                    return
                self._put_back_data += b"" if dropping else data
            await self.wait_for_peer_end()

    async def wait_for_peer_end(self) -> None:
        """Wait until the peer has gone, even if not all of its data is read."""
        await self._pipe.wait_for_peer_end(self._patience)

    async def close(self) -> None:
        """Close after the peer has received what was written.

        There is no time limit while the peer has not received everything; then it has half of `leaving` to close its
        end.
        """
        with suppress(OSError):
            self._send_close()
            await self._await_peer_close()
        self.abort()

    def abort(self) -> None:
        """Close at once; unsent data is dropped."""
        self._pipe.abort()

    async def _next(self) -> bytes:
        while True:
            try:
                return self._decrypted()
            except ssl.SSLWantReadError:
                await self._receive()

    def _decrypted(self) -> bytes:
        """Return the available data, several records at once; an error is raised after the data before it."""
        pieces = [self._tls.read(_RECORD)]
        with suppress(ssl.SSLError):
            while pieces[-1] and len(pieces) < _PIECE // _RECORD and (self._incoming.pending or self._tls.pending()):
                pieces.append(self._tls.read(_RECORD))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _receive(self) -> None:
        """Read data from the peer, after sending what TLS itself has to send."""
        self._pipe.write(self._outgoing.read())
        data = await self._pipe.read()
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    def _send_close(self) -> None:
        with suppress(ssl.SSLError):
            self._tls.unwrap()
        self._pipe.write(self._outgoing.read())
        self._pipe.end()

    async def _await_peer_close(self) -> None:
        """Drop incoming data until the peer ends too, and wait for a slow peer to receive everything."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._patience):
                while await self._pipe.read():
                    continue
        while self._pipe.undelivered():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._patience):
                    await self.lost.wait()


async def accept(
    connection: socket.socket, context: ssl.SSLContext, limits: ConnectionLimits, client: ClientConnection | None = None
) -> TLSConnection:
    """Return an accepted connection after the server side of TLS; raise OSError when that fails.

    `client` represents the connection while it is not authenticated; its `silence` is set to the time that we have
    waited for the caller.
    """
    pipe = Connection()
    if client is not None:
        client.silence = pipe.silence
    await take_over(connection, lambda: pipe)
    return await _secured(pipe, context, None, limits)


async def dial(endpoint: Endpoint, limits: ConnectionLimits) -> TLSConnection:
    """Return a connection to an apiserver; raise OSError when that fails."""
    pipe = Connection()
    sock = await connected(endpoint.address, endpoint.port)
    try:
        await asyncio.get_running_loop().create_connection(lambda: pipe, sock=sock)
    except BaseException:
        sock.close()
        raise
    return await _secured(pipe, endpoint.tls, endpoint.server_name, limits)


async def _secured(
    pipe: Connection, context: ssl.SSLContext, name: str | None, limits: ConnectionLimits
) -> TLSConnection:
    wire = TLSConnection(pipe, limits.leaving)
    try:
        async with asyncio.timeout(limits.handshake):
            await wire.handshake(context, name)
    except BaseException:
        pipe.close()
        raise
    return wire
