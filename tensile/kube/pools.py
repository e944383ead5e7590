"""Requests to one server through the `kubernetes` package: its Configuration, ApiClient and REST client.

Requests with a complete response and streams have separate REST clients. Requests use `tensile.kube.wire`, streams use
the package's transport, which is aiohttp. Features that aiohttp enables by default and an engine must not use are off:
proxies and passwords from the environment, redirects, cookies, decompression.

Bodies are bytes. No write is sent twice: if a connection breaks, the caller decides.
"""

import asyncio
import re
import socket
import ssl
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import lru_cache, partial
from typing import Any, Protocol, cast

from yarl import URL

from tensile.kube.aio import (
    ApiClient,
    BoundedConnector,
    Configuration,
    RESTClientObject,
    RESTResponse,
    aiohttp,
    without_authorities,
)
from tensile.kube.credentials import Access
from tensile.kube.dial import Resolver
from tensile.kube.limits import HEAD, ResponseBudget
from tensile.kube.net import keep_alive
from tensile.kube.wire import CONNECT_SECONDS, ConnectionRESTClient, HTTPAnswer, KeepAlive, ProtocolError, RequestLimits

_STREAM_BUFFER = 1 << 20
"""The most bytes of a stream that are buffered."""
_TURNS = 20
_BLANKS = re.compile(r"[^\x21-\x7e]").search

_SESSION: dict[str, Any] = {
    "trust_env": False,
    "auto_decompress": False,
    "skip_auto_headers": ("Accept-Encoding",),
    "read_bufsize": _STREAM_BUFFER,
    "max_line_size": 1 << 16,
    "max_field_size": 1 << 16,
    "max_headers": HEAD,
}
"""The options of aiohttp's session."""
_Server = tuple[str, str, ssl.SSLContext]


class _Client(Protocol):
    """The interface of a REST client besides requests."""

    @property
    def left(self) -> int:
        """The number of connections that are open."""
        ...

    def hang_up(self) -> None:
        """End every connection without waiting for the other side. Requests in progress fail."""
        ...


class _Streaming(RESTClientObject):  # type: ignore[misc]  # the package is not typed
    """The package's REST client on aiohttp, which returns an answer unread."""

    pool_manager: aiohttp.ClientSession | None

    def __init__(self, configuration: Configuration, access: Access, keep: KeepAlive) -> None:
        super().__init__(configuration)
        configuration.client_session_kwargs = {**_SESSION, "cookie_jar": aiohttp.DummyCookieJar()}
        self.ssl_context = access.tls
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._keep = keep

    @property
    def left(self) -> int:
        """The number of connections that are open."""
        return sum(sock.fileno() >= 0 for sock in self._sockets)

    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        post_params: object = None,  # noqa: ARG002 - the package's
        _request_timeout: aiohttp.ClientTimeout | None = None,
    ) -> RESTResponse:
        if self.pool_manager is None:
            self.pool_manager = self._create_pool_manager()
        reply = await self.pool_manager.request(
            method,
            URL(url, encoded=True),
            headers=headers,
            data=body,
            timeout=_request_timeout,
            server_hostname=self.configuration.tls_server_name,
            allow_redirects=False,
        )
        return RESTResponse(reply)

    def hang_up(self) -> None:
        """End every connection without waiting for the other side."""
        for sock in tuple(self._sockets):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    async def close(self) -> None:
        """End every connection without waiting for a frozen server."""
        await super().close()
        self.hang_up()

    def _create_connector(self) -> BoundedConnector:
        return BoundedConnector(
            self._keep.verify_certificate,
            limit=0,
            ssl=self.ssl_context,
            resolver=Resolver(),
            socket_factory=self._socket,
            keepalive_timeout=self._keep.idle,
        )

    def _socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        """Create a socket and store it for closing."""
        family, socket_type, protocol, _, _ = address
        sock = socket.socket(family=family, type=socket_type, proto=protocol)
        keep_alive(sock, idle=15, interval=5)
        self._sockets.add(sock)
        return sock


class _Slot:
    """The package's ApiClient for one server and credential, with the number of its requests in progress.

    A retired slot takes no new requests, and is closed with its last one.
    """

    def __init__(self, access: Access, make: "MakeClient") -> None:
        self.server = _server_of(access)
        self.requests = 0
        self.is_retired = False
        configuration = Configuration(
            host=access.url,
            tls_server_name=access.server_name if access.is_encrypted else None,
        )
        with without_authorities():  # the TLS context of the access replaces those of the package
            self.api = ApiClient(configuration)
            self.api.rest_client = make(configuration, access)

    @property
    def client(self) -> _Client:
        """The interface to end its connections."""
        return cast("_Client", self.api.rest_client)


