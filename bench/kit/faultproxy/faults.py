"""What a proxy does to a request instead of just passing it on, as plain data."""

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
    """Nothing is done to it."""


@dataclass(frozen=True)
class Dropped:
    """The connection is reset before anything was sent on."""


@dataclass(frozen=True)
class Lost:
    """It is sent on and done, and the connection reset before a byte of the answer was given."""


@dataclass(frozen=True)
class Torn:
    """It is sent on and done, and the connection reset in the middle of the answer."""


@dataclass(frozen=True)
class Delayed:
    """It is sent on after so many seconds."""

    seconds: float


@dataclass(frozen=True)
class Hung:
    """It is never sent on and never answered."""


@dataclass(frozen=True)
class Refused:
    """It is not sent on, and answered with an HTTP status; `retry_after` in seconds, 0 for no such header."""

    status: int
    retry_after: int = 0
    message: str = "refused by a fault"
    causes: tuple[str, ...] = ()

    def body(self) -> bytes:
        """Return the answer as the API words it."""
        return orjson.dumps(status(self.status, self.message, self.causes))


Fault = Passed | Dropped | Lost | Torn | Delayed | Hung | Refused


def status(code: int, message: str, causes: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a v1 Status of a failure."""
    told = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": REASONS.get(code, ""),
        "code": code,
    }
    return told | ({"details": {"causes": [{"reason": one} for one in causes]}} if causes else {})
