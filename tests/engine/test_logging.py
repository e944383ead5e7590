"""Tests of log lines: their format, their levels, and lines that cannot be written."""

import io
import json
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from clikit import restored_logging

from tensile.engine.logging import configure
from tensile.errors import TensileError, described, raised_at
from tensile.text import HIDDEN

MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Restore the logging configuration after each test."""
    with restored_logging():
        yield


@pytest.fixture
def stream() -> io.StringIO:
    """Return a stream to log to."""
    return io.StringIO()


def logged(stream: io.StringIO) -> list[dict[str, Any]]:
    """Return the parsed JSON lines of a stream."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def fail() -> None:
    """Raise ValueError on the line after this one."""
    raise ValueError("no such thing")


def caught() -> ValueError:
    """Return the error that `fail` raises."""
    try:
        fail()
    except ValueError as error:
        return error
    raise AssertionError


def test_a_json_line_starts_with_time_level_logger_and_event(stream: io.StringIO) -> None:
    """The other fields follow in the order in which they were given."""
    configure("info", "json", stream)
    structlog.get_logger("tensile.x").warning("gone", zone="b", cluster="lower-a", count=3)
    (entry,) = logged(stream)
    assert list(entry) == ["timestamp", "level", "logger", "event", "zone", "cluster", "count"]
    assert MOMENT.fullmatch(entry.pop("timestamp"))
    assert list(entry.values()) == ["warning", "tensile.x", "gone", "b", "lower-a", 3]


def test_a_text_line_has_time_level_logger_event_and_fields(stream: io.StringIO) -> None:
    """Values with spaces or quotes and empty ones are quoted; without a terminal, the line has no colors."""
    configure("info", "text", stream)
    structlog.get_logger("tensile.x").info("Pod created", cluster="lower-a", because='is "bound"', n=3, empty="")
    line = stream.getvalue()
    assert MOMENT.match(line)
    assert line[27:] == (' info    tensile.x: Pod created cluster=lower-a because="is \\"bound\\"" n=3 empty=""\n')


def test_the_level_of_an_error_is_colored_on_a_terminal() -> None:
    """A line of level info has no color."""
    terminal = Terminal()
    configure("info", "text", terminal)
    structlog.get_logger("tensile.x").info("one")
    structlog.get_logger("tensile.x").error("two")
    first, second = terminal.getvalue().splitlines()
    assert "\x1b" not in first
    assert "\x1b[31merror  \x1b[0m tensile.x: two" in second


def test_json_has_no_color_on_a_terminal() -> None:
    """A program may read it there too."""
    terminal = Terminal()
    configure("info", "json", terminal)
    structlog.get_logger("tensile.x").error("two")
    assert "\x1b" not in terminal.getvalue()


@pytest.mark.parametrize(
    ("level", "levels"),
    [
        ("debug", ["debug", "info", "warning", "error"]),
        ("info", ["info", "warning", "error"]),
        ("warn", ["warning", "error"]),
        ("error", ["error"]),
    ],
)
def test_a_level_only_logs_lines_of_at_least_its_severity(level: str, levels: list[str], stream: io.StringIO) -> None:
    """The names of the levels are those of the command line."""
    configure(level, "json", stream)
    log = structlog.get_logger("tensile.x")
    for tell in (log.debug, log.info, log.warning, log.error):
        tell("so")
    assert [entry["level"] for entry in logged(stream)] == levels


@pytest.mark.parametrize(("level", "form"), [("loud", "json"), ("info", "xml")])
def test_an_unknown_level_or_format_is_refused(level: str, form: str, stream: io.StringIO) -> None:
    """The error lists the valid values."""
    with pytest.raises(TensileError, match="debug, info, warn, error and text or json"):
        configure(level, form, stream)


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_line_has_no_secret_and_no_line_break(form: str, stream: io.StringIO) -> None:
    """Secrets are hidden under their key, in nested values and in text, and a name cannot forge a line."""
    configure("debug", form, stream)
    structlog.get_logger("tensile.x").info(
        "pod \n2026 forged", token="hunter2", body={"data": {"p": "hunter2"}}, sent="Bearer hunter2hunter2"
    )
    written = stream.getvalue()
    assert written.count("\n") == 1
    assert "hunter2" not in written
    assert written.count(HIDDEN) == 3


def test_a_warning_of_a_library_is_logged_in_the_same_format(stream: io.StringIO) -> None:
    """Its logger name is kept, and lines of libraries below a warning are dropped at every level."""
    configure("debug", "json", stream)
    logging.getLogger("aiohttp.server").info("request came")
    logging.getLogger("asyncio").warning("took %d s", 3)
    logging.getLogger("aiohttp.server").critical("lost")
    entries = [(entry["logger"], entry["level"], entry["event"]) for entry in logged(stream)]
    assert entries == [("asyncio", "warning", "took 3 s"), ("aiohttp.server", "error", "lost")]


