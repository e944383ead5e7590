"""Servers on ports that the topology can change at run time, and the webhook as such a server.

A port of an edit may be in use, possibly by another server of this process that is about to release it. The former
server keeps serving until the port is free, and the open is retried, so that no second edit is needed.
"""

import asyncio
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Protocol

import structlog

from tensile.errors import PortTaken, TensileError
from tensile.kube.cluster import Selection
from tensile.kube.credentials import SERVICE_ACCOUNT
from tensile.kube.fleet import Fleet, InformerSpec
from tensile.kube.net import listening, supervised
from tensile.objects import CLAIM, UPPER
from tensile.policy.webhook.server import WebhookContext, WebhookServer
from tensile.topology import Topology

_AGAIN = 1.0
"""Seconds between two attempts."""
_SELDOM = 60.0
"""Seconds between two attempts that each interrupt what is served."""
_log = structlog.get_logger("tensile.engine.servers")


class ServedPart(Protocol):
    """Something that is served on a port of its own."""

    @property
    def port(self) -> int:
        """The port it listens on, 0 for none."""
        ...

    async def open(self, topology: Topology) -> None:
        """Serve as a topology says; raises TensileError, with nothing changed, if that is not possible."""
        ...

    async def close(self) -> None:
        """Stop serving."""
        ...


class ReloadableServer:
    """Keeps a server as the active topology says; `section` is the topology's section with `bind` and `port`.

    Of several that change ports in one edit, each first releases its port (`make_way`), then each follows: two that
    wait for each other's port would never get it.
    """

    def __init__(self, section: str, part: ServedPart) -> None:
        self._section = section
        self._part = part
        self._wanted: Topology
        self._served: Topology | None = None
        """What was served last, None for nothing, so that there is nothing to fall back to."""
        self._trying: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()
        self._edited = asyncio.Event()
        self._costs = False
        """Whether an attempt interrupts what is served."""
        self.pending: tuple[str, ...] = ()
        """What is not active yet, as a message."""

    async def open(self, topology: Topology) -> None:
        """Start; raises TensileError if that is not possible."""
        async with self._changing:
            self._wanted = topology
            await self._part.open(topology)
            self._note_served()

    async def release_port(self, topology: Topology) -> None:
        """Stop serving if the topology to be activated assigns this port to another server."""
        async with self._changing:
            self._wanted, taken = topology, _ports(topology, but=self._section)
            if self._served is not None and getattr(self._served, self._section).port in taken:
                await self._part.close()
                self._served = None

    async def follow(self, topology: Topology) -> None:
        """Serve as the activated topology says; if that is not possible, report it and retry."""
        async with self._changing:
            self._wanted = topology
            await self._try()
        self._edited.set()
        if self.pending and (self._trying is None or self._trying.done()):
            self._trying = supervised(f"port of {self._section}", self._keep_trying)

    async def close(self) -> None:
        """Stop serving."""
        if self._trying is not None:
            self._trying.cancel()
            await asyncio.gather(self._trying, return_exceptions=True)
        async with self._changing:
            await self._part.close()

    async def _keep_trying(self) -> None:
        while self.pending:
            self._edited.clear()
            try:  # an edit has been tried by `follow` already, and may change the interval
                await asyncio.wait_for(self._edited.wait(), _SELDOM if self._costs and self._part.port else _AGAIN)
            except TimeoutError:
                async with self._changing:
                    await self._try()

    async def _try(self) -> None:
        """Serve as the topology says, or as before."""
        try:
            await self._open()
        except TensileError as error:
            await self._fall_back()
            self._put_off(str(error))
        else:
            self._note_served()
            self._settle()

    async def _open(self) -> None:
        """Open the new port beside the former one; close that first only if it is what blocks the new one."""
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
        """Report whether the new address conflicts with the present one of this server."""
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
    """Report whether this machine has an address."""
    with suppress(OSError), listening(address, 0):
        return True
    return False


def _ports(topology: Topology, *, but: str) -> set[int]:
    """Return the ports of a topology, without that of one section."""
    beside = {"webhook": topology.webhook.enabled, "extender": topology.extender.enabled, "telemetry": True}
    found = {getattr(topology, section).port for section, is_on in beside.items() if is_on and section != but}
    return found.union(spec.node.kubelet_port for spec in topology.lowers)


class WebhookPort:
    """The webhook on its port; the cache of claims in `home` is filled while it is served."""

    def __init__(self, home: WebhookContext, fleet: Fleet) -> None:
        self.server = WebhookServer(home)
        self._feed = InformerSpec(UPPER, CLAIM, Selection(), home.claims)
        self._fleet = fleet
        self._task: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port it listens on, 0 for none."""
        return self.server.port

    async def open(self, topology: Topology) -> None:
        """Serve as a topology says; raises TensileError, with nothing changed, if that is not possible."""
        await self.server.serve(topology)
        if topology.webhook.enabled:
            self._fleet.follow(self._feed)
        if self._task is None:
            self._task = supervised("webhook", self.server.run)

    async def close(self) -> None:
        """Stop serving."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self.server.close()


def own_namespace(account: Path = SERVICE_ACCOUNT) -> str:
    """Return the namespace that this process runs in, "" outside a cluster; `account` is its ServiceAccount."""
    with suppress(OSError):
        return (account / "namespace").read_text().strip()
    return ""
