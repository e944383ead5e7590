"""The telemetry server: /metrics for Prometheus, /healthz and /readyz for whoever keeps the engine running, /status.

Health says only that the event loop turns: a restart heals nothing else, and an engine that is restarted because a
cluster is away would leave the other clusters alone meanwhile. What is missing is what readiness says.
"""

import errno
from collections.abc import Callable
from http import HTTPStatus

from aiohttp import web

from tensile.errors import TensileError
from tensile.telemetry.metrics import CONTENT_TYPE, Metrics

_GRACE = 1.0
_ADVICE = {
    errno.EADDRINUSE: "another program listens there: set telemetry.port in the topology file, or stop that program",
    errno.EADDRNOTAVAIL: "this machine has no such address: set telemetry.bind in the topology file",
    errno.EACCES: "only root may listen there: set telemetry.port in the topology file to 1024 or above",
}


class TelemetryServer:
    """Serves on `bind`:`port` (0 for any free port) from `start` to `close`.

    `ready` gives "" when the engine is ready, else a sentence that says why it is not; `status` how everything is, as
    JSON.
    """

    def __init__(
        self, bind: str, port: int, metrics: Metrics, ready: Callable[[], str], status: Callable[[], bytes]
    ) -> None:
        self._bind = bind
        self._port = port
        self._metrics = metrics
        self._ready = ready
        self._status = status
        self._runner: web.AppRunner | None = None

    @property
    def port(self) -> int:
        """The port that it listens on, once started."""
        return int(self._runner.addresses[0][1]) if self._runner and self._runner.addresses else self._port

    async def start(self) -> None:
        """Begin to listen; raises TensileError, saying what to change, when that is not possible."""
        app = web.Application()
        served = {
            "/metrics": self._serve_metrics,
            "/healthz": _healthz,
            "/readyz": self._readyz,
            "/status": self._serve_status,
        }
        app.add_routes([web.get(path, answer) for path, answer in served.items()])
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=_GRACE)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._bind, self._port).start()
        except OSError as error:
            await runner.cleanup()
            why = _ADVICE.get(error.errno or 0, f"{error.strerror or error}: set telemetry.bind or telemetry.port")
            raise TensileError(f"telemetry cannot listen on {_shown(self._bind)}:{self._port}: {why}") from None
        self._runner = runner

    async def close(self) -> None:
        """Stop listening; a request under way has a second to end."""
        runner, self._runner = self._runner, None
        if runner:
            await runner.cleanup()

    async def _serve_metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def _serve_status(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._status(), content_type="application/json")

    async def _readyz(self, _request: web.Request) -> web.Response:
        missing = self._ready()
        return web.Response(text=f"{missing or 'ok'}\n", status=_status(missing))


async def _healthz(_request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


def _status(missing: str) -> HTTPStatus:
    return HTTPStatus.SERVICE_UNAVAILABLE if missing else HTTPStatus.OK


def _shown(bind: str) -> str:
    """Write an address as in a URL."""
    return f"[{bind}]" if ":" in bind else bind
