"""Runs an exec plugin: in bounded time, with bounded output, and with nothing of ours but a few harmless variables.

The Kubernetes library has a runner, but one that reads without an end and leaves a program that hangs running. Here the
program is a group of its own, which is ended as a whole whatever becomes of the run. What it says on standard error may
hold a secret and goes nowhere.
"""

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tensile.errors import AccessError
from tensile.kube.plugin import Plugin
from tensile.kube.wording import shown

SECONDS = 30.0
MOST = 1 << 18
"""Bytes of an answer: far more than a token and two certificates take."""

_INHERITED = ("PATH", "HOME", "LANG", "TMPDIR")


async def run_plugin(
    plugin: Plugin, asked: str, where: str, *, environment: Mapping[str, str] = os.environ, seconds: float = SECONDS
) -> bytes:
    """Run a plugin with what it is asked, and give what it printed; raises AccessError when it fails."""
    inherited = {name: environment[name] for name in _INHERITED if name in environment}
    variables = {**inherited, **{one.name: one.value for one in plugin.env}, "KUBERNETES_EXEC_INFO": asked}
    name = shown(plugin.command)
    _demand_program(plugin.command, f"{where}: the exec plugin {name}")
    try:
        async with asyncio.timeout(seconds):
            return await _output(plugin, variables, f"{where}: the exec plugin {name}")
    except TimeoutError:
        raise AccessError(f"{where}: the exec plugin {name} did not end in {seconds:g} s", "run it by hand") from None
    except (OSError, ValueError) as error:
        raise AccessError(
            f"{where}: the exec plugin {name} could not be started ({type(error).__name__})", "run it by hand"
        ) from None


def _demand_program(command: str, subject: str) -> None:
    """Say it in words when there is nothing to run."""
    if not Path(command).is_file():
        raise AccessError(f"{subject} is no file", "install it, or correct exec.command")


async def _output(plugin: Plugin, variables: Mapping[str, str], subject: str) -> bytes:
    """Start the program and read what it prints; when that fails, nothing of it is left.

    The pipe is our own: asyncio takes a program for running as long as one that it made has not been read to its end.
    """
    reader, pipe, end = await _pipe()
    try:
        process = await _started(plugin, variables, end)
        try:
            output = await _read(reader, subject)
            await process.wait()
        except BaseException:
            await _end(process)
            raise
    finally:
        pipe.close()
    if process.returncode:
        raise AccessError(f"{subject} failed with code {process.returncode}", "run it by hand")
    return output


async def _pipe() -> tuple[asyncio.StreamReader, asyncio.ReadTransport, int]:
    """Make a pipe; give its readable end, what closes that, and the number of the writable one."""
    readable, writable = os.pipe()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(readable, "rb"))
    return reader, transport, writable


async def _started(plugin: Plugin, variables: Mapping[str, str], output: int) -> Process:
    """Start the program; our copy of the end that it writes to is closed."""
    try:
        return await asyncio.create_subprocess_exec(
            plugin.command,
            *plugin.args,
            env=variables,
            stdin=DEVNULL,
            stdout=output,
            stderr=DEVNULL,
            start_new_session=True,
        )
    finally:
        os.close(output)


async def _read(reader: asyncio.StreamReader, subject: str) -> bytes:
    """Read to the end, or to where it is no answer any more."""
    output = b""
    while piece := await reader.read(1 << 16):
        output += piece
        if len(output) > MOST:
            raise AccessError(f"{subject} printed more than {MOST} bytes", "run it by hand")
    return output


async def _end(process: Process) -> None:
    """End the program with all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
