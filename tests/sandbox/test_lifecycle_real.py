"""Tests of `up`, `status` and `down` with real control planes, and of what is left when `up` ends or is killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from sandbox_waiting import open_directory, until, until_unlocked

from tensile.sandbox import commands, processes, state
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import Options, State
from tensile.sandbox.stop import PACKAGE_ROOT
from tensile.topology import parse

pytestmark = pytest.mark.real

UP = """
import sys
from pathlib import Path
from tensile.sandbox.commands import up
sys.exit(up({options}, Path(sys.argv[1])))
"""
ONE_LOWER = "1, 1"
BARE_PATH = "/usr/bin:/bin"
"""A search path without tensile and, on most machines, without kubectl."""
ALL_OF_ONE_LOWER = 11


def begin_up(
    directory: Path, options: str = ONE_LOWER, environ: Mapping[str, str] = os.environ
) -> subprocess.Popen[str]:
    """Start `up` as a separate process."""
    return subprocess.Popen(
        [sys.executable, "-c", UP.format(options=options), str(directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**environ, "PYTHONPATH": str(PACKAGE_ROOT)},
    )


def up(directory: Path, options: str = ONE_LOWER) -> tuple[int, str, str]:
    """Run `up` until it ends; return its exit code and its output."""
    with begin_up(directory, options) as process:
        out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def started(directory: Path) -> int:
    """Return how many processes of a sandbox are recorded in its state, or -1 if it has no state yet."""
    found = state.load(directory)
    return -1 if found is None else sum(len(one.processes) for one in found.clusters.values())


def loaded(directory: Path) -> State:
    """Return the state of the existing sandbox."""
    found = state.load(directory)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with a sandbox of one lower and a file of the user; `down` removes the sandbox at the end."""
    path = tmp_path_factory.mktemp("lifecycle")
    code, out, err = up(path)
    assert code == 0, err
    (path / "notes.txt").write_text("mine")
    assert out.startswith("ready in ")
    yield path
    commands.down(path)


