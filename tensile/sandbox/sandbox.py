"""A running sandbox as an object: for the tests, the demo and the commands.

Everything it knows comes from the sandbox's directory, so any number of processes may hold one and a test can attach to
a sandbox that a person started.
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
from tensile.sandbox import start as startup
from tensile.sandbox import stop as teardown
from tensile.sandbox.go_build import Progress
from tensile.sandbox.layout import UPPER, Ports, SandboxError
from tensile.sandbox.state import Cluster, Options, Process, State
from tensile.sandbox.stop import Guard

KUBECTL_LIMIT = 120.0


@dataclass(frozen=True)
class ClusterProcesses:
    """One cluster of a running sandbox.

    Attributes:
        name: `upper`, `lower-a`, …
        kubeconfig: the administrator's, certificates inline.
        server: URL of the apiserver.
        audit_log: a JSON object per line: who (`user`, `userAgent`) did what (`verb`, `objectRef`).
        logs: NAMESPACE/POD/CONTAINER.log in CRI format (`TIME stdout F text`), what `kubectl logs` shows;
            a test may append to them, or write one before anybody asks.
        work: NAMESPACE/POD/CONTAINER is the working directory of what is exec'd there.
        ports: of all its processes.
        pids: of its processes, by component.
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
    """A running sandbox; made by `start` or `attach`, ended by `stop` or by leaving its `with` block."""

    def __init__(self, directory: Path, guard: Guard | None = None) -> None:
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
            directory: where its files go; made when it is missing.
            options: how many lowers and nodes, and how fast it evicts.
            bound: it ends with this process, even when that is killed; otherwise it lives until `stop`.
            progress: takes lines for a person.

        Raises:
            SandboxError: it could not be started; nothing of it is left then.
        """
        directory = directory.resolve()
        started = startup.bring_up(directory, options or Options(), progress, bound=bound)
        return cls(directory, started.guard)

    @classmethod
    def attach(cls, directory: Path) -> Self:
        """Return the sandbox that runs in the directory.

        Raises:
            SandboxError: none does.
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
        """Read what runs.

        Raises:
            SandboxError: nothing does.
        """
        found = state.load(self.directory)
        if found is None:
            start = f"tensile sandbox up --dir {quote(str(self.directory))}"
            raise SandboxError(f"no sandbox in {self.directory}; start one with `{start}`")
        return found

    @property
    def clusters(self) -> dict[str, ClusterProcesses]:
        """The clusters by name, the upper one first, with the processes of this moment."""
        return {name: _view(cluster) for name, cluster in self.state().clusters.items()}

    def kubectl_command(self, *arguments: str, cluster: str = UPPER) -> list[str]:
        """Return the command line of kubectl against a cluster."""
        found = self.state().binaries
        if found is None:
            raise SandboxError(f"the sandbox in {self.directory} is still starting; wait for `up`")
        return [found.kubectl, f"--kubeconfig={self.directory / cluster}.kubeconfig", *arguments]

    def kubectl(
        self, *arguments: str, cluster: str = UPPER, stdin: str = "", limit: float = KUBECTL_LIMIT
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl against a cluster to its end, at most `limit` seconds; its exit code is the caller's to judge."""
        command = self.kubectl_command(*arguments, cluster=cluster)
        variables = {key: value for key, value in os.environ.items() if key != "KUBECONFIG"}
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=limit, check=False, env=variables
        )

    def kill(self, cluster: str, component: str, signal: signals.Signals = signals.SIGKILL) -> None:
        """Send a signal to a component; after SIGKILL it has ended when this returns."""
        processes.send(self._process(cluster, component), signal)

    def suspend(self, cluster: str, component: str) -> None:
        """Stop a component from running, without ending it: it accepts connections and answers nothing."""
        self.kill(cluster, component, signals.SIGSTOP)

    def resume(self, cluster: str, component: str) -> None:
        """Let a suspended component run on."""
        self.kill(cluster, component, signals.SIGCONT)

    def restart(self, cluster: str, component: str, *, extra: Sequence[str] = (), wait: bool = True) -> None:
        """End a component if it runs, and start it on the same ports; another one that does not run stays so.

        Args:
            cluster: its name.
            component: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kwok or endpoint.
            extra: arguments to add, this time and at later restarts.
            wait: return only when it is ready.

        Raises:
            SandboxError: it did not become ready; the next restart is without what was added.
        """
        current = self.state()
        found = current.clusters[cluster]
        process = _component(found, component)
        if processes.running(process):
            processes.send(process, signals.SIGKILL)
        startup.start_process(self.directory, current, found, component, [*process.arguments, *extra])
        if not wait:
            return
        try:
            apiserver.wait([_without_ended(found, component)], apiserver.component(component), component)
        except SandboxError:
            self._forget_arguments(current, found, component, process.arguments)
            raise

    def adopt(self, *names: str) -> None:
        """Have these entries of the directory, which may come later, removed with the sandbox's own."""
        current = self.state()
        current.entries.extend(name for name in names if name not in current.entries)
        state.save(self.directory, current)

    def stop(self) -> list[str]:
        """End everything and remove its files; return the names in the directory that were not its own."""
        left = teardown.end(self.directory) or []
        if self._guard is not None:
            self._guard.release()
            self._guard = None
        return left

    def _forget_arguments(self, current: State, cluster: Cluster, component: str, former: list[str]) -> None:
        """What a component did not start with is not what it starts with the next time."""
        failed = cluster.processes[component]
        cluster.processes[component] = msgspec.structs.replace(failed, arguments=former)
        state.save(self.directory, current)

    def _process(self, cluster: str, component: str) -> Process:
        """Return a component's process of this moment."""
        return _component(self.state().clusters[cluster], component)


def _without_ended(cluster: Cluster, started: str) -> Cluster:
    """Return a cluster without the components that ended before `started` was: their end says nothing of it."""
    running = {
        name: process for name, process in cluster.processes.items() if name == started or processes.running(process)
    }
    return msgspec.structs.replace(cluster, processes=running)


def _component(cluster: Cluster, component: str) -> Process:
    """Return a component's process, or say which there are."""
    if component not in cluster.processes:
        known = ", ".join(cluster.processes)
        raise SandboxError(f"{cluster.layout.name} has no {component}, it has {known}")
    return cluster.processes[component]


def _view(cluster: Cluster) -> ClusterProcesses:
    """Return what a test needs to know of a cluster."""
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
