"""How many files and connections this process may have open at a time, and for how many lower clusters that is enough.

A lower cluster takes a connection for each kind that is watched. Shells and service managers give a program 1,024
descriptors, which ends near 25 lowers, and let it have far more where it asks. Where even that is too few, the first
lowers of the topology are served and the others wait: descriptors that all share out would leave every one half read.
"""

import resource
from typing import NamedTuple

EACH = 40
"""Descriptors of one lower: 33 were counted with 1,000 pods, and calls and streams take some more."""
OWN = 100
"""Descriptors of the upper cluster, of files, and of those who call."""


class Shortage(NamedTuple):
    """Too few descriptors: how many there are and are needed, and how to have more."""

    what: str
    advice: str


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


def _finite(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit
