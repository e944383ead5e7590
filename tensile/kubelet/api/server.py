"""The kubelet API of the virtual nodes: one HTTPS port for each, so that the node follows from the port.

Routes such as /pods carry no node's name, and rights are asked for by node: with one port for all, neither could be
answered truly. Ports come, move and go while the engine runs; what is open on the others is not touched. They are
arranged all at once, because nodes pass ports on to each other: a port that goes from one to another is never closed.
"""

import asyncio
from collections.abc import Mapping

from tensile.door import Door
from tensile.errors import TensileError
from tensile.kubelet.api.listener import Listener
from tensile.kubelet.api.seating import Address, Seat, seated
from tensile.kubelet.api.service import Gate, Service, Site
from tensile.kubelet.api.target import Log
from tensile.kubelet.api.wire import Limits

_ADVICE = "it is had once that node is gone or elsewhere; else give another node.kubeletPort to this lower"


class KubeletServer:
    """The listeners of all virtual nodes."""

    def __init__(self, gate: Gate, log: Log, limits: Limits | None = None) -> None:
        self._gate = gate
        self._log = log
        self._limits = limits or Limits()
        self._service = Service(gate, log, self._limits)
        self._door = Door(self._limits.waiting, self._limits.patience)
        self._sites: dict[str, Site] = {}
        self._listeners: dict[str, Listener] = {}

    async def arrange(self, seats: Mapping[str, Seat]) -> dict[str, TensileError]:
        """Serve these virtual nodes and no others, each at its address; streams that are open go on.

        Gives why not, for those of which the address cannot be had now, or the certificate's files are no good. Such a
        node stays where it is, unless another one is to be there.
        """
        for node in self._sites.keys() - seats.keys():
            await self.stop(node)
        troubles = self._furnish(seats)
        wanted = {node: seat.address for node, seat in seats.items() if node in self._sites}
        doors = {listener.address: listener for listener in self._listeners.values()}
        doors |= self._opened(wanted, doors, troubles)
        held = {node: listener.address for node, listener in self._listeners.items()}
        now = seated(held, wanted, troubles.keys())
        self._listeners = {node: doors.pop(address) for node, address in now.items()}
        for node, listener in self._listeners.items():
            listener.site = self._sites[node]
        await asyncio.gather(*[listener.shut() for listener in doors.values()], return_exceptions=True)
        return troubles | self._waiting(wanted.keys() - troubles.keys(), wanted)

    async def stop(self, node: str) -> None:
        """Serve a virtual node no more; its streams end."""
        listener, site = self._listeners.pop(node, None), self._sites.pop(node, None)
        self._gate.serving.forget(node)
        if listener is not None:
            await asyncio.gather(listener.shut(), return_exceptions=True)
        if site is not None:
            await site.close()

    async def close(self) -> None:
        """Stop serving every virtual node."""
        for node in tuple(self._sites):
            await self.stop(node)

    def port(self, node: str) -> int:
        """Give the port on which a node is served, 0 for none."""
        return self._listeners[node].port() if node in self._listeners else 0

    def streams(self) -> dict[str, int]:
        """Count the open streams (logs, exec, attach, port-forward) of each virtual node."""
        return {node: site.streams for node, site in self._sites.items()}

    def _furnish(self, seats: Mapping[str, Seat]) -> dict[str, TensileError]:
        """Have a site for each node that a certificate can be shown for; gives why not for the others."""
        troubles = {}
        for node, seat in seats.items():
            try:
                if node not in self._sites:
                    self._gate.serving.context(node, "")
                    self._sites[node] = Site(node, seat.pods)
                self._sites[node].pods, self._sites[node].meter = seat.pods, seat.meter
            except TensileError as error:
                troubles[node] = error
        return troubles

    def _opened(
        self, wanted: Mapping[str, Address], doors: Mapping[Address, Listener], troubles: dict[str, TensileError]
    ) -> dict[Address, Listener]:
        """Open what is wanted and not open yet; what cannot be had is noted in `troubles`."""
        opened: dict[Address, Listener] = {}
        for node, address in wanted.items():
            if address not in doors and address not in opened:
                try:
                    site = self._sites[node]
                    opened[address] = Listener(site, address, self._service, self._log, self._door)
                except TensileError as error:
                    troubles[node] = error
        return opened

    def _waiting(self, nodes: set[str], wanted: Mapping[str, Address]) -> dict[str, TensileError]:
        """Say of each of these nodes that is not where it wants to be who is there."""
        present = {listener.address: node for node, listener in self._listeners.items()}
        return {
            node: TensileError(f"port {wanted[node][1]} is that of node {present[wanted[node]]} as yet: {_ADVICE}")
            for node in nodes
            if present[wanted[node]] != node
        }
