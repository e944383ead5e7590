"""Safe text for terminals, logs, events and error messages: no control characters, no secrets, bounded length.

Users of a cluster choose names, conditions and event messages, and servers choose their responses. None of that may
send escape sequences to a terminal, forge a second log line, reveal a credential or have unlimited length.

Progress is text for a person, too. A download or a build that takes minutes reports several times a second. A terminal
shows each report in place of the one before. A log would be flooded, so it gets one of them every 20 s.
"""

import io
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

HIDDEN = "(not shown)"
"""Replaces a secret."""
LONGEST = 80

LONGEST_PRINTED = 2000
"""The most characters of one text that are printed."""

_SECRET_KEYS = frozenset(
    ("data", "stringdata", "binarydata", "token", "authorization", "password", "client-key-data", "clientkeydata")
)
_CREDENTIAL = re.compile(r"(?i)\b(bearer|basic)(\s+)[A-Za-z0-9._~+/=-]{8,}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_SCHEME = re.compile(r"(?i)(?:bearer|basic)\s").search
"""What every credential begins with."""
_CUT = "..."
_MOST_ITEMS = 100
_DEEPEST = 6
_PRECISE_MINUTES, _PRECISE = 10, 8
"""Below so many minutes, or hours and days, a time span has a second unit."""
_WORD = re.compile("[A-Za-z-]{1,40}")
_KEY_PREFIX = re.compile("[A-Za-z-]{0,8}")


def harmless(text: str) -> str:
    """Escape everything that is not printable: control characters, and marks that change the text direction."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def joined(lines: Iterable[str]) -> str:
    """Join lines after escaping them, without a newline at the end."""
    return "\n".join(map(harmless, lines))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format escaped cells as columns, three spaces apart."""
    cells = [[harmless(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def listed(names: Iterable[str], most: int = 3) -> str:
    """Join escaped names: the first `most`, and the number of the others."""
    known = list(names)
    more = f" and {len(known) - most} more" if len(known) > most else ""
    return harmless(", ".join(known[:most])) + more


def counted(number: int, word: str) -> str:
    """Return a number with a regular noun: "1 pod", "2 pods"."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def human_duration(seconds: int) -> str:
    """Return a time span of zero or more seconds as kubectl prints an age: 110s, 2m10s, 15m, 3h5m, 26h, 6d4h, 300d."""
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86_400
    if seconds < 2 * 60:
        return f"{seconds}s"
    if minutes < 3 * 60:
        return _two_units(minutes, "m", seconds % 60 if minutes < _PRECISE_MINUTES else 0, "s")
    if hours < 2 * 24:
        return _two_units(hours, "h", minutes % 60 if hours < _PRECISE else 0, "m")
    return _two_units(days, "d", hours % 24 if days < _PRECISE else 0, "h")


def _two_units(number: int, unit: str, remainder: int, smaller: str) -> str:
    return f"{number}{unit}{remainder}{smaller}" if remainder else f"{number}{unit}"


def prepare() -> None:
    """Make the standard streams accept every character: the output as UTF-8 whatever the locale.

    A closed stream discards output. What is not text in an answer on stdin is replaced, so it is no error.

    Objects in YAML and JSON are UTF-8, and the readers of a pipe expect it, as from kubectl. The descriptor of a stream
    that stays closed would be reused by the next file or connection.
    """
    sys.stdout, sys.stderr = (_accepting_all_text(stream) for stream in (sys.stdout, sys.stderr))
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")


def takes_colour(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Report whether to use colours: on a terminal, unless NO_COLOR is set (no-color.org)."""
    return stream.isatty() and not environment.get("NO_COLOR")


def _accepting_all_text(stream: TextIO | None) -> TextIO:
    if stream is None:
        return Path(os.devnull).open("w", encoding="utf-8")
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    return stream


def shown(text: object, longest: int = LONGEST) -> str:
    """Return a name or path with everything escaped that is not printable. The middle of a long one is left out."""
    whole = str(text)
    if len(whole) > longest:
        half = longest // 2
        whole = f"{whole[:half]}...{whole[-half:]}"
    return repr(whole)[1:-1].replace("\\\\", "\\")


def key_shown(key: object, known: Collection[str]) -> str:
    """Return an unknown key as far as it is certainly a key and no value. `known` are the valid keys.

    Where a colon is missing, YAML makes the intended value, such as a token or a private key, a part of the key.
    """
    whole = str(key)
    if whole.lower() in {one.lower() for one in known}:
        return whole
    prefix = max((one for one in known if whole.lower().startswith(one.lower())), key=len, default="")
    if prefix:
        return f"{prefix}..."
    return whole if _WORD.fullmatch(whole) else f"{_KEY_PREFIX.match(whole).group()}..."  # type: ignore[union-attr]


def clean(text: str) -> str:
    """Return a text on one line: control characters escaped, credentials hidden, truncated to `LONGEST_PRINTED`."""
    if len(text) <= LONGEST_PRINTED and _is_harmless_line(text):
        return text
    short = text if len(text) <= LONGEST_PRINTED else text[: LONGEST_PRINTED - len(_CUT)] + _CUT
    return _CONTROL.sub(_escaped, _CREDENTIAL.sub(rf"\1\2{HIDDEN}", short))


def _is_harmless_line(text: str) -> bool:
    """Report whether a text certainly needs no change: most lines do not, and each change costs a scan."""
    return text.isascii() and text.isprintable() and not _SCHEME(text)


def cut(text: str, most: int) -> str:
    """Return a text for an Event: every line cleaned, at most `most` bytes of UTF-8, no character split.

    Line breaks and tabs stay, as the output of a probe has lines and kubectl shows them.
    """
    if len(text) <= min(most, LONGEST_PRINTED) and _is_harmless_line(text):
        return text
    whole = text.encode(errors="backslashreplace")
    lines = _head(whole, most).split("\n")
    safe = "\n".join("\t".join(map(clean, line.split("\t"))) for line in lines)
    if len(whole) <= most and len(safe.encode()) <= most:
        return safe
    return _head(safe.encode(), most - len(_CUT)) + _CUT


def _head(text: bytes, most: int) -> str:
    """Return the longest beginning of a text that fits into `most` bytes."""
    return text[:most].decode(errors="ignore")


def printable(value: Any, depth: int = 0) -> Any:
    """Return a value for a log, with the values of secret keys hidden at any depth."""
    match value:
        case None | bool() | int() | float():
            return value
        case str():
            return clean(value)
        case _ if depth > _DEEPEST:
            return "..."
        case Mapping():
            return {clean(str(key)): _content(key, value[key], depth) for key in list(value)[:_MOST_ITEMS]}
        case list() | tuple() | set() | frozenset():
            return [printable(item, depth + 1) for item in list(value)[:_MOST_ITEMS]]
        case _:
            return clean(str(value))


def _content(key: Any, value: Any, depth: int) -> Any:
    return HIDDEN if is_secret(key) else printable(value, depth + 1)


def is_secret(key: Any) -> bool:
    """Report whether the value of a key is a secret, or may hold one."""
    return str(key).lower() in _SECRET_KEYS


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "backslashreplace").decode()


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
            padding = " " * (len(self._shown) - len(text))
            self._stream.write(f"\r{text}{padding}" if text else f"\r{padding}\r")
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

    def write_line(line: str) -> None:
        stream.write(f"{line}\n")

    return write_line
