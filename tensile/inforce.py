"""What listens where the topology in force says, and goes on trying where it cannot yet.

A port that an edit asks for may be taken for now, be it by another part of this program that is to leave it. What was
served before is served on until the port is free, for the port alone is no reason to edit the topology once more.
"""

import asyncio
from contextlib import suppress
from ipaddress import ip_address
from typing import Protocol

import structlog

from tensile.errors import PortTaken, TensileError
from tensile.sockets import listening
from tensile.supervision import supervised
from tensile.topology import Topology

_AGAIN = 1.0
"""Seconds between two tries."""
_SELDOM = 60.0
"""Seconds between two tries for each of which what is served has to end, and begins anew."""
_log = structlog.get_logger("tensile.inforce")


class Part(Protocol):
    """Something that is served on a port of its own."""

    @property
    def port(self) -> int:
        """The port that it listens on, 0 for none."""
        ...

    async def open(self, topology: Topology) -> None:
        """Do from now on as a topology says; raises TensileError, and all is as before, where that is not possible."""
        ...

    async def close(self) -> None:
        """Serve no more."""
        ...


class InForce:
    """Keeps a part as the topology in force says; `section` is the topology's that has its `bind` and `port`.

    Several that change their ports in one edit make way first, each of them, and follow then: two that wait for each
    other's port would never have it.
    """

    def __init__(self, section: str, part: Part) -> None:
        self._section = section
        self._part = part
        self._wanted: Topology
        self._served: Topology | None = None
        """What was served last, None for nothing: there is nothing to go back to then."""
        self._trying: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()
        self._edited = asyncio.Event()
        self._costs = False
        """Whether what is served has to end for a try."""
        self.pending: tuple[str, ...] = ()
        """What is not in force yet, in words."""

    async def open(self, topology: Topology) -> None:
        """Begin; raises TensileError where that is not possible."""
        async with self._changing:
            self._wanted = topology
            await self._part.open(topology)
            self._note_served()

    async def make_way(self, topology: Topology) -> None:
        """Serve no more, if a topology that is to be put in force gives another part the port of this one."""
        async with self._changing:
            self._wanted, taken = topology, _ports(topology, but=self._section)
            if self._served is not None and getattr(self._served, self._section).port in taken:
                await self._part.close()
                self._served = None

    async def follow(self, topology: Topology) -> None:
        """Do as a topology says that is newly in force; where that is not possible it is said, and tried again."""
        async with self._changing:
            self._wanted = topology
            await self._try()
        self._edited.set()
        if self.pending and (self._trying is None or self._trying.done()):
            self._trying = supervised(f"port of {self._section}", self._keep_trying)

    async def close(self) -> None:
        """Serve no more."""
        if self._trying is not None:
            self._trying.cancel()
            await asyncio.gather(self._trying, return_exceptions=True)
        async with self._changing:
            await self._part.close()

    async def _keep_trying(self) -> None:
        while self.pending:
            self._edited.clear()
            try:  # an edit has been tried already, and may ask for another pace
                await asyncio.wait_for(self._edited.wait(), _SELDOM if self._costs and self._part.port else _AGAIN)
            except TimeoutError:
                async with self._changing:
                    await self._try()

    async def _try(self) -> None:
        """Do as the topology says, or as before."""
        try:
            await self._open()
        except TensileError as error:
            await self._fall_back()
            self._put_off(str(error))
        else:
            self._note_served()
            self._settle()

    async def _open(self) -> None:
        """Open it beside what is served; only where that alone is in the way, once that is closed."""
        self._costs = False
        try:
            await self._part.open(self._wanted)
        except PortTaken:
            if not self._blocks_itself():
                raise
            self._costs = True
            await self._part.close()
            await self._part.open(self._wanted)

    async def _fall_back(self) -> None:
        """Serve as before, if nothing is served any more."""
        if self._served is not None and not self._part.port:
            with suppress(TensileError):
                await self._part.open(self._served)

    def _note_served(self) -> None:
        self._served = self._wanted if self._part.port else None

    def _blocks_itself(self) -> bool:
        """Say whether it is to listen at addresses that it cannot have beside those that it has."""
        if self._served is None or not self._part.port:
            return False
        before, wanted = (getattr(one, self._section) for one in (self._served, self._wanted))
        is_other = before.bind != wanted.bind and before.port == wanted.port == self._part.port
        overlap = any(ip_address(bind).is_unspecified for bind in (before.bind, wanted.bind))
        return is_other and overlap and _is_here(wanted.bind)

    def _put_off(self, why: str) -> None:
        if self.pending != (why,):
            _log.error("not in force yet", why=why, meanwhile="served as before" if self._part.port else "not served")
        self.pending = (why,)

    def _settle(self) -> None:
        if self.pending:
            _log.info("in force now", section=self._section)
        self.pending = ()


def _is_here(address: str) -> bool:
    """Say whether this machine has an address."""
    with suppress(OSError), listening(address, 0):
        return True
    return False


def _ports(topology: Topology, *, but: str) -> set[int]:
    """Give the ports of a topology, without that of one section."""
    beside = {"webhook": topology.webhook.enabled, "extender": topology.extender.enabled, "telemetry": True}
    found = {getattr(topology, section).port for section, is_on in beside.items() if is_on and section != but}
    return found.union(spec.node.kubelet_port for spec in topology.lowers)
