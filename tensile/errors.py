"""All errors that this project raises on purpose.

Errors of libraries are converted to these where they enter (kube/client.py holds the table for the API). So the
reconcile loop decides about retries by the type alone, and users never see a traceback.
"""

import traceback
from pathlib import Path
from typing import ClassVar

INTERRUPTED = 130
"""The exit code after Ctrl-C: 128 plus the number of SIGINT, as in shells."""
STATUS_REASONS = frozenset({
    "AlreadyExists", "BadRequest", "Conflict", "Expired", "Forbidden", "Gone", "InternalError", "Invalid",
    "MethodNotAllowed", "NotAcceptable", "NotFound", "RequestEntityTooLarge", "ServerTimeout", "ServiceUnavailable",
    "StoreReadError", "Timeout", "TooManyRequests", "Unauthorized", "UnsupportedMediaType",
})  # fmt: skip
"""All values of Kubernetes' `metav1.StatusReason`."""


class TensileError(Exception):
    """An error for a user: what failed, where, for which input, and what to do, in one or more lines."""


class PortTaken(TensileError):
    """The port is in use by another process, on at least one of the requested addresses."""


class AccessError(TensileError):
    """The configured access to a cluster cannot be used: `what` is wrong, and `advice` says what to do.

    The message is both and contains no secret. `advice` is "" where `what` suffices.
    """

    def __init__(self, what: str, advice: str = "") -> None:
        super().__init__(f"{what}: {advice}" if advice else what)
        self.what = what
        self.advice = advice


class ClusterError(TensileError):
    """A request to a cluster failed.

    `cluster` and `doing` name the cluster and the request ("create Pod default/web"). `status` is the HTTP status, 0
    without a response. `reason` is the API's machine-readable reason, "" for none, and `causes` holds the reasons of
    its causes.
    """

    title: ClassVar[str] = "failed"

    def __init__(
        self,
        message: str,
        *,
        cluster: str = "",
        doing: str = "",
        status: int = 0,
        reason: str = "",
        causes: tuple[str, ...] = (),
        retry_after: float = 0.0,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.cluster = cluster
        self.doing = doing
        self.status = status
        self.reason = reason
        self.causes = causes
        self.retry_after = retry_after

    @property
    def description(self) -> str:
        """The error without the cluster's name, for output that already names the cluster."""
        return f"{self.doing}: {self.title}: {self.message}"

    def __str__(self) -> str:
        return f"{self.cluster or 'upper'}: {self.description}"


class NotFound(ClusterError):
    """The object does not exist (404)."""

    title = "not found"


class AlreadyExists(ClusterError):
    """An object of that name already exists (409 AlreadyExists): check its owner."""

    title = "already exists"


class Conflict(ClusterError):
    """The object changed since it was read, or another object has its name now: read it again and decide again."""

    title = "conflict"


class Denied(ClusterError):
    """The cluster rejected the request (400, 403, 405, 413, 415, 422): quota, admission, permission, validation."""

    title = "denied"


class Unauthorized(ClusterError):
    """The cluster did not accept the credential (401)."""

    title = "credential rejected"


class Throttled(ClusterError):
    """The cluster asks to retry later (429, or 503 with Retry-After). `retry_after` is in seconds."""

    title = "throttled"


class Expired(ClusterError):
    """The resourceVersion is too old (410) or too new (504 "too large") to continue from: list again."""

    title = "resourceVersion is not usable"


class Unreachable(ClusterError):
    """The cluster did not respond, or only with a server failure (connection, TLS, time-out, 5xx)."""

    title = "not reachable"


class Malformed(Unreachable):
    """The cluster sent an object that does not have the form of the API. No decision is based on it."""

    title = "malformed object"


def described(error: BaseException) -> str:
    """Return the type, the message and the code location of an unexpected error."""
    location = raised_at(error)
    return f"{type(error).__name__}: {error}" + (f" at {location}" if location else "")


def raised_at(error: BaseException) -> str:
    """Return FILE:LINE where an error was raised, "" for an error that was never raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
