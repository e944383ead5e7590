"""A TLS proxy in front of an apiserver: the program under test uses it, and receives the faults that a test defines.

The program is unchanged and unaware of the proxy: its kubeconfig contains another address. Every request is read
completely, passed to a `Director`, and then passed on, or not; every watch is a `Stream` that a test can control.
Streams that are upgraded (exec, port-forward) are not supported.
"""

import asyncio
import socket
import struct
import time
import weakref
from collections.abc import Sequence
from contextlib import AsyncExitStack
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

import aiohttp
from aiohttp import web
from yarl import URL

from bench.kit.faultproxy.faults import Delayed, Dropped, Fault, Hung, Lost, Passed, Refused, Torn
from bench.kit.faultproxy.journal import Journal, Write
from bench.kit.faultproxy.requests import ProxiedRequest, parse_request
from bench.kit.faultproxy.tls import TLSContexts, User, user_of
from bench.kit.faultproxy.watch_streams import Event, Stream, Tamper, expired_event, unchanged
from tensile.sandbox.state import LOOPBACK

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

_JSON = "application/json"
_HOP = frozenset({"host", "connection", "content-length", "transfer-encoding", "accept-encoding", "te", "upgrade"})
_LINE = 1 << 24
_RESET = struct.pack("ii", 1, 0)


class Director(Protocol):
    """Decides the faults of requests, and is notified of their progress."""

    async def fault_for(self, request: ProxiedRequest) -> Fault:
        """Return the fault for a request that has just arrived; the client waits meanwhile."""
        ...

    async def on_executed(self, request: ProxiedRequest, status: int) -> None:
        """Receive the status of the apiserver's answer, before the client receives it."""
        ...

    async def on_responded(self, request: ProxiedRequest, status: int) -> None:
        """Receive the status of the answer that was sent to the client."""
        ...


class PassThrough:
    """A director that lets all requests pass."""

    async def fault_for(self, _request: ProxiedRequest) -> Fault:
        """Let the request pass."""
        return Passed()

    async def on_executed(self, _request: ProxiedRequest, _status: int) -> None:
        """Do nothing."""

    async def on_responded(self, _request: ProxiedRequest, _status: int) -> None:
        """Do nothing."""


class _Answer(NamedTuple):
    """An apiserver's answer."""

    status: int
    headers: dict[str, str]
    body: bytes


