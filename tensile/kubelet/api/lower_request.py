"""Requests to a lower apiserver on behalf of callers of the kubelet API: logs, exec, attach, port-forward.

Each request has a connection of its own and the lower's credential, and sends only what it is given. Redirects are not
followed. The size of what comes before a response, and of error bodies, is limited here, that of other bodies by their
readers. Connections are not opened in advance, which would save two milliseconds: such a connection could lead to a
cluster that has been replaced since.

Upgraded streams are spliced without being parsed. Before the lower's 101, nothing of the caller is passed on, and only
an error is returned (a tunnel that opened before the other side agreed was CVE-2018-1002105). After it, bytes are
copied both ways; SPDY or WebSocket is between kubectl and the container's kubelet.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from http import HTTPStatus

import h11

from tensile import __version__
from tensile.errors import ClusterError
from tensile.kube.cluster import Cluster, Endpoint
from tensile.kube.net import cancel_and_wait
from tensile.kubelet.api.connection import ConnectionLimits, TLSConnection, dial
from tensile.kubelet.api.http import PLAIN, ChunkDecoder, Exchange, ServerExchange, plain, while_present
from tensile.kubelet.api.requests import Headers, LowerRequest, answered
from tensile.kubelet.api.routes import HTTPError, from_lower

_ERROR_AT_MOST = 64 * 1024
_ANNOUNCED_AT_MOST = 20
"""Maximum number of informational responses before the real one; apiservers send none."""
_CHUNKED = ("transfer-encoding", "chunked")


class ActivityClock:
    """The time at which bytes last passed, in either direction."""

    def __init__(self) -> None:
        self.beat()

    def beat(self) -> None:
        """Record that bytes pass now."""
        self._last = asyncio.get_running_loop().time()

    async def still(self, seconds: float) -> None:
        """Wait until no bytes have passed for this long."""
        while (rest := self._last + seconds - asyncio.get_running_loop().time()) > 0:  # noqa: ASYNC110 - the clock
            await asyncio.sleep(rest)


class LowerExchange:
    """A request to a lower and its response; to be used within `aclosing`, which closes the connection at the end."""

    def __init__(self, cluster: Cluster, ask: LowerRequest, limits: ConnectionLimits) -> None:
        self._cluster = cluster
        self._ask = ask
        self._limits = limits
        self._dialogue: Exchange | None = None
        self._in_chunks = False

    async def aclose(self) -> None:
        """Close the connection, if there is one."""
        if self._dialogue is not None:
            self._dialogue.wire.abort()
            await self._dialogue.wire.lost.wait()

    def release(self) -> TLSConnection:
        """Return the connection after the head of the response."""
        assert self._dialogue is not None
        return self._dialogue.release()

    async def answer(self, wanted: int) -> Headers:
        """Send the request and return the headers of a response with the wanted status, else raise HTTPError."""
        try:
            async with asyncio.timeout(self._limits.answering):
                response = await self._exchange()
                headers = plain(response.headers)
                self._in_chunks = isinstance(response, h11.Response) and _CHUNKED in headers
                if response.status_code == wanted:
                    return headers
                body, ask = await self._body(), self._ask
                raise from_lower(self._cluster.name, ask.doing, response.status_code, body, of_kubelet=ask.of_kubelet)
        except ClusterError as error:
            raise HTTPError(
                HTTPStatus.BAD_GATEWAY, f"{self._cluster.name}: {self._ask.doing}: {error.title}"
            ) from error
        except TimeoutError as error:
            raise self._failed(HTTPStatus.GATEWAY_TIMEOUT, "no response in time") from error
        except h11.LocalProtocolError as error:
            raise self._failed(
                HTTPStatus.BAD_GATEWAY, "its address or credential contains invalid characters"
            ) from error
        except (OSError, h11.RemoteProtocolError) as error:
            raise self._failed(HTTPStatus.BAD_GATEWAY, str(error) or type(error).__name__) from error

    def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives; raise h11.RemoteProtocolError or OSError when it breaks off."""
        return self._unchunked() if self._in_chunks else self._framed()

    async def _unchunked(self) -> AsyncIterator[bytes]:
        chunks, wire = ChunkDecoder(), self.release()
        while not chunks.ended:
            data = await wire.read()
            if not data:
                raise h11.RemoteProtocolError("the connection was closed within the response body")
            if content := chunks.take(data):
                yield content

    async def _framed(self) -> AsyncIterator[bytes]:
        assert self._dialogue is not None
        while isinstance(event := await self._dialogue.next(), h11.Data):
            yield bytes(event.data)

    async def _exchange(self) -> h11.Response | h11.InformationalResponse:
        endpoint = self._cluster.endpoint()
        wire = await dial(endpoint, self._limits)
        self._dialogue = Exchange(wire, h11.Connection(h11.CLIENT, max_incomplete_event_size=_ERROR_AT_MOST))
        await self._dialogue.send(_head(endpoint, self._ask))
        await self._dialogue.send(h11.EndOfMessage())
        for _ in range(_ANNOUNCED_AT_MOST):
            event = await self._dialogue.next()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                raise h11.RemoteProtocolError("the connection was closed before a response")
            if event.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
                return event
        raise h11.RemoteProtocolError("it sends only informational responses")

    async def _body(self) -> bytes:
        """Return the beginning of an error's body, as far as it arrives."""
        body = b""
        async for piece in self.pieces():
            body += piece
            if len(body) > _ERROR_AT_MOST:
                break
        return body

    def _failed(self, status: HTTPStatus, why: str) -> HTTPError:
        return HTTPError(status, f"{self._cluster.name}: {self._ask.doing}: the cluster's apiserver: {why}")


