"""The telemetry server: /metrics for Prometheus, /healthz and /readyz for whoever keeps the engine running, /status.

Health says only that the event loop turns: a restart heals nothing else, and an engine that is restarted because a
cluster is away would leave the other clusters alone meanwhile. What is missing is what readiness says.
Probes can have a server of their own: it is there before any topology is, and no topology moves it.
"""

import errno
from collections.abc import Callable, Mapping
from http import HTTPStatus

from aiohttp import web
from aiohttp.typedefs import Handler

from tensile import sockets
from tensile.telemetry.metrics import CONTENT_TYPE, Metrics

_GRACE = 1.0


class ProbeServer:
    """Serves probes on `bind` (None: every address) and `port` (0 for any free port) from `start` to `close`.

    `ready` gives "" when the engine is ready, else a sentence that says why it is not.
    """

    who = "the server of probes"
    advice: Mapping[int, str] = {
        errno.EADDRINUSE: "another program listens there: give --probes another port, or stop that program",
        errno.EACCES: "only root may listen there: give --probes a port of 1024 or above",
    }
    """What to do about an error, by its number; 0: about any other."""

    def __init__(self, bind: str | None, port: int, ready: Callable[[], str]) -> None:
        self._bind = bind
        self._port = port
        self._ready = ready
        self._runner: web.AppRunner | None = None

    @property
    def port(self) -> int:
        """The port that it listens on, once started."""
        return int(self._runner.addresses[0][1]) if self._runner and self._runner.addresses else self._port

    def answers(self) -> dict[str, Handler]:
        """Give what answers on each path."""
        return {"/healthz": _healthz, "/readyz": self._readyz}

    async def start(self) -> None:
        """Begin to listen; raises TensileError, saying what to change, when that is not possible."""
        app = web.Application()
        app.add_routes([web.get(path, answer) for path, answer in self.answers().items()])
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=_GRACE)
        await runner.setup()
        try:
            await web.SockSite(runner, sockets.listening(self._bind, self._port)).start()
        except OSError as error:
            await runner.cleanup()
            where = sockets.place(self._bind, self._port)
            raise sockets.refusal(error, f"{self.who} cannot listen on {where}: {self._why(error)}") from None
        self._runner = runner

    async def close(self) -> None:
        """Stop listening; a request under way has a second to end."""
        runner, self._runner = self._runner, None
        if runner:
            await runner.cleanup()

    def _why(self, error: OSError) -> str:
        """Say what is in the way, and what to do."""
        other = f"{error.strerror or error}: {self.advice.get(0, 'give --probes another port')}"
        return self.advice.get(error.errno or 0, other)

    async def _readyz(self, _request: web.Request) -> web.Response:
        missing = self._ready()
        return web.Response(text=f"{missing or 'ok'}\n", status=_status(missing))


class TelemetryServer(ProbeServer):
    """Serves metrics and the status beside them; `status` gives how everything is, as JSON."""

    who = "telemetry"
    advice: Mapping[int, str] = {
        errno.EADDRINUSE: (
            "another program listens there: set telemetry.port in the topology file, or stop that program"
        ),
        errno.EADDRNOTAVAIL: "this machine has no such address: set telemetry.bind in the topology file",
        errno.EACCES: "only root may listen there: set telemetry.port in the topology file to 1024 or above",
        0: "set telemetry.bind or telemetry.port",
    }

    def __init__(
        self, bind: str, port: int, metrics: Metrics, ready: Callable[[], str], status: Callable[[], bytes]
    ) -> None:
        super().__init__(bind, port, ready)
        self._metrics = metrics
        self._status = status

    def answers(self) -> dict[str, Handler]:
        """Give what answers on each path."""
        return {**super().answers(), "/metrics": self._serve_metrics, "/status": self._serve_status}

    async def _serve_metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def _serve_status(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._status(), content_type="application/json")


async def _healthz(_request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


def _status(missing: str) -> HTTPStatus:
    return HTTPStatus.SERVICE_UNAVAILABLE if missing else HTTPStatus.OK