def test_a_library_message_with_wrong_arguments_is_logged_unformatted(stream: io.StringIO) -> None:
    """The line is not lost, and no exception is raised."""
    configure("info", "json", stream)
    record = logging.LogRecord("lib", logging.WARNING, "lib.py", 1, "took %d s", ("three",), None)
    logging.getLogger().handlers[-1].handle(record)
    assert [entry["event"] for entry in logged(stream)] == ["took %d s"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_exception_is_logged_as_one_line_without_a_traceback(form: str, stream: io.StringIO) -> None:
    """It has type, message and source line, for exceptions of libraries too."""
    configure("info", form, stream)
    structlog.get_logger("tensile.x").error("failed", exc_info=caught())
    logging.getLogger("lib").error("failed", exc_info=caught())
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    for line in lines:
        assert re.search(r"ValueError: no such thing at test_logging\.py:\d+", line)
        assert "Traceback" not in line


def test_exc_info_logs_the_exception_that_is_being_handled(stream: io.StringIO) -> None:
    """Without such an exception, the line has no error."""
    configure("info", "json", stream)
    try:
        fail()
    except ValueError:
        structlog.get_logger("tensile.x").error("failed", exc_info=True)
    structlog.get_logger("tensile.x").error("no error", exc_info=bool(sys.stdout))
    first, second = logged(stream)
    assert first["error"].startswith("ValueError: no such thing at ")
    assert "error" not in second


def test_an_explicit_error_field_takes_precedence_over_the_exception(stream: io.StringIO) -> None:
    """The caller knows the error better."""
    configure("info", "json", stream)
    structlog.get_logger("tensile.x").error("failed", error="the pod is gone", exc_info=caught())
    assert logged(stream)[0]["error"] == "the pod is gone"


def test_a_traceback_is_only_logged_at_level_debug(stream: io.StringIO) -> None:
    """It follows the line in text, and is a field in JSON."""
    configure("debug", "text", stream)
    structlog.get_logger("tensile.x").error("failed", exc_info=caught())
    first, second, *_, last = stream.getvalue().splitlines()
    assert "failed error=" in first
    assert second == "Traceback (most recent call last):"
    assert last == "ValueError: no such thing"
    other = io.StringIO()
    configure("debug", "json", other)
    structlog.get_logger("tensile.x").error("failed", exc_info=caught())
    assert logged(other)[0]["traceback"].splitlines()[-1] == "ValueError: no such thing"


def test_a_traceback_has_no_control_characters_and_no_secrets(stream: io.StringIO) -> None:
    """Its lines contain text that other clients chose."""
    configure("debug", "text", stream)
    structlog.get_logger("tensile.x").error("failed", exc_info=ValueError("\x1b[2J Bearer hunter2hunter2"))
    assert "\x1b" not in stream.getvalue()
    assert "hunter2" not in stream.getvalue()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_loses_only_the_lines() -> None:
    """The caller continues for as long as the disk is full."""
    full = Path("/dev/full").open("w")  # noqa: SIM115 - closing it has to fail
    configure("info", "json", full)
    for _ in range(1000):
        structlog.get_logger("tensile.x").info("lost")
        logging.getLogger("lib").warning("lost")
    with pytest.raises(OSError, match="No space left"):
        full.close()


def test_a_closed_stream_loses_only_the_line(stream: io.StringIO) -> None:
    """This happens if the program ends while a task still logs."""
    configure("info", "text", stream)
    stream.close()
    structlog.get_logger("tensile.x").info("lost")


def test_a_new_configuration_logs_everything_to_the_new_stream(stream: io.StringIO) -> None:
    """Existing loggers use it too, and each line is written once."""
    log = structlog.get_logger("tensile.x")
    configure("info", "json", io.StringIO())
    log.info("old")
    configure("info", "json", stream)
    log.info("new")
    logging.getLogger("lib").warning("theirs")
    assert [entry["event"] for entry in logged(stream)] == ["new", "theirs"]


def test_values_without_a_json_form_are_logged_as_text(stream: io.StringIO) -> None:
    """No line is lost because of the type of a value; paths and sets, for example, are converted."""
    configure("info", "json", stream)
    structlog.get_logger("tensile.x").info("so", path=Path("/x"), names={"a"}, big=10**40, pair=("a", 1), kind=int)
    (entry,) = logged(stream)
    assert (entry["path"], entry["names"], entry["big"]) == ("/x", ["a"], 10**40)
    assert (entry["pair"], entry["kind"]) == (["a", 1], "<class 'int'>")


def test_an_error_is_described_by_type_message_and_line() -> None:
    """An error that was never raised has no line."""
    error = caught()
    line = fail.__code__.co_firstlineno + 2
    assert raised_at(error) == f"test_logging.py:{line}"
    assert described(error) == f"ValueError: no such thing at test_logging.py:{line}"
    assert (raised_at(ValueError("x")), described(ValueError("x"))) == ("", "ValueError: x")
    assert sys.exc_info() == (None, None, None)