def test_up_prints_commands_that_work_as_printed(directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """They work in a shell without tensile and kubectl in $PATH: first the engine, then the others."""
    with begin_up(directory, environ={**os.environ, "PATH": BARE_PATH}) as process:
        out, _ = process.communicate()
    engine, *others, _ = [line.strip() for line in out.partition("start the engine")[2].splitlines() if line[:1] == " "]
    nodes = f"for n in $(seq 200); do {'; '.join(others)} | grep ' Ready' && exit; sleep 0.1; done; exit 1"
    script = f"{engine} & trap 'kill $!; wait' EXIT; {nodes}"
    done = subprocess.run(
        ["sh", "-c", script],
        env={"PATH": BARE_PATH, "HOME": str(directory.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("lower-a "), done.stdout


def test_up_prints_the_command_that_stops_the_sandbox(tmp_path: Path) -> None:
    """Its last line is a command that stops and removes the sandbox."""
    code, out, _ = up(tmp_path / "my sandbox", "0, 0")
    assert code == 0
    last = out.splitlines()[-1].strip()
    ended = subprocess.run(
        ["sh", "-c", last],
        env={"PATH": BARE_PATH, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.stdout == f"stopped and removed: {tmp_path / 'my sandbox'}\n"
    assert not (tmp_path / "my sandbox").exists()


def test_up_prints_the_path_of_the_sandboxs_kubectl_if_the_machine_has_none(directory: Path) -> None:
    """The path is absolute, and the file is executable."""
    with begin_up(directory, environ={**os.environ, "PATH": "/no/such/folder"}) as process:
        out, _ = process.communicate()
    (command,) = [line for line in out.splitlines() if line.endswith("get nodes")]
    assert Path(command.split()[0]).is_absolute()
    assert os.access(command.split()[0], os.X_OK)


def test_the_topology_file_is_valid(directory: Path) -> None:
    """It names every cluster, with kubeconfigs in the same directory."""
    parsed = parse((directory / "topology.yaml").read_text())
    assert [lower.name for lower in parsed.lowers] == ["lower-a"]
    assert parsed.upper.kubeconfig == "upper.kubeconfig"


def test_a_second_up_reports_the_running_sandbox(directory: Path) -> None:
    """It starts and stops no process."""
    before = loaded(directory)
    code, out, _ = up(directory)
    assert (code, out.splitlines()[0]) == (0, "already running: 1 lower clusters with 1 nodes each")
    assert loaded(directory) == before


def test_a_second_up_without_options_accepts_the_running_sandbox(directory: Path) -> None:
    """Without numbers, a sandbox of any size fits."""
    code, out, err = up(directory, "None, None")
    assert (code, out.splitlines()[0], err) == (0, "already running: 1 lower clusters with 1 nodes each", "")


def test_a_second_up_with_other_options_fails(directory: Path) -> None:
    """A sandbox with other options is not presented as the requested one, and continues to run."""
    before = loaded(directory)
    code, _, err = up(directory, "2, 3")
    assert code == 1
    remedy = f"run `{commands.program()} sandbox down --dir {directory}` first"
    assert f"runs with other options (--lowers, --nodes): {remedy}" in err
    assert loaded(directory) == before
    assert commands.status(directory) == 0


def test_status_lists_every_process(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each line has the cluster, the component and its process ID; the last one reports that all processes run."""
    assert commands.status(directory) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    numbers = {process.pid for one in loaded(directory).clusters.values() for process in one.processes.values()}
    assert len(lines) == ALL_OF_ONE_LOWER
    assert all(any(f"pid {number}" in line for line in lines) for number in numbers)
    assert last == f"{directory}: all processes run"


def test_the_nodes_are_ready_when_up_returns(directory: Path) -> None:
    """The upper cluster has no nodes, and the lower cluster has its nodes with free capacity."""
    sandbox = Sandbox.attach(directory)
    fields = "jsonpath={range .items[*]}{.metadata.name} {.status.allocatable.pods} {.spec.taints}{end}"
    own = "type!=virtual-kubelet"  # an engine of another test may have made virtual ones
    assert sandbox.kubectl("get", "nodes", "-l", own, "-o", fields).stdout == ""
    assert sandbox.kubectl("get", "nodes", "-o", fields, cluster="lower-a").stdout == "lower-a-node-1 500 "


@pytest.mark.parametrize("cluster", ["upper", "lower-a"])
def test_pods_can_be_created_when_up_returns(directory: Path, cluster: str) -> None:
    """The service account that every pod needs exists."""
    sandbox = Sandbox.attach(directory)
    made = sandbox.kubectl("run", "at-once", "--image=none", cluster=cluster)
    assert made.returncode == 0, made.stderr
    sandbox.kubectl("delete", "pod", "at-once", "--now", cluster=cluster)


def test_dead_components_are_reported_and_restarted(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status fails if components are dead, and `up` restarts only these, with their ports and data."""
    sandbox = Sandbox.attach(directory)
    before = sandbox.clusters["upper"].pids
    for component in ("kube-apiserver", "kube-scheduler"):
        sandbox.kill("upper", component)
    assert commands.status(directory) == 1
    assert capsys.readouterr().out.count("does not run; see ") == 2
    assert up(directory)[0] == 0
    after = sandbox.clusters["upper"].pids
    assert {name for name in after if after[name] != before[name]} == {"kube-apiserver", "kube-scheduler"}
    assert sandbox.kubectl("get", "clusterrolebinding", "kube-apiserver-kubelet-client").returncode == 0


def test_the_clusters_do_not_trust_each_others_users(directory: Path) -> None:
    """The upper cluster rejects a lower cluster's kubeconfig."""
    sandbox = Sandbox.attach(directory)
    server = sandbox.clusters["upper"].server
    tried = sandbox.kubectl("get", "namespaces", f"--server={server}", cluster="lower-a")
    assert tried.returncode != 0
    assert "certificate" in tried.stderr


def test_down_keeps_only_files_that_are_not_the_sandboxs(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No process and no file is left except the user's, and status fails afterwards."""
    identity = loaded(directory).identity
    assert len(processes.marked(identity)) == ALL_OF_ONE_LOWER
    assert commands.down(directory) == 0
    assert processes.marked(identity) == []
    assert [path.name for path in directory.iterdir()] == ["notes.txt"]
    assert "kept, not created by the sandbox: notes.txt" in capsys.readouterr().out
    assert commands.status(directory) == 1


@pytest.mark.parametrize(
    ("number", "after"),
    [
        (signal.SIGKILL, 0),
        (signal.SIGKILL, 3),
        (signal.SIGKILL, ALL_OF_ONE_LOWER),
        (signal.SIGTERM, 3),
        (signal.SIGINT, 3),
    ],
    ids=["KILL at once", "KILL half way", "KILL at the end", "TERM", "INT"],
)
def test_a_killed_up_leaves_nothing(tmp_path: Path, number: signal.Signals, after: int) -> None:
    """No process and no file is left, however many processes had been started."""
    place = tmp_path / "made" / "for it"
    with begin_up(place) as process:
        until(lambda: started(place) >= after, f"{after} processes")
        identity = loaded(place).identity
        held = open_directory(place)
        process.send_signal(number)
        process.communicate()
    until_unlocked(held)
    assert process.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    assert processes.marked(identity) == []
    assert list(tmp_path.iterdir()) == []


def test_an_up_that_is_killed_during_a_build_leaves_nothing(tmp_path: Path) -> None:
    """The compiler ends with it, and no incomplete program counts as built."""
    place, cache = tmp_path / "s", tmp_path / "cache"
    environ = {key: value for key, value in os.environ.items() if key != "KUBEBUILDER_ASSETS"}
    with begin_up(place, environ={**environ, "XDG_CACHE_HOME": str(cache)}) as process:
        until(lambda: started(place) == 0, "the state")
        identity = loaded(place).identity
        until(lambda: processes.marked(identity), "a process that builds")
        held = open_directory(place)
        process.kill()
        process.communicate()
    until_unlocked(held)
    assert processes.marked(identity) == []
    assert not place.exists()
    assert not list((cache / "tensile-kube").glob("kubernetes-*"))


def guard_of(number: int) -> int:
    """Return the process ID of the guard that an `up` started."""
    children = Path(f"/proc/{number}/task/{number}/children").read_text().split()
    lines = {int(child): Path(f"/proc/{child}/cmdline").read_bytes() for child in children}
    (found,) = [child for child, line in lines.items() if b"tensile.sandbox.stop" in line]
    return found


def test_an_unfinished_sandbox_is_removed_by_the_next_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Even if the guard was killed too, `up` reports and removes the leftovers before it starts another sandbox."""
    place = tmp_path / "s"
    with begin_up(place, "0, 0") as process:
        until(lambda: started(place) >= 2, "two processes")
        identity = loaded(place).identity
        for number in (guard_of(process.pid), process.pid):
            os.kill(number, signal.SIGKILL)
        process.communicate()
    assert processes.marked(identity)
    assert commands.status(place) == 1
    code, _, err = up(place, "0, 0")
    assert code == 0, err
    assert "removing an incomplete sandbox first" in err
    assert processes.marked(identity) == []
    assert commands.status(place) == 0
    assert commands.down(place) == 0
    assert "some processes do not run" in capsys.readouterr().out


def test_programs_are_prepared_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Programs that were built before are found without a message, and every program is listed."""
    assert commands.prepare() == 0
    output = capsys.readouterr()
    assert output.err == ""
    programs = [Path(line) for line in output.out.splitlines()]
    assert len(programs) == len(state.Binaries.__struct_fields__)
    assert all(os.access(path, os.X_OK) for path in programs)


def test_two_concurrent_ups_start_one_sandbox(tmp_path: Path) -> None:
    """The second one waits for the first one and finds its sandbox."""
    place = tmp_path / "s"
    with begin_up(place, "0, 0") as one, begin_up(place, "0, 0") as two:
        outputs = [process.communicate(timeout=300)[0].split()[0] for process in (one, two)]
    assert sorted(outputs) == ["already", "ready"]
    assert (one.returncode, two.returncode) == (0, 0)
    assert commands.down(place) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_bound_sandbox_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """A killed test run or demo leaves no control planes."""
    place = tmp_path / "s"
    script = (
        "import sys; from pathlib import Path; from tensile.sandbox.sandbox import Sandbox, Options\n"
        "Sandbox.start(Path(sys.argv[1]), Options(lowers=0)); print('started', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        identity = loaded(place).identity
        process.kill()
    until(lambda: not place.exists(), "the removal of the sandbox")
    assert processes.marked(identity) == []


def test_a_sandbox_ends_with_its_with_block(tmp_path: Path) -> None:
    """It runs inside the block, and its files and processes are removed after it."""
    with Sandbox.start(tmp_path / "s", Options(lowers=0)) as sandbox:
        identity = sandbox.state().identity
        assert list(sandbox.clusters) == ["upper"]
        assert len(processes.marked(identity)) == 4
    assert processes.marked(identity) == []
    assert list(tmp_path.iterdir()) == []
