"""Ports that are free now and stay free until the server that is configured with one listens there.

They are below the ports that the kernel assigns to outgoing connections and to servers without a fixed port, and apart
from those of sandboxes. Each belongs to the process that received it until that process ends: tests and benches that
run side by side on a machine lock it in a file that they share.
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
"""The ports of sandboxes are higher than these, and the default ports of virtual nodes are lower."""
MOST = 500
"""The most ports that one process locks: a run of all tests uses some thousand."""
_V4 = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0"))
_ADDRESSES = (*_V4, (socket.AF_INET6, "::")) if socket.has_dualstack_ipv6() else _V4
_own: deque[int] = deque()


def _claims() -> int:
    """Open the file in which ports are locked, one byte each; all users share it, as they share the ports."""
    path = Path(tempfile.gettempdir()) / "tensile-spare-ports"
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except PermissionError:  # another user's file: lock among the processes of one user
        own = path.with_name(f"{path.name}-{os.getuid()}")
        return os.open(own, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


_locks = _claims()
"""Open until the process ends: closing any descriptor of the file would release its locks."""


def spare_port() -> int:
    """Return a port on which no server listens now."""
    (found,) = spare_ports(1)
    return found


def spare_ports(count: int) -> list[int]:
    """Return so many different ports; raises OSError if too few are left."""
    found: list[int] = []
    for port in _candidates():
        if port not in found and _is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"{count} ports from {FIRST} to {LAST} cannot be had: end what listens there")


def _candidates() -> Iterator[int]:
    """Yield ports of this process: new ones, or else the least recently returned ones again."""
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
    """Lock a port for this process; the lock of a port is the byte at its number in the file."""
    try:
        fcntl.lockf(_locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


def _is_free(port: int) -> bool:
    """Report whether no server listens on the port, on any address."""
    try:
        for family, address in _ADDRESSES:
            socket.create_server((address, port), family=family).close()
    except OSError:
        return False
    return True
