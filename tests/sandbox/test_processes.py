"""Tests of processes that outlive the process that started them, with real ones that only sleep."""

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
    """Return the identity of a sandbox, and end all its processes after the test."""
    name = uuid.uuid4().hex
    yield name
    processes.end_all(name)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Return the path of a process's output."""
    return tmp_path / "output.log"


def start(command: list[str], identity: str, output: Path) -> Process:
    """Start a program of that sandbox."""
    return processes.spawn(command, processes.environment(identity, output.parent), output)


def marked_and_started(identity: str, count: int) -> bool:
    """Report whether that many processes carry the identity."""
    return len(processes.marked(identity)) == count


def state_of(process: Process) -> str:
    """Return the kernel's letter for the state of the process's first thread."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_started_process_runs(identity: str, output: Path) -> None:
    """It is identified by its process ID and its start time."""
    process = start(SLEEP, identity, output)
    assert processes.running(process)
    assert process.arguments == SLEEP
    assert process.started == processes.start_time(process.pid)


def test_a_process_runs_until_its_last_thread_has_ended(identity: str, output: Path) -> None:
    """It keeps its ports until then; after a SIGKILL the kernel often ends the first thread before the others."""
    process = start([sys.executable, "-c", SURVIVED_BY_A_THREAD], identity, output)
    until(lambda: state_of(process) == "Z", "the end of the first thread")
    assert processes.running(process)
    processes.send(process, signal.SIGKILL)
    assert not processes.running(process)


def test_the_output_of_a_process_is_appended_to_a_file(identity: str, output: Path) -> None:
    """Its stdout and its stderr are appended to the same file."""
    output.write_text("before\n")
    process = start(["/bin/sh", "-c", "echo out; echo err >&2"], identity, output)
    until(lambda: not processes.running(process), "the end of the process")
    assert output.read_text() == "before\nout\nerr\n"


def test_only_the_owner_can_read_the_output_of_a_process(identity: str, output: Path) -> None:
    """The output may contain secrets."""
    start(SLEEP, identity, output)
    assert output.stat().st_mode & 0o077 == 0


def test_a_process_does_not_get_the_users_environment(identity: str, output: Path) -> None:
    """It gets only the search path, a home directory of the sandbox, and the identity."""
    process = start(["/usr/bin/env"], identity, output)
    until(lambda: not processes.running(process), "the end of the process")
    names = {line.split("=")[0] for line in output.read_text().splitlines()}
    assert names == {"PATH", "HOME", processes.MARK}


def test_a_process_has_a_separate_session(identity: str, output: Path) -> None:
    """Ctrl-C on the user's terminal does not reach it."""
    process = start(SLEEP, identity, output)
    assert os.getsid(process.pid) == process.pid


def test_a_missing_program_is_named(identity: str, output: Path) -> None:
    """The error has the program and the reason."""
    with pytest.raises(SandboxError, match=r"/no/such/program cannot be started: No such file"):
        start(["/no/such/program"], identity, output)


def test_an_ended_process_does_not_run(identity: str, output: Path) -> None:
    """A process that ended and was not waited for does not count as running."""
    process = start(["/bin/true"], identity, output)
    until(lambda: not processes.running(process), "the end of the process")
    assert processes.start_time(process.pid) is None


def test_another_process_with_the_same_pid_is_not_mistaken_for_it(identity: str, output: Path) -> None:
    """Process IDs are reused, and the start time distinguishes the processes."""
    process = start(SLEEP, identity, output)
    former = Process(process.pid, process.started - 1, process.arguments, process.output)
    assert processes.running(process)
    assert not processes.running(former)


def test_a_pid_without_a_process_does_not_run() -> None:
    """A process that never existed does not count as running."""
    assert not processes.running(Process(2**22 + 1, 5, [], ""))


def test_a_stopped_process_still_runs(identity: str, output: Path) -> None:
    """SIGSTOP suspends it without ending it, and SIGKILL can still end it."""
    process = start(SLEEP, identity, output)
    processes.send(process, signal.SIGSTOP)
    assert processes.running(process)
    processes.send(process, signal.SIGKILL)
    assert not processes.running(process)


def test_a_process_has_ended_when_sigkill_returns(identity: str, output: Path) -> None:
    """Callers need not wait for the end of a killed process."""
    process = start(SLEEP, identity, output)
    processes.send(process, signal.SIGKILL)
    assert not processes.running(process)


def test_a_signal_to_a_process_that_does_not_run_is_an_error(identity: str, output: Path) -> None:
    """A test that kills a dead process gets an error."""
    process = start(SLEEP, identity, output)
    processes.send(process, signal.SIGKILL)
    with pytest.raises(SandboxError, match=r"\(sleep\) does not run"):
        processes.send(process, signal.SIGKILL)


def test_children_carry_the_identity_too(identity: str, output: Path) -> None:
    """Children are found although they are recorded nowhere."""
    start(FAMILY, identity, output)
    until(lambda: marked_and_started(identity, 3), "a shell and its two children")


def test_end_all_ends_children_too(identity: str, output: Path) -> None:
    """No process carries the identity afterwards, including children of children."""
    first = start(FAMILY, identity, output)
    start(SLEEP, identity, output)
    until(lambda: marked_and_started(identity, 4), "four processes")
    processes.end_all(identity, [first])
    assert processes.marked(identity) == []
    assert not processes.running(first)


def test_end_all_ends_stopped_processes(identity: str, output: Path) -> None:
    """A suspended process does not survive."""
    process = start(SLEEP, identity, output)
    processes.send(process, signal.SIGSTOP)
    processes.end_all(identity)
    assert not processes.running(process)


def test_end_all_ends_only_processes_of_its_identity(identity: str, output: Path) -> None:
    """This holds even if one identity is a prefix of another."""
    longer = identity + "0"
    other = start(SLEEP, longer, output)
    start(SLEEP, identity, output)
    processes.end_all(identity)
    survived = processes.running(other)
    processes.end_all(longer)
    assert survived


def test_end_all_without_processes_is_no_error(identity: str) -> None:
    """A sandbox without processes ends immediately."""
    processes.end_all(identity)
    assert processes.marked(identity) == []
