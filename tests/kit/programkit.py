"""`tensile run` as users start it: a separate process that follows the topology file."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

from enginekit import A, Edit, EngineHarness, wait_until

from tensile.sandbox.sandbox import Sandbox


class Program(EngineHarness):
    """A harness whose engine is a process; its log is in `log`, a JSON object a line."""

    process: Process
    options: tuple[str, ...] = ()
    """More options of `tensile run`."""
    variables: Mapping[str, str] = {}
    """Variables of its environment beside those of the tests."""

    def __init__(self, sandbox: Sandbox, directory: Path) -> None:
        super().__init__(sandbox, directory)
        self.log = directory / "tensile.log"

    async def start(self, *edits: Edit, await_nodes: bool = True) -> None:
        """Save the file, start the program on it, and wait until its nodes are ready."""
        topology = self.topology(*edits)
        self.started_as = topology.name
        self.process = await self.launch(self.save(*edits), self.log, **self.variables)
        self.is_started = True
        for lower in topology.lowers if await_nodes else ():
            await self.wait_for_node(lower.node.name)

    async def launch(self, file: Path, log: Path, **variables: str) -> Process:
        """Start the program on a file, with these variables in its environment."""
        command = [sys.executable, "-m", "tensile", "run", "-f", str(file), "--log-format", "json", *self.options]
        with log.open("wb") as output:
            environment = {**os.environ, **variables}
            return await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output, env=environment)

    async def reload(self, *edits: Edit) -> None:
        """Save the file, which the program follows."""
        self.save(*edits)

    async def stop(self) -> None:
        """Terminate the program as a service manager does, and wait for it; it has to end cleanly."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(25):
            assert await self.process.wait() == 0, self.log.read_text()

    async def wait_for_log(self, text: str, since: int = 0) -> None:
        """Wait until the log contains these words, after the position `since`."""
        await wait_until(lambda: text in self.log.read_text()[since:])


P = TypeVar("P", bound=Program)


@asynccontextmanager
async def running_program(sandbox: Sandbox, directory: Path, sort: type[P] = Program) -> AsyncIterator[P]:
    """Yield a harness on which the program runs; at the end it must leave no object, and end cleanly."""
    program = sort(sandbox, directory)
    try:
        await program.open()
        await program.start()
        yield program
        await program.clear()
    finally:
        await program.close()
    text = program.log.read_text()
    assert "Traceback" not in text
    assert "defect" not in text


STAMP = "2026-01-01T00:00:00Z stdout F "


class LogStream(NamedTuple):
    """A running `kubectl logs -f`, and the program whose log it shows."""

    program: Program
    process: Process

    async def check_line_arrives(self, line: str) -> None:
        """Write a line to the container's log, and require that the open stream prints it."""
        with (self.program.sites[A].logs / self.program.namespace / "web" / "main.log").open("a") as log:
            log.write(f"{STAMP}{line}\n")
        assert self.process.stdout
        async with asyncio.timeout(60):
            assert await self.process.stdout.readline() == f"{line}\n".encode()
        assert self.process.returncode is None


@asynccontextmanager
async def followed_log(program: Program) -> AsyncIterator[LogStream]:
    """Follow the pod's log through the upper cluster; the stream must stay open until the end."""
    log = program.sites[A].logs / program.namespace / "web" / "main.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("")
    command = program.sandbox.kubectl_command("-n", program.namespace, "logs", "-f", "web")
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    try:
        stream = LogStream(program, process)
        await stream.check_line_arrives("first")
        yield stream
        await stream.check_line_arrives("last")
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
