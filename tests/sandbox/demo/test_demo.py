"""`tensile demo` as a person runs it, on real control planes: what it shows, and that it leaves nothing."""

import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest
from demo_stage import COMMAND, LIMIT, Place, read_until, until

from tensile.sandbox.demo.script import TOUR, WORKLOAD_SCENE

pytestmark = pytest.mark.real


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A temporary directory and a home of this test's own."""
    return Place(tmp_path)


def output_of(text: str, line: str) -> str:
    """Return what a command printed."""
    return text.partition(f"\n$ {line}\n")[2].partition("\n\n")[0]


def test_the_whole_tour_leaves_nothing(place: Place) -> None:
    """Without a terminal it ends by itself; every command of the tour is there, with what it really printed."""
    with place.begin("--engine-log") as process:
        text, told = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, told
    shown = [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]
    assert shown[3:] == [command.line for scene in TOUR for command in scene.commands]
    assert "\x1b" not in text + told
    assert text.splitlines()[-1].endswith("All processes and files of the demo were removed.")
    assert_the_workload_was_on_both(text)
    assert_the_edit_did_what_was_planned(text)
    assert "tensile.run: started topology=sandbox lowers=2" in text.partition("\n# The engine's log\n")[2]
    place.assert_clean()


def assert_the_workload_was_on_both(text: str) -> None:
    """What kubectl printed shows the same pods above, below, in logs, and by exec."""
    above = output_of(text, "kubectl -n shop get pods -o wide").splitlines()[1:]
    assert len(above) == 7
    for lower in ("lower-a", "lower-b"):
        bound = {line.split()[0] for line in above if f" {lower} " in line}
        below = output_of(text, f"kubectl --kubeconfig {lower}.kubeconfig -n shop get pods -o wide").splitlines()[1:]
        assert bound == {line.split()[0] for line in below} != set()
    web = {line.split()[0] for line in above if line.startswith("web-")}
    logs = output_of(text, "kubectl -n shop logs -l app=web --prefix").splitlines()
    assert {f"[pod/{name}/web] web started in pod shop/{name}" for name in web} == set(logs)
    assert "/work/shop/web-" in output_of(text, "kubectl -n shop exec deployment/web -- pwd")


def assert_the_edit_did_what_was_planned(text: str) -> None:
    """The plan names the node's change, the node has it, and pods that came later are on the other node."""
    assert "~ Node lower-b" in output_of(text, "tensile plan -f edited.yaml")
    nodes = output_of(text, "kubectl get nodes -L clusterID,zone").splitlines()
    assert ["SchedulingDisabled" in line and line.split()[-1] == "north" for line in nodes[1:]] == [False, True]
    before = output_of(text, "kubectl -n shop get pods -o wide").splitlines()
    after = output_of(text, "kubectl -n shop get pods -l app=web -o wide").splitlines()
    known = {line.split()[0] for line in before}
    later = [line for line in after[1:] if line.split()[0] not in known]
    assert len(later) == 2
    assert all(" lower-a " in line for line in later)
    assert output_of(text, "tensile plan -f topology.yaml").startswith("No changes.")


@pytest.mark.parametrize(
    ("number", "when", "code"),
    [
        (signal.SIGTERM, "Starting an upper cluster", 130),
        (signal.SIGKILL, "$ kubectl get nodes", -signal.SIGKILL),
    ],
    ids=["TERM while it starts", "KILL in the middle"],
)
def test_a_demo_that_is_ended_leaves_nothing(place: Place, number: signal.Signals, when: str, code: int) -> None:
    """Neither a process nor a file outlives it, whenever and however it is ended; a second signal changes nothing."""
    with place.begin() as process:
        read_until(process, when)
        if when.startswith("Starting"):
            until(lambda: list(place.temporary.glob("*/state.json")), lambda: "the sandbox's state")
        process.send_signal(number)
        process.send_signal(number)
        told = process.communicate(timeout=LIMIT)[1]
    assert process.returncode == code, told
    assert "Traceback" not in told
    assert told.endswith("interrupted: the demo was removed\ninterrupted\n") is (code == 130)
    place.assert_clean()


def test_an_engine_that_ends_is_told_with_its_last_words(place: Place) -> None:
    """The demo ends with 1, says at once what happened and what to do, and leaves nothing."""
    with place.begin() as process:
        read_until(process, "condition met")
        (engine,) = [number for number, line in place.processes().items() if " -m tensile run " in line]
        os.kill(engine, signal.SIGKILL)
        text, told = process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    assert "demo: the engine exited unexpectedly with code -9\nThe last lines of the engine's log:\n" in told
    assert "tensile.run: started" in told
    assert told.endswith("For more details: tensile demo --engine-log --log-level debug\n")
    assert "Traceback" not in told
    assert WORKLOAD_SCENE.commands[-1].line not in text
    place.assert_clean()


def test_on_a_terminal_it_stays_until_ctrl_c(place: Place) -> None:
    """It is in colour, says where the clusters are and what to try, and Ctrl-C is its ordinary end."""
    number, terminal = pty.fork()
    if not number:
        os.execve(COMMAND[0], COMMAND, place.variables)
    text = b""
    while b"reloads it at once" not in text:
        text += os.read(terminal, 4096)
    (directory,) = place.temporary.glob("tensile-demo-*")
    assert f"  export KUBECONFIG={directory}/upper.kubeconfig\r\n".encode() in text
    assert b"\x1b[36m$ kubectl get nodes" in text
    assert (directory / "upper.kubeconfig").exists()
    os.write(terminal, b"\x03")
    while chunk := _read(terminal):
        text += chunk
    assert os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) == 0
    assert text.endswith(b"All processes and files of the demo were removed.\r\n")
    place.assert_clean()


def _read(terminal: int) -> bytes:
    """Read from a terminal; b"" when nobody has its other end any more, which the kernel tells as an error."""
    try:
        return os.read(terminal, 4096)
    except OSError:
        return b""


def test_a_wrong_log_level_is_refused_before_anything_starts(place: Place) -> None:
    """The error names what was given, and nothing was begun."""
    ended = subprocess.run(
        [*COMMAND, "--log-level", "loud"], env=place.variables, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "'loud' is not one of debug" in ended.stderr
    place.assert_clean()
