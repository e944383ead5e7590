"""Crowds of clients at a port: connections from loopback addresses, each of a kind that keeps a server waiting."""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import cast

from kubelet_lab import request


def _hello() -> bytes:
    """Return the first bytes of a TLS handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


BEFORE_TLS = {"idle": b"", "half a handshake": _hello()[:100], "no TLS": request("GET /healthz") * 20}
BEHIND_TLS = {
    "silent after TLS": b"",
    "a slow head": b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: ",
    "a slow body": request("POST /exec/a/b/c", "Content-Length: 100000") + b"b",
    "garbage": os.urandom(100_000),
    "requests in a row": request("GET /healthz") * 2000,
    "an unknown token": request("GET /healthz", "Authorization: Bearer a.b.c"),
    "one that stays": request("GET /healthz", "Connection: keep-alive"),
}


def anonymous_context() -> ssl.SSLContext:
    """Make the TLS context of a client that presents no certificate and verifies none."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    return tls


class _Silent(asyncio.Protocol):
    """A connection that sends some bytes once it is established, and reads nothing by itself."""

    def __init__(self, word: bytes) -> None:
        self._word = word
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the bytes of this connection."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(self._word)


@asynccontextmanager
async def crowd(port: int, kind: str, count: int, hosts: Sequence[str]) -> AsyncIterator[Callable[[], int]]:
    """Open so many connections of a kind from some addresses in turn; yield a function that counts the open ones.

    It yields when all connections are established or refused, or after a second, even if TLS handshakes have not
    finished.
    """
    word = BEFORE_TLS.get(kind) or BEHIND_TLS.get(kind, b"")
    tls = anonymous_context() if kind in BEHIND_TLS else None
    made = [_Silent(word) for _ in range(count)]
    loop = asyncio.get_running_loop()

    async def come(one: _Silent, host: str) -> None:
        """Open one connection of the crowd."""
        with suppress(OSError):
            plain = socket.socket()
            plain.setblocking(False)
            plain.bind((host, 0))
            await loop.sock_connect(plain, ("127.0.0.1", port))
            await loop.create_connection(lambda: one, sock=plain, ssl=tls, server_hostname="localhost" if tls else None)

    coming = [asyncio.create_task(come(one, hosts[n % len(hosts)])) for n, one in enumerate(made)]
    try:
        await asyncio.wait(coming, timeout=1.0)
        yield lambda: sum(one.transport is not None and not one.transport.is_closing() for one in made)
    finally:
        for task in coming:
            task.cancel()
        await asyncio.gather(*coming, return_exceptions=True)
        for one in made:
            if one.transport is not None:
                one.transport.abort()
        await asyncio.sleep(0)
