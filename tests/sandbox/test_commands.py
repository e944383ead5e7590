"""Tests of the sandbox commands without a running sandbox."""

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tensile.sandbox import commands, start, state
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import (
    Binaries,
    Layout,
    Options,
    PortTakenError,
    Process,
    SandboxCluster,
    SandboxError,
    State,
)


@pytest.fixture
def dead(tmp_path: Path, upper: Layout, binaries: Binaries) -> Path:
    """A directory whose sandbox was ready once, and whose only process has exited since."""
    process = Process(2**22 + 1, 1, ["/bin/etcd"], "/somewhere/etcd.log")
    clusters = {"upper": SandboxCluster(upper, {"etcd": process})}
    one = State("feed", Options(0, 0), ["upper"], [], ready=True, binaries=binaries, clusters=clusters)
    state.save(tmp_path, one)
    return tmp_path


def test_status_fails_without_a_sandbox(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It prints that there is no sandbox in the directory."""
    assert commands.status(tmp_path / "none") == 1
    assert capsys.readouterr().out == f"no sandbox in {tmp_path / 'none'}\n"


def test_down_succeeds_without_a_sandbox(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The desired state exists already, and the directory is not created."""
    assert commands.down(tmp_path / "none") == 0
    assert capsys.readouterr().out == f"no sandbox in {tmp_path / 'none'}\n"
    assert not (tmp_path / "none").exists()


def test_status_reports_a_process_that_does_not_run(dead: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It names the process, its log and the command that restarts it, and fails."""
    assert commands.status(dead) == 1
    output = capsys.readouterr().out
    assert "etcd                     does not run; see /somewhere/etcd.log" in output
    assert f"some processes do not run: `{commands.program()} sandbox up --dir {dead}` restarts them" in output


def test_down_removes_the_files_of_a_dead_sandbox(dead: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The sandbox's files are removed although no process runs; other files are kept and named."""
    (dead / "upper").mkdir()
    (dead / "notes.txt").write_text("mine")
    assert commands.down(dead) == 0
    assert [path.name for path in dead.iterdir()] == ["notes.txt"]
    assert "kept, not created by the sandbox: notes.txt" in capsys.readouterr().out


@pytest.mark.parametrize("command", [commands.status, commands.down])
def test_a_foreign_state_file_is_unchanged(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: object) -> None:
    """A state.json that the sandbox did not write is an error on stderr, and is kept."""
    (tmp_path / state.FILE).write_text("[1]")
    assert callable(command)
    assert command(tmp_path) == 1
    output = capsys.readouterr()
    assert output.err.startswith("error: ")
    assert output.out == ""
    assert (tmp_path / state.FILE).read_text() == "[1]"


@pytest.mark.parametrize("names", [["topology.yaml"], ["notes.txt"], ["a", "b", "c"], ["a", "b", "c", "d", "e"]])
def test_up_refuses_a_directory_with_other_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], names: list[str]
) -> None:
    """The error shows the first of their names and the remedy, and the files are unchanged."""
    for name in names:
        (tmp_path / name).write_text("mine")
    assert commands.up(2, 1, tmp_path) == 1
    shown = ", ".join(names[:3]) + (" and 2 more" if len(names) == 5 else "")
    assert capsys.readouterr().err == (
        f"error: {tmp_path} is not empty ({shown}), and the sandbox needs its own directory: "
        "choose a new or empty one with --dir, or remove these files\n"
    )
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(names, "mine")


