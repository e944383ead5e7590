"""A port as those use it who mean it no good: over real TLS on loopback, from addresses of their own."""

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


class Caller:
    """One connection to a front."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.said = b""

    async def send(self, body: bytes = b"", head: str = "", size: int | None = None) -> None:
        """Send a request, or what is given of it; `size` is how many bytes are said to come."""
        length = f"Content-Length: {len(body) if size is None else size}\r\n" if "chunked" not in head else ""
        self.writer.write(f"POST / HTTP/1.1\r\nHost: x\r\n{length}{head}\r\n".encode() + body)
        await self.writer.drain()

    async def status(self) -> int:
        """Return the status of the answer, 0 where the connection ends instead; `said` is what it says."""
        with suppress(OSError, asyncio.IncompleteReadError):
            async with asyncio.timeout(60):
                head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
                self.said = await self.reader.readexactly(int(head.split(b"content-length:")[1].split()[0]))
                return int(head.split()[1])
        return 0

    async def asks(self, body: bytes = b"?") -> int:
        """Ask, and give the status of the answer."""
        with suppress(OSError):
            await self.send(body)
        return await self.status()

    async def ends(self) -> bool:
        """Report whether the connection ends."""
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(60):
                return not await self.reader.read(1)
        return self.reader.at_eof() or self.reader.exception() is not None


class Port:
    """A front that is served, and who calls it."""

    def __init__(self, served: TLSPort) -> None:
        self.front = served
        self._callers: list[Caller] = []

    async def come(self, origin: str = CALLER, *, plain: bool = False) -> Caller:
        """Connect from an address; `plain` begins no handshake."""
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        way = {} if plain else {"ssl": tls}
        made = Caller(*await asyncio.open_connection("127.0.0.1", self.front.port, local_addr=(origin, 0), **way))
        self._callers.append(made)
        return made

    async def crowd(self, count: int, *, plain: bool = False) -> list[Caller]:
        """Let so many connections come from one address."""
        return [await self.come(CROWD, plain=plain) for _ in range(count)]

    async def until(self, holds: Callable[[PortClients], bool]) -> None:
        """Wait for something to hold of who is there."""
        async with asyncio.timeout(60):
            while not holds(self.front.visitors):  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)

    async def close(self) -> None:
        """Let all callers go."""
        for one in self._callers:
            one.writer.transport.abort()
            with suppress(OSError):
                await one.writer.wait_closed()


def held(visitors: PortClients) -> int:
    """Count the bytes that are kept."""
    return sum(one.held for one in visitors)


@asynccontextmanager
async def port(bounds: ClientBounds = BOUNDS, answer: Callable[[bytes], bytes] = bytes) -> AsyncIterator[Port]:
    """Serve a front that answers how much it was asked; in the end nobody may be counted."""

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        """Answer."""
        body = await made.body(request)
        return web.Response(status=413) if body is None else web.Response(text=str(len(answer(body))))

    made = TLSPort(net.listening("127.0.0.1", 0), handle, bounds)
    made.show(serving_tls(PAIR))
    served = Port(made)
    try:
        yield served
    finally:
        await made.deafen()
        await made.retire(0.1)
        await served.close()
    await served.until(lambda visitors: not len(visitors))


async def flooded(*, plain: bool) -> None:
    """Let somebody open many connections."""
    async with port() as made:
        before = await made.come()
        assert await before.asks() == 200
        others = await made.crowd(50, plain=plain)
        after = await made.come()
        assert (await before.asks(), await after.asks()) == (200, 200)
        assert await others[0].ends()
        assert len(made.front.visitors) <= BOUNDS.connections


@pytest.mark.parametrize("plain", [False, True])
async def test_whoever_opens_many_connections_displaces_its_own(plain: bool) -> None:  # noqa: FBT001
    """With a handshake and without: who came before is served, and so is who comes after."""
    await flooded(plain=plain)


async def overfilled() -> None:
    """Let somebody send much of many bodies."""
    async with port(BOUNDS._replace(patience=5.0)) as made:
        before = await made.come()
        others = await made.crowd(12)
        for one in others:
            with suppress(OSError):
                await one.send(b"x" * 90_000, size=95_000)
        await made.until(lambda visitors: len(visitors) <= 5)
        assert held(made.front.visitors) <= BOUNDS.content
        assert await before.asks(b"x" * 50_000) == 200
        assert await others[0].ends()


async def test_bodies_that_begin_to_come_are_bounded_together() -> None:
    """Each is small enough: those of the address that sends most go, the oldest first."""
    await overfilled()


def test_so_it_is_on_the_engines_own_event_loop() -> None:
    """Which has connections of its own kind."""
    for trial in (flooded(plain=False), flooded(plain=True), overfilled()):
        uvloop.run(trial)


async def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    """It has its time, and what came of it is let go of."""
    async with port() as made:
        late = await made.come()
        await late.send(b"x" * 10, size=20)
        assert await late.status() == 408
        assert held(made.front.visitors) == 0


async def test_a_handshake_that_does_not_come_is_not_waited_for() -> None:
    """Nor counted any longer than it has time."""
    async with port() as made:
        silent = await made.come(plain=True)
        await made.until(lambda visitors: len(visitors) == 1)
        assert await silent.ends()
        await made.until(lambda visitors: not len(visitors))


async def test_a_head_that_does_not_come_is_not_waited_for() -> None:
    """It has its time from its first byte, the first of a connection and each later one; who is idle has no end."""
    async with port(BOUNDS._replace(patience=0.5)) as made:
        idle, silent = await made.come(), await made.come()
        assert await idle.asks() == 200
        for late in (await made.come(), idle):
            late.writer.write(b"POST / HTTP/1.1\r\nHost: x\r\n")
            kept = await made.come()
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
    """By all its bytes, the number of its headers, the bytes of one and of the first line; long before its time."""
    async with port(BOUNDS._replace(patience=1000.0)) as made:
        caller = await made.come()
        caller.writer.write(sent)
        assert await caller.status() in (0, 400)
        assert await caller.ends()
        caller = await made.come()
        await caller.send(b"?", "".join(f"X-{number}: {'x' * 1200}\r\n" for number in range(20)))
        assert await caller.status() == 200


async def test_who_sends_requests_ahead_is_dropped() -> None:
    """Each that waits would keep its head in memory."""
    async with port() as made:
        caller = await made.come()
        caller.writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
        assert await caller.ends()


@pytest.mark.parametrize(("size", "head"), [(100_001, ""), (10**12, ""), (None, "Transfer-Encoding: chunked\r\n")])
async def test_a_body_that_is_too_large_is_refused(size: int | None, head: str) -> None:
    """By what it says it is, before any of it is read, or by what has come; the largest is read."""
    async with port() as made:
        caller = await made.come()
        body = b"" if size else b"1ffff\r\n" + b"x" * 0x1FFFF + b"\r\n0\r\n\r\n"
        await caller.send(body, head, size)
        assert await caller.status() == 413
        assert await (await made.come()).asks(b"x" * 100_000) == 200


async def test_what_is_packed_is_taken_as_it_is() -> None:
    """A few bytes that unpack to gigabytes are a few bytes."""
    async with port(answer=gzip.decompress) as made:
        caller = await made.come()
        await caller.send(gzip.compress(b" " * 1_000_000), "Content-Encoding: gzip\r\n")
        assert (await caller.status(), caller.said) == (200, b"1000000")


async def test_connections_that_break_off_are_nobodys_news(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Neither in a body, nor in a head, nor with what is no HTTP: anybody could fill a log with them."""
    async with port() as made:
        half = b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nx"
        for sent in (half, half[:9], b"\x00\xff\r\n\r\n", b"GET\r\n\r\n"):
            caller = await made.come()
            caller.writer.write(sent)
            await caller.writer.drain()
            assert await (await made.come()).asks() == 200
            caller.writer.transport.abort()
        plain = await made.come(plain=True)
        plain.writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await plain.ends()
        assert await (await made.come()).asks() == 200
    assert "".join(capsys.readouterr()) == ""
    assert caplog.text == ""


async def test_a_front_that_is_deaf_refuses_at_once_and_answers_who_is_there() -> None:
    """Those that are there have their answer, and then their end."""
    async with port() as made:
        before, number = await made.come(), made.front.port
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
