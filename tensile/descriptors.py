"""How many files and connections this process may have open at a time, and for how many lower clusters that is enough.

A lower cluster takes a connection for each kind that is watched. Shells and service managers give a program 1,024
descriptors, and let it have far more where it asks. Where even that is too few, the first lowers of the topology are
served and the others wait: descriptors that all share out would leave every one half read.

What is left beyond that is for bursts: more calls to a cluster at one time, and more streams of users. Each has a part
of it, so that none takes what another rests on.
"""

import resource
import sys
from typing import NamedTuple

EACH = 25
"""Descriptors of one lower: at most 19 watches of its own, one of the upper's pods, its port, three calls at once, and
the connection on which it is asked who it is."""
OWN = 100
"""Descriptors of files (22), of the upper cluster (20 watches, eight connections of calls), and of those who call."""
_CALLS, _UPPER_CALLS, _STREAMS, _WAITING = 3, 7, 8, 8
_MOST_CALLS, _MOST_UPPER_CALLS = 32, 64


class Shortage(NamedTuple):
    """Too few descriptors: how many there are and are needed, and how to have more."""

    what: str
    advice: str


class Parts(NamedTuple):
    """How much each may take: calls at one time to a lower cluster and to the upper one, streams, and callers.

    Of callers those who have not said yet who they are. Streams and callers may be fewer, for another reason.
    """

    calls: int
    upper_calls: int
    streams: int
    waiting: int


def raise_limit() -> None:
    """Raise the soft limit of open files to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def soft_limit() -> int | None:
    """Return how many files this process may have open now, None for no limit."""
    return _finite(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def hard_limit() -> int | None:
    """Return how many files this process may have open after `raise_limit`, None for no limit."""
    return _finite(resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def missing(lowers: int, most: int | None) -> Shortage | None:
    """Return why so many lower clusters are too many for `most` descriptors, None where they are not."""
    needed = OWN + EACH * lowers
    if most is None or needed <= most:
        return None
    return Shortage(
        f"this process may open {most} files and connections, and {lowers} lower clusters need {needed}",
        f"raise the hard limit (LimitNOFILE of a systemd service, ulimit -Hn {needed} of a shell)",
    )


def shortage(lowers: int, most: int | None) -> str:
    """Return the same as one sentence, "" for enough."""
    found = missing(lowers, most)
    return ": ".join(found) if found else ""


def parts(lowers: int, most: int | None) -> Parts:
    """Share out `most` descriptors (None: any number) where so many lower clusters are in the topology.

    A stream takes two. What is left over then is for the ports at which apiservers and schedulers call.
    """
    spare = sys.maxsize if most is None else max(0, most - OWN - EACH * lowers)
    return Parts(
        calls=min(_MOST_CALLS, _CALLS + spare // 8 // max(lowers, 1)),
        upper_calls=min(_MOST_UPPER_CALLS, _UPPER_CALLS + spare // 16),
        streams=_STREAMS + spare // 4,
        waiting=_WAITING + spare // 16,
    )


def _finite(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit
