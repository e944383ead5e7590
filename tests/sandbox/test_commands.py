"""What the commands say where no sandbox runs."""

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
    """A directory whose sandbox was ready once, and whose one process ended since."""
    process = Process(2**22 + 1, 1, ["/bin/etcd"], "/somewhere/etcd.log")
    clusters = {"upper": SandboxCluster(upper, {"etcd": process})}
    one = State("feed", Options(0, 0), ["upper"], [], ready=True, binaries=binaries, clusters=clusters)
    state.save(tmp_path, one)
    return tmp_path


def test_status_without_a_sandbox(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says that there is none, and fails."""
    assert commands.status(tmp_path / "none") == 1
    assert capsys.readouterr().out == f"no sandbox in {tmp_path / 'none'}\n"


def test_down_without_a_sandbox(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is wanted is the case already; nothing is made."""
    assert commands.down(tmp_path / "none") == 0
    assert capsys.readouterr().out == f"no sandbox in {tmp_path / 'none'}\n"
    assert not (tmp_path / "none").exists()


def test_status_tells_what_does_not_run(dead: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It names the process and where its last words are, says what to do, and fails."""
    assert commands.status(dead) == 1
    said = capsys.readouterr().out
    assert "etcd                     does not run; see /somewhere/etcd.log" in said
    assert f"some processes do not run: `{commands.program()} sandbox up --dir {dead}` restarts them" in said


def test_down_removes_what_a_dead_sandbox_left(dead: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files go though no process is left, and others stay and are named."""
    (dead / "upper").mkdir()
    (dead / "notes.txt").write_text("mine")
    assert commands.down(dead) == 0
    assert [path.name for path in dead.iterdir()] == ["notes.txt"]
    assert "kept, not created by the sandbox: notes.txt" in capsys.readouterr().out


@pytest.mark.parametrize("command", [commands.status, commands.down])
def test_a_foreign_state_is_not_touched(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: object) -> None:
    """A state.json of something else is an error on standard error, and stays."""
    (tmp_path / state.FILE).write_text("[1]")
    assert callable(command)
    assert command(tmp_path) == 1
    said = capsys.readouterr()
    assert said.err.startswith("error: ")
    assert said.out == ""
    assert (tmp_path / state.FILE).read_text() == "[1]"


@pytest.mark.parametrize("names", [["topology.yaml"], ["notes.txt"], ["a", "b", "c"], ["a", "b", "c", "d", "e"]])
def test_up_does_not_mix_its_files_with_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], names: list[str]
) -> None:
    """A directory with files is refused, with the first of their names and what to do; they stay as they are."""
    for name in names:
        (tmp_path / name).write_text("mine")
    assert commands.up(2, 1, tmp_path) == 1
    shown = ", ".join(names[:3]) + (" and 2 more" if len(names) == 5 else "")
    assert capsys.readouterr().err == (
        f"error: {tmp_path} is not empty ({shown}), and the sandbox needs its own directory: "
        "choose a new or empty one with --dir, or remove these files\n"
    )
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(names, "mine")


def test_up_passes_over_what_a_killed_start_left(tmp_path: Path) -> None:
    """A state that was being written is the sandbox's own."""
    (tmp_path / state.NEW_FILE).write_text("{")
    start._refuse_foreign(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(SandboxError, match=r"is not empty \(notes\.txt\)"):
        start._refuse_foreign(tmp_path)


@pytest.mark.parametrize(
    ("lowers", "nodes", "words"),
    [
        (27, 3, "--lowers 27: use a number from 0 to 26"),
        (-1, 3, "--lowers -1: use a number from 0 to 26"),
        (2, -1, "--nodes -1: use 0 or more"),
    ],
)
def test_up_refuses_what_it_cannot_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lowers: int, nodes: int, words: str
) -> None:
    """The error names the flag and what it takes; no directory is made."""
    assert commands.up(lowers, nodes, tmp_path / "s") == 1
    assert capsys.readouterr().err == f"error: {words}\n"
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("command", [commands.up, commands.down, commands.status])
def test_what_the_system_refuses_is_told_in_a_line(capsys: pytest.CaptureFixture[str], command: object) -> None:
    """A name that no file can have is an error, not a traceback."""
    name = "n" * 300
    assert callable(command)
    assert command(directory=Path(name)) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert f"{name}: File name too long" in line or f"{name}/state.json: File name too long" in line


