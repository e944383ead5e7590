"""The IP address at which the upper cluster's apiserver calls the virtual nodes.

It is where an engine serves them. A program that serves nothing, on whatever machine, knows it from what the Nodes say.
"""

import os
import socket
from contextlib import suppress

from tensile.reconcile.observed import is_ours
from tensile.topology import Topology
from tensile.world import World

_ADDRESSES = ("POD_IP", "VKUBELET_POD_IP")


def node_address(topology: Topology, upper: tuple[str, int]) -> str:
    """Give the IP address of the virtual nodes: the topology's, the pod's, or the one the upper is called from."""
    given = [topology.kubelet.node_address, *(os.environ.get(name) for name in _ADDRESSES)]
    return next((str(address) for address in given if address), "") or _local_address(upper)


def address_in_use(world: World) -> str:
    """Give the address of the virtual nodes that an engine has published; the one that was found, where none has."""
    manifests = (entry.manifest() for entry in world.upper.nodes)
    ours = (one for one in manifests if is_ours(one, world.owner))
    published = (one for node in ours for one in node.get("status", {}).get("addresses", ()))
    told = next((str(one["address"]) for one in published if one["type"] == "InternalIP"), "")
    return str(world.topology.kubelet.node_address or told or world.node_address)


def _local_address(upper: tuple[str, int]) -> str:
    """Ask the system from which address it would call; nothing is sent."""
    with suppress(OSError), socket.socket(_family(upper), socket.SOCK_DGRAM) as probe:
        probe.connect(upper)
        return str(probe.getsockname()[0])
    return ""


def _family(upper: tuple[str, int]) -> socket.AddressFamily:
    return socket.getaddrinfo(*upper, type=socket.SOCK_DGRAM)[0][0]
