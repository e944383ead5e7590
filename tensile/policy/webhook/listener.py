"""The webhook's HTTPS port, and a test call to it like those of the upper's apiserver.

Reviews are answered on every path, as in tensile-kube's webhook. A request can do no more than get an answer: bodies
are bounded, and a defect fails only that request.
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
from tensile.kube.tls import KeyPair, TLSMaterial, context, serving_tls
from tensile.policy.tls_port import ClientBounds, TLSPort
from tensile.policy.webhook.review import VERSIONS, MalformedReview

_MOST_BYTES = 3 * 1024 * 1024
"""Maximum bytes of a body: as much as an apiserver accepts from a client."""
_GRACE = 1.0
_LEAVING = 1.0
"""Seconds for which connections in use may finish before idle ones are closed."""
_LOOK = 0.02
_PATIENCE = 5.0
_log = structlog.get_logger("tensile.webhook")

AnswerReview = Callable[[bytes], bytes]


class WebhookListener:
    """The webhook's server on `bind`:`port` (0 for any free port).

    It accepts connections once it has a certificate, `shown`. `answer` returns the response to a review or raises
    Malformed. A body must arrive within `patience` seconds.
    """

    def __init__(self, pair: KeyPair | None, answer: AnswerReview, patience: float = _PATIENCE) -> None:
        self.shown = pair
        self._answer = answer
        self._patience = patience
        self._front: TLSPort | None = None
        self._leaves = False

    @property
    def port(self) -> int:
        """The port it listens on, 0 before `start`."""
        return self._front.port if self._front else 0

    async def start(self, bind: str, port: int) -> None:
        """Start listening; raises TensileError, with what to change, if that is not possible."""
        try:
            opened = net.listening(bind, port)
        except OSError as error:
            where = f"webhook cannot listen on port {port} of {bind}"
            why = f"{error.strerror or error}: check webhook.bind and webhook.port"
            if error.errno == errno.EADDRINUSE:
                why = "another program uses the port: set another webhook.port, or stop that program"
            raise net.refusal(error, f"{where}: {why}") from None
        self._front = TLSPort(opened, self._serve, ClientBounds(_MOST_BYTES, patience=self._patience))
        if self.shown is not None:
            self.show(self.shown)

    def show(self, pair: KeyPair) -> None:
        """Serve a certificate, from the next connection on; raises TensileError if TLS does not take it."""
        assert self._front is not None, "it was started"
        try:
            self._front.show(serving_tls(pair))
        except OSError as error:
            raise TensileError(f"TLS rejects the webhook's certificate ({error}): renew it") from None
        self.shown = pair

    async def close(self) -> None:
        """Stop listening; answer on open connections for one more second, and close each after its answer.

        An apiserver keeps its connections, also to an engine that is no endpoint of the Service any more. A connection
        cut during a review leaves that pod unprepared; one that ends with an answer does not.
        """
        self._leaves = True
        if self._front is not None:
            await self._front.deafen()
            await self._seen_off(self._front)
            await self._front.retire(_GRACE)

    async def _seen_off(self, front: TLSPort) -> None:
        """Wait until no client is connected; close the connections that are left after `_LEAVING` seconds.

        They are cut at once, because aiohttp's own shutdown would leave them open longer and drop requests that arrive
        there.
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
            return web.Response(status=HTTPStatus.METHOD_NOT_ALLOWED, text="send an AdmissionReview with POST\n")
        assert self._front is not None
        body = await self._front.body(request)
        if body is None:
            return web.Response(status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        try:
            return web.Response(body=self._answer(body), content_type="application/json")
        except MalformedReview as error:
            return web.Response(status=HTTPStatus.BAD_REQUEST, text=f"{error}\n")
        except Exception as error:  # noqa: BLE001 - a creation must not wait for what never comes
            _log.error("admission review failed, pod admitted unmodified (bug, please report)", error=described(error))
            return web.Response(status=HTTPStatus.INTERNAL_SERVER_ERROR, text="internal error (bug in tensile)\n")


async def call(url: str, trusted: bytes) -> None:
    """Have a webhook review a pod that does not exist, trusting only the given certificates.

    Raises TensileError with what went wrong.
    """
    uid = str(uuid4())
    request = {"uid": uid, "kind": {"kind": "Pod"}, "operation": "CREATE", "object": {"metadata": {}, "spec": {}}}
    review = {"apiVersion": f"admission.k8s.io/{VERSIONS[0]}", "kind": "AdmissionReview", "request": request}
    tls = context(TLSMaterial(authority=trusted), "the webhook's certificate")
    tls.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    timeout = aiohttp.ClientTimeout(total=_PATIENCE)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=False) as session,
            session.post(url, data=orjson.dumps(review), ssl=tls, allow_redirects=False) as response,
        ):
            status, said = response.status, await beginning(response.content, _MOST_BYTES)
    except aiohttp.ClientConnectorCertificateError as error:
        raise TensileError(f"{url}: {error.certificate_error}") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
        raise TensileError(f"{url}: {str(cause) or type(cause).__name__}") from None
    try:
        found = orjson.loads(said)["response"]
        is_answer = status == HTTPStatus.OK and found["uid"] == uid and found["allowed"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        is_answer = False
    if not is_answer:
        raise TensileError(f"{url}: the response is not from this webhook (HTTP {status})")
