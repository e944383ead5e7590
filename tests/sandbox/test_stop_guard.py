"""Tests of the guard: a failed start leaves nothing, however it ends.

The starts here are stand-ins that begin a guard and a process that sleeps; those with real control planes are in
test_lifecycle_real.py.
"""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox_waiting import open_directory, until, until_unlocked

from tensile.sandbox import processes, state, stop
from tensile.sandbox.state import Options, State, claimed

pytestmark = pytest.mark.process
STARTER = """
import sys
from pathlib import Path
from tensile.sandbox import processes, state, stop
from tensile.sandbox.state import claimed
from tensile.sandbox.state import Options, State

directory, identity, word = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
with claimed(directory) as claim:
    watching = stop.begin(directory, identity, claim.created, claim.descriptor)
    if word != "stateless":
        state.save(directory, State(identity, Options(), ["upper", "output"], claim.created))
        (directory / "upper").mkdir()
    command = ["/bin/sh", "-c", "sleep 600 & sleep 600"]
    output = directory / "output" if word != "stateless" else Path("/dev/null")
    processes.spawn(command, processes.environment(identity, directory), output)
    if word == "bound":
        watching.started()
    print("started", flush=True)
    if word == "kept":
        watching.release()
    elif word != "bound":
        sys.stdin.read()
if word == "bound":
    sys.stdin.read()
"""


class SandboxStartProcess:
    """A stand-in for the start of a sandbox, in a separate process."""

    def __init__(self, directory: Path, word: str) -> None:
        self.directory = directory
        self.identity = uuid.uuid4().hex
        self.process = subprocess.Popen(
            [sys.executable, "-c", STARTER, str(directory), self.identity, word],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(stop.PACKAGE_ROOT)},
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"started\n"

    def left(self) -> list[int]:
        """Return the processes that carry this start's identity."""
        return processes.marked(self.identity)

    def end(self, number: signal.Signals) -> None:
        """End the start by a signal, and wait until the guard releases the directory."""
        descriptor = open_directory(self.directory)
        self.process.send_signal(number)
        self.process.communicate()
        until_unlocked(descriptor)


@pytest.fixture
def starts() -> Iterator[list[SandboxStartProcess]]:
    """A list of starts, which are all ended after the test."""
    begun: list[SandboxStartProcess] = []
    yield begun
    for start in begun:
        start.process.kill()
        start.process.communicate()
        processes.end_all(start.identity)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize("word", ["begun", "stateless"])
def test_a_killed_start_leaves_nothing(
    tmp_path: Path, starts: list[SandboxStartProcess], number: signal.Signals, word: str
) -> None:
    """No process and no file is left, whether or not the state had been written."""
    start = SandboxStartProcess(tmp_path / "s", word)
    starts.append(start)
    until(start.left, "the start's process")
    start.end(number)
    assert start.left() == []
    assert list(tmp_path.iterdir()) == []


def test_other_files_survive_a_killed_start(tmp_path: Path, starts: list[SandboxStartProcess]) -> None:
    """A directory that existed before is kept with its content."""
    (tmp_path / "notes.txt").write_text("mine")
    start = SandboxStartProcess(tmp_path, "begun")
    starts.append(start)
    start.end(signal.SIGKILL)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_sandbox_survives_its_start_if_the_guard_is_released(
    tmp_path: Path, starts: list[SandboxStartProcess]
) -> None:
    """After the release, the starter's end does not end the sandbox."""
    start = SandboxStartProcess(tmp_path / "s", "kept")
    starts.append(start)
    start.process.communicate()
    assert start.process.returncode == 0
    assert start.left()
    assert (tmp_path / "s" / "upper").is_dir()


def test_a_bound_sandbox_ends_with_its_starter(tmp_path: Path, starts: list[SandboxStartProcess]) -> None:
    """It ends even if the starter gets a SIGKILL long after the start."""
    start = SandboxStartProcess(tmp_path / "s", "bound")
    starts.append(start)
    start.process.kill()
    until(lambda: not start.directory.exists(), "the removal of the directory")
    assert start.left() == []


def test_a_bound_sandbox_does_not_keep_its_directory_locked(tmp_path: Path, starts: list[SandboxStartProcess]) -> None:
    """Other commands can lock the directory while the guard watches."""
    start = SandboxStartProcess(tmp_path / "s", "bound")
    starts.append(start)
    with claimed(start.directory) as claim:
        assert claim.created == []
    assert start.left()


def test_a_later_sandbox_in_the_same_directory_is_not_removed(tmp_path: Path) -> None:
    """A guard removes only its own sandbox."""
    later = State("later", Options(), ["upper"], [])
    state.save(tmp_path, later)
    (tmp_path / "upper").mkdir()
    stop.clean(tmp_path, "earlier", [str(tmp_path)])
    assert state.load(tmp_path) == later
    assert (tmp_path / "upper").is_dir()


def begin(directory: Path, identity: str) -> stop.CleanupGuard:
    """Begin a guard of a sandbox whose state is written."""
    with claimed(directory) as claim:
        state.save(directory, State(identity, Options(), [], claim.created))
        return stop.begin(directory, identity, claim.created, claim.descriptor)


def test_an_error_during_the_start_is_raised_after_the_cleanup(tmp_path: Path) -> None:
    """All files are removed before the caller gets the error."""
    watching = begin(tmp_path / "s", uuid.uuid4().hex)
    with pytest.raises(ValueError, match="went wrong"), stop.cleanup_on_failure(watching, bound=False):
        raise ValueError("went wrong")
    assert list(tmp_path.iterdir()) == []


def test_without_an_error_all_files_are_kept(tmp_path: Path) -> None:
    """The state of a successful start is still there when the guard has ended."""
    watching = begin(tmp_path / "s", uuid.uuid4().hex)
    with stop.cleanup_on_failure(watching, bound=False):
        pass
    assert (tmp_path / "s" / state.FILE).exists()