MakeClient = Callable[[Configuration, Access], RESTClientObject]
"""Makes a REST client for the server of an access."""


class _Pool:
    """Connections to one server. Create it in a running event loop, close it with `close`.

    They belong to a server and a credential. Another access gets new ones, and the old ones end with their last
    request.
    """

    def __init__(self, make: MakeClient) -> None:
        self._make = make
        self._slots: set[_Slot] = set()
        """The slots that are not closed yet. At most one is not retired."""
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def hang_up(self) -> None:
        """End every connection. Requests in progress fail."""
        for slot in tuple(self._slots):
            self._retire(slot)
            slot.client.hang_up()

    async def close(self) -> None:
        """End every connection and refuse new requests. A frozen server is not waited for."""
        self._is_closed = True
        clients = [slot.client for slot in self._slots]
        self.hang_up()
        for slot in tuple(self._slots):
            self._end(slot)
        await asyncio.gather(*self._closing, return_exceptions=True)
        for _ in range(_TURNS):
            if not any(client.left for client in clients):
                return
            await asyncio.sleep(0)

    @contextmanager
    def _counted(self, access: Access, target: str) -> Iterator[ApiClient]:
        """Count a request to `target` while the block runs. Return the ApiClient that sends it."""
        if _BLANKS(target):
            raise ValueError("the path contains a space, a control character or a character outside of ASCII")
        slot = self._slot(access)
        slot.requests += 1
        try:
            yield slot.api
        except (asyncio.CancelledError, TimeoutError):
            self._retire(slot)  # after one time-out, each free connection may cost another
            raise
        finally:
            slot.requests -= 1
            self._close_if_done(slot)

    def _slot(self, access: Access) -> _Slot:
        """Return the slot for this server and credential."""
        if self._is_closed:
            raise ProtocolError("closed")
        server = _server_of(access)
        found = next((one for one in self._slots if one.server == server and not one.is_retired), None)
        if found is None:
            for other in tuple(self._slots):
                self._retire(other)
            found = _Slot(access, self._make)
            self._slots.add(found)
        return found

    def _retire(self, slot: _Slot) -> None:
        slot.is_retired = True
        self._close_if_done(slot)

    def _close_if_done(self, slot: _Slot) -> None:
        if slot.is_retired and not slot.requests and slot in self._slots:
            self._end(slot)

    def _end(self, slot: _Slot) -> None:
        """Close a slot in a task of its own."""
        self._slots.discard(slot)
        task = asyncio.get_running_loop().create_task(slot.api.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class RequestPool(_Pool):
    """Connections for requests with a complete response. `account` counts the bytes of all incomplete responses."""

    def __init__(self, account: ResponseBudget | None = None, keep: KeepAlive | None = None) -> None:
        super().__init__(partial(ConnectionRESTClient, account=account or ResponseBudget(), keep=keep or KeepAlive()))

    async def call(
        self,
        access: Access,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        limits: RequestLimits | None = None,
    ) -> HTTPAnswer:
        """Send a request and return its complete response. Raises what `ConnectionRESTClient.request` does."""
        with self._counted(access, target) as api:
            return cast(
                "HTTPAnswer", await api.call_api(method, access.url + target, headers, body, _request_timeout=limits)
            )


class StreamPool(_Pool):
    """Connections for responses that are read as they arrive. Raises what aiohttp raises, and UnverifiedServer."""

    def __init__(self, keep: KeepAlive | None = None) -> None:
        super().__init__(partial(_Streaming, keep=keep or KeepAlive()))

    @asynccontextmanager
    async def opened(
        self, access: Access, target: str, headers: Mapping[str, str], *, seconds: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Request `target`, and return the response to read in the block, for at most `seconds` in total."""
        with self._counted(access, target) as api:
            timeout = _time_out(seconds)
            answer = await api.call_api("GET", access.url + target, headers, _request_timeout=timeout)
            async with answer.response as reply:
                yield reply


def _server_of(access: Access) -> _Server:
    return access.url, access.server_name, access.tls


@lru_cache(maxsize=256)
def _time_out(seconds: float) -> aiohttp.ClientTimeout:
    """Return the time-outs of a stream."""
    return aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
