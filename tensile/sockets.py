"""A port to listen on, for every server of the engine alike.

In one place so that an address means the same to each of them: `::` is every address of IPv6 and of IPv4. A Service of
a cluster with both leads to whichever of the pod's addresses comes first there, which nobody knows when it is written.
"""

import errno
import os
import socket

from tensile.errors import PortTaken, TensileError

_BACKLOG = 1024
"""Connections that the kernel holds until they are accepted: beyond it, callers wait for a second or more."""


def listening(bind: str | None, port: int) -> socket.socket:
    """Listen on an IP address (None: on every address of this machine) and a TCP port, 0 for any free one.

    Gives a socket that does not block, to be closed by the caller. Raises OSError with the system's number and words;
    of every address of both families none is had where the port is taken in one.
    """
    both = socket.has_dualstack_ipv6()
    address = bind or ("::" if both else "0.0.0.0")  # noqa: S104 - it is what None means
    is_v6 = ":" in address
    family = socket.AF_INET6 if is_v6 else socket.AF_INET
    try:
        opened = socket.create_server((address, port), family=family, backlog=_BACKLOG, dualstack_ipv6=both and is_v6)
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0)) from None
    opened.setblocking(False)
    return opened


def keep_alive(made: socket.socket, *, idle: int, interval: int, count: int) -> None:
    """Have the kernel ask whether the other side is still there, also when nothing is sent.

    It asks after `idle` seconds, then `count` times every `interval` seconds, and ends the connection.
    """
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", idle), ("TCP_KEEPINTVL", interval), ("TCP_KEEPCNT", count)):
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def refusal(error: OSError, words: str) -> TensileError:
    """Make of what `listening` raised an error for people, which says by its type whether somebody has the port."""
    return PortTaken(words) if error.errno == errno.EADDRINUSE else TensileError(words)


def place(bind: str | None, port: int) -> str:
    """Write where a server listens, or would, as in a URL; * for every address."""
    host = f"[{bind}]" if bind and ":" in bind else bind or "*"
    return f"{host}:{port}"
