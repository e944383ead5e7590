"""The telemetry server: /metrics for Prometheus, /healthz and /readyz for probes, /status, and the status page at /.

Liveness is only that the event loop runs. A restart cures nothing else, and an engine that is restarted because one
cluster is unreachable would neglect the other clusters meanwhile. Everything else is readiness. Probes can have a
server of their own, which starts before there is a topology and does not depend on one.

Any client may call the port, so the cost is bounded: a `ConnectionLimiter` limits connections, and generating
responses takes at most a tenth of the time.
"""

import asyncio
import errno
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any

import orjson
import structlog
from aiohttp import web

from tensile.engine.metrics import CONTENT_TYPE, Metrics
from tensile.engine.status.report import public
from tensile.engine.status.site import TIME_DIVISOR, StatusSite, is_local
from tensile.kube import net
from tensile.kube.listener_limits import ClientConnection, ClientTimeouts, ConnectionLimiter
from tensile.kube.net import accept, cancel_and_wait, take_over
from tensile.policy.tls_port import HeadBounds, QuietServer

_SHUTDOWN_TIMEOUT = 1.0
MAX_CONNECTIONS = 64
"""Maximum of connections at a time; Prometheus and a kubelet keep one each."""
_HEAD_BOUNDS = HeadBounds(headers=64, longest=8190)
"""A browser sends some 20 headers, one of which has the cookies of all programs on localhost."""
_READ_METHODS = ("GET", "HEAD")
_log = structlog.get_logger("tensile.telemetry")

MakeResponse = Callable[[web.BaseRequest], web.Response]
"""Returns the response to a GET of a path."""


class ProbeServer:
    """Serves probes on `bind` (None: every address) and `port` (0: any free port), from `start` to `close`.

    `ready` returns "" if the engine is ready, else a message with the reason.
    """

    name = "the probe server"
    advice: Mapping[int, str] = {
        errno.EADDRINUSE: "another program uses this port: stop it, or use another port for --probes",
        errno.EACCES: "only root can listen on this port: use a port of 1024 or above for --probes",
    }
    """Advice by errno; 0 for all other errors."""
    head_timeout = 5.0
    """Seconds in which the head of a request must arrive."""

    def __init__(self, bind: str | None, port: int, ready: Callable[[], str]) -> None:
        self._bind = bind
        self._port = port
        self._ready = ready
        self._listening: _Listening | None = None

    @property
    def port(self) -> int:
        """The port it listens on, once started."""
        return self._listening.port if self._listening else self._port

    def handlers(self) -> dict[str, MakeResponse]:
        """Return the handlers by path."""
        return {"/healthz": _healthz, "/readyz": self._readyz}

    @property
    def site(self) -> StatusSite | None:
        """What responds to the other paths, None for nothing."""
        return None

    async def start(self) -> None:
        """Start listening; raises TensileError, with what to change, if that is not possible."""
        try:
            opened = net.listening(self._bind, self._port)
        except OSError as error:
            address = net.place(self._bind, self._port)
            raise net.refusal(
                error, f"{self.name} cannot listen on {address}: {self._reason_with_advice(error)}"
            ) from None
        self._listening = _Listening(opened, self.handlers(), self.site, self.head_timeout)

    async def close(self) -> None:
        """Stop listening; a request in progress has a second to finish."""
        server, self._listening = self._listening, None
        if server:
            await server.close()

    def _reason_with_advice(self, error: OSError) -> str:
        """Return what went wrong, with advice."""
        other = f"{error.strerror or error}: {self.advice.get(0, 'use another port for --probes')}"
        return self.advice.get(error.errno or 0, other)

    def _readyz(self, _request: web.BaseRequest) -> web.Response:
        missing = self._ready()
        return web.Response(text=f"{missing or 'ok'}\n", status=_status(missing))


