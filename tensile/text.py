"""Lines that people read: harmless whoever wrote the words in them, and in columns where they are many.

Names, conditions and messages of events come from whoever runs pods, answers from whoever runs a server: they are not
to write on somebody's terminal, nor to make one line look like two.

The streams that the program talks by, as whoever starts it left them: closed, of another encoding, or a terminal.

Words of others, fit for a message of ours: short, on one line, and harmless on a terminal.

What may be printed: no secret, no control character, nothing without end.

Names and messages come from clusters, and who can make a pod there chooses them: a line break in one must not
begin a log line, and an escape sequence must not reach a terminal.
"""

import io
import json
import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO


def harmless(text: str) -> str:
    """Escape all that is not printable: control characters, and marks that turn the direction of writing."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def joined(lines: Iterable[str]) -> str:
    """Put harmless lines together, without a newline at the end."""
    return "\n".join(map(harmless, lines))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay harmless cells out in columns, three spaces apart."""
    cells = [[harmless(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def prepare() -> None:
    """Have both streams take every word: UTF-8 as kubectl's, whatever the locale, and a closed one leads nowhere.

    Objects in YAML and JSON are UTF-8, and what follows them in a pipe reads them so. A stream that stayed closed would
    be the next file or connection that is opened.
    """
    sys.stdout, sys.stderr = (_taking(stream) for stream in (sys.stdout, sys.stderr))


def takes_colour(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Report whether colours help there: a terminal of somebody who has not said no (no-color.org)."""
    return stream.isatty() and not environment.get("NO_COLOR")


def _taking(stream: TextIO | None) -> TextIO:
    if stream is None:
        return Path(os.devnull).open("w", encoding="utf-8")
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    return stream


LONGEST = 80
_WORD = re.compile("[A-Za-z-]{1,40}")
_BEGIN = re.compile("[A-Za-z-]{0,8}")


def shown(text: object, longest: int = LONGEST) -> str:
    """Return a name or path with everything escaped that does not print; the middle of a long one is left out."""
    whole = str(text)
    if len(whole) > longest:
        half = longest // 2
        whole = f"{whole[:half]}...{whole[-half:]}"
    return repr(whole)[1:-1].replace("\\\\", "\\")


def key_shown(key: object, known: Collection[str]) -> str:
    """Return a key that is none of those `known`, as far as it surely is one.

    Where a colon is missing, YAML takes what was meant for the value, a token or a private key, for a part of the key.
    """
    whole = str(key)
    if whole.lower() in {one.lower() for one in known}:
        return whole
    begun = max((one for one in known if whole.lower().startswith(one.lower())), key=len, default="")
    if begun:
        return f"{begun}..."
    return whole if _WORD.fullmatch(whole) else f"{_BEGIN.match(whole).group()}..."  # type: ignore[union-attr]


HIDDEN = "(not shown)"
"""What stands in place of a secret."""

LONGEST_PRINTED = 2000
"""So many characters of one text are printed."""

_SECRET_KEYS = frozenset(
    ("data", "stringdata", "binarydata", "token", "authorization", "password", "client-key-data", "clientkeydata")
)
_CREDENTIAL = re.compile(r"(?i)\b(bearer|basic)(\s+)[A-Za-z0-9._~+/=-]{8,}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_PLAIN = re.compile(r"[\x21-\x7e]*").fullmatch
"""One word of ASCII: neither a credential, which has a blank in it, nor a control character."""
_CUT = "..."
_MOST_ITEMS = 100
_DEEPEST = 6


def clean(text: str) -> str:
    """Return a text on one line: control characters escaped, credentials hidden, its end cut off where it is long."""
    if _PLAIN(text) and len(text) <= LONGEST_PRINTED:
        return text
    short = text if len(text) <= LONGEST_PRINTED else text[: LONGEST_PRINTED - len(_CUT)] + _CUT
    return _CONTROL.sub(_escaped, _CREDENTIAL.sub(rf"\1\2{HIDDEN}", short))


def cut(text: str, most: int) -> str:
    """Return a text fit for an Event: cleaned line by line, in at most so many bytes of UTF-8, no character torn.

    Line breaks and tabs stay: what a probe prints has lines, and kubectl shows them as such.
    """
    whole = text.encode(errors="backslashreplace")
    lines = _head(whole, most).split("\n")
    safe = "\n".join("\t".join(map(clean, line.split("\t"))) for line in lines)
    if len(whole) <= most and len(safe.encode()) <= most:
        return safe
    return _head(safe.encode(), most - len(_CUT)) + _CUT


def _head(text: bytes, most: int) -> str:
    """Return as much of the beginning of a text as has so many bytes."""
    return text[:most].decode(errors="ignore")


def printable(value: Any, depth: int = 0) -> Any:
    """Return a value fit for a log: what stands under the key of a secret is hidden at any depth."""
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
    """Report whether what is kept under a key is a secret, or may hold one."""
    return str(key).lower() in _SECRET_KEYS


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "backslashreplace").decode()
