"""A running sandbox as an object, for tests, the demo and the commands.

All its data comes from the sandbox's directory. So any number of processes can attach to one sandbox, and a test can
attach to one that a user started.
"""

import os
import signal as signals
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from types import TracebackType
from typing import Self

import msgspec

from tensile.sandbox import apiserver, processes, state
from tensile.sandbox.start import bring_up, start_process
from tensile.sandbox.state import UPPER, Options, Ports, Process, SandboxCluster, SandboxError, State
from tensile.sandbox.stop import CleanupGuard
from tensile.sandbox.stop import end as end_sandbox
from tensile.text import Progress

KUBECTL_LIMIT = 120.0


@dataclass(frozen=True)
class ClusterProcesses:
    """One cluster of a running sandbox.

    Attributes:
        name: `upper`, `lower-a`, …
        kubeconfig: the administrator's, with inline certificates.
        server: the URL of the apiserver.
        audit_log: one JSON object per line, with `user`, `userAgent`, `verb`, `objectRef`.
        logs: NAMESPACE/POD/CONTAINER.log in CRI format (`TIME stdout F text`), which `kubectl logs` shows;
            a test may append to a log, or create one first.
        work: the directory in which exec commands run in NAMESPACE/POD/CONTAINER.
        ports: the ports of all its processes.
        pids: the process ids by component.
    """

    name: str
    kubeconfig: Path
    server: str
    audit_log: Path
    logs: Path
    work: Path
    ports: Ports
    pids: dict[str, int]


class Sandbox:
    """A running sandbox; created by `start` or `attach`, ended by `stop` or at the end of its `with` block."""

    def __init__(self, directory: Path, guard: CleanupGuard | None = None) -> None:
        self.directory = directory
        self._guard = guard

    @classmethod
    def start(
        cls,
        directory: Path,
        options: Options | None = None,
        *,
        bound: bool = True,
        progress: Progress = lambda _line: None,
    ) -> Self:
        """Start a sandbox and return when it is ready.

        Args:
            directory: the directory for its files; created if missing.
            options: the number of lowers and nodes, and other options.
            bound: end it with this process, even if that is killed; otherwise it runs until `stop`.
            progress: called with lines for a person.

        Raises:
            SandboxError: it could not be started; no process and no file of it is left.
        """
        directory = directory.resolve()
        started = bring_up(directory, options or Options(), progress, bound=bound)
        return cls(directory, started.guard)

    @classmethod
    def attach(cls, directory: Path) -> Self:
        """Return the sandbox that runs in the directory.

        Raises:
            SandboxError: no sandbox runs there.
        """
        sandbox = cls(directory.resolve())
        sandbox.state()
        return sandbox

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def state(self) -> State:
        """Return the state of the sandbox.

        Raises:
            SandboxError: no sandbox runs in the directory.
        """
        found = state.load(self.directory)
        if found is None:
            start = f"tensile sandbox up --dir {quote(str(self.directory))}"
            raise SandboxError(f"no sandbox in {self.directory}; start one with `{start}`")
        return found

    @property
    def clusters(self) -> dict[str, ClusterProcesses]:
        """The clusters by name, the upper one first, with their present processes."""
        return {name: _view(cluster) for name, cluster in self.state().clusters.items()}

    def kubectl_command(self, *arguments: str, cluster: str = UPPER) -> list[str]:
        """Return the command line of kubectl for a cluster."""
        found = self.state().binaries
        if found is None:
            raise SandboxError(f"the sandbox in {self.directory} is still starting; wait for `up`")
        return [found.kubectl, f"--kubeconfig={self.directory / cluster}.kubeconfig", *arguments]

    def kubectl(
        self, *arguments: str, cluster: str = UPPER, stdin: str = "", limit: float = KUBECTL_LIMIT
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl against a cluster for at most `limit` seconds; does not check its exit code."""
        command = self.kubectl_command(*arguments, cluster=cluster)
        variables = {key: value for key, value in os.environ.items() if key != "KUBECONFIG"}
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=limit, check=False, env=variables
        )

    def kill(self, cluster: str, component: str, signal: signals.Signals = signals.SIGKILL) -> None:
        """Send a signal to a component; after SIGKILL, wait until the process has ended."""
        processes.send(self._process(cluster, component), signal)

    def suspend(self, cluster: str, component: str) -> None:
        """Suspend a component with SIGSTOP: the kernel still accepts connections, but gets no response."""
        self.kill(cluster, component, signals.SIGSTOP)

    def resume(self, cluster: str, component: str) -> None:
        """Resume a suspended component."""
        self.kill(cluster, component, signals.SIGCONT)

    def restart(self, cluster: str, component: str, *, extra: Sequence[str] = (), wait: bool = True) -> None:
        """Kill a component if it runs, and start it on the same ports; other components stay as they are.

        Args:
            cluster: the name of the cluster.
            component: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kwok or endpoint.
            extra: arguments to add, now and at later restarts.
            wait: return only when the component is ready.

        Raises:
            SandboxError: it did not become ready; the next restart omits the added arguments.
        """
        current = self.state()
        found = current.clusters[cluster]
        process = _component(found, component)
        if processes.running(process):
            processes.send(process, signals.SIGKILL)
        start_process(self.directory, current, found, component, [*process.arguments, *extra])
        if not wait:
            return
        try:
            apiserver.wait([_without_ended(found, component)], apiserver.component(component), component)
        except SandboxError:
            self._forget_arguments(current, found, component, process.arguments)
            raise

    def adopt(self, *names: str) -> None:
        """Add names to the entries of the directory that are deleted with the sandbox; they need not exist yet."""
        current = self.state()
        current.entries.extend(name for name in names if name not in current.entries)
        state.save(self.directory, current)

    def stop(self) -> list[str]:
        """End all processes and delete the sandbox's files, and return the names of other files in the directory."""
        kept = end_sandbox(self.directory) or []
        if self._guard is not None:
            self._guard.release()
            self._guard = None
        return kept

    def _forget_arguments(self, current: State, cluster: SandboxCluster, component: str, previous: list[str]) -> None:
        """Restore the arguments of a component that did not start with new ones."""
        failed = cluster.processes[component]
        cluster.processes[component] = msgspec.structs.replace(failed, arguments=previous)
        state.save(self.directory, current)

    def _process(self, cluster: str, component: str) -> Process:
        """Return the present process of a component."""
        return _component(self.state().clusters[cluster], component)


def _without_ended(cluster: SandboxCluster, started: str) -> SandboxCluster:
    """Return a cluster without the components that had ended before `started` was started.

    Otherwise `wait` would report their end as the reason for a failed start.
    """
    running = {
        name: process for name, process in cluster.processes.items() if name == started or processes.running(process)
    }
    return msgspec.structs.replace(cluster, processes=running)


def _component(cluster: SandboxCluster, component: str) -> Process:
    """Return the process of a component; raises SandboxError with the names of the existing ones."""
    if component not in cluster.processes:
        known = ", ".join(cluster.processes)
        raise SandboxError(f"{cluster.layout.name} has no {component}, it has {known}")
    return cluster.processes[component]


def _view(cluster: SandboxCluster) -> ClusterProcesses:
    """Return the public view of a cluster."""
    layout = cluster.layout
    return ClusterProcesses(
        name=layout.name,
        kubeconfig=layout.kubeconfig,
        server=layout.server,
        audit_log=layout.audit_log,
        logs=layout.logs,
        work=layout.work,
        ports=layout.ports,
        pids={name: process.pid for name, process in cluster.processes.items()},
    )
