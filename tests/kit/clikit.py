"""The program as a process of its own, and files to give it that need no cluster."""

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
        """Everything that it wrote."""
        return self.out + self.err


class Wait(NamedTuple):
    """A command that waits for an address where nobody answers; in the end, what it told and after how many seconds."""

    result: "Future[tuple[Completed, float]]"
    address: str
    directory: Path


@contextmanager
def logging_kept() -> Iterator[None]:
    """Leave logging as it was found."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        yield
    finally:
        structlog.reset_defaults()
        root.setLevel(level)
        for handler in [handler for handler in root.handlers if handler not in handlers]:
            root.removeHandler(handler)


def within(capsys: Capture, *arguments: str) -> Completed:
    """Run the program inside the tests' own process: starting one costs far more than reading a command line.

    Logging is as before afterwards.
    """
    with logging_kept(), pytest.raises(SystemExit) as ended:
        main(arguments)
    return Completed(int(str(ended.value.code)), *capsys.readouterr())


def environment(**more: str) -> dict[str, str]:
    """Return the environment of the tests without what steers the program."""
    return {**{name: value for name, value in os.environ.items() if name not in _OURS}, **more}


def tensile(*arguments: str | Path, stdin: bytes = b"", cwd: Path | None = None, **variables: str) -> Completed:
    """Run the program to its end. Whatever it does, it must not show a traceback, or colours in a pipe."""
    words = [*map(str, arguments)]
    if any(name.startswith("PYTHON") for name in variables):
        return installed(*words, stdin=stdin, cwd=cwd, **variables)
    return checked(*FORKS.run(words, stdin, cwd, environment(**variables), LIMIT))


def installed(*arguments: str, stdin: bytes = b"", cwd: Path | None = None, **variables: str) -> Completed:
    """Run the program as it is installed, with the start of Python."""
    done = subprocess.run(
        [PROGRAM, *arguments],
        input=stdin,
        cwd=cwd,
        env=environment(**variables),
        capture_output=True,
        timeout=LIMIT,
        check=False,
    )
    return checked(done.returncode, done.stdout, done.stderr)


def timed(*arguments: str | Path) -> tuple[Completed, float]:
    """Run the program to its end, beside others, and return how many seconds that took."""
    begin = time.monotonic()
    told = tensile(*arguments)
    return told, time.monotonic() - begin


def refused(*arguments: str | Path, **options: Any) -> str:
    """Run the program where it has to refuse: exit code 1, all words on stderr, and return these."""
    told = tensile(*arguments, **options)
    assert (told.code, told.out) == (1, ""), told
    assert told.err.endswith("\n")
    return told.err


def checked(code: int, out: bytes, err: bytes) -> Completed:
    """Take what a process left, and hold it against what must never be there."""
    told = Completed(code, out.decode(), err.decode())
    assert "Traceback" not in told.all, told.all
    assert "\x1b" not in told.all, told.all
    return told


@contextmanager
def started(*arguments: str | Path, **variables: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Start the program; it is killed at the end, should it still run."""
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


def ended(process: "subprocess.Popen[bytes]", signal: int | None = None, limit: float = LIMIT) -> Completed:
    """Wait until a program has ended, by a signal if one is given."""
    if signal is not None:
        process.send_signal(signal)
    out, err = process.communicate(timeout=limit)
    return checked(process.returncode, out, err)


def lines(text: str) -> list[dict[str, Any]]:
    """Read a log that has to consist of JSON objects, one a line."""
    found = [orjson.loads(line) for line in text.splitlines()]
    assert all(isinstance(one, dict) for one in found)
    return found


def listening() -> socket.socket:
    """Take a port, on which connections are taken and nothing is ever answered."""
    return socket.create_server(("127.0.0.1", 0))


def port_of(server: socket.socket) -> int:
    """Return the port that a socket has."""
    return int(server.getsockname()[1])


def is_alive(port: int) -> bool:
    """Report whether a telemetry server answers there that its program is alive."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=30) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


class Files:
    """A directory with a topology of one lower, both clusters at ports where nobody answers.

    `ports`: of the upper's apiserver, of the lower's, of the kubelet API and of telemetry.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ports = spare_ports(4)

    def save(self, edit: _EDIT = lambda _file: None, name: str = "topology.yaml") -> Path:
        """Write the topology, after an edit in place, and the kubeconfigs, and return where it is."""
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
