"""Tests of the demo's engine process: it is watched, stopped in order, and its last output is kept."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from demokit import until

from tensile.sandbox.demo import LAST, DemoEngine, DemoError

POLITE = "import signal; signal.signal(signal.SIGTERM, lambda *_: exit(0)); print('up', flush=True); signal.pause()"
DEAF = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)\nwhile True: signal.pause()"
)
Start = Callable[[str], DemoEngine]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts programs in place of the engine, and stop them at the end."""
    started: list[DemoEngine] = []

    def begin(program: str) -> DemoEngine:
        """Start one."""
        command = (sys.executable, "-c", program)
        started.append(DemoEngine.start(command, tmp_path, {**os.environ, "NAME": "demo"}, tmp_path / "engine.log"))
        return started[-1]

    yield begin
    for engine in started:
        engine.stop()


def is_up(engine: DemoEngine) -> None:
    """Wait until the program has reported that it is ready for signals."""
    until(lambda: engine.last_lines() == "up", engine.last_lines)


def test_a_running_engine_raises_no_error(start: Start) -> None:
    """The check passes while it runs, and the engine ends with code 0 when it is stopped."""
    engine = start(POLITE)
    is_up(engine)
    engine.check()
    engine.stop()
    with pytest.raises(DemoError, match="with code 0"):
        engine.check()


def test_an_exited_engine_is_reported_with_its_exit_code(start: Start) -> None:
    """Both the check and the wait raise an error with the exit code."""
    engine = start("raise SystemExit(7)")
    with pytest.raises(DemoError, match="the engine exited unexpectedly with code 7"):
        engine.wait()
    with pytest.raises(DemoError, match="the engine exited unexpectedly with code 7"):
        engine.check()


def test_an_engine_that_ignores_sigterm_is_killed(start: Start, tmp_path: Path) -> None:
    """The demo does not wait for it indefinitely."""
    engine = start(DEAF)
    is_up(engine)
    engine.stop(limit=0.1)
    with pytest.raises(DemoError, match="with code -9"):
        engine.check()


def test_stopping_an_exited_engine_again_does_nothing(start: Start) -> None:
    """An engine that exited by itself can be stopped twice, and keeps its exit code."""
    engine = start("pass")
    with pytest.raises(DemoError, match="with code 0"):
        engine.wait()
    engine.stop()
    engine.stop()
    with pytest.raises(DemoError, match="with code 0"):
        engine.check()


def test_the_last_lines_contain_stdout_and_stderr(start: Start) -> None:
    """Logs are written to one and a crash to the other, and a user needs both."""
    program = "import sys; [print(n, flush=True) for n in range(40)]; sys.stderr.write('the end\\n')"
    engine = start(program)
    with pytest.raises(DemoError):
        engine.wait()
    lines = engine.last_lines().splitlines()
    assert lines == [*map(str, range(40 - LAST + 1, 40)), "the end"]


def test_an_engine_without_output_has_no_last_lines(start: Start) -> None:
    """An empty log is no error."""
    engine = start("pass")
    with pytest.raises(DemoError):
        engine.wait()
    assert engine.last_lines() == ""


def test_the_engine_has_a_separate_session(start: Start) -> None:
    """Ctrl-C in a terminal reaches only the demo, which stops the engine later."""
    program = "import os; print(os.getsid(0) == os.getpid(), os.environ['NAME'], os.getcwd())"
    engine = start(program)
    with pytest.raises(DemoError):
        engine.wait()
    assert engine.last_lines() == f"True demo {engine.log.parent}"
