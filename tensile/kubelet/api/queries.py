"""The kubelet's query parameters turned into those of an apiserver's pod subresources.

Both speak of the same things by other names (`input=1` here, `stdin=true` there). A query is built anew from what is
known and checked, so nothing that the caller made up reaches a lower cluster; what is not known is dropped, as
Kubernetes does.
"""

import re
from collections.abc import Callable
from http import HTTPStatus
from urllib.parse import urlencode

from tensile.kubelet.api.refusal import Refused
from tensile.kubelet.api.routes import Query

_STREAMS = {"input": "stdin", "output": "stdout", "error": "stderr", "tty": "tty"}
_LARGEST = 2**63 - 1
_LARGEST_PORT = 65535
_DIGITS = re.compile(r"[0-9]{1,19}")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_DEFAULT_STREAM = "All"  # never passed on: an apiserver without the feature refuses even the default
_LOG_STREAMS = frozenset({_DEFAULT_STREAM, "Stdout", "Stderr"})


def exec_query(query: Query, container: str) -> str:
    """Give the query of `pods/exec`: at least one stream and a command are asked for."""
    command = command_of(query)
    if not command:
        raise _bad("command: an exec names the command to run")
    return _encode([*_streams(query), ("container", container), *(("command", word) for word in command)])


def command_of(query: Query) -> tuple[str, ...]:
    """Give the words of the command to run."""
    return tuple(value for key, value in query if key == "command")


def attach_query(query: Query, container: str) -> str:
    """Give the query of `pods/attach`: at least one stream is asked for."""
    return _encode([*_streams(query), ("container", container)])


def port_query(query: Query) -> str:
    """Give the query of `pods/portforward`: ports by WebSocket, none by SPDY, which names them later."""
    ports = [port for key, value in query if key == "port" for port in value.split(",")]
    return _encode([("ports", _number("port", port, 1, _LARGEST_PORT)) for port in ports])


def log_query(query: Query, container: str) -> str:
    """Give the query of `pods/log`; a number, time or stream that Kubernetes would not take is refused with 400."""
    given = _first(query)
    if "sinceSeconds" in given and "sinceTime" in given:
        raise _bad("sinceSeconds, sinceTime: at most one of the two may be given")
    if given.get("stream") == _DEFAULT_STREAM:
        del given["stream"]
    checked = [(key, check(key, given[key])) for key, check in _LOG_KEYS.items() if key in given]
    return _encode([("container", container), *checked])


def _streams(query: Query) -> list[tuple[str, str]]:
    """Give the streams asked for; a terminal has no stderr of its own, so Kubernetes lets it go."""
    given = _first(query)
    asked = {ours: "true" for theirs, ours in _STREAMS.items() if given.get(theirs) == "1"}
    if "tty" in asked:
        asked.pop("stderr", None)
    if not asked.keys() - {"tty"}:
        raise _bad("input, output, error: at least one of the streams must be asked for")
    return list(asked.items())


def _first(query: Query) -> dict[str, str]:
    """Give the first value of each key, which is the one that Kubernetes takes."""
    return dict(reversed(query))


def _flag(_key: str, value: str) -> str:
    """Read a truth value as Kubernetes reads one in a query: all but "false" and "0" is true."""
    return "false" if value.lower() in {"false", "0"} else "true"


def _at_least(smallest: int) -> Callable[[str, str], str]:
    return lambda key, value: _number(key, value, smallest, _LARGEST)


def _number(key: str, value: str, smallest: int, largest: int) -> str:
    if not (_DIGITS.fullmatch(value) and smallest <= int(value) <= largest):
        raise _bad(f"{key}: {value[:40]!r} is not a whole number from {smallest} to {largest}")
    return value


def _time(key: str, value: str) -> str:
    if not _TIME.fullmatch(value):
        raise _bad(f"{key}: {value[:40]!r} is not a time such as 2024-01-31T12:00:00Z")
    return value


def _log_stream(key: str, value: str) -> str:
    if value not in _LOG_STREAMS:
        raise _bad(f"{key}: {value[:40]!r} is none of {', '.join(sorted(_LOG_STREAMS))}")
    return value


def _encode(pairs: list[tuple[str, str]]) -> str:
    """Encode a query; bytes that were no UTF-8 come out as they came in."""
    return urlencode(pairs, errors="surrogateescape")


def _bad(message: str) -> Refused:
    return Refused(HTTPStatus.BAD_REQUEST, message)


_LOG_KEYS: dict[str, Callable[[str, str], str]] = {
    "follow": _flag,
    "previous": _flag,
    "timestamps": _flag,
    "sinceSeconds": _at_least(1),
    "sinceTime": _time,
    "tailLines": _at_least(0),
    "limitBytes": _at_least(1),
    "stream": _log_stream,
}
