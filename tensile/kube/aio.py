"""Fast imports of aiohttp and the `kubernetes` package, and the limits that aiohttp lacks.

aiohttp creates two TLS contexts when it is imported and loads all CAs of the system into both, which takes a sixth of
the engine's start-up time. Neither is used here: each connection has the TLS context of its kubeconfig. `kubernetes`
looks for the user's home directory when it is imported, and fails for a user that has none, as in many containers. It
also imports its synchronous client with everything that belongs to it, 10 MiB of memory. Only `kubernetes.aio.client`
is used here, so empty modules take the place of the others meanwhile.

aiohttp limits buffered content and each header, but not the bytes around content: informational responses, chunk
extensions, chunks of one byte. So this module counts them.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import ModuleType
from typing import Any, cast

from tensile.kube.limits import HEAD, mebibytes

_CA_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""The environment variables that tell OpenSSL where CA certificates are."""
_UNUSED: Mapping[str, tuple[str, ...]] = {
    "kubernetes": ("client", "config", "dynamic", "informer", "leaderelection", "stream", "utils", "watch"),
    "kubernetes.aio": ("dynamic", "leaderelection", "stream", "watch"),
}
"""The modules that these packages import with themselves and that nothing here uses."""


def without_authorities() -> AbstractContextManager[None]:
    """Make TLS contexts that are created in the block trust no CA, then restore the environment."""
    return _environment(dict.fromkeys(_CA_VARIABLES, os.devnull))


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables in the block, then restore them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


@contextmanager
def _without_unused_modules() -> Iterator[None]:
    """Import empty modules for the unused ones of `kubernetes` in the block. Afterwards each can be imported as usual.

    Those that are imported already stay.
    """
    empty = [
        (package, module)
        for package, modules in _UNUSED.items()
        for module in modules
        if f"{package}.{module}" not in sys.modules
    ]
    sys.modules.update({f"{package}.{module}": ModuleType(f"{package}.{module}") for package, module in empty})
    try:
        yield
    finally:
        for package, module in empty:
            del sys.modules[f"{package}.{module}"]
            if package in sys.modules:
                vars(sys.modules[package]).pop(module, None)


with without_authorities(), _without_unused_modules(), _environment({"HOME": os.environ.get("HOME") or os.sep}):
    import aiohttp
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.http_exceptions import LineTooLong
    from kubernetes.aio.client import ApiClient, Configuration
    from kubernetes.aio.client.rest import RESTClientObject, RESTResponse

__all__ = [
    "NO_CONTENT",
    "ApiClient",
    "BoundedConnector",
    "Configuration",
    "RESTClientObject",
    "RESTResponse",
    "ResponseHeadTooLarge",
    "UnverifiedServer",
    "VerifyCertificate",
    "aiohttp",
    "beginning",
    "certificate_of",
    "is_overlong",
    "without_authorities",
]


NO_CONTENT = f"a response with more than {mebibytes(HEAD)} outside of its body"


class ResponseHeadTooLarge(aiohttp.ClientError):
    """A response has more bytes around its content than any apiserver sends."""


VerifyCertificate = Callable[[bytes], bool]
"""Reports whether requests may be sent to the server with a certificate (DER, b"" without TLS)."""


class UnverifiedServer(aiohttp.ClientError):
    """A new connection leads to a server that `verify_certificate` does not accept. Nothing was sent."""


class _Counting(ResponseHandler):
    """One connection that counts the bytes around the content, from each request on."""

    _received = 0
    _last: Any = None

    def set_response_params(self, **given: Any) -> None:
        """Reset the count: another request was sent."""
        self._received, self._last = 0, self._payload
        super().set_response_params(**given)

    def data_received(self, data: bytes) -> None:
        """Parse the data. Abort when the bytes around the content exceed `HEAD` plus the content."""
        super().data_received(data)
        self._received += len(data)
        content = 0 if self._payload in (None, self._last) else self._payload.total_bytes
        if self._received - content > HEAD + content:
            self._abort()

    def _abort(self) -> None:
        error = ResponseHeadTooLarge(NO_CONTENT)
        if self._payload is not None:
            self._payload.set_exception(error)
        self.set_exception(error)
        if self.transport is not None:
            self.transport.abort()


def is_overlong(error: aiohttp.ClientError) -> bool:
    """Report whether aiohttp rejected a response because a line, a header or their sum is too long."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, LineTooLong | ResponseHeadTooLarge):
        cause = cause.__cause__
    return cause is not None


class BoundedConnector(aiohttp.TCPConnector):
    """A connector that limits the bytes around a response's content to `HEAD` plus the content.

    A new connection is used only if `verify_certificate` accepts its server's certificate. Otherwise raises
    UnverifiedServer.
    """

    def __init__(self, verify_certificate: VerifyCertificate, **given: Any) -> None:
        super().__init__(**given)
        self._verify_certificate = verify_certificate
        self._factory = cast("partial[ResponseHandler]", partial(_Counting, loop=self._loop))

    async def _create_connection(self, *given: Any) -> ResponseHandler:
        handler = await super()._create_connection(*given)
        if not self._verify_certificate(certificate_of(handler.transport)):
            handler.abort()
            raise UnverifiedServer
        return handler


def certificate_of(transport: asyncio.BaseTransport | None) -> bytes:
    """Return the certificate (DER) that the server of a connection presented, b"" without TLS."""
    tls = transport.get_extra_info("ssl_object") if transport is not None else None
    return b"" if tls is None else tls.getpeercert(binary_form=True) or b""


async def beginning(content: aiohttp.StreamReader, most: int) -> bytes:
    """Read a body to its end, or its first `most` bytes. A single read returns only what has arrived by then."""
    body = bytearray()
    while len(body) < most and (piece := await content.read(most - len(body))):
        body += piece
    return bytes(body)
