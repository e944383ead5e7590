"""Tests of `tensile demo` on real control planes: its output, and the removal of its processes and files."""

import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest
from demokit import COMMAND, LIMIT, DemoHome, read_until, until

from tensile.sandbox.demo_script import BOTH_SIDES, SUMMARY, TOUR, WORKLOAD_SCENE

pytestmark = pytest.mark.real


@pytest.fixture
def demo_home(tmp_path: Path) -> DemoHome:
    """A temporary directory and a home directory for this test."""
    return DemoHome(tmp_path)


def output_of(text: str, line: str) -> str:
    """Return the output of a command in the tour."""
    return text.partition(f"\n$ {line}\n")[2].partition("\n\n")[0]


def test_the_complete_tour_leaves_nothing(demo_home: DemoHome) -> None:
    """Without a terminal it ends by itself, and shows every command of the tour with its real output."""
    with demo_home.start("--engine-log") as process:
        text, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, errors
    shown = [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]
    assert shown[3:] == [command.line for scene in TOUR for command in scene.lines]
    titles = [line for line in text.splitlines() if line.startswith("# ")]
    assert titles[:2] == [f"# {place}/7 {scene.title}" for place, scene in enumerate(TOUR[:2], 1)]
    assert SUMMARY in text
    assert "starting 3 control planes" in errors
    assert "\x1b" not in text + errors
    assert text.splitlines()[-1].endswith("All processes and files of the demo were removed.")
    assert_the_workload_was_on_both(text)
    assert_the_edit_did_what_was_planned(text)
    assert "tensile.run: started topology=sandbox lowers=2" in text.partition("\n# The engine's log\n")[2]
    demo_home.assert_clean()


def both_sides(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the first list of pods and their nodes, of the upper cluster and of the lower clusters."""
    rows = output_of(text, BOTH_SIDES.right[-1].line).splitlines()
    assert max(map(len, rows)) <= 80
    sides = zip(*(row.partition("|")[::2] for row in rows), strict=True)
    pairs = ([cell.split() for cell in side if cell.split() and cell.split()[0] != "POD"] for side in sides)
    upper_object, lower_object = (dict(cells) for cells in pairs)
    return upper_object, lower_object


def assert_the_workload_was_on_both(text: str) -> None:
    """Check that the pods are the same in the upper cluster, the lower clusters and logs, and that exec works."""
    upper_object, lower_object = both_sides(text)
    assert len(upper_object) == 7
    assert {node.rpartition("-node-")[0] for node in lower_object.values()} == {"lower-a", "lower-b"}
    assert upper_object == {name: node.rpartition("-node-")[0] for name, node in lower_object.items()}
    web = {name for name in upper_object if name.startswith("web-")}
    logs = output_of(text, "kubectl -n shop logs -l app=web --prefix").splitlines()
    assert {f"[pod/{name}/web] web started in pod shop/{name}" for name in web} == set(logs)
    assert "/work/shop/web-" in output_of(text, "kubectl -n shop exec deployment/web -- pwd")


def assert_the_edit_did_what_was_planned(text: str) -> None:
    """Check that the plan has the node's change, the node has it too, and later pods are on the other node."""
    assert "~ Node lower-b" in output_of(text, "tensile plan -f edited.yaml")
    nodes = output_of(text, "kubectl get nodes -L clusterID,zone").splitlines()
    assert ["SchedulingDisabled" in line and line.split()[-1] == "north" for line in nodes[1:]] == [False, True]
    before = both_sides(text)[0]
    after = both_sides(text.partition("--replicas=8")[2])[0]
    later = {name: node for name, node in after.items() if name not in before}
    assert set(later.values()) == {"lower-a"}
    assert len(later) == 2
    assert output_of(text, "tensile plan -f topology.yaml").startswith("No changes.")


@pytest.mark.parametrize(
    ("number", "when", "code"),
    [
        (signal.SIGTERM, "Starting an upper cluster", 130),
        (signal.SIGKILL, "$ kubectl get nodes", -signal.SIGKILL),
    ],
    ids=["TERM while it starts", "KILL in the middle"],
)
def test_an_interrupted_demo_leaves_nothing(demo_home: DemoHome, number: signal.Signals, when: str, code: int) -> None:
    """No process and no file is left, whichever signal ends the demo; a second signal changes nothing."""
    with demo_home.start() as process:
        read_until(process, when)
        if when.startswith("Starting"):
            until(lambda: list(demo_home.temporary.glob("*/state.json")), lambda: "the sandbox's state")
        process.send_signal(number)
        process.send_signal(number)
        errors = process.communicate(timeout=LIMIT)[1]
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    assert errors.endswith("interrupted: the demo was removed\ninterrupted\n") is (code == 130)
    demo_home.assert_clean()


def test_an_exited_engine_is_reported_with_its_last_output(demo_home: DemoHome) -> None:
    """The demo ends at once with exit code 1, reports the exit and a remedy, and leaves nothing."""
    with demo_home.start() as process:
        read_until(process, "condition met")
        (engine,) = [number for number, line in demo_home.processes().items() if " -m tensile run " in line]
        os.kill(engine, signal.SIGKILL)
        text, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    assert "demo: the engine exited unexpectedly with code -9\nThe last lines of the engine's log:\n" in errors
    assert "tensile.run: started" in errors
    assert errors.endswith("For more details: tensile demo --engine-log --log-level debug\n")
    assert "Traceback" not in errors
    assert WORKLOAD_SCENE.lines[-1].line not in text
    demo_home.assert_clean()


def test_on_a_terminal_the_demo_runs_until_ctrl_c(demo_home: DemoHome) -> None:
    """It prints in color, waits for Enter before each step, and exits with 0 after Ctrl-C."""
    number, terminal = pty.fork()
    if not number:
        os.execve(COMMAND[0], COMMAND, demo_home.variables)
    text, pressed = b"", 0
    while b"reloads it at once" not in text:
        text += os.read(terminal, 4096)
        if text.count(b"Press Enter") > pressed:
            assert text.rstrip().endswith(b"to end the demo.")
            pressed += 1
            os.write(terminal, b"\n")
    assert pressed == len(TOUR) - 1
    (directory,) = demo_home.temporary.glob("tensile-demo-*")
    assert b"  export KUBECONFIG=upper.kubeconfig:lower-a.kubeconfig:lower-b.kubeconfig\r\n" in text
    assert b"\x1b[36m$ kubectl get nodes" in text
    assert (directory / "upper.kubeconfig").exists()
    os.write(terminal, b"\x03")
    while chunk := _read(terminal):
        text += chunk
    assert os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) == 0
    assert text.endswith(b"All processes and files of the demo were removed.\r\n")
    demo_home.assert_clean()


def _read(terminal: int) -> bytes:
    """Read from a terminal, or return b"" if its other end is closed, which the kernel reports as an error."""
    try:
        return os.read(terminal, 4096)
    except OSError:
        return b""


def test_an_invalid_log_level_is_refused_before_anything_starts(demo_home: DemoHome) -> None:
    """The error names the invalid level, and no process or file exists."""
    ended = subprocess.run(
        [*COMMAND, "--log-level", "loud"], env=demo_home.variables, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "'loud' is not one of debug" in ended.stderr
    demo_home.assert_clean()
