"""The webhook's port, and a call to it as the upper's apiserver would make one.

Reviews are answered on every path, as tensile-kube's webhook does. Nothing that comes in can do more than get an
answer: bodies are bounded, and a defect costs the one request.
"""

import asyncio
import errno
import ssl
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from uuid import uuid4

import aiohttp
import orjson
import structlog
from aiohttp import web

from tensile.errors import TensileError, described
from tensile.kube import net
from tensile.kube.aio import beginning
from tensile.kube.tls import Pair, Papers, context, serving_tls, show
from tensile.policy.tls_port import Bounds, Front
from tensile.policy.webhook.review import VERSIONS, Malformed

_MOST_BYTES = 3 * 1024 * 1024
"""Of a body: as much as an apiserver takes of a user."""
_GRACE = 1.0
_LEAVING = 1.0
"""Seconds in which connections that are in use are seen off, before those that are idle are cut."""
_LOOK = 0.02
_PATIENCE = 5.0
_log = structlog.get_logger("tensile.webhook")

Answer = Callable[[bytes], bytes]


class Listening:
    """The webhook on `bind`:`port` (0 for any free port); `answer` makes a review's answer or raises Malformed.

    `patience` is how many seconds a body may take to come.
    """

    def __init__(self, pair: Pair, answer: Answer, patience: float = _PATIENCE) -> None:
        self._answer = answer
        self._patience = patience
        self._tls = serving_tls(pair)
        self._front: Front | None = None
        self._leaves = False

    @property
    def port(self) -> int:
        """The port that it listens on, once started."""
        return self._front.port if self._front else 0

    async def start(self, bind: str, port: int) -> None:
        """Begin to listen; raises TensileError, with what to change, when that is not possible."""
        try:
            opened = net.listening(bind, port)
        except OSError as error:
            where = f"webhook: port {port} on {bind}"
            why = f"{error.strerror or error}: check webhook.bind and webhook.port"
            if error.errno == errno.EADDRINUSE:
                why = "is taken: set another webhook.port, or stop that program"
            raise net.refusal(error, f"{where}: {why}") from None
        self._front = Front(opened, self._serve, Bounds(_MOST_BYTES, patience=self._patience))
        self._front.show(self._tls)

    def show(self, pair: Pair) -> None:
        """Show another certificate, from the next connection on."""
        show(self._tls, pair)

    async def close(self) -> None:
        """Listen no more; who is connected is answered for a second, and told to ask elsewhere next.

        An apiserver keeps its connections, also to an engine that no Service leads to any more. One that is cut while
        a question is on its way costs that pod its preparation; one that ends with an answer costs nobody anything.
        """
        self._leaves = True
        if self._front is not None:
            await self._front.deafen()
            await self._seen_off(self._front)
            await self._front.retire(_GRACE)

    async def _seen_off(self, front: Front) -> None:
        """Return when nobody is connected any more; those that ask nothing are cut in the end.

        At once: aiohttp's own end would leave them open for another while, and swallow what is asked there.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAVING):
                while front.is_used:  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(_LOOK)
        front.cut()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        response = await self._answered(request)
        if self._leaves:
            response.force_close()
        return response

    async def _answered(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "GET" and request.path == "/healthz":
            return web.Response(text="ok")
        if request.method != "POST":
            return web.Response(status=HTTPStatus.METHOD_NOT_ALLOWED, text="send an AdmissionReview by POST\n")
        assert self._front is not None
        body = await self._front.body(request)
        if body is None:
            return web.Response(status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        try:
            return web.Response(body=self._answer(body), content_type="application/json")
        except Malformed as error:
            return web.Response(status=HTTPStatus.BAD_REQUEST, text=f"{error}\n")
        except Exception as error:  # noqa: BLE001 - a creation must not wait for what never comes
            _log.error("a review failed, and the pod goes its way as it is: please report this", error=described(error))
            return web.Response(status=HTTPStatus.INTERNAL_SERVER_ERROR, text="a defect of tensile\n")


class AnotherAnswers(TensileError):
    """Whoever answers a call shows a certificate that is not trusted."""


async def call(url: str, trusted: bytes, times: int = 1) -> None:
    """Ask a webhook at a URL, trusting these certificates only; raises TensileError with what went wrong.

    Where an address leads to several engines in turn, it is asked so many `times` until one that is trusted answers.
    """
    for _ in range(times - 1):
        with suppress(AnotherAnswers):
            return await _called(url, trusted)
    return await _called(url, trusted)


async def _called(url: str, trusted: bytes) -> None:
    asked = str(uuid4())
    body = _question(asked)
    tls = context(Papers(authority=trusted), "the webhook's certificate")
    tls.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    timeout = aiohttp.ClientTimeout(total=_PATIENCE)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=False) as session,
            session.post(url, data=body, ssl=tls, allow_redirects=False) as response,
        ):
            status, said = response.status, await beginning(response.content, _MOST_BYTES)
    except aiohttp.ClientConnectorCertificateError as error:
        raise AnotherAnswers(f"{url}: {error.certificate_error}") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
        raise TensileError(f"{url}: {str(cause) or type(cause).__name__}") from None
    if status != HTTPStatus.OK or not _is_answer(said, asked):
        raise TensileError(f"{url}: something else answers there (HTTP {status})")


def _question(uid: str) -> bytes:
    """Ask about a pod that is nobody's."""
    pod = {"metadata": {"name": "probe", "namespace": "probe"}, "spec": {"containers": []}}
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    request = {"uid": uid, "kind": kind, "operation": "CREATE", "object": pod}
    return orjson.dumps(
        {"apiVersion": f"admission.k8s.io/{VERSIONS[0]}", "kind": "AdmissionReview", "request": request}
    )


def _is_answer(said: bytes, uid: str) -> bool:
    """Report whether that is an answer to our question."""
    try:
        found = orjson.loads(said)
        return bool(found["response"]["uid"] == uid and found["response"]["allowed"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return False