def _head(endpoint: Endpoint, ask: LowerRequest) -> h11.Request:
    """Return the head of a request: host, user agent, the lower's credential and the headers of the request."""
    name = f"[{endpoint.address}]" if ":" in endpoint.address else endpoint.address
    own = [("host", f"{name}:{endpoint.port}"), ("user-agent", f"tensile/{__version__}"), *endpoint.headers.items()]
    target = f"{endpoint.prefix}{ask.path}" + (f"?{ask.query}" if ask.query else "")
    return h11.Request(method=ask.method, target=target, headers=[*own, *ask.headers])


async def tunnel(caller: ServerExchange, call: LowerExchange, limits: ConnectionLimits) -> None:
    """Carry an upgraded stream to its end; raise HTTPError when the lower does not agree to it."""
    async with aclosing(call):
        headers = await while_present(caller.wire, call.answer(HTTPStatus.SWITCHING_PROTOCOLS))
        await caller.switch(answered(headers))
        await splice(caller.release(), call.release(), limits)


async def splice(upper: TLSConnection, lower: TLSConnection, limits: ConnectionLimits) -> None:
    """Copy both ways until one side ends, then end the other within `leaving` seconds once it has received all.

    What the lower sent before its end reaches the caller, however slowly that reads. What the caller sent before it
    left is offered to the lower for half of `leaving`. A stream without traffic for `idle` seconds ends too. A lower
    that reads nothing keeps no connection open, since its caller is gone.
    """
    pulse = ActivityClock()
    down = asyncio.create_task(_copy(upper, lower, pulse))
    up = asyncio.create_task(_copy(lower, upper, pulse))
    over = {asyncio.create_task(upper.hung_up()), asyncio.create_task(pulse.still(limits.idle))}
    tasks = {down, up, *over}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if _failed(down):
            await asyncio.wait({up, *over}, return_when=asyncio.FIRST_COMPLETED)
        if not up.done() or _failed(up):
            await asyncio.wait({down}, timeout=limits.leaving / 2)
    finally:
        await cancel_and_wait(*tasks)
    await asyncio.gather(upper.close(), _close(lower, limits.leaving))


async def _close(wire: TLSConnection, seconds: float) -> None:
    """Close a connection within so many seconds, whatever its peer does."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await wire.close()
    wire.abort()


def _failed(task: asyncio.Task[None]) -> bool:
    return task.done() and task.exception() is not None


async def _copy(source: TLSConnection, sink: TLSConnection, pulse: ActivityClock) -> None:
    while data := await source.read():
        pulse.beat()
        await sink.write(data)


async def follow(caller: ServerExchange, call: LowerExchange) -> None:
    """Answer with the lower's log; raise HTTPError if there is none, an error of the connection if it breaks off."""
    async with aclosing(call):
        await while_present(caller.wire, _relay(caller, call), dropping=True)


async def _relay(caller: ServerExchange, call: LowerExchange) -> None:
    await call.answer(HTTPStatus.OK)
    await caller.begin(HTTPStatus.OK, (("content-type", PLAIN), ("transfer-encoding", "chunked")))
    async for piece in call.pieces():
        await caller.piece(piece)
    await caller.end()
