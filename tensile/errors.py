"""Every error that this project raises on purpose.

Foreign errors are turned into these where they enter (kube/client.py has the table for the API), so that the loop
can decide by type alone what is tried again, and a user never meets a traceback.
"""

import traceback
from pathlib import Path
from typing import ClassVar

INTERRUPTED = 130
"""The exit code of a program that Ctrl-C ended before it was done: 128 and the number of SIGINT, as shells count."""


class TensileError(Exception):
    """Something to tell a user in one or more lines: what, where, for which input, and what to do."""


class PortTaken(TensileError):
    """A port cannot be listened on because somebody does so already, at one of the addresses asked for at least."""


class AccessError(TensileError):
    """The way to a cluster cannot be used as it is written down: `what` is wrong, and `advice` says what to do.

    The message is both; it holds no secret. Where `what` says it all there is no advice.
    """

    def __init__(self, what: str, advice: str = "") -> None:
        super().__init__(f"{what}: {advice}" if advice else what)
        self.what = what
        self.advice = advice


class ClusterError(TensileError):
    """A cluster did not do what was asked.

    `cluster` and `doing` say where and what ("create Pod default/web"), `status` is HTTP's (0 when there was no
    answer), `reason` is the API's machine-readable word ("" when it gave none), `causes` the reasons of its causes.
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
    def words(self) -> str:
        """What went wrong, for where the cluster is named beside it."""
        return f"{self.doing}: {self.title}: {self.message}"

    def __str__(self) -> str:
        return f"{self.cluster or 'upper'}: {self.words}"


class NotFound(ClusterError):
    """There is no such object (404)."""

    title = "not found"


class AlreadyExists(ClusterError):
    """A create met an object of that name (409 AlreadyExists): look whose it is."""

    title = "already exists"


class Conflict(ClusterError):
    """Somebody else wrote first, or the object of that name is another one by now: read again, decide again."""

    title = "changed meanwhile"


class Denied(ClusterError):
    """The cluster understood and says no (400, 403, 405, 413, 415, 422): quota, admission, rights, validation."""

    title = "denied"


class Unauthorized(ClusterError):
    """The credential was not accepted (401)."""

    title = "credential not accepted"


class Throttled(ClusterError):
    """The cluster asks to come again later (429, or 503 with Retry-After); `retry_after` in seconds."""

    title = "asked to wait"


class Expired(ClusterError):
    """A resourceVersion is too old or too new to go on from (410, 504 "too large"): list afresh."""

    title = "resourceVersion is not usable"


class Unreachable(ClusterError):
    """No answer, or one that only says that the server is not well (connection, TLS, time-out, 5xx)."""

    title = "not reachable"


class Malformed(Unreachable):
    """An object that a cluster sent is not as the API makes it: nothing is decided from it."""

    title = "malformed object"


def described(error: BaseException) -> str:
    """Return what went wrong and on which line, for something that should not have: type, words, file and line."""
    place = raised_at(error)
    return f"{type(error).__name__}: {error}" + (f" at {place}" if place else "")


def raised_at(error: BaseException) -> str:
    """Return FILE:LINE of where an error was raised, "" for one that never was."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
