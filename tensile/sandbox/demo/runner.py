"""The engine as the demo sees it: `tensile run` in a process of its own, which writes its log to a file.

It has a session of its own, so that Ctrl-C in a terminal reaches the demo alone, which then ends it in order.

Runs the tour's commands: each is shown as it is written, then run, and its output goes where the words go.

Meanwhile the engine is looked after: a command that waits for what a dead engine should do would wait for nothing.

What a person sees of the demo: titles, words, and command lines as in a terminal.

Every word is written out before a command starts, because commands write to the same place themselves.

The signals that end the demo: the first one interrupts, the others are too late to matter.

Cleaning up takes a few seconds, and people press Ctrl-C twice: a second interrupt in the middle of it would leave half
of the clusters running. Nor may the first one be lost: Python swallows what is raised while it clears an object away,
as imports do all the time; it is raised again then.

What ends a demo early.
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
from pathlib import Path
from types import FrameType
from typing import Self, TextIO

from tensile.errors import TensileError
from tensile.sandbox.demo.script import Command

_BOLD, _PROMPT, _END = "\x1b[1m", "\x1b[36m", "\x1b[0m"


class Screen:
    """Writes to a stream, in colour if asked to."""

    def __init__(self, stream: TextIO, *, colour: bool) -> None:
        self.stream = stream
        self._colour = colour

    def title(self, text: str) -> None:
        """Begin a new stop of the tour."""
        self._write(f"\n{self._in(_BOLD, f'# {text}')}")

    def words(self, text: str) -> None:
        """Say something, in the lines that the text has."""
        self._write(text)

    def command(self, line: str) -> None:
        """Show a command line; what the command prints comes below it."""
        self._write(f"\n{self._in(_PROMPT, f'$ {line}')}")

    def _in(self, style: str, text: str) -> str:
        return f"{style}{text}{_END}" if self._colour else text

    def _write(self, text: str) -> None:
        self.stream.write(f"{text}\n")
        self.stream.flush()


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AGAIN = 0.05
"""Seconds after which an interrupt that was swallowed is raised again."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Let the first of SIGNALS raise KeyboardInterrupt inside the block, and ignore those after it.

    A SIGHUP that is ignored already, as `nohup` does it, stays ignored.
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
    """Ignore SIGNALS from now on, until the block of `interruptible` ends, and what is still to be raised again."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


class DemoError(TensileError):
    """The tour cannot go on; the text says at which command, and what to do."""


STOP_LIMIT = 10.0
LAST = 15


class Engine:
    """A running engine; made by `start`."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self.log = log

    @classmethod
    def start(cls, command: Sequence[str], directory: Path, variables: Mapping[str, str], log: Path) -> Self:
        """Start it in a directory; what it prints goes to the log."""
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
        """Raise DemoError when it has ended."""
        code = self._process.poll()
        if code is not None:
            raise DemoError(f"demo: the engine ended by itself, with {code}")

    def wait(self) -> None:
        """Wait until it ends, and raise DemoError then."""
        self._process.wait()
        self.check()

    def stop(self, limit: float = STOP_LIMIT) -> None:
        """Ask it to end, and end it when it does not within `limit` seconds."""
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


LIMIT = 90.0
PAUSE = 0.1


@dataclass(frozen=True)
class Shell:
    """A place to run commands in.

    Attributes:
        screen: where commands and what they print are shown.
        directory: in which they run.
        programs: what the first word of a line stands for; others are looked up as usual.
        variables: the environment.
        look_after: called all the while; raises what ends the command.
        limit: seconds that a command may take.
    """

    screen: Screen
    directory: Path
    programs: Mapping[str, Sequence[str]]
    variables: Mapping[str, str]
    look_after: Callable[[], None]
    limit: float = LIMIT

    def run(self, command: Command) -> None:
        """Show a command and run it to its end.

        Raises:
            DemoError: it cannot be started, takes too long, or ends with a code that it should not end with.
        """
        self.screen.command(command.line)
        code = self._ended(command.line)
        if code not in command.codes:
            wanted = " or ".join(map(str, command.codes))
            raise DemoError(f"demo: `{command.line}` ended with {code}, not with {wanted}; what it said is above")

    def _ended(self, line: str) -> int:
        """Run to the end; give the exit code."""
        first, *others = shlex.split(line)
        arguments = [*self.programs.get(first, (first,)), *others]
        try:
            process = subprocess.Popen(
                arguments,
                cwd=self.directory,
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=self.screen.stream,
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
