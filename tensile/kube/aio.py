"""aiohttp, imported without having it read the authorities that the system trusts.

It makes two TLS contexts while it is imported and fills both with all of them, which takes a sixth of the time in which
the engine starts. Nothing here uses either: every connection has the context that its kubeconfig asks for.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

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

__all__ = ["aiohttp", "beginning", "without_authorities"]


async def beginning(content: aiohttp.StreamReader, most: int) -> bytes:
    """Read a body to its end, or so many bytes of it: one read alone gives no more than has come by then."""
    found = bytearray()
    while len(found) < most and (piece := await content.read(most - len(found))):
        found += piece
    return bytes(found)
