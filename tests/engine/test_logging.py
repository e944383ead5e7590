"""Log lines: their form, their levels, and what happens when they cannot be written."""

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
from clikit import logging_kept

from tensile.engine.logging import configure
from tensile.errors import TensileError, described, raised_at
from tensile.text import HIDDEN

MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        """Describe so."""
        return True


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Leave logging as it was found."""
    with logging_kept():
        yield


@pytest.fixture
def stream() -> io.StringIO:
    """Return a stream to log to."""
    return io.StringIO()


def logged(stream: io.StringIO) -> list[dict[str, Any]]:
    """Read JSON lines."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def fail() -> None:
    """Fail on a line of this file."""
    raise ValueError("no such thing")


def caught() -> ValueError:
    """Return the error that `fail` raises."""
    try:
        fail()
    except ValueError as error:
        return error
    raise AssertionError


def test_a_json_line_has_time_level_logger_and_event_first(stream: io.StringIO) -> None:
    """Then the fields, in the order in which they were told."""
    configure("info", "json", stream)
    structlog.get_logger("tensile.x").warning("gone", zone="b", cluster="lower-a", count=3)
    (entry,) = logged(stream)
    assert list(entry) == ["timestamp", "level", "logger", "event", "zone", "cluster", "count"]
    assert MOMENT.fullmatch(entry.pop("timestamp"))
    assert list(entry.values()) == ["warning", "tensile.x", "gone", "b", "lower-a", 3]


def test_a_text_line_reads_from_left_to_right(stream: io.StringIO) -> None:
    """A value is quoted where its end could not be seen; without a terminal there is no colour."""
    configure("info", "text", stream)
    structlog.get_logger("tensile.x").info("Pod created", cluster="lower-a", because='is "bound"', n=3, empty="")
    line = stream.getvalue()
    assert MOMENT.match(line)
    assert line[27:] == (' info    tensile.x: Pod created cluster=lower-a because="is \\"bound\\"" n=3 empty=""\n')


def test_on_a_terminal_a_warning_has_a_colour() -> None:
    """And what is ordinary has none."""
    terminal = Terminal()
    configure("info", "text", terminal)
    structlog.get_logger("tensile.x").info("one")
    structlog.get_logger("tensile.x").error("two")
    first, second = terminal.getvalue().splitlines()
    assert "\x1b" not in first
    assert "\x1b[31merror  \x1b[0m tensile.x: two" in second


def test_json_has_no_colour_on_a_terminal() -> None:
    """A program may read it there too."""
    terminal = Terminal()
    configure("info", "json", terminal)
    structlog.get_logger("tensile.x").error("two")
    assert "\x1b" not in terminal.getvalue()


@pytest.mark.parametrize(
    ("level", "told"),
    [
        ("debug", ["debug", "info", "warning", "error"]),
        ("info", ["info", "warning", "error"]),
        ("warn", ["warning", "error"]),
        ("error", ["error"]),
    ],
)
def test_a_level_lets_through_what_is_as_grave(level: str, told: list[str], stream: io.StringIO) -> None:
    """By the names that the command line has."""
    configure(level, "json", stream)
    log = structlog.get_logger("tensile.x")
    for tell in (log.debug, log.info, log.warning, log.error):
        tell("so")
    assert [entry["level"] for entry in logged(stream)] == told


@pytest.mark.parametrize(("level", "form"), [("loud", "json"), ("info", "xml")])
def test_another_level_or_form_is_refused(level: str, form: str, stream: io.StringIO) -> None:
    """With those that there are."""
    with pytest.raises(TensileError, match="debug, info, warn, error and text or json"):
        configure(level, form, stream)


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_secret_and_no_line_break_gets_into_a_line(form: str, stream: io.StringIO) -> None:
    """Under the key of a secret, deeper down, in a text; and a name cannot forge a line."""
    configure("debug", form, stream)
    structlog.get_logger("tensile.x").info(
        "pod \n2026 forged", token="hunter2", body={"data": {"p": "hunter2"}}, sent="Bearer hunter2hunter2"
    )
    written = stream.getvalue()
    assert written.count("\n") == 1
    assert "hunter2" not in written
    assert written.count(HIDDEN) == 3


def test_a_library_s_warning_is_a_line_like_ours(stream: io.StringIO) -> None:
    """With its own name; what it says below a warning is not told, even when we say everything."""
    configure("debug", "json", stream)
    logging.getLogger("aiohttp.server").info("request came")
    logging.getLogger("asyncio").warning("took %d s", 3)
    logging.getLogger("aiohttp.server").critical("lost")
    entries = [(entry["logger"], entry["level"], entry["event"]) for entry in logged(stream)]
    assert entries == [("asyncio", "warning", "took 3 s"), ("aiohttp.server", "error", "lost")]


