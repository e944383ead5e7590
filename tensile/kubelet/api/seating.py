"""Which virtual node gets which port, where some have ports that others are to have.

A lower cluster that is taken out of a topology, or put in another place of it, passes ports on among nodes that are
served. One that cannot have its port yet stays where it is, so that it can be reached all the same.
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from tensile.kubelet.api.meter import Meter
from tensile.kubelet.api.target import Pods

Address = tuple[str, int]
"""What is listened on: an IP address of this machine, and a port."""


class Seat(NamedTuple):
    """Where a virtual node is to be served, and what with; without a `meter` nobody knows what it uses."""

    address: Address
    pods: Pods
    meter: Meter | None = None


def seated(
    held: Mapping[str, Address], wanted: Mapping[str, Address], barred: Collection[str] = ()
) -> dict[str, Address]:
    """Give the address of each node from now on; one that gets none is left out.

    `held` says where nodes are served now, all of them in `wanted`; `barred` are those whose address is not to be had
    at all. A node gets what it wants if nobody has that, or if who has it goes where it wants itself, or is barred and
    makes way. Otherwise it stays where it is. Of several that want the same, the one that has it keeps it, else the
    first gets it.
    """
    holders = {address: node for node, address in held.items()}
    heirs = {address: node for node, address in reversed(list(wanted.items()))}
    going = set(heirs.values()).difference(barred)
    while stuck := {node for node in going if holders.get(wanted[node], node) not in going.union(barred)}:
        going -= stuck
    arrived = {node: wanted[node] for node in going}
    taken = set(arrived.values())
    return arrived | {node: address for node, address in held.items() if node not in going and address not in taken}
