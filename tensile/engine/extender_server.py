"""The scheduler extender of the topology in force, as the engine holds it: its port, its TLS, and what it knows.

It shows the kubelet API's certificate, and heeds the same authority of callers: both are called by programs of the
upper cluster, on the same machine. Files are watched, so that what is renewed counts without a restart. Nothing is
known of the lowers' nodes and pods while it is not enabled.
"""

import asyncio
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import structlog

from tensile.engine.kubelet_server import authority_of, files_of, kept_files
from tensile.kube.cluster import Cluster
from tensile.kube.file_watch import FileWatcher, KeptFiles
from tensile.kube.net import supervised
from tensile.kube.store import Entry
from tensile.kubelet.api.client_ca import ClientAuthority
from tensile.kubelet.api.serving_certificate import Serving
from tensile.objects import timestamp
from tensile.policy.extender.extender import Extender, Site, Want
from tensile.policy.extender.preemption import Preemptor
from tensile.policy.extender.server import ExtenderPort, listening
from tensile.policy.extender.tracker import Prospects, Survey
from tensile.reconcile.world import World
from tensile.topology import Extender as Section
from tensile.topology import Kubelet, Topology

_LOOK = 10.0
"""Seconds between two looks at what no file tells of: a published authority, the end of a certificate of our own."""
_WHO = "extender"
_ADVICE = (
    "the upper scheduler cannot verify it: set kubelet.tlsCertFile and kubelet.tlsKeyFile, and the certificate's "
    "authority as tlsConfig.caFile of the extender in its configuration"
)
_log = structlog.get_logger("tensile.extender")


class _Papers(NamedTuple):
    """What the port shows and whom it hears, of which section of the topology; both are read again in time."""

    section: Kubelet
    serving: Serving
    authority: ClientAuthority
    files: KeptFiles

    async def tls(self) -> ssl.SSLContext:
        """Return the TLS of now; raises TensileError where there has been no good certificate yet."""
        return self.serving.context(_WHO, await self.authority.pem())


class Extending:
    """Serves the extender where the topology in force wants it, from the first `open` to `close`.

    Paths of the topology are relative to `directory`, and `watcher` watches them; `upper` is asked for the authority of
    callers, `now` gives the time of day.
    """

    def __init__(
        self,
        world: World,
        upper: Cluster,
        directory: Path,
        watcher: FileWatcher,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._now = now
        self._clock = clock
        self._world = world
        self._upper = upper
        self._directory = directory
        self._watcher = watcher
        self._touched = asyncio.Event()
        self._surveys: dict[str, Survey] = {}
        self._sites: dict[str, Site] = {}
        self._wants: dict[str, Want] = {}
        self._preemptor = Preemptor(upper, lambda: self._port.extender if self._port else None, clock=clock, now=now)
        self._port: ExtenderPort | None = None
        self._section: Section
        self._papers: _Papers | None = None
        self._latest: _Papers | None = None
        """Those that were made last, be it for a port that could not be had."""
        self._tls: ssl.SSLContext
        self._tasks: list[asyncio.Task[None]] = []
        self._changing = asyncio.Lock()

    @property
    def port(self) -> int:
        """The port that it listens on, 0 for none."""
        return self._port.port if self._port else 0

    async def open(self, topology: Topology) -> None:
        """Do from now on as a topology says; raises TensileError, and all is as before, where that is not possible."""
        if not topology.extender.enabled:
            await self.close()
            self._latest = None
            return
        async with self._changing:
            papers = self._papers_of(topology)
            await self._listen(topology.extender, await papers.tls())
            before, self._papers = self._papers, papers
            if before is not None and before is not papers:
                before.files.close()
        if not self._tasks:
            looking = supervised("certificates of the extender", self._keep_looking)
            self._tasks = [looking, supervised("preemption", self._preemptor.run)]
        self.follow()

    def follow(self) -> None:
        """Know the lowers that there are now, and no others."""
        lowers = self._world.lowers if self._port else {}
        for name, survey in tuple(self._surveys.items()):
            if lowers.get(name) is not survey.lower:
                self._surveys.pop(name).close()
        for name, lower in lowers.items():
            if name not in self._surveys:
                self._surveys[name] = Survey(self._world, lower, Prospects(self._world, lower), self._bound)
        self._sites.clear()
        self._sites.update({survey.lower.node: survey.site for survey in self._surveys.values()})

    def relieved(self) -> list[str]:
        """Note on each lower that has room for what was refused that it has, and give their names.

        The upper scheduler asks about such a pod again when something has happened above, or after minutes: room
        below is nothing that it sees, unless the virtual node says so.
        """
        found = [name for name, survey in self._surveys.items() if survey.is_relieved(self._clock())]
        for name in found:
            self._surveys[name].lower.room = timestamp(self._now())
        return found

    async def look(self) -> None:
        """Show another certificate, or heed another authority, where there is one."""
        async with self._changing:
            if self._port is not None and self._papers is not None:
                await self._show(self._port, await self._papers.tls())

    async def close(self) -> None:
        """Serve no more, and know nothing any more."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._wants.clear()
        async with self._changing:
            port, papers, self._port, self._papers = self._port, self._papers, None, None
            for each in (papers, self._latest):
                if each is not None:
                    each.files.close()
            if port is not None:
                await port.close()
        self.follow()

    def _papers_of(self, topology: Topology) -> _Papers:
        """Return the papers of a topology, those that there are where it says nothing new."""
        kubelet, address = topology.kubelet, self._world.node_address
        known = self._latest
        if known is None or (known.section, known.serving.address) != (kubelet, address):
            kept = kept_files(topology, self._directory, self._watcher, self._touched.set)
            serving = Serving(_log, address, files_of(topology, self._directory), advice=_ADVICE, read=kept.read)
            authority = authority_of(topology, self._directory, self._upper, _log, kept.read)
            if known is not None and known is not self._papers:
                known.files.close()
            known = _Papers(kubelet, serving, authority, kept)
        self._latest = known
        return known

    async def _listen(self, section: Section, tls: ssl.SSLContext) -> None:
        """Take the port, or change it; what was listened on before is given up once the new one is had."""
        extender = Extender(self._sites, section.strategy, self._wants)
        before = self._port
        if before is not None and (self._section.bind, self._section.port) == (section.bind, section.port):
            before.extender = extender
            await self._show(before, tls)
        else:
            taken, preemptor = listening(section.bind, section.port), self._preemptor
            budgets, heed = preemptor.budgets, preemptor.heed
            port = ExtenderPort(taken, extender, clock=self._clock, budgets=budgets, answered=heed)
            await port.show(tls)
            self._port, self._tls = port, tls
            if before is not None:
                await before.close()
        self._section = section

    async def _show(self, port: ExtenderPort, tls: ssl.SSLContext) -> None:
        if tls is not self._tls:
            await port.show(tls)
            self._tls = tls

    async def _keep_looking(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK):
                    await self._touched.wait()
            self._touched.clear()
            await self.look()

    def _bound(self, survey: Survey, pod: Entry) -> None:
        """Have the others keep no room for a pod that is bound to the node of one lower."""
        for other in self._surveys.values():
            if other is not survey:
                other.release(pod)
