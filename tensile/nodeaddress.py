"""The IP address at which the upper cluster's apiserver calls the virtual nodes."""

import os
import socket
from contextlib import suppress

from tensile.topology import Topology

_ADDRESSES = ("POD_IP", "VKUBELET_POD_IP")


def node_address(topology: Topology, upper: tuple[str, int]) -> str:
    """Give the IP address of the virtual nodes: the topology's, the pod's, or the one the upper is called from."""
    given = [topology.kubelet.node_address, *(os.environ.get(name) for name in _ADDRESSES)]
    return next((str(address) for address in given if address), "") or _local_address(upper)


def _local_address(upper: tuple[str, int]) -> str:
    """Ask the system from which address it would call; nothing is sent."""
    with suppress(OSError), socket.socket(_family(upper), socket.SOCK_DGRAM) as probe:
        probe.connect(upper)
        return str(probe.getsockname()[0])
    return ""


def _family(upper: tuple[str, int]) -> socket.AddressFamily:
    return socket.getaddrinfo(*upper, type=socket.SOCK_DGRAM)[0][0]
