"""Runs the tour's commands: each is shown as it is written, then run, and its output goes where the words go.

Meanwhile the engine is looked after: a command that waits for what a dead engine should do would wait for nothing.
"""

import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tensile.demo.errors import DemoError
from tensile.demo.screen import Screen
from tensile.demo.tour import Command

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
            process = subprocess.Popen(  # noqa: S603 - running programs is what the demo is for
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
