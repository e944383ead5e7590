"""Calls to one server over connections that are kept: one request and its whole answer at a time on each.

Half of what a mirrored pod costs is the way of two small requests through an HTTP client, so this path has little on
it: the parser that nginx-like servers use (llhttp), and a list of free connections. Nothing is sent twice, nothing is
followed or decompressed, and a connection that said anything out of turn is not used again.

An answer is counted as it comes, before anything is made of it: every byte of it, and those without content.

A burst opens a connection for each call under way. Those that nothing needs afterwards are closed soon: with many
clusters they would take more file descriptors than everything else together.
"""

import asyncio
import re
import socket
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import httptools

from tensile.errors import Unreachable
from tensile.kube.access import Access
from tensile.kube.bounds import CHUNKS, HEAD, OBJECT, REFUSAL, SPARSE, Account, TooLarge, mebibytes
from tensile.kube.dialing import connected

CONNECT_SECONDS = 10.0
IDLE_SECONDS = 20.0
"""Seconds after which a connection that nothing uses is closed. A probe each ten seconds keeps one open."""
_KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
_KEPT = (b"content-type", b"retry-after")
_BREAKS = re.compile(r"[\r\n\0]").search
_BLANKS = re.compile(r"[^\x21-\x7e]").search
_NO_CONTENT = f"an answer with more than {mebibytes(HEAD)} that are no content"


class Broken(ConnectionError):
    """The connection ended, or said what is no HTTP, before the answer was whole."""


class Answer(NamedTuple):
    """An answer: HTTP's status, the headers that are read here in lower case, and the body.

    Of an error's body it is the beginning.
    """

    status: int
    headers: Mapping[bytes, str]
    body: bytes


class Calls:
    """Connections to one server; made inside a running event loop, closed with `close`.

    `account` counts what all answers hold that have not ended. Raises ssl.SSLError, OSError and TimeoutError for a
    server that cannot be connected to, Broken, TooLarge, and Unreachable where the account is full. A connection that
    is free is closed after `idle` seconds.
    """

    def __init__(self, account: Account | None = None, idle: float = IDLE_SECONDS) -> None:
        self._account = account or Account()
        self._free: list[_Connection] = []
        self._all: set[_Connection] = set()
        self._closed = False
        self._idle = idle
        self._loop = asyncio.get_running_loop()
        self._pruning: asyncio.TimerHandle | None = None

    async def call(
        self, access: Access, method: str, target: str, headers: str, body: bytes, *, most: int = OBJECT
    ) -> Answer:
        """Send a request and give its answer; `headers` are as `header_lines` writes them.

        An answer of more than `most` bytes is TooLarge. Whoever cancels it, or lets it time out, ends its connection.
        """
        connection = self._take(access) or await self._connect(access)
        try:
            answer = await connection.call(_request(access, method, target, headers, body), most)
        except BaseException as error:
            connection.end()
            if isinstance(error, asyncio.CancelledError):
                self._distrust()
            raise
        if connection.is_usable and self._leads_to(connection, access) and not self._closed:
            self._keep(connection)
        else:
            connection.end()
        return answer

    def hang_up(self) -> None:
        """End every connection; what is under way fails."""
        for connection in tuple(self._all):
            connection.end()
        self._free.clear()

    async def close(self) -> None:
        """End every connection, and take no calls from now on."""
        self._closed = True
        self.hang_up()
        if self._pruning is not None:
            self._pruning.cancel()
        await asyncio.sleep(0)

    def _keep(self, connection: "_Connection") -> None:
        """Have a connection serve the next call, if that comes soon."""
        connection.free_since = self._loop.time()
        self._free.append(connection)
        if self._pruning is None:
            self._pruning = self._loop.call_later(self._idle, self._close_idle)

    def _close_idle(self) -> None:
        """End the connections that have been free for long, which are the first ones, and look again for the rest."""
        self._pruning, now = None, self._loop.time()
        idle = [one for one in self._free if now - one.free_since >= self._idle or not one.is_usable]
        for connection in idle:
            self._free.remove(connection)
            connection.end()
        if self._free:
            self._pruning = self._loop.call_at(self._free[0].free_since + self._idle, self._close_idle)

    def _distrust(self) -> None:
        """End the free connections: where one does not answer, each of the others may cost a time-out as well."""
        for connection in self._free:
            connection.end()
        self._free.clear()

    def _take(self, access: Access) -> "_Connection | None":
        """Take a free connection, the one used last first; those to another server or with other keys are ended."""
        while self._free:
            connection = self._free.pop()
            if connection.is_usable and self._leads_to(connection, access):
                return connection
            connection.end()
        return None

    def _leads_to(self, connection: "_Connection", access: Access) -> bool:
        return connection.way == _way(access)

    async def _connect(self, access: Access) -> "_Connection":
        if self._closed:
            raise Broken("closed")
        connection = _Connection(_way(access), self._all, self._account)
        tls, name = (access.tls, access.server_name) if access.is_encrypted else (None, None)
        async with asyncio.timeout(CONNECT_SECONDS):
            made = await connected(access.address, access.port)
            try:
                await self._loop.create_connection(lambda: connection, sock=made, ssl=tls, server_hostname=name)
            except BaseException:
                made.close()
                raise
        return connection


