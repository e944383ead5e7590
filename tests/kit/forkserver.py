"""A fork server: a process that has imported the program and forks for each command, to save the start of Python.

A command is still a separate process, with its arguments, directory, environment, streams and exit code; only the
import, which needs most of the time, is done once. What the start itself does, such as reading PYTHON* variables, must
be tested on a process that is really started.
"""

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from tempfile import TemporaryFile
from threading import Lock
from typing import Any

_LONGEST = 1 << 20
_IMPORTED = (
    *(f"cli.{name}" for name in ("apply", "bundle", "drift", "main", "mutate", "plan", "rollback", "status")),
    *("cli.uninstall", "deploy.manifests", "diagnostics.commands", "diagnostics.doctor.run", "diagnostics.inventory"),
    *("engine.logging", "engine.run"),
)
"""Modules that commands import when they run."""


class ForkServer:
    """A server that starts with the first command; `close` ends it, and threads may run commands concurrently."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._opening = Lock()

    def run(
        self, arguments: Sequence[str], stdin: bytes, cwd: Path | None, environment: Mapping[str, str], limit: float
    ) -> tuple[int, bytes, bytes]:
        """Run a command and return its exit code and output; raise TimeoutError after `limit` seconds."""
        request = {"arguments": list(arguments), "cwd": str(cwd or Path.cwd()), "environment": dict(environment)}
        answer, theirs = socket.socketpair()
        with answer, TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
            answer.settimeout(limit)
            given.write(stdin)
            given.seek(0)
            with theirs:
                descriptors = [one.fileno() for one in (given, out, err, theirs)]
                socket.send_fds(self._opened(), [json.dumps(request).encode()], descriptors)
            try:
                code = int(answer.recv(16))
            except TimeoutError:
                self.close()
                raise
            out.seek(0)
            err.seek(0)
            return code, out.read(), err.read()

    def close(self) -> None:
        """Kill the process, and the commands that it may still run."""
        with self._opening:
            if self._process is not None and self._link is not None:
                self._link.close()
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
            self._process = self._link = None

    def _opened(self) -> socket.socket:
        with self._opening:
            if self._link is None:
                self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                with theirs:
                    command = [sys.executable, __file__, str(theirs.fileno())]
                    self._process = subprocess.Popen(
                        command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
                    )
            return self._link


FORKS = ForkServer()
"""The fork server of this process; tests/conftest.py closes it."""


def serve(link: socket.socket) -> None:
    """Fork for each request, and send the exit code to its last descriptor, until the other side closes the socket."""
    with DefaultSelector() as ready:
        ready.register(link, EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fileobj is not link:
                    _exit_reported(ready, key.fd, *key.data)
                elif not _forked(ready, link):
                    return


def _forked(ready: DefaultSelector, link: socket.socket) -> bool:
    """Fork for the next request; report whether there was one."""
    message, descriptors, *_ = socket.recv_fds(link, _LONGEST, 4)
    if not message:
        return False
    *streams, answer = descriptors
    child = os.fork()
    if child == 0:
        others = [number for key in ready.get_map().values() if key.data for number in (key.fd, key.data[1])]
        for number in (*others, answer):
            os.close(number)
        ready.close()
        link.close()
        _become(json.loads(message), streams)
    for stream in streams:
        os.close(stream)
    ready.register(os.pidfd_open(child), EVENT_READ, (child, answer))
    return True


def _exit_reported(ready: DefaultSelector, handle: int, child: int, answer: int) -> None:
    """Send the exit code of a command that has ended."""
    ready.unregister(handle)
    _, status = os.waitpid(child, 0)
    with socket.socket(fileno=answer) as link:
        link.send(str(os.waitstatus_to_exitcode(status)).encode(), socket.MSG_NOSIGNAL)
    os.close(handle)


def _become(request: dict[str, Any], streams: Sequence[int]) -> None:
    """Become the command, and exit with its code, as Python would; never returns."""
    code = os.EX_SOFTWARE
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv = ["tensile", *request["arguments"]]
        sys.stdin, sys.stdout, sys.stderr = (open(number, mode, encoding="utf-8") for number, mode in enumerate("rww"))  # noqa: PTH123, SIM115 - descriptors, unclosed
        code = _ran()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _ran() -> int:
    """Run the program, and return its exit code."""
    try:
        importlib.import_module("tensile.__main__").main()
    except SystemExit as ended:
        if isinstance(ended.code, int | None):
            return ended.code or 0
        sys.stderr.write(f"{ended.code}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.path.pop(0)  # the directory of this file, which commands do not search
    for module in ("__main__", *_IMPORTED):
        importlib.import_module(f"tensile.{module}")
    with socket.socket(fileno=int(sys.argv[1])) as other_side:
        serve(other_side)
