"""The program as a separate process, and input files for it that need no cluster."""

import logging
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
import pytest
import structlog
import yaml
from forkserver import FORKS

from bench.kit.spareports import spare_ports
from tensile.cli.main import main

if TYPE_CHECKING:
    from concurrent.futures import Future

Capture = pytest.CaptureFixture[str]
PROGRAM = str(Path(sys.executable).with_name("tensile"))
LIMIT = 180.0
_OURS = ("TENSILE_TOPOLOGY", "KUBERNETES_SERVICE_HOST", "POD_IP", "VKUBELET_POD_IP", "KUBECONFIG")
_EDIT = Callable[[dict[str, Any]], object]


class Completed(NamedTuple):
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def all(self) -> str:
        """All output of the command, on stdout and stderr."""
        return self.out + self.err


class HangingCommand(NamedTuple):
    """A command that waits for an address that does not answer; `result` has its output and its duration."""

    result: "Future[tuple[Completed, float]]"
    address: str
    directory: Path


@contextmanager
def restored_logging() -> Iterator[None]:
    """Restore the configuration of logging at the end."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        yield
    finally:
        structlog.reset_defaults()
        root.setLevel(level)
        for handler in [handler for handler in root.handlers if handler not in handlers]:
            root.removeHandler(handler)


def run_in_process(capsys: Capture, *arguments: str) -> Completed:
    """Run the program inside the test process, because a new process costs far more than parsing a command line.

    The configuration of logging is restored afterwards.
    """
    with restored_logging(), pytest.raises(SystemExit) as ended:
        main(arguments)
    return Completed(int(str(ended.value.code)), *capsys.readouterr())


def environment(**more: str) -> dict[str, str]:
    """Return the environment of the tests without the variables that configure the program."""
    return {**{name: value for name, value in os.environ.items() if name not in _OURS}, **more}


def tensile(*arguments: str | Path, stdin: bytes = b"", cwd: Path | None = None, **variables: str) -> Completed:
    """Run the program until it ends; it must never print a traceback, or colors into a pipe."""
    command = [*map(str, arguments)]
    if any(name.startswith("PYTHON") for name in variables):
        return installed(*command, stdin=stdin, cwd=cwd, **variables)
    return completed(*FORKS.run(command, stdin, cwd, environment(**variables), LIMIT))


def installed(*arguments: str, stdin: bytes = b"", cwd: Path | None = None, **variables: str) -> Completed:
    """Run the program as it is installed, including the start of Python."""
    done = subprocess.run(
        [PROGRAM, *arguments],
        input=stdin,
        cwd=cwd,
        env=environment(**variables),
        capture_output=True,
        timeout=LIMIT,
        check=False,
    )
    return completed(done.returncode, done.stdout, done.stderr)


def run_timed(*arguments: str | Path) -> tuple[Completed, float]:
    """Run the program until it ends, and return its output and its duration in seconds."""
    begin = time.monotonic()
    result = tensile(*arguments)
    return result, time.monotonic() - begin


def run_failing(*arguments: str | Path, **options: Any) -> str:
    """Run the program, require exit code 1 and all output on stderr, and return that output."""
    result = tensile(*arguments, **options)
    assert (result.code, result.out) == (1, ""), result
    assert result.err.endswith("\n")
    return result.err


def completed(code: int, out: bytes, err: bytes) -> Completed:
    """Return what a process left, after a check that its output has no traceback and no escape codes."""
    result = Completed(code, out.decode(), err.decode())
    assert "Traceback" not in result.all, result.all
    assert "\x1b" not in result.all, result.all
    return result


@contextmanager
def started(*arguments: str | Path, **variables: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Start the program, and kill it at the end if it still runs."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [PROGRAM, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        env=environment(**variables),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for_exit(process: "subprocess.Popen[bytes]", signal: int | None = None, limit: float = LIMIT) -> Completed:
    """Wait until a program has ended, by a signal if one is given."""
    if signal is not None:
        process.send_signal(signal)
    out, err = process.communicate(timeout=limit)
    return completed(process.returncode, out, err)


def lines(text: str) -> list[dict[str, Any]]:
    """Parse a log that must consist of JSON objects, one a line."""
    found = [orjson.loads(line) for line in text.splitlines()]
    assert all(isinstance(one, dict) for one in found)
    return found


def silent_listener() -> socket.socket:
    """Return a server socket that accepts connections and never answers."""
    return socket.create_server(("127.0.0.1", 0))


def port_of(server: socket.socket) -> int:
    """Return the port of a socket."""
    return int(server.getsockname()[1])


def is_alive(port: int) -> bool:
    """Report whether a telemetry server on this port answers that its program is alive."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=30) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


class Files:
    """A directory with a topology of one lower; the ports of both clusters do not answer.

    `ports` are those of the upper apiserver, the lower apiserver, the kubelet API and telemetry.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ports = spare_ports(4)

    def save(self, edit: _EDIT = lambda _file: None, name: str = "topology.yaml") -> Path:
        """Write the topology, changed in place by `edit`, and the kubeconfigs; return the path of the topology."""
        for cluster, port in zip(("upper", "lower"), self.ports, strict=False):
            (self.directory / cluster).write_bytes(_kubeconfig(port))
        topology: dict[str, Any] = {
            "apiVersion": "tensile-kube.io/v1alpha1",
            "kind": "Topology",
            "name": "files",
            "upper": {"kubeconfig": "upper"},
            "lowers": [{"name": "below", "kubeconfig": "lower"}],
            "kubelet": {"bind": "127.0.0.1", "port": self.ports[2], "nodeAddress": "127.0.0.1"},
            "telemetry": {"port": self.ports[3]},
        }
        edit(topology)
        path = self.directory / name
        path.write_text(yaml.safe_dump(topology))
        return path


def _kubeconfig(port: int) -> bytes:
    return orjson.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "it", "cluster": {"server": f"https://127.0.0.1:{port}"}}],
            "users": [{"name": "it", "user": {"token": "a-token-of-no-use"}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "current-context": "it",
        }
    )
