"""A request to the kubelet API that is answered with an error: a status and words for whoever asked.

It is an exception, so that whatever finds a fault says so where it finds it; one place turns it into an answer. The
words travel as plain text, because that is what kube-apiserver and kubectl show of a kubelet's error.
"""

from http import HTTPStatus
from typing import Any

import orjson

from tensile.errors import TensileError

_SAID_AT_MOST = 4096
_KUBELETS = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, HTTPStatus.INTERNAL_SERVER_ERROR})
"""The statuses of a kubelet's own errors; with others it turns away the lower's apiserver, not the caller."""


class Refused(TensileError):
    """The request is not served: `status` is HTTP's (400-599), `message` says what was wrong and is shown as it is."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def from_lower(lower: str, doing: str, status: int, body: bytes, *, of_kubelet: bool = False) -> Refused:
    """Turn a lower apiserver's answer that is not the wanted one into ours, with its status where that is an error.

    `of_kubelet`: it was asked for something that a node's kubelet answers. What that said is said again as it is, so
    that a caller reads what a real node answers; all else is named after the lower. A redirect is never followed and an
    unwanted success never used: both are told as 502.
    """
    if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        return Refused(HTTPStatus.BAD_GATEWAY, f"{lower}: {doing}: answered with a redirect, which is not followed")
    if status < HTTPStatus.BAD_REQUEST or status not in HTTPStatus.__members__.values():
        return Refused(HTTPStatus.BAD_GATEWAY, f"{lower}: {doing}: unexpected answer {status}")
    told = _status(body)
    words = _printable(_kubelets(status, body, told)) if of_kubelet else ""
    said = _printable(str(told.get("message", "")) if told else body.decode(errors="replace"))
    return Refused(HTTPStatus(status), words or f"{lower}: {said or HTTPStatus(status).phrase}")


def _status(body: bytes) -> dict[str, Any]:
    """Read a v1 Status, {} for any other body."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) and found.get("kind") == "Status" else {}


def _kubelets(status: int, body: bytes, told: dict[str, Any]) -> str:
    """Return what the kubelet said, "" for words that are not its own.

    Kubernetes' apiservers hand a kubelet's answer to an upgrade on as it came, and make a Status of one to a request
    for logs: of 400 with the same words, of 500 with them as its cause.
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
    """Return the first cause of a Status: an apiserver puts words of its own before it where it tells of it."""
    try:
        return str(told["details"]["causes"][0]["message"])
    except (LookupError, TypeError):
        return ""


def _printable(text: str) -> str:
    """Cut words to what is told, without control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:_SAID_AT_MOST]).strip()
