"""What listens where the topology in force says, and goes on trying where it cannot yet.

A port that an edit asks for may be taken for now, be it by another part of this program that is to leave it. What was
served before is served on until the port is free, for the port alone is no reason to edit the topology once more.

The webhook of the topology in force, as the engine holds it, and by itself (`tensile run --only webhook`).

By itself it needs nothing of the lower clusters, so none is opened: what it looks up is the upper's claims, and what
the descheduler has noted on the virtual nodes.
"""

import asyncio
from contextlib import suppress
from ipaddress import ip_address
from typing import Protocol

import structlog

from tensile.engine.caches import node_feed
from tensile.engine.lower import Ways
from tensile.errors import PortTaken, TensileError
from tensile.kube.cluster import Selection
from tensile.kube.credentials import SERVICE_ACCOUNT
from tensile.kube.fleet import Feed, Fleet
from tensile.kube.net import listening, supervised
from tensile.kube.store import Cache
from tensile.names import owner_of
from tensile.objects import CLAIM, UPPER
from tensile.policy.webhook.server import Hooks, WebhookServer
from tensile.reconcile.ownership import digest_node
from tensile.reconcile.rules import claims
from tensile.topology import Topology

_AGAIN = 1.0
"""Seconds between two tries."""
_SELDOM = 60.0
"""Seconds between two tries for each of which what is served has to end, and begins anew."""
_log = structlog.get_logger("tensile.engine.servers")


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
        """Report whether it is to listen at addresses that it cannot have beside those that it has."""
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


_CONNECTIONS = 4


class HookPort:
    """The webhook beside what else runs; the cache of claims in `home` is fed while it is served."""

    def __init__(self, home: Hooks, fleet: Fleet) -> None:
        self.server = WebhookServer(home)
        self._feed = Feed(UPPER, CLAIM, Selection(), home.claims)
        self._fleet = fleet
        self._task: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port that it listens on, 0 for none."""
        return self.server.port

    async def open(self, topology: Topology) -> None:
        """Do from now on as a topology says; raises TensileError, and all is as before, where that is not possible."""
        await self.server.serve(topology)
        if topology.webhook.enabled:
            self._fleet.ensure(self._feed)
        if self._task is None:
            self._task = supervised("webhook", self.server.run)

    async def close(self) -> None:
        """Serve no more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self.server.close()


class WebhookAlone:
    """The webhook of a topology and nothing else; used inside one event loop."""

    port: HookPort

    def __init__(self, topology: Topology, ways: Ways, fleet: Fleet) -> None:
        self.topology = topology
        self.is_running = False
        self._ways = ways
        self._fleet = fleet

    async def start(self) -> None:
        """Start; returns when the upper cluster has answered. TensileError: bad credentials, or a port is taken."""
        if not self.topology.webhook.enabled:
            raise TensileError("webhook.enabled is false: there is nothing to run with --only webhook")
        upper = self.topology.upper
        access = await self._ways.upper_access(upper)
        cluster = self._fleet.open(
            UPPER, access, qps=upper.qps, burst=upper.burst, connections=_CONNECTIONS, anchored=True
        )
        owner = owner_of(await self._fleet.identified(UPPER), self.topology.name)
        known, nodes = Cache(claims.digest, claims.INDEXES), Cache(digest_node)
        self._fleet.follow(node_feed(nodes))
        home = Hooks(cluster, owner, self._ways.directory, known, nodes, self._fleet.watcher, own_namespace())
        self.port = HookPort(home, self._fleet)
        self._in_force = InForce("webhook", self.port)
        await self._in_force.open(self.topology)
        self.is_running = True

    async def stop(self) -> None:
        """Stop; what is registered stays."""
        if self.is_running:
            await self._in_force.close()
        await self._fleet.close_all()

    async def reload(self, topology: Topology) -> None:
        """Put another topology in force; its name and upper are those of the one in force."""
        self.topology = topology
        await self._in_force.follow(topology)

    @property
    def pending(self) -> tuple[str, ...]:
        """What of the topology is not in force yet, in words."""
        return self._in_force.pending if self.is_running else ()

    def missing(self) -> str:
        """Return why it is not ready, "" when it is."""
        return self.port.server.waits() if self.is_running else "the upper cluster has not answered yet"


def own_namespace() -> str:
    """Return the namespace that this program runs in, "" where it runs in no cluster."""
    with suppress(OSError):
        return (SERVICE_ACCOUNT / "namespace").read_text().strip()
    return ""
