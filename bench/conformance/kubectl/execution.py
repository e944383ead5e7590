"""Runs one command and records its output: with pipes, on a terminal, or as a port-forward that is used."""

import os
import pty
import re
import select
import shlex
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from bench.conformance.kubectl.objects import NAMESPACE
from bench.conformance.kubectl.steps import Step
from bench.kit.sites import NotInTime

PATIENCE = 90.0
PAUSE = 0.3
ENDING = 20.0
_FORWARDS = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) ->")
_BY_SPDY = dict.fromkeys(("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "KUBECTL_PORT_FORWARD_WEBSOCKETS"), "false")


class Completed(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


class CommandRunner(NamedTuple):
    """Runs commands: with which kubectl, on which cluster, with which values of placeholders, and in which folder."""

    kubectl: str
    kubeconfig: Path
    names: Mapping[str, str]
    home: Path

    def run(self, step: Step) -> Completed:
        """Run a command until it ends, and return its output."""
        command = [self.kubectl, f"--kubeconfig={self.kubeconfig}", "-n", NAMESPACE, *self.arguments(step)]
        variables = {"PATH": os.environ.get("PATH", ""), "HOME": str(self.home), "TERM": "xterm"}
        variables |= _BY_SPDY if step.spdy else {}
        if step.typed is not None:
            return _on_terminal(command, variables, step.typed)
        if step.fetched:
            return _forwarding(command, variables, step.fetched)
        return _piped(command, variables, step)

    def wait(self, step: Step) -> None:
        """Run a command repeatedly until its output is as expected."""
        end = time.monotonic() + PATIENCE
        while not re.search(step.until, (output := self.run(step)).out):
            if time.monotonic() > end:
                raise NotInTime(f"{self.kubectl}: {step.arguments_text}: {output}")
            time.sleep(PAUSE)

    def arguments(self, step: Step) -> list[str]:
        """Return kubectl's arguments with the placeholders replaced."""
        found = shlex.split(step.arguments_text)
        for name, value in self.names.items():
            found = [word.replace(f"{{{name}}}", value) for word in found]
        return found


def _piped(command: list[str], variables: dict[str, str], step: Step) -> Completed:
    """Run a command with pipes until it ends; one that does not end in time is killed."""
    pipe = subprocess.PIPE
    with tempfile.TemporaryFile() as err:
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=err, env=variables)
        assert process.stdin
        assert process.stdout
        end = threading.Timer(PATIENCE, process.kill)
        end.start()
        with suppress(BrokenPipeError):
            process.stdin.write(step.stdin.encode())
            process.stdin.flush()
        out = b""
        while step.held.encode() not in out and (line := process.stdout.readline()):
            out += line
        with suppress(BrokenPipeError):
            process.stdin.close()
        out += process.stdout.read()
        code = process.wait()
        end.cancel()
        process.stdout.close()
        err.seek(0)
        return Completed(code, out.decode(errors="replace"), err.read().decode(errors="replace"))


def _on_terminal(command: list[str], variables: dict[str, str], typed: tuple[tuple[str, str], ...]) -> Completed:
    """Run a command on a terminal, and type each line after the text that precedes it was shown."""
    ours, its = pty.openpty()
    process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=variables, start_new_session=True)
    os.close(its)
    shown, seen, lines = "", 0, list(typed)
    end = time.monotonic() + PATIENCE
    while piece := _read(ours, end):
        shown += piece
        while lines and (place := shown.find(lines[0][0], seen)) >= 0:
            seen = place + len(lines[0][0])
            os.write(ours, lines.pop(0)[1].encode())
    os.close(ours)
    with suppress(subprocess.TimeoutExpired):
        return Completed(process.wait(ENDING), shown, "")
    process.kill()
    return Completed(process.wait(), shown, "did not end")


def _read(descriptor: int, end: float) -> str:
    """Return the next output, "" if the terminal was closed or the time is over."""
    ready, _, _ = select.select([descriptor], [], [], max(0.0, end - time.monotonic()))
    try:
        return os.read(descriptor, 1 << 16).decode(errors="replace") if ready else ""
    except OSError:  # no process has the other end open any more
        return ""


def _forwarding(command: list[str], variables: dict[str, str], fetched: tuple[int, ...]) -> Completed:
    """Use a port-forward, then kill it; after a failed request, first wait until it ends by itself."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=variables, text=True)
    assert process.stdout
    lines: list[str] = []
    wanted = sum(word.startswith(":") for word in command)
    while len(ports := _FORWARDS.findall("".join(lines))) < wanted and (line := process.stdout.readline()):
        lines.append(line)
    pages = [_page(int(ports[place])) for place in fetched if place < len(ports)]
    ended = None
    if "" in pages:
        with suppress(subprocess.TimeoutExpired):
            ended = process.wait(ENDING)
    process.kill()
    out, err = process.communicate()
    got = [f"fetched {page!r}\n" for page in pages]
    return Completed(0 if ended is None else ended, "".join([*lines, out, *got]), err)


def _page(port: int) -> str:
    """Return the page at a port of this machine, "" if there is none."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=PATIENCE) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""