def _way(access: Access) -> tuple[str, int, str, ssl.SSLContext]:
    return access.address, access.port, access.server_name, access.tls


def keep_alive(made: socket.socket) -> None:
    """Have a socket find out within 30 s that the other side is gone, also when nothing is sent."""
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def header_lines(access: Access, headers: Mapping[str, str]) -> str:
    """Write headers out, that of the host with them; raises ValueError for a value that would begin another."""
    host = f"[{access.address}]" if ":" in access.address else access.address
    found = {"Host": f"{host}:{access.port}", **headers}
    if any(_BREAKS(name) or _BREAKS(value) for name, value in found.items()):
        raise ValueError("a header with a line break")
    return "".join(f"{name}: {value}\r\n" for name, value in found.items())


def _request(access: Access, method: str, target: str, headers: str, body: bytes) -> bytes:
    if _BLANKS(target):
        raise ValueError("a path with a blank")
    length = f"Content-Length: {len(body)}\r\n" if body or method != "GET" else ""
    return f"{method} {access.prefix}{target} HTTP/1.1\r\n{headers}{length}\r\n".encode("latin-1") + body


class _Connection(asyncio.Protocol):
    """One connection, and the parser's listener while an answer comes in."""

    def __init__(self, way: tuple[object, ...], among: set["_Connection"], account: Account) -> None:
        self.way = way
        self.is_usable = False
        self.free_since = 0.0
        self._among = among
        self._account = account
        self._transport: asyncio.Transport | None = None
        self._parser: Any = httptools.HttpResponseParser(self)
        self._awaited: asyncio.Future[Answer] | None = None
        self._headers: dict[bytes, str] = {}
        self._most = self._got = self._head = self._dry = 0
        self._refuses = False
        self._parts: list[bytes] = []

    async def call(self, request: bytes, most: int) -> Answer:
        """Send a request and wait for the whole answer, of so many bytes at most."""
        if self._transport is None or not self.is_usable:
            raise Broken("the connection is closed")
        self._most, self._dry = most + HEAD, 0
        self._awaited = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._awaited

    def end(self) -> None:
        """Close the connection without waiting for the other side."""
        self.is_usable = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take calls from now on."""
        self._transport = cast("asyncio.Transport", transport)
        self.is_usable = True
        self._among.add(self)
        keep_alive(transport.get_extra_info("socket"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what is awaited."""
        self._among.discard(self)
        self._fail(Broken(str(exc or "closed")))
        self._forget()

    def data_received(self, data: bytes) -> None:
        """Read on; what comes when nothing is awaited ends the connection."""
        if self._awaited is None or self._awaited.done():
            self.end()
            return
        try:
            self._read(data)
        except Unreachable as error:
            self._fail(error)
            self.end()
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(TooLarge(_NO_CONTENT) if self._head > HEAD else Broken(type(error).__name__))
            self.end()

    def on_message_begin(self) -> None:
        """Begin an answer."""
        self._headers, self._head, self._parts, self._refuses = {}, 0, [], False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep the headers that are read, and count all; what is raised here ends the parsing."""
        self._head += len(name) + len(value)
        if self._head > HEAD:
            raise TooLarge(_NO_CONTENT)
        known = name.lower()
        if known in _KEPT:
            self._headers[known] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Tell an error from what was asked for: of its body less is read."""
        self._refuses = self._parser.get_status_code() >= 300  # noqa: PLR2004 - HTTP's classes

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body."""
        self._parts.append(body)

    def on_message_complete(self) -> None:
        """Give the answer, unless it is one of those that come before it."""
        if self._parser.get_status_code() >= 200:  # noqa: PLR2004 - informational
            self.is_usable = self.is_usable and self._parser.should_keep_alive()
            self._answer()

    def _read(self, data: bytes) -> None:
        """Count and parse what came; raises Unreachable for what is too much."""
        self._got += len(data)
        self._account.take(len(data))
        if self._got > self._most and not self._refuses:
            raise TooLarge(f"an answer of more than {mebibytes(self._most - HEAD)}")
        count = len(self._parts)
        self._parser.feed_data(data)
        if self._awaited is None or self._awaited.done():
            return
        self._dry = 0 if len(self._parts) > count else self._dry + len(data)
        if self._dry > HEAD:
            raise TooLarge(_NO_CONTENT)
        if len(self._parts) > CHUNKS and self._got < SPARSE * len(self._parts):
            raise TooLarge(f"an answer in more than {CHUNKS} pieces of a few bytes")
        if self._refuses and self._got > REFUSAL:
            self._answer()
            self.end()

    def _answer(self) -> None:
        """Give what has come of the answer, and keep nothing of it; what nobody waits for ends the connection."""
        if self._awaited is None or self._awaited.done():
            self.is_usable = False
            return
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        answer = Answer(self._parser.get_status_code(), self._headers, body[:REFUSAL] if self._refuses else body)
        self._forget()
        self._awaited.set_result(answer)

    def _forget(self) -> None:
        """Keep nothing of an answer that is over."""
        self._account.give_back(self._got)
        self._got, self._parts = 0, []

    def _fail(self, error: Exception) -> None:
        self.is_usable = False
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_exception(error)