def test_up_ignores_the_unfinished_state_file_of_a_killed_start(tmp_path: Path) -> None:
    """A state file that was being written belongs to the sandbox; other files are still refused."""
    (tmp_path / state.NEW_FILE).write_text("{")
    start._refuse_foreign(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(SandboxError, match=r"is not empty \(notes\.txt\)"):
        start._refuse_foreign(tmp_path)


@pytest.mark.parametrize(
    ("lowers", "nodes", "arguments"),
    [
        (27, 3, "--lowers 27: use a number from 0 to 26"),
        (-1, 3, "--lowers -1: use a number from 0 to 26"),
        (2, -1, "--nodes -1: use 0 or more"),
    ],
)
def test_up_refuses_counts_out_of_range(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lowers: int, nodes: int, arguments: str
) -> None:
    """The error names the flag and its range, and no directory is created."""
    assert commands.up(lowers, nodes, tmp_path / "s") == 1
    assert capsys.readouterr().err == f"error: {arguments}\n"
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("command", [commands.up, commands.down, commands.status])
def test_an_error_of_the_operating_system_is_one_line(capsys: pytest.CaptureFixture[str], command: object) -> None:
    """A file name that is too long is an error message, not a traceback."""
    name = "n" * 300
    assert callable(command)
    assert command(directory=Path(name)) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert f"{name}: File name too long" in line or f"{name}/state.json: File name too long" in line


def test_up_fails_if_its_directory_cannot_be_created(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the flag that selects another directory."""
    (tmp_path / "file").write_text("")
    assert commands.up(0, 0, tmp_path / "file" / "s") == 1
    assert "use another directory with --dir" in capsys.readouterr().err


def test_the_default_directory_is_hidden_and_relative() -> None:
    """A sandbox belongs to the working directory and does not clutter it."""
    assert Path(".tensile-sandbox") == commands.DEFAULT_DIRECTORY


def test_entries_are_all_files_of_a_sandbox() -> None:
    """Each cluster has a folder and a kubeconfig; the topology and the kubelet's certificate exist once."""
    assert start.entries(["upper", "lower-a"]) == [
        "upper",
        "lower-a",
        "upper.kubeconfig",
        "lower-a.kubeconfig",
        "topology.yaml",
        "kubelet.crt",
        "kubelet.key",
    ]


@pytest.mark.parametrize(("compressed", "place", "nodes"), [(False, 0, 0), (True, 0, 1), (False, 1, 4), (True, 2, 4)])
def test_only_lower_clusters_have_nodes(place: int, nodes: int, *, compressed: bool) -> None:
    """The upper cluster has one node only with compressed eviction, which would not happen without a node."""
    assert start.nodes_of(place, Options(nodes=4, compressed_eviction=compressed)) == nodes


def attempts(taken: int) -> tuple[list[str], Callable[[], None], Callable[[], None]]:
    """Return a record of calls, an attempt that meets that many taken ports, and the cleanup."""
    done: list[str] = []

    def attempt() -> None:
        done.append("attempt")
        if done.count("attempt") <= taken:
            raise PortTakenError("taken")

    return done, attempt, lambda: done.append("clear")


@pytest.mark.parametrize(
    ("taken", "expected"),
    [
        (0, ["attempt"]),
        (1, ["attempt", "clear", "attempt"]),
        (2, ["attempt", "clear", "attempt", "clear", "attempt"]),
    ],
)
def test_a_taken_port_leads_to_another_attempt(taken: int, expected: list[str]) -> None:
    """The leftovers of each attempt are removed before the next one."""
    done, attempt, again = attempts(taken)
    start.with_other_ports(attempt, again)
    assert done == expected


def test_ports_that_are_always_taken_are_an_error() -> None:
    """The sandbox does not start after three attempts."""
    done, attempt, again = attempts(9)
    with pytest.raises(PortTakenError, match="taken"):
        start.with_other_ports(attempt, again)
    assert done.count("attempt") == 3


def test_an_error_other_than_a_taken_port_is_not_retried() -> None:
    """Other ports help only if a port is taken."""
    done: list[str] = []

    def attempt() -> None:
        done.append("attempt")
        raise SandboxError("no space left")

    with pytest.raises(SandboxError, match="no space left"):
        start.with_other_ports(attempt, lambda: done.append("clear"))
    assert done == ["attempt"]


def test_attach_fails_without_a_sandbox(tmp_path: Path) -> None:
    """The error has the command that starts one."""
    with pytest.raises(SandboxError, match=r"no sandbox in .*; start one with `tensile sandbox up --dir /"):
        Sandbox.attach(tmp_path)


@pytest.mark.parametrize(
    ("component", "why"), [("kwok", "upper has no kwok, it has etcd"), ("etcd", r"\(etcd\) does not run")]
)
def test_only_a_running_component_can_be_killed(dead: Path, component: str, why: str) -> None:
    """The error of an unknown component lists the known ones; that of a dead component reports that it does not run."""
    with pytest.raises(SandboxError, match=why):
        Sandbox.attach(dead).kill("upper", component)


def test_an_attached_sandbox_has_its_clusters(dead: Path) -> None:
    """A cluster has its paths, its address and its process IDs."""
    cluster = Sandbox.attach(dead).clusters["upper"]
    assert cluster.kubeconfig == dead / "upper.kubeconfig"
    assert cluster.server == "https://127.0.0.1:20001"
    assert cluster.audit_log == dead / "upper" / "audit.log"
    assert cluster.pids == {"etcd": 2**22 + 1}


def test_kubectl_command_selects_the_cluster(dead: Path) -> None:
    """The command has the sandbox's own kubectl and the kubeconfig of the cluster."""
    sandbox = Sandbox.attach(dead)
    assert sandbox.kubectl_command("get", "pods") == [
        "/bin/kubectl",
        f"--kubeconfig={dead / 'upper.kubeconfig'}",
        "get",
        "pods",
    ]
    assert sandbox.kubectl_command("version", cluster="lower-a")[1] == f"--kubeconfig={dead / 'lower-a.kubeconfig'}"


def test_a_relative_directory_becomes_absolute(dead: Path) -> None:
    """The sandbox is found even after a change of the working directory."""
    relative = Path(os.path.relpath(dead))
    assert Sandbox.attach(relative).directory == dead


def test_stopping_a_removed_sandbox_is_no_error(tmp_path: Path) -> None:
    """A sandbox that another process has removed can still be stopped."""
    assert Sandbox(tmp_path / "none").stop() == []


def test_status_fails_for_an_unfinished_sandbox(dead: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sandbox that was never ready does not count as running, even if none of its processes is missing."""
    unfinished = Sandbox.attach(dead).state()
    unfinished.ready = False
    unfinished.clusters.clear()
    state.save(dead, unfinished)
    assert commands.status(dead) == 1
    assert "some processes do not run" in capsys.readouterr().out


def test_kubectl_command_fails_while_programs_are_missing(dead: Path) -> None:
    """The error reports that the sandbox is still starting."""
    building = Sandbox.attach(dead).state()
    building.binaries = None
    state.save(dead, building)
    with pytest.raises(SandboxError, match="is still starting; wait for `up`"):
        Sandbox.attach(dead).kubectl_command("get", "pods")


@pytest.mark.parametrize("lowers", [0, 26])
def test_the_smallest_and_the_largest_number_of_lowers_are_allowed(lowers: int) -> None:
    """One fewer than the smallest and one more than the largest number are refused."""
    start.check(Options(lowers=lowers, nodes=0), Path("/srv/s"))
    with pytest.raises(SandboxError, match="--lowers"):
        start.check(Options(lowers=27 if lowers else -1), Path("/srv/s"))


def test_a_failed_start_creates_no_directory(tmp_path: Path) -> None:
    """The directory is absent after the failed start, as it was before."""
    (tmp_path / "file").write_text("")
    with pytest.raises(SandboxError, match="Not a directory"):
        Sandbox.start(tmp_path / "file" / "s", Options(lowers=0))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_printed_commands_are_quoted(
    upper: Layout, binaries: Binaries, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A space in the path does not split it, and each hint names this directory."""
    place = tmp_path / "my sandbox"
    place.mkdir()
    process = Process(2**22 + 1, 1, ["/bin/etcd"], "/somewhere/etcd.log")
    clusters = {"upper": SandboxCluster(upper, {"etcd": process})}
    one = State("feed", Options(0, 0), ["upper"], [], ready=True, binaries=binaries, clusters=clusters)
    state.save(place, one)
    assert commands.status(place) == 1
    assert f"`{commands.program()} sandbox up --dir '{place}'` restarts them" in capsys.readouterr().out
    guide = commands._guide(place, one).splitlines()
    assert f"  {commands.program()} run -f '{place}/topology.yaml'" in guide
    assert f"  export KUBECONFIG='{place}/upper.kubeconfig'" in guide
    (pod,) = (line for line in guide if " run hello " in line)
    assert json.loads(shlex.split(pod)[-1].removeprefix("--overrides="))["spec"]["tolerations"]
    assert guide[-1] == f"  {commands.program()} sandbox down --dir '{place}'"


def test_scarce_memory_is_a_warning() -> None:
    """There may be swap; enough memory, or an unknown amount, gives no warning."""
    warning = start.memory_shortage(13, 4096)
    assert warning == (
        "13 clusters need about 8.3 GB of memory, and 4.0 GB are available: "
        "if processes are killed, use a smaller --lowers"
    )
    assert (start.memory_shortage(3, 4096), start.memory_shortage(13, 0)) == ("", "")


def test_many_clusters_get_a_longer_time_limit(upper: Layout) -> None:
    """Thirteen clusters need minutes on two cores; three are too late after two minutes."""
    one = SandboxCluster(upper)
    assert start._limit([one] * 3) == 120
    assert start._limit([one] * 13) == 260
