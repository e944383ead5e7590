"""The engine as the demo sees it: `tensile run` in a process of its own, which writes its log to a file.

It has a session of its own, so that Ctrl-C in a terminal reaches the demo alone, which then ends it in order.
"""

import subprocess
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tensile.demo.errors import DemoError

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
            process = subprocess.Popen(  # noqa: S603 - running programs is what the demo is for
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
        """Give the end of its log, at most 15 lines."""
        with self.log.open(errors="replace") as lines:
            return "".join(deque(lines, LAST)).rstrip()
