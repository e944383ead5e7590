"""One request of our own to a lower apiserver, on a connection of its own, with the lower's credential.

It says no more than what it is given: nothing of a caller's request is here. An upgrade counts as made only when the
lower said 101; redirects are not followed. What comes before an answer, and in place of one, has a bound; content has
that of whoever reads it. No connection is made before it is asked for, though that would have a first
byte come two milliseconds sooner: one that was kept could lead to a cluster that another has taken the place of since.
"""

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus
from types import TracebackType
from typing import Self

import h11

from tensile import __version__
from tensile.cluster import Cluster, Endpoint
from tensile.errors import ClusterError
from tensile.kubelet.api.asks import Ask
from tensile.kubelet.api.chunks import Chunks
from tensile.kubelet.api.dialogue import Dialogue, plain
from tensile.kubelet.api.refusal import Refused, from_lower
from tensile.kubelet.api.upgrades import Headers
from tensile.kubelet.api.wire import Limits, Wire, dial

_ERROR_AT_MOST = 64 * 1024
_ANNOUNCED_AT_MOST = 20
"""Answers that only announce another; apiservers send none."""
_CHUNKED = ("transfer-encoding", "chunked")


class LowerCall:
    """A request to a lower and its answer, as a context: whatever becomes of it, the connection ends with it."""

    def __init__(self, cluster: Cluster, ask: Ask, limits: Limits) -> None:
        self._cluster = cluster
        self._ask = ask
        self._limits = limits
        self._dialogue: Dialogue | None = None
        self._in_chunks = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._dialogue is not None:
            self._dialogue.wire.abort()
            await self._dialogue.wire.lost.wait()

    @property
    def wire(self) -> Wire:
        """The connection, once there has been an answer."""
        assert self._dialogue is not None
        return self._dialogue.wire

    def early(self) -> bytes:
        """Give the bytes that came with the head: the first of a stream, or of a body."""
        assert self._dialogue is not None
        return self._dialogue.early()

    async def answer(self, wanted: int) -> Headers:
        """Ask, and give the headers of the answer when its status is the wanted one; any other is Refused."""
        try:
            async with asyncio.timeout(self._limits.answering):
                response = await self._exchange()
                headers = plain(response.headers)
                self._in_chunks = isinstance(response, h11.Response) and _CHUNKED in headers
                if response.status_code == wanted:
                    return headers
                raise self._refused(response.status_code, await self._body())
        except ClusterError as error:
            raise Refused(HTTPStatus.BAD_GATEWAY, f"{self._cluster.name}: {self._ask.doing}: {error.title}") from error
        except TimeoutError as error:
            raise self._failed(HTTPStatus.GATEWAY_TIMEOUT, "no answer in time") from error
        except h11.LocalProtocolError as error:
            raise self._failed(
                HTTPStatus.BAD_GATEWAY, "its address or credential has characters none may have"
            ) from error
        except (OSError, h11.RemoteProtocolError) as error:
            raise self._failed(HTTPStatus.BAD_GATEWAY, str(error) or type(error).__name__) from error

    def pieces(self) -> AsyncIterator[bytes]:
        """Give the body as it comes; h11.RemoteProtocolError or OSError when it breaks off."""
        return self._unchunked() if self._in_chunks else self._framed()

    async def _unchunked(self) -> AsyncIterator[bytes]:
        chunks, data = Chunks(), self.early()
        while True:
            content = chunks.take(data)
            if content:
                yield content
            if chunks.ended:
                return
            data = await self.wire.read()
            if not data:
                raise h11.RemoteProtocolError("the connection ended within a body")

    async def _framed(self) -> AsyncIterator[bytes]:
        assert self._dialogue is not None
        while isinstance(event := await self._dialogue.next(), h11.Data):
            yield bytes(event.data)

    async def _exchange(self) -> h11.Response | h11.InformationalResponse:
        endpoint = self._cluster.endpoint()
        wire = await dial(endpoint, self._limits)
        self._dialogue = Dialogue(wire, h11.Connection(h11.CLIENT, max_incomplete_event_size=_ERROR_AT_MOST))
        await self._dialogue.send(_head(endpoint, self._ask))
        await self._dialogue.send(h11.EndOfMessage())
        for _ in range(_ANNOUNCED_AT_MOST):
            event = await self._dialogue.next()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                raise h11.RemoteProtocolError("the connection ended before an answer")
            if event.status_code == HTTPStatus.SWITCHING_PROTOCOLS:
                return event
        raise h11.RemoteProtocolError("it announces an answer again and again, and gives none")

    async def _body(self) -> bytes:
        """Give the beginning of an error's body, as far as it comes."""
        body = b""
        async for piece in self.pieces():
            body += piece
            if len(body) > _ERROR_AT_MOST:
                break
        return body

    def _refused(self, status: int, body: bytes) -> Refused:
        ask = self._ask
        return from_lower(self._cluster.name, ask.doing, status, body, of_kubelet=ask.of_kubelet)

    def _failed(self, status: HTTPStatus, why: str) -> Refused:
        return Refused(status, f"{self._cluster.name}: {self._ask.doing}: the cluster's apiserver: {why}")


def _head(endpoint: Endpoint, ask: Ask) -> h11.Request:
    """Make the head of a request: host, who we are, the lower's credential and what was asked for."""
    name = f"[{endpoint.address}]" if ":" in endpoint.address else endpoint.address
    own = [("host", f"{name}:{endpoint.port}"), ("user-agent", f"tensile/{__version__}"), *endpoint.headers.items()]
    target = f"{endpoint.prefix}{ask.path}" + (f"?{ask.query}" if ask.query else "")
    return h11.Request(method=ask.method, target=target, headers=[*own, *ask.headers])
