"""A request to the kubelet API that is answered with an error: a status and words for whoever asked.

It is an exception, so that whatever finds a fault says so where it finds it; one place turns it into an answer. The
words travel as plain text, because that is what kube-apiserver and kubectl show of a kubelet's error.
"""

from http import HTTPStatus

import orjson

from tensile.errors import TensileError

_SAID_AT_MOST = 4096


class Refused(TensileError):
    """The request is not served: `status` is HTTP's (400-599), `message` says what was wrong and is shown as it is."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def from_lower(lower: str, doing: str, status: int, body: bytes) -> Refused:
    """Turn a lower apiserver's answer that is not the wanted one into ours, with its status where that is an error.

    A redirect is never followed and an unwanted success never used: both are told as 502.
    """
    if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        return Refused(HTTPStatus.BAD_GATEWAY, f"{lower}: {doing}: answered with a redirect, which is not followed")
    if status < HTTPStatus.BAD_REQUEST or status not in HTTPStatus.__members__.values():
        return Refused(HTTPStatus.BAD_GATEWAY, f"{lower}: {doing}: unexpected answer {status}")
    return Refused(HTTPStatus(status), f"{lower}: {_said(status, body)}")


def _said(status: int, body: bytes) -> str:
    """Give the message of a v1 Status, or the body itself, without control characters; never nothing."""
    try:
        text = str(orjson.loads(body)["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        text = body.decode(errors="replace")
    printable = "".join(letter if letter.isprintable() else " " for letter in text[:_SAID_AT_MOST])
    return printable.strip() or HTTPStatus(status).phrase
