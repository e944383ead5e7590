"""Ports that are free now, for servers that have to be told one, and stay free until they listen there.

They are below those that the kernel gives to outgoing connections and to whoever asks for any port, and apart from
those of sandboxes. Each belongs to the process that was given it, until that ends: tests and benches that run side by
side, as others on the same machine, lock it in a file that all of them know.
"""

import fcntl
import os
import random
import socket
import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path

FIRST, LAST = 10_400, 14_999
"""Sandboxes begin above them, and the ports that virtual nodes have by default are below."""
MOST = 500
"""That one process locks: a run of all tests asks for some thousand."""
_V4 = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0"))
_ADDRESSES = (*_V4, (socket.AF_INET6, "::")) if socket.has_dualstack_ipv6() else _V4
_own: deque[int] = deque()


def _claims() -> int:
    """Open the file in which ports are locked, one byte each: anybody's, as are the ports."""
    path = Path(tempfile.gettempdir()) / "tensile-spare-ports"
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except PermissionError:  # another user's: it holds among those of one user
        own = path.with_name(f"{path.name}-{os.getuid()}")
        return os.open(own, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


_locks = _claims()
"""Held until the process ends: a lock on a file ends with the first closing of it."""


def spare_port() -> int:
    """Return a port that nobody listens on now."""
    (found,) = spare_ports(1)
    return found


def spare_ports(count: int) -> list[int]:
    """Return as many, no two the same; raises OSError where too few are left."""
    found: list[int] = []
    for port in _candidates():
        if port not in found and _is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"{count} ports from {FIRST} to {LAST} cannot be had: end what listens there")


def _candidates() -> Iterator[int]:
    """Yield ports of this process: new ones, or those again that were given longest ago."""
    many = LAST + 1 - FIRST
    start = random.randrange(many)
    for number in range(many if len(_own) < MOST else 0):
        port = FIRST + (start + number) % many
        if len(_own) < MOST and port not in _own and _locked(port):
            _own.append(port)
            yield port
    for _ in range(len(_own)):
        _own.rotate(-1)
        yield _own[-1]


def _locked(port: int) -> bool:
    """Take a port for this process; a lock is told by its place in the file."""
    try:
        fcntl.lockf(_locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


def _is_free(port: int) -> bool:
    """Report whether nobody listens there, on whichever address."""
    try:
        for family, address in _ADDRESSES:
            socket.create_server((address, port), family=family).close()
    except OSError:
        return False
    return True
