"""Ports that are free now, for servers that have to be told one."""

import socket


def spare_port() -> int:
    """Give a port that nobody listens on now."""
    (found,) = spare_ports(1)
    return found


def spare_ports(count: int) -> list[int]:
    """Give as many, no two the same."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports
