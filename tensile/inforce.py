"""What listens where the topology in force says, and goes on trying where it cannot yet.

A port that an edit asks for may be taken for now, be it by another part of this program that is to leave it. What was
served before is served on until the port is free, for the port alone is no reason to edit the topology once more.
"""

import asyncio
from contextlib import suppress
from typing import Protocol

import structlog

from tensile.errors import TensileError
from tensile.supervision import supervised
from tensile.topology import Topology

_AGAIN = 1.0
"""Seconds between two tries."""
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
        self._trying: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()
        self.pending: tuple[str, ...] = ()
        """What is not in force yet, in words."""

    async def open(self, topology: Topology) -> None:
        """Begin; raises TensileError where that is not possible."""
        async with self._changing:
            await self._part.open(topology)
            self._wanted = self._served = topology

    async def make_way(self, topology: Topology) -> None:
        """Serve no more, if a topology that is to be put in force gives another part the port of this one."""
        async with self._changing:
            port = self._part.port
            if port and port in _ports(topology, but=self._section):
                await self._part.close()
                self._served = None

    async def follow(self, topology: Topology) -> None:
        """Do as a topology says that is newly in force; where that is not possible it is said, and tried again."""
        async with self._changing:
            self._wanted = topology
            await self._try()
        if self.pending and (self._trying is None or self._trying.done()):
            self._trying = supervised(f"port of {self._section}", self._keep_trying)

    async def close(self) -> None:
        """Serve no more."""
        async with self._changing:  # no try is under way, half of which might stay open
            if self._trying is not None:
                self._trying.cancel()
            await self._part.close()

    async def _keep_trying(self) -> None:
        while self.pending:
            await asyncio.sleep(_AGAIN)
            async with self._changing:
                await self._try()

    async def _try(self) -> None:
        """Do as the topology says, or as before."""
        blocks = self._blocks_itself()
        if blocks:
            await self._part.close()
        try:
            await self._part.open(self._wanted)
        except TensileError as error:
            self._put_off(str(error))
            if blocks and self._served is not None:
                with suppress(TensileError):
                    await self._part.open(self._served)
        else:
            self._served = self._wanted
            self._settle()

    def _blocks_itself(self) -> bool:
        """Say whether it is to listen at other addresses of the port that it has, which it cannot have beside these."""
        if self._served is None or not self._part.port:
            return False
        before, wanted = (getattr(one, self._section) for one in (self._served, self._wanted))
        return bool(before.port == wanted.port and before.bind != wanted.bind)

    def _put_off(self, why: str) -> None:
        words = f"{self._section}: {why}"
        if self.pending != (words,):
            is_served = "served as before" if self._served is not None else "not served"
            _log.error("not in force yet", change=words, meanwhile=is_served)
        self.pending = (words,)

    def _settle(self) -> None:
        if self.pending:
            _log.info("in force now", section=self._section)
        self.pending = ()


def _ports(topology: Topology, *, but: str) -> set[int]:
    """Give the ports of a topology, without that of one section."""
    beside = {"webhook": topology.webhook.enabled, "extender": topology.extender.enabled, "telemetry": True}
    found = {getattr(topology, section).port for section, is_on in beside.items() if is_on and section != but}
    return found.union(spec.node.kubelet_port for spec in topology.lowers)
