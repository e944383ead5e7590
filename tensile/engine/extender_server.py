"""The scheduler extender of the active topology: its port, its TLS configuration and the state it answers from.

It uses the kubelet API's serving certificate and client CA, because both are called by components of the upper cluster
on the same machine. Files are watched, so renewed certificates need no restart. While the extender is disabled, no
state of the lowers' nodes and pods is kept.
"""

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import structlog

from tensile.engine.kubelet_server import authority_of, files_of, kept_files
from tensile.errors import TensileError
from tensile.kube.cluster import Cluster
from tensile.kube.file_watch import FileCache, FileWatcher
from tensile.kube.net import cancel_and_wait, supervised
from tensile.kube.store import Entry
from tensile.kubelet.api.certificates import ClientCA, ServingCertificate
from tensile.kubelet.pods.conditions import conditions_of
from tensile.objects import moment_of, timestamp
from tensile.policy.extender.extender import LowerCandidate, SchedulerExtender, UnschedulablePod
from tensile.policy.extender.preemption_controller import PreemptionController
from tensile.policy.extender.server import ExtenderPort, listening
from tensile.policy.extender.tracker import ClusterTracker, PodProjector
from tensile.reconcile.world import World
from tensile.topology import Extender as Section
from tensile.topology import Kubelet, Topology

_CHECK_INTERVAL = 10.0
"""Seconds between checks of what no file watch reports: a published CA, the end of a self-signed certificate."""
_RETRY_INTERVAL = 1.0
"""Seconds until what failed is tried again."""
_SERVER_NAME = "extender"
_CERTIFICATE_ADVICE = (
    "the upper scheduler cannot verify this certificate: set kubelet.tlsCertFile and kubelet.tlsKeyFile, and set "
    "tlsConfig.caFile of the extender in the scheduler's configuration to its CA"
)
_NOT_CALLED = "the upper scheduler has not called the extender for pod"
_CONFIGURE_ADVICE = "configure that scheduler to call it (docs/extender.md)"
_log = structlog.get_logger("tensile.extender")


class _TLSInputs(NamedTuple):
    """Serving certificate and client CA for one section of the topology; both are reloaded when they change."""

    section: Kubelet
    serving: ServingCertificate
    authority: ClientCA
    files: FileCache

    async def tls(self) -> ssl.SSLContext:
        """Return the present TLS context; raises TensileError if there has been no valid certificate yet."""
        return self.serving.context(_SERVER_NAME, await self.authority.pem())