class Proxy:
    """A proxy in front of the apiserver at `server`; inside `async with` it listens at `url`.

    `pki` is the cluster's directory of keys. `director` and `tamper` may be replaced at any time; several proxies may
    share a director and a journal. `streams` are the watches that are open now.
    """

    url: str

    def __init__(self, cluster: str, server: str, pki: Path, *, journal: Journal | None = None) -> None:
        self.cluster = cluster
        self.director: Director = PassThrough()
        self.journal = journal if journal is not None else Journal()
        self.tamper: Tamper = unchanged
        self.streams: list[Stream] = []
        self.requests = 0
        self._server = server
        self._pki = pki
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._half_open: weakref.WeakSet[Any] = weakref.WeakSet()
        self._sessions: dict[User, aiohttp.ClientSession] = {}
        self._open = AsyncExitStack()

    async def __aenter__(self) -> "Self":
        self._contexts = TLSContexts(self._pki, Path(self._open.enter_context(TemporaryDirectory())))
        self._front = web.Server(self._serve, handler_cancellation=True, access_log=None, keepalive_timeout=3600)
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self._front, LOOPBACK, 0, ssl=self._contexts.server_context())
        self.url = f"https://{LOOPBACK}:{self._listener.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: "TracebackType | None"
    ) -> None:
        self._listener.close()
        self.reset_connections()
        await self._front.shutdown(0.0)
        for session in self._sessions.values():
            await session.close()
        await self._open.aclose()

    # The whole cluster.

    def freeze(self) -> None:
        """Hang as a stopped apiserver does: connections are accepted, and nothing is sent on them until `thaw`."""
        self._thawed.clear()

    def thaw(self) -> None:
        """Continue; requests that arrived in the meantime are carried out."""
        self._thawed.set()

    def leave_half_open(self) -> None:
        """Leave every open connection half open: no data is ever sent on it again, and it is not closed."""
        for connection in self._front.connections:
            if connection.transport is not None:
                self._half_open.add(connection.transport)
        for stream in self.streams:
            stream.end("silent")

    def reset_connections(self) -> None:
        """Reset every connection."""
        for connection in self._front.connections:
            if connection.transport is not None:
                _reset(connection.transport)

    # One request.

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request; if its client has disconnected, end it as if the proxy had reset the connection."""
        try:
            return await self._served(request)
        except ConnectionError:
            await _reset_request(request)

    async def _served(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests += 1
        await self._wait_if_hanging(request)
        if "Upgrade" in request.headers:
            return web.Response(status=HTTPStatus.NOT_IMPLEMENTED)
        body = await request.content.read()
        user = user_of(request.get_extra_info("peercert"))
        agent = request.headers.get("User-Agent", "")
        proxied = parse_request(self.cluster, request.method, request.raw_path, body, user=user.name, agent=agent)
        if proxied.verb == "watch":
            return await self._follow(request, proxied, user)
        return await self._call(request, proxied, user, body)

    async def _call(
        self, request: web.BaseRequest, proxied: ProxiedRequest, user: User, body: bytes
    ) -> web.StreamResponse:
        director = self.director
        fault = await director.fault_for(proxied)
        write = self.journal.add(proxied, fault, time.monotonic()) if proxied.is_write else None
        match fault:
            case Dropped():
                await _reset_request(request)
            case Hung():
                await asyncio.Event().wait()
            case Refused():
                return await self._answer(request, director, proxied, write, _refusal(fault))
            case Delayed(seconds):
                await asyncio.sleep(seconds)
        answer = await self._call_apiserver(request, user, body)
        if write is not None:
            write.status = answer.status
        await director.on_executed(proxied, answer.status)
        await self._wait_if_hanging(request)
        if isinstance(fault, Lost):
            await _reset_request(request)
        if isinstance(fault, Torn):
            await _send_half(request, answer)
        return await self._answer(request, director, proxied, write, answer)

    async def _answer(
        self,
        request: web.BaseRequest,
        director: Director,
        proxied: ProxiedRequest,
        write: Write | None,
        answer: _Answer,
    ) -> web.StreamResponse:
        """Send an answer to the client, and notify the director."""
        response = web.Response(status=answer.status, body=answer.body, headers=answer.headers)
        await response.prepare(request)
        await response.write_eof()
        if write is not None:
            write.is_answered = True
        await director.on_responded(proxied, answer.status)
        return response

    async def _call_apiserver(self, request: web.BaseRequest, user: User, body: bytes) -> _Answer:
        """Call the apiserver; if it is unreachable, the client's connection is reset, as if there were no proxy."""
        session, url, headers = self._upstream(request, user)
        try:
            async with session.request(request.method, url, data=body or None, headers=headers) as answer:
                return _Answer(answer.status, _response_headers(answer.headers), await answer.read())
        except (aiohttp.ClientError, OSError):
            await _reset_request(request)

    async def _follow(self, request: web.BaseRequest, proxied: ProxiedRequest, user: User) -> web.StreamResponse:
        """Carry a watch."""
        director = self.director
        fault = await director.fault_for(proxied)
        if isinstance(fault, Refused):
            return await self._answer(request, director, proxied, None, _refusal(fault))
        session, url, headers = self._upstream(request, user)
        stream = Stream(proxied)
        self.streams.append(stream)
        try:
            async with session.get(url, headers=headers) as answer:
                response = web.StreamResponse(status=answer.status, headers=_response_headers(answer.headers))
                await response.prepare(request)
                await self._forward_watch(request, response, stream, answer)
                return response
        except (aiohttp.ClientError, OSError):
            await _reset_request(request)
        finally:
            self.streams.remove(stream)

    async def _forward_watch(
        self, request: web.BaseRequest, response: web.StreamResponse, stream: Stream, answer: aiohttp.ClientResponse
    ) -> None:
        async def send(line: bytes) -> None:
            """Pass a line on as soon as the cluster is not frozen."""
            await self._thawed.wait()
            await response.write(line)

        end = await stream.forward(answer.content, self._tampered, send)
        match end:
            case "silent":
                await asyncio.Event().wait()
            case "reset":
                await _reset_request(request)
            case "expired":
                await response.write(expired_event())
        await response.write_eof()

    def _tampered(self, proxied: ProxiedRequest, event: Event) -> Sequence[bytes]:
        """Apply the current `tamper` to an event."""
        return self.tamper(proxied, event)

    def _upstream(self, request: web.BaseRequest, user: User) -> tuple[aiohttp.ClientSession, URL, dict[str, str]]:
        """Return the session to the apiserver for a user, and the URL and the headers of the request."""
        if user not in self._sessions:
            self._sessions[user] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=self._contexts.client_context(user), limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
                auto_decompress=False,
                skip_auto_headers=("Accept-Encoding",),
                read_bufsize=_LINE,
            )
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        return self._sessions[user], URL(self._server + request.raw_path, encoded=True), headers

    async def _wait_if_hanging(self, request: web.BaseRequest) -> None:
        """Wait while the cluster hangs, and indefinitely if the connection is half open; otherwise return."""
        await self._thawed.wait()
        if request.transport in self._half_open:
            await asyncio.Event().wait()


def _response_headers(headers: Any) -> dict[str, str]:
    found = {"Content-Type": headers.get("Content-Type", _JSON)}
    return found | ({"Retry-After": headers["Retry-After"]} if "Retry-After" in headers else {})


def _refusal(fault: Refused) -> _Answer:
    headers = {"Content-Type": _JSON} | ({"Retry-After": str(fault.retry_after)} if fault.retry_after else {})
    return _Answer(fault.status, headers, fault.body())


def _reset(transport: asyncio.BaseTransport) -> None:
    """Close a connection with a reset, which the peer, unlike a regular close, cannot mistake for the end of a body."""
    made = transport.get_extra_info("socket")
    if made is not None:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()  # type: ignore[attr-defined]


async def _reset_request(request: web.BaseRequest) -> NoReturn:
    """Reset a request's connection, which ends the request."""
    if request.transport is not None:
        _reset(request.transport)
    await asyncio.Event().wait()
    raise AssertionError


async def _send_half(request: web.BaseRequest, answer: _Answer) -> NoReturn:
    """Send half of an answer, and reset the connection."""
    response = web.StreamResponse(status=answer.status, headers=answer.headers)
    response.enable_chunked_encoding()
    await response.prepare(request)
    await response.write(answer.body[: len(answer.body) // 2])
    await _reset_request(request)
