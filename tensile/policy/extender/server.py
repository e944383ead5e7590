"""The extender's port for the upper scheduler: HTTPS with client certificates.

The scheduler waits for each answer, so every failure is answered at once, and never as "fits nowhere": a scheduler that
may ignore the extender then decides by itself. A caller can have room reserved for pods that do not exist. So a client
certificate of the right CA is not enough: it must be the scheduler's.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

import orjson
import structlog
from aiohttp import web

from tensile.errors import described
from tensile.kube import net
from tensile.policy.extender.extender import SchedulerExtender
from tensile.policy.extender.preemption_controller import PreemptResponder
from tensile.policy.extender.victim_selection import Budget
from tensile.policy.tls_port import ClientBounds, TLSPort

SCHEDULER = "system:kube-scheduler"
"""The user name in a kube-scheduler's certificate."""
_MAX_REQUEST = 8 << 20
"""Maximum bytes of a request: the largest possible pod, and the names of ten thousand nodes."""
_GRACE = 1.0
_ADVICE = {
    errno.EADDRINUSE: "another program uses this port: set extender.port in the topology file, or stop that program",
    errno.EADDRNOTAVAIL: "this machine has no such address: set extender.bind in the topology file",
    errno.EACCES: "only root may listen on this port: set extender.port in the topology file to 1024 or above",
}
_MALFORMED = (
    "the request is not ExtenderArgs with node names: set nodeCacheCapable: true for this extender in the scheduler's "
    "configuration"
)
Budgets = Callable[[], Awaitable[Collection[Budget] | None]]
_log = structlog.get_logger("tensile.extender")


class _Verb(NamedTuple):
    """What answers a request of one path, and the field that such a request must have.

    A request with whole nodes instead of names is refused: its scheduler would read names in the answer as no nodes at
    all.
    """

    decide: Callable[[Mapping[str, Any]], Awaitable[Any]]
    field: str = "NodeNames"
    kind: type = list


def listening(bind: str, port: int) -> socket.socket:
    """Return a bound socket (port 0 for any free one); raises TensileError, with what to change, on failure."""
    try:
        return net.listening(bind, port)
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, f"{error.strerror or error}: set extender.bind or extender.port")
        raise net.refusal(error, f"the extender cannot listen on {net.place(bind, port)}: {advice}") from None


class ExtenderPort:
    """Serves on a bound socket, from the first `show` to `close`.

    `clock` returns seconds. `extender` may be replaced between two requests.
    `budgets` returns the current PodDisruptionBudgets, None if they cannot be read; `answered` is called after each
    filter request.
    """

    def __init__(
        self,
        port: socket.socket,
        extender: SchedulerExtender,
        *,
        clock: Callable[[], float],
        budgets: Budgets | None = None,
        answered: Callable[[], None] = lambda: None,
    ) -> None:
        self.extender = extender
        self._budgets = budgets
        self._on_filtered = answered
        self._tls_port = TLSPort(port, self._serve, ClientBounds(_MAX_REQUEST))
        self._clock = clock
        self._has_refused = False
        self._verbs = {
            "/filter": _Verb(self._filtered),
            "/prioritize": _Verb(self._prioritized),
            "/preempt": _Verb(self._preempted, "NodeNameToMetaVictims", dict),
        }

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._tls_port.port

    async def show(self, tls: ssl.SSLContext) -> None:
        """Serve with this certificate, for clients of its CA; open connections are closed after their answer.

        A client without a certificate is never served, whatever the context allows.
        """
        tls.verify_mode = ssl.CERT_REQUIRED
        self._tls_port.show(tls)
        await self._tls_port.retire(_GRACE)

    async def close(self) -> None:
        """Stop listening; a request in progress has a second to finish."""
        await self._tls_port.deafen()
        await self._tls_port.retire(_GRACE)

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """Route a request by its path."""
        verb = self._verbs.get(request.path)
        if verb is None:
            return web.Response(status=HTTPStatus.NOT_FOUND)
        if request.method != "POST":
            return web.Response(status=HTTPStatus.METHOD_NOT_ALLOWED)
        return await self._answered(request, verb)

    async def _filtered(self, args: Mapping[str, Any]) -> Any:
        """Filter the nodes; other tasks run between two lower clusters."""
        answer = await _last(self.extender.filtered(args, self._clock()))
        self._on_filtered()
        return answer

    async def _preempted(self, args: Mapping[str, Any]) -> Any:
        """Return the victims; other tasks run between two lower nodes."""
        found = await self._budgets() if self._budgets is not None else None
        return await _last(PreemptResponder(self.extender).answer(args, found, self._clock()))

    async def _prioritized(self, args: Mapping[str, Any]) -> Any:
        return self.extender.prioritize(args)

    async def _answered(self, request: web.BaseRequest, verb: _Verb) -> web.Response:
        """Answer a request; a malformed one is refused with a message, and a defect fails this answer only."""
        caller = _caller(request)
        if caller != SCHEDULER:
            message = f"{caller or 'a client without a name'} must not call the extender; allowed: {SCHEDULER}"
            return web.Response(status=HTTPStatus.FORBIDDEN, text=f"{message}\n")
        body = await self._tls_port.body(request)
        if body is None:
            return web.Response(status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        args = _decode_args(body)
        if args is None or not isinstance(args.get(verb.field), verb.kind):
            return web.Response(status=HTTPStatus.BAD_REQUEST, text=f"{self._malformed_message()}\n")
        try:
            return web.Response(body=orjson.dumps(await verb.decide(args)), content_type="application/json")
        except Exception as error:  # noqa: BLE001 - the scheduler goes on without us
            _log.error("extender request failed (bug, please report)", error=described(error))
            return web.Response(status=HTTPStatus.INTERNAL_SERVER_ERROR, text="internal error (bug in tensile)\n")

    def _malformed_message(self) -> str:
        """Return what a request lacks, and log it once: the scheduler goes on silently without a refusing extender."""
        if not self._has_refused:
            _log.error("requests of the upper scheduler are rejected", why=_MALFORMED)
        self._has_refused = True
        return _MALFORMED


async def _last(answers: Iterable[Any]) -> Any:
    """Return the last of some answers; other tasks run between two of them."""
    answer: Any = None
    for answer in answers:  # noqa: B007 - the last one counts
        await asyncio.sleep(0)
    return answer


def _caller(request: web.BaseRequest) -> str:
    """Return the user name in the caller's certificate, "" for none."""
    certificate = request.get_extra_info("peercert") or {}
    fields = dict(field for part in certificate.get("subject", ()) for field in part)
    return str(fields.get("commonName", ""))


def _decode_args(body: bytes) -> dict[str, Any] | None:
    """Return a decoded request, None if it is malformed."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    pod = found.get("Pod") if isinstance(found, dict) else None
    if not isinstance(pod, dict) or not isinstance(pod.get("metadata"), dict) or not isinstance(pod.get("spec"), dict):
        return None
    return dict(found)