def test_up_in_a_directory_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the path and the flag to change it by."""
    (tmp_path / "file").write_text("")
    assert commands.up(0, 0, tmp_path / "file" / "s") == 1
    assert "use another directory with --dir" in capsys.readouterr().err


def test_the_default_directory_is_hidden_and_relative() -> None:
    """A sandbox belongs to the directory one works in, and does not get in the way there."""
    assert Path(".tensile-sandbox") == commands.DEFAULT_DIRECTORY


def test_entries_are_all_that_a_sandbox_makes() -> None:
    """Each cluster has a folder and a kubeconfig; the rest is there once."""
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
def test_only_lowers_have_nodes(place: int, nodes: int, *, compressed: bool) -> None:
    """The upper cluster has none but, when eviction is compressed, the one without which none would happen."""
    assert start.nodes_of(place, Options(nodes=4, compressed_eviction=compressed)) == nodes


def attempts(taken: int) -> tuple[list[str], Callable[[], None], Callable[[], None]]:
    """Return a list of what was done, an attempt that meets that many taken ports, and the clearing up."""
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
def test_a_taken_port_costs_another_attempt(taken: int, expected: list[str]) -> None:
    """Before each further attempt what the one before it left is cleared away."""
    done, attempt, again = attempts(taken)
    start.with_other_ports(attempt, again)
    assert done == expected


def test_ports_that_are_always_taken_are_an_error() -> None:
    """After three attempts the sandbox does not start."""
    done, attempt, again = attempts(9)
    with pytest.raises(PortTakenError, match="taken"):
        start.with_other_ports(attempt, again)
    assert done.count("attempt") == 3


def test_another_error_is_not_tried_again() -> None:
    """Only other ports can help, and only against taken ones."""
    done: list[str] = []

    def attempt() -> None:
        done.append("attempt")
        raise SandboxError("no space left")

    with pytest.raises(SandboxError, match="no space left"):
        start.with_other_ports(attempt, lambda: done.append("clear"))
    assert done == ["attempt"]


def test_attaching_needs_a_sandbox(tmp_path: Path) -> None:
    """The error says how to get one."""
    with pytest.raises(SandboxError, match=r"no sandbox in .*; start one with `tensile sandbox up --dir /"):
        Sandbox.attach(tmp_path)


@pytest.mark.parametrize(
    ("component", "why"), [("kwok", "upper has no kwok, it has etcd"), ("etcd", r"\(etcd\) does not run")]
)
def test_only_a_component_that_runs_can_be_killed(dead: Path, component: str, why: str) -> None:
    """A test with a typing error learns the right names, and one that kills the dead its mistake."""
    with pytest.raises(SandboxError, match=why):
        Sandbox.attach(dead).kill("upper", component)


def test_the_clusters_of_a_sandbox(dead: Path) -> None:
    """A cluster shows its paths, its address and its processes."""
    cluster = Sandbox.attach(dead).clusters["upper"]
    assert cluster.kubeconfig == dead / "upper.kubeconfig"
    assert cluster.server == "https://127.0.0.1:20001"
    assert cluster.audit_log == dead / "upper" / "audit.log"
    assert cluster.pids == {"etcd": 2**22 + 1}


def test_kubectl_speaks_to_the_cluster_that_is_asked_for(dead: Path) -> None:
    """The command names the sandbox's own kubectl and the cluster's kubeconfig."""
    sandbox = Sandbox.attach(dead)
    assert sandbox.kubectl_command("get", "pods") == [
        "/bin/kubectl",
        f"--kubeconfig={dead / 'upper.kubeconfig'}",
        "get",
        "pods",
    ]
    assert sandbox.kubectl_command("version", cluster="lower-a")[1] == f"--kubeconfig={dead / 'lower-a.kubeconfig'}"


def test_a_relative_directory_is_made_absolute(dead: Path) -> None:
    """A sandbox is found again after a change of the working directory."""
    relative = Path(os.path.relpath(dead))
    assert Sandbox.attach(relative).directory == dead


def test_stopping_what_is_gone_is_no_error(tmp_path: Path) -> None:
    """A sandbox that somebody else ended can be stopped all the same."""
    assert Sandbox(tmp_path / "none").stop() == []


def test_status_of_an_unfinished_sandbox(dead: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sandbox that was never ready does not count as running, even if no process of it is missing."""
    unfinished = Sandbox.attach(dead).state()
    unfinished.ready = False
    unfinished.clusters.clear()
    state.save(dead, unfinished)
    assert commands.status(dead) == 1
    assert "some processes do not run" in capsys.readouterr().out


def test_kubectl_needs_programs_that_were_found(dead: Path) -> None:
    """While a sandbox is still building there is no kubectl, which the error says."""
    building = Sandbox.attach(dead).state()
    building.binaries = None
    state.save(dead, building)
    with pytest.raises(SandboxError, match="is still starting; wait for `up`"):
        Sandbox.attach(dead).kubectl_command("get", "pods")


@pytest.mark.parametrize("lowers", [0, 26])
def test_any_number_of_lowers_that_have_names_will_do(lowers: int) -> None:
    """The smallest and the largest sandbox are allowed; one more is not."""
    start.check(Options(lowers=lowers, nodes=0), Path("/srv/s"))
    with pytest.raises(SandboxError, match="--lowers"):
        start.check(Options(lowers=27 if lowers else -1), Path("/srv/s"))


def test_a_sandbox_is_nobodys_to_start_without_a_place(tmp_path: Path) -> None:
    """A failed start leaves the directory as it was: absent."""
    (tmp_path / "file").write_text("")
    with pytest.raises(SandboxError, match="Not a directory"):
        Sandbox.start(tmp_path / "file" / "s", Options(lowers=0))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_is_printed_to_be_pasted_is_quoted(
    upper: Layout, binaries: Binaries, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A blank in the path does not make two words of it, and each hint is for this directory."""
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


def test_scarce_memory_is_told_and_no_error() -> None:
    """There may be swap; a machine that does not say, and one with enough, get no words."""
    said = start.memory_shortage(13, 4096)
    assert said == (
        "13 clusters need about 8.3 GB of memory, and 4.0 GB are available: "
        "if processes are killed, use a smaller --lowers"
    )
    assert (start.memory_shortage(3, 4096), start.memory_shortage(13, 0)) == ("", "")


def test_many_clusters_get_more_time(upper: Layout) -> None:
    """Thirteen take minutes on two cores; three are late after two minutes."""
    one = SandboxCluster(upper)
    assert start._limit([one] * 3) == 120
    assert start._limit([one] * 13) == 260
