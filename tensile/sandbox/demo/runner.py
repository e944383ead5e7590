"""Runs the tour: its output, its commands, the engine's process, and the signals that end the demo.

The engine is `tensile run` in a process of its own, with its log in a file. It has its own session, so that Ctrl-C in a
terminal reaches the demo only, which then ends the engine in order. While a command runs, the engine is checked:
otherwise the command could wait for a dead engine.

Every command is printed before it runs, and output is flushed first, since commands write to the same stream.

The first signal interrupts, later ones are ignored: cleanup takes a few seconds, people press Ctrl-C twice, and a
second interrupt would leave half of the clusters running. The first one must not get lost either: Python swallows
exceptions that are raised while an object is finalised, for example during imports, so it is raised again then.
"""

import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryFile
from types import FrameType
from typing import IO, Self, TextIO

from tensile.errors import TensileError
from tensile.sandbox.demo.script import Command, SideBySide

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AGAIN = 0.05
"""The delay in seconds after which a swallowed interrupt is raised again."""
STOP_LIMIT = 10.0
LAST = 15
LIMIT = 90.0
PAUSE = 0.1
GAP = "  |  "
"""What stands between two outputs."""
_BOLD, _PROMPT, _END = "\x1b[1m", "\x1b[36m", "\x1b[0m"


class DemoError(TensileError):
    """The tour cannot continue; the message contains the command, and what to do."""


class DemoScreen:
    """Writes to a stream, in colour if requested."""

    def __init__(self, stream: TextIO, *, colour: bool) -> None:
        self.stream = stream
        self._colour = colour

    def title(self, text: str) -> None:
        """Print the title of a scene."""
        self._write(f"\n{self._in(_BOLD, f'# {text}')}")

    def words(self, text: str) -> None:
        """Print a text with its line breaks."""
        self._write(text)

    def command(self, *lines: str) -> None:
        """Print command lines; the output of the commands follows them."""
        self._write("\n" + "\n".join(self._in(_PROMPT, f"$ {line}") for line in lines))

    def _in(self, style: str, text: str) -> str:
        return f"{style}{text}{_END}" if self._colour else text

    def _write(self, text: str) -> None:
        self.stream.write(f"{text}\n")
        self.stream.flush()


class DemoEngine:
    """A running engine; created by `start`."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self.log = log

    @classmethod
    def start(cls, command: Sequence[str], directory: Path, variables: Mapping[str, str], log: Path) -> Self:
        """Start the engine in a directory; its output goes to the log."""
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                cwd=directory,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return cls(process, log)

    def check(self) -> None:
        """Raise DemoError if the engine has ended."""
        code = self._process.poll()
        if code is not None:
            raise DemoError(f"demo: the engine exited unexpectedly with code {code}")

    def wait(self) -> None:
        """Wait until the engine ends, and raise DemoError then."""
        self._process.wait()
        self.check()

    def stop(self, limit: float = STOP_LIMIT) -> None:
        """Terminate the engine, and kill it if it does not end within `limit` seconds."""
        self._process.terminate()
        try:
            self._process.wait(limit)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def last_lines(self) -> str:
        """Return the end of its log, at most 15 lines."""
        with self.log.open(errors="replace") as lines:
            return "".join(deque(lines, LAST)).rstrip()


@dataclass(frozen=True)
class Shell:
    """Runs commands in a directory.

    Attributes:
        screen: where commands and their output are printed.
        directory: the working directory.
        programs: the commands that replace the first word of a line; other words are looked up in $PATH.
        variables: the environment.
        look_after: called while a command runs; raises an error to end the command.
        limit: the timeout of a command in seconds.
    """

    screen: DemoScreen
    directory: Path
    programs: Mapping[str, Sequence[str]]
    variables: Mapping[str, str]
    look_after: Callable[[], None]
    limit: float = LIMIT

    def run(self, command: Command | SideBySide) -> None:
        """Print a command and run it to its end.

        Raises:
            DemoError: it cannot be started, times out, or ends with an unexpected exit code.
        """
        if isinstance(command, SideBySide):
            self._compare(command)
        else:
            self.screen.command(command.line)
            self._run(command, self.screen.stream)

    def _compare(self, sides: SideBySide) -> None:
        """Run several commands, and print their outputs next to each other."""
        commands = (sides.left, *sides.right)
        self.screen.command(*(command.line for command in commands))
        left, *right = map(self._output, commands)
        self.screen.words(beside(left, "".join(right)))

    def _output(self, command: Command) -> str:
        """Run a command to its end and return its output."""
        with TemporaryFile("w+") as output:
            self._run(command, output)
            output.seek(0)
            return output.read()

    def _run(self, command: Command, output: IO[str]) -> None:
        """Run a command to its end, with its output to a stream that has a file descriptor."""
        code = self._ended(command.line, output)
        if code not in command.codes:
            wanted = " or ".join(map(str, command.codes))
            raise DemoError(f"demo: `{command.line}` exited with code {code}, expected {wanted}; see its output")

    def _ended(self, line: str, output: IO[str]) -> int:
        """Run a command line to its end and return the exit code."""
        first, *others = shlex.split(line)
        arguments = [*self.programs.get(first, (first,)), *others]
        try:
            process = subprocess.Popen(
                arguments,
                cwd=self.directory,
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
            )
        except OSError as error:
            raise DemoError(f"demo: `{line}` cannot be run: {error.strerror}; install {first}") from error
        with process:
            try:
                return self._watched(process, line)
            finally:
                process.kill()

    def _watched(self, process: subprocess.Popen[bytes], line: str) -> int:
        end = time.monotonic() + self.limit
        while time.monotonic() < end:
            try:
                return process.wait(PAUSE)
            except subprocess.TimeoutExpired:
                self.look_after()
        raise DemoError(f"demo: `{line}` took more than {self.limit:.0f} s; is the machine busy? Try again")


def beside(left: str, right: str) -> str:
    """Return the lines of two texts next to each other; the shorter text ends earlier."""
    rows = list(zip_longest(left.splitlines(), right.splitlines(), fillvalue=""))
    width = max((len(one) for one, _ in rows), default=0)
    return "\n".join(f"{one:{width}}{GAP}{other}".rstrip() for one, other in rows)


@contextmanager
def interruptible() -> Iterator[None]:
    """Make the first of SIGNALS raise KeyboardInterrupt inside the block, and ignore those after it.

    A SIGHUP that is already ignored, as with `nohup`, stays ignored.
    """

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        ignore()
        raise KeyboardInterrupt

    def swallowed(what: "sys.UnraisableHookArgs") -> None:
        if issubclass(what.exc_type, KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, _AGAIN)
        else:
            told_before(what)

    told_before, sys.unraisablehook = sys.unraisablehook, swallowed
    hears_hangup = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    before = {number: signal.signal(number, interrupt) for number in SIGNALS if hears_hangup or number != signal.SIGHUP}
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield
    finally:
        sys.unraisablehook = told_before
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore() -> None:
    """Ignore SIGNALS until the block of `interruptible` ends, and cancel an interrupt that would be raised again."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
