"""Which headers of an upgraded stream pass between a caller and a lower apiserver: two short lists.

What is not listed stays behind. Above all no credential of the caller's goes down: not in a header, and not hidden in
a WebSocket subprotocol, where Kubernetes accepts bearer tokens too.
"""

from collections.abc import Iterable
from http import HTTPStatus

from tensile.kubelet.api.refusal import Refused

Headers = tuple[tuple[str, str], ...]
"""Header fields in order: names in lower case, values as text."""

_PROTOCOLS = frozenset({"websocket", "spdy/3.1"})
_SUBPROTOCOLS = "sec-websocket-protocol"
_HIDDEN_TOKEN = "base64url.bearer.authorization.k8s.io."  # noqa: S105 - the prefix that announces one
_ASKED = frozenset(
    {
        "sec-websocket-key",
        "sec-websocket-version",
        "sec-websocket-extensions",
        _SUBPROTOCOLS,
        "x-stream-protocol-version",
    },
)
_ANSWERED = frozenset(
    {
        "upgrade",
        "sec-websocket-accept",
        "sec-websocket-extensions",
        _SUBPROTOCOLS,
        "x-stream-protocol-version",
    },
)


def asked(headers: Headers) -> Headers:
    """Give the headers that ask a lower for the caller's upgrade; 400 unless it asks for WebSocket or SPDY/3.1."""
    protocols = words(headers, "upgrade")
    if "upgrade" not in words(headers, "connection") or len(protocols) != 1 or protocols[0] not in _PROTOCOLS:
        raise Refused(HTTPStatus.BAD_REQUEST, "Upgrade request required: to websocket or SPDY/3.1")
    wanted = ((name, _without_tokens(name, value)) for name, value in headers if name in _ASKED)
    upgrade = next(value for name, value in headers if name == "upgrade")
    return ("connection", "Upgrade"), ("upgrade", upgrade), *(pair for pair in wanted if pair[1])


def answered(headers: Headers) -> Headers:
    """Give the headers of a lower's 101 that the caller is told."""
    return ("connection", "Upgrade"), *(pair for pair in headers if pair[0] in _ANSWERED)


def words(headers: Headers, name: str) -> list[str]:
    """Give the comma-separated words of a header, in lower case."""
    return [word for key, value in headers if key == name for word in _split(value.lower())]


def _without_tokens(name: str, value: str) -> str:
    if name != _SUBPROTOCOLS:
        return value
    return ", ".join(word for word in _split(value) if not word.lower().startswith(_HIDDEN_TOKEN))


def _split(value: str) -> Iterable[str]:
    return filter(None, (word.strip() for word in value.split(",")))
