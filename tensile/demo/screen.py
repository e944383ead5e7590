"""What a person sees of the demo: titles, words, and command lines as in a terminal.

Every word is written out before a command starts, because commands write to the same place themselves.
"""

from typing import TextIO

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
