"""Tests of the HTTPS port against misuse, over real TLS on loopback with separate client addresses."""

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta

import pytest
import uvloop
from aiohttp import web

from tensile.kube import net
from tensile.kube.tls import self_signed, serving_tls
from tensile.policy.tls_port import ClientBounds, PortClients, TLSPort

CALLER, CROWD = "127.0.0.1", "127.0.0.2"
PAIR = self_signed("x", CALLER, [CALLER], datetime.now(UTC), timedelta(days=1))
BOUNDS = ClientBounds(largest=100_000, content=400_000, connections=16, patience=2.0)


class PortClient:
    """One connection to a port."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.response_body = b""

    async def send(self, body: bytes = b"", head: str = "", size: int | None = None) -> None:
        """Send a request or a part of it; `size` is the announced Content-Length."""
        length = f"Content-Length: {len(body) if size is None else size}\r\n" if "chunked" not in head else ""
        self.writer.write(f"POST / HTTP/1.1\r\nHost: x\r\n{length}{head}\r\n".encode() + body)
        await self.writer.drain()

    async def status(self) -> int:
        """Return the status of the response, 0 if the connection ends instead; `response_body` is the response body."""
        with suppress(OSError, asyncio.IncompleteReadError):
            async with asyncio.timeout(60):
                head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
                self.response_body = await self.reader.readexactly(int(head.split(b"content-length:")[1].split()[0]))
                return int(head.split()[1])
        return 0

    async def asks(self, body: bytes = b"?") -> int:
        """Send a request, and return the status of the response."""
        with suppress(OSError):
            await self.send(body)
        return await self.status()

    async def ends(self) -> bool:
        """Report whether the connection ends."""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(60):
                return not await self.reader.read(1)
        return self.reader.at_eof() or self.reader.exception() is not None


class ServedPort:
    """A port that is served, with its clients."""

    def __init__(self, served: TLSPort) -> None:
        self.front = served
        self._callers: list[PortClient] = []

    async def connect(self, origin: str = CALLER, *, plain: bool = False) -> PortClient:
        """Connect from an address; `plain` starts no TLS handshake."""
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        way = {} if plain else {"ssl": tls}
        made = PortClient(*await asyncio.open_connection("127.0.0.1", self.front.port, local_addr=(origin, 0), **way))
        self._callers.append(made)
        return made

    async def crowd(self, count: int, *, plain: bool = False) -> list[PortClient]:
        """Open so many connections from one address."""
        return [await self.connect(CROWD, plain=plain) for _ in range(count)]

    async def until(self, holds: Callable[[PortClients], bool]) -> None:
        """Wait until a condition on the connections holds."""
        async with asyncio.timeout(60):
            while not holds(self.front.clients):  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0.01)

    async def close(self) -> None:
        """Abort all connections."""
        for one in self._callers:
            one.writer.transport.abort()
            with suppress(OSError):
                await one.writer.wait_closed()


def held(visitors: PortClients) -> int:
    """Count the buffered bytes."""
    return sum(one.held for one in visitors)


@asynccontextmanager
async def port(bounds: ClientBounds = BOUNDS, answer: Callable[[bytes], bytes] = bytes) -> AsyncIterator[ServedPort]:
    """Serve a port that responds with the length of the request body; at the end no connection may be counted."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        """Return the response."""
        body = await made.body(request)
        return web.Response(status=413) if body is None else web.Response(text=str(len(answer(body))))

    made = TLSPort(net.listening("127.0.0.1", 0), handle, bounds)
    made.show(serving_tls(PAIR))
    served = ServedPort(made)
    try:
        yield served
    finally:
        await made.deafen()
        await made.retire(0.1)
        await served.close()
    await served.until(lambda visitors: not len(visitors))


async def flooded(*, plain: bool) -> None:
    """Open many connections from one address."""
    async with port() as made:
        before = await made.connect()
        assert await before.asks() == 200
        others = await made.crowd(50, plain=plain)
        after = await made.connect()
        assert (await before.asks(), await after.asks()) == (200, 200)
        assert await others[0].ends()
        assert len(made.front.clients) <= BOUNDS.connections


@pytest.mark.parametrize("plain", [False, True])
async def test_a_client_with_many_connections_displaces_its_own(plain: bool) -> None:  # noqa: FBT001
    """Clients that connected before and after are served, both for connections with and without a TLS handshake."""
    await flooded(plain=plain)


async def overfilled() -> None:
    """Send large parts of many bodies from one address."""
    async with port(BOUNDS._replace(patience=5.0)) as made:
        before = await made.connect()
        others = await made.crowd(12)
        for one in others:
            with suppress(OSError):
                await one.send(b"x" * 90_000, size=95_000)
        await made.until(lambda visitors: len(visitors) <= 5)
        assert held(made.front.clients) <= BOUNDS.content
        assert await before.asks(b"x" * 50_000) == 200
        assert await others[0].ends()


async def test_unfinished_bodies_are_bounded_together() -> None:
    """Each body is within its limit; connections of the address that sends most are dropped, the oldest first."""
    await overfilled()


def test_the_bounds_hold_on_the_engines_event_loop() -> None:
    """Uvloop has its own kind of connections."""
    for trial in (flooded(plain=False), flooded(plain=True), overfilled()):
        uvloop.run(trial)


async def test_an_incomplete_body_times_out() -> None:
    """Its bytes are not counted any longer."""
    async with port() as made:
        late = await made.connect()
        await late.send(b"x" * 10, size=20)
        assert await late.status() == 408
        assert held(made.front.clients) == 0


async def test_a_missing_handshake_times_out() -> None:
    """The connection is not counted any longer."""
    async with port() as made:
        silent = await made.connect(plain=True)
        await made.until(lambda visitors: len(visitors) == 1)
        assert await silent.ends()
        await made.until(lambda visitors: not len(visitors))


async def test_an_incomplete_head_times_out() -> None:
    """The time starts with the first byte of each head; an idle connection has no timeout."""
    async with port(BOUNDS._replace(patience=0.5)) as made:
        idle, silent = await made.connect(), await made.connect()
        assert await idle.asks() == 200
        for late in (await made.connect(), idle):
            late.writer.write(b"POST / HTTP/1.1\r\nHost: x\r\n")
            kept = await made.connect()
            assert await kept.asks() == 200
            assert await late.ends()
            assert await kept.asks() == 200
        assert await silent.asks() == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n" + b"A: %s\r\n" % (b"x" * 4000) * 9,
        b"GET / HTTP/1.1\r\n" + b"A: x\r\n" * 26,
        b"GET / HTTP/1.1\r\nA: %s\r\n" % (b"x" * 5000),
        b"GET /%s" % (b"x" * 5000),
    ],
)
async def test_a_head_that_is_too_large_ends_the_connection(sent: bytes) -> None:
    """Its total size, the number of headers, and the size of a header and of the first line are limited."""
    async with port(BOUNDS._replace(patience=1000.0)) as made:
        caller = await made.connect()
        caller.writer.write(sent)
        assert await caller.status() in (0, 400)
        assert await caller.ends()
        caller = await made.connect()
        await caller.send(b"?", "".join(f"X-{number}: {'x' * 1200}\r\n" for number in range(20)))
        assert await caller.status() == 200


async def test_a_client_that_pipelines_requests_is_dropped() -> None:
    """Each waiting request would keep its head in memory."""
    async with port() as made:
        caller = await made.connect()
        caller.writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
        assert await caller.ends()


@pytest.mark.parametrize(("size", "head"), [(100_001, ""), (10**12, ""), (None, "Transfer-Encoding: chunked\r\n")])
async def test_a_body_that_is_too_large_is_refused(size: int | None, head: str) -> None:
    """The Content-Length is checked before reading, otherwise the received bytes; the largest body is accepted."""
    async with port() as made:
        caller = await made.connect()
        body = b"" if size else b"1ffff\r\n" + b"x" * 0x1FFFF + b"\r\n0\r\n\r\n"
        await caller.send(body, head, size)
        assert await caller.status() == 413
        assert await (await made.connect()).asks(b"x" * 100_000) == 200


async def test_a_compressed_body_is_not_decompressed() -> None:
    """A few bytes could otherwise decompress to gigabytes."""
    async with port(answer=gzip.decompress) as made:
        caller = await made.connect()
        await caller.send(gzip.compress(b" " * 1_000_000), "Content-Encoding: gzip\r\n")
        assert (await caller.status(), caller.response_body) == (200, b"1000000")


async def test_broken_connections_are_not_logged(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A client could otherwise fill the log with broken bodies, broken heads, and bytes that are no HTTP."""
    async with port() as made:
        half = b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nx"
        for sent in (half, half[:9], b"\x00\xff\r\n\r\n", b"GET\r\n\r\n"):
            caller = await made.connect()
            caller.writer.write(sent)
            await caller.writer.drain()
            assert await (await made.connect()).asks() == 200
            caller.writer.transport.abort()
        plain = await made.connect(plain=True)
        plain.writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await plain.ends()
        assert await (await made.connect()).asks() == 200
    assert "".join(capsys.readouterr()) == ""
    assert caplog.text == ""


async def test_a_port_that_stops_listening_refuses_new_and_serves_open_connections() -> None:
    """Open connections get their response, and are closed afterwards."""
    async with port() as made:
        before, number = await made.connect(), made.front.port
        leaving = asyncio.ensure_future(made.front.deafen())
        await asyncio.sleep(0)
        with pytest.raises(OSError, match=r"."):
            await asyncio.open_connection("127.0.0.1", number)
        await leaving
        assert await before.asks() == 200
        await made.front.retire(0.1)
        assert await before.ends()
        await made.until(lambda visitors: not len(visitors))
        assert not made.front.is_used
