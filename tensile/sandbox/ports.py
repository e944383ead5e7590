"""Finds ports that nothing listens on.

They are taken from below the range that the kernel hands to outgoing connections: a port out of that range may become
the local end of any connection while its server is down, and a restarted apiserver must get its own port back. Between
choosing and listening another program may still be quicker; whoever starts the servers tries again then.
"""

import random
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tensile.sandbox.errors import SandboxError
from tensile.sandbox.layout import LOOPBACK

LOWEST = 15000
HIGHEST = 32767
TRIES = 200
KERNEL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def choose(sizes: Sequence[int]) -> list[range]:
    """Return a run of free neighbouring ports for each of the sizes; no port is in two of them.

    Raises:
        SandboxError: too few ports are free.
    """
    with ExitStack() as held:
        return [_run(size, held) for size in sizes]


def highest(kernel_range: str) -> int:
    """Return the last port below the kernel's range ("32768 60999"), or ours where that leaves too few."""
    first = int(kernel_range.split(maxsplit=1)[0])
    return min(HIGHEST, first - 1) if first > LOWEST + 1000 else HIGHEST


def _run(size: int, held: ExitStack) -> range:
    """Find one run of neighbours and hold it."""
    last = highest(KERNEL_RANGE.read_text()) if KERNEL_RANGE.exists() else HIGHEST
    for _ in range(TRIES):
        start = random.randint(LOWEST, last - size)  # noqa: S311  # not a secret
        ports = range(start, start + size)
        if _hold(ports, held):
            return ports
    raise SandboxError(
        f"no {size} neighbouring free ports of {LOOPBACK} found in {LOWEST}-{last}; stop what listens there"
    )


def _hold(ports: range, held: ExitStack) -> bool:
    """Bind all of them until the caller has chosen all that it needs."""
    with ExitStack() as attempt:
        for port in ports:
            listener = attempt.enter_context(socket.socket())
            try:
                listener.bind((LOOPBACK, port))
            except OSError:
                return False
        held.push(attempt.pop_all())
    return True