def test_a_library_s_mistake_in_a_message_is_told_as_it_is(stream: io.StringIO) -> None:
    """It costs neither the line nor the engine."""
    configure("info", "json", stream)
    record = logging.LogRecord("lib", logging.WARNING, "lib.py", 1, "took %d s", ("three",), None)
    logging.getLogger().handlers[-1].handle(record)
    assert [entry["event"] for entry in logged(stream)] == ["took %d s"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_exception_is_one_line(form: str, stream: io.StringIO) -> None:
    """Its type, its words and where it was raised; from a library as well; and no traceback."""
    configure("info", form, stream)
    structlog.get_logger("tensile.x").error("failed", exc_info=caught())
    logging.getLogger("lib").error("failed", exc_info=caught())
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    for line in lines:
        assert re.search(r"ValueError: no such thing at test_logging\.py:\d+", line)
        assert "Traceback" not in line


def test_the_exception_at_hand_is_told(stream: io.StringIO) -> None:
    """As libraries tell it; without one nothing is told of it."""
    configure("info", "json", stream)
    try:
        fail()
    except ValueError:
        structlog.get_logger("tensile.x").error("failed", exc_info=True)
    structlog.get_logger("tensile.x").error("no error", exc_info=bool(sys.stdout))
    first, second = logged(stream)
    assert first["error"].startswith("ValueError: no such thing at ")
    assert "error" not in second


def test_words_of_one_s_own_go_before_those_of_the_exception(stream: io.StringIO) -> None:
    """Who tells an error knows it better."""
    configure("info", "json", stream)
    structlog.get_logger("tensile.x").error("failed", error="the pod is gone", exc_info=caught())
    assert logged(stream)[0]["error"] == "the pod is gone"


def test_a_traceback_is_for_debugging(stream: io.StringIO) -> None:
    """Below its line in a text, within it in JSON."""
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


def test_no_control_character_comes_through_a_traceback(stream: io.StringIO) -> None:
    """Its lines hold words that others chose."""
    configure("debug", "text", stream)
    structlog.get_logger("tensile.x").error("failed", exc_info=ValueError("\x1b[2J Bearer hunter2hunter2"))
    assert "\x1b" not in stream.getvalue()
    assert "hunter2" not in stream.getvalue()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_costs_the_line_alone() -> None:
    """Whoever logs goes on, for as long as it lasts."""
    full = Path("/dev/full").open("w")  # noqa: SIM115 - closing it has to fail
    configure("info", "json", full)
    for _ in range(1000):
        structlog.get_logger("tensile.x").info("lost")
        logging.getLogger("lib").warning("lost")
    with pytest.raises(OSError, match="No space left"):
        full.close()


def test_a_stream_that_was_closed_costs_the_line_alone(stream: io.StringIO) -> None:
    """As when the program ends while something still tells of it."""
    configure("info", "text", stream)
    stream.close()
    structlog.get_logger("tensile.x").info("lost")


def test_configured_again_everything_goes_to_the_new_stream(stream: io.StringIO) -> None:
    """Loggers that exist included, and each line once."""
    log = structlog.get_logger("tensile.x")
    configure("info", "json", io.StringIO())
    log.info("old")
    configure("info", "json", stream)
    log.info("new")
    logging.getLogger("lib").warning("theirs")
    assert [entry["event"] for entry in logged(stream)] == ["new", "theirs"]


def test_values_that_json_does_not_know_are_told_as_text(stream: io.StringIO) -> None:
    """A path, a set, a number without end: a line is never lost for its form."""
    configure("info", "json", stream)
    structlog.get_logger("tensile.x").info("so", path=Path("/x"), names={"a"}, big=10**40, pair=("a", 1), kind=int)
    (entry,) = logged(stream)
    assert (entry["path"], entry["names"], entry["big"]) == ("/x", ["a"], 10**40)
    assert (entry["pair"], entry["kind"]) == (["a", 1], "<class 'int'>")


def test_an_error_is_described_by_type_words_and_line() -> None:
    """One that was never raised has no line."""
    error = caught()
    line = fail.__code__.co_firstlineno + 2
    assert raised_at(error) == f"test_logging.py:{line}"
    assert described(error) == f"ValueError: no such thing at test_logging.py:{line}"
    assert (raised_at(ValueError("x")), described(ValueError("x"))) == ("", "ValueError: x")
    assert sys.exc_info() == (None, None, None)
