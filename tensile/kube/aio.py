"""aiohttp and the `kubernetes` package on top of it, imported cheaply, and bounded where they are not.

aiohttp makes two TLS contexts while it is imported, and fills both with all authorities that the system trusts: a sixth
of the time in which the engine starts. Nothing here uses either, as every connection has the context that its
kubeconfig asks for.

Its buffers of content have a bound, and so has each header. What has none is what surrounds content: answers that only
announce another, extensions of chunks, chunks of one byte. So that is counted here.
"""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from tensile.kube.limits import HEAD, mebibytes

_PLACES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""The variables by which OpenSSL is told where authorities are."""


@contextmanager
def without_authorities() -> Iterator[None]:
    """Have contexts that are made meanwhile trust nobody, and put back what the environment said."""
    before = {name: os.environ.get(name) for name in _PLACES}
    os.environ.update(dict.fromkeys(_PLACES, os.devnull))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


with without_authorities():
    import aiohttp
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.http_exceptions import LineTooLong
    from kubernetes.aio.client import ApiClient, Configuration
    from kubernetes.aio.client.rest import RESTClientObject, RESTResponse

__all__ = [
    "NO_CONTENT",
    "ApiClient",
    "Bounded",
    "Configuration",
    "Overlong",
    "RESTClientObject",
    "RESTResponse",
    "UnprovenServer",
    "Vouch",
    "aiohttp",
    "beginning",
    "certificate_of",
    "is_overlong",
    "without_authorities",
]


NO_CONTENT = f"an answer with more than {mebibytes(HEAD)} that are no content"


class Overlong(aiohttp.ClientError):
    """An answer has more around its content than any apiserver sends."""


Vouch = Callable[[bytes], bool]
"""Reports whether the server with a certificate (DER, b"" without TLS) may be sent requests."""


class UnprovenServer(aiohttp.ClientError):
    """A new connection leads to a server that nobody vouches for: nothing was sent."""


class _Counting(ResponseHandler):
    """One connection, on which what is no content is counted from each request on."""

    _received = 0
    _last: Any = None

    def set_response_params(self, **given: Any) -> None:
        """Begin to count: another request was sent."""
        self._received, self._last = 0, self._payload
        super().set_response_params(**given)

    def data_received(self, data: bytes) -> None:
        """Read on, unless there is more around the content than content."""
        super().data_received(data)
        self._received += len(data)
        content = 0 if self._payload in (None, self._last) else self._payload.total_bytes
        if self._received - content > HEAD + content:
            self._give_up()

    def _give_up(self) -> None:
        error = Overlong(NO_CONTENT)
        if self._payload is not None:
            self._payload.set_exception(error)
        self.set_exception(error)
        if self.transport is not None:
            self.transport.abort()


def is_overlong(error: aiohttp.ClientError) -> bool:
    """Report whether aiohttp refused an answer for a line or a header that is too long."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, LineTooLong | Overlong):
        cause = cause.__cause__
    return cause is not None


class Bounded(aiohttp.TCPConnector):
    """Connections whose answers may not have more around their content than content, but for a head's length.

    A new connection is used only if `vouch` accepts its server's certificate; raises UnprovenServer.
    """

    def __init__(self, vouch: Vouch, **given: Any) -> None:
        super().__init__(**given)
        self._vouch = vouch
        self._factory = cast("partial[ResponseHandler]", partial(_Counting, loop=self._loop))

    async def _create_connection(self, *given: Any) -> ResponseHandler:
        made = await super()._create_connection(*given)
        if not self._vouch(certificate_of(made.transport)):
            made.abort()
            raise UnprovenServer
        return made


def certificate_of(transport: asyncio.BaseTransport | None) -> bytes:
    """Return the certificate (DER) that the server of a connection showed, b"" without TLS."""
    tls = transport.get_extra_info("ssl_object") if transport is not None else None
    return b"" if tls is None else tls.getpeercert(binary_form=True) or b""


async def beginning(content: aiohttp.StreamReader, most: int) -> bytes:
    """Read a body to its end, or so many bytes of it: one read alone gives no more than has come by then."""
    found = bytearray()
    while len(found) < most and (piece := await content.read(most - len(found))):
        found += piece
    return bytes(found)