class TelemetryServer(ProbeServer):
    """Serves metrics, status and the status page as well.

    `status` returns the state of the engine. The names of pods in it are only for callers on this machine.
    """

    name = "telemetry"
    advice: Mapping[int, str] = {
        errno.EADDRINUSE: "another program uses this port: stop it, or set telemetry.port in the topology file",
        errno.EADDRNOTAVAIL: "this machine has no such address: set telemetry.bind in the topology file",
        errno.EACCES: "only root can listen on this port: set telemetry.port in the topology file to 1024 or above",
        0: "set telemetry.bind or telemetry.port",
    }

    def __init__(
        self,
        bind: str,
        port: int,
        metrics: Metrics,
        ready: Callable[[], str],
        status: Callable[[], Mapping[str, Any]],
        *,
        site: StatusSite,
    ) -> None:
        super().__init__(bind, port, ready)
        self._metrics = _ThrottledResponse(metrics.text)
        self._status = _ThrottledResponse(lambda: orjson.dumps(status()))
        self._public_status = _ThrottledResponse(lambda: orjson.dumps(public(status())))
        self._site = site

    def handlers(self) -> dict[str, MakeResponse]:
        """Return the handlers by path."""
        return {**super().handlers(), "/metrics": self._serve_metrics, "/status": self._serve_status}

    @property
    def site(self) -> StatusSite:
        """The status page."""
        return self._site

    def _serve_metrics(self, _request: web.BaseRequest) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    def _serve_status(self, request: web.BaseRequest) -> web.Response:
        response = self._status if is_local(request) else self._public_status
        return web.Response(body=response.text(), content_type="application/json")


class _Listening(QuietServer):
    """Responds to requests on a bound socket, from its creation to `close`."""

    def __init__(
        self, opened: socket.socket, handlers: Mapping[str, MakeResponse], site: StatusSite | None, head_timeout: float
    ) -> None:
        super().__init__(self._respond, head_timeout, _HEAD_BOUNDS)
        self.port = int(opened.getsockname()[1])
        self._handlers = handlers
        self._site = site
        self._clients: dict[object, ClientConnection] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.create_task(
            accept(opened, ConnectionLimiter(MAX_CONNECTIONS, ClientTimeouts()), self._serve, _log_failed_accept)
        )
        self._accepting.add_done_callback(lambda _: opened.close())

    async def close(self) -> None:
        """Stop listening; a request in progress has a second to finish."""
        await cancel_and_wait(self._accepting, *self._serving)
        if self._site is not None:
            await self._site.close()
        self.pre_shutdown()
        await self.shutdown(_SHUTDOWN_TIMEOUT)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """Release the connection's slot."""
        super().connection_lost(handler, exc)
        self._clients.pop(handler).leave()

    def _serve(self, connection: socket.socket, client: ClientConnection) -> None:
        task = asyncio.create_task(self._take_over(connection, client))
        client.drop = task.cancel
        self._serving.add(task)
        task.add_done_callback(partial(self._on_taken_over, client))

    def _on_taken_over(self, client: ClientConnection, task: asyncio.Task[None]) -> None:
        self._serving.discard(task)
        if task.cancelled() or task.exception():
            client.leave()

    async def _take_over(self, connection: socket.socket, client: ClientConnection) -> None:
        """Pass a connection to aiohttp."""

        def protocol() -> web.RequestHandler:
            handler = self()
            self._clients[handler] = client
            return handler

        client.drop = (await take_over(connection, protocol)).abort

    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        handler = self._handlers.get(request.path)
        if handler is None and self._site is not None and self._site.responds_to(request):
            return await self._site.respond(request)
        if handler is None:
            return web.Response(status=HTTPStatus.NOT_FOUND, text="not found\n")
        if request.method not in _READ_METHODS:
            return web.Response(status=HTTPStatus.METHOD_NOT_ALLOWED, text="only GET and HEAD are allowed\n")
        return handler(request)


class _ThrottledResponse:
    """A response whose generation takes at most a tenth of the time, however often it is requested."""

    def __init__(self, make: Callable[[], bytes]) -> None:
        self._make = make
        self._response = b""
        self._valid_until = 0.0

    def text(self) -> bytes:
        """Return the response, generated again unless the last one is too recent."""
        started = time.monotonic()
        if started >= self._valid_until:
            self._response = self._make()
            ended = time.monotonic()
            self._valid_until = ended + (TIME_DIVISOR - 1) * (ended - started)
        return self._response


def _log_failed_accept(error: OSError) -> None:
    _log.warning("cannot accept a connection", why=str(error))


def _healthz(_request: web.BaseRequest) -> web.Response:
    return web.Response(text="ok\n")


def _status(missing: str) -> HTTPStatus:
    return HTTPStatus.SERVICE_UNAVAILABLE if missing else HTTPStatus.OK
