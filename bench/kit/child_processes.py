"""Programs that a bench runs and measures: the engine, and the ceiling that it is measured against.

Their environment contains the identity of the sandbox, so they end with the sandbox even if the bench is killed.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from tensile.sandbox.processes import MARK
from tensile.sandbox.sandbox import Sandbox

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 30.0


class Usage(NamedTuple):
    """The CPU seconds that a program has used since its start, and its resident memory in bytes."""

    cpu: float
    rss: int


class Child:
    """A running program; `engine` or `ceiling` starts it, and its output is appended to `log`.

    `before` is the beginning of its command line, e.g. a shell that sets limits first.
    """

    def __init__(self, arguments: list[str], sandbox: Sandbox, log: Path, before: Sequence[str] = ()) -> None:
        self._begin = log.stat().st_size if log.exists() else 0
        variables = {**os.environ, MARK: sandbox.state().identity}
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*before, sys.executable, "-m", *arguments],
                cwd=ROOT,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self.log = log

    @property
    def process(self) -> psutil.Process:
        """The process, for measurements."""
        return psutil.Process(self._process.pid)

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    async def has_started(self) -> bool:
        """Report whether the engine has logged that its upper cluster answered and its rules run."""
        return b'"event": "started"' in self.log.read_bytes()[self._begin :]

    def usage(self) -> Usage:
        """Return the CPU time and the memory that the process uses."""
        process = self.process
        times = process.cpu_times()
        return Usage(times.user + times.system, process.memory_info().rss)

    def kill(self) -> None:
        """Kill the process with SIGKILL, as a crash or the kernel's out-of-memory killer does."""
        self._process.kill()
        self._process.wait(LIMIT)

    def suspend(self) -> None:
        """Stop the process, as on a suspended machine, until `resume`."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume the process, which still has the state from before."""
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """Terminate the process with SIGTERM, and return its exit code."""
        if self.is_running:
            self._process.send_signal(signal.SIGTERM)
        return self._process.wait(LIMIT)


def after(shell_command: str) -> list[str]:
    """Return the start of a command line that runs a shell command first, such as "ulimit -Sn 512"."""
    return ["sh", "-c", f'{shell_command} && exec "$@"', "sh"]


def engine(sandbox: Sandbox, log: Path) -> Child:
    """Start the engine on the sandbox's own topology."""
    topology = str(sandbox.directory / "topology.yaml")
    return Child(["tensile", "run", "-f", topology, "--log-format", "json"], sandbox, log)


def ceiling(sandbox: Sandbox, log: Path, *options: str) -> Child:
    """Start the bare loop."""
    return Child(["bench.speed.ceiling", "--sandbox", str(sandbox.directory), *options], sandbox, log)


def alike_ceiling(sandbox: Sandbox, log: Path) -> Child:
    """Start the bare loop with nodes and lower pods as the engine has to write them."""
    return ceiling(sandbox, log, "--alike")
