"""Logging: one line per event, as text or JSON, for our own logs and those of libraries.

Lines are written straight to the stream. If it cannot take them (a full disk, a closed reader) they are lost: an engine
that stops because of its log would cost pods.
"""

import contextlib
import json
import logging
import re
import traceback
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog

from tensile.errors import TensileError, described
from tensile.text import HIDDEN, clean, is_secret, printable, takes_colour

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}
"""The levels by their names on the command line."""
FORMS = ("text", "json")
"""The formats of a log line."""
_is_bare = re.compile(r"[^\s\"'=]+").fullmatch
_COLOURS = {"warning": "\x1b[33m", "error": "\x1b[31m"}
Event = MutableMapping[str, Any]
"""A log event: the message under "event", and its fields."""


def configure(level: str, form: str, stream: TextIO) -> None:
    """Send all logs to a stream: ours from `level` on, those of libraries from "warn" on.

    `level` is one of LEVELS, `form` one of FORMS; raises TensileError for any other. Tracebacks are printed at level
    "debug" only. May be called again.
    """
    if level not in LEVELS or form not in FORMS:
        raise TensileError(
            f"log level {level!r}, log format {form!r}: take one of {', '.join(LEVELS)} and text or json"
        )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.ExceptionRenderer(lambda given: given[1]),
            _ExceptionFormatter(tracebacks=level == "debug"),
            _printable,
            _json if form == "json" else _TextFormatter(coloured=takes_colour(stream)),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=lambda *names: _LineLogger(stream, *names),
        cache_logger_on_first_use=False,
    )
    _adopt_libraries()


class _LineLogger:
    """Writes lines to a stream as the logger of one module; structlog calls the method of the event's level."""

    def __init__(self, stream: TextIO, name: str = "tensile") -> None:
        self._stream = stream
        self.name = name

    def write(self, line: str) -> None:
        """Write one line, or lose it: OSError is a failed write, ValueError a closed stream."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(line + "\n")
            self._stream.flush()

    debug = info = warning = error = critical = write


class _LibraryHandler(logging.Handler):
    """Turns records of the standard library's logging into events of ours."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log one record; those below warning do not arrive here."""
        try:
            message = record.getMessage()
        except (TypeError, ValueError, KeyError):
            message = str(record.msg)
        logger = structlog.get_logger(record.name)
        log = logger.error if record.levelno >= logging.ERROR else logger.warning
        log(message, exc_info=record.exc_info)


def _adopt_libraries() -> None:
    """Add our handler to the root logger, once."""
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _LibraryHandler)]:
        root.removeHandler(handler)
    root.addHandler(_LibraryHandler())
    root.setLevel(logging.WARNING)


class _ExceptionFormatter:
    """Describes an exception in words, with its traceback if that is wanted."""

    def __init__(self, *, tracebacks: bool) -> None:
        self._tracebacks = tracebacks

    def __call__(self, _logger: Any, _method: str, event: Event) -> Event:
        """Replace the exception that structlog found by `exc_info`, if there is one."""
        error = event.pop("exception", None)
        if error is not None:
            event.setdefault("error", described(error))
            if self._tracebacks:
                event["traceback"] = "".join(traceback.format_exception(error))
        return event


def _printable(_logger: Any, _method: str, event: Event) -> Event:
    """Make every value of an event printable."""
    lines = str(event.pop("traceback", "")).splitlines()
    printed: Event = {key: HIDDEN if is_secret(key) else printable(value) for key, value in event.items()}
    if lines:
        printed["traceback"] = "\n".join(clean(line) for line in lines)
    return printed


def _json(_logger: Any, _method: str, event: Event) -> str:
    """Return an event as JSON; time, level, logger and message come first."""
    first_keys = ("timestamp", "level", "logger", "event")
    return json.dumps({key: event.pop(key) for key in first_keys} | dict(event))


class _TextFormatter:
    """Formats an event as text; on a terminal its level is coloured."""

    def __init__(self, *, coloured: bool) -> None:
        self._colours = _COLOURS if coloured else {}

    def __call__(self, _logger: Any, _method: str, event: Event) -> str:
        """Return an event on one line, with a traceback below if it has one."""
        timestamp, level, logger, message = (event.pop(key) for key in ("timestamp", "level", "logger", "event"))
        lines = event.pop("traceback", "")
        colour = self._colours.get(level, "")
        shown = f"{colour}{level:<7}\x1b[0m" if colour else f"{level:<7}"
        fields = "".join(f" {key}={_field(value)}" for key, value in event.items())
        return f"{timestamp} {shown} {logger}: {message}{fields}" + (f"\n{lines}" if lines else "")


def _field(value: Any) -> str:
    """Return a value as text with a visible end: bare if that is clear, else as JSON."""
    return value if isinstance(value, str) and _is_bare(value) else json.dumps(value, ensure_ascii=False)