class ExtenderServer:
    """Serves the extender if the active topology enables it, from the first `open` to `close`.

    Paths of the topology are relative to `directory`, and `watcher` watches them. `upper` is the cluster that publishes
    the client CA, and `now` returns the time of day.
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
        self._wakeup = asyncio.Event()
        self._trackers: dict[str, ClusterTracker] = {}
        self._candidates: dict[str, LowerCandidate] = {}
        self._unschedulable: dict[str, UnschedulablePod] = {}
        self._preemptor = PreemptionController(
            upper, lambda: self._port.extender if self._port else None, clock=clock, now=now
        )
        self._port: ExtenderPort | None = None
        self._topology: Topology
        self._tls_inputs: _TLSInputs | None = None
        self._tls: ssl.SSLContext | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._changing = asyncio.Lock()
        self._serving_errors: tuple[str, ...] = ()
        self._opened_at: datetime | None = None
        self._is_called = False
        self._missed_pod = ""
        """The first pod that a scheduler has bound to a virtual node although it never called the extender."""
        self._reported: tuple[str, ...] = ()

    @property
    def port(self) -> int:
        """The port it listens on, 0 for none."""
        return self._port.port if self._port else 0

    @property
    def pending(self) -> tuple[str, ...]:
        """Why it is not served as the topology says, or has no effect."""
        not_called = (
            (f"{_NOT_CALLED} {self._missed_pod}: {_CONFIGURE_ADVICE}",)
            if self._missed_pod and not self._is_called
            else ()
        )
        return self._serving_errors or not_called

    @property
    def evicted(self) -> Mapping[str, int]:
        """How many pods were deleted to make room for pods of a higher priority, by virtual node."""
        return self._preemptor.evicted

    async def open(self, topology: Topology) -> None:
        """Serve as a topology says; raises TensileError if that is not possible yet: it is tried again."""
        if not topology.extender.enabled:
            await self.close()
            return
        self._topology = topology
        if not self._tasks:
            checking = supervised("extender", self._check_periodically)
            self._tasks = [checking, supervised("preemption", self._preemptor.run)]
        await self._serve()

    def follow(self) -> None:
        """Track the lowers that are joined now, and no others."""
        lowers = self._world.lowers if self._port else {}
        for name, tracker in tuple(self._trackers.items()):
            if lowers.get(name) is not tracker.lower:
                self._trackers.pop(name).close()
        for name, lower in lowers.items():
            if name not in self._trackers:
                self._trackers[name] = ClusterTracker(
                    self._world, lower, PodProjector(self._world, lower), self._on_bound
                )
        self._candidates.clear()
        self._candidates.update({tracker.lower.node: tracker.site for tracker in self._trackers.values()})

    def lowers_with_new_room(self) -> list[str]:
        """Return the lowers that have room now for a pod that was refused, and record that on each.

        The upper scheduler retries such a pod after an event in the upper cluster, or after minutes. It does not see
        room in a lower cluster unless the virtual node changes.
        """
        found = [name for name, tracker in self._trackers.items() if tracker.is_relieved(self._clock())]
        for name in found:
            self._trackers[name].lower.capacity_freed_at = timestamp(self._now())
        return found

    async def refresh(self) -> None:
        """Use a new certificate or client CA, if there is one, or a port that was taken before."""
        with suppress(TensileError):
            await self._serve()
        if self.pending and self.pending != self._reported:
            _log.error("extender not in use as configured", why=self.pending[0])
        self._reported = self.pending

    async def close(self) -> None:
        """Stop serving, and drop all state."""
        tasks, self._tasks = self._tasks, []
        await cancel_and_wait(*tasks)
        self._unschedulable.clear()
        async with self._changing:
            port, tls_inputs, self._port, self._tls_inputs, self._tls = self._port, self._tls_inputs, None, None, None
            if tls_inputs is not None:
                tls_inputs.files.close()
            if port is not None:
                await port.close()
            self._serving_errors, self._opened_at, self._is_called, self._missed_pod = (), None, False, ""
        self.follow()

    def _tls_inputs_of(self, topology: Topology) -> _TLSInputs:
        """Return the TLS inputs of a topology; the present ones if they are unchanged."""
        kubelet, address = topology.kubelet, self._world.node_address
        present = self._tls_inputs
        if present is None or (present.section, present.serving.address) != (kubelet, address):
            files = kept_files(topology, self._directory, self._watcher, self._wakeup.set)
            serving = ServingCertificate(
                _log, address, files_of(topology, self._directory), advice=_CERTIFICATE_ADVICE, read=files.read
            )
            authority = authority_of(topology, self._directory, self._upper, _log, files.read)
            if present is not None:
                present.files.close()
            self._tls_inputs = present = _TLSInputs(kubelet, serving, authority, files)
        return present

    async def _serve(self) -> None:
        """Open the port, unless it is open, with the present certificate, client CA and strategy."""
        async with self._changing:
            try:
                tls = await self._tls_inputs_of(self._topology).tls()
                self._port = port = self._open_port(self._topology.extender)
            except TensileError as error:
                self._serving_errors = (str(error),)
                raise
            self._serving_errors = ()
            self._opened_at = self._opened_at or self._now()
            if tls is not self._tls:
                await port.show(tls)
                self._tls = tls
        self.follow()

    def _open_port(self, section: Section) -> ExtenderPort:
        """Return the open port, with the strategy of the section; raises TensileError if it cannot be opened."""
        extender = SchedulerExtender(self._candidates, section.strategy, self._unschedulable)
        port, preemptor = self._port, self._preemptor
        if port is None:
            opened, budgets = listening(section.bind, section.port), preemptor.budgets
            return ExtenderPort(opened, extender, clock=self._clock, budgets=budgets, answered=self._on_call)
        if port.extender.strategy != section.strategy:
            port.extender = extender
        return port

    async def _check_periodically(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_INTERVAL if self._serving_errors else _CHECK_INTERVAL):
                    await self._wakeup.wait()
            self._wakeup.clear()
            await self.refresh()

    def _on_call(self) -> None:
        self._is_called = True
        self._preemptor.wake()

    def _on_bound(self, tracker: ClusterTracker, pod: Entry) -> None:
        """Release the reservations of a pod in all other lowers once it is bound to one's node."""
        if not (self._is_called or self._missed_pod) and self._opened_at and _is_scheduled_after(pod, self._opened_at):
            self._missed_pod = f"{pod.namespace}/{pod.name}"
            self._wakeup.set()
        for other in self._trackers.values():
            if other is not tracker:
                other.release(pod)


def _is_scheduled_after(pod: Entry, moment: datetime) -> bool:
    """Report whether a scheduler bound a pod after a moment; times of Kubernetes have whole seconds."""
    scheduled = conditions_of(pod.manifest()).get("PodScheduled") or {}
    since = scheduled.get("lastTransitionTime") if scheduled.get("status") == "True" else None
    return since is not None and moment_of(since) > moment
