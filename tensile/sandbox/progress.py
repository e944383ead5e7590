"""Shows a person how far something is: by lines, and on a terminal also by one line that is rewritten.

A download or a build that takes minutes reports several times a second. A terminal shows each report in place of the
one before. A log would be flooded, so it gets one of them every 20 s.
"""

import shutil
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

Progress = Callable[[str], None]
"""Called with lines for a person. `TerminalProgress` also shows a line that is rewritten."""
REWRITE_EVERY = 0.5
"""Seconds between two reports on a terminal."""
LINE_EVERY = 20.0
"""Seconds between two reports elsewhere."""


class TerminalProgress:
    """Prints lines to a terminal, and below them one line that is rewritten."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown = ""

    def __call__(self, line: str) -> None:
        """Print a line that stays."""
        self.rewrite("")
        self._stream.write(f"{line}\n")
        self._stream.flush()

    def rewrite(self, text: str) -> None:
        """Show a text in place of the last one, cut to the width of the terminal; "" removes it."""
        text = text[: shutil.get_terminal_size().columns - 1]
        if text != self._shown:
            rest = " " * (len(self._shown) - len(text))
            self._stream.write(f"\r{text}{rest}" if text else f"\r{rest}\r")
            self._stream.flush()
        self._shown = text


class Updates:
    """Passes reports on as often as a person can use them; removes the rewritten line at the end of its `with` block.

    Args:
        progress: where to; the line is rewritten if this is a terminal.
        clock: the time in seconds.
    """

    def __init__(self, progress: Progress, clock: Callable[[], float] = time.monotonic) -> None:
        self._progress = progress
        self._rewrite = progress.rewrite if isinstance(progress, TerminalProgress) else None
        self._clock = clock
        self._last = clock()
        self.interval = REWRITE_EVERY if self._rewrite else LINE_EVERY

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._rewrite:
            self._rewrite("")

    def show(self, text: str) -> None:
        """Show a report, unless the last one was shown less than an interval ago."""
        now = self._clock()
        if now - self._last < self.interval:
            return
        self._last = now
        (self._rewrite or self._progress)(text)


def progress_to(stream: TextIO) -> Progress:
    """Return the progress that prints to a stream."""
    if stream.isatty():
        return TerminalProgress(stream)

    def say(line: str) -> None:
        stream.write(f"{line}\n")

    return say
