"""The faults that a proxy applies to a request, as plain data."""

from dataclasses import dataclass
from typing import Any

import orjson

REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    413: "RequestEntityTooLarge",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(frozen=True)
class Passed:
    """The request is passed on."""


@dataclass(frozen=True)
class Dropped:
    """The connection is reset before anything is passed on."""


@dataclass(frozen=True)
class Lost:
    """The request is passed on and carried out, and the connection is reset before any byte of the response."""


@dataclass(frozen=True)
class Torn:
    """The request is passed on and carried out, and the connection is reset in the middle of the response."""


@dataclass(frozen=True)
class Delayed:
    """The request is passed on after so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Hung:
    """The request is never passed on and never answered."""


@dataclass(frozen=True)
class Refused:
    """The request is not passed on, and is answered with an HTTP status.

    `retry_after` is in seconds, 0 for no such header.
    """

    status: int
    retry_after: int = 0
    message: str = "refused by a fault"
    causes: tuple[str, ...] = ()

    def body(self) -> bytes:
        """Return the body of the response, as an apiserver writes it."""
        return orjson.dumps(status(self.status, self.message, self.causes))


Fault = Passed | Dropped | Lost | Torn | Delayed | Hung | Refused


def status(code: int, message: str, causes: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a v1 Status of a failure."""
    failure = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": REASONS.get(code, ""),
        "code": code,
    }
    return failure | ({"details": {"causes": [{"reason": one} for one in causes]}} if causes else {})
