"""Tests of single connections: ends, breaks, slow readers and lost peers; and of the splice of two connections."""

import asyncio
import fcntl
import socket
import ssl
import struct
import termios
import threading
import time
from collections.abc import Callable

import pytest
from kubelet_lab import PATIENCE, QUICK, leak_watch
from kubelet_pki import Pki

from tensile.kube.tls import KeyPair
from tensile.kubelet.api.certificates import tls_context
from tensile.kubelet.api.connection import Connection, ConnectionLimits, TLSConnection, accept
from tensile.kubelet.api.http import ClientDisconnected, while_connected
from tensile.kubelet.api.streaming import splice

Peer = Callable[[ssl.SSLSocket], None]
CONTENT = bytes(range(256)) * 4096
LAST_WORDS = CONTENT[:1_000_000]
"""Much more than is read ahead of a slow caller, so that the rest is still in the kernel when the lower breaks off."""
UNHURRIED = QUICK._replace(leaving=10 * PATIENCE)


async def wire_to(pki: Pki, peer: Peer, limits: ConnectionLimits = QUICK) -> tuple[TLSConnection, asyncio.Future[None]]:
    """Return our end of a connection, and a future that ends with the peer, which has its own thread and real socket.

    The kernel's buffers between the two are as small as possible.
    """

    def connect(address: tuple[str, int]) -> None:
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.settimeout(PATIENCE)
        plain.connect(address)
        context = pki.client_context(None)
        with context.wrap_socket(plain, server_hostname="localhost", suppress_ragged_eofs=False) as secure:
            peer(secure)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        gone = asyncio.ensure_future(asyncio.to_thread(connect, listening.getsockname()))
        connection, _ = await asyncio.get_running_loop().sock_accept(listening)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return await accept(connection, tls_context(KeyPair(*pki.serving), ""), limits), gone


def say_and_break_off(secure: ssl.SSLSocket) -> None:
    """Break off as soon as the other end's kernel has all data that was sent, whatever arrived in that time.

    A socket that is closed with unread data discards what it has not delivered, which is not the fault of the tested
    code.
    """
    secure.sendall(LAST_WORDS)
    begin = time.monotonic()
    while time.monotonic() < begin + PATIENCE and fcntl.ioctl(secure, termios.TIOCOUTQ, b"\0\0\0\0") != b"\0\0\0\0":
        time.sleep(0.001)


class PausablePeer:
    """A peer that reads only when the test permits it, and then to the end."""

    def __init__(self) -> None:
        self.may_read = threading.Event()
        self.received = b""
        self.clean = False

    def __call__(self, secure: ssl.SSLSocket) -> None:
        """Read to the end."""
        assert self.may_read.wait(PATIENCE)
        while piece := secure.recv(65536):
            self.received += piece
        self.clean = True


async def test_a_peers_disconnect_is_detected_behind_unread_data(pki: Pki) -> None:
    """A peer that disconnects without close_notify is detected, and all data that it sent can still be read."""

    def send_and_leave(secure: ssl.SSLSocket) -> None:
        secure.sendall(CONTENT[: 320 * 1024])

    async with leak_watch():
        wire, gone = await wire_to(pki, send_and_leave)
        async with asyncio.timeout(PATIENCE):
            await wire.wait_for_peer_end()
            await gone
            received = b""
            while len(received) < 320 * 1024:
                received += await wire.read()
            with pytest.raises(ssl.SSLEOFError):
                await wire.read()
        assert received == CONTENT[: 320 * 1024]
        wire.abort()
        await wire.lost.wait()


async def test_a_peer_that_does_not_close_is_cut_off_after_the_leaving_time(pki: Pki) -> None:
    """A peer that has all data and does not close its end is not cut off immediately."""
    release = threading.Event()
    async with leak_watch():
        loop = asyncio.get_running_loop()
        wire, gone = await wire_to(pki, lambda _secure: release.wait(PATIENCE) or None)
        await wire.write(b"goodbye")
        began = loop.time()
        await wire.close()
        assert QUICK.leaving * 0.45 <= loop.time() - began < PATIENCE / 2
        release.set()
        await gone
        await wire.lost.wait()


async def test_closing_ends_as_soon_as_the_peer_closes_too(pki: Pki) -> None:
    """The peer has all that was written, and is not waited for any longer."""
    reader = PausablePeer()
    reader.may_read.set()
    async with leak_watch():
        wire, gone = await wire_to(pki, reader, UNHURRIED)
        await wire.write(CONTENT)
        async with asyncio.timeout(PATIENCE):
            await wire.close()
            await gone
            await wire.lost.wait()
        assert reader.received == CONTENT
        assert reader.clean


async def test_a_slow_peer_receives_all_data_after_close(pki: Pki) -> None:
    """A peer that begins to read long after closing began receives all that was written."""
    reader = PausablePeer()
    async with leak_watch():
        wire, gone = await wire_to(pki, reader)
        await wire.write(CONTENT[:60_000])
        closing = asyncio.create_task(wire.close())
        await asyncio.wait({closing}, timeout=4 * QUICK.leaving)
        assert not closing.done()
        reader.may_read.set()
        await gone
        await closing
        assert reader.received == CONTENT[:60_000]


