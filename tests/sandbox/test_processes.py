"""Processes that outlive who started them, shown with real ones that only sleep."""

import os
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox_waiting import until

from tensile.sandbox import processes
from tensile.sandbox.state import Process, SandboxError

SLEEP = ["/bin/sleep", "600"]
FAMILY = ["/bin/sh", "-c", "sleep 600 & sleep 600 & wait"]
SURVIVED_BY_A_THREAD = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.fixture
def identity() -> Iterator[str]:
    """The identity of a sandbox; what carries it has ended when the test is over."""
    name = uuid.uuid4().hex
    yield name
    processes.end_all(name)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Where a process prints."""
    return tmp_path / "output.log"


def start(command: list[str], identity: str, output: Path) -> Process:
    """Start a program of that sandbox."""
    return processes.spawn(command, processes.environment(identity, output.parent), output)


def marked_and_started(identity: str, count: int) -> bool:
    """Report whether so many processes carry the identity."""
    return len(processes.marked(identity)) == count


def state_of(process: Process) -> str:
    """The letter that the kernel gives for the state of its first thread."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_started_process_runs(identity: str, output: Path) -> None:
    """It has a number, and its start tells it from others."""
    process = start(SLEEP, identity, output)
    assert processes.running(process)
    assert process.arguments == SLEEP
    assert process.started == processes.start_time(process.pid)


def test_a_process_runs_until_its_last_thread_has_ended(identity: str, output: Path) -> None:
    """Till then its ports are taken: after a SIGKILL the kernel often ends the first thread before the others."""
    process = start([sys.executable, "-c", SURVIVED_BY_A_THREAD], identity, output)
    until(lambda: state_of(process) == "Z", "the end of the first thread")
    assert processes.running(process)
    processes.send(process, signal.SIGKILL)
    assert not processes.running(process)


def test_what_a_process_prints_is_kept(identity: str, output: Path) -> None:
    """Both of its outputs go to the end of one file."""
    output.write_text("before\n")
    process = start(["/bin/sh", "-c", "echo out; echo err >&2"], identity, output)
    until(lambda: not processes.running(process), "the end of the process")
    assert output.read_text() == "before\nout\nerr\n"


def test_nobody_else_can_read_what_a_process_prints(identity: str, output: Path) -> None:
    """Its output may hold secrets."""
    start(SLEEP, identity, output)
    assert output.stat().st_mode & 0o077 == 0


def test_a_process_sees_nothing_of_the_users_environment(identity: str, output: Path) -> None:
    """The search path, a home of its own and the identity are all it is given."""
    process = start(["/usr/bin/env"], identity, output)
    until(lambda: not processes.running(process), "the end of the process")
    names = {line.split("=")[0] for line in output.read_text().splitlines()}
    assert names == {"PATH", "HOME", processes.MARK}


def test_a_process_has_a_session_of_its_own(identity: str, output: Path) -> None:
    """Ctrl-C on the terminal of the one who started it does not reach it."""
    process = start(SLEEP, identity, output)
    assert os.getsid(process.pid) == process.pid


def test_a_program_that_is_missing_is_named(identity: str, output: Path) -> None:
    """The error says which program could not be started, and why."""
    with pytest.raises(SandboxError, match=r"/no/such/program cannot be started: No such file"):
        start(["/no/such/program"], identity, output)


def test_a_process_that_ended_does_not_run(identity: str, output: Path) -> None:
    """One that nobody waited for does not count as running."""
    process = start(["/bin/true"], identity, output)
    until(lambda: not processes.running(process), "the end of the process")
    assert processes.start_time(process.pid) is None


def test_another_process_of_the_same_number_is_not_it(identity: str, output: Path) -> None:
    """Numbers are given again; the time of the start tells them apart."""
    process = start(SLEEP, identity, output)
    former = Process(process.pid, process.started - 1, process.arguments, process.output)
    assert processes.running(process)
    assert not processes.running(former)


def test_a_number_that_nobody_has_does_not_run() -> None:
    """A process that never was is not running."""
    assert not processes.running(Process(2**22 + 1, 5, [], ""))


def test_a_stopped_process_still_runs(identity: str, output: Path) -> None:
    """SIGSTOP halts it without ending it, and SIGKILL ends it all the same."""
    process = start(SLEEP, identity, output)
    processes.send(process, signal.SIGSTOP)
    assert processes.running(process)
    processes.send(process, signal.SIGKILL)
    assert not processes.running(process)


def test_after_sigkill_it_has_ended(identity: str, output: Path) -> None:
    """Nobody has to wait for the end of what was killed."""
    process = start(SLEEP, identity, output)
    processes.send(process, signal.SIGKILL)
    assert not processes.running(process)


def test_a_signal_to_what_does_not_run_is_an_error(identity: str, output: Path) -> None:
    """A test that kills what is already dead is told so."""
    process = start(SLEEP, identity, output)
    processes.send(process, signal.SIGKILL)
    with pytest.raises(SandboxError, match=r"\(sleep\) does not run"):
        processes.send(process, signal.SIGKILL)


def test_what_a_process_starts_carries_the_identity_too(identity: str, output: Path) -> None:
    """Children are found without anybody having written them down."""
    start(FAMILY, identity, output)
    until(lambda: marked_and_started(identity, 3), "a shell and its two children")


def test_ending_all_ends_children_too(identity: str, output: Path) -> None:
    """After it nothing carries the identity any more, children of children included."""
    first = start(FAMILY, identity, output)
    start(SLEEP, identity, output)
    until(lambda: marked_and_started(identity, 4), "four processes")
    processes.end_all(identity, [first])
    assert processes.marked(identity) == []
    assert not processes.running(first)


def test_ending_all_ends_what_is_stopped(identity: str, output: Path) -> None:
    """A suspended process does not survive."""
    process = start(SLEEP, identity, output)
    processes.send(process, signal.SIGSTOP)
    processes.end_all(identity)
    assert not processes.running(process)


def test_ending_one_sandbox_leaves_another(identity: str, output: Path) -> None:
    """Only what carries the identity is touched, even where one identity begins as another does."""
    longer = identity + "0"
    other = start(SLEEP, longer, output)
    start(SLEEP, identity, output)
    processes.end_all(identity)
    survived = processes.running(other)
    processes.end_all(longer)
    assert survived


def test_ending_nothing_is_no_error(identity: str) -> None:
    """A sandbox without processes ends at once."""
    processes.end_all(identity)
    assert processes.marked(identity) == []
