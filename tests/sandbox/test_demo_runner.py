"""The engine's process: watched while it runs, ended in order, and its last words kept."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from demo_stage import until

from tensile.sandbox.demo import LAST, DemoEngine, DemoError

POLITE = "import signal; signal.signal(signal.SIGTERM, lambda *_: exit(0)); print('up', flush=True); signal.pause()"
DEAF = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True)\nwhile True: signal.pause()"
)
Start = Callable[[str], DemoEngine]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts programs in place of the engine, and ends them."""
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
    """Wait until the program has said that it is ready for signals."""
    until(lambda: engine.last_lines() == "up", engine.last_lines)


def test_a_running_engine_is_fine(start: Start) -> None:
    """Nothing is raised while it runs, and what it is asked to do it does."""
    engine = start(POLITE)
    is_up(engine)
    engine.check()
    engine.stop()
    with pytest.raises(DemoError, match="with code 0"):
        engine.check()


def test_an_engine_that_ended_is_told_with_its_code(start: Start) -> None:
    """Both ways to look, the glance and the wait, say with what it ended."""
    engine = start("raise SystemExit(7)")
    with pytest.raises(DemoError, match="the engine exited unexpectedly with code 7"):
        engine.wait()
    with pytest.raises(DemoError, match="the engine exited unexpectedly with code 7"):
        engine.check()


def test_an_engine_that_does_not_listen_is_ended(start: Start, tmp_path: Path) -> None:
    """The demo does not wait for it for ever."""
    engine = start(DEAF)
    is_up(engine)
    engine.stop(limit=0.1)
    with pytest.raises(DemoError, match="with code -9"):
        engine.check()


def test_stopping_twice_does_nothing_more(start: Start) -> None:
    """An engine that ended by itself can be stopped like any."""
    engine = start("pass")
    with pytest.raises(DemoError, match="with code 0"):
        engine.wait()
    engine.stop()
    engine.stop()
    with pytest.raises(DemoError, match="with code 0"):
        engine.check()


def test_the_last_lines_are_of_both_outputs(start: Start) -> None:
    """Logs go to the one, a crash to the other; a person wants to see either."""
    program = "import sys; [print(n, flush=True) for n in range(40)]; sys.stderr.write('the end\\n')"
    engine = start(program)
    with pytest.raises(DemoError):
        engine.wait()
    lines = engine.last_lines().splitlines()
    assert lines == [*map(str, range(40 - LAST + 1, 40)), "the end"]


def test_an_engine_that_said_nothing_has_no_last_lines(start: Start) -> None:
    """An empty log is no error."""
    engine = start("pass")
    with pytest.raises(DemoError):
        engine.wait()
    assert engine.last_lines() == ""


def test_the_engine_has_a_session_of_its_own(start: Start) -> None:
    """Ctrl-C in a terminal reaches the demo alone, which ends the engine when it is time."""
    program = "import os; print(os.getsid(0) == os.getpid(), os.environ['NAME'], os.getcwd())"
    engine = start(program)
    with pytest.raises(DemoError):
        engine.wait()
    assert engine.last_lines() == f"True demo {engine.log.parent}"