@pytest.mark.parametrize("size", [60_000, 200_000, 300_000])
async def test_data_sent_before_a_caller_left_reaches_the_lower(pki: Pki, size: int) -> None:
    """A lower that was not reading when the caller left receives all data, if it reads again in time."""
    reader = PausablePeer()
    async with leak_watch():
        lower, lower_gone = await wire_to(pki, reader, UNHURRIED)
        upper, upper_gone = await wire_to(pki, lambda secure: secure.sendall(CONTENT[:size]), UNHURRIED)
        splicing = asyncio.create_task(splice(upper, lower, UNHURRIED))
        await upper_gone
        async with asyncio.timeout(PATIENCE):
            await upper.wait_for_peer_end()
            await asyncio.wait({splicing}, timeout=0.1)
            reader.may_read.set()
            await lower_gone
            await splicing
        assert reader.received == CONTENT[:size]
        assert reader.clean
        await asyncio.gather(upper.lost.wait(), lower.lost.wait())


async def test_data_sent_before_a_lower_broke_off_reaches_a_slow_caller(pki: Pki) -> None:
    """The caller receives it to the end, although its own data cannot be delivered."""
    reader, parted = PausablePeer(), threading.Event()

    def talk_and_read(secure: ssl.SSLSocket) -> None:
        while not parted.is_set():
            secure.sendall(b"more")
            time.sleep(0.005)
        reader(secure)

    async with leak_watch():
        lower, lower_gone = await wire_to(pki, say_and_break_off, UNHURRIED)
        upper, upper_gone = await wire_to(pki, talk_and_read, UNHURRIED)
        splicing = asyncio.create_task(splice(upper, lower, UNHURRIED))
        await lower_gone
        async with asyncio.timeout(PATIENCE):
            await lower.lost.wait()
            await asyncio.wait({splicing}, timeout=0.1)
            parted.set()
            reader.may_read.set()
            await upper_gone
            await splicing
        assert reader.received == LAST_WORDS
        await upper.lost.wait()


async def test_writing_to_a_lost_connection_raises(pki: Pki) -> None:
    """The write raises ConnectionError, and a read returns the data that had arrived before."""

    def speak_and_leave(secure: ssl.SSLSocket) -> None:
        secure.sendall(b"last words")

    async with leak_watch():
        wire, gone = await wire_to(pki, speak_and_leave)
        await gone
        with pytest.raises(ConnectionError):
            await asyncio.gather(*(wire.write(b"x" * 65536) for _ in range(200)))
        assert await wire.read() == b"last words"
        await wire.close()
        await wire.lost.wait()


async def test_work_is_canceled_if_its_caller_disconnects(pki: Pki) -> None:
    """Work that is finished before that returns its result or raises its error."""
    stopped = asyncio.Event()
    release = threading.Event()

    async def endless() -> None:
        try:
            release.set()
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async def failing() -> None:
        raise ssl.SSLError("broken")

    async with leak_watch():
        wire, gone = await wire_to(pki, lambda _secure: release.wait(PATIENCE) or None)
        assert await while_connected(wire, asyncio.sleep(0, "done")) == "done"
        with pytest.raises(ssl.SSLError):
            await while_connected(wire, failing())
        with pytest.raises(ClientDisconnected):
            await while_connected(wire, endless())
        assert stopped.is_set()
        wire.abort()
        await gone
        await wire.lost.wait()


async def test_data_that_arrives_during_work_is_kept(pki: Pki) -> None:
    """Data that a caller sends while work is done for it can be read afterwards."""
    release = threading.Event()

    def speak_and_stay(secure: ssl.SSLSocket) -> None:
        secure.sendall(b"early")
        release.wait(PATIENCE)

    async with leak_watch():
        wire, gone = await wire_to(pki, speak_and_stay)
        with pytest.raises(TimeoutError):
            await while_connected(wire, asyncio.wait_for(asyncio.Event().wait(), 0.2))
        assert await wire.read() == b"early"
        release.set()
        await gone
        wire.abort()
        await wire.lost.wait()


async def test_data_received_before_a_failed_send_is_still_read() -> None:
    """A command's last output is not lost if the command ends while input for it is being sent."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        pipe = Connection()
        loop = asyncio.get_running_loop()
        connecting = asyncio.ensure_future(loop.create_connection(lambda: pipe, *listening.getsockname()))
        peer, _ = await loop.sock_accept(listening)
        transport, _ = await connecting
    transport.pause_reading()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await loop.sock_sendall(peer, b"last words")
    peer.close()
    async with asyncio.timeout(PATIENCE):
        while not pipe.lost.is_set():
            pipe.write(b"more")
            await asyncio.sleep(0)
    assert await pipe.read() == b"last words"
    assert await pipe.read() == b""
