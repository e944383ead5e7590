"""What may be printed: no secret, no control character, nothing without end.

Names and messages come from clusters, and who can make a pod there chooses them: a line break in one must not
begin a log line, and an escape sequence must not reach a terminal.
"""

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "(not shown)"
"""What stands in place of a secret."""

LONGEST = 2000
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
    """Give a text on one line: control characters escaped, credentials hidden, its end cut off where it is long."""
    if _PLAIN(text) and len(text) <= LONGEST:
        return text
    short = text if len(text) <= LONGEST else text[: LONGEST - len(_CUT)] + _CUT
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
    """Give a value fit for a log: what stands under the key of a secret is hidden at any depth."""
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
    """Tell whether what is kept under a key is a secret, or may hold one."""
    return str(key).lower() in _SECRET_KEYS


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "backslashreplace").decode()
