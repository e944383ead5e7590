"""Errors of the kubelet API: a status and a message for the caller.

An error is an exception, raised where the fault is found and turned into a response in one place. The message is sent
as plain text, because that is what kube-apiserver and kubectl show of a kubelet's error.
"""

from http import HTTPStatus
from typing import Any

import orjson

from tensile.errors import TensileError

_SAID_AT_MOST = 4096
_KUBELETS = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.INTERNAL_SERVER_ERROR})
"""The statuses of a kubelet's own errors; with others it rejects the lower apiserver, not the caller."""


class HTTPError(TensileError):
    """The request is not served: `status` is HTTP's (400-599), `message` says what was wrong and is shown unchanged."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def from_lower(lower: str, doing: str, status: int, body: bytes, *, of_kubelet: bool = False) -> HTTPError:
    """Return our error for an unwanted response of a lower apiserver, with its status where that is an error.

    `of_kubelet` means that the apiserver passed the request on to a node's kubelet. The kubelet's message is then
    repeated unchanged, so that a caller reads what a real node answers; all other messages are prefixed with the
    lower's name. A redirect is never followed and an unwanted success never used: both become 502.
    """
    if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        return HTTPError(HTTPStatus.BAD_GATEWAY, f"{lower}: {doing}: the response is a redirect, which is not followed")
    if status < HTTPStatus.BAD_REQUEST or status not in HTTPStatus.__members__.values():
        return HTTPError(HTTPStatus.BAD_GATEWAY, f"{lower}: {doing}: unexpected response {status}")
    told = _status(body)
    words = _printable(_kubelets(status, body, told)) if of_kubelet else ""
    said = _printable(str(told.get("message", "")) if told else body.decode(errors="replace"))
    return HTTPError(HTTPStatus(status), words or f"{lower}: {said or HTTPStatus(status).phrase}")


def _status(body: bytes) -> dict[str, Any]:
    """Return the v1 Status in a body, {} for any other body."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) and found.get("kind") == "Status" else {}


def _kubelets(status: int, body: bytes, told: dict[str, Any]) -> str:
    """Return the kubelet's message, "" if the message is not the kubelet's.

    Kubernetes' apiservers pass a kubelet's response to an upgrade on unchanged. They turn its response to a log request
    into a Status: a 400 with the same message, a 500 with it as the cause.
    """
    if status not in _KUBELETS:
        return ""
    match told.get("reason"):
        case "BadRequest":
            return str(told.get("message", ""))
        case "InternalError":
            return _cause(told)
    return "" if told else body.decode(errors="replace")


def _cause(told: dict[str, Any]) -> str:
    """Return the first cause of a Status, without the words that an apiserver puts before it in the message."""
    try:
        return str(told["details"]["causes"][0]["message"])
    except (LookupError, TypeError):
        return ""


def _printable(text: str) -> str:
    """Return the text cut to the maximum length, without control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:_SAID_AT_MOST]).strip()
