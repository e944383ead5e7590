"""How many files and connections this process may have open at a time, and for how many lower clusters that is enough.

A lower cluster takes a connection for each kind that is watched. Shells and service managers give a program 1,024
descriptors, which ends near 25 lowers, and let it have far more where it asks. Where even that is too few, the first
lowers of the topology are served and the others wait: descriptors that all share out would leave every one half read.
"""

import resource

EACH = 40
"""Descriptors of one lower: 33 were counted with 1,000 pods, and calls and streams take some more."""
OWN = 100
"""Descriptors of the upper cluster, of files, and of those who call."""


def raise_limit() -> None:
    """Have as many as the system lets this process have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def limit() -> int | None:
    """Return how many descriptors this process may have once it has asked for all; None for as many as it likes."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if hard == resource.RLIM_INFINITY else hard


def shortage(lowers: int, most: int | None) -> str:
    """Return why so many lower clusters are too many for `most` descriptors, and what to do; "" where they are not."""
    needed = OWN + EACH * lowers
    if most is None or needed <= most:
        return ""
    return (
        f"this process may open {most} files and connections, and {lowers} lower clusters need {needed}: raise the "
        f"hard limit (LimitNOFILE of a systemd service, ulimit -Hn {needed} of a shell)"
    )
